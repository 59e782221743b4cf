//! Finds the most requested keys in a fixed amount of memory.
//!
//! [`HotKeys`] counts how often keys are requested, for each service, and [`hottest`] merges the
//! counts of several packet threads. The algorithm is Space-Saving, but with a heap instead of the
//! list of buckets in the paper. A fixed number of cells hold the counted keys. If a key has a
//! cell, the true count of the key is between `count - over` and `count`, where `over` is the
//! maximum error. If a key has no cell, the true count of the key is at most [`HotKeys::missed`].
//! This limit is at most the total count divided by the number of cells.
//!
//! The algorithm is described in §3 of Metwally, Agrawal and El Abbadi, *Efficient Computation of
//! Frequent and Top-k Elements in Data Streams*, ICDT 2005.

use std::collections::BTreeMap;

use crate::{KeyHash, MAX_KEY_BYTES};

/// Counts how often keys are requested on one packet thread.
#[derive(Debug)]
pub struct HotKeys {
    hash: KeyHash,
    /// The services whose keys are counted, sorted by service number.
    services: Box<[Asked]>,
    cells: Box<[Cell]>,
    /// The count of each cell. The counts are in a separate array, so that heap operations do not
    /// load the keys into the CPU cache.
    counts: Box<[u64]>,
    /// The indices of cells, as a heap with the lowest count on top. Unused cells are at the end.
    heap: Box<[u16]>,
    /// The position of each cell in the heap.
    places: Box<[u16]>,
    /// The hash index, which contains indices of cells. The index uses linear probing and is at
    /// most half full.
    index: Box<[u16]>,
    used: usize,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    service: u32,
    keys: u64,
}

#[derive(Clone, Debug)]
struct Cell {
    hash: u64,
    over: u64,
    service: u32,
    len: u8,
    key: [u8; MAX_KEY_BYTES],
}

impl Cell {
    fn key(&self) -> &[u8] {
        self.key.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// A frequently requested key, with counts from several packet threads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HotKey {
    /// The number that identifies the service.
    pub service: u32,
    /// The key as the server stores it, not base64-encoded.
    pub key: Box<[u8]>,
    /// A lower bound for the number of requests.
    pub at_least: u64,
    /// An upper bound for the number of requests.
    pub at_most: u64,
}

impl HotKeys {
    /// Creates counters for the keys of `services`, with cells for up to `room` keys (1 to 16,384).
    /// Keys of other services are ignored. `hash` must use a secret. A client that knows the secret
    /// could choose keys that make each lookup slow.
    ///
    /// # Cost
    /// Reserves 290 bytes for each of `room` keys.
    #[must_use]
    pub fn new(room: usize, services: impl IntoIterator<Item = u32>, hash: KeyHash) -> Self {
        let room = room.clamp(1, MOST_ROOM);
        let mut services: Vec<Asked> =
            services.into_iter().map(|service| Asked { service, keys: 0 }).collect();
        services.sort_by_key(|asked| asked.service);
        services.dedup_by_key(|asked| asked.service);
        Self {
            hash,
            services: services.into(),
            cells: vec![EMPTY; room].into(),
            counts: vec![0; room].into(),
            heap: vec![0; room].into(),
            places: vec![0; room].into(),
            index: vec![NONE; (room * 2).next_power_of_two()].into(),
            used: 0,
        }
    }

    /// Counts one request for a key. A key of more than 250 bytes, which memcached does not store,
    /// only increases the total of its service.
    ///
    /// # Cost
    /// One hash of the key, one lookup, and at most 2 log2(`room`) heap steps. Does not allocate
    /// memory.
    #[inline(never)]
    pub fn count(&mut self, service: u32, key: &[u8]) {
        let place = self.services.binary_search_by_key(&service, |asked| asked.service);
        let Some(asked) = place.ok().and_then(|place| self.services.get_mut(place)) else { return };
        asked.keys += 1;
        if key.len() > MAX_KEY_BYTES {
            return;
        }
        let hash = self.hash.hash(key).wrapping_add(u64::from(service).wrapping_mul(SPREAD));
        let cell = self.find(hash, service, key).unwrap_or_else(|| self.begin(hash, service, key));
        if let Some(count) = self.counts.get_mut(cell) {
            *count += 1;
        }
        self.sink(usize::from(at(&self.places, cell)));
    }

