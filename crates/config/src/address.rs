//! Reads IP addresses, prefixes and suffixes from the configuration.
//!
//! Each address must be a unicast address. Prefixes must not have host bits set, and suffixes must
//! not have bits set outside their length. Host names are rejected, because a statically linked
//! binary has no reliable resolver.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use config_text::words::quote;
use config_text::{Expected, Message, Node};
use forwarder::{Prefix, Suffix};

/// Methods of a [`Node`] that read addresses and prefixes.
pub(super) trait AddressNode {
    /// Reads the address of a single host. `role` describes the address in error messages, such as
    /// `backend address`.
    fn unicast(&self, role: &str) -> Option<IpAddr>;
    /// Reads a prefix, such as a prefix in a prefix group.
    fn prefix(&self) -> Option<Prefix>;
    /// Reads a prefix or an address from which client packets may come.
    fn source(&self, expected: Expected) -> Option<Prefix>;
}

impl AddressNode for Node<'_> {
    fn unicast(&self, role: &str) -> Option<IpAddr> {
        self.read(UNICAST, |text| unicast(role, text))
    }

    fn prefix(&self) -> Option<Prefix> {
        self.read(PREFIX, prefix)
    }

    fn source(&self, expected: Expected) -> Option<Prefix> {
        let Some(text) = self.as_str() else { return self.unexpected(expected) };
        match source(text) {
            Ok(prefix) => Some(prefix),
            Err(PrefixFlaw::NoAddress) => self.unexpected(expected),
            Err(PrefixFlaw::Words { message, help }) => self.wrong((message, help)),
        }
    }
}

/// Reads `ADDRESS/LENGTH` and checks that no host bits are set.
pub(super) fn prefix(text: &str) -> Result<Prefix, Message> {
    let shown = quote(text);
    let Some((address, length)) = text.split_once('/') else {
        return Err(
            (format!("prefix {shown} has no length"), "write a prefix such as \"198.51.100.0/24\"").into()
        );
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        let message = format!("prefix {shown} does not start with an IP address");
        return Err((message, if is_host_name(address) { NO_NAMES } else { "" }).into());
    };
    if let Some(range) = range(address) {
        return Err(format!("prefix {shown} contains {range}").into());
    }
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let Some(length) = bits_from(length).filter(|length| (8..=bits).contains(length)) else {
        let help = format!("use a length from 8 to {bits}");
        return Err((format!("prefix {shown} has an invalid length"), help).into());
    };
    let Some(prefix) = Prefix::new(address, length) else {
        let help = format!("write \"{}/{length}\"", start_of(address, length));
        return Err((format!("prefix {shown} has host bits set"), help).into());
    };
    match RESERVED.iter().find(|(address, _)| prefix.contains(IpAddr::V6(*address))) {
        Some((_, range)) => Err(format!("prefix {shown} contains {range}").into()),
        None => Ok(prefix),
    }
}

/// Reads a prefix or a single address from which client packets may come. Any length and any
/// address is accepted.
pub(super) fn source(text: &str) -> Result<Prefix, PrefixFlaw> {
    let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    let address: IpAddr = address.parse().map_err(|_| PrefixFlaw::NoAddress)?;
    let words = |message: String, help: String| PrefixFlaw::Words { message, help };
    if let IpAddr::V6(v6) = address
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        return Err(words(format!("{address} is an IPv4-mapped IPv6 address"), format!("write \"{v4}\"")));
    }
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => bits,
        Some(text) => bits_from(text).filter(|length| *length <= bits).ok_or_else(|| {
            let message = format!("the prefix of {address} has an invalid length");
            words(message, format!("use a length from 0 to {bits}"))
        })?,
    };
    Prefix::new(address, length).ok_or_else(|| {
        let message = format!("prefix {address}/{length} has host bits set");
        words(message, format!("write \"{}/{length}\"", start_of(address, length)))
    })
}

