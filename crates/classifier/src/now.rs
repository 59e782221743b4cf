//! Time as the data plane has it: one reading of a monotonic clock a batch.

/// A moment on a monotonic clock, in nanoseconds since an origin of the caller's choice. Read once a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now(u64);

impl Now {
    /// From nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The coarse tick of the connection table.
    #[must_use]
    pub const fn tick(self) -> conntrack::Tick {
        conntrack::Tick::from_millis(self.0 / 1_000_000)
    }
}
