//! Requests by key on real traffic: three memcached servers behind a balancer, a real client of them, and one server's end; then a hot
//! key with a cache, and keys with replicas.
//!
//! In: a balancer's binary. Out: [`KvFigures`], shown; a failure when one of them is wrong.
//! Not here: the bed (`testbed`), what is wrong and how it looks (`demo_kv_stats`), the stage (`demo`), the later acts
//! (`demo_kv_cache`, `demo_kv_replicas`).
//! It leaves nothing: the bed goes with the process, however that ends.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testbed::{
    Asker, Balancer, Bed, LbConfig, MEMCACHED_PORT, Process, Service, eventually, start_memcached,
};

use crate::demo::{Stage, WEIGHTS, ready};
use crate::demo_kv_stats::{Death, KvFigures, Memcaslap};
use crate::demo_stats::Share;
use crate::setup;

/// Runs the demo with the binary given, or a fresh build.
pub(crate) fn run(binary: Option<PathBuf>, json: bool) -> Result<()> {
    let program = ready(binary, &[setup::BED, setup::KV_DEMO].concat())?;
    let start = Instant::now();
    let mut figures = KvStage::build(program)?.play()?;
    figures.seconds = start.elapsed().as_secs_f64();
    if json {
        println!("{:#}", figures.json());
    } else {
        println!("\n{}", figures.words());
    }
    let faults = figures.faults();
    ensure!(faults.is_empty(), "the demo failed:\n  {}", faults.join("\n  "));
    Ok(())
}

pub(crate) struct KvStage {
    pub(crate) stage: Stage,
    pub(crate) servers: Vec<Process>,
}

/// What a server says of a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// The value that was stored last.
    Last,
    Other,
}

impl KvStage {
    fn build(program: PathBuf) -> Result<Self> {
        let mut servers = Vec::new();
        let stage = Stage::build(program, |bed| {
            eprintln!("a memcached on each backend, at the VIPs and at its own address");
            for host in &bed.backends {
                servers.push(start_memcached(bed, host, &[])?);
            }
            Ok(config(bed, ""))
        })?;
        let stage = Self { stage, servers };
        stage.serving()?;
        Ok(stage)
    }

    /// Waits until all servers serve.
    pub(crate) fn serving(&self) -> Result<()> {
        all_serve(&self.stage.balancer)
    }

    fn play(mut self) -> Result<KvFigures> {
        let before = self.stage.counts()?;
        let memcaslap = self.memcaslap()?;
        let owners = self.store()?;
        let places: Vec<usize> = owners.iter().flatten().copied().collect();
        let (shares, astray) = (self.shares(&places, &WEIGHTS), KEYS - places.len());
        let death = self.kill(&owners)?;
        let counts = self.stage.settled(&before)?.since(&before);
        let drops = self.stage.balancer.counters()?.drops();
        let lives = |server: &usize| *server + 1 < self.servers.len();
        let mut living =
            owners.iter().enumerate().filter_map(|(key, owner)| Some((key, owner.filter(lives)?)));
        let (key, server) = living.next().context("no key is left")?;
        let (cache, replicas) = (self.cached(key, server)?, self.replicated()?);
        let after_stop = self.without_balancer()?;
        let seconds = 0.0;
        Ok(KvFigures {
            memcaslap,
            shares,
            astray,
            death,
            counts,
            drops,
            cache,
            replicas,
            after_stop,
            seconds,
        })
    }

    /// Sets and gets of libmemcached's own client, each value of which it looks at.
    fn memcaslap(&self) -> Result<Memcaslap> {
        let server = self.stage.bed.vip(true, MEMCACHED_PORT).to_string();
        eprintln!("memcaslap over UDP to {server}");
        let args = ["-s", &server, "-U", "-T", "1", "-c", "8", "-x", "20000", "-X", "64", "-v", "1.0"];
        let ended = Process::to_end(&self.stage.bed.client.ns, "memcaslap", &args, 10 * PATIENCE)?;
        let count = |name: &str| -> Result<u64> {
            let line = ended.out.lines().find_map(|line| line.trim().strip_prefix(name));
            let digits = line.map(|line| line.trim_matches(|c: char| !c.is_ascii_digit()));
            digits.and_then(|digits| digits.parse().ok()).with_context(|| format!("no {name} in {ended:?}"))
        };
        Ok(Memcaslap {
            gets: count("cmd_get:")?,
            sets: count("cmd_set:")?,
            wrong: count("verify_failed:")?,
            missed: count("verify_misses:")?,
            lost: count("packet_drop:")?,
        })
    }

