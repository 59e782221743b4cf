//! The whole bed: client, router, balancers and backends, each in a namespace of its own, joined at the router.
//!
//! Out: hosts that reach each other through the router; VIPs that the router sends to the balancers, and that stand on the
//! backends' `lo`; an HTTP and two UDP servers in each backend, which answer the client directly (direct server return).
//! Not here: the balancer's process (`balancer`) and the backends' `decap`.
//! Invariant: no link leaves the bed.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, figure 3.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::link::{carries, take_in};
use crate::{Client, HttpServer, LbConfig, Namespace, Process, TempDir, UdpServer, Veth, binary};

/// The first VIP of IPv4.
pub const VIP_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 10));
/// The first VIP of IPv6.
pub const VIP_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 0x10));

/// What a bed is to have.
#[derive(Clone, Debug)]
pub struct BedSpec {
    /// Balancers; the router spreads flows over them.
    pub balancers: u8,
    /// Backends.
    pub backends: u8,
    /// Queues of the balancers' links; the router spreads flows over them.
    pub queues: u32,
    /// Largest IP packet of the client's link, in bytes.
    pub client_mtu: u32,
    /// Largest IP packet of the other links, in bytes.
    pub core_mtu: u32,
    /// The addresses to balance.
    pub vips: Vec<IpAddr>,
    /// Balancers and backends share one link, a bridge in the router, as MAC rewriting needs.
    pub switched: bool,
    /// The program under test; `None`: the one that [`binary`](crate::binary) finds.
    pub program: Option<PathBuf>,
    /// A pair of NICs of this machine, joined by a wire: the first balancer's and the router's, in place of a veth pair.
    pub wire: Option<[&'static str; 2]>,
}

impl Default for BedSpec {
    fn default() -> Self {
        Self {
            balancers: 1,
            backends: 3,
            queues: 1,
            client_mtu: 1500,
            core_mtu: 1600, // 1,500 bytes and any outer header
            vips: vec![VIP_V4, VIP_V6],
            switched: false,
            program: None,
            wire: None,
        }
    }
}

/// A host of the bed.
#[derive(Clone, Debug)]
pub struct Host {
    /// `client`, `router`, `lb1`…, `b1`…
    pub name: String,
    /// Where it lives.
    pub ns: Namespace,
    /// Its IPv4 address.
    pub v4: Ipv4Addr,
    /// Its IPv6 address.
    pub v6: Ipv6Addr,
    /// Its own device: `eth0`, on balancers `lb0` or a NIC of this machine.
    pub device: &'static str,
    /// The router's end of its link.
    pub port: String,
}

impl Host {
    /// Its address in the family of `like`.
    #[must_use]
    pub fn address(&self, like: IpAddr) -> IpAddr {
        if like.is_ipv4() { self.v4.into() } else { self.v6.into() }
    }
}

/// A standing bed. Dropping it takes it down.
#[derive(Debug)]
pub struct Bed {
    /// What was asked for.
    pub spec: BedSpec,
    /// Where requests come from.
    pub client: Host,
    /// What all links meet in.
    pub router: Namespace,
    /// The machines to run a balancer on.
    pub balancers: Vec<Host>,
    /// The machines that serve.
    pub backends: Vec<Host>,
    /// One HTTP server a backend, in the same order.
    pub http: Vec<HttpServer>,
    udp: Vec<UdpServer>,
    dir: TempDir,
}

impl Bed {
    /// The port that echoes UDP at each VIP.
    pub const ECHO_PORT: u16 = 53;
    /// The port that takes UDP at each VIP and answers nothing.
    pub const SINK_PORT: u16 = 9;
    /// The port of HTTP.
    pub const HTTP_PORT: u16 = 80;

    /// Builds a bed.
    ///
    /// # Errors
    /// Not root, or a tool is missing or refuses.
    pub fn new(spec: &BedSpec) -> Result<Self> {
        ensure!(
            spec.balancers <= 100 && spec.backends <= 200,
            "addresses suffice for 100 balancers, 200 backends"
        );
        let router = Namespace::new("router")?;
        router.sysctl(QUIET)?;
        router.sysctl(ROUTER)?;
        if spec.switched {
            router.ip("link add name br0 type bridge forward_delay 0\nlink set br0 up")?;
        }
        let mut bed = Self {
            spec: spec.clone(),
            client: host("client", "eth0", Ipv4Addr::new(198, 18, 0, 2), v6(0, 2))?,
            router,
            balancers: vec![],
            backends: vec![],
            http: vec![],
            udp: vec![],
            dir: TempDir::new()?,
        };
        bed.join_client()?;
        for n in 1..=spec.balancers {
            let balancer = bed.join_balancer(n)?;
            bed.balancers.push(balancer);
        }
        for n in 1..=spec.backends {
            let backend = bed.join_backend(n)?;
            bed.backends.push(backend);
        }
        bed.route_vips()?;
        Ok(bed)
    }

