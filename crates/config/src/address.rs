//! Addresses and prefixes as the file may write them.
//!
//! In: text, or the node that has it. Out: [`IpAddr`]s that one host can have, [`Prefix`]es and [`Suffix`]es without bits outside their length.
//! Not here: host names. A static binary has no dependable resolver, so they are refused in words.

use std::net::{IpAddr, Ipv6Addr};

use config_text::Node;
use config_text::words::quote;
use forwarder::{Prefix, Suffix};

/// What a value of the file may be beside what [`Node`] reads by itself.
pub(super) trait AddressNode {
    /// An address that one host can have.
    fn unicast(&self) -> Option<IpAddr>;
    /// A prefix of a cluster's addresses.
    fn prefix(&self) -> Option<Prefix>;
    /// A prefix or an address that packets may come from.
    fn source(&self, allowed: &str) -> Option<Prefix>;
}

impl AddressNode for Node<'_> {
    fn unicast(&self) -> Option<IpAddr> {
        self.read(UNICAST, unicast)
    }

    fn prefix(&self) -> Option<Prefix> {
        self.read(GROUP_PREFIX, prefix)
    }

    fn source(&self, allowed: &str) -> Option<Prefix> {
        let text = self.as_str().or_else(|| self.wrong(allowed))?;
        let refuse = |flaw: PrefixFlaw| {
            let (found, allowed) = flaw.words(|| quote(text), allowed);
            self.report.error(&self.place, found, allowed);
        };
        source(text).map_err(refuse).ok()
    }
}

/// Reads `ADDRESS/LENGTH` without host bits; says what is wrong with it otherwise.
pub(super) fn prefix(text: &str) -> Result<Prefix, String> {
    let shown = quote(text);
    let (address, length) = text.split_once('/').ok_or_else(|| format!("{shown} without a length"))?;
    let address = unicast(address)?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = bits_from(length).filter(|length| (8..=bits).contains(length));
    let length = length.ok_or_else(|| format!("{shown} with a length outside 8 to {bits}"))?;
    let prefix =
        Prefix::new(address, length).ok_or_else(|| format!("{shown} with bits behind its length"))?;
    match RESERVED.iter().find(|(address, _)| prefix.contains(IpAddr::V6(*address))) {
        Some((_, what)) => Err(format!("{shown}, which holds {what}")),
        None => Ok(prefix),
    }
}

/// Reads `ADDRESS/LENGTH`, or `ADDRESS` alone, as a client's packets may come from: any length, any address.
pub(super) fn source(text: &str) -> Result<Prefix, PrefixFlaw> {
    let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    let address: IpAddr = address.parse().map_err(|_| PrefixFlaw::NoAddress)?;
    let words = |found: String, allowed: String| PrefixFlaw::Words { found, allowed };
    if let IpAddr::V6(v6) = address
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        return Err(words(format!("the IPv4-mapped address {address}"), format!("{v4}")));
    }
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => bits,
        Some(text) => bits_from(text).filter(|length| *length <= bits).ok_or_else(|| {
            words(format!("{address} with a wrong length"), format!("a length from 0 to {bits}"))
        })?,
    };
    Prefix::new(address, length).ok_or_else(|| {
        let found = format!("{address}/{length} with bits behind its length");
        words(found, format!("{}/{length}", start_of(address, length)))
    })
}

/// The first address of the prefix of a length in which an address lies.
fn start_of(address: IpAddr, length: u8) -> IpAddr {
    let shift = u32::from(length);
    match address {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & !u32::MAX.checked_shr(shift).unwrap_or(0)).into()),
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & !u128::MAX.checked_shr(shift).unwrap_or(0)).into()),
    }
}

/// What is wrong with a source prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PrefixFlaw {
    /// There is no address. What there is instead is not shown: it may be a secret.
    NoAddress,
    /// An address, and something about it.
    Words { found: String, allowed: String },
}

impl PrefixFlaw {
    /// What was found and what is allowed; where there is no address, by the caller's words.
    pub(super) fn words(self, found: impl FnOnce() -> String, allowed: &str) -> (String, String) {
        match self {
            Self::NoAddress => (found(), allowed.to_owned()),
            Self::Words { found, allowed } => (found, allowed),
        }
    }
}

/// Reads `ADDRESS/LENGTH` whose bits in front of the last LENGTH are zero; says what is wrong with it otherwise.
pub(super) fn suffix(text: &str) -> Result<Suffix, String> {
    let shown = quote(text);
    let (address, length) = text.split_once('/').ok_or_else(|| format!("{shown} without a length"))?;
    let address: IpAddr = address.parse().map_err(|_| shown.clone())?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = bits_from(length).filter(|&length| length <= bits);
    let length = length.ok_or_else(|| format!("{shown} with a length outside 0 to {bits}"))?;
    Suffix::new(address, length).ok_or_else(|| format!("{shown} with bits in front of its last {length}"))
}

