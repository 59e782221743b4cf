//! The memory layout of the table, documented so that other processes can read the table. The table
//! consists of 64-byte cache lines. All numbers are little-endian.
//!
//! # Layout
//!
//! Line 0 is the header. Bytes 0-7 are [`MAGIC`], 8-11 [`LAYOUT_VERSION`], 12-13 the entries per
//! line (4), 14-15 the bytes per entry (16), 16-23 the number of buckets `n`, 24-27 the ticks per
//! second. The remaining bytes are zero. Line `1 + b` is bucket `b` with four entries.
//!
//! In an entry, bytes 0-5 are the tag (the lower 48 bits of the hash, with 0 stored as 1), 6-8 the
//! slot, 9-11 the VIP, 12-14 the tick of the last packet, 15 the state byte. An empty entry is all
//! zeros. An entry stays in the table after it has expired, so a process that reads the table must
//! compare the age of an entry with the timeouts.
//!
//! The values of the state byte are 0 (empty), 1 (new), 2 (established), 3 (closing), 4 (other
//! protocols), 5 (TCP that began without a SYN), 6 (opened) and 7 (TCP that continues after a FIN).
//! Probation adds 8. In state 6, the byte also stores, in multiples of 16, how many more ticks with
//! data the flow needs before it is proven.
//!
//! The first bucket of a hash is the upper 64 bits of `hash * n`. The second bucket of an entry in
//! bucket `b` is `(s - b) mod n`, where `s` is the upper 64 bits of `(tag * 0x9e3779b97f4a7c15 *
//! 2^16 mod 2^64) * n`.

use core::hint::select_unpredictable;

use crate::entry::{Packed, TAG_MASK};
use crate::tick::TICKS_PER_SECOND;

/// The version of the memory layout, which is incremented with every change to the layout.
pub const LAYOUT_VERSION: u32 = 3;
/// The first eight bytes of a table.
pub const MAGIC: [u8; 8] = *b"SluiceFT";
/// The size of one entry in bytes.
pub const ENTRY_BYTES: usize = 16;
/// The size of a bucket, and of the header, in bytes.
pub const LINE_BYTES: usize = 64;

/// One cache line, which is the header or a bucket of four entries.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [Packed; WAYS]);

impl Line {
    pub(crate) const EMPTY: Self = Self([Packed::EMPTY; WAYS]);

    /// Returns line 0 of a table with the given number of buckets.
    pub(crate) fn header(buckets: usize) -> Self {
        let shape = (WAYS as u128) << 96 | (ENTRY_BYTES as u128) << 112;
        let identity = u128::from(u64::from_le_bytes(MAGIC)) | u128::from(LAYOUT_VERSION) << 64 | shape;
        let size = buckets as u128 | u128::from(TICKS_PER_SECOND) << 64;
        Self([Packed::from_bits(identity), Packed::from_bits(size), Packed::EMPTY, Packed::EMPTY])
    }

    /// Returns the only position in this bucket that can contain `tag`. The caller must compare the
    /// tags. Uses four conditional moves and no branches.
    #[inline]
    pub(crate) fn way_of(&self, tag: u64) -> usize {
        let mut found = 0;
        for way in 1..WAYS {
            found = select_unpredictable(self.0[way].tag() == tag, way, found);
        }
        found
    }

    /// Returns the bytes of this line in the documented format.
    pub(crate) fn bytes(&self) -> [u8; LINE_BYTES] {
        let mut bytes = [0; LINE_BYTES];
        for (to, entry) in bytes.chunks_exact_mut(ENTRY_BYTES).zip(&self.0) {
            to.copy_from_slice(&entry.bits().to_le_bytes());
        }
        bytes
    }
}

#[inline]
pub(crate) const fn tag_of(hash: u64) -> u64 {
    let tag = hash & TAG_MASK;
    if tag == 0 { 1 } else { tag }
}

/// Returns the first bucket of a hash. The bucket depends on the upper bits of the hash, which the
/// tag does not contain.
#[inline]
pub(crate) const fn first_bucket(hash: u64, buckets: usize) -> usize {
    scale(hash, buckets)
}

/// Returns the second bucket of an entry from its tag and its first bucket, or the first bucket
/// from the second.
///
/// One flow in `buckets`, on average, has two identical buckets.
#[inline]
pub(crate) const fn other_bucket(tag: u64, bucket: usize, buckets: usize) -> usize {
    let sum = scale((tag << 16).wrapping_mul(MIX), buckets);
    if sum >= bucket { sum - bucket } else { sum + buckets - bucket }
}

/// Maps `hash` evenly to a number below `buckets`, by a multiplication that works for any number of
/// buckets, not only for powers of two.
#[inline]
const fn scale(hash: u64, buckets: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "the quotient is below `buckets`")]
    {
        ((hash as u128 * buckets as u128) >> 64) as usize
    }
}

/// The number of entries per bucket.
pub(crate) const WAYS: usize = LINE_BYTES / ENTRY_BYTES;
// The factor is 2^64 divided by the golden ratio, which spreads neighboring tags.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

const _: () = assert!(size_of::<Line>() == LINE_BYTES && align_of::<Line>() == LINE_BYTES);
const _: () = assert!(size_of::<Packed>() == ENTRY_BYTES);
