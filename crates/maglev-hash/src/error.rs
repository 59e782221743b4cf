//! Why a set of backends cannot become a table.
//!
//! Out: [`BuildError`]. Its messages say what was found and what is allowed; names stay with the caller, who gets
//! indices into what it gave.

use crate::SLOTS_PER_BACKEND;

/// Why a set of backends cannot become a lookup table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There is nothing to send traffic to: no backend at all, or none with a weight.
    #[error("no backend with a weight above 0")]
    NoBackends,
    /// The size is not prime, so a backend's preferences would miss slots.
    #[error("table size {size} is not prime")]
    SizeNotPrime {
        /// Slots asked for.
        size: u32,
    },
    /// The size is above [`MAX_SIZE`](crate::MAX_SIZE).
    #[error("table size {size} is above {max}")]
    SizeTooLarge {
        /// Slots asked for.
        size: u32,
        /// Most slots allowed.
        max: u32,
    },
    /// Fewer than [`SLOTS_PER_BACKEND`] slots a backend, and the caller did not allow a coarse table.
    #[error("table size {size} is below {SLOTS_PER_BACKEND} slots for each of {backends} backends")]
    TableTooSmall {
        /// Slots asked for.
        size: u32,
        /// Backends given, weight 0 included.
        backends: usize,
    },
    /// Not even one slot for each backend.
    #[error("table size {size} is below one slot for each of {backends} backends")]
    MoreBackendsThanSlots {
        /// Slots asked for.
        size: u32,
        /// Backends given, weight 0 included.
        backends: usize,
    },
    /// Two backends with one name: they would be one backend.
    #[error("backends {first} and {second} (counted from 0) have the same name")]
    DuplicateName {
        /// Index of the one in the slice given.
        first: usize,
        /// Index of the other, greater than `first`.
        second: usize,
    },
}