fn bits_from(text: &str) -> Option<u8> {
    let digits = !text.is_empty() && text.len() <= 3 && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Reads an address that one host can have; says what is wrong with it otherwise.
fn unicast(text: &str) -> Result<IpAddr, String> {
    let shown = quote(text);
    let Ok(address) = text.parse::<IpAddr>() else {
        let letters = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
        let host_name = letters && text.bytes().any(|byte| byte.is_ascii_alphabetic());
        return Err(if host_name { format!("the host name {shown}") } else { shown });
    };
    match flaw(address) {
        Some(flaw) => Err(format!("{flaw} address {shown}")),
        None => Ok(address),
    }
}

fn flaw(address: IpAddr) -> Option<&'static str> {
    if address.is_unspecified() {
        return Some("the unspecified");
    }
    if address.is_loopback() {
        return Some("the loopback");
    }
    if address.is_multicast() {
        return Some("the multicast");
    }
    match address {
        IpAddr::V4(v4) if v4.octets()[0] == 0 || v4.octets()[0] >= 240 => Some("the reserved"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("the link-local"),
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Some("the IPv4-mapped"),
        _ => None,
    }
}

pub(super) const UNICAST: &str = "the IPv4 or IPv6 address of one host (host names are not resolved)";
const GROUP_PREFIX: &str =
    "a unicast prefix such as \"198.51.100.128/25\", of 8 bits at least and zero behind its length";
pub(super) const SUFFIX: &str =
    "an address and how many of its last bits count, such as \"0.0.0.20/7\", zero in front of them";
pub(super) const PREFIX: &str = "an IPv4 or IPv6 prefix such as \"198.51.100.0/28\", zero behind its length";

/// What a short IPv6 prefix must not hold, by its first address; other ranges begin where a prefix would be refused.
const RESERVED: &[(Ipv6Addr, &str)] = &[
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), "the IPv4-mapped addresses"),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), "the link-local addresses"),
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
            assert!(unicast(text).is_ok(), "{text}");
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
            ("b1.example", "host name"),
            ("localhost", "host name"),
            ("192.0.2", "\"192.0.2\""),
            ("192.0.2.1:80", "\"192.0.2.1:80\""),
            ("192.0.2.01", "\"192.0.2.01\""),
            ("192.0.2.1/32", "\"192.0.2.1/32\""),
            ("", "\"\""),
        ];
        for (text, word) in bad {
            let found = unicast(text).unwrap_err();
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
            ("0.0.0.20/4", "bits in front of its last 4"),
            ("0.0.0.128/7", "bits in front"),
            ("1::20/72", "bits in front"),
            ("0.0.0.20", "without a length"),
            ("0.0.0.20/33", "0 to 32"),
            ("::20/129", "0 to 128"),
            ("::20/+7", "0 to 128"),
            ("cache/7", "\"cache/7\""),
        ] {
            let found = suffix(text).unwrap_err();
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
        for (text, found, allowed) in [
            ("198.18.0.1/15", "198.18.0.1/15 with bits behind", "198.18.0.0/15"),
            ("2001:db8::1/64", "2001:db8::1/64 with bits behind", "2001:db8::/64"),
            ("198.18.0.0/33", "198.18.0.0 with a wrong length", "0 to 32"),
            ("2001:db8::/129", "with a wrong length", "0 to 128"),
            ("198.18.0.0/", "with a wrong length", "0 to 32"),
            ("198.18.0.0/+8", "with a wrong length", "0 to 32"),
            ("::ffff:192.0.2.1", "IPv4-mapped", "192.0.2.1"),
        ] {
            let Err(PrefixFlaw::Words { found: words, allowed: right }) = source(text) else {
                panic!("{text}");
            };
            assert!(words.contains(found) && right.contains(allowed), "{text}: {words}, {right}");
        }
        for text in ["", "www.example", "/8", "198.18.0", "198.18.0.0 /8", "000102030405060708090a0b0c0d0e0f"]
        {
            assert_eq!(source(text), Err(PrefixFlaw::NoAddress), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_prefix_keeps_its_address_exactly_when_the_host_bits_are_zero(bits: u32, length in 8..=32_u8) {
            let bits = 0xc612_0000 | (bits & 0xffff); // 198.18.0.0/16
            let address = std::net::Ipv4Addr::from(bits);
            let clean = (0..32 - length).all(|bit| bits & (1 << bit) == 0);
            prop_assert_eq!(prefix(&format!("{address}/{length}")).is_ok(), clean);
        }

        #[test]
        fn any_text_is_an_address_or_refused(text: String) {
            let _ = (unicast(&text), prefix(&text), suffix(&text), source(&text));
        }

        /// What is refused for its host bits names a prefix that is accepted, of that length, around the address.
        #[test]
        fn host_bits_are_answered_with_the_right_form(v4: u32, v6: u128, short in 0..=32_u8, long in 0..=128_u8) {
            let v6 = v6 | 1 << 127; // not IPv4-mapped
            for (address, length) in
                [(IpAddr::V4(v4.into()), short), (IpAddr::V6(v6.into()), long)]
            {
                let right = match source(&format!("{address}/{length}")) {
                    Ok(prefix) => prefix.to_string(),
                    Err(PrefixFlaw::Words { allowed, .. }) => allowed,
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