    /// Assigns a cell to a key that has none.
    fn begin(&mut self, hash: u64, service: u32, key: &[u8]) -> usize {
        let number = self.vacant();
        let over = at(&self.counts, number);
        if let Some(cell) = self.cells.get_mut(number) {
            (cell.hash, cell.over, cell.service) = (hash, over, service);
            cell.len = u8::try_from(key.len()).unwrap_or(0);
            if let Some(room) = cell.key.get_mut(..key.len()) {
                room.copy_from_slice(key);
            }
        }
        self.enter(number, hash);
        number
    }

    /// Returns how many keys were requested from a service since this object was created.
    #[must_use]
    pub fn asked(&self, service: u32) -> u64 {
        let place = self.services.binary_search_by_key(&service, |asked| asked.service);
        place.ok().and_then(|place| self.services.get(place)).map_or(0, |asked| asked.keys)
    }

    /// Returns an upper bound for the count of each key that has no cell.
    #[must_use]
    pub fn missed(&self) -> u64 {
        if self.used < self.cells.len() { 0 } else { self.lowest() }
    }

    fn lowest(&self) -> u64 {
        self.heap.first().map_or(0, |&cell| at(&self.counts, usize::from(cell)))
    }

    /// Returns the service, the key, the count and the maximum error of the count for each cell in
    /// use.
    fn keys(&self) -> impl Iterator<Item = (u32, &[u8], u64, u64)> {
        let cells = self.cells.iter().zip(&self.counts).take(self.used);
        cells.map(|(cell, count)| (cell.service, cell.key(), *count, cell.over))
    }

    fn find(&self, hash: u64, service: u32, key: &[u8]) -> Option<usize> {
        let mut place = self.home(hash);
        loop {
            let number = usize::from(*self.index.get(place).filter(|number| **number != NONE)?);
            let cell = self.cells.get(number)?;
            if cell.hash == hash && cell.service == service && cell.key() == key {
                return Some(number);
            }
            place = self.behind(place);
        }
    }

    /// Returns the index of an unused cell. If all cells are in use, evicts the key with the lowest
    /// count. The returned cell is already in the heap.
    fn vacant(&mut self) -> usize {
        if self.used < self.cells.len() {
            // The new cell is the only one with count 0, so moving it to the top restores the heap
            // order.
            let cell = self.used;
            self.used += 1;
            self.set_place(cell, cell);
            self.rise(cell);
            return cell;
        }
        let lowest = self.heap.first().map_or(0, |cell| usize::from(*cell));
        self.leave(lowest);
        lowest
    }

    fn hash_of(&self, cell: usize) -> u64 {
        self.cells.get(cell).map_or(0, |cell| cell.hash)
    }

    /// Returns the first position in the index for a hash.
    fn home(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the mask limits the value to the length")]
        let place = hash as usize & (self.index.len() - 1);
        place
    }

    fn behind(&self, place: usize) -> usize {
        (place + 1) & (self.index.len() - 1)
    }

    /// Adds a cell to the index.
    fn enter(&mut self, cell: usize, hash: u64) {
        let mut place = self.home(hash);
        while self.index.get(place).is_some_and(|number| *number != NONE) {
            place = self.behind(place);
        }
        put(&mut self.index, place, number(cell));
    }

