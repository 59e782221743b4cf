//! The key of a datagram, and the state that the table stores for it.

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

/// A time on a monotonic clock, in milliseconds since an origin that the caller chooses.
///
/// If a table receives a time earlier than the latest time, it uses the latest time instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

/// The byte range of a datagram that a fragment contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The offset of the fragment in bytes, 0 for the first fragment.
    pub offset: u16,
    /// The number of bytes in the fragment.
    pub bytes: u16,
    /// `true` if more fragments follow.
    pub more: bool,
}

/// The caller's description of a fragment.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
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
