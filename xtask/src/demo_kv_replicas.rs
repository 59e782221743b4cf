//! Keys that two servers have: one server is killed, and every value is read on.
//!
//! In: the demo's bed, one of whose servers is down. Out: [`ReplicaFigures`], what is wrong of them, and how they look.
//! Not here: the other acts (`demo_kv`, `demo_kv_cache`).

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::start_memcached;

use crate::demo_kv::{Found, KvStage, NEW, OLD, config, found, get, set, through};

/// What became of keys with two servers each.
#[derive(Debug, Default)]
pub(crate) struct ReplicaFigures {
    pub(crate) keys: usize,
    /// Those that two servers had, as the servers themselves said.
    pub(crate) at_two: usize,
    /// The one that was killed, and its keys.
    pub(crate) server: String,
    pub(crate) owned: usize,
    /// From its end to the last answer about all of these.
    pub(crate) seconds: f64,
    /// All keys: read with their value, not found, and found with another one.
    pub(crate) read: usize,
    pub(crate) missed: usize,
    pub(crate) wrong: usize,
    /// Stored anew then, and read.
    pub(crate) stored: usize,
}

impl KvStage {
    /// Starts the server that was killed, has each key at two, and kills it again.
    pub(crate) fn replicated(&mut self) -> Result<ReplicaFigures> {
        let dead = self.servers.len() - 1;
        let host = self.stage.bed.backends[dead].clone();
        eprintln!("memcached on {} again; {KEYS} keys with two servers each, then it is killed", host.name);
        self.servers[dead] = start_memcached(&self.stage.bed, &host, &[])?;
        let config = config(&self.stage.bed, ", replicas = { count = 2 }");
        self.stage.balancer.reload(&self.stage.bed, &config)?;
        self.serving()?;
        let mut figures = ReplicaFigures { keys: KEYS, server: host.name, ..ReplicaFigures::default() };
        let owned = self.store_at_two(dead, &mut figures)?;
        self.kill_one_of_two(dead, &owned, &mut figures)?;
        Ok(figures)
    }

    /// The keys that a server has.
    fn store_at_two(&self, server: usize, figures: &mut ReplicaFigures) -> Result<Vec<usize>> {
        let (clients, mut owned) = (self.clients(), Vec::new());
        for key in 0..KEYS {
            let answer = through(&clients[key % 2], &set(key, OLD))?;
            ensure!(answer == b"STORED\r\n", "key {key}: {}", answer.escape_ascii());
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
        // Its own keys first: some clients read them there.
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

    /// The servers that have a key's first value.
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
    /// What is wrong, in words.
    pub(crate) fn faults(&self) -> Vec<String> {
        let Self { keys, at_two, server, owned, read, missed, wrong, stored, .. } = self;
        let mut faults = Vec::new();
        let mut expect = |is_well: bool, fault: String| faults.extend((!is_well).then_some(fault));
        expect(*keys > 0 && at_two == keys, format!("replicas: {at_two} of {keys} keys were at two servers"));
        expect(*owned > 0, format!("replicas: {server} had no key"));
        expect(
            read == keys && missed + wrong == 0,
            format!("replicas: without {server} {read} of {keys} keys read, {missed} missed, {wrong} wrong"),
        );
        expect(stored == keys, format!("replicas: {stored} of {keys} keys were stored anew"));
        faults
    }

    pub(crate) fn words(&self) -> String {
        let Self { keys, at_two, server, owned, seconds, read, missed, wrong, stored } = self;
        format!(
            "{keys} keys with replicas; at two servers: {at_two}\n  \
             {server}, which has {owned} of them, killed: all of these answered within {seconds:.1} s\n  \
             {read} of {keys} keys have their value, {missed} are misses, {wrong} wrong; {stored} stored anew and found\n"
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
    fn good_figures_have_no_fault_and_each_bad_one_has_its_own() {
        assert_eq!(good().faults(), [""; 0]);
        type Change = fn(&mut ReplicaFigures);
        let changes: [(Change, &str); 6] = [
            (|f| f.at_two = 119, "119 of 120 keys were at two"),
            (|f| f.owned = 0, "b3 had no key"),
            (|f| f.read = 119, "119 of 120 keys read"),
            (|f| f.missed = 1, "1 missed"),
            (|f| f.wrong = 1, "1 wrong"),
            (|f| f.stored = 119, "stored anew"),
        ];
        for (change, word) in changes {
            let mut figures = good();
            change(&mut figures);
            let faults = figures.faults();
            assert!(faults.len() == 1 && faults[0].contains(word), "{word}: {faults:?}");
        }
    }
}
