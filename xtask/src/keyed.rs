//! Builds the testbed for benchmarks of keyed requests: a client, a router, memcached servers, and
//! the system that routes each request to the server of its key.
//!
//! A [`Scene`] uses the testbed of `stage`. Processor 0 runs the load generator, the router and the
//! servers. Processor 1 runs the balancer or proxy, including its packet reception. Balancer and
//! servers share a link. The balancer therefore only replaces the destination MAC address of a
//! request with the server's MAC address, as MemSwitch does. The modules `bench_kv` and
//! `figures::kv` define the measurements.

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

/// A testbed with running memcached servers.
pub(crate) struct Scene {
    pub(crate) stage: Stage,
    _servers: Vec<Process>,
}

impl Scene {
    /// Builds the testbed with the given number of servers.
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
        // Packets that the device sends are received on the processor of the load generator.
        spread_to(stage.port(), Some(GENERATOR_CPU))?;
        let servers = backends.iter().map(|host| start_memcached(&stage.bed, host, &[]));
        let servers = servers.collect::<Result<_>>()?;
        Ok(Self { stage, _servers: servers })
    }

    /// Stores the given version of all keys on every server, so that any client finds any key on
    /// any server.
    pub(crate) fn fill(&self, keys: u32, version: u32, value_bytes: usize) -> Result<()> {
        self.servers().into_iter().try_for_each(|server| {
            self.stage.bed.client.ns.run(move || fill(server.into(), keys, version, value_bytes))
        })
    }

    /// Creates clients for one system, each with up to `window` outstanding requests. Waits until
    /// the system is ready to accept requests.
    pub(crate) fn clients(&self, way: Way, count: usize, window: usize) -> Result<Vec<Box<dyn Client>>> {
        let ns = &self.stage.bed.client.ns;
        if way == Way::Nutcracker {
            let proxy = self.vip();
            // The proxy was just started, so connecting is retried.
            let open = move || eventually(START_BOUND, || Tcp::new(proxy.into(), window).ok());
            let connect =
                move || (0..count).map(|_| open().context("cannot connect to nutcracker")).collect();
            let connections: Result<Vec<Tcp>> = ns.run(connect);
            return Ok(connections?.into_iter().map(|client| Box::new(client) as Box<dyn Client>).collect());
        }
        let servers = if way == Way::Direct { self.servers() } else { vec![self.vip()] };
        let open = move || SOURCES.iter().cycle().take(count).map(|&own| socket(own)).collect();
        let sockets: Result<Vec<UdpSocket>> = ns.run(open);
        let sockets = sockets.context("cannot create the sockets of the clients")?;
        let client = |socket| Box::new(Udp::new(socket, &servers, window)) as Box<dyn Client>;
        Ok(sockets.into_iter().map(client).collect())
    }

    /// Returns the VIP, which is the only address that clients of the balancer know.
    fn vip(&self) -> SocketAddrV4 {
        let SocketAddr::V4(vip) = self.stage.bed.vip(true, MEMCACHED_PORT) else {
            unreachable!("the VIP is an IPv4 address")
        };
        vip
    }

    fn servers(&self) -> Vec<SocketAddrV4> {
        let hosts = self.stage.bed.backends.iter();
        hosts.map(|host| SocketAddrV4::new(host.v4, MEMCACHED_PORT)).collect()
    }
}

/// Returns the path of the given balancer binary, or builds one.
pub(crate) fn program(binary: Option<&Path>) -> Result<PathBuf> {
    match binary {
        Some(path) => {
            path.canonicalize().with_context(|| format!("cannot find a balancer at {}", path.display()))
        }
        None => cargo::release_binary(),
    }
}

/// Returns a socket on any port of this address. The receive buffer of the socket is large enough
/// for datagrams that arrive while other programs use the processor.
fn socket(own: Ipv4Addr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((own, 0))?;
    setsockopt(&socket, RcvBufForce, &RECEIVE_BYTES)?;
    Ok(socket)
}

const RECEIVE_BYTES: usize = 4 << 20;
/// The client addresses. The load generator uses several addresses, because the cache has a byte
/// budget for each client address. The testbed already assigns the first address.
const SOURCES: [Ipv4Addr; 4] = [
    Ipv4Addr::new(198, 18, 0, 2),
    Ipv4Addr::new(198, 18, 0, 3),
    Ipv4Addr::new(198, 18, 0, 4),
    Ipv4Addr::new(198, 18, 0, 5),
];
