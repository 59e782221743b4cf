//! The hash tables of VIPs and of this machine's addresses, which `bpf/whose.h` reads. Each address
//! has two possible buckets, so a lookup reads at most two buckets. All bytes of an address affect
//! both buckets, and the hash is random. If an address finds no free slot, which is rare, the table
//! is written again with another hash.
//!
//! Invariant: buckets that the program may read are never written. Each table has two sides, and
//! the program reads one of them. The memory of the tables is mapped, so that writing a side needs
//! no system calls.

use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;

use aya::maps::{Map, MapError};

use crate::attach::{AttachError, descriptor, in_map};
use crate::mapping::Mapping;

/// The parameters of one side, with the layout of `struct side` in `bpf/whose.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Side {
    seed: u64,
    factor: u64,
    first: u32,
    buckets: u32,
    first_own: u32,
    buckets_own: u32,
}

/// The variable `chosen` in `bpf/whose.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    pub(super) sides: [Side; 2],
    /// The offset of the side that the program reads, in bytes.
    offset: u32,
    padding: u32,
}

// SAFETY: the type consists of integers, and `padding` fills the only gap.
unsafe impl aya::Pod for Chosen {}

impl Chosen {
    /// Creates random parameters for tables with the given number of buckets on each side.
    pub(super) fn random(buckets: u32) -> Self {
        let side = |index| {
            let (first, first_own) = (index * buckets, index * OWN_BUCKETS);
            Side { seed: 0, factor: 0, first, buckets, first_own, buckets_own: OWN_BUCKETS }.reseeded()
        };
        Self { sides: [side(0), side(1)], offset: 0, padding: 0 }
    }

    /// Returns the index of the side that the program reads.
    pub(super) fn index(&self) -> u32 {
        u32::from(self.offset > 0)
    }

    /// Returns the same value, with the other side as the side that the program reads.
    pub(super) fn switched(self) -> Self {
        Self { offset: SIDE_BYTES - self.index() * SIDE_BYTES, ..self }
    }
}

impl Side {
    /// Returns the same side with a new random hash.
    pub(super) fn reseeded(self) -> Self {
        // The standard library seeds `RandomState` from system randomness.
        let random = RandomState::new();
        Self { seed: random.hash_one(0_u8), factor: random.hash_one(1_u8) | 1, ..self }
    }
}

/// An address in the form in which a table stores it: the bytes of the address in network order.
pub(super) trait Key: Copy + PartialEq {
    fn hash(self, side: &Side) -> u64;

    /// Returns an address that differs for each `n`, in its last four bytes.
    fn numbered(n: u32) -> Self;
}

impl Key for u32 {
    fn hash(self, side: &Side) -> u64 {
        (u64::from(self) ^ side.seed).wrapping_mul(side.factor)
    }

    fn numbered(n: u32) -> Self {
        n
    }
}

impl Key for [u64; 2] {
    fn hash(self, side: &Side) -> u64 {
        let [high, low] = self;
        let hash = (low ^ side.seed).wrapping_mul(side.factor) ^ high;
        (hash ^ hash >> 32).wrapping_mul(side.factor)
    }

    fn numbered(n: u32) -> Self {
        [0, u64::from(n) << 32]
    }
}

type Bucket<K> = [K; SLOTS];

/// A table in the memory of a BPF map. The map has the buckets of both sides.
pub(super) struct Buckets<K> {
    /// The name of the map.
    name: &'static str,
    memory: Mapping,
    /// The number of buckets on each side.
    count: usize,
    /// Keeps the descriptor of the map open, which is needed to load the program.
    _map: Map,
    key: PhantomData<K>,
}

impl<K: Key> Buckets<K> {
    /// Maps the memory of `map`, which has twice `count` buckets.
    pub(super) fn new(map: Map, name: &'static str, count: u32) -> Result<Self, AttachError> {
        let count = count as usize;
        let fd = descriptor(&map).ok_or(AttachError::Part(name))?;
        let memory = Mapping::of_descriptor(fd, 2 * count * size_of::<Bucket<K>>());
        let memory = memory.map_err(|error| in_map(name)(MapError::IoError(error)))?;
        Ok(Self { name, memory, count, _map: map, key: PhantomData })
    }

