//! The table in memory, documented so that another process can read it: cache lines of 64 bytes, little endian.
//!
//! Line 0 is the header: bytes 0-7 [`MAGIC`], 8-11 [`LAYOUT_VERSION`], 12-13 entries a line (4), 14-15 bytes an
//! entry (16), 16-23 number of buckets `n`, 24-27 ticks a second, zeros. Line `1 + b` is bucket `b`: four entries.
//! Entry: bytes 0-5 tag (lower 48 bits of the hash, 0 kept as 1), 6-8 slot, 9-11 VIP, 12-14 tick of the last
//! packet, 15 state (0 empty, 1 new, 2 established, 3 closing, 4 other protocols, 5 TCP that began without a SYN, 6 opened, 7 TCP after a FIN
//! that goes on; + 8 on probation; opened: + 16 for each tick with data that its proof lacks).
//! First bucket of a hash: the upper 64 bits of `hash * n`. The other bucket of an entry in bucket `b`:
//! `(s - b) mod n`, where `s` is the upper 64 bits of `(tag * 0x9e3779b97f4a7c15 * 2^16 mod 2^64) * n`.
//! An empty entry is all zeros. An entry may have expired: its age against the timeouts decides, not its presence.

use core::hint::select_unpredictable;

use crate::entry::{Packed, TAG_MASK};
use crate::tick::TICKS_PER_SECOND;

/// Version of the layout in this module's description; any change of it counts up.
pub const LAYOUT_VERSION: u32 = 3;
/// The first eight bytes of a table.
pub const MAGIC: [u8; 8] = *b"SluiceFT";
/// Bytes of one entry.
pub const ENTRY_BYTES: usize = 16;
/// Bytes of one bucket, and of the header.
pub const LINE_BYTES: usize = 64;

/// One cache line: the header, or a bucket of four entries.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [Packed; WAYS]);

impl Line {
    pub(crate) const EMPTY: Self = Self([Packed::EMPTY; WAYS]);

    /// Line 0 of a table of `buckets` buckets.
    pub(crate) fn header(buckets: usize) -> Self {
        let shape = (WAYS as u128) << 96 | (ENTRY_BYTES as u128) << 112;
        let identity = u128::from(u64::from_le_bytes(MAGIC)) | u128::from(LAYOUT_VERSION) << 64 | shape;
        let size = buckets as u128 | u128::from(TICKS_PER_SECOND) << 64;
        Self([Packed::from_bits(identity), Packed::from_bits(size), Packed::EMPTY, Packed::EMPTY])
    }

    /// The only place where `tag` can stand in this bucket; the caller compares. No branches: four selects.
    #[inline]
    pub(crate) fn way_of(&self, tag: u64) -> usize {
        let mut found = 0;
        for way in 1..WAYS {
            found = select_unpredictable(self.0[way].tag() == tag, way, found);
        }
        found
    }

    /// The bytes as another process sees them.
    pub(crate) fn bytes(&self) -> [u8; LINE_BYTES] {
        let mut bytes = [0; LINE_BYTES];
        for (to, entry) in bytes.chunks_exact_mut(ENTRY_BYTES).zip(&self.0) {
            to.copy_from_slice(&entry.bits().to_le_bytes());
        }
        bytes
    }
}

/// What an entry keeps of the hash.
#[inline]
pub(crate) const fn tag_of(hash: u64) -> u64 {
    let tag = hash & TAG_MASK;
    if tag == 0 { 1 } else { tag }
}

/// The bucket that the hash names: its upper bits, which the tag does not keep.
#[inline]
pub(crate) const fn first_bucket(hash: u64, buckets: usize) -> usize {
    scale(hash, buckets)
}

/// The other bucket of the entry with `tag` in `bucket`: the same function leads there and back.
///
/// One flow in about `buckets` has only one bucket, because the other is the same.
#[inline]
pub(crate) const fn other_bucket(tag: u64, bucket: usize, buckets: usize) -> usize {
    let sum = scale((tag << 16).wrapping_mul(MIX), buckets);
    if sum >= bucket { sum - bucket } else { sum + buckets - bucket }
}

/// `hash` as a fraction of 2^64, times `buckets`: any number of buckets, not only powers of two.
#[inline]
const fn scale(hash: u64, buckets: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "the quotient is below `buckets`")]
    {
        ((hash as u128 * buckets as u128) >> 64) as usize
    }
}

/// Entries a bucket.
pub(crate) const WAYS: usize = LINE_BYTES / ENTRY_BYTES;
const MIX: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 over the golden ratio: spreads neighbouring tags

const _: () = assert!(size_of::<Line>() == LINE_BYTES && align_of::<Line>() == LINE_BYTES);
const _: () = assert!(size_of::<Packed>() == ENTRY_BYTES);
