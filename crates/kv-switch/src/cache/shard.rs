//! One thread's copies of values, in memory of a fixed size.
//!
//! In: values with their keys and servers. Out: the copy of a key, by its hash and by every byte of it.
//! Not here: whether a copy may be served (`cache`), what it says to a client (`Application::write_hit`).
//! Invariant: a key of a server has one copy at most; memory is taken at the start; what is copied last finds room, and of its size
//! class the copy gives way that was not looked up since the hand came by (CLOCK).

use std::ops::Range;

use super::{Epoch, Lease};
use crate::{Application, Prepared, Stored};

/// The copies.
#[derive(Debug)]
pub(crate) struct Shard {
    copies: Box<[Copy]>,
    bytes: Box<[u8]>,
    /// Bytes in front of the first block, which begins a cache line.
    skew: usize,
    classes: [Class; CLASSES.len()],
    /// Upper halves of hashes, and numbers of copies counted from 1; 0 is empty. Linearly probed, at most half full.
    index: Box<[u64]>,
    pub(crate) evictions: u64,
    /// Of keys and values.
    pub(crate) used_bytes: u64,
}

/// Copies of one size.
#[derive(Debug)]
struct Class {
    size: usize,
    first: usize,
    end: usize,
    /// Those that were not used yet, or were taken out.
    free: Vec<u32>,
    hand: usize,
}

/// What is known of a copy. What a read looks at is in its first cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Copy {
    pub(crate) hash: u64,
    pub(crate) server: u32,
    /// In which cache line its block begins.
    block: u32,
    block_len: u16,
    key_at: u16,
    value_at: u16,
    value_len: u16,
    key_len: u8,
    /// The block is a reply.
    is_prepared: bool,
    pub(crate) sum: u16,
    is_used: bool,
    /// It was looked up since the hand came by.
    is_warm: bool,
    pub(crate) is_asked_for: bool,
    pub(crate) state: State,
}

const _: () = assert!(size_of::<Copy>() == 2 * LINE);

/// What changes when a copy is renewed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct State {
    pub(crate) until: u64,
    pub(crate) epoch: Epoch,
    /// The caller's.
    pub(crate) generation: u64,
    /// Requests for it since the server was asked last.
    pub(crate) reads: u32,
    pub(crate) flags: u32,
    pub(crate) renewed_at: u64,
    pub(crate) cas: u64,
    /// When the server last counted it as used.
    pub(crate) touched: u64,
    pub(crate) lease: Lease,
    /// Seconds that it lived when the server was asked; `None`: for ever.
    pub(crate) ttl: Option<u32>,
    /// The server stored its key by a name in base64.
    pub(crate) is_base64: bool,
}

/// What is kept of a value: a prepared reply, in which it stands with its key, else both.
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
    /// Written to `room`. `None`: it is too long.
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

/// Whose copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    pub(crate) hash: u64,
    pub(crate) server: u32,
    pub(crate) key: &'a [u8],
}

impl Shard {
    /// In so many bytes, of which the copies' own lists are part. `advise` is called with the addresses of its memory before it is touched.
    pub(crate) fn new(memory: usize, advise: fn(Range<usize>)) -> Self {
        let counts =
            CLASSES.map(|(size, share)| (memory / 100 * share / (size + COPY_BYTES)).min(MOST_COPIES));
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
        // Zeroed memory is the kernel's until it is written to.
        let (index, bytes) = (vec![0; (copies.len() * 2).next_power_of_two()], vec![0; block + LINE]);
        advise(addresses(index.as_ptr(), index.len()));
        advise(addresses(bytes.as_ptr(), bytes.len()));
        let skew = bytes.as_ptr().align_offset(LINE).min(LINE);
        let (copies, index, bytes) = (copies.into(), index.into(), bytes.into());
        Self { copies, bytes, skew, classes, index, evictions: 0, used_bytes: 0 }
    }

    /// The first copy that a key with this hash may have: most keys have none.
    ///
    /// # Cost
    /// A load of the index.
    #[inline]
    pub(crate) fn candidate(&self, hash: u64) -> Option<u32> {
        self.numbers(hash).next().and_then(|number| u32::try_from(number).ok())
    }

    /// Loads what [`Self::find`] reads of a copy: its lines of the list.
    #[inline]
    pub(crate) fn load(&self, number: u32) -> u64 {
        self.copies.get(number as usize).map_or(0, |copy| copy.hash ^ copy.state.renewed_at)
    }