    /// A folder that goes with the bed.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The program under test.
    ///
    /// # Errors
    /// None was given, and none is found.
    pub fn program(&self) -> Result<PathBuf> {
        self.spec.program.clone().map_or_else(binary, Ok)
    }

    /// What the program's command line says of a machine that runs; `index` counts from 0.
    ///
    /// # Errors
    /// It did not end by `bound`, or did not end well: what it printed is in the message.
    pub fn say(&self, index: usize, words: &[&str], bound: Duration) -> Result<String> {
        let socket = LbConfig::admin_socket(self, index).to_string_lossy().into_owned();
        let args = [words, &["--socket", &socket]].concat();
        let ended = Process::to_end(&self.balancers[index].ns, self.program()?, &args, bound)?;
        ensure!(ended.code == Some(0), "{words:?}: {}{}", ended.out, ended.err);
        Ok(ended.out)
    }

    /// An HTTP client at the client's.
    #[must_use]
    pub fn http_client(&self) -> Client {
        Client::new(&self.client.ns)
    }

    /// The first VIP of a family, with a port.
    ///
    /// # Panics
    /// When the bed has no VIP of that family.
    #[must_use]
    pub fn vip(&self, ipv4: bool, port: u16) -> SocketAddr {
        let vip = self.spec.vips.iter().find(|vip| vip.is_ipv4() == ipv4);
        SocketAddr::new(*vip.expect("the bed has a VIP of that family"), port)
    }

    /// UDP requests that the backends answered.
    #[must_use]
    pub fn udp_answered(&self) -> u64 {
        self.udp.iter().map(UdpServer::answered).sum()
    }

    /// Gives the first balancer's routes to the backends another device than its own, joined to `port` of the router.
    ///
    /// The balancer is 192.0.2.101 and 2001:db8:0:64::1 on it.
    ///
    /// # Errors
    /// The devices are not there.
    pub fn reach_backends_by(&self, device: &str, port: &str) -> Result<()> {
        self.balancers[0].ns.ip(&format!(
            "addr add 192.0.2.101/31 dev {device}\n\
             addr add 2001:db8:0:64::1/64 dev {device} nodad\n\
             route add 198.18.1.0/24 via 192.0.2.100\n\
             route add 2001:db8:18::/64 via 2001:db8:0:64::ff"
        ))?;
        self.router.ip(&format!(
            "addr add 192.0.2.100/31 dev {port}\n\
             addr add 2001:db8:0:64::ff/64 dev {port} nodad"
        ))
    }

    /// One line a host: its name, addresses, and how to enter it.
    #[must_use]
    pub fn how_to_enter(&self) -> String {
        let mut text = String::new();
        let all = [&self.client].into_iter().chain(&self.balancers).chain(&self.backends);
        for Host { name, ns, v4, v6, .. } in all {
            let _ = writeln!(text, "nsenter --net={} sh   # {name}: {v4}, {v6}", ns.path());
        }
        let _ = writeln!(text, "nsenter --net={} sh   # router", self.router.path());
        text
    }

    fn join_client(&mut self) -> Result<()> {
        let Host { ns, device, port, .. } = &self.client;
        // One queue: the router would choose its own by the one that a packet came from, and not by its flow.
        let link = Veth { queues: 1, mtu: self.spec.client_mtu };
        link.join(ns.device(device), self.router.device(port))?;
        ns.ip(&format!(
            "addr add 198.18.0.2/24 dev {device}\n\
             addr add 2001:db8::2/64 dev {device} nodad\n\
             route add 0.0.0.0/0 via 198.18.0.1\n\
             route add ::/0 via 2001:db8::1"
        ))?;
        self.router
            .ip(&format!("addr add 198.18.0.1/24 dev {port}\naddr add 2001:db8::1/64 dev {port} nodad"))
    }

