//! Time in the data plane. A packet thread reads the monotonic clock once per batch.

/// A time in nanoseconds on a monotonic clock. The caller chooses the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now(u64);

impl Now {
    /// Creates a time from nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the number of nanoseconds since the origin.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Returns the time as a tick of the connection table, which has a coarser resolution.
    #[must_use]
    pub const fn tick(self) -> conntrack::Tick {
        conntrack::Tick::from_millis(self.0 / 1_000_000)
    }
}
