//! Records all writes, and checks that each read returns a correct value.
//!
//! Each request is registered when it is sent. Checking a response returns a [`Finding`]. The
//! values of a key have version numbers. A read must return a written version. The returned version
//! must not be older than any write that was acknowledged before the read was sent. If a cache is
//! used, only writes that were acknowledged at least one lease earlier are considered. If writes of
//! a key overlap in time, any of these writes can be the last write. A write without a response is
//! treated as a write that might have taken effect.

use std::time::{Duration, Instant};

use crate::keyed::protocol::{Answer, name, version_of};

/// An outstanding request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) key: u32,
    pub(crate) verb: Verb,
    pub(crate) sent: Instant,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Get {
        /// The oldest version that is correct in the response.
        least: u32,
        /// The time at which the write of `least` was acknowledged.
        since: Instant,
    },
    Set {
        version: u32,
    },
}

/// The result of checking a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Right,
    /// The value is older than the latest value, but the cache lease allows this.
    Old,
    /// The server reported a miss for a key that was stored.
    Missed,
    /// Any other wrong response.
    Wrong,
}

/// The state of all keys.
pub(crate) struct Ledger {
    keys: Vec<Entry>,
    value_bytes: usize,
    lease: Duration,
}

#[derive(Clone, Copy)]
struct Entry {
    newest: u32,
    least: u32,
    since: Instant,
    /// The first version among the outstanding overlapping writes.
    first: u32,
    open: u32,
    /// `true` if one of the overlapping writes got no response.
    is_vague: bool,
}

impl Ledger {
    /// Creates the ledger for `keys` keys. Every server already stores `version` of each value, and
    /// values are `value_bytes` bytes long. The `lease` is zero if no cache is used.
    pub(crate) fn new(keys: u32, version: u32, value_bytes: usize, lease: Duration) -> Self {
        let since = Instant::now();
        let entry =
            Entry { newest: version, least: version, since, first: version, open: 0, is_vague: false };
        Self { keys: vec![entry; keys as usize], value_bytes, lease }
    }

    /// Registers a read at the time it is sent.
    pub(crate) fn get(&self, key: u32, now: Instant) -> Asked {
        let Entry { least, since, .. } = self.keys[key as usize];
        Asked { key, verb: Verb::Get { least, since }, sent: now }
    }

    /// Registers a write of the next version at the time it is sent.
    pub(crate) fn set(&mut self, key: u32, now: Instant) -> Asked {
        let entry = &mut self.keys[key as usize];
        entry.newest += 1;
        if entry.open == 0 {
            (entry.first, entry.is_vague) = (entry.newest, false);
        }
        entry.open += 1;
        Asked { key, verb: Verb::Set { version: entry.newest }, sent: now }
    }

    /// Checks a response that arrived at `now`.
    pub(crate) fn judge(&mut self, asked: &Asked, answer: Answer<'_>, now: Instant) -> Finding {
        match (asked.verb, answer) {
            (Verb::Set { .. }, Answer::Stored) => {
                self.written(asked.key, Some(now));
                Finding::Right
            }
            (Verb::Get { least, since }, Answer::Value { name: of, value }) => {
                let newest = self.keys[asked.key as usize].newest;
                let is_its_own = of == name(asked.key) && value.len() == self.value_bytes;
                match version_of(asked.key, value).filter(|_| is_its_own) {
                    Some(version) if version > newest => Finding::Wrong,
                    Some(version) if version >= least => Finding::Right,
                    Some(_) if asked.sent.saturating_duration_since(since) < self.lease => Finding::Old,
                    Some(_) | None => Finding::Wrong,
                }
            }
            (Verb::Get { .. }, Answer::Missing) => Finding::Missed,
            _ => {
                self.lost(asked);
                Finding::Wrong
            }
        }
    }

    /// Registers that no response to the request will arrive.
    pub(crate) fn lost(&mut self, asked: &Asked) {
        if matches!(asked.verb, Verb::Set { .. }) {
            self.written(asked.key, None);
        }
    }

    /// Returns the highest version over all keys.
    pub(crate) fn newest(&self) -> u32 {
        self.keys.iter().map(|entry| entry.newest).max().unwrap_or_default()
    }

