//! What was written, and whether what is read may be so.
//!
//! In: requests as they leave, answers as they come. Out: a [`Finding`] each. Every value has a version, counted by key: a read must
//! give one that was written, and none older than a write that was answered before the read was sent; from a cache, than one that
//! was answered a lease before.
//! Where writes of a key overlap, any of them may be the last. A write without an answer may have been, or not.

use std::time::{Duration, Instant};

use crate::keyed::protocol::{Answer, name, version_of};

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) key: u32,
    pub(crate) verb: Verb,
    pub(crate) sent: Instant,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Get {
        /// No older version was there when the request was sent ...
        least: u32,
        /// ... which is known since then.
        since: Instant,
    },
    Set {
        version: u32,
    },
}

/// What an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Right,
    /// An older value than the last, within its lease.
    Old,
    /// A key that was stored is not there.
    Missed,
    /// Anything else.
    Wrong,
}

/// All keys.
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
    /// The first of the writes that are on their way together.
    first: u32,
    open: u32,
    /// One of these had no answer.
    is_vague: bool,
}

impl Ledger {
    /// Of `keys` keys whose values, of so many bytes, have this version everywhere. `lease` is zero where nothing is cached.
    pub(crate) fn new(keys: u32, version: u32, value_bytes: usize, lease: Duration) -> Self {
        let since = Instant::now();
        let entry =
            Entry { newest: version, least: version, since, first: version, open: 0, is_vague: false };
        Self { keys: vec![entry; keys as usize], value_bytes, lease }
    }

    /// A read that leaves now.
    pub(crate) fn get(&self, key: u32, now: Instant) -> Asked {
        let Entry { least, since, .. } = self.keys[key as usize];
        Asked { key, verb: Verb::Get { least, since }, sent: now }
    }

    /// A write that leaves now, of the next version.
    pub(crate) fn set(&mut self, key: u32, now: Instant) -> Asked {
        let entry = &mut self.keys[key as usize];
        entry.newest += 1;
        if entry.open == 0 {
            (entry.first, entry.is_vague) = (entry.newest, false);
        }
        entry.open += 1;
        Asked { key, verb: Verb::Set { version: entry.newest }, sent: now }
    }

    /// Judges an answer that came now.
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

    /// A request that nobody answers any more.
    pub(crate) fn lost(&mut self, asked: &Asked) {
        if matches!(asked.verb, Verb::Set { .. }) {
            self.written(asked.key, None);
        }
    }

    /// The newest version of any key.
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

    /// How a read of key 3 is judged that gets a version of a key's value.
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
    fn a_read_gives_what_was_written_and_nothing_older_than_what_was_answered() {
        let (mut ledger, now) = (Ledger::new(9, 5, BYTES, Duration::ZERO), Instant::now());
        let before = ledger.get(3, now);
        let findings = |ledger: &mut Ledger, asked: &Asked| {
            [4, 5, 6, 7].map(|version| read(ledger, asked, 3, version) == Finding::Right)
        };
        assert_eq!(findings(&mut ledger, &before), [false, true, false, false]);
        let set = ledger.set(3, now);
        assert_eq!(findings(&mut ledger, &before), [false, true, true, false], "on its way");
        stored(&mut ledger, &set, now);
        assert_eq!(findings(&mut ledger, &before), [false, true, true, false], "sent before the answer");
        let after = ledger.get(3, now);
        assert_eq!(findings(&mut ledger, &after), [false, false, true, false]);
        assert_eq!(read(&mut ledger, &after, 4, 6), Finding::Wrong, "another key's value");
        assert_eq!(ledger.judge(&after, Answer::Missing, now), Finding::Missed);
        assert_eq!(ledger.judge(&after, Answer::Stored, now), Finding::Wrong);
        assert_eq!(ledger.judge(&after, Answer::Other(b"ERROR"), now), Finding::Wrong);
        assert_eq!(ledger.newest(), 6);
    }

    #[test]
    fn of_writes_that_overlap_any_may_be_the_last() {
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
    fn a_write_without_an_answer_may_have_been_or_not() {
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
    fn a_copy_may_be_old_for_its_lease_and_no_longer() {
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
