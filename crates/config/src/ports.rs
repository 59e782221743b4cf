//! Reads the protocol and the ports of a service, which select its packets.
//!
//! The keys `protocol = "tcp"` and `ports = [80, "8000-8099"]` are read into [`Protocol`] and
//! [`Ports`]. The module `consistency` detects two services with the same port. References: IANA,
//! "Assigned Internet Protocol Numbers"; RFC 8200 §4 for extension headers.

use std::fmt;
use std::ops::RangeInclusive;

use config_text::words::quote;
use config_text::{Expected, Node, hint};

/// The IP protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP, which has protocol number 6.
    Tcp,
    /// UDP, which has protocol number 17.
    Udp,
    /// SCTP, number 132.
    Sctp,
    /// UDP-Lite, number 136.
    UdpLite,
    /// Any other protocol. Packets are matched by address and protocol number only.
    Number(u8),
}

impl Protocol {
    /// Returns the protocol number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
            Self::UdpLite => 136,
            Self::Number(number) => number,
        }
    }

    /// Returns `true` if packets of the protocol have ports.
    pub fn has_ports(self) -> bool {
        !matches!(self, Self::Number(_))
    }

    pub(super) fn read(node: &Node<'_>) -> Option<Self> {
        let named = |text: &str| {
            let names = NAMES.iter().chain(ICMP).chain(EXTENSIONS);
            names.into_iter().find(|(name, _)| *name == text).map(|(_, number)| *number)
        };
        let number = match node.as_str() {
            Some(text) => named(text),
            None => node.as_integer().and_then(|number| u8::try_from(number).ok()),
        };
        let Some(number) = number else { return unknown(node) };
        let is = |list: &[(&str, u8)]| list.iter().any(|(_, other)| *other == number);
        if is(ICMP) {
            let message = format!("\"protocol\" cannot be ICMP, got {}", node.shown());
            return node.wrong((message, "the load balancer replies to ICMP for every VIP"));
        }
        if is(EXTENSIONS) {
            let message = format!("protocol {} is an extension header", node.shown());
            return node.wrong((message, "use the protocol that follows the header"));
        }
        Some(match number {
            6 => Self::Tcp,
            17 => Self::Udp,
            132 => Self::Sctp,
            136 => Self::UdpLite,
            other => Self::Number(other),
        })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => f.write_str("tcp"),
            Self::Udp => f.write_str("udp"),
            Self::Sctp => f.write_str("sctp"),
            Self::UdpLite => f.write_str("udp-lite"),
            Self::Number(number) => write!(f, "protocol {number}"),
        }
    }
}

/// The destination ports of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// All ports that are not listed by another service with the same address and protocol. `Any`
    /// is the only value that is allowed for protocols without ports.
    Any,
    /// A list of port ranges from 1 to 65,535: not empty, ascending, without overlap.
    Listed(Vec<RangeInclusive<u16>>),
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Listed(ranges) = self else { return f.write_str("any") };
        f.write_str(&ranges.iter().map(show).collect::<Vec<_>>().join(","))
    }
}

impl Ports {
    /// Returns all listed ports, or `None` for [`Ports::Any`].
    pub fn each(&self) -> Option<impl Iterator<Item = u16>> {
        match self {
            Self::Any => None,
            Self::Listed(ranges) => Some(ranges.iter().cloned().flatten()),
        }
    }

    /// Reads the ports of a service whose protocol has ports.
    pub(super) fn read(node: &Node<'_>) -> Option<Self> {
        if node.as_str() == Some("any") {
            return Some(Self::Any);
        }
        read_ranges(node, 1..=u16::MAX, PORTS, PORT).map(Self::Listed)
    }
}

