//! The key of a datagram, and the state that the table stores for it.

use core::net::{IpAddr, Ipv6Addr};

use crate::buffer::List;

/// The fields that all fragments of one datagram have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The source address. IPv4 addresses are IPv4-mapped (RFC 4291 §2.5.5.2), so that an IPv4
    /// address cannot be confused with an IPv6 address.
    pub source: [u8; 16],
    /// The destination address in the same format.
    pub destination: [u8; 16],
    /// The protocol number for IPv4. For IPv6, always use the same constant, because the fragments
    /// of one datagram may differ in their next header (RFC 8200 §4.5).
    pub protocol: u8,
    /// The identification, which is 16 bits wide in IPv4 and 32 bits wide in IPv6.
    pub id: u32,
}

impl Key {
    /// Returns the key of a datagram. `protocol` is the protocol number in the IPv4 header, and is
    /// not used for IPv6.
    #[must_use]
    pub fn new(source: IpAddr, destination: IpAddr, protocol: u8, id: u32) -> Self {
        let protocol = if source.is_ipv4() { protocol } else { IPV6_FRAGMENT };
        let bytes = |address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        Self { source: bytes(source), destination: bytes(destination), protocol, id }
    }

    /// Returns the source address. An IPv4-mapped address becomes an IPv4 address.
    #[must_use]
    pub fn source_address(&self) -> IpAddr {
        Ipv6Addr::from(self.source).to_canonical()
    }

    /// Returns the destination address. An IPv4-mapped address becomes an IPv4 address.
    #[must_use]
    pub fn destination_address(&self) -> IpAddr {
        Ipv6Addr::from(self.destination).to_canonical()
    }
}

/// The number of the IPv6 fragment header, which takes the place of the protocol number.
const IPV6_FRAGMENT: u8 = 44;

/// A time on a monotonic clock, in milliseconds since an origin that the caller chooses.
///
/// If a table receives a time earlier than the latest time, it uses the latest time instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

/// The byte range of a datagram that a fragment contains. With the crate `sluicegate-packet`, these
/// are the results of `parsed.fragment.offset()`, `parsed.fragment_len(frame)` and
/// `parsed.fragment.more()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The offset of the fragment in bytes, 0 for the first fragment.
    pub offset: u16,
    /// The number of bytes in the fragment.
    pub bytes: u16,
    /// `true` if more fragments follow.
    pub more: bool,
}

/// A fragment that has arrived, as the caller describes it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The key of the datagram.
    pub key: &'a Key,
    /// A keyed hash of `key`.
    pub hash: u64,
    /// The byte range of the fragment.
    pub extent: Extent,
}

/// The number of bytes that have arrived for a datagram. Repeated bytes are counted twice, so a
/// datagram with duplicates may be considered complete too early, but never too late.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrived {
    bytes: u32,
    whole: Option<u32>, // The length of the datagram, which its last fragment determines.
}

impl Arrived {
    pub(crate) fn add(&mut self, entry: Extent) {
        self.bytes = self.bytes.saturating_add(entry.bytes.into());
        if !entry.more {
            self.whole = Some(u32::from(entry.offset) + u32::from(entry.bytes));
        }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.whole.is_some_and(|whole| self.bytes >= whole)
    }
}

/// A datagram from which at least one fragment has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<D> {
    pub(crate) key: Key,
    pub(crate) hash: u64,
    pub(crate) deadline: u64, // The time in milliseconds at which the datagram expires.
    pub(crate) first: Option<Seen<D>>,
    pub(crate) arrived: Arrived,
    // The held fragments. The list is empty once the first fragment has arrived.
    pub(crate) held: List,
}

/// The digest and decision of the first fragment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<D> {
    pub(crate) digest: u64,
    pub(crate) decision: D,
}

impl<D> Datagram<D> {
    /// The content of an unused entry.
    pub(crate) const VACANT: Self = Self {
        key: Key { source: [0; 16], destination: [0; 16], protocol: 0, id: 0 },
        hash: 0,
        deadline: 0,
        first: None,
        arrived: Arrived { bytes: 0, whole: None },
        held: List::EMPTY,
    };
}
