//! Maglev consistent hashing: the lookup table from flow hash to backend.
//!
//! In: a set of (name, weight), a size, a seed ([`build`]). Out: a [`Table`] that answers with ranks (the backends
//! in the order of their names), and the [`Disruption`] between two tables.
//! Not here: who is healthy, what a backend's address is, how a flow is hashed.
//! Invariant: equal sets, sizes and seeds give equal tables, bit for bit, on any machine and in any order of input.
//! `no_std` with `alloc`; no clock, no I/O, no floating point.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §3.4 and §5.3.
//!
//! ```
//! use maglev_hash::{Backend, Options, Seed, build, disruption};
//!
//! let backends = [b"b1", b"b2", b"b3"].map(|name| Backend { name, weight: 1 });
//! let options = Options::new(Seed::new(*b"secret, 16 bytes"));
//! let [before, after] = [build(&backends, &options)?, build(&backends[..2], &options)?];
//! assert!(before.shares().iter().all(|share| (21_845..=21_846).contains(share))); // of 65,537 slots
//! let changed = disruption(&before, &after).expect("one size").changed();
//! assert!((21_845..24_000).contains(&changed), "those of b3, and few others: {changed}");
//! # Ok::<_, maglev_hash::BuildError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod disruption;
mod error;
mod permutation;
mod populate;
mod prime;
mod table;
mod turns;

#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::fmt;

pub use disruption::{Disruption, SizesDiffer, disruption};
pub use error::BuildError;
pub use table::{Entry, Table};

use permutation::Keys;
use populate::{Walk, endgame_at, populate};
use table::Entries;
use turns::Turns;

/// Slots of a table unless the caller says otherwise: the paper's small table, prime.
pub const DEFAULT_SIZE: u32 = 65_537;

/// Most slots a table may have. The largest prime below it is 16,777,213.
pub const MAX_SIZE: u32 = 1 << 24;

/// Slots a backend below which shares are coarse: one slot more or less is then over 1 %.
pub const SLOTS_PER_BACKEND: u32 = 100;

/// Version of the table algorithm: changes whenever the same input would give another table.
pub const ALGORITHM_VERSION: u32 = 1;

/// The secret from which both hash functions of a name get their keys. Equal on all machines of a cluster.
#[derive(Clone, Copy)]
pub struct Seed([u8; 16]);

impl Seed {
    /// Takes 16 bytes, which should be random and unknown to clients.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(secret)")
    }
}

/// One backend of the set: its identity and how often it takes its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend<'a> {
    /// Identity, and the only thing that decides the backend's preferences. Any bytes.
    pub name: &'a [u8],
    /// Share relative to the other weights: 2, 2, 2 builds the slots of 1, 1, 1. 0: a rank but no slots.
    pub weight: u32,
}

/// What a table depends on beside its backends, and how strict to be: [`Options::new`], and what else is wanted set.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Slots of the table: a prime, at most [`MAX_SIZE`].
    pub size: u32,
    /// Equal across the cluster, or its machines build different tables.
    pub seed: Seed,
    /// Build even with fewer than [`SLOTS_PER_BACKEND`] slots for each backend.
    pub allow_coarse: bool,
}

impl Options {
    /// [`DEFAULT_SIZE`] slots, coarse tables refused.
    #[must_use]
    pub const fn new(seed: Seed) -> Self {
        Self { size: DEFAULT_SIZE, seed, allow_coarse: false }
    }
}

