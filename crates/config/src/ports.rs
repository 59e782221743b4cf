//! Which packets of a VIP a service takes: protocol and ports.
//!
//! In: `protocol = "tcp"`, `ports = [80, "8000-8099"]`. Out: [`Protocol`] and [`Ports`].
//! Not here: two services with one port (`consistency`).
//! Source: IANA, "Assigned Internet Protocol Numbers"; RFC 8200 §4 for extension headers.

use std::fmt;
use std::ops::RangeInclusive;

use config_text::Node;
use config_text::words::quote;

/// The IP protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// 6.
    Tcp,
    /// 17.
    Udp,
    /// Any other: matched by address and protocol alone.
    Number(u8),
}

impl Protocol {
    /// The number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Number(number) => number,
        }
    }

    /// Whether its packets have ports.
    pub fn has_ports(self) -> bool {
        matches!(self, Self::Tcp | Self::Udp)
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
        let Some(number) = number else { return node.wrong(PROTOCOL) };
        let is = |list: &[(&str, u8)]| list.iter().any(|(_, other)| *other == number);
        if is(ICMP) {
            return node.wrong("no ICMP: the balancer itself answers it for every VIP");
        }
        if is(EXTENSIONS) {
            return node.wrong("no extension header, AH included: the protocol behind it counts");
        }
        Some(match number {
            6 => Self::Tcp,
            17 => Self::Udp,
            other => Self::Number(other),
        })
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => f.write_str("tcp"),
            Self::Udp => f.write_str("udp"),
            Self::Number(number) => write!(f, "protocol {number}"),
        }
    }
}

/// The destination ports of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Every port that no other service of the same address and protocol lists; protocols without
    /// ports have this alone.
    Any,
    /// These: from 1 to 65,535, ascending, without overlap, at least one.
    Listed(Vec<RangeInclusive<u16>>),
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Listed(ranges) = self else { return f.write_str("any") };
        f.write_str(&ranges.iter().map(show).collect::<Vec<_>>().join(","))
    }
}

impl Ports {
    /// Each of those that are listed; `None`: any may be meant.
    pub fn each(&self) -> Option<impl Iterator<Item = u16>> {
        match self {
            Self::Any => None,
            Self::Listed(ranges) => Some(ranges.iter().cloned().flatten()),
        }
    }

    /// Reads the ports of a protocol that has them.
    pub(super) fn read(node: &Node<'_>) -> Option<Self> {
        if node.as_str() == Some("any") {
            return Some(Self::Any);
        }
        read_ranges(node, 1..=u16::MAX, PORTS, PORT).map(Self::Listed)
    }
}

/// Numbers and ranges such as `[80, "8000-8099"]` within `within`, ascending and without overlap; the two texts say
/// what is allowed as a list and as one of its elements.
pub(super) fn read_ranges(
    node: &Node<'_>,
    within: RangeInclusive<u16>,
    allowed: &str,
    allowed_one: &str,
) -> Option<Vec<RangeInclusive<u16>>> {
    let nodes = node.items(allowed)?;
    let ranges: Vec<Option<_>> = nodes.iter().map(|node| read_range(node, &within, allowed_one)).collect();
    let mut ranges: Vec<RangeInclusive<u16>> = ranges.into_iter().collect::<Option<_>>()?;
    ranges.sort_by_key(|range| *range.start());
    for pair in ranges.windows(2) {
        if pair[1].start() <= pair[0].end() {
            let found = format!("{} and {}", show(&pair[0]), show(&pair[1]));
            node.report.error(&node.place, found, "each number once");
            return None;
        }
    }
    Some(ranges)
}

/// A range as the file writes it.
pub(super) fn show(range: &RangeInclusive<u16>) -> String {
    let (first, last) = (range.start(), range.end());
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// A number, or a range of them.
pub(super) fn read_range(
    node: &Node<'_>,
    within: &RangeInclusive<u16>,
    allowed: &str,
) -> Option<RangeInclusive<u16>> {
    let Some(text) = node.as_str() else {
        let number = node.as_integer().and_then(|number| u16::try_from(number).ok());
        let number = number.filter(|number| within.contains(number)).or_else(|| node.wrong(allowed))?;
        return Some(number..=number);
    };
    let number = |text| number(text).filter(|number| within.contains(number));
    let Some((first, last)) = text.split_once('-').and_then(|(a, b)| Some((number(a)?, number(b)?))) else {
        return node.wrong(allowed);
    };
    if first > last {
        node.report.error(&node.place, quote(text), "the lower number first");
        return None;
    }
    Some(first..=last)
}

fn number(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

const NAMES: &[(&str, u8)] = &[
    ("tcp", 6),
    ("udp", 17),
    ("ipip", 4),
    ("ipv6", 41),
    ("gre", 47),
    ("esp", 50),
    ("sctp", 132),
    ("udplite", 136),
];
const ICMP: &[(&str, u8)] = &[("icmp", 1), ("icmpv6", 58)];
/// Hop-by-hop options, routing, fragment, AH (in IPv4 too), none behind, destination options.
const EXTENSIONS: &[(&str, u8)] = &[
    ("hopopt", 0),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("ah", 51),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
];

const PROTOCOL: &str = "\"tcp\", \"udp\", \"ipip\", \"ipv6\", \"gre\", \"esp\", \"sctp\", \"udplite\", \
                        or a protocol number from 1 to 255";
const PORTS: &str = "a list of ports and ranges such as [80, \"8000-8099\"], or \"any\"";
const PORT: &str = "a port from 1 to 65535, or a range such as \"8000-8099\"";