    /// Stores all keys, by both families; returns the server of each, or `None` if it is not on exactly one.
    fn store(&self) -> Result<Vec<Option<usize>>> {
        eprintln!("{KEYS} keys stored and read through the VIPs, then looked for on each server");
        let clients = self.clients();
        for key in 0..KEYS {
            let answer = through(&clients[key % 2], &set(key, OLD))?;
            ensure!(answer == b"STORED\r\n", "key {key}: {}", answer.escape_ascii());
            let answer = through(&clients[(key + 1) % 2], &get(key))?;
            ensure!(found(&answer, key, OLD) == Found::Last, "key {key}: {}", answer.escape_ascii());
        }
        let servers: Vec<usize> = (0..self.servers.len()).collect();
        (0..KEYS).map(|key| self.owner(key, OLD, &servers)).collect()
    }

    /// The one of `servers` that has a key, by what they say at their own addresses.
    fn owner(&self, key: usize, value: &str, servers: &[usize]) -> Result<Option<usize>> {
        let mut owners = Vec::new();
        for &server in servers {
            let answer = through(&self.beside(server), &get(key))?;
            if found(&answer, key, value) != Found::Nothing {
                owners.push(server);
            }
        }
        Ok(owners.first().copied().filter(|_| owners.len() == 1))
    }

    /// Kills the server with the greatest weight, and follows all keys.
    fn kill(&mut self, owners: &[Option<usize>]) -> Result<Death> {
        let dead = self.servers.len() - 1;
        let server = self.stage.bed.backends[dead].name.clone();
        eprintln!("killing memcached on {server}");
        let clients = self.clients();
        let start = Instant::now();
        self.servers[dead].kill();
        let (orphans, others): (Vec<usize>, Vec<usize>) =
            (0..KEYS).partition(|key| owners[*key] == Some(dead));
        let mut death = Death { server, owned: orphans.len(), others: others.len(), ..Death::default() };
        let living: Vec<usize> = (0..dead).collect();
        let mut places = Vec::new();
        for &key in &orphans {
            let answer = through(&clients[key % 2], &get(key))?;
            if places.is_empty() && death.missed == 0 {
                death.seconds = start.elapsed().as_secs_f64();
            }
            death.missed += usize::from(found(&answer, key, OLD) == Found::Nothing);
            death.wrong += usize::from(found(&answer, key, OLD) == Found::Other);
            through(&clients[key % 2], &set(key, NEW))?;
            let answer = through(&clients[(key + 1) % 2], &get(key))?;
            death.stored += usize::from(found(&answer, key, NEW) == Found::Last);
            death.wrong += usize::from(found(&answer, key, NEW) == Found::Other);
            places.extend(self.owner(key, NEW, &living)?);
        }
        for &key in &others {
            let answer = through(&clients[key % 2], &get(key))?;
            death.wrong += usize::from(found(&answer, key, OLD) == Found::Other);
            let is_there = found(&answer, key, OLD) == Found::Last;
            let stayed = is_there && self.owner(key, OLD, &living)? == owners[key];
            death.stayed += usize::from(stayed);
        }
        death.shares = self.shares(&places, &WEIGHTS[..dead]);
        Ok(death)
    }

    /// Stops the balancer; returns how many keys were asked for then, and how many answers came.
    fn without_balancer(self) -> Result<(usize, usize)> {
        eprintln!("stopping the balancer");
        let clients = self.clients();
        self.stage.balancer.stop()?;
        let answered = (0..AFTER).filter(|key| clients[key % 2].ask_within(&get(*key), SHORT).is_some());
        Ok((AFTER, answered.count()))
    }

