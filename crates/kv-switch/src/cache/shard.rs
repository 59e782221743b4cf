//! The cached values of one packet thread, in memory of a fixed size.
//!
//! [`Shard`] finds the cached value of a key by hash, and then compares the whole key. The cache
//! decides whether the value may be served. The shard stores at most one value for each combination
//! of server, server address and key. All memory is reserved when the shard is created. If a size
//! class is full, the CLOCK algorithm evicts a value of the same class that was not read recently.

use std::ops::Range;

use super::{Epoch, Lease};
use crate::{Application, Prepared, Stored};

#[derive(Debug)]
pub(crate) struct Shard<T> {
    copies: Box<[Copy<T>]>,
    bytes: Box<[u8]>,
    /// The number of bytes before the first block, which is aligned to a cache line.
    skew: usize,
    classes: [Class; CLASSES.len()],
    /// The hash index. A cell contains the upper half of a hash and the index of a cached value
    /// plus 1, or 0 if the cell is empty. The index uses linear probing and is at most half full.
    index: Box<[u64]>,
    pub(crate) evictions: u64,
    /// The number of bytes of cached keys and values.
    pub(crate) used_bytes: u64,
}

/// The cached values whose blocks have the same size.
#[derive(Debug)]
struct Class {
    size: usize,
    first: usize,
    end: usize,
    /// The indices of unused entries.
    free: Vec<u32>,
    hand: usize,
}

/// The metadata of a cached value. `T` identifies the address from which the value was fetched.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Copy<T> {
    pub(crate) hash: u64,
    pub(crate) server: u32,
    /// The offset of the block, counted in cache lines.
    block: u32,
    block_len: u16,
    key_at: u16,
    value_at: u16,
    value_len: u16,
    key_len: u8,
    /// `true` if the block is a prepared reply.
    is_prepared: bool,
    pub(crate) sum: u16,
    is_used: bool,
    /// `true` if the value was read since the clock hand last passed it.
    is_warm: bool,
    pub(crate) is_asked_for: bool,
    pub(crate) state: State,
    /// The address from which the value was fetched, or `None` if the entry was never used.
    asked: Option<T>,
}

// `T` may be an IP address with a port.
const _: () = assert!(size_of::<Copy<[u16; 9]>>() == 2 * LINE);

/// The metadata that changes when the lease of a value is renewed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct State {
    pub(crate) until: u64,
    pub(crate) epoch: Epoch,
    pub(crate) generation: u64,
    /// The number of reads since the last fetch.
    pub(crate) reads: u32,
    pub(crate) flags: u32,
    pub(crate) cas: u64,
    /// The time when a fetch last marked the key as recently used on the server.
    pub(crate) touched: u64,
    pub(crate) lease: Lease,
    /// The time to live in seconds that the server reported, or `None` if the value does not
    /// expire.
    pub(crate) ttl: Option<u32>,
    /// `true` if the server stored the key under its base64 form.
    pub(crate) is_base64: bool,
}

/// The stored bytes of a cached value. A block is a prepared reply that contains the key and the
/// value, or only the key followed by the value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<'a> {
    bytes: &'a [u8],
    key_at: u16,
    value_at: u16,
    value_len: u16,
    is_prepared: bool,
    sum: u16,
}

impl<'a> Block<'a> {
    /// Writes a block to `room`. Returns `None` if the block would be too long.
    pub(crate) fn of(
        key: &[u8],
        stored: &Stored<'_>,
        application: &dyn Application,
        sum: fn(&[u8]) -> u16,
        room: &'a mut [u8; MOST_BLOCK],
    ) -> Option<Self> {
        let value = stored.bytes;
        let prepared = application.prepare_hit(key, stored, room);
        let is_prepared = prepared.is_some();
        let Prepared { length, key: key_at, value: value_at } = match prepared {
            Some(prepared) => prepared,
            None => {
                let length = key.len() + value.len();
                let (front, behind) = room.get_mut(..length)?.split_at_mut_checked(key.len())?;
                front.copy_from_slice(key);
                behind.copy_from_slice(value);
                Prepared { length, key: 0, value: key.len() }
            }
        };
        let bytes = room.get(..length)?;
        let is = |at: usize, what: &[u8]| bytes.get(at..at + what.len()) == Some(what);
        if !is(key_at, key) || !is(value_at, value) {
            return None;
        }
        let narrow = |number: usize| u16::try_from(number).ok();
        Some(Self {
            bytes,
            key_at: narrow(key_at)?,
            value_at: narrow(value_at)?,
            value_len: narrow(value.len())?,
            is_prepared,
            sum: if is_prepared { sum(bytes) } else { 0 },
        })
    }
}

