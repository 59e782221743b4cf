//! Longest match on one end of an address, for prefixes and suffixes alike.
//!
//! Binary search on lengths: the table holds each entry, and on its search path a marker at each shorter length that says
//! "look longer". A marker knows the best entry up to its own length, so a search never goes back. With one length a look-up is
//! one probe, with 25 at most five, whatever the number of entries.
//! Source: Waldvogel, Varghese, Turner, Plattner, *Scalable High Speed IP Routing Lookups*, SIGCOMM 1997, §3 and §4.

use crate::prefix::{high, low};

/// Entries in spaces that know nothing of each other. `LOW`: the last bits count, not the first.
#[derive(Debug)]
pub(super) struct Longest<const LOW: bool> {
    places: Box<[Place]>,
    used: usize,
    /// By space: the lengths that it has, ascending.
    lengths: Box<[Box<[u8]>]>,
}

/// An end of an address that leads to `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) space: u32,
    pub(super) bits: u128,
    /// How many bits count, of 128.
    pub(super) length: u8,
    pub(super) value: u32,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    bits: u128,
    space: u32,
    /// The value of the longest entry up to this length; [`NONE`]: there is none.
    best: u32,
    length: u8,
    /// Whether a longer entry has its path through here.
    more: bool,
}

impl<const LOW: bool> Longest<LOW> {
    /// Of entries for the same bits the last one counts.
    ///
    /// # Cost
    /// For each entry as many probes as the square of the binary logarithm of its space's lengths.
    pub(super) fn build(spaces: usize, mut entries: Vec<Entry>) -> Self {
        entries.sort_by_key(|entry| entry.length);
        let mut lengths: Vec<Vec<u8>> = vec![Vec::new(); spaces];
        for entry in &entries {
            let known = &mut lengths[entry.space as usize];
            if known.last() != Some(&entry.length) {
                known.push(entry.length);
            }
        }
        let lengths = lengths.into_iter().map(Vec::into_boxed_slice).collect();
        let places = vec![EMPTY; (entries.len() * 2).next_power_of_two().max(2)].into_boxed_slice();
        let mut table = Self { places, used: 0, lengths };
        for entry in &entries {
            table.enter(entry);
        }
        table
    }

    /// The value of the longest entry of `space` whose bits `bits` has.
    #[inline]
    pub(super) fn find(&self, space: u32, bits: u128) -> Option<u32> {
        let best = self.search(space, bits, u8::MAX);
        (best != NONE).then_some(best)
    }

    /// As if there were no entries longer than `most`.
    #[inline]
    fn search(&self, space: u32, bits: u128, most: u8) -> u32 {
        let Some(lengths) = self.lengths.get(space as usize) else { return NONE };
        let (mut first, mut end, mut best) = (0, lengths.len(), NONE);
        while first < end {
            let middle = (first + end) / 2;
            let Some(&length) = lengths.get(middle) else { return best };
            let place =
                if length > most { None } else { self.place(space, masked::<LOW>(bits, length), length) };
            match place {
                None => end = middle,
                Some(place) => {
                    best = place.best;
                    if !place.more {
                        break;
                    }
                    first = middle + 1;
                }
            }
        }
        best
    }

    /// Walks an entry's search path, leaving markers. Shorter entries are in, so what a marker learns is final.
    fn enter(&mut self, entry: &Entry) {
        let space = entry.space as usize;
        let (mut first, mut end) = (0, self.lengths[space].len());
        while first < end {
            let middle = (first + end) / 2;
            let length = self.lengths[space][middle];
            if length > entry.length {
                end = middle;
                continue;
            }
            let bits = masked::<LOW>(entry.bits, length);
            let found = self.place(entry.space, bits, length).copied();
            let is_entry = length == entry.length;
            let best = match found {
                _ if is_entry => entry.value,
                Some(place) => place.best,
                None => self.search(entry.space, bits, length),
            };
            let more = !is_entry || found.is_some_and(|place| place.more);
            self.put(Place { bits, space: entry.space, best, length, more });
            if is_entry {
                return;
            }
            first = middle + 1;
        }
    }

    #[inline]
    fn place(&self, space: u32, bits: u128, length: u8) -> Option<&Place> {
        let mask = self.places.len() - 1;
        let mut at = hash(space, bits, length) & mask;
        loop {
            // At least half the places are empty, so the walk ends.
            let place = self.places.get(at)?;
            if place.bits == bits && place.length == length && place.space == space {
                return Some(place);
            }
            if place.length == VACANT {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    fn put(&mut self, new: Place) {
        if self.used * 2 >= self.places.len() {
            let twice = vec![EMPTY; self.places.len() * 2].into_boxed_slice();
            let old = std::mem::replace(&mut self.places, twice);
            self.used = 0;
            old.iter().filter(|place| place.length != VACANT).for_each(|place| self.put(*place));
        }
        let mask = self.places.len() - 1;
        let mut at = hash(new.space, new.bits, new.length) & mask;
        loop {
            let place = &mut self.places[at];
            let same = place.bits == new.bits && place.length == new.length && place.space == new.space;
            if same || place.length == VACANT {
                self.used += usize::from(!same);
                *place = new;
                return;
            }
            at = (at + 1) & mask;
        }
    }
}

#[inline]
fn masked<const LOW: bool>(bits: u128, length: u8) -> u128 {
    bits & if LOW { low(length) } else { high(length) }
}

/// Both halves of the bits meet in one product. Not keyed: only what the configuration has is entered.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves are wanted, one at a time")]
pub(super) fn hash(space: u32, bits: u128, length: u8) -> usize {
    let tag = (u64::from(space) << 8) | u64::from(length);
    let front = (bits >> 64) as u64 ^ 0x9e37_79b9_7f4a_7c15 ^ tag.rotate_left(40);
    let back = bits as u64 ^ 0xd1b5_4a32_d192_ed03;
    let product = u128::from(front) * u128::from(back);
    ((product >> 64) as u64 ^ product as u64) as usize
}

const NONE: u32 = u32::MAX;
/// The length of a place without an entry.
const VACANT: u8 = u8::MAX;
const EMPTY: Place = Place { bits: 0, space: 0, best: NONE, length: VACANT, more: false };