    /// A client of one server, on its own machine.
    pub(crate) fn beside(&self, server: usize) -> Asker {
        let host = &self.stage.bed.backends[server];
        Asker::new(&host.ns, SocketAddr::new(host.v4.into(), MEMCACHED_PORT))
    }

    /// One of each family, at the client's.
    pub(crate) fn clients(&self) -> [Asker; 2] {
        let bed = &self.stage.bed;
        [true, false].map(|ipv4| Asker::new(&bed.client.ns, bed.vip(ipv4, MEMCACHED_PORT)))
    }

    fn shares(&self, places: &[usize], weights: &[u32]) -> Vec<Share> {
        let small = |count: usize| u32::try_from(count).expect("some hundred keys");
        let share = |(server, weight): (usize, &u32)| Share {
            backend: self.stage.bed.backends[server].name.clone(),
            weight: *weight,
            requests: small(places.iter().filter(|place| **place == server).count()),
            of_requests: small(places.len()),
            of_weight: weights.iter().sum(),
        };
        weights.iter().enumerate().map(share).collect()
    }
}

/// Waits until all servers of a balancer serve and have keys: one that is back serves a moment before a table is built with it.
pub(crate) fn all_serve(balancer: &Balancer) -> Result<()> {
    let has_keys = |row: &Value| {
        let shares = row["shares"].as_object().into_iter().flat_map(|shares| shares.values());
        shares.filter_map(Value::as_f64).any(|share| share > 0.0)
    };
    let serving = || {
        let rows = balancer.ask("/v1/backends").ok()?;
        rows.as_array()?.iter().all(|row| row["state"] == "serving" && has_keys(row)).then_some(())
    };
    eventually(PATIENCE, serving).context("not all servers serve")
}

/// A keyed pool of all backends for clients of the bed's network, with further keys of `kv`. Checks ask each server at its own address: all that packet threads send are
/// requests.
pub(crate) fn config(bed: &Bed, kv: &str) -> LbConfig {
    let mut config = LbConfig::new(bed).weights(&WEIGHTS);
    config.services = vec![Service { ports: MEMCACHED_PORT.to_string(), protocol: "udp", hash: None }];
    config.pool_keys = format!(
        "checks = [\"cache\"]\nkv = {{ protocol = \"memcached\", clients = [\"198.18.0.0/24\", \"2001:db8::/64\"]{kv} }}\n"
    );
    // A slow machine is no dead server.
    config.more = "[check.cache]\nmemcached = { transport = \"udp\" }\n\
                   interval = \"1s\"\ntimeout = \"900ms\"\nfall = 3\n"
        .into();
    config
}

/// The answer to a command, which is sent again until one comes: nobody answers for a server that died a moment ago.
pub(crate) fn through(client: &Asker, command: &[u8]) -> Result<Vec<u8>> {
    eventually(PATIENCE, || client.ask_within(command, SHORT))
        .with_context(|| format!("no answer to {}", command.escape_ascii()))
}

pub(crate) fn set(key: usize, value: &str) -> Vec<u8> {
    let value = format!("{value} {key}");
    format!("set key:{key} 0 0 {}\r\n{value}\r\n", value.len()).into_bytes()
}

pub(crate) fn get(key: usize) -> Vec<u8> {
    format!("get key:{key}\r\n").into_bytes()
}

pub(crate) fn found(answer: &[u8], key: usize, value: &str) -> Found {
    let value = format!("{value} {key}");
    let expected = format!("VALUE key:{key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
    match answer {
        b"END\r\n" => Found::Nothing,
        _ if answer == expected.as_bytes() => Found::Last,
        _ => Found::Other,
    }
}

const KEYS: usize = 600;
pub(crate) const OLD: &str = "the value of";
pub(crate) const NEW: &str = "another value of";
const AFTER: usize = 20;
const SHORT: Duration = Duration::from_millis(300);
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