/// The key of a cached value, with its hash, its server, and the address at which the server was
/// asked. Processes on different addresses and ports of one server may store different values for a
/// key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a, T> {
    pub(crate) hash: u64,
    pub(crate) server: u32,
    pub(crate) asked: T,
    pub(crate) key: &'a [u8],
}

impl<T: core::marker::Copy + PartialEq> Shard<T> {
    /// Creates a shard of `memory` bytes, including the metadata. `advise` is called with each
    /// address range before its first use.
    pub(crate) fn new(memory: usize, advise: fn(Range<usize>)) -> Self {
        let counts = CLASSES.map(|(size, share)| {
            (memory / 100 * share / (size + size_of::<Copy<T>>() + INDEX_BYTES)).min(MOST_COPIES)
        });
        let mut copies = Vec::with_capacity(counts.iter().sum());
        advise(addresses(copies.as_ptr(), copies.capacity()));
        let (mut counts, mut block) = (counts.into_iter(), 0);
        let classes = CLASSES.map(|(size, _)| {
            let (first, count) = (copies.len(), counts.next().unwrap_or(0));
            for _ in 0..count {
                copies.push(Copy::empty(u32::try_from(block / LINE).unwrap_or(0)));
                block += size;
            }
            let numbers = (first..first + count).rev().filter_map(|number| u32::try_from(number).ok());
            Class { size, first, end: first + count, free: numbers.collect(), hand: first }
        });
        // The kernel provides zeroed memory when a page is first written.
        let (index, bytes) = (vec![0; (copies.len() * 2).next_power_of_two()], vec![0; block + LINE]);
        advise(addresses(index.as_ptr(), index.len()));
        advise(addresses(bytes.as_ptr(), bytes.len()));
        let skew = bytes.as_ptr().align_offset(LINE).min(LINE);
        let (copies, index, bytes) = (copies.into(), index.into(), bytes.into());
        Self { copies, bytes, skew, classes, index, evictions: 0, used_bytes: 0 }
    }

    /// Returns the first entry whose hash has the same upper half as the given hash. For most keys,
    /// the shard has no such entry.
    ///
    /// # Cost
    /// One load from the index.
    #[inline]
    pub(crate) fn candidate(&self, hash: u64) -> Option<u32> {
        self.numbers(hash).next().and_then(|number| u32::try_from(number).ok())
    }

    /// Loads the metadata that [`Self::find`] reads into the CPU cache.
    #[inline]
    pub(crate) fn load(&self, number: u32) -> u64 {
        self.copies.get(number as usize).map_or(0, |copy| copy.hash ^ copy.state.cas)
    }

    /// Loads the key and the value of an entry into the CPU cache.
    #[inline]
    pub(crate) fn load_block(&self, number: u32) -> u8 {
        let Some(copy) = self.copies.get(number as usize) else { return 0 };
        self.block_of(copy).iter().step_by(LINE).fold(0, |all, byte| all ^ byte)
    }

    pub(crate) fn find(&self, name: &Name<'_, T>) -> Option<u32> {
        let mut same = self.numbers(name.hash);
        let found = same.find(|number| {
            self.copies.get(*number).is_some_and(|copy| {
                (copy.hash, copy.server, copy.asked) == (name.hash, name.server, Some(name.asked))
                    && self.key_of(copy) == name.key
            })
        });
        found.and_then(|number| u32::try_from(number).ok())
    }

    pub(crate) fn copy(&self, number: u32) -> Option<&Copy<T>> {
        self.copies.get(number as usize).filter(|copy| copy.is_used)
    }

    pub(crate) fn copy_mut(&mut self, number: u32) -> Option<&mut Copy<T>> {
        self.copies.get_mut(number as usize).filter(|copy| copy.is_used)
    }

