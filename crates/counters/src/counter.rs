//! A number with one writer and any number of readers.
//!
//! Not here: what it counts. A write is a relaxed load and a relaxed store: no locked instruction on the packet path.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only its owner writes.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning thread may call it: two writers would lose counts.
    #[inline]
    pub fn add(&self, n: u64) {
        // Relaxed: nothing is published by a counter, and there is no second writer.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets it, for what is a level and not a count.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// What it says now.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Declares a struct with a [`Counter`] for each line of a group, and with further fields of its own; [`values`](#) are read in
/// the group's order. Call it through a group's macro.
#[macro_export]
macro_rules! counters {
    (
        [$(#[$meta:meta])* $visible:vis struct $name:ident $({ $($further:tt)* })?]
        $(#[doc = $help:literal] $field:ident: $kind:ident $unit:literal $metric:literal [$($label:literal = $value:literal)?];)+
    ) => {
        $(#[$meta])*
        $visible struct $name {
            $(#[doc = $help] pub $field: $crate::Counter,)+
            $($($further)*)?
        }

        impl $name {
            /// What they say now, in the order of the table.
            #[must_use]
            $visible fn values(&self) -> [u64; [$(stringify!($field)),+].len()] {
                [$(self.$field.read()),+]
            }
        }
    };
}

/// Declares a struct with a plain number for each line of a group, and with further fields of its own, which stay as they are
/// in `from_values` (their default) and in `add`. Call it through a group's macro.
#[macro_export]
macro_rules! stats {
    (
        [$(#[$meta:meta])* $visible:vis struct $name:ident $({ $($further:tt)* })?]
        $(#[doc = $help:literal] $field:ident: $kind:ident $unit:literal $metric:literal [$($label:literal = $value:literal)?];)+
    ) => {
        $(#[$meta])*
        $visible struct $name {
            $(#[doc = $help] pub $field: u64,)+
            $($($further)*)?
        }

        impl $name {
            /// Of values in the order of the table.
            #[must_use]
            #[allow(clippy::needless_update, reason = "some groups have further fields")]
            $visible fn from_values([$($field),+]: [u64; [$(stringify!($field)),+].len()]) -> Self {
                Self { $($field,)+ ..Self::default() }
            }

            /// Its values, in the order of the table.
            #[must_use]
            $visible fn values(&self) -> [u64; [$(stringify!($field)),+].len()] {
                [$(self.$field),+]
            }

            /// Adds the values of another.
            $visible fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
}
