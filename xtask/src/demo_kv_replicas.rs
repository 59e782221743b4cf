//! Implements the part of the memcached demo that stores each key on two servers and kills one
//! server.
//!
//! Every value must still be readable from the other server.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::start_memcached;

use crate::demo_kv::{Found, KvStage, NEW, OLD, config, found, get, set, through};

/// Results for keys that are stored on two servers each.
#[derive(Debug, Default)]
pub(crate) struct ReplicaFigures {
    pub(crate) keys: usize,
    /// The number of keys that are stored on exactly two servers. The demo queries the servers
    /// directly.
    pub(crate) at_two: usize,
    /// The name of the server that was killed.
    pub(crate) server: String,
    pub(crate) owned: usize,
    /// The time in seconds from the kill until requests for all keys of the killed server were
    /// answered.
    pub(crate) seconds: f64,
    /// The number of keys whose correct value was read after the kill.
    pub(crate) read: usize,
    pub(crate) missed: usize,
    pub(crate) wrong: usize,
    /// The number of keys that were stored again after the kill and read back.
    pub(crate) stored: usize,
}

impl KvStage {
    /// Restarts the killed server, stores each key on two servers, and kills the same server again.
    pub(crate) fn replicated(&mut self) -> Result<ReplicaFigures> {
        let dead = self.servers.len() - 1;
        let host = self.stage.bed.backends[dead].clone();
        eprintln!(
            "restarting memcached on {}, storing {KEYS} keys on two servers each, killing it again",
            host.name
        );
        self.servers[dead] = start_memcached(&self.stage.bed, &host, &[])?;
        let config = config(&self.stage.bed, ", replicas = { count = 2 }");
        self.stage.balancer.reload(&self.stage.bed, &config)?;
        self.serving()?;
        let mut figures = ReplicaFigures { keys: KEYS, server: host.name, ..ReplicaFigures::default() };
        let owned = self.store_at_two(dead, &mut figures)?;
        self.kill_one_of_two(dead, &owned, &mut figures)?;
        Ok(figures)
    }

    /// Stores all keys. Returns the keys that the server `server` stores.
    fn store_at_two(&self, server: usize, figures: &mut ReplicaFigures) -> Result<Vec<usize>> {
        let (clients, mut owned) = (self.clients(), Vec::new());
        for key in 0..KEYS {
            let answer = through(&clients[key % 2], &set(key, OLD))?;
            ensure!(answer == b"STORED\r\n", "memcached did not store key {key}: {}", answer.escape_ascii());
            let holders = self.holders(key)?;
            figures.at_two += usize::from(holders.len() == 2);
            owned.extend(holders.contains(&server).then_some(key));
        }
        figures.owned = owned.len();
        Ok(owned)
    }

    fn kill_one_of_two(&mut self, dead: usize, owned: &[usize], figures: &mut ReplicaFigures) -> Result<()> {
        let clients = self.clients();
        let begin = Instant::now();
        self.servers[dead].kill();
        // The demo first reads the keys whose first replica was on the killed server, because some
        // clients had read these keys from that server.
        let others = (0..KEYS).filter(|key| !owned.contains(key));
        for (at, key) in owned.iter().copied().chain(others).enumerate() {
            let answer = through(&clients[key % 2], &get(key))?;
            match found(&answer, key, OLD) {
                Found::Last => figures.read += 1,
                Found::Nothing => figures.missed += 1,
                Found::Other => figures.wrong += 1,
            }
            if at + 1 == owned.len() {
                figures.seconds = begin.elapsed().as_secs_f64();
            }
        }
        for key in 0..KEYS {
            through(&clients[key % 2], &set(key, NEW))?;
            let answer = through(&clients[(key + 1) % 2], &get(key))?;
            figures.stored += usize::from(found(&answer, key, NEW) == Found::Last);
        }
        Ok(())
    }

    /// Returns the servers that have the first value of the key.
    fn holders(&self, key: usize) -> Result<Vec<usize>> {
        let mut holders = Vec::new();
        for server in 0..self.servers.len() {
            let answer = through(&self.beside(server), &get(key))?;
            holders.extend((found(&answer, key, OLD) == Found::Last).then_some(server));
        }
        Ok(holders)
    }
}

impl ReplicaFigures {
    /// Returns a description of each wrong figure.
    pub(crate) fn faults(&self) -> Vec<String> {
        let Self { keys, at_two, server, owned, read, missed, wrong, stored, .. } = self;
        let mut faults = Vec::new();
        let mut expect = |is_well: bool, fault: String| faults.extend((!is_well).then_some(fault));
        expect(*keys > 0 && at_two == keys, format!("replicas: {at_two} of {keys} keys were on two servers"));
        expect(*owned > 0, format!("replicas: {server} had no key"));
        expect(
            read == keys && missed + wrong == 0,
            format!("replicas: without {server}, {read} of {keys} keys read, {missed} missed, {wrong} wrong"),
        );
        expect(stored == keys, format!("replicas: {stored} of {keys} keys were stored again"));
        faults
    }

    pub(crate) fn words(&self) -> String {
        let Self { keys, at_two, server, owned, seconds, read, missed, wrong, stored } = self;
        format!(
            "{keys} keys with replicas; on two servers: {at_two}\n  \
             {server}, which has {owned} of them, was killed; all of these were answered within {seconds:.1} s\n  \
             {read} of {keys} keys returned their value, {missed} misses, {wrong} wrong values; {stored} stored again and found\n"
        )
    }

    pub(crate) fn json(&self) -> Value {
        let Self { keys, at_two, server, owned, seconds, read, missed, wrong, stored } = self;
        json!({
            "keys": keys, "at_two": at_two, "server": server, "owned": owned, "seconds": seconds, "read": read,
            "missed": missed, "wrong": wrong, "stored": stored,
        })
    }
}

const KEYS: usize = 120;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn good() -> ReplicaFigures {
        let counts = ReplicaFigures {
            keys: 120,
            at_two: 120,
            owned: 80,
            read: 120,
            stored: 120,
            ..ReplicaFigures::default()
        };
        ReplicaFigures { server: "b3".into(), seconds: 2.0, ..counts }
    }

    #[test]
    fn replica_faults_are_one_per_bad_figure() {
        assert_eq!(good().faults(), [""; 0]);
        type Change = fn(&mut ReplicaFigures);
        let changes: [(Change, &str); 6] = [
            (|f| f.at_two = 119, "119 of 120 keys were on two"),
            (|f| f.owned = 0, "b3 had no key"),
            (|f| f.read = 119, "119 of 120 keys read"),
            (|f| f.missed = 1, "1 missed"),
            (|f| f.wrong = 1, "1 wrong"),
            (|f| f.stored = 119, "stored again"),
        ];
        for (change, word) in changes {
            let mut figures = good();
            change(&mut figures);
            let faults = figures.faults();
            assert!(faults.len() == 1 && faults[0].contains(word), "{word}: {faults:?}");
        }
    }
}
