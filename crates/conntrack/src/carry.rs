//! Exports and imports table entries, so that a new process can take over the connection table of
//! the old process.
//!
//! Export writes one record for each bucket that is not empty. Import adds the records to a table
//! of the same size. An imported flow keeps its hash, state, age and probation flag.
//!
//! The caller transports the records. Before import, the caller must check that both processes have
//! the same [`crate::LAYOUT_VERSION`], number of buckets, hash key and clock. Slot numbers and VIP
//! indexes must also identify the same backends and VIPs in both processes.

use core::fmt;

use crate::entry::Packed;
use crate::layout::{ENTRY_BYTES, LINE_BYTES, Line, WAYS};
use crate::table::{FlowTable, Place};
use crate::walk::Cursor;

/// The size of a record in bytes. A record consists of a bucket's index (in little-endian order)
/// and the bucket's 64 bytes.
pub const RECORD_BYTES: usize = 4 + LINE_BYTES;

/// The error that [`FlowTable::unpack`] returns for an invalid record: the record is truncated,
/// contains the index of a nonexistent bucket, or contains an invalid entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreadable;

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("flow table record is truncated, or does not fit this table")
    }
}

impl core::error::Error for Unreadable {}

impl FlowTable {
    /// Appends the records of the next `buckets` buckets to `to`. Empty buckets are skipped.
    /// Returns `None` after the last bucket.
    ///
    /// Expired entries are exported too. The new table frees expired flows later.
    ///
    /// # Cost
    /// Reads one cache line per bucket, in order.
    pub fn pack(&self, from: Cursor, buckets: usize, to: &mut Vec<u8>) -> Option<Cursor> {
        let (start, end, next) = self.step(from, buckets);
        for bucket in start..end {
            append(bucket, self.line(bucket), to);
        }
        next
    }

    /// Returns [`Unreadable`] at the first invalid record. The records before the invalid record
    /// have already been imported.
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

/// Appends the record of `bucket`. An empty bucket has no record.
pub(crate) fn append(bucket: usize, line: &Line, to: &mut Vec<u8>) {
    if line.0.iter().all(|entry| entry.is_empty()) {
        return;
    }
    // Bucket indexes are below 2^30, because `Config` allows at most 2^32 entries.
    to.extend_from_slice(&u32::try_from(bucket).unwrap_or(u32::MAX).to_le_bytes());
    to.extend_from_slice(&line.bytes());
}
