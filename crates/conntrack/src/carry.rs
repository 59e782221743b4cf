//! Entries on their way into the table of another process: bucket by bucket, the empty ones left out.
//!
//! In: a table. Out: records, and a table of the same shape with the same entries.
//! Not here: how records travel, and whether both sides mean the same by slots and VIPs (the caller asks [`crate::LAYOUT_VERSION`],
//! the number of buckets, the hash key and the clock).
//! Invariant: what is packed and unpacked is found by the same hashes, with the same state, age and probation.

use core::fmt;

use crate::entry::Packed;
use crate::layout::{ENTRY_BYTES, LINE_BYTES, Line, WAYS};
use crate::table::{FlowTable, Place};
use crate::walk::Cursor;

/// Bytes of a record: the number of a bucket in little endian, and the bucket as `layout` has it.
pub const RECORD_BYTES: usize = 4 + LINE_BYTES;

/// Why records are not taken in: one of them is cut, names a bucket that is not there, or holds what is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreadable;

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record is no bucket of this table")
    }
}

impl core::error::Error for Unreadable {}

impl FlowTable {
    /// Appends the records of those of the next `buckets` buckets that hold something; `None` when the walk is done. Expired entries
    /// go along: the other side forgets them as this one would have.
    ///
    /// # Cost
    /// One cache line a bucket, in order.
    pub fn pack(&self, from: Cursor, buckets: usize, to: &mut Vec<u8>) -> Option<Cursor> {
        let (start, end, next) = self.step(from, buckets);
        for bucket in start..end {
            append(bucket, self.line(bucket), to);
        }
        next
    }

    /// Takes records in, each in the place of what its bucket holds.
    ///
    /// # Errors
    /// [`Unreadable`]; the records before the wrong one are taken in.
    pub fn unpack(&mut self, records: &[u8]) -> Result<(), Unreadable> {
        let whole = records.chunks_exact(RECORD_BYTES);
        if !whole.remainder().is_empty() {
            return Err(Unreadable);
        }
        for record in whole {
            let (number, line) = record.split_first_chunk::<4>().ok_or(Unreadable)?;
            let bucket = usize::try_from(u32::from_le_bytes(*number)).map_err(|_| Unreadable)?;
            self.put_line(bucket, line)?;
        }
        self.limits.follow(self.kept);
        Ok(())
    }

    fn put_line(&mut self, bucket: usize, line: &[u8]) -> Result<(), Unreadable> {
        if bucket >= self.buckets() {
            return Err(Unreadable);
        }
        for (way, bytes) in (0..WAYS).zip(line.chunks_exact(ENTRY_BYTES)) {
            let bits = u128::from_le_bytes(bytes.try_into().map_err(|_| Unreadable)?);
            let entry = Packed::from_bits(bits);
            if !entry.is_empty() && (entry.tag() == 0 || entry.read(entry.tick()).is_none()) {
                return Err(Unreadable);
            }
            let place = Place { bucket, way };
            if !self.at(place).is_empty() {
                self.free(place);
            }
            if !entry.is_empty() {
                *self.at(place) = entry;
                self.entries += 1;
                self.kept += usize::from(!entry.on_probation());
            }
        }
        Ok(())
    }
}

/// The record of a bucket, if it holds something.
pub(crate) fn append(bucket: usize, line: &Line, to: &mut Vec<u8>) {
    if line.0.iter().all(|entry| entry.is_empty()) {
        return;
    }
    // Buckets are below 2^30, as `Config` has at most 2^32 places.
    to.extend_from_slice(&u32::try_from(bucket).unwrap_or(u32::MAX).to_le_bytes());
    to.extend_from_slice(&line.bytes());
}
