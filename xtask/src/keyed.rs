//! Requests by key, measured: a client, a router, memcached servers, and what brings a request to the server of its key.
//!
//! In: a balancer's binary, a [`Way`]. Out: a [`Scene`] on which clients of that way ask. The bed is that of `stage`: processor 0
//! has generator, router and servers, processor 1 the balancer or proxy, which receives there too. Balancer and servers share a
//! link, so a request of the balancer's is rewritten to its server's MAC address as MemSwitch's are; nothing is added to it.
//! Not here: what is measured, and how often (`bench_kv`, `figures::kv`).

mod clients;
mod draw;
mod ledger;
mod protocol;
mod tcp;
mod udp;
mod ways;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use testbed::{Bed, BedSpec, MEMCACHED_PORT, Process, VIP_V4, eventually, mac_of, start_memcached};

use crate::cargo;
pub(crate) use crate::keyed::clients::{Client, Clients, Pace, Tally};
pub(crate) use crate::keyed::draw::{Draw, Popularity};
pub(crate) use crate::keyed::ledger::Ledger;
use crate::keyed::tcp::{Tcp, fill};
use crate::keyed::udp::Udp;
pub(crate) use crate::keyed::ways::Way;
use crate::processors::{GENERATOR_CPU, Priority, spread_to};
use crate::stage::{Receive, START_BOUND, Stage};

/// A bed with servers that answer.
pub(crate) struct Scene {
    pub(crate) stage: Stage,
    _servers: Vec<Process>,
}

impl Scene {
    /// Builds it with so many servers.
    pub(crate) fn build(program: PathBuf, servers: u8) -> Result<Self> {
        let spec = BedSpec {
            backends: servers,
            vips: vec![VIP_V4],
            switched: true,
            program: Some(program),
            ..BedSpec::default()
        };
        let stage = Stage::build(&spec, Receive::OnDevice(Priority::First))?;
        let Bed { client, router, backends, .. } = &stage.bed;
        let more =
            SOURCES.iter().skip(1).map(|source| format!("addr add {source}/24 dev {}\n", client.device));
        client.ns.ip(&more.collect::<String>())?;
        stage.lead_to(mac_of(router, "br0")?)?;
        // What the device sends is received where all but the device is.
        spread_to(stage.port(), Some(GENERATOR_CPU))?;
        let servers = backends.iter().map(|host| start_memcached(&stage.bed, host, &[]));
        let servers = servers.collect::<Result<_>>()?;
        Ok(Self { stage, _servers: servers })
    }

    /// Stores a version of all keys on each server, whichever client asks it for them later.
    pub(crate) fn fill(&self, keys: u32, version: u32, value_bytes: usize) -> Result<()> {
        self.servers().into_iter().try_for_each(|server| {
            self.stage.bed.client.ns.run(move || fill(server.into(), keys, version, value_bytes))
        })
    }

    /// Clients of a way, each with so many requests at a time; once it carries any.
    pub(crate) fn clients(&self, way: Way, count: usize, window: usize) -> Result<Vec<Box<dyn Client>>> {
        let ns = &self.stage.bed.client.ns;
        if way == Way::Nutcracker {
            let proxy = self.vip();
            // It has been started a moment ago.
            let open = move || eventually(START_BOUND, || Tcp::new(proxy.into(), window).ok());
            let connect = move || (0..count).map(|_| open().context("nutcracker does not listen")).collect();
            let connections: Result<Vec<Tcp>> = ns.run(connect);
            return Ok(connections?.into_iter().map(|client| Box::new(client) as Box<dyn Client>).collect());
        }
        let servers = if way == Way::Direct { self.servers() } else { vec![self.vip()] };
        let open = move || SOURCES.iter().cycle().take(count).map(|&own| socket(own)).collect();
        let sockets: Result<Vec<UdpSocket>> = ns.run(open);
        let sockets = sockets.context("no socket of a client")?;
        let client = |socket| Box::new(Udp::new(socket, &servers, window)) as Box<dyn Client>;
        Ok(sockets.into_iter().map(client).collect())
    }

    /// Where clients that know no server ask.
    fn vip(&self) -> SocketAddrV4 {
        let SocketAddr::V4(vip) = self.stage.bed.vip(true, MEMCACHED_PORT) else {
            unreachable!("asked for IPv4")
        };
        vip
    }

    fn servers(&self) -> Vec<SocketAddrV4> {
        let hosts = self.stage.bed.backends.iter();
        hosts.map(|host| SocketAddrV4::new(host.v4, MEMCACHED_PORT)).collect()
    }
}

/// The balancer that is given, or a fresh build.
pub(crate) fn program(binary: Option<&Path>) -> Result<PathBuf> {
    match binary {
        Some(path) => path.canonicalize().with_context(|| format!("no balancer at {}", path.display())),
        None => cargo::release_binary(),
    }
}

/// From an address and any port, with room for what comes while other programs have the processor.
fn socket(own: Ipv4Addr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((own, 0))?;
    setsockopt(&socket, RcvBufForce, &RECEIVE_BYTES)?;
    Ok(socket)
}

const RECEIVE_BYTES: usize = 4 << 20;
/// Addresses that clients ask from: a cache has a budget of bytes for each. The first one is the bed's own.
const SOURCES: [Ipv4Addr; 4] = [
    Ipv4Addr::new(198, 18, 0, 2),
    Ipv4Addr::new(198, 18, 0, 3),
    Ipv4Addr::new(198, 18, 0, 4),
    Ipv4Addr::new(198, 18, 0, 5),
];
