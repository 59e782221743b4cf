//! The keys that are asked for most, found in memory of a fixed size.
//!
//! In: each key of each request, with its service's number. Out: the keys with the highest counts, with bounds of what they are.
//! Not here: time, which server has a key, who asks for this (`control-plane`).
//! Invariant: a key that is not in was counted at most [`HotKeys::missed`] times, which is no more than all that was counted
//! divided by the room; of one that is in, `count - over` is at most what is true, and `count` at least.
//! Source: Metwally, Agrawal and El Abbadi, *Efficient Computation of Frequent and Top-k Elements in Data Streams*, ICDT 2005, §3
//! (Space-Saving); with a heap for its list of buckets.

use std::collections::BTreeMap;

use crate::{KeyHash, MAX_KEY_BYTES};

/// Counts keys. One for each packet thread; its asker brings the memory and takes it away.
#[derive(Debug)]
pub struct HotKeys {
    hash: KeyHash,
    /// By number; whose keys are counted, and how many of each.
    services: Box<[Asked]>,
    cells: Box<[Cell]>,
    /// Of each cell. Apart from the keys, so that a step in the heap reads no other line.
    counts: Box<[u64]>,
    /// Numbers of cells, the lowest count first. The cells in use are the first ones.
    heap: Box<[u16]>,
    /// Where each cell stands in the heap.
    places: Box<[u16]>,
    /// Numbers of cells by hash, linearly probed, at most half full.
    index: Box<[u16]>,
    used: usize,
}

/// One service.
#[derive(Clone, Copy, Debug)]
struct Asked {
    service: u32,
    keys: u64,
}

/// One key, inline.
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

/// One key of several threads together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HotKey {
    /// The service's number.
    pub service: u32,
    /// The key as its server stores it.
    pub key: Box<[u8]>,
    /// It was asked for at least so often.
    pub at_least: u64,
    /// And no more often than that.
    pub at_most: u64,
}

impl HotKeys {
    /// Counts the keys of these services, of others none, and knows up to `room` keys at once (1 to 16,384).
    /// `hash` must be secret: who knows it makes each count cost a walk through the index.
    ///
    /// # Cost
    /// All memory that it will ever have: 290 bytes a key of `room`.
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

    /// Counts a key once. One of more than 250 bytes, which no memcached stores, is in its service's sum alone.
    ///
    /// # Cost
    /// A hash of the key, a look-up, and at most twice log2 of the room steps in the heap. Takes no memory.
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

    /// Gives a key that is not in the cell of another.
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

    /// Keys of requests for a service since the beginning.
    #[must_use]
    pub fn asked(&self, service: u32) -> u64 {
        let place = self.services.binary_search_by_key(&service, |asked| asked.service);
        place.ok().and_then(|place| self.services.get(place)).map_or(0, |asked| asked.keys)
    }

    /// The most often that a key which is not in can have been counted.
    #[must_use]
    pub fn missed(&self) -> u64 {
        if self.used < self.cells.len() { 0 } else { self.lowest() }
    }

    fn lowest(&self) -> u64 {
        self.heap.first().map_or(0, |&cell| at(&self.counts, usize::from(cell)))
    }

    /// The keys that are in: service, key, count, and the most that the count is too high by.
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

    /// A cell that was never used, or that of the lowest count, whose key is forgotten. It has a place in the heap.
    fn vacant(&mut self) -> usize {
        if self.used < self.cells.len() {
            // It has count 0, and no other has: the heap is in order again once it stands at the top.
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

    /// Where a hash is looked for first.
    fn home(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the mask keeps what fits")]
        let place = hash as usize & (self.index.len() - 1);
        place
    }

    fn behind(&self, place: usize) -> usize {
        (place + 1) & (self.index.len() - 1)
    }

    /// Enters a cell into the index.
    fn enter(&mut self, cell: usize, hash: u64) {
        let mut place = self.home(hash);
        while self.index.get(place).is_some_and(|number| *number != NONE) {
            place = self.behind(place);
        }
        put(&mut self.index, place, number(cell));
    }

    /// Takes a cell out of the index; those behind it move up, so that none is cut off from its home.
    fn leave(&mut self, cell: usize) {
        let mut free = self.home(self.hash_of(cell));
        while self.index.get(free).is_some_and(|found| *found != NONE && *found != number(cell)) {
            free = self.behind(free);
        }
        let mut place = self.behind(free);
        while let Some(&found) = self.index.get(place).filter(|found| **found != NONE) {
            let home = self.home(self.hash_of(usize::from(found)));
            let mask = self.index.len() - 1;
            // As far from its home as from the gap, or farther: it may stand in the gap.
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(free) & mask {
                put(&mut self.index, free, found);
                free = place;
            }
            place = self.behind(place);
        }
        put(&mut self.index, free, NONE);
    }

    /// Brings a cell that may count less than the one above it to where it belongs.
    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.count_at(place) < self.count_at((place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    /// The same of one that may count more than those below it.
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

/// The hottest keys of several threads together, at most `most` of them: those that were surely asked for most come first.
#[must_use]
pub fn hottest<'a>(threads: impl IntoIterator<Item = &'a HotKeys>, most: usize) -> Vec<HotKey> {
    let (mut found, mut missed) = (BTreeMap::<(u32, &[u8]), [u64; 3]>::new(), 0);
    for thread in threads {
        missed += thread.missed();
        for (service, key, count, over) in thread.keys() {
            let [at_least, at_most, known] = found.entry((service, key)).or_default();
            *at_least += count - over;
            *at_most += count;
            // Where it is in, its count says it all.
            *known += thread.missed();
        }
    }
    let merged =
        found.into_iter().map(|(of, [at_least, at_most, known])| (of, at_least, at_most + missed - known));
    let mut keys: Vec<_> = merged.collect();
    // Those that are equal stay in the order of their names.
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

/// Of a cell or a place: there are at most [`MOST_ROOM`].
fn number(place: usize) -> u16 {
    u16::try_from(place).unwrap_or(NONE)
}

const EMPTY: Cell = Cell { hash: 0, over: 0, service: 0, len: 0, key: [0; MAX_KEY_BYTES] };
/// No cell has this number.
const NONE: u16 = u16::MAX;
const MOST_ROOM: usize = 16_384;
/// An odd number, by which the same key of two services has two homes.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests;