/// Builds the table that maps a flow hash to a backend.
///
/// The order of `backends` does not matter. Each share is its exact proportion of the table, rounded down or up to
/// a whole slot; so a weight worth less than a slot may get none. Only the ratios of the weights count.
///
/// ```
/// use maglev_hash::{Backend, Options, Seed, build};
///
/// let backends = [Backend { name: b"b2", weight: 1 }, Backend { name: b"b1", weight: 3 }];
/// let table = build(&backends, &Options::new(Seed::new([7; 16])))?;
/// assert_eq!(table.shares(), [49_153, 16_384]); // by rank: b1, b2
/// assert!(table.lookup(0x0123_4567_89ab_cdef) < 2);
/// # Ok::<(), maglev_hash::BuildError>(())
/// ```
///
/// # Errors
/// [`BuildError`]. The limits count every backend given, weight 0 included, so that a weight that returns from 0
/// cannot make a good set an error.
/// # Cost
/// Expected `O(M log M)` for `M` slots, less at the end, where free slots are searched instead of preferences; with
/// many distinct weights `O(M log N)` more. Control plane only. Memory: 2 bytes a slot (4 above 65,535 backends), one
/// bit a slot and 16 bytes a backend while building. `cargo bench -p sluicegate-benches --bench maglev`.
/// # Source
/// Eisenbud et al., *Maglev*, NSDI 2016, §3.4 and its pseudocode 1. The paper leaves weights open; `turns` says how
/// they alter the frequency of turns.
pub fn build(backends: &[Backend<'_>], options: &Options) -> Result<Table, BuildError> {
    check(backends, options)?;
    let order = name_order(backends)?;
    let ranked: Vec<Backend<'_>> = order.iter().map(|&input| backends[input]).collect();
    let (turns, seats) = Turns::new(ranked.iter().map(|backend| backend.weight), options.size);
    let keys = Keys::derive(&options.seed);
    let walk = |rank: usize| keys.offset_and_skip(ranked[rank].name, options.size);
    let entries = match u16::try_from(ranked.len()) {
        Ok(count) => {
            let ranks: Vec<u16> = (0..count).collect();
            Entries::Narrow(fill(&ranks, &seats, turns, options.size, walk))
        }
        Err(_) => {
            let ranks: Vec<u32> = (0..).take(ranked.len()).collect();
            Entries::Wide(fill(&ranks, &seats, turns, options.size, walk))
        }
    };
    Ok(Table::new(options.size, entries, &ranked))
}

/// Everything that can be refused without looking at names.
fn check(backends: &[Backend<'_>], options: &Options) -> Result<(), BuildError> {
    let (size, count) = (options.size, backends.len());
    if size > MAX_SIZE {
        return Err(BuildError::SizeTooLarge { size, max: MAX_SIZE });
    }
    if !prime::is_prime(size) {
        return Err(BuildError::SizeNotPrime { size });
    }
    if backends.iter().all(|backend| backend.weight == 0) {
        return Err(BuildError::NoBackends);
    }
    if count > size as usize {
        return Err(BuildError::MoreBackendsThanSlots { size, backends: count });
    }
    if !options.allow_coarse && count > (size / SLOTS_PER_BACKEND) as usize {
        return Err(BuildError::TableTooSmall { size, backends: count });
    }
    Ok(())
}

/// Indices of `backends` in the order of their names: rank to place in the input.
fn name_order(backends: &[Backend<'_>]) -> Result<Vec<usize>, BuildError> {
    let mut order: Vec<usize> = (0..backends.len()).collect();
    order.sort_unstable_by_key(|&input| (backends[input].name, input));
    for pair in order.windows(2) {
        if backends[pair[0]].name == backends[pair[1]].name {
            return Err(BuildError::DuplicateName { first: pair[0], second: pair[1] });
        }
    }
    Ok(order)
}

/// Lets the backends of `seats` (ranks, in the order of `turns`) take their slots.
fn fill<E: Copy + Default>(
    ranks: &[E],
    seats: &[usize],
    turns: Turns,
    size: u32,
    offset_and_skip: impl Fn(usize) -> (u32, u32),
) -> Vec<E> {
    let walk = |&rank: &usize| {
        let (next, skip) = offset_and_skip(rank);
        Walk { next, skip, rank: ranks[rank] }
    };
    let mut walks: Vec<Walk<E>> = seats.iter().map(walk).collect();
    populate(size, &mut walks, turns, endgame_at(size))
}

/// The example of the README is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