    /// Loads its key and value.
    #[inline]
    pub(crate) fn load_block(&self, number: u32) -> u8 {
        let Some(copy) = self.copies.get(number as usize) else { return 0 };
        self.block_of(copy).iter().step_by(LINE).fold(0, |all, byte| all ^ byte)
    }

    pub(crate) fn find(&self, name: &Name<'_>) -> Option<u32> {
        let mut same = self.numbers(name.hash);
        let found = same.find(|number| {
            self.copies.get(*number).is_some_and(|copy| {
                copy.hash == name.hash && copy.server == name.server && self.key_of(copy) == name.key
            })
        });
        found.and_then(|number| u32::try_from(number).ok())
    }

    pub(crate) fn copy(&self, number: u32) -> Option<&Copy> {
        self.copies.get(number as usize).filter(|copy| copy.is_used)
    }

    pub(crate) fn copy_mut(&mut self, number: u32) -> Option<&mut Copy> {
        self.copies.get_mut(number as usize).filter(|copy| copy.is_used)
    }

    /// It was looked up: others give way first.
    #[inline]
    pub(crate) fn warm(&mut self, number: u32) -> Option<&mut Copy> {
        let copy = self.copy_mut(number)?;
        copy.is_warm = true;
        Some(copy)
    }

    #[inline]
    fn start(&self, copy: &Copy) -> usize {
        self.skew + copy.block as usize * LINE
    }

    #[inline]
    fn within(&self, copy: &Copy, at: u16, length: usize) -> &[u8] {
        let start = self.start(copy) + usize::from(at);
        self.bytes.get(start..start + length).unwrap_or_default()
    }

    #[inline]
    fn block_of(&self, copy: &Copy) -> &[u8] {
        self.within(copy, 0, copy.block_len.into())
    }

    #[inline]
    pub(crate) fn key_of(&self, copy: &Copy) -> &[u8] {
        self.within(copy, copy.key_at, copy.key_len.into())
    }

    #[inline]
    pub(crate) fn value_of(&self, copy: &Copy) -> &[u8] {
        self.within(copy, copy.value_at, copy.value_len.into())
    }

    /// Empty: none was.
    #[inline]
    pub(crate) fn prepared_of(&self, copy: &Copy) -> &[u8] {
        if copy.is_prepared { self.block_of(copy) } else { &[] }
    }

    /// Keeps a value, in the place of the copy that there was of it. `None`: it is too long, or there is no memory for its size.
    pub(crate) fn keep(&mut self, now: u64, name: &Name<'_>, block: &Block<'_>, state: State) -> Option<u32> {
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
        };
        self.used_bytes += copy.len();
        self.enter(number, name.hash);
        Some(number)
    }

    /// Forgets a copy.
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

    /// Room for so many bytes: free, or that of the copy which gives way.
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

    /// The first that is not warm, or has ended; after [`LONGEST_TURN`] of others the next, whatever it is.
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

    /// Copies whose hash begins like this one.
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
        #[expect(clippy::cast_possible_truncation, reason = "the mask keeps what fits")]
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

    /// Takes a copy out of the index; those behind it move up, so that none is cut off from its home.
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
            // As far from its home as from the gap, or farther: it may stand in the gap.
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

/// Of so many values that lie there.
fn addresses<V>(first: *const V, count: usize) -> Range<usize> {
    let start = first.addr();
    start..start + count * size_of::<V>()
}

impl Copy {
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
                renewed_at: 0,
                touched: 0,
                reads: 0,
            },
        }
    }

    fn len(&self) -> u64 {
        u64::from(self.key_len) + u64::from(self.value_len)
    }
}

/// Sizes of blocks, and of a hundred parts of memory how many each has.
const CLASSES: [(usize, usize); 3] = [(128, 25), (512, 25), (MOST_BLOCK, 50)];
/// Bytes of the longest block.
pub(crate) const MOST_BLOCK: usize = 1_536;
/// Of a copy beside its block: itself, its places in the index and in the list of free ones.
const COPY_BYTES: usize = size_of::<Copy>() + 2 * 16 + 4;
const MOST_COPIES: usize = 1 << 24;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Copies that one new copy looks at, so that a batch is not held up.
const LONGEST_TURN: usize = 64;
/// The number in a cell of the index.
const LOW: u64 = 0xffff_ffff;

#[cfg(test)]
mod tests;