    /// Marks a cached value as recently read. As a result, other values are evicted first.
    #[inline]
    pub(crate) fn warm(&mut self, number: u32) -> Option<&mut Copy<T>> {
        let copy = self.copy_mut(number)?;
        copy.is_warm = true;
        Some(copy)
    }

    #[inline]
    fn start(&self, copy: &Copy<T>) -> usize {
        self.skew + copy.block as usize * LINE
    }

    #[inline]
    fn within(&self, copy: &Copy<T>, at: u16, length: usize) -> &[u8] {
        let start = self.start(copy) + usize::from(at);
        self.bytes.get(start..start + length).unwrap_or_default()
    }

    #[inline]
    fn block_of(&self, copy: &Copy<T>) -> &[u8] {
        self.within(copy, 0, copy.block_len.into())
    }

    #[inline]
    pub(crate) fn key_of(&self, copy: &Copy<T>) -> &[u8] {
        self.within(copy, copy.key_at, copy.key_len.into())
    }

    #[inline]
    pub(crate) fn value_of(&self, copy: &Copy<T>) -> &[u8] {
        self.within(copy, copy.value_at, copy.value_len.into())
    }

    /// Returns the prepared reply, or an empty slice if the entry has none.
    #[inline]
    pub(crate) fn prepared_of(&self, copy: &Copy<T>) -> &[u8] {
        if copy.is_prepared { self.block_of(copy) } else { &[] }
    }

    /// Stores a value and replaces the previous value of the key. Returns `None` if the value is
    /// too long or its size class has no memory.
    pub(crate) fn keep(
        &mut self,
        now: u64,
        name: &Name<'_, T>,
        block: &Block<'_>,
        state: State,
    ) -> Option<u32> {
        if let Some(old) = self.find(name) {
            self.remove(old);
        }
        let key_len = u8::try_from(name.key.len()).ok()?;
        let block_len = u16::try_from(block.bytes.len()).ok()?;
        let number = self.vacant(now, block.bytes.len())?;
        let start = self.start(self.copies.get(number as usize)?);
        let copy = self.copies.get_mut(number as usize)?;
        self.bytes.get_mut(start..start + block.bytes.len())?.copy_from_slice(block.bytes);
        let &Block { key_at, value_at, value_len, is_prepared, sum, .. } = block;
        let (hash, server, block) = (name.hash, name.server, copy.block);
        *copy = Copy {
            hash,
            server,
            block,
            block_len,
            key_at,
            value_at,
            value_len,
            key_len,
            is_prepared,
            sum,
            is_used: true,
            is_warm: true,
            is_asked_for: false,
            state,
            asked: Some(name.asked),
        };
        self.used_bytes += copy.len();
        self.enter(number, name.hash);
        Some(number)
    }

    /// Removes a cached value.
    pub(crate) fn remove(&mut self, number: u32) {
        if !self.clear(number) {
            return;
        }
        let of = |class: &&mut Class| (class.first..class.end).contains(&(number as usize));
        if let Some(class) = self.classes.iter_mut().find(of) {
            class.free.push(number);
        }
    }

    fn clear(&mut self, number: u32) -> bool {
        let Some(copy) = self.copies.get_mut(number as usize).filter(|copy| copy.is_used) else {
            return false;
        };
        copy.is_used = false;
        self.used_bytes -= copy.len();
        let hash = copy.hash;
        self.leave(number, hash);
        true
    }

    /// Returns the index of an entry with room for `bytes`, and evicts a cached value if no entry
    /// is free.
    fn vacant(&mut self, now: u64, bytes: usize) -> Option<u32> {
        let place = self.classes.iter().position(|class| class.size >= bytes && class.first < class.end)?;
        if let Some(number) = self.classes.get_mut(place)?.free.pop() {
            return Some(number);
        }
        let number = self.turn_hand(place, now)?;
        self.clear(number);
        self.evictions += 1;
        Some(number)
    }