    /// Replaces the addresses on the side with the given index.
    ///
    /// # Errors
    /// Returns the name of the map if an address found no free slot.
    pub(super) fn write(
        &mut self,
        index: usize,
        of: &Side,
        keys: impl Iterator<Item = K>,
    ) -> Result<(), &'static str> {
        assert!(index < 2, "a table has two sides");
        let first = index * self.count;
        // SAFETY: the mapping has `2 * count` buckets, and starts at the start of a page.
        let first = unsafe { self.memory.base().cast::<Bucket<K>>().add(first) };
        // SAFETY: the buckets of the side are inside the mapping. All bytes are valid numbers. The
        // program does not read this side, and `self` is the only owner of the mapping.
        let side = unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), self.count) };
        if fill(side, of, keys) { Ok(()) } else { Err(self.name) }
    }
}

/// Returns the two buckets of an address. User space puts an address into the second bucket only if
/// the first one is full.
#[expect(clippy::cast_possible_truncation, reason = "each half of the hash selects one bucket")]
fn places(hash: u64, count: usize) -> [usize; 2] {
    let place = |hash: u32| ((u64::from(hash) * count as u64) >> 32) as usize;
    [place((hash >> 32) as u32), place(hash as u32)]
}

/// Writes all buckets of a side. Returns `false` if an address found no free slot.
fn fill<K: Key>(side: &mut [Bucket<K>], of: &Side, keys: impl Iterator<Item = K>) -> bool {
    let count = side.len();
    let places = |key: K| places(key.hash(of), count);
    let mut used = vec![0; count];
    for mut key in keys {
        let [first, second] = places(key);
        let mut at = if used[first] < SLOTS { first } else { second };
        for moves in 0.. {
            if used[at] < SLOTS {
                break;
            } else if moves == MAX_MOVES {
                return false;
            }
            // The address takes the slot of another address, which moves to its other bucket.
            std::mem::swap(&mut key, &mut side[at][moves % SLOTS]);
            let [first, second] = places(key);
            at = if at == first { second } else { first };
        }
        side[at][used[at]] = key;
        used[at] += 1;
    }
    for (at, (bucket, used)) in side.iter_mut().zip(used).enumerate() {
        // The program never compares an empty bucket with an address that belongs to other buckets.
        let elsewhere = || (0..MOST_FILLERS).map(K::numbered).find(|key| !places(*key).contains(&at));
        let Some(filler) = (if used > 0 { Some(bucket[0]) } else { elsewhere() }) else { return false };
        bucket[used..].fill(filler);
    }
    true
}

