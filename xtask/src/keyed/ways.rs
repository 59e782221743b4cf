//! Defines the systems that `bench kv` compares. The systems are direct clients, nutcracker, and
//! the balancer without a cache and with a cache (three different leases).
//!
//! Each program has the settings that an operator would choose for production. Nutcracker
//! distributes keys evenly and connects to the servers at startup. The balancer uses its default
//! configuration with one packet thread, and all counters are enabled.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use anyhow::Result;
use testbed::{Balancer, Encapsulation, Host, MEMCACHED_PORT};

use crate::demo_kv::{all_serve, config};
use crate::processors::DEVICE_CPU;
use crate::stage::{Load, Peer, Stage, Worker};

/// A path from a client to the server that stores a key: direct, through a proxy, or through the
/// balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Clients hash the keys themselves and query the servers over UDP.
    Direct,
    /// Twemproxy (nutcracker), with TCP to clients and servers.
    Nutcracker,
    /// The balancer without a cache, which forwards every request.
    Uncached,
    /// The balancer with a cache for hot keys, and a cache lease of 10 ms.
    Cached10Ms,
    /// The balancer with a cache lease of 50 ms.
    Cached50Ms,
    /// The balancer with a cache lease of 1 s.
    Cached1S,
}

impl Way {
    /// Returns the cache lease, which limits how old a cached value can be.
    pub(crate) fn lease(self) -> Duration {
        Duration::from_millis(match self {
            Self::Direct | Self::Nutcracker | Self::Uncached => 0,
            Self::Cached10Ms => 10,
            Self::Cached50Ms => 50,
            Self::Cached1S => 1_000,
        })
    }

    fn start_ours(self, stage: &Stage) -> Result<Worker> {
        let cache = match self.lease().as_millis() {
            0 => String::new(),
            lease => format!(", cache = {{ memory = \"64MiB\", lease = \"{lease}ms\" }}"),
        };
        let even = vec![1; stage.bed.backends.len()];
        let config = config(&stage.bed, &cache).encapsulation(Encapsulation::L2).weights(&even);
        let (program, cpu) = (stage.bed.program()?, DEVICE_CPU.to_string());
        let command = ["taskset", "-c", &cpu, &program.to_string_lossy()];
        let balancer = Balancer::start_by(&command, &stage.bed, 0, &config)?;
        all_serve(&balancer)?;
        Ok(Worker::Balancer(balancer))
    }
}

impl Peer for Way {
    fn name(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nutcracker => "nutcracker",
            Self::Uncached => "uncached",
            Self::Cached10Ms => "cached-10ms",
            Self::Cached50Ms => "cached-50ms",
            Self::Cached1S => "cached-1s",
        }
    }

    fn carries(&self, load: Load) -> bool {
        load == Load::Requests
    }

    fn has_xdp(&self) -> bool {
        !matches!(self, Self::Direct | Self::Nutcracker)
    }

    fn start(&self, stage: &Stage, _load: Load) -> Result<Worker> {
        match self {
            Self::Direct => Ok(Worker::Kernel),
            Self::Nutcracker => {
                let file = stage.bed.dir().join("nutcracker.yml");
                fs::write(&file, nutcracker(stage))?;
                stage.own_vip(true)?;
                let command = ["nutcracker", "--conf-file", &file.to_string_lossy()];
                Ok(Worker::Process(stage.process("nutcracker", &command)?))
            }
            _ => self.start_ours(stage),
        }
    }

    fn clean_up(&self, stage: &Stage) -> Result<()> {
        if *self == Self::Nutcracker { stage.own_vip(false) } else { Ok(()) }
    }
}

fn nutcracker(stage: &Stage) -> String {
    let mut file = format!(
        "keys:\n  listen: {}\n  hash: murmur\n  distribution: modula\n  preconnect: true\n  servers:\n",
        stage.bed.vip(true, MEMCACHED_PORT)
    );
    for Host { name, v4, .. } in &stage.bed.backends {
        let _ = writeln!(file, "   - {v4}:{MEMCACHED_PORT}:1 {name}");
    }
    file
}
