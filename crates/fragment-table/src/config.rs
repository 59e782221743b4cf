//! The limits of a fragment table and the lifetime of its datagrams, with the allowed ranges.
//!
//! The control plane parses durations from text. The control plane also checks that the frame pool
//! is large enough for the held frames.

use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

use crate::Chains;
use crate::buffer::Buffer;
use crate::datagram::Datagram;
use crate::insertion_order::InsertionOrder;
use crate::sources::Sources;

/// The limits of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The maximum number of datagrams with a decision, 1 to 2^24, default 16,384.
    ///
    /// The table has additional room for `buffered` datagrams that wait for their first fragment.
    pub datagrams: usize,
    /// The maximum number of held frames, 1 to 2^20, default 1,024. Each held frame occupies a
    /// frame in the frame pool of the driver.
    pub buffered: usize,
    /// The maximum number of held frames for one datagram, 1 to 256 and at most `buffered`, default
    /// 64. For comparison, a datagram of 64 KiB has 45 fragments of 1,500 bytes.
    pub per_datagram: usize,
    /// The maximum number of held frames from one source, 1 to `buffered`, default 128.
    pub per_source: usize,
    /// The time after which a datagram expires, counted from the arrival of its first packet. The
    /// range is 100 ms to 60 s in whole milliseconds, and the default is 2 s.
    ///
    /// The default is short, because a fast sender reuses the 65,536 IPv4 identifications within
    /// seconds (RFC 4963 §2), and the table would treat the next datagram with the same
    /// identification as a conflict. The timeout may be shorter than the reassembly timeout of the
    /// destination, because the table does not reassemble datagrams.
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
    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// Returns an error for the first value that is out of range.
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

    /// Returns the number of bytes that [`crate::FragmentTable::new`] allocates for a table with
    /// decisions of type `D`. Each datagram takes about 100 bytes plus the size of a decision, and
    /// each held frame takes about 50 bytes plus the size of a decision. The configuration must
    /// have passed [`Config::check`].
    #[must_use]
    pub fn memory_bytes<D: Copy>(&self) -> usize {
        let places = self.places();
        Chains::bytes(places)
            + places * size_of::<Datagram<D>>()
            + 2 * InsertionOrder::bytes(places)
            + Buffer::<D>::bytes(self.buffered)
            + Sources::bytes(self.buffered)
    }

    /// Returns the maximum number of datagrams in the table, with and without a decision.
    pub(crate) fn places(&self) -> usize {
        self.datagrams + self.buffered
    }
}

/// The reason why a table cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A count is out of its range.
    Count {
        /// The name of the field of [`Config`].
        name: &'static str,
        /// The configured count.
        found: usize,
        /// The smallest allowed count.
        min: usize,
        /// The largest allowed count.
        max: usize,
    },
    /// The configured lifetime is out of its range.
    Lifetime(Duration),
    /// The table could not allocate this number of bytes.
    Memory(usize),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count { name, found, min, max } => {
                write!(f, "`{name}` of {found} is out of range, use {min} to {max}")
            }
            Self::Lifetime(found) => {
                let (min, max) = (LIFETIME.start(), LIFETIME.end());
                write!(f, "`lifetime` of {found:?} is out of range, use {min:?} to {max:?}")
            }
            Self::Memory(bytes) => write!(f, "cannot allocate {bytes} bytes for a fragment table"),
        }
    }
}

impl core::error::Error for ConfigError {}

const DATAGRAMS: RangeInclusive<usize> = 1..=1 << 24;
const BUFFERED: RangeInclusive<usize> = 1..=1 << 20;
const PER_DATAGRAM: usize = 256; // This limit bounds the work that one first fragment can cause.
const LIFETIME: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_check_accepts_limits_and_rejects_values_beyond() {
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
    fn config_error_message_names_value_and_range() {
        let error = Config { per_source: 2_000, ..Config::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "`per_source` of 2000 is out of range, use 1 to 1024");
        let error = Config { lifetime: Duration::ZERO, ..Config::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "`lifetime` of 0ns is out of range, use 100ms to 60s");
        let error = ConfigError::Memory(7);
        assert_eq!(error.to_string(), "cannot allocate 7 bytes for a fragment table");
    }
}
