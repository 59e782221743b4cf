//! A counter with one writer and any number of readers. An update is a relaxed load and a relaxed
//! store. As a result, the packet path needs no atomic read-modify-write instruction.

use std::sync::atomic::{AtomicU64, Ordering};

/// A 64-bit counter or gauge that only its owning thread may change.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning thread may call this method, because a second writer would cause
    /// lost updates.
    #[inline]
    pub fn add(&self, n: u64) {
        // Relaxed ordering suffices, because no other data is published with the counter, and the
        // counter has only one writer.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the value of a gauge. Only the owning thread may call this method.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Returns the current value.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Declares a struct with one [`Counter`] for each entry of a group. The braces after the struct
/// name can contain further fields. The generated method `values` returns the counters in the same
/// order as the entries of the group. Call this macro through the macro of a group, as the example
/// of the crate shows.
#[macro_export]
macro_rules! counters {
    (
        [$(#[$meta:meta])* $visible:vis struct $name:ident $({ $($further:tt)* })?]
        $($(#[doc = $help:literal])+ $field:ident: $kind:ident $unit:literal $metric:literal [$($label:literal = $value:literal)?];)+
    ) => {
        $(#[$meta])*
        $visible struct $name {
            $($(#[doc = $help])+ pub $field: $crate::Counter,)+
            $($($further)*)?
        }

        impl $name {
            /// Returns the current values in the same order as the entries of the group.
            #[must_use]
            $visible fn values(&self) -> [u64; [$(stringify!($field)),+].len()] {
                [$(self.$field.read()),+]
            }
        }
    };
}

/// Declares a struct with one `u64` for each entry of a group. The braces after the struct name can
/// contain further fields. `from_values` sets these additional fields to their defaults, and `add`
/// does not change them. Call this macro through the macro of a group, as the example of the crate
/// shows.
#[macro_export]
macro_rules! stats {
    (
        [$(#[$meta:meta])* $visible:vis struct $name:ident $({ $($further:tt)* })?]
        $($(#[doc = $help:literal])+ $field:ident: $kind:ident $unit:literal $metric:literal [$($label:literal = $value:literal)?];)+
    ) => {
        $(#[$meta])*
        $visible struct $name {
            $($(#[doc = $help])+ pub $field: u64,)+
            $($($further)*)?
        }

        impl $name {
            /// Creates the struct from values that are in the same order as the entries of the
            /// group.
            #[must_use]
            #[allow(clippy::needless_update, reason = "some groups have further fields")]
            $visible fn from_values([$($field),+]: [u64; [$(stringify!($field)),+].len()]) -> Self {
                Self { $($field,)+ ..Self::default() }
            }

            /// Returns the values in the same order as the entries of the group.
            #[must_use]
            $visible fn values(&self) -> [u64; [$(stringify!($field)),+].len()] {
                [$(self.$field),+]
            }

            /// Adds each value of `other` to the value of the same field.
            $visible fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
}
