//! The capacity and the idle timeouts of a table, with their allowed ranges.
//!
//! All allowed timeouts are far shorter than the wrap period of [`crate::Tick`]. The control plane
//! parses the timeouts from text and passes them as [`Duration`].

use core::ops::RangeInclusive;
use core::time::Duration;

/// The capacity and idle timeouts of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of entries, 8 to 2^32, rounded up to whole buckets of four. An entry takes 16
    /// bytes.
    ///
    /// As long as at most half of the entries are in use, practically every flow gets an entry.
    /// Choose the capacity so that at most three quarters of the entries are in use.
    pub capacity: usize,
    /// The idle timeouts of flows.
    pub timeouts: Timeouts,
}

impl Default for Config {
    /// Returns a capacity of one million flows with the default timeouts.
    fn default() -> Self {
        Self { capacity: 1_000_000, timeouts: Timeouts::default() }
    }
}

impl Config {
    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// Returns an error for the first value that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !CAPACITY.contains(&(self.capacity as u64)) {
            return Err(ConfigError::Capacity { found: self.capacity });
        }
        self.timeouts.check()
    }
}

/// The idle timeouts of the flow states.
///
/// While flows off probation use less than half of the entries, the timeouts have their configured
/// values. A flow then expires at its timeout or up to two ticks later. When flows off probation
/// use more than half of the entries, timeouts shrink, so that an attacker has to keep sending
/// packets to fill the table with forged flows. For each additional 1/16 of the entries in use,
/// every timeout shrinks by 5/32 of its configured value. When 7/8 of the entries are in use,
/// timeouts reach their minimum of 1/16 of the configured value. No timeout shrinks below the value
/// of `new`, and a timeout that is configured to be shorter than `new` does not shrink at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// The timeout of a TCP flow that has sent only SYN packets, and of every flow on probation.
    /// The range is 1 s to 2 min, and the default is 10 s.
    pub new: Duration,
    /// The timeout of a TCP flow that has sent data in at least eight different ticks. The range is
    /// 10 s to 24 h, and the default is 15 min.
    ///
    /// The timeout of a TCP flow that has sent data in fewer than eight ticks is one eighth of this
    /// value, but at least `new`.
    pub established: Duration,
    /// The timeout of a TCP flow after FIN or RST. The range is 1 s to 10 min, and the default is
    /// 10 s.
    pub closing: Duration,
    /// The timeout for flows that use any other protocol. The range is 1 s to 24 h, and the default
    /// is 60 s.
    ///
    /// Some TCP flows also use this timeout, or `established` if that is shorter:
    /// - A flow whose first packet was not a SYN, until it has sent three packets in different
    ///   ticks.
    /// - A flow that continues after FIN or RST, until its second packet in a later tick.
    pub udp: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            new: Duration::from_secs(10),
            established: Duration::from_secs(15 * 60),
            closing: Duration::from_secs(10),
            udp: Duration::from_secs(60),
        }
    }
}

impl Timeouts {
    /// Checks that every timeout is in its range.
    ///
    /// # Errors
    /// Returns [`ConfigError::Timeout`] for the first timeout that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let rows = [
            ("new", self.new, NEW),
            ("established", self.established, ESTABLISHED),
            ("closing", self.closing, CLOSING),
            ("udp", self.udp, UDP),
        ];
        for (name, found, allowed) in rows {
            if !allowed.contains(&found) {
                let (min, max) = allowed.into_inner();
                return Err(ConfigError::Timeout { name, found, min, max });
            }
        }
        Ok(())
    }

    /// Returns the longest of the four timeouts. A freed slot must not be reused until this time
    /// has passed, because flows may still refer to it.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.new.max(self.established).max(self.closing).max(self.udp)
    }
}

/// The reason why a table cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The capacity is less than two buckets or exceeds the limit of the memory layout.
    #[error("flow table capacity {found} is out of range, use {} to {}", CAPACITY.start(), CAPACITY.end())]
    Capacity {
        /// The requested number of entries.
        found: usize,
    },
    /// An idle timeout is out of its range.
    #[error("idle timeout `{name}` of {found:?} is out of range, use {min:?} to {max:?}")]
    Timeout {
        /// The name of the field of [`Timeouts`].
        name: &'static str,
        /// The configured timeout.
        found: Duration,
        /// The shortest allowed timeout.
        min: Duration,
        /// The longest allowed timeout.
        max: Duration,
    },
    /// The allocation of the table failed.
    #[error("cannot allocate {bytes} bytes for a flow table")]
    Memory {
        /// The requested size in bytes.
        bytes: usize,
    },
}

const CAPACITY: RangeInclusive<u64> = 8..=1 << 32;
const NEW: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(120);
const ESTABLISHED: RangeInclusive<Duration> = Duration::from_secs(10)..=DAY;
const CLOSING: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(600);
const UDP: RangeInclusive<Duration> = Duration::from_secs(1)..=DAY;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_check_accepts_limits_and_rejects_values_beyond() {
        let secs = Duration::from_secs;
        type Put = fn(&mut Timeouts, Duration);
        let set: [(Put, u64, u64); 4] = [
            (|t, d| t.new = d, 1, 120),
            (|t, d| t.established = d, 10, 86_400),
            (|t, d| t.closing = d, 1, 600),
            (|t, d| t.udp = d, 1, 86_400),
        ];
        for (put, min, max) in set {
            let check = |found| {
                let mut timeouts = Timeouts::default();
                put(&mut timeouts, found);
                timeouts.check().is_ok()
            };
            assert!(check(secs(min)) && check(secs(max)));
            assert!(
                !check(secs(min) - Duration::from_nanos(1)) && !check(secs(max) + Duration::from_nanos(1))
            );
        }
        for (capacity, good) in [(7, false), (8, true), (1 << 32, true), ((1 << 32) + 1, false)] {
            assert_eq!(Config { capacity, ..Config::default() }.check().is_ok(), good, "{capacity}");
        }
    }

    #[test]
    fn the_longest_timeout_is_the_maximum_of_the_four() {
        assert_eq!(Timeouts::default().longest(), Duration::from_secs(900));
        let udp = Duration::from_secs(1_000);
        assert_eq!(Timeouts { udp, ..Timeouts::default() }.longest(), udp);
    }

    #[test]
    fn config_error_message_names_value_and_range() {
        let timeouts = Timeouts { new: Duration::from_millis(500), ..Timeouts::default() };
        let error = Config { timeouts, ..Config::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "idle timeout `new` of 500ms is out of range, use 1s to 120s");
        let error = Config { capacity: 3, ..Config::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "flow table capacity 3 is out of range, use 8 to 4294967296");
    }
}
