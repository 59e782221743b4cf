//! What a table is built from, and why it may be refused.
//!
//! In: bounds and a lifetime. Out: checked values, or the first problem as a [`ConfigError`].
//! Not here: the text form of durations (the control plane's), whether the frame pool can spare what is held.

use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

use crate::Chains;
use crate::buffer::Buffer;
use crate::datagram::Datagram;
use crate::insertion_order::InsertionOrder;
use crate::sources::Sources;

/// Bounds of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Datagrams whose decision is known; 1 to 2^24, default 16,384.
    ///
    /// Those that wait for their first fragment come on top: at most `buffered`, for which there is room besides.
    pub datagrams: usize,
    /// Frames held in all; 1 to 2^20, default 1,024. Each keeps a frame from the driver's pool.
    pub buffered: usize,
    /// Frames held for one datagram; 1 to 256 and at most `buffered`, default 64: 64 KiB in pieces of 1,500 bytes
    /// have 45.
    pub per_datagram: usize,
    /// Frames held for one source; 1 to `buffered`, default 128.
    pub per_source: usize,
    /// From the first sight of any piece of a datagram to its end; 100 ms to 60 s in milliseconds, default 2 s.
    ///
    /// Short, because a fast sender uses its 65,536 identifications of IPv4 again within seconds (RFC 4963 §2), and
    /// the next datagram of that name would be taken for a conflict. Nothing is reassembled here, so the
    /// destination's own timeout may be longer.
    pub lifetime: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            datagrams: 16_384,
            buffered: 1_024,
            per_datagram: 64,
            per_source: 128,
            lifetime: Duration::from_secs(2),
        }
    }
}

impl Config {
    /// Checks every value against its range.
    ///
    /// # Errors
    /// The first value out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let rows = [
            ("datagrams", self.datagrams, DATAGRAMS),
            ("buffered", self.buffered, BUFFERED),
            ("per_datagram", self.per_datagram, 1..=self.buffered.min(PER_DATAGRAM)),
            ("per_source", self.per_source, 1..=self.buffered),
        ];
        for (name, found, allowed) in rows {
            if !allowed.contains(&found) {
                let (min, max) = allowed.into_inner();
                return Err(ConfigError::Count { name, found, min, max });
            }
        }
        if !LIFETIME.contains(&self.lifetime) {
            return Err(ConfigError::Lifetime(self.lifetime));
        }
        Ok(())
    }

    /// Bytes that a table with decisions of type `D` takes, all of them in [`crate::FragmentTable::new`]: about 100
    /// and a decision for each datagram, about 50 and a decision for each frame held. Meaningful for checked values.
    #[must_use]
    pub fn memory_bytes<D: Copy>(&self) -> usize {
        let places = self.places();
        Chains::bytes(places)
            + places * size_of::<Datagram<D>>()
            + 2 * InsertionOrder::bytes(places)
            + Buffer::<D>::bytes(self.buffered)
            + Sources::bytes(self.buffered)
    }

    /// Places for datagrams: known ones, and those that wait.
    pub(crate) fn places(&self) -> usize {
        self.datagrams + self.buffered
    }
}

/// Why a table cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A count is out of its range.
    Count {
        /// Field of [`Config`].
        name: &'static str,
        /// The count given.
        found: usize,
        /// The least allowed.
        min: usize,
        /// The most allowed.
        max: usize,
    },
    /// The lifetime given is out of its range.
    Lifetime(Duration),
    /// The machine has not that much memory, in bytes.
    Memory(usize),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count { name, found, min, max } => {
                write!(f, "{name} is {found}, {min} to {max} are allowed")
            }
            Self::Lifetime(found) => {
                let (min, max) = (LIFETIME.start(), LIFETIME.end());
                write!(f, "lifetime is {found:?}, {min:?} to {max:?} are allowed")
            }
            Self::Memory(bytes) => write!(f, "no memory for a fragment table of {bytes} bytes"),
        }
    }
}

impl core::error::Error for ConfigError {}

const DATAGRAMS: RangeInclusive<usize> = 1..=1 << 24;
const BUFFERED: RangeInclusive<usize> = 1..=1 << 20;
const PER_DATAGRAM: usize = 256; // so many steps are taken at once when a first fragment comes
const LIFETIME: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_refused_just_outside_its_range_and_accepted_at_its_ends() {
        let base = Config { buffered: 300, ..Config::default() };
        type Put = fn(&mut Config, usize);
        let rows: [(Put, &str, usize, usize); 3] = [
            (|c, n| c.datagrams = n, "datagrams", 1, 1 << 24),
            (|c, n| c.per_datagram = n, "per_datagram", 1, 256),
            (|c, n| c.per_source = n, "per_source", 1, 300),
        ];
        for (put, name, min, max) in rows {
            let check = |found| {
                let mut config = base;
                put(&mut config, found);
                config.check()
            };
            assert_eq!([check(min), check(max)], [Ok(()); 2]);
            for found in [min - 1, max + 1] {
                assert_eq!(check(found), Err(ConfigError::Count { name, found, min, max }));
            }
        }
        for (buffered, good) in
            [(0, false), (127, false), (128, true), (1 << 20, true), ((1 << 20) + 1, false)]
        {
            assert_eq!(Config { buffered, ..base }.check().is_ok(), good, "{buffered}");
        }
        for (millis, good) in [(99, false), (100, true), (60_000, true), (60_001, false)] {
            let lifetime = Duration::from_millis(millis);
            assert_eq!(Config { lifetime, ..base }.check().is_ok(), good, "{millis}");
        }
    }

    #[test]
    fn messages_say_what_was_found_and_what_is_allowed() {
        let error = Config { per_source: 2_000, ..Config::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "per_source is 2000, 1 to 1024 are allowed");
        let error = Config { lifetime: Duration::ZERO, ..Config::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "lifetime is 0ns, 100ms to 60s are allowed");
        let error = ConfigError::Memory(7);
        assert_eq!(error.to_string(), "no memory for a fragment table of 7 bytes");
    }
}