/// Reads a list of numbers and ranges such as `[80, "8000-8099"]`, and returns it in ascending
/// order. All numbers must be in `within`, and the ranges must not overlap. In messages, `list`
/// describes the list and `one` describes an element.
pub(super) fn read_ranges(
    node: &Node<'_>,
    within: RangeInclusive<u16>,
    list: Expected,
    one: Expected,
) -> Option<Vec<RangeInclusive<u16>>> {
    let nodes = node.items(list)?;
    let ranges: Vec<Option<_>> = nodes.iter().map(|node| read_range(node, &within, one)).collect();
    let mut ranges: Vec<RangeInclusive<u16>> = ranges.into_iter().collect::<Option<_>>()?;
    ranges.sort_by_key(|range| *range.start());
    for pair in ranges.windows(2) {
        if pair[1].start() <= pair[0].end() {
            let (first, second) = (show(&pair[0]), show(&pair[1]));
            let message = format!("{first} and {second} in {} overlap", node.label());
            return node.wrong((message, "list each number once"));
        }
    }
    Some(ranges)
}

/// Formats a range as in the configuration.
pub(super) fn show(range: &RangeInclusive<u16>) -> String {
    let (first, last) = (range.start(), range.end());
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

pub(super) fn read_range(
    node: &Node<'_>,
    within: &RangeInclusive<u16>,
    expected: Expected,
) -> Option<RangeInclusive<u16>> {
    let Some(text) = node.as_str() else {
        if !node.is_integer() {
            return node.unexpected(expected);
        }
        let number = node.as_integer().and_then(|number| u16::try_from(number).ok());
        let number = number.filter(|number| within.contains(number)).or_else(|| out_of(node, within))?;
        return Some(number..=number);
    };
    let Some((first, last)) = text.split_once('-').and_then(|(a, b)| Some((number(a)?, number(b)?))) else {
        if number(text).is_some() {
            let message = format!("{} must be a number without quotes, got {}", node.label(), node.shown());
            return node.wrong((message, format!("write {text}")));
        }
        return node.unexpected(expected);
    };
    if !within.contains(&first) || !within.contains(&last) {
        return out_of(node, within);
    }
    if first > last {
        let help = format!("write \"{last}-{first}\"");
        return node.wrong((format!("the range {} is in the wrong order", quote(text)), help));
    }
    Some(first..=last)
}

fn out_of<T>(node: &Node<'_>, within: &RangeInclusive<u16>) -> Option<T> {
    let (least, most) = (within.start(), within.end());
    node.wrong(format!("{} must be between {least} and {most}, got {}", node.label(), node.shown()))
}

/// Reports an unknown protocol name or an invalid protocol number.
fn unknown<T>(node: &Node<'_>) -> Option<T> {
    let names = || NAMES.iter().map(|(name, _)| *name);
    let Some(text) = node.as_str() else {
        return node.unexpected(PROTOCOL);
    };
    let message = format!("unknown protocol {}", node.shown());
    let all = names().collect::<Vec<_>>().join(", ");
    let other = names().find(|name| name.eq_ignore_ascii_case(text));
    let help = match (other, hint(text, names())) {
        _ if text.eq_ignore_ascii_case("udplite") => "write \"udp-lite\"".to_owned(),
        (Some(name), _) => format!("write \"{name}\" in lower case"),
        (None, Some(hint)) => hint,
        (None, None) => format!("use {all}, or a protocol number from 1 to 255"),
    };
    node.wrong((message, help))
}

fn number(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

const NAMES: &[(&str, u8)] = &[
    ("tcp", 6),
    ("udp", 17),
    ("sctp", 132),
    ("udp-lite", 136),
    ("ipip", 4),
    ("ipv6", 41),
    ("gre", 47),
    ("esp", 50),
];
const ICMP: &[(&str, u8)] = &[("icmp", 1), ("icmpv6", 58)];
/// Protocol numbers that a service cannot have, because they are extension headers: hop-by-hop
/// options, routing, fragment, AH, no next header and destination options.
const EXTENSIONS: &[(&str, u8)] = &[
    ("hopopt", 0),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("ah", 51),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
];

const PROTOCOL: Expected =
    Expected::new("the name of a protocol, or a protocol number from 1 to 255").example("\"tcp\"");
pub(super) const PORTS: Expected =
    Expected::new("a list of ports and ranges, or \"any\"").example("[80, \"8000-8099\"]");
/// The ports of protocols whose services often receive packets to all ports.
pub(super) const ANY_PORTS: Expected =
    Expected::new("a list of ports and ranges: for packets to all ports, add ports = \"any\"");
const PORT: Expected = Expected::new("a port from 1 to 65535, or a range of ports").example("\"8000-8099\"");