/// Returns `address` with all bits after the first `length` bits cleared.
fn start_of(address: IpAddr, length: u8) -> IpAddr {
    let shift = u32::from(length);
    match address {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & !u32::MAX.checked_shr(shift).unwrap_or(0)).into()),
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & !u128::MAX.checked_shr(shift).unwrap_or(0)).into()),
    }
}

/// The reason why a source prefix is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PrefixFlaw {
    /// The text does not contain an address. The error message does not quote the text, which may
    /// be a secret.
    NoAddress,
    /// The address or the prefix length is invalid.
    Words { message: String, help: String },
}

/// Reads `ADDRESS/LENGTH` and checks that no bits of the address are set except the last LENGTH
/// bits.
pub(super) fn suffix(text: &str) -> Result<Suffix, Message> {
    let shown = quote(text);
    let Some((address, length)) = text.split_once('/') else {
        return Err((format!("suffix {shown} has no length"), "write a suffix such as \"0.0.0.20/7\"").into());
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return Err(format!("suffix {shown} does not start with an IP address").into());
    };
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let Some(length) = bits_from(length).filter(|&length| length <= bits) else {
        let help = format!("use a length from 0 to {bits}");
        return Err((format!("suffix {shown} has an invalid length"), help).into());
    };
    Suffix::new(address, length)
        .ok_or_else(|| format!("suffix {shown} has bits set outside its last {length} bits").into())
}

fn bits_from(text: &str) -> Option<u8> {
    let digits = !text.is_empty() && text.len() <= 3 && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Reads the address of a single host.
fn unicast(role: &str, text: &str) -> Result<IpAddr, Message> {
    let shown = quote(text);
    let Ok(address) = text.parse::<IpAddr>() else {
        let before = text.split('/').next().and_then(|address| address.parse::<IpAddr>().ok());
        let socket = text.parse::<SocketAddr>().ok().map(|socket| socket.ip());
        return Err(match (before, socket) {
            (Some(address), _) => {
                (format!("{role} {shown} is a prefix, not an address"), format!("write \"{address}\""))
            }
            (None, Some(address)) => (format!("{role} {shown} has a port"), format!("write \"{address}\"")),
            (None, None) => {
                let help = if is_host_name(text) { NO_NAMES } else { "" };
                (format!("{role} {shown} is not an IP address"), help.to_owned())
            }
        }
        .into());
    };
    match flaw(address) {
        Some((kind, help)) => Err((format!("{role} {address} is {kind}"), help).into()),
        None => Ok(address),
    }
}

/// Returns `true` if the text consists of letters, digits, dots and hyphens and has at least one
/// letter.
fn is_host_name(text: &str) -> bool {
    let letters = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
    letters && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Returns a description and a help text for an address that does not belong to a single host.
/// Returns `None` if the address is valid.
fn flaw(address: IpAddr) -> Option<(&'static str, String)> {
    let reachable = "use an address that other machines can reach";
    if address.is_unspecified() {
        return Some(("the unspecified address", reachable.to_owned()));
    }
    if address.is_loopback() {
        return Some(("a loopback address", reachable.to_owned()));
    }
    if address.is_multicast() {
        return Some(("a multicast address", "use the address of one host".to_owned()));
    }
    match address {
        IpAddr::V4(v4) if v4.octets()[0] == 0 || v4.octets()[0] >= 240 => {
            Some(("a reserved address", reachable.to_owned()))
        }
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            Some(("a link-local address", "use a global or unique local address".to_owned()))
        }
        IpAddr::V6(v6) => {
            let v4 = v6.to_ipv4_mapped()?;
            Some(("an IPv4-mapped IPv6 address", format!("write \"{v4}\"")))
        }
        IpAddr::V4(_) => None,
    }
}

/// Returns a description of the special range that contains an address, such as "loopback
/// addresses". Returns `None` for the address of a single host.
fn range(address: IpAddr) -> Option<&'static str> {
    Some(match flaw(address)?.0 {
        "the unspecified address" => "the unspecified address",
        "a loopback address" => "loopback addresses",
        "a multicast address" => "multicast addresses",
        "a link-local address" => "link-local addresses",
        "an IPv4-mapped IPv6 address" => "IPv4-mapped addresses",
        _ => "reserved addresses",
    })
}