    pub(crate) fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    fn written(&mut self, key: u32, answered: Option<Instant>) {
        let entry = &mut self.keys[key as usize];
        entry.open -= 1;
        entry.is_vague |= answered.is_none();
        if let Some(now) = answered.filter(|_| entry.open == 0 && !entry.is_vague) {
            (entry.least, entry.since) = (entry.first, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::protocol::{parse, write_set};

    const BYTES: usize = 16;
    const LEASE: Duration = Duration::from_millis(10);

    /// Checks a read of key 3. The response contains the given version of the value of `key`, which
    /// may be a different key.
    fn read(ledger: &mut Ledger, asked: &Asked, key: u32, version: u32) -> Finding {
        let mut command = Vec::new();
        write_set(key, version, BYTES, &mut command);
        let line = command.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        let bytes = [b"VALUE key:00000003 0 16\r\n", &command[line..], b"END\r\n"].concat();
        let (answer, _) = parse(&bytes).unwrap();
        ledger.judge(asked, answer, asked.sent)
    }

    fn stored(ledger: &mut Ledger, asked: &Asked, now: Instant) {
        assert_eq!(ledger.judge(asked, Answer::Stored, now), Finding::Right);
    }

    #[test]
    fn read_returns_a_write_not_older_than_the_acknowledged() {
        let (mut ledger, now) = (Ledger::new(9, 5, BYTES, Duration::ZERO), Instant::now());
        let before = ledger.get(3, now);
        let findings = |ledger: &mut Ledger, asked: &Asked| {
            [4, 5, 6, 7].map(|version| read(ledger, asked, 3, version) == Finding::Right)
        };
        assert_eq!(findings(&mut ledger, &before), [false, true, false, false]);
        let set = ledger.set(3, now);
        assert_eq!(findings(&mut ledger, &before), [false, true, true, false], "the write is outstanding");
        stored(&mut ledger, &set, now);
        assert_eq!(
            findings(&mut ledger, &before),
            [false, true, true, false],
            "the read was sent before the response"
        );
        let after = ledger.get(3, now);
        assert_eq!(findings(&mut ledger, &after), [false, false, true, false]);
        assert_eq!(read(&mut ledger, &after, 4, 6), Finding::Wrong, "the value belongs to a different key");
        assert_eq!(ledger.judge(&after, Answer::Missing, now), Finding::Missed);
        assert_eq!(ledger.judge(&after, Answer::Stored, now), Finding::Wrong);
        assert_eq!(ledger.judge(&after, Answer::Other(b"ERROR"), now), Finding::Wrong);
        assert_eq!(ledger.newest(), 6);
    }

    #[test]
    fn any_of_overlapping_writes_may_be_the_last() {
        let (mut ledger, now) = (Ledger::new(9, 5, BYTES, Duration::ZERO), Instant::now());
        let [first, second] = [(); 2].map(|()| ledger.set(3, now));
        stored(&mut ledger, &second, now);
        let between = ledger.get(3, now);
        assert_eq!(read(&mut ledger, &between, 3, 5), Finding::Right);
        stored(&mut ledger, &first, now);
        let after = ledger.get(3, now);
        let right = [5, 6, 7].map(|version| read(&mut ledger, &after, 3, version) == Finding::Right);
        assert_eq!(right, [false, true, true]);
    }

    #[test]
    fn write_without_response_may_or_may_not_be_applied() {
        let (mut ledger, now) = (Ledger::new(9, 5, BYTES, Duration::ZERO), Instant::now());
        let [first, second] = [(); 2].map(|()| ledger.set(3, now));
        ledger.lost(&first);
        stored(&mut ledger, &second, now);
        let after = ledger.get(3, now);
        for version in [5, 6, 7] {
            assert_eq!(read(&mut ledger, &after, 3, version), Finding::Right, "{version}");
        }
        let third = ledger.set(3, now);
        stored(&mut ledger, &third, now);
        let after = ledger.get(3, now);
        assert_eq!(read(&mut ledger, &after, 3, 7), Finding::Wrong);
    }

    #[test]
    fn cached_value_may_be_old_for_its_lease_only() {
        let (mut ledger, now) = (Ledger::new(9, 5, BYTES, LEASE), Instant::now());
        let set = ledger.set(3, now);
        stored(&mut ledger, &set, now);
        let within = ledger.get(3, now + LEASE / 2);
        assert_eq!(read(&mut ledger, &within, 3, 5), Finding::Old);
        let later = ledger.get(3, now + LEASE);
        assert_eq!(read(&mut ledger, &later, 3, 5), Finding::Wrong);
        assert_eq!(read(&mut ledger, &later, 3, 6), Finding::Right);
    }
}
