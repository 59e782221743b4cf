//! Addresses and prefixes as the file may write them.
//!
//! In: text. Out: [`IpAddr`]s that one host can have, and [`Prefix`]es without host bits.
//! Not here: host names. A static binary has no dependable resolver, so they are refused in words.

use std::fmt;
use std::net::IpAddr;

use super::reader::quote;

/// An address prefix whose host bits are zero, such as `198.51.100.0/28`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// The first address of the prefix.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The number of leading bits that are fixed: at most 32 for IPv4, 128 for IPv6.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Reads `ADDRESS/LENGTH`; says what is wrong with it otherwise.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let shown = quote(text);
        let (address, length) = text.split_once('/').ok_or_else(|| format!("{shown} without a length"))?;
        let address = unicast(address)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let digits = !length.is_empty() && length.len() <= 3 && length.bytes().all(|b| b.is_ascii_digit());
        let length = length.parse::<u8>().ok().filter(|&length| digits && (8..=bits).contains(&length));
        let length = length.ok_or_else(|| format!("{shown} with a length outside 8 to {bits}"))?;
        if host_bits(address, length) != 0 {
            return Err(format!("{shown} with bits behind its length"));
        }
        Ok(Self { address, length })
    }

    /// Reads `ADDRESS/LENGTH`, or `ADDRESS` alone, as a client's packets may come from: any length, any address.
    pub(super) fn parse_source(text: &str) -> Result<Self, PrefixFlaw> {
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address.parse().map_err(|_| PrefixFlaw::NoAddress)?;
        let words = |found: String, allowed: String| PrefixFlaw::Words { found, allowed };
        if let IpAddr::V6(v6) = address
            && let Some(v4) = v6.to_ipv4_mapped()
        {
            return Err(words(format!("the IPv4-mapped address {address}"), format!("{v4}")));
        }
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let digits = |text: &&str| (1..=3).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        let length = match length {
            None => bits,
            Some(text) => {
                let length = Some(text).filter(digits).and_then(|text| text.parse().ok());
                length.filter(|length| *length <= bits).ok_or_else(|| {
                    words(format!("{address} with a wrong length"), format!("a length from 0 to {bits}"))
                })?
            }
        };
        match Self::around(address, length) {
            prefix if prefix.address == address => Ok(prefix),
            right => Err(words(format!("{address}/{length} with bits behind its length"), right.to_string())),
        }
    }

    /// The prefix of a length in which an address lies.
    fn around(address: IpAddr, length: u8) -> Self {
        let shift = u32::from(length);
        let address = match address {
            IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() & !u32::MAX.checked_shr(shift).unwrap_or(0)).into()),
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() & !u128::MAX.checked_shr(shift).unwrap_or(0)).into()),
        };
        Self { address, length }
    }
}

/// What is wrong with a source prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PrefixFlaw {
    /// There is no address. What there is instead is not told: it may be anything.
    NoAddress,
    /// An address, and something about it.
    Words { found: String, allowed: String },
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Reads an address that one host can have; says what is wrong with it otherwise.
pub(super) fn unicast(text: &str) -> Result<IpAddr, String> {
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

/// The bits of `address` behind the first `length`.
fn host_bits(address: IpAddr, length: u8) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits().checked_shl(u32::from(length)).unwrap_or(0)),
        IpAddr::V6(v6) => v6.to_bits().checked_shl(u32::from(length)).unwrap_or(0),
    }
}

pub(super) const UNICAST: &str = "the IPv4 or IPv6 address of one host (host names are not resolved)";
pub(super) const PREFIX: &str = "an IPv4 or IPv6 prefix such as \"198.51.100.0/28\", zero behind its length";

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::{Prefix, PrefixFlaw, unicast};

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
            assert_eq!(Prefix::parse(text).unwrap().to_string(), text);
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
        ] {
            assert!(Prefix::parse(text).is_err(), "{text}");
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
            assert_eq!(Prefix::parse_source(text).unwrap().to_string(), shown);
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
            let Err(PrefixFlaw::Words { found: words, allowed: right }) = Prefix::parse_source(text) else {
                panic!("{text}");
            };
            assert!(words.contains(found) && right.contains(allowed), "{text}: {words}, {right}");
        }
        for text in ["", "www.example", "/8", "198.18.0", "198.18.0.0 /8", "000102030405060708090a0b0c0d0e0f"]
        {
            assert_eq!(Prefix::parse_source(text), Err(PrefixFlaw::NoAddress), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_prefix_keeps_its_address_exactly_when_the_host_bits_are_zero(bits: u32, length in 8..=32_u8) {
            let bits = 0xc612_0000 | (bits & 0xffff); // 198.18.0.0/16
            let address = std::net::Ipv4Addr::from(bits);
            let clean = (0..32 - length).all(|bit| bits & (1 << bit) == 0);
            prop_assert_eq!(Prefix::parse(&format!("{address}/{length}")).is_ok(), clean);
        }

        #[test]
        fn any_text_is_an_address_or_refused(text: String) {
            let _ = (unicast(&text), Prefix::parse(&text), Prefix::parse_source(&text));
        }

        /// What is refused for its host bits names a prefix that is accepted, of that length, around the address.
        #[test]
        fn host_bits_are_answered_with_the_right_form(v4: u32, v6: u128, short in 0..=32_u8, long in 0..=128_u8) {
            let v6 = v6 | 1 << 127; // not IPv4-mapped
            for (address, length) in
                [(IpAddr::V4(v4.into()), short), (IpAddr::V6(v6.into()), long)]
            {
                let right = match Prefix::parse_source(&format!("{address}/{length}")) {
                    Ok(prefix) => prefix.to_string(),
                    Err(PrefixFlaw::Words { allowed, .. }) => allowed,
                    Err(PrefixFlaw::NoAddress) => panic!("{address} is an address"),
                };
                let right = Prefix::parse_source(&right).unwrap();
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