pub(super) const UNICAST: Expected = Expected::new("the IP address of one host").example("\"198.18.1.1\"");
const NO_NAMES: &str = "host names are not resolved; see docs/reference/limits.md";
pub(super) const SUFFIX: Expected =
    Expected::new("an IP address, a slash, and the number of low bits to compare").example("\"0.0.0.20/7\"");
pub(super) const PREFIX: Expected = Expected::new("an IP prefix").example("\"198.51.100.0/24\"");

/// Reserved ranges that an IPv6 prefix must not contain. Each range is represented by its first
/// address. A prefix that starts inside a reserved range is rejected because of its own first
/// address.
const RESERVED: &[(Ipv6Addr, &str)] = &[
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), "IPv4-mapped addresses"),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), "link-local addresses"),
];

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::{PrefixFlaw, prefix, source, suffix, unicast};

    #[test]
    fn addresses_are_of_one_host() {
        let good = ["192.0.2.1", "203.0.113.255", "2001:db8::1", "198.18.0.0"];
        for text in good {
            assert!(unicast("address", text).is_ok(), "{text}");
        }
        let bad = [
            ("0.0.0.0", "unspecified"),
            ("::", "unspecified"),
            ("127.0.0.1", "loopback"),
            ("::1", "loopback"),
            ("224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("255.255.255.255", "reserved"),
            ("240.0.0.1", "reserved"),
            ("0.1.2.3", "reserved"),
            ("fe80::1", "link-local"),
            ("::ffff:192.0.2.1", "IPv4-mapped"),
            ("b1.example", "host names are not resolved"),
            ("localhost", "host names are not resolved"),
            ("192.0.2", "192.0.2\\\" is not an IP address\", help: None"),
            ("192.0.2.1:80", "has a port"),
            ("192.0.2.01", "is not an IP address"),
            ("192.0.2.1/32", "is a prefix, not an address"),
            ("", "is not an IP address"),
        ];
        for (text, word) in bad {
            let found = format!("{:?}", unicast("address", text).unwrap_err());
            assert!(found.contains(word), "{text}: {found}");
        }
    }

    #[test]
    fn prefixes_have_no_host_bits() {
        for text in [
            "198.51.100.0/28",
            "192.0.2.1/32",
            "198.18.0.0/15",
            "2000::/8",
            "2001:db8::/32",
            "2001:db8::1/128",
        ] {
            assert_eq!(prefix(text).unwrap().to_string(), text);
        }
        for text in [
            "198.51.100.1/28",
            "198.51.100.0",
            "198.51.100.0/33",
            "0.0.0.0/7",
            "2000::/7",
            "198.51.100.0/+28",
            "198.51.100.0/",
            "/8",
            "2001:db8::/28",
            "2001:db8::1/127",
            "2001:db8::/129",
            "224.0.0.0/8",
            "240.0.0.0/8",
            "127.0.0.0/9",
            "0.0.0.0/8",
            "fe00::/8",
            "fe80::/16",
            "ff00::/8",
            "::/8",
            "0:0:0:0:0:ff00::/88",
        ] {
            assert!(prefix(text).is_err(), "{text}");
        }
    }

    #[test]
    fn suffixes_are_the_last_bits() {
        for text in ["0.0.0.20/7", "0.0.0.0/0", "::20/72", "0.0.0.127/7", "::/0", "255.255.255.255/32"] {
            assert_eq!(suffix(text).unwrap().to_string(), text);
        }
        for (text, word) in [
            ("0.0.0.20/4", "has bits set outside its last 4 bits"),
            ("0.0.0.128/7", "has bits set outside"),
            ("1::20/72", "has bits set outside"),
            ("0.0.0.20", "has no length"),
            ("0.0.0.20/33", "0 to 32"),
            ("::20/129", "0 to 128"),
            ("::20/+7", "0 to 128"),
            ("cache/7", "does not start with an IP address"),
        ] {
            let found = format!("{:?}", suffix(text).unwrap_err());
            assert!(found.contains(word), "{text}: {found}");
        }
    }

    #[test]
    fn source_prefixes_are_any_that_a_packet_may_come_from() {
        for (text, shown) in [
            ("198.51.100.7", "198.51.100.7/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("198.18.0.0/15", "198.18.0.0/15"),
        ] {
            assert_eq!(source(text).unwrap().to_string(), shown);
        }
        for (text, fault, right) in [
            ("198.18.0.1/15", "198.18.0.1/15 has host bits set", "\"198.18.0.0/15\""),
            ("2001:db8::1/64", "2001:db8::1/64 has host bits set", "\"2001:db8::/64\""),
            ("198.18.0.0/33", "198.18.0.0 has an invalid length", "from 0 to 32"),
            ("2001:db8::/129", "has an invalid length", "from 0 to 128"),
            ("198.18.0.0/", "has an invalid length", "from 0 to 32"),
            ("198.18.0.0/+8", "has an invalid length", "from 0 to 32"),
            ("::ffff:192.0.2.1", "is an IPv4-mapped IPv6 address", "\"192.0.2.1\""),
        ] {
            let Err(PrefixFlaw::Words { message, help }) = source(text) else { panic!("{text}") };
            assert!(message.contains(fault) && help.contains(right), "{text}: {message}, {help}");
        }
        for text in ["", "www.example", "/8", "198.18.0", "198.18.0.0 /8", "000102030405060708090a0b0c0d0e0f"]
        {
            assert_eq!(source(text), Err(PrefixFlaw::NoAddress), "{text}");
        }
    }

    proptest! {
        #[test]
        fn prefix_is_accepted_without_host_bits_only(bits: u32, length in 8..=32_u8) {
            let bits = 0xc612_0000 | (bits & 0xffff); // 198.18.0.0/16
            let address = std::net::Ipv4Addr::from(bits);
            let clean = (0..32 - length).all(|bit| bits & (1 << bit) == 0);
            prop_assert_eq!(prefix(&format!("{address}/{length}")).is_ok(), clean);
        }

        #[test]
        fn any_text_is_an_address_or_refused(text: String) {
            let _ = (unicast("address", &text), prefix(&text), suffix(&text), source(&text));
        }

        /// A prefix with host bits set is reported with a help line that contains the correct
        /// prefix of the same length.
        #[test]
        fn host_bits_are_answered_with_the_right_form(v4: u32, v6: u128, short in 0..=32_u8, long in 0..=128_u8) {
            let v6 = v6 | 1 << 127; // not IPv4-mapped
            for (address, length) in
                [(IpAddr::V4(v4.into()), short), (IpAddr::V6(v6.into()), long)]
            {
                let right = match source(&format!("{address}/{length}")) {
                    Ok(prefix) => prefix.to_string(),
                    Err(PrefixFlaw::Words { help, .. }) => help.split('"').nth(1).unwrap().to_owned(),
                    Err(PrefixFlaw::NoAddress) => panic!("{address} is an address"),
                };
                let right = source(&right).unwrap();
                prop_assert_eq!(right.length(), length);
                let bits = |address: IpAddr| match address {
                    IpAddr::V4(v4) => format!("{:032b}", v4.to_bits()),
                    IpAddr::V6(v6) => format!("{:0128b}", v6.to_bits()),
                };
                let whole = bits(address);
                let (kept, rest) = whole.split_at(usize::from(length));
                prop_assert_eq!(bits(right.address()), format!("{kept}{}", "0".repeat(rest.len())));
            }
        }
    }
}
