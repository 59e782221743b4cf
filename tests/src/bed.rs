//! The topology of a testbed: client, router, balancers and backends. Each host is a network
//! namespace.
//!
//! Every link connects a host to the router, and no link leaves the testbed. The router forwards
//! traffic for the VIPs to the balancers. Each backend has the VIPs on `lo` and runs one HTTP
//! server and two UDP servers, which reply directly to the client (direct server return). The
//! module `balancer` starts the balancer process, and `decap` starts decapsulation on backends.
//!
//! References: Eisenbud et al., *Maglev*, NSDI 2016, figure 3.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::link::{carries, take_in};
use crate::{Client, HttpServer, LbConfig, Namespace, Process, TempDir, UdpServer, Veth, binary};

/// The first IPv4 VIP.
pub const VIP_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 10));
/// The first IPv6 VIP.
pub const VIP_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 0x10));

/// The description of a testbed.
#[derive(Clone, Debug)]
pub struct BedSpec {
    /// The number of balancers. The router distributes flows over all balancers.
    pub balancers: u8,
    /// The number of backends.
    pub backends: u8,
    /// The number of queues per balancer link. The router distributes flows over the queues.
    pub queues: u32,
    /// The MTU of the client's link, in bytes.
    pub client_mtu: u32,
    /// The MTU of all other links, in bytes.
    pub core_mtu: u32,
    /// The VIP addresses.
    pub vips: Vec<IpAddr>,
    /// `true` if balancers and backends share one bridge in the router. Encapsulation `l2` (MAC
    /// address rewriting) requires this.
    pub switched: bool,
    /// The path of the balancer binary. If this field is `None`, [`binary`](crate::binary) finds
    /// the binary.
    pub program: Option<PathBuf>,
    /// Two NICs of this machine, connected to each other by a cable. The NICs replace the veth pair
    /// between the first balancer and the router.
    pub wire: Option<[&'static str; 2]>,
}

impl Default for BedSpec {
    fn default() -> Self {
        Self {
            balancers: 1,
            backends: 3,
            queues: 1,
            client_mtu: 1500,
            core_mtu: 1600, // 1,500 bytes plus any outer header
            vips: vec![VIP_V4, VIP_V6],
            switched: false,
            program: None,
            wire: None,
        }
    }
}

/// A host of the testbed.
#[derive(Clone, Debug)]
pub struct Host {
    /// The host name: `client`, `router`, `lb1`, `lb2`, `b1`, `b2` and so on.
    pub name: String,
    /// The network namespace of the host.
    pub ns: Namespace,
    /// The IPv4 address of the host.
    pub v4: Ipv4Addr,
    /// The IPv6 address of the host.
    pub v6: Ipv6Addr,
    /// The network device of the host: `eth0`, or on balancers `lb0` or a NIC of this machine.
    pub device: &'static str,
    /// The name of the router's device at the other end of the link.
    pub port: String,
}

impl Host {
    /// Returns the address of the host that has the same family as `like`.
    #[must_use]
    pub fn address(&self, like: IpAddr) -> IpAddr {
        if like.is_ipv4() { self.v4.into() } else { self.v6.into() }
    }
}

/// A running testbed. Dropping the handle removes the testbed.
#[derive(Debug)]
pub struct Bed {
    /// The description from which this testbed was built.
    pub spec: BedSpec,
    /// The host that sends requests.
    pub client: Host,
    /// The network namespace of the router.
    pub router: Namespace,
    /// The hosts that can run a balancer.
    pub balancers: Vec<Host>,
    /// The hosts that run the servers.
    pub backends: Vec<Host>,
    /// The HTTP servers, one per backend, in the same order as `backends`.
    pub http: Vec<HttpServer>,
    udp: Vec<UdpServer>,
    dir: TempDir,
}

impl Bed {
    /// The UDP port of the echo servers, which listen on every VIP.
    pub const ECHO_PORT: u16 = 53;
    /// The UDP port of the servers that discard all datagrams. These servers listen on every VIP.
    pub const SINK_PORT: u16 = 9;
    /// The HTTP port.
    pub const HTTP_PORT: u16 = 80;

    /// Builds a testbed.
    ///
    /// # Errors
    /// Returns an error without root privileges, or if a tool is missing or fails.
    pub fn new(spec: &BedSpec) -> Result<Self> {
        ensure!(
            spec.balancers <= 100 && spec.backends <= 200,
            "a testbed has at most 100 balancers and 200 backends"
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

    /// Returns a temporary directory that is removed with the testbed.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of the balancer binary.
    ///
    /// # Errors
    /// Returns an error if the description has no path and the binary cannot be found.
    pub fn program(&self) -> Result<PathBuf> {
        self.spec.program.clone().map_or_else(binary, Ok)
    }

    /// Runs a subcommand of `sluicegate` against balancer `index`, and returns its output. The
    /// first balancer has index 0.
    ///
    /// # Errors
    /// Returns an error if the command fails or does not end within `bound`. The message contains
    /// the output.
    pub fn say(&self, index: usize, words: &[&str], bound: Duration) -> Result<String> {
        let socket = LbConfig::admin_socket(self, index).to_string_lossy().into_owned();
        let args = [words, &["--socket", &socket]].concat();
        let ended = Process::to_end(&self.balancers[index].ns, self.program()?, &args, bound)?;
        ensure!(ended.code == Some(0), "{words:?}: {}{}", ended.out, ended.err);
        Ok(ended.out)
    }

    /// Returns an HTTP client that runs on the client host.
    #[must_use]
    pub fn http_client(&self) -> Client {
        Client::new(&self.client.ns)
    }

    /// Returns the first VIP of this address family, with this port.
    ///
    /// # Panics
    /// Panics if the testbed has no VIP of this family.
    #[must_use]
    pub fn vip(&self, ipv4: bool, port: u16) -> SocketAddr {
        let vip = self.spec.vips.iter().find(|vip| vip.is_ipv4() == ipv4);
        SocketAddr::new(*vip.expect("the testbed has no VIP of this family"), port)
    }

    /// Returns the number of UDP requests that the backends have answered.
    #[must_use]
    pub fn udp_answered(&self) -> u64 {
        self.udp.iter().map(UdpServer::answered).sum()
    }

    /// Routes the first balancer's traffic for the backends through `device`. The other end of the
    /// link is the router's device `port`.
    ///
    /// The balancer gets the addresses 192.0.2.101 and 2001:db8:0:64::1 on this device.
    ///
    /// # Errors
    /// Returns an error if a device does not exist.
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

    /// Returns one line per host with its name, its addresses and a command that enters its
    /// namespace.
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
        // The client link has one queue. If the link had several queues, the router's kernel would
        // select its transmit queue by the receive queue instead of by the flow.
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

    /// Connects balancer `n` to the router. The balancer's addresses are 192.0.2.(2n-1), in a /31,
    /// and 2001:db8:0:n::1.
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

    /// Connects backend `n` to the router. The backend's addresses are 198.18.1.n and
    /// 2001:db8:18::n. All backends use the gateway addresses 198.18.1.254 and 2001:db8:18::fffe.
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
        // On a shared bridge, the first backend assigns the gateway addresses to the bridge.
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

    /// Connects a host to the router. If the testbed has a shared bridge, adds the link to the
    /// bridge and returns the bridge's name, because the bridge has the router's addresses.
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
    // By default, newer kernels choose a new transmit hash when TCP retransmits. With a new hash,
    // the retransmitted segment would reach a different queue or a different balancer.
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

/// Settings for all devices, including devices that are created later. With these settings, IPv6
/// addresses are usable immediately, and hosts send no unsolicited packets.
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
