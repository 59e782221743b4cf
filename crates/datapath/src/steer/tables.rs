//! The hash tables of VIPs and of this machine's addresses, which `bpf/whose.h` reads. Each address
//! has two possible buckets, so a lookup reads at most two buckets. The hash is random, so a
//! configuration cannot be written whose addresses all have the same buckets.
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
    /// The index of the side that the program reads.
    pub(super) index: u32,
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
        Self { sides: [side(0), side(1)], index: 0, padding: 0 }
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

    /// Returns an address that differs for each `n`.
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
        let hash = (high ^ side.seed).wrapping_mul(side.factor);
        (hash ^ hash >> 32 ^ low).wrapping_mul(side.factor)
    }

    fn numbered(n: u32) -> Self {
        [0, n.into()]
    }
}

type Bucket<K> = [K; SLOTS];

/// A table in the memory of a BPF map. The map has the buckets of both sides.
pub(super) struct Buckets<K> {
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
        Ok(Self { memory, count, _map: map, key: PhantomData })
    }

    /// Replaces the addresses on the side with the given index. Returns `false` if an address found
    /// no free slot.
    pub(super) fn write(&mut self, index: usize, of: &Side, keys: impl Iterator<Item = K>) -> bool {
        assert!(index < 2, "a table has two sides");
        let first = index * self.count;
        // SAFETY: the mapping has `2 * count` buckets, and starts at the start of a page.
        let first = unsafe { self.memory.base().cast::<Bucket<K>>().add(first) };
        // SAFETY: the buckets of the side are inside the mapping. All bytes are valid numbers. The
        // program does not read this side, and `self` is the only owner of the mapping.
        fill(unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), self.count) }, of, keys)
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
        let elsewhere = || (0..).map(K::numbered).find(|key| !places(*key).contains(&at));
        let Some(filler) = (if used > 0 { Some(bucket[0]) } else { elsewhere() }) else { return false };
        bucket[used..].fill(filler);
    }
    true
}

/// The number of slots in a bucket.
const SLOTS: usize = 4;
/// The number of buckets on each side of the table for this machine's addresses. During a change,
/// the table can contain the addresses of two filters, so at most half of the slots are used.
pub(super) const OWN_BUCKETS: u32 = super::MAX_OWN;
/// The maximum number of addresses that move to make room for a new one.
const MAX_MOVES: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    fn side(count: u32) -> Side {
        Chosen::random(count).sides[0]
    }

    /// Looks up an address like the program.
    fn has<K: Key>(buckets: &[Bucket<K>], of: &Side, key: K) -> bool {
        places(key.hash(of), buckets.len()).iter().any(|at| buckets[*at].contains(&key))
    }

    fn filled<K: Key>(count: u32, keys: u32) -> (Vec<Bucket<K>>, Side) {
        let mut buckets = vec![[K::numbered(0); SLOTS]; count as usize];
        let mut of = side(count);
        // The addresses are consecutive in network byte order, like the VIPs of a prefix.
        while !fill(&mut buckets, &of, (1..=keys).map(|n| K::numbered(n.swap_bytes()))) {
            of = of.reseeded();
        }
        (buckets, of)
    }

    fn check<K: Key>() {
        for (count, keys) in [(64, 0), (64, 1), (64, 64), (64, 128), (1_024, 2_048), (65_536, 131_072)] {
            let (buckets, of) = filled::<K>(count, keys);
            for n in 0..=3 * keys + 300 {
                let key = K::numbered(n.swap_bytes());
                assert_eq!(has(&buckets, &of, key), (1..=keys).contains(&n), "{n} of {keys}");
            }
            assert!(!has(&buckets, &of, K::numbered(1)), "an address that fills empty slots was found");
        }
    }

    #[test]
    fn fill_stores_exactly_the_given_addresses() {
        check::<u32>();
        check::<[u64; 2]>();
    }

    #[test]
    fn fill_refuses_addresses_that_share_both_buckets() {
        let of = Side { factor: 0, ..side(64) };
        let mut buckets = vec![[0; SLOTS]; 64];
        assert!(fill(&mut buckets, &of, 1..=4));
        assert!(!fill(&mut buckets, &of, 1..=5), "with a factor of 0, all addresses have the same hash");
    }

    #[test]
    fn chosen_has_the_layout_of_the_bpf_program() {
        assert_eq!((size_of::<Side>(), size_of::<Chosen>()), (32, 72));
        assert_eq!((size_of::<Bucket<u32>>(), size_of::<Bucket<[u64; 2]>>()), (16, 64));
    }
}
