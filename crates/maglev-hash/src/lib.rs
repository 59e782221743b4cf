//! Implements Maglev consistent hashing, in which a lookup table maps flow hashes to backends.
//!
//! [`build`] creates a [`Table`] from a set of backend names with weights, a size and a seed. A
//! lookup returns the [`Rank`] of a backend, and the table returns the backend of a rank.
//! [`disruption`] counts the slots that differ between two tables.
//!
//! Invariant: from the same backends, size and seed, every machine builds an identical table,
//! regardless of the order of the input. The crate is `no_std` with `alloc`, and does not use
//! clocks, I/O or floating-point numbers.
//!
//! Reference: Eisenbud et al., *Maglev*, NSDI 2016, §3.4 and §5.3.
//!
//! ```
//! use maglev_hash::{Backend, Options, Seed, build, disruption};
//!
//! let backends = [b"b1", b"b2", b"b3"].map(|name| Backend { name, weight: 1 });
//! let options = Options::new(Seed::new(*b"secret, 16 bytes"));
//! let [before, after] = [build(&backends, &options)?, build(&backends[..2], &options)?];
//! assert!(["b1", "b2"].map(str::as_bytes).contains(&after.name(after.lookup(17))));
//! // Each of the three backends has a third of the 65,537 slots.
//! assert!(before.shares().all(|(_, slots)| (21_845..=21_846).contains(&slots)));
//! let changed = disruption(&before, &after).expect("one size").changed();
//! assert!((21_845..24_000).contains(&changed), "the slots of b3 and a few others: {changed}");
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
pub use table::{Entry, Rank, Table};

use permutation::Keys;
use populate::{Walk, endgame_at, populate};
use table::Entries;
use turns::Turns;

/// The default number of slots, which is a prime number. The Maglev paper uses this number for its
/// small table.
pub const DEFAULT_SIZE: u32 = 65_537;

/// The maximum number of slots. The largest prime below this limit is 16,777,213.
pub const MAX_SIZE: u32 = 1 << 24;

/// The minimum number of table slots per backend, unless [`Options::allow_coarse`] is set. With
/// fewer slots per backend, the shares of the backends would be uneven, because a single slot would
/// be more than 1 % of a backend's share.
pub const SLOTS_PER_BACKEND: u32 = 100;

/// The version of the table algorithm. The version changes whenever the same input would produce a
/// different table.
pub const ALGORITHM_VERSION: u32 = 1;

/// The secret from which the keys of both hash functions are derived. All machines of a cluster
/// must use the same seed.
#[derive(Clone, Copy)]
pub struct Seed([u8; 16]);

impl Seed {
    /// Creates a seed from 16 bytes. The bytes should be random and unknown to clients.
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

/// A backend with its name and weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend<'a> {
    /// The name that identifies the backend. The name may contain any bytes. The preferences of the
    /// backend depend only on its name.
    pub name: &'a [u8],
    /// The weight relative to the weights of the other backends. The weights 2, 2, 2 result in the
    /// same table as 1, 1, 1. A backend with weight 0 has a rank but no slots.
    pub weight: u32,
}

/// The table parameters, apart from the backends. [`Options::new`] returns the defaults, which the
/// caller can change.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The number of slots, which must be a prime of at most [`MAX_SIZE`].
    pub size: u32,
    /// The seed. Machines with different seeds build different tables, so all machines of a cluster
    /// must use the same seed.
    pub seed: Seed,
    /// `true` to build a table with fewer than [`SLOTS_PER_BACKEND`] slots per backend.
    pub allow_coarse: bool,
}

impl Options {
    /// Returns the default options, with [`DEFAULT_SIZE`] slots and with `allow_coarse` set to
    /// `false`.
    #[must_use]
    pub const fn new(seed: Seed) -> Self {
        Self { size: DEFAULT_SIZE, seed, allow_coarse: false }
    }
}

/// Builds the table that maps a flow hash to a backend.
///
/// The order of `backends` has no effect. Only the ratios between the weights matter. Each backend
/// gets its exact proportion of the slots, rounded down or up to a whole slot. A backend whose
/// proportion is less than one slot may get no slot.
/// ```
/// use maglev_hash::{Backend, Options, Seed, build};
///
/// let backends = [Backend { name: b"b2", weight: 1 }, Backend { name: b"b1", weight: 3 }];
/// let table = build(&backends, &Options::new(Seed::new([7; 16])))?;
/// assert!(table.shares().eq([(backends[1], 49_153), (backends[0], 16_384)])); // Sorted by name.
/// let backend = table.backend(table.lookup(0x0123_4567_89ab_cdef));
/// assert!(backends.contains(&backend));
/// # Ok::<(), maglev_hash::BuildError>(())
/// ```
///
/// # Errors
/// Returns [`BuildError`] if the input is invalid. Backends with weight 0 also count toward the
/// limits, so that a later increase of a weight from 0 cannot cause an error.
///
/// # Cost
/// The expected time is `O(M log M)` for `M` slots. The last slots are found by searching the free
/// slots, which is faster than stepping through the preferences of a backend. Many distinct weights
/// add `O(M log N)` for `N` backends. The function is intended for the control plane.
///
/// The table takes 2 bytes per slot, or 4 with more than 65,535 backends. During the build, each
/// slot takes an additional bit, and each backend takes 16 bytes. `cargo bench -p
/// sluicegate-benches --bench maglev` measures the time.
///
/// # References
/// Eisenbud et al., *Maglev*, NSDI 2016, §3.4 and its pseudocode 1. The paper does not specify
/// weights. The module `turns` describes how the weight of a backend determines its number of
/// turns.
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

/// Checks everything that does not depend on names.
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

/// Returns the indexes of `backends`, sorted by name.
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

/// Assigns each slot to a backend. `seats` contains the ranks of the backends. The module `turns`
/// determines the order in which backends take slots.
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

/// Compiles the example in the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