/// The size of a side in the variable `chosen`.
const SIDE_BYTES: u32 = 32;
/// The number of slots in a bucket.
const SLOTS: usize = 4;
/// The number of buckets on each side of the table for this machine's addresses. During a change,
/// the table can contain the addresses of two filters, so at most half of the slots are used.
pub(super) const OWN_BUCKETS: u32 = super::MAX_OWN;
/// The number of addresses from which the filler of an empty bucket is selected. With 64 buckets or
/// more, nearly all addresses belong to other buckets.
const MOST_FILLERS: u32 = 1_000;
/// The maximum number of addresses that move to make room for a new one.
const MAX_MOVES: usize = 500;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn side(count: u32) -> Side {
        Chosen::random(count).sides[0]
    }

    /// Looks up an address like the program.
    fn has<K: Key>(buckets: &[Bucket<K>], of: &Side, key: K) -> bool {
        places(key.hash(of), buckets.len()).iter().any(|at| buckets[*at].contains(&key))
    }

    /// Maps each number to another number, in an order without a pattern (the last steps of
    /// MurmurHash3, which lose no bits).
    fn irregular(n: u32) -> u32 {
        let n = (n ^ n >> 16).wrapping_mul(0x85eb_ca6b);
        let n = (n ^ n >> 13).wrapping_mul(0xc2b2_ae35);
        n ^ n >> 16
    }

    fn filled<K: Key>(count: u32, keys: impl Iterator<Item = K> + Clone) -> (Vec<Bucket<K>>, Side) {
        let mut buckets = vec![[K::numbered(0); SLOTS]; count as usize];
        let mut of = side(count);
        // Fewer than 1 % of all hashes fail.
        for _ in 0..10 {
            if fill(&mut buckets, &of, keys.clone()) {
                return (buckets, of);
            }
            of = of.reseeded();
        }
        panic!("{count} buckets are too few for ten hashes in a row");
    }

    /// Fills tables with addresses that differ only in their last four bytes.
    fn check<K: Key>(order: fn(u32) -> u32) {
        let numbered = |n| K::numbered(order(n));
        for (count, keys) in [(64, 0), (64, 1), (64, 64), (64, 128), (1_024, 2_048), (65_536, 131_072)] {
            let (buckets, of) = filled(count, (1..=keys).map(numbered));
            for n in 0..=3 * keys + 300 {
                assert_eq!(has(&buckets, &of, numbered(n)), (1..=keys).contains(&n), "{n} of {keys}");
            }
            let fillers = (0..8).filter(|n| !(1..=keys).any(|key| order(key) == *n));
            for filler in fillers {
                let is_found = has(&buckets, &of, K::numbered(filler));
                assert!(!is_found, "address {filler} was found, which fills empty slots");
            }
        }
    }

    #[test]
    fn fill_stores_exactly_the_given_addresses() {
        // The addresses are consecutive in network byte order, like the VIPs of a prefix.
        check::<u32>(u32::swap_bytes);
        check::<[u64; 2]>(u32::swap_bytes);
        check::<u32>(irregular);
        check::<[u64; 2]>(irregular);
    }

    #[test]
    fn hash_depends_on_each_byte_in_both_halves() {
        let of = side(64);
        for place in 0..16 {
            let hash = |byte: u8| {
                let mut bytes = [0; 16];
                bytes[place] = byte;
                let halves = [0, 8].map(|at| u64::from_ne_bytes(*bytes[at..].first_chunk().unwrap()));
                halves.hash(&of)
            };
            let first: BTreeSet<u64> = (0..=255).map(|byte| hash(byte) >> 32).collect();
            let second: BTreeSet<u64> = (0..=255).map(|byte| hash(byte) & 0xffff_ffff).collect();
            // Two of 256 random numbers are equal in one of 130,000 cases.
            assert!(first.len() > 250 && second.len() > 250, "byte {place} of an address");
        }
    }

    #[test]
    fn fill_refuses_addresses_that_share_both_buckets() {
        let of = Side { factor: 0, ..side(64) };
        let mut buckets = vec![[0; SLOTS]; 64];
        assert!(fill(&mut buckets, &of, 1..=4));
        assert!(!fill(&mut buckets, &of, 1..=5), "with a factor of 0, all addresses have the same hash");
        assert!(!fill(&mut buckets, &of, 0..0), "no address belongs to other buckets than the first");
    }

    #[test]
    fn chosen_has_the_layout_of_the_bpf_program() {
        assert_eq!((size_of::<Side>(), size_of::<Chosen>()), (SIDE_BYTES as usize, 72));
        let chosen = Chosen::random(64);
        assert_eq!((chosen.offset, chosen.index()), (0, 0));
        assert_eq!((chosen.switched().offset, chosen.switched().index()), (SIDE_BYTES, 1));
        assert_eq!(chosen.switched().switched().index(), 0);
        assert_eq!((size_of::<Bucket<u32>>(), size_of::<Bucket<[u64; 2]>>()), (16, 64));
    }
}
