//! Implements `cargo xtask demo --kv`, which runs keyed services: three memcached servers behind
//! the balancer, with real clients.
//!
//! The demo stores keys with a libmemcached client and kills one server. Then the demo measures a
//! hot key with a cache (`demo_kv_cache`), and keys with replicas (`demo_kv_replicas`). The results
//! are [`KvFigures`]. The demo fails if a figure is wrong. The testbed is removed when the process
//! ends, even if the process is killed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testbed::{
    Balancer, Bed, LbConfig, MEMCACHED_PORT, Process, QueryClient, Service, eventually, start_memcached,
};

use crate::demo::{Stage, WEIGHTS, ready};
use crate::demo_kv_stats::{Death, KvFigures, Memcaslap};
use crate::demo_stats::Share;
use crate::setup;

/// Runs the demo with the given balancer binary, or with a fresh build.
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

/// The result of a `get`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Last,
    Other,
}

impl KvStage {
    fn build(program: PathBuf) -> Result<Self> {
        let mut servers = Vec::new();
        let stage = Stage::build(program, |bed| {
            eprintln!("starting memcached on each backend, at the VIPs and at the backend's address");
            for host in &bed.backends {
                servers.push(start_memcached(bed, host, &[])?);
            }
            Ok(config(bed, ""))
        })?;
        let stage = Self { stage, servers };
        stage.serving()?;
        Ok(stage)
    }

    /// Waits until all memcached servers are in service.
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
        let (key, server) = living.next().context("no remaining server has a key")?;
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

    /// Runs the libmemcached client `memcaslap`, which verifies each value that it reads.
    fn memcaslap(&self) -> Result<Memcaslap> {
        let server = self.stage.bed.vip(true, MEMCACHED_PORT).to_string();
        eprintln!("running memcaslap over UDP to {server}");
        let args = ["-s", &server, "-U", "-T", "1", "-c", "8", "-x", "20000", "-X", "64", "-v", "1.0"];
        let ended = Process::to_end(&self.stage.bed.client.ns, "memcaslap", &args, 10 * PATIENCE)?;
        let count = |name: &str| -> Result<u64> {
            let line = ended.out.lines().find_map(|line| line.trim().strip_prefix(name));
            let digits = line.map(|line| line.trim_matches(|c: char| !c.is_ascii_digit()));
            digits
                .and_then(|digits| digits.parse().ok())
                .with_context(|| format!("memcaslap printed no {name} ({ended:?})"))
        };
        Ok(Memcaslap {
            gets: count("cmd_get:")?,
            sets: count("cmd_set:")?,
            wrong: count("verify_failed:")?,
            missed: count("verify_misses:")?,
            lost: count("packet_drop:")?,
        })
    }

    /// Stores all keys, using both address families. Returns, for each key, the server that stores
    /// it, or `None` if not exactly one server stores the key.
    fn store(&self) -> Result<Vec<Option<usize>>> {
        eprintln!("storing and reading {KEYS} keys through the VIPs, then reading them from each server");
        let clients = self.clients();
        for key in 0..KEYS {
            let answer = through(&clients[key % 2], &set(key, OLD))?;
            ensure!(answer == b"STORED\r\n", "memcached did not store key {key}: {}", answer.escape_ascii());
            let answer = through(&clients[(key + 1) % 2], &get(key))?;
            ensure!(
                found(&answer, key, OLD) == Found::Last,
                "wrong value for key {key}: {}",
                answer.escape_ascii()
            );
        }
        let servers: Vec<usize> = (0..self.servers.len()).collect();
        (0..KEYS).map(|key| self.owner(key, OLD, &servers)).collect()
    }

    /// Returns the server in `servers` that stores the key, or `None` if not exactly one server
    /// stores the key. Each server is queried directly at its own address.
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

    /// Kills the server with the largest weight, and then checks all keys.
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

    /// Stops the balancer and requests further keys. Returns the number of requested keys and the
    /// number of responses.
    fn without_balancer(self) -> Result<(usize, usize)> {
        eprintln!("stopping the balancer");
        let clients = self.clients();
        self.stage.balancer.stop()?;
        let answered = (0..AFTER).filter(|key| clients[key % 2].ask_within(&get(*key), SHORT).is_some());
        Ok((AFTER, answered.count()))
    }

    /// Returns a client that queries one server directly. The client runs in the server's
    /// namespace.
    pub(crate) fn beside(&self, server: usize) -> QueryClient {
        let host = &self.stage.bed.backends[server];
        QueryClient::new(&host.ns, SocketAddr::new(host.v4.into(), MEMCACHED_PORT))
    }

    /// Returns two clients that query the VIP, one for IPv4 and one for IPv6.
    pub(crate) fn clients(&self) -> [QueryClient; 2] {
        let bed = &self.stage.bed;
        [true, false].map(|ipv4| QueryClient::new(&bed.client.ns, bed.vip(ipv4, MEMCACHED_PORT)))
    }

    fn shares(&self, places: &[usize], weights: &[u32]) -> Vec<Share> {
        let small = |count: usize| u32::try_from(count).expect("the demo has a few hundred keys");
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

/// Waits until all servers of a balancer are in service and have a share of the keys. A server that
/// recovers is in service shortly before the lookup table includes it.
pub(crate) fn all_serve(balancer: &Balancer) -> Result<()> {
    let has_keys = |row: &Value| {
        let shares = row["shares"].as_object().into_iter().flat_map(|shares| shares.values());
        shares.filter_map(Value::as_f64).any(|share| share > 0.0)
    };
    let serving = || {
        let rows = balancer.ask("/v1/backends").ok()?;
        rows.as_array()?.iter().all(|row| row["state"] == "serving" && has_keys(row)).then_some(())
    };
    eventually(PATIENCE, serving).context("not all servers came into service")
}

/// Returns a configuration with one keyed pool that contains all backends. The argument `kv` is
/// text that is appended to the `kv` section of the pool. Health checks query each server at its
/// own address, so packet threads send only client requests.
pub(crate) fn config(bed: &Bed, kv: &str) -> LbConfig {
    let mut config = LbConfig::new(bed).weights(&WEIGHTS);
    config.services = vec![Service { ports: MEMCACHED_PORT.to_string(), protocol: "udp", hash: None }];
    config.pool_keys = format!(
        "checks = [\"cache\"]\nkv = {{ protocol = \"memcached\", clients = [\"198.18.0.0/24\", \"2001:db8::/64\"]{kv} }}\n"
    );
    // With a short timeout, a server on a slow machine could appear to be down.
    config.more = "[check.cache]\nmemcached = { transport = \"udp\" }\n\
                   interval = \"1s\"\ntimeout = \"900ms\"\nfall = 3\n"
        .into();
    config
}

/// Sends a command until a response arrives, and returns the response. Requests to a server that
/// was just killed get no response.
pub(crate) fn through(client: &QueryClient, command: &[u8]) -> Result<Vec<u8>> {
    eventually(PATIENCE, || client.ask_within(command, SHORT))
        .with_context(|| format!("no response to {}", command.escape_ascii()))
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
