//! Why a set of backends cannot become a table.
//!
//! Out: [`BuildError`]. Its messages say what was found and what is allowed; names stay with the caller, who gets
//! indices into what it gave.

use core::fmt;

use crate::SLOTS_PER_BACKEND;

/// Why a set of backends cannot become a lookup table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// There is nothing to send traffic to: no backend at all, or none with a weight.
    NoBackends,
    /// The size is not prime, so a backend's preferences would miss slots.
    SizeNotPrime {
        /// Slots asked for.
        size: u32,
    },
    /// The size is above [`MAX_SIZE`](crate::MAX_SIZE).
    SizeTooLarge {
        /// Slots asked for.
        size: u32,
        /// Most slots allowed.
        max: u32,
    },
    /// Fewer than [`SLOTS_PER_BACKEND`] slots a backend, and the caller did not allow a coarse table.
    TableTooSmall {
        /// Slots asked for.
        size: u32,
        /// Backends given, weight 0 included.
        backends: usize,
    },
    /// Not even one slot for each backend.
    MoreBackendsThanSlots {
        /// Slots asked for.
        size: u32,
        /// Backends given, weight 0 included.
        backends: usize,
    },
    /// Two backends with one name: they would be one backend.
    DuplicateName {
        /// Index of the one in the slice given.
        first: usize,
        /// Index of the other, greater than `first`.
        second: usize,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoBackends => f.write_str("no backend with a weight above 0"),
            Self::SizeNotPrime { size } => write!(f, "table size {size} is not prime"),
            Self::SizeTooLarge { size, max } => write!(f, "table size {size} is above {max}"),
            Self::TableTooSmall { size, backends } => {
                write!(
                    f,
                    "table size {size} is below {SLOTS_PER_BACKEND} slots for each of {backends} backends"
                )
            }
            Self::MoreBackendsThanSlots { size, backends } => {
                write!(f, "table size {size} is below one slot for each of {backends} backends")
            }
            Self::DuplicateName { first, second } => {
                write!(f, "backends {first} and {second} (counted from 0) have the same name")
            }
        }
    }
}

impl core::error::Error for BuildError {}