    /// Advances the clock hand to the next value that has expired or was not read recently, and
    /// returns the index of this value. If the first [`LONGEST_TURN`] values do not qualify, the
    /// function returns the next value regardless.
    fn turn_hand(&mut self, class: usize, now: u64) -> Option<u32> {
        let class = self.classes.get_mut(class)?;
        for _ in 0..LONGEST_TURN {
            let copy = self.copies.get_mut(class.hand)?;
            let number = class.hand;
            class.hand = if class.hand + 1 < class.end { class.hand + 1 } else { class.first };
            if !copy.is_warm || copy.state.until <= now {
                return u32::try_from(number).ok();
            }
            copy.is_warm = false;
        }
        u32::try_from(class.hand).ok()
    }

    /// Returns the indices of the entries whose hash has the same upper half as the given hash.
    #[inline]
    fn numbers(&self, hash: u64) -> impl Iterator<Item = usize> {
        let mut place = self.home(hash);
        std::iter::from_fn(move || {
            loop {
                let cell = *self.index.get(place).filter(|cell| **cell != 0)?;
                place = self.behind(place);
                if cell >> 32 == hash >> 32 {
                    return Some((cell & LOW) as usize - 1);
                }
            }
        })
    }

    fn home(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the mask limits the value to the length")]
        let place = hash as usize & (self.index.len() - 1);
        place
    }

    fn behind(&self, place: usize) -> usize {
        (place + 1) & (self.index.len() - 1)
    }

    fn enter(&mut self, number: u32, hash: u64) {
        let mut place = self.home(hash);
        while self.index.get(place).is_some_and(|cell| *cell != 0) {
            place = self.behind(place);
        }
        self.put(place, hash & !LOW | (u64::from(number) + 1));
    }

    /// Removes an entry from the index, and moves later entries into the gap so that linear probing
    /// still finds them.
    fn leave(&mut self, number: u32, hash: u64) {
        let mut free = self.home(hash);
        while self.index.get(free).is_some_and(|cell| *cell != 0 && cell & LOW != u64::from(number) + 1) {
            free = self.behind(free);
        }
        let mut place = self.behind(free);
        while let Some(&found) = self.index.get(place).filter(|cell| **cell != 0) {
            let copy = self.copies.get((found & LOW) as usize - 1);
            let home = self.home(copy.map_or(0, |copy| copy.hash));
            let mask = self.index.len() - 1;
            // An entry may move into the gap only if its home position is at or before the gap.
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(free) & mask {
                self.put(free, found);
                free = place;
            }
            place = self.behind(place);
        }
        self.put(free, 0);
    }

    fn put(&mut self, place: usize, cell: u64) {
        if let Some(there) = self.index.get_mut(place) {
            *there = cell;
        }
    }
}

/// Returns the address range of `count` array elements.
fn addresses<V>(first: *const V, count: usize) -> Range<usize> {
    let start = first.addr();
    start..start + count * size_of::<V>()
}

impl<T> Copy<T> {
    fn empty(block: u32) -> Self {
        Self {
            hash: 0,
            server: 0,
            block,
            block_len: 0,
            key_at: 0,
            value_at: 0,
            value_len: 0,
            key_len: 0,
            is_prepared: false,
            sum: 0,
            is_used: false,
            is_warm: false,
            is_asked_for: false,
            state: State {
                flags: 0,
                cas: 0,
                ttl: None,
                is_base64: false,
                lease: Lease::from_nanos(0),
                epoch: Epoch::default(),
                generation: 0,
                until: 0,
                touched: 0,
                reads: 0,
            },
            asked: None,
        }
    }

    fn len(&self) -> u64 {
        u64::from(self.key_len) + u64::from(self.value_len)
    }
}

/// The block sizes in bytes, and the percentage of the memory for each size.
const CLASSES: [(usize, usize); 3] = [(128, 25), (512, 25), (MOST_BLOCK, 50)];
/// The maximum length of a block in bytes.
pub(crate) const MOST_BLOCK: usize = 1_536;
/// The memory that an entry needs in addition to its block and its metadata: two index cells and
/// one position in the list of free entries.
const INDEX_BYTES: usize = 2 * 16 + 4;
const MOST_COPIES: usize = 1 << 24;
/// The size of a cache line in bytes.
const LINE: usize = 64;
/// The maximum number of entries that an insertion examines. This limit bounds the running time of
/// the insertion.
const LONGEST_TURN: usize = 64;
/// The bits of an index cell that contain the index of the entry.
const LOW: u64 = 0xffff_ffff;

#[cfg(test)]
mod tests;
