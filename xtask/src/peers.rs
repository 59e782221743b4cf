//! Implements `bench peers`, which compares the balancer in each of its modes with other load
//! balancers, on the same testbed.
//!
//! Each of the compared programs is called a peer. In each round, every peer is measured with
//! packets and with requests. Each round begins with a different peer. All work of a peer, in the
//! kernel or in a process, runs on one processor, whose use is measured ([`Receive::OnDevice`]).
//! The results are a table and performance goals. A full run also writes a CSV file and a plot to
//! `benches/results/`. `benches/README.md` explains why the comparison is fair.

pub(crate) mod katran;
mod kernel;
mod plot;
mod proxies;
mod requests;
mod results;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use testbed::{BedSpec, Encapsulation, VIP_V4};

use crate::forwarders::{Io, Ours, Testpmd};
use crate::pace;
use crate::peers::katran::Katran;
use crate::peers::kernel::{Ipvs, Nftables};
use crate::peers::proxies::{Haproxy, Nginx};
use crate::peers::requests::{Requests, Scene};
use crate::peers::results::{Results, Row};
use crate::processors::Priority;
use crate::stage::{Load, Peer, Rates, Receive, Stage};
use crate::{cargo, figures, setup};

/// The options of `bench peers`.
pub(crate) struct Options<'a> {
    /// The names of the peers to measure. If the list is empty, all peers are measured.
    pub(crate) names: &'a [String],
    /// The balancer binary to measure, or `None` for a fresh build.
    pub(crate) binary: Option<&'a Path>,
    pub(crate) rounds: usize,
    pub(crate) json: bool,
    /// The folder with a checkout of Katran.
    pub(crate) katran: Option<&'a Path>,
}

/// Runs the comparison. A missed goal is reported as a result and is not an error.
pub(crate) fn run(options: &Options<'_>) -> Result<()> {
    let peers = chosen(options.names, options.katran)?;
    setup::require_root("bench peers")?;
    setup::ensure(&[setup::BUILD, setup::BED, setup::TESTPMD, setup::PEERS].concat())?;
    let program = match options.binary {
        Some(path) => {
            path.canonicalize().with_context(|| format!("cannot find a balancer at {}", path.display()))?
        }
        None => cargo::release_binary()?,
    };
    let mut comparison = Comparison::build(peers, program)?;
    (1..=options.rounds).try_for_each(|n| comparison.round(n))?;
    let results = &comparison.results;
    if options.json {
        println!("{:#}", results.json());
    } else {
        println!("{}", results.words());
    }
    if options.names.is_empty() && options.rounds >= ROUNDS_KEPT {
        let folder = cargo::root().join("benches/results");
        let origin = figures::origin("cargo xtask bench peers", figures::VETH, false)?;
        results.keep(&folder, &origin)?;
        eprintln!("results written to {}", folder.display());
    }
    Ok(())
}

/// Returns the peers with these names, or all peers if `names` is empty.
fn chosen(names: &[String], katran: Option<&Path>) -> Result<Vec<Box<dyn Peer>>> {
    let mut all = all(katran);
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|peer| peer.name() == **name)) {
        let known: Vec<_> = all.iter().map(|peer| peer.name()).collect();
        bail!("unknown peer {unknown:?} (peers: {})", known.join(", "));
    }
    all.retain(|peer| names.is_empty() || names.iter().any(|name| name == peer.name()));
    Ok(all)
}

fn all(katran: Option<&Path>) -> Vec<Box<dyn Peer>> {
    let katran = Katran { source: katran.map(Path::to_owned) };
    let mut all: Vec<Box<dyn Peer>> = vec![
        Box::new(Nftables),
        Box::new(Ipvs),
        Box::new(Haproxy),
        Box::new(Nginx),
        Box::new(katran),
        Box::new(Testpmd),
    ];
    for io in [Io::AfPacket, Io::AfXdp] {
        for encapsulation in [Encapsulation::Gre, Encapsulation::Ipip, Encapsulation::Gue, Encapsulation::L2]
        {
            all.push(Box::new(Ours::new(io, encapsulation)));
        }
    }
    all
}

