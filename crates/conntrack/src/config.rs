//! What a table is built from, and why it may be refused.
//!
//! In: places and idle timeouts. Out: checked values, or the first problem as a [`ConfigError`].
//! Not here: the text form of durations (the control plane's).
//! Invariant: the longest timeout is far below the wrap of [`crate::Tick`].

use core::ops::RangeInclusive;
use core::time::Duration;

/// Size and idle timeouts of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Places for flows: 16 bytes each, rounded up to whole buckets of four; 8 to 2^32.
    ///
    /// At half load every flow finds a place in practice; plan for at most three quarters.
    pub capacity: usize,
    /// How long a silent flow is kept.
    pub timeouts: Timeouts,
}

impl Default for Config {
    /// A million places, the default timeouts.
    fn default() -> Self {
        Self { capacity: 1_000_000, timeouts: Timeouts::default() }
    }
}

impl Config {
    /// Checks every value against its range.
    ///
    /// # Errors
    /// The first value out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !CAPACITY.contains(&(self.capacity as u64)) {
            return Err(ConfigError::Capacity { found: self.capacity });
        }
        self.timeouts.check()
    }
}

/// Idle timeouts by state. A flow expires between its timeout and two ticks after it, never before, while half of the places are
/// free. Above that, with each sixteenth of the places that flows off probation take, 5/32 of every timeout go, until at 7/8 a
/// sixteenth is left; none falls below `new`, unless it is shorter by itself. So a flood of forged flows has to be kept up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A TCP flow that has not shown a packet after its SYN, and any flow on probation. 1 s to 2 min, default 10 s.
    pub new: Duration,
    /// A TCP flow in use that has proven itself by data in eight ticks; until then an eighth of this, though not less than `new`. 10 s to
    /// 24 h, default 15 min.
    pub established: Duration,
    /// A TCP flow after FIN or RST. 1 s to 10 min, default 10 s.
    pub closing: Duration,
    /// A flow of any other protocol, and at most this for TCP that began without a SYN, until it has shown three packets a tick apart,
    /// and for TCP that goes on after FIN or RST, until its second packet a tick later. 1 s to 24 h, default 60 s.
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
    /// Checks every timeout against its range.
    ///
    /// # Errors
    /// [`ConfigError::Timeout`] with the first one out of range.
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

    /// The longest of the four: a freed slot must not be reused before it has passed.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.new.max(self.established).max(self.closing).max(self.udp)
    }
}

/// Why a table cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Too few places for two buckets, or more than the layout can number.
    #[error("{found} places for flows, {} to {} are allowed", CAPACITY.start(), CAPACITY.end())]
    Capacity {
        /// Places asked for.
        found: usize,
    },
    /// An idle timeout is out of its range.
    #[error("timeout {name} is {found:?}, {min:?} to {max:?} are allowed")]
    Timeout {
        /// Field of [`Timeouts`].
        name: &'static str,
        /// The timeout given.
        found: Duration,
        /// The shortest allowed.
        min: Duration,
        /// The longest allowed.
        max: Duration,
    },
    /// The machine has not that much memory.
    #[error("no memory for a flow table of {bytes} bytes")]
    Memory {
        /// Bytes asked for.
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
    fn each_value_is_refused_just_outside_its_range_and_accepted_at_its_ends() {
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
    fn messages_say_what_was_found_and_what_is_allowed() {
        let timeouts = Timeouts { new: Duration::from_millis(500), ..Timeouts::default() };
        let error = Config { timeouts, ..Config::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "timeout new is 500ms, 1s to 120s are allowed");
        let error = Config { capacity: 3, ..Config::default() }.check().unwrap_err();
        assert_eq!(error.to_string(), "3 places for flows, 8 to 4294967296 are allowed");
    }
}