    /// Removes a cell from the index, and moves later entries into the gap so that linear probing
    /// still finds them.
    fn leave(&mut self, cell: usize) {
        let mut free = self.home(self.hash_of(cell));
        while self.index.get(free).is_some_and(|found| *found != NONE && *found != number(cell)) {
            free = self.behind(free);
        }
        let mut place = self.behind(free);
        while let Some(&found) = self.index.get(place).filter(|found| **found != NONE) {
            let home = self.home(self.hash_of(usize::from(found)));
            let mask = self.index.len() - 1;
            // An entry may move into the gap only if its home position is at or before the gap.
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(free) & mask {
                put(&mut self.index, free, found);
                free = place;
            }
            place = self.behind(place);
        }
        put(&mut self.index, free, NONE);
    }

    /// Moves a cell toward the top of the heap until its parent has no higher count.
    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.count_at(place) < self.count_at((place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    /// Moves a cell toward the bottom of the heap until no child has a lower count.
    fn sink(&mut self, mut place: usize) {
        loop {
            let below = [2 * place + 1, 2 * place + 2].into_iter().filter(|below| *below < self.used);
            let Some(lower) = below.min_by_key(|below| self.count_at(*below)) else { return };
            if self.count_at(place) <= self.count_at(lower) {
                return;
            }
            self.swap(place, lower);
            place = lower;
        }
    }

    fn count_at(&self, place: usize) -> u64 {
        at(&self.counts, self.cell_at(place))
    }

    fn cell_at(&self, place: usize) -> usize {
        usize::from(at(&self.heap, place))
    }

    fn swap(&mut self, one: usize, other: usize) {
        let cells = [self.cell_at(one), self.cell_at(other)];
        self.set_place(cells[0], other);
        self.set_place(cells[1], one);
    }

    fn set_place(&mut self, cell: usize, place: usize) {
        put(&mut self.heap, place, number(cell));
        put(&mut self.places, cell, number(place));
    }
}

/// Merges the counts of several packet threads and returns at most `most` keys, sorted by
/// descending lower bound of the count.
#[must_use]
pub fn hottest<'a>(threads: impl IntoIterator<Item = &'a HotKeys>, most: usize) -> Vec<HotKey> {
    let (mut found, mut missed) = (BTreeMap::<(u32, &[u8]), [u64; 3]>::new(), 0);
    for thread in threads {
        missed += thread.missed();
        for (service, key, count, over) in thread.keys() {
            let [at_least, at_most, known] = found.entry((service, key)).or_default();
            *at_least += count - over;
            *at_most += count;
            // If the table of a thread contains the key, the table provides an upper bound for the
            // count. In every other thread, the count is at most `missed`.
            *known += thread.missed();
        }
    }
    let merged =
        found.into_iter().map(|(of, [at_least, at_most, known])| (of, at_least, at_most + missed - known));
    let mut keys: Vec<_> = merged.collect();
    // The sort is stable, so keys with the same count stay in alphabetical order.
    keys.sort_by_key(|&(_, at_least, at_most)| std::cmp::Reverse((at_least, at_most)));
    keys.truncate(most);
    let owned = |((service, key), at_least, at_most): ((u32, &[u8]), u64, u64)| HotKey {
        service,
        key: key.into(),
        at_least,
        at_most,
    };
    keys.into_iter().map(owned).collect()
}

fn at<T: Copy + Default>(row: &[T], place: usize) -> T {
    row.get(place).copied().unwrap_or_default()
}

fn put<T>(row: &mut [T], place: usize, value: T) {
    if let Some(there) = row.get_mut(place) {
        *there = value;
    }
}

/// Converts a cell index or a heap position to `u16`. Both numbers are at most [`MOST_ROOM`].
fn number(place: usize) -> u16 {
    u16::try_from(place).unwrap_or(NONE)
}

const EMPTY: Cell = Cell { hash: 0, over: 0, service: 0, len: 0, key: [0; MAX_KEY_BYTES] };
/// The value of an empty position in the index.
const NONE: u16 = u16::MAX;
const MOST_ROOM: usize = 16_384;
/// An odd number by which the service number is multiplied. As a result, a key has different hashes
/// in different services.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests;
