//! What names a datagram, and what the table keeps of it.

use crate::buffer::List;

/// What all fragments of one datagram have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Source address; an IPv4 one mapped into IPv6 (RFC 4291 §2.5.5.2), which distinguishes the families.
    pub source: [u8; 16],
    /// Destination address, likewise.
    pub destination: [u8; 16],
    /// IPv4: the protocol. IPv6: one value for all, since the next header may differ between fragments of one
    /// datagram and is no part of what names it (RFC 8200 §4.5).
    pub protocol: u8,
    /// Identification: 16 bits of IPv4, 32 of IPv6.
    pub id: u32,
}

/// A moment on a monotonic clock: milliseconds since an origin of the caller's choice.
///
/// One that lies before the latest that a table was given counts as that latest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

/// Which bytes of its datagram a fragment carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of the datagram in front of it; 0 for the first fragment.
    pub offset: u16,
    /// Bytes that it carries.
    pub bytes: u16,
    /// Whether another follows.
    pub more: bool,
}

/// A fragment, as the table looks for its datagram.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    /// What names its datagram.
    pub key: &'a Key,
    /// A keyed hash of `key`.
    pub hash: u64,
    /// What it carries.
    pub extent: Extent,
}

/// How much of a datagram has come. Nothing is reassembled here: repeated bytes count twice, so a datagram of which pieces
/// came twice may pass for whole a little early, never late.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrived {
    bytes: u32,
    whole: Option<u32>, // bytes, known by the last fragment
}

impl Arrived {
    pub(crate) fn add(&mut self, piece: Extent) {
        self.bytes = self.bytes.saturating_add(piece.bytes.into());
        if !piece.more {
            self.whole = Some(u32::from(piece.offset) + u32::from(piece.bytes));
        }
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.whole.is_some_and(|whole| self.bytes >= whole)
    }
}

/// A datagram of which at least one fragment was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<D> {
    pub(crate) key: Key,
    pub(crate) hash: u64,
    pub(crate) deadline: u64, // milliseconds; from then on it counts as absent
    pub(crate) first: Option<Seen<D>>,
    pub(crate) arrived: Arrived,
    pub(crate) held: List, // empty once the first fragment was seen
}

/// The first fragment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<D> {
    pub(crate) digest: u64,
    pub(crate) decision: D,
}

impl<D> Datagram<D> {
    /// What stands in a place that nobody has taken.
    pub(crate) const VACANT: Self = Self {
        key: Key { source: [0; 16], destination: [0; 16], protocol: 0, id: 0 },
        hash: 0,
        deadline: 0,
        first: None,
        arrived: Arrived { bytes: 0, whole: None },
        held: List::EMPTY,
    };
}