/// A running comparison.
struct Comparison {
    peers: Vec<Box<dyn Peer>>,
    scene: Scene,
    stage: Stage,
    /// For each peer, the offered rate at which the peer forwards the most packets, or `None` if
    /// this rate is not known yet.
    paces: Vec<Option<u32>>,
    results: Results,
}

impl Comparison {
    fn build(peers: Vec<Box<dyn Peer>>, program: PathBuf) -> Result<Self> {
        let spec = BedSpec { vips: vec![VIP_V4], program: Some(program), ..BedSpec::default() };
        let stage = Stage::build(&spec, Receive::OnDevice(Priority::Equal))?;
        let rows = peers.iter().map(|peer| Ok(Row::new(peer.name(), peer.missing(&stage)?)));
        let results = Results { rows: rows.collect::<Result<_>>()? };
        let paces = vec![None; peers.len()];
        Ok(Self { peers, scene: Scene::build(&stage)?, stage, paces, results })
    }

    /// Measures each peer with each load that it supports.
    fn round(&mut self, n: usize) -> Result<()> {
        for at in self.turns(n, Load::Packets) {
            let rates = self.packets(at)?;
            self.results.rows[at].packets.push(rates);
        }
        self.scene.open(&self.stage, true)?;
        let direct = self.scene.direct(&self.stage)?;
        eprintln!("round {n}: {direct:.0} requests/s without a balancer");
        for at in self.turns(n, Load::Requests) {
            let requests = self.requests(&*self.peers[at], direct)?;
            self.results.rows[at].requests.push(requests);
        }
        self.scene.open(&self.stage, false)
    }

    /// Returns the indices of the peers that support the load, in the order in which round `n`
    /// measures them.
    fn turns(&self, n: usize, load: Load) -> Vec<usize> {
        let count = self.peers.len();
        let turns = (0..count).map(|turn| (turn + n) % count);
        turns.filter(|&at| self.peers[at].carries(load) && self.results.rows[at].missing.is_none()).collect()
    }

    fn packets(&mut self, at: usize) -> Result<Rates> {
        let traffic = self.stage.smallest_udp(FLOWS)?;
        let peer = &*self.peers[at];
        let running = self.stage.start(peer, Load::Packets).with_context(|| peer.name())?;
        self.stage.probe(&running, &traffic).with_context(|| peer.name())?;
        let rates = pace::turn(&self.stage, &running, traffic, &mut self.paces[at])?;
        running.stop(&self.stage)?;
        eprintln!("{}: {}", peer.name(), results::packets_words(rates));
        Ok(rates)
    }

    fn requests(&self, peer: &dyn Peer, direct: f64) -> Result<Requests> {
        let running = self.stage.start(peer, Load::Requests).with_context(|| peer.name())?;
        let measured = self.scene.measure(&self.stage, &running, direct);
        let requests = measured.with_context(|| format!("{}\n{}", peer.name(), running.tail()))?;
        running.stop(&self.stage)?;
        eprintln!("{}: {}", peer.name(), results::requests_words(requests));
        Ok(requests)
    }
}

/// The number of flows in the load of small packets.
const FLOWS: u16 = 1_024;
/// The minimum number of rounds in a run with all peers for which the results are written to files.
const ROUNDS_KEPT: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(asked: &[&str]) -> Result<Vec<&'static str>> {
        let asked: Vec<String> = asked.iter().map(ToString::to_string).collect();
        Ok(chosen(&asked, None)?.iter().map(|peer| peer.name()).collect())
    }

    #[test]
    fn peers_are_chosen_by_name_and_errors_list_them() {
        assert_eq!(names(&["af-xdp-gre", "nftables"]).unwrap(), ["nftables", "af-xdp-gre"]);
        assert_eq!(names(&[]).unwrap().len(), 14);
        let error = names(&["nftables", "lvs"]).unwrap_err().to_string();
        assert!(error.contains("\"lvs\"") && error.contains("ipvs, haproxy"), "{error}");
    }
}