    /// Balancer `n` is 192.0.2.(2n-1) of its own /31, and 2001:db8:0:n::1.
    fn join_balancer(&self, n: u8) -> Result<Host> {
        let gateway4 = Ipv4Addr::new(192, 0, 2, 2 * n - 2);
        let gateway6 = v6(n.into(), 0xff);
        let mut host = host(&format!("lb{n}"), "lb0", Ipv4Addr::new(192, 0, 2, 2 * n - 1), v6(n.into(), 1))?;
        let wire = self.spec.wire.filter(|_| n == 1);
        if let Some([own, far]) = wire {
            (host.device, host.port) = (own, far.into());
        }
        let Host { ns, v4, v6, device, port, .. } = &host;
        let here = match wire {
            Some([own, far]) => take_in(ns.device(own), self.router.device(far)).map(|()| None)?,
            None => self.join_core(&host, self.spec.queues)?,
        };
        ns.ip(&format!(
            "addr add {v4}/31 dev {device}\n\
             addr add {v6}/64 dev {device} nodad\n\
             route add 0.0.0.0/0 via {gateway4}\n\
             route add ::/0 via {gateway6}"
        ))?;
        if self.spec.switched {
            ns.ip(&format!("route add 198.18.1.0/24 dev {device}\nroute add 2001:db8:18::/64 dev {device}"))?;
        }
        let here = here.unwrap_or(port);
        self.router
            .ip(&format!("addr add {gateway4}/31 dev {here}\naddr add {gateway6}/64 dev {here} nodad"))?;
        Ok(host)
    }

    /// Backend `n` is 198.18.1.n and 2001:db8:18::n; its gateway is .254 and ::fffe on every port.
    fn join_backend(&mut self, n: u8) -> Result<Host> {
        let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, n.into());
        let host = host(&format!("b{n}"), "eth0", Ipv4Addr::new(198, 18, 1, n), v6)?;
        let Host { name, ns, v4, device, port, .. } = &host;
        let here = self.join_core(&host, 1)?.unwrap_or(port);
        let mut script = format!(
            "addr add {v4}/32 dev {device}\n\
             addr add {v6}/128 dev {device} nodad\n\
             route add 198.18.1.254 dev {device}\n\
             route add 2001:db8:18::fffe dev {device}\n\
             route add 0.0.0.0/0 via 198.18.1.254\n\
             route add ::/0 via 2001:db8:18::fffe\n"
        );
        for vip in &self.spec.vips {
            let _ = writeln!(
                script,
                "addr add {vip}/{} dev lo{}",
                bits(*vip),
                if vip.is_ipv4() { "" } else { " nodad" }
            );
        }
        ns.ip(&script)?;
        // The bridge of a switched bed has the gateway's addresses from its first backend.
        let first = n == 1 || !self.spec.switched;
        let gateway =
            format!("addr add 198.18.1.254/32 dev {here}\naddr add 2001:db8:18::fffe/128 dev {here} nodad\n");
        let routes = format!("route add {v4} dev {here}\nroute add {v6} dev {here}");
        self.router.ip(&format!("{}{routes}", if first { &gateway } else { "" }))?;
        self.http.push(HttpServer::start(ns, name, Self::HTTP_PORT)?);
        for &vip in &self.spec.vips {
            self.udp.push(UdpServer::echo(ns, name, (vip, Self::ECHO_PORT).into())?);
            self.udp.push(UdpServer::sink(ns, (vip, Self::SINK_PORT).into())?);
        }
        Ok(host)
    }

    /// Joins a host to the router; on a switched bed its port has no addresses of its own, but those of the bridge.
    fn join_core(&self, host: &Host, queues: u32) -> Result<Option<&'static str>> {
        let link = Veth { queues, mtu: self.spec.core_mtu };
        link.join(host.ns.device(host.device), self.router.device(&host.port))?;
        if !self.spec.switched {
            return Ok(None);
        }
        self.router.ip(&format!("link set {} master br0", host.port))?;
        carries(self.router.device("br0"))?;
        Ok(Some("br0"))
    }

    fn route_vips(&self) -> Result<()> {
        if self.balancers.is_empty() {
            return Ok(());
        }
        let mut script = String::new();
        for &vip in &self.spec.vips {
            let _ = write!(script, "route add {vip}/{}", bits(vip));
            for balancer in &self.balancers {
                let _ = write!(script, " nexthop via {}", balancer.address(vip));
            }
            script.push('\n');
        }
        self.router.ip(&script)
    }
}

fn host(name: &str, device: &'static str, v4: Ipv4Addr, v6: Ipv6Addr) -> Result<Host> {
    let ns = Namespace::new(name)?;
    ns.sysctl(QUIET)?;
    // A connection that sends again would go on by another queue, or to another machine: kernels that ask draw its hash anew.
    if Path::new("/proc/sys/net/core/txrehash").exists() {
        ns.sysctl(&[("core/txrehash", "0")])?;
    }
    Ok(Host { name: name.into(), ns, v4, v6, device, port: format!("to-{name}") })
}

fn v6(net: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, net, 0, 0, 0, host)
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// For devices that are made later: addresses work at once, and nobody talks unasked.
const QUIET: &[(&str, &str)] = &[
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];

const ROUTER: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/fib_multipath_hash_policy", "1"),
    ("ipv6/fib_multipath_hash_policy", "1"),
];
