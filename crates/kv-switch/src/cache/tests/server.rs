//! A simulated server that answers fetches like memcached 1.6.18 and records the history of its
//! values.

use std::collections::HashMap;

/// The current values, and a history of all values with the time interval in which each was stored.
#[derive(Debug)]
pub(super) struct Server {
    items: HashMap<u8, Item>,
    cas: u64,
    /// The offset between the server's clock, which counts whole seconds, and the time of the
    /// simulation.
    phase: u64,
    had: HashMap<u8, Vec<Had>>,
    made: u64,
}

#[derive(Clone, Debug)]
struct Item {
    value: String,
    cas: u64,
    /// The time of expiry on the server's clock, in seconds.
    expires: Option<u64>,
}

#[derive(Clone, Debug)]
struct Had {
    from: u64,
    until: u64,
    value: String,
    cas: u64,
}

/// A change to one key or to all keys of the server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Set { seconds: Option<u64> },
    Incr,
    Touch { seconds: u64 },
    Delete,
    Flush,
    Restart,
}

const SECOND: u64 = super::SECOND;
/// Twice the longest lease under which versions are compared.
const TAKEN_FOR_UNCHANGED: u64 = SECOND / 5;

impl Server {
    pub(super) fn new(phase: u64) -> Self {
        Self { items: HashMap::new(), cas: 0, phase, had: HashMap::new(), made: 0 }
    }

    fn clock(&self, now: u64) -> u64 {
        (now + self.phase) / SECOND
    }

    fn live(&self, now: u64, key: u8) -> Option<&Item> {
        self.items.get(&key).filter(|item| item.expires.is_none_or(|at| at > self.clock(now)))
    }

    pub(super) fn change(&mut self, now: u64, key: u8, change: Change) {
        let clock = self.clock(now);
        let live = self.live(now, key).cloned();
        match (change, live) {
            (Change::Flush | Change::Restart, _) => {
                let keys: Vec<u8> = self.items.keys().copied().collect();
                keys.into_iter().for_each(|key| self.put(now, key, None));
                if matches!(change, Change::Restart) {
                    self.cas = 0;
                }
            }
            (Change::Set { seconds }, _) => self.write(now, key, seconds.map(|seconds| clock + seconds)),
            (Change::Incr, Some(item)) => self.write(now, key, item.expires),
            (Change::Touch { seconds }, Some(item)) => {
                self.put(now, key, Some(Item { expires: Some(clock + seconds), ..item }))
            }
            (Change::Delete, _) => self.put(now, key, None),
            (Change::Incr | Change::Touch { .. }, None) => {}
        }
    }

    /// Stores a value that no key has had before.
    fn write(&mut self, now: u64, key: u8, expires: Option<u64>) {
        (self.made, self.cas) = (self.made + 1, self.cas + 1);
        // After a restart, a key may reach its previous version again. Such repetitions are avoided
        // here, because docs/explanation/keyed-pools.md documents them as an exception.
        let had = self.had.get(&key).map_or(&[][..], Vec::as_slice);
        let lately = |had: &Had| now.saturating_sub(had.until) < TAKEN_FOR_UNCHANGED;
        while had.iter().any(|had| had.cas == self.cas && lately(had)) {
            self.cas += 1;
        }
        let (value, cas) = (format!("value {}", self.made), self.cas);
        self.put(now, key, Some(Item { value, cas, expires }));
    }

    fn put(&mut self, now: u64, key: u8, item: Option<Item>) {
        let had = self.had.entry(key).or_default();
        if let Some(last) = had.last_mut() {
            last.until = last.until.min(now);
        }
        match item {
            None => drop(self.items.remove(&key)),
            Some(item) => {
                let until = item.expires.map_or(u64::MAX, |at| at * SECOND - self.phase);
                had.push(Had { from: now, until, value: item.value.clone(), cas: item.cas });
                self.items.insert(key, item);
            }
        }
    }

    /// Returns `true` if a key had the given value at some time in the given interval.
    pub(super) fn had(&self, key: u8, value: &[u8], from: u64, to: u64) -> bool {
        let had = self.had.get(&key).map_or(&[][..], Vec::as_slice);
        had.iter().any(|had| had.value.as_bytes() == value && had.from <= to && had.until >= from)
    }

    /// Answers a fetch. Each key must be a single letter. Panics if the datagram is not a fetch.
    pub(super) fn answer(&self, now: u64, datagram: &[u8]) -> Vec<u8> {
        let line = str::from_utf8(&datagram[8..]).unwrap().strip_suffix("\r\n").unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let (key, nonce) = (words[1].as_bytes()[0], words.last().unwrap());
        let item = self.live(now, key);
        let has_value = words.contains(&"v");
        let said = match item {
            None => format!("EN k{} {nonce}\r\n", words[1]),
            Some(Item { value, cas, expires }) => {
                let ttl = expires.map_or("-1".to_owned(), |at| (at - self.clock(now)).to_string());
                let flags = format!("k{} t{ttl} c{cas}", words[1]);
                if has_value {
                    format!("VA {} {flags} f0 {nonce}\r\n{value}\r\n", value.len())
                } else {
                    format!("HD {flags} {nonce}\r\n")
                }
            }
        };
        [&datagram[..8], said.as_bytes()].concat()
    }
}
