//! An index over the flows of several tables, which finds the table of a flow with one search. A
//! lookup of an unknown flow would otherwise have to search all tables.
//!
//! The index contains one cell per flow, with the flow's tag and the number of its table. If
//! several tables contain a flow, the cell refers to the most recently used entry. The index is
//! built once and never changes.

use crate::entry::{Packed, TAG_MASK};
use crate::table::FlowTable;
use crate::tick::Tick;

/// Finds the table of a flow by its tag.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The index of the first cell of each bucket, followed by the number of cells.
    starts: Box<[u32]>,
    /// The cells, grouped by bucket. Unused cells are 0 and at the end of their bucket.
    cells: Box<[u64]>,
}

impl Directory {
    /// Builds the index of all entries. Returns `None` if the memory cannot be allocated, or if
    /// there are more than 65,536 tables or 2^32 entries.
    ///
    /// # Cost
    /// Reads all tables twice. Takes 9 bytes per entry, and another 4 bytes during the build.
    pub(crate) fn of(tables: &[&FlowTable]) -> Option<Self> {
        u16::try_from(tables.len().saturating_sub(1)).ok()?;
        let count: usize = tables.iter().map(|table| table.len()).sum();
        u32::try_from(count).ok()?;
        let mut starts: Box<[u32]> = filled(count.div_ceil(PER_BUCKET) + 1)?;
        let mut directory = Self { cells: filled(count)?, starts: Box::default() };
        let mut ticks: Box<[u32]> = filled(count)?;
        let buckets = starts.len() - 1;
        for entry in tables.iter().flat_map(|table| entries(table)) {
            starts[1 + bucket_of(entry.tag(), buckets)] += 1;
        }
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        directory.starts = starts;
        for (table, number) in tables.iter().zip(0_u64..) {
            for entry in entries(table) {
                directory.add(entry, number, &mut ticks);
            }
        }
        Some(directory)
    }

    /// Adds an entry, or replaces an older entry of the same flow.
    fn add(&mut self, entry: Packed, table: u64, ticks: &mut [u32]) {
        let cell = entry.tag() | table << TABLE_SHIFT;
        let range = self.bucket(entry.tag());
        for (place, tick) in self.cells[range.clone()].iter_mut().zip(&mut ticks[range]) {
            let is_known = *place & TAG_MASK == entry.tag();
            if *place == 0 || is_known && entry.tick().is_later_than(Tick::new(*tick)) {
                (*place, *tick) = (cell, entry.tick().number());
                return;
            }
            if is_known {
                return;
            }
        }
    }

    /// Returns the number of the table that contains the flow with this tag.
    pub(crate) fn table_of(&self, tag: u64) -> Option<usize> {
        let cells = &self.cells[self.bucket(tag)];
        let cell = cells.iter().find(|cell| **cell & TAG_MASK == tag)?;
        usize::try_from(cell >> TABLE_SHIFT).ok()
    }

    fn bucket(&self, tag: u64) -> core::ops::Range<usize> {
        let Some(last) = self.starts.len().checked_sub(2) else { return 0..0 };
        let bucket = bucket_of(tag, last + 1);
        self.starts[bucket] as usize..self.starts[bucket + 1] as usize
    }
}

fn entries(table: &FlowTable) -> impl Iterator<Item = Packed> {
    (0..table.buckets()).flat_map(|bucket| table.line(bucket).0).filter(|entry| !entry.is_empty())
}

/// Returns a number below `buckets`. Tags are uniformly distributed, because they are the lower
/// bits of keyed hashes.
fn bucket_of(tag: u64, buckets: usize) -> usize {
    // The tag is below 2^48, so the result is below `buckets`.
    ((u128::from(tag) * buckets as u128) >> TABLE_SHIFT) as usize
}

/// Returns a slice of zeros, or `None` if the allocation fails.
fn filled<T: Clone + Default>(len: usize) -> Option<Box<[T]>> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).ok()?;
    values.resize(len, T::default());
    Some(values.into_boxed_slice())
}

/// The average number of cells per bucket. A bucket of four cells takes half a cache line.
const PER_BUCKET: usize = 4;
/// The position of the table number in a cell, after the 48 bits of the tag.
const TABLE_SHIFT: u32 = TAG_MASK.count_ones();
