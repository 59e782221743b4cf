//! The facts about the machine, from which the other modules derive the findings.
//!
//! The modules `gather` and `reach` fill these plain types. A fact that could not be determined is
//! `None` or empty, and results in no finding.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use datapath::interface::{Hardware, Interface, Privileges};
use datapath::placement::{Processors, order};
use next_hop::{Hop, Resolved, Unresolved};
use nix::errno::Errno;

#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) host: Host,
    pub(crate) interfaces: Vec<Nic>,
    pub(crate) vips: Vec<VipFact>,
    pub(crate) paths: Vec<PathFact>,
    /// Facts about BGP and BFD, or `None` if the configuration has no peers for this machine.
    pub(crate) routers: Option<Routers>,
    /// Configured addresses of this machine that are not assigned to any local interface.
    pub(crate) absent_addresses: Vec<IpAddr>,
    /// The reasons why IPv4 or IPv6 backends could not be pinged.
    pub(crate) unasked: Vec<String>,
    /// `true` if the configuration uses packet sockets instead of XDP.
    pub(crate) has_packet_sockets: bool,
    /// The configured number of sockets for each interface. `None` means one socket for each queue.
    pub(crate) sockets: Option<u32>,
    pub(crate) frames_per_queue: u32,
    /// The frame size in bytes.
    pub(crate) frame_size: u32,
    pub(crate) flows_per_thread: usize,
    pub(crate) threads: Threads,
    pub(crate) admin: Option<AdminFolder>,
    /// `true` if a running load balancer accepts connections on the admin socket. The XDP program
    /// of the interface then belongs to that process.
    pub(crate) is_running: bool,
}

/// The configuration of the packet threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Threads {
    /// The number of packet threads with software steering, or 0 if software steering is off and
    /// each queue has its own packet thread.
    pub(crate) steered: u32,
    /// `true` if the packet threads spin and never sleep.
    pub(crate) spins: bool,
    /// `true` if the packet threads run the NIC driver in their own system calls (busy polling).
    pub(crate) polls: bool,
}

/// Facts about the machine itself.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// The kernel release, as in `uname -r`.
    pub(crate) kernel: String,
    /// `true` if the kernel reports the hops of routes that use nexthop objects. `None` if the
    /// kernel has no such setting.
    pub(crate) reports_nexthop_objects: Option<bool>,
    pub(crate) knows_af_xdp: Option<bool>,
    /// The value of `net.core.bpf_jit_enable`.
    pub(crate) bpf_jit: Option<u32>,
    pub(crate) privileges: Option<Privileges>,
    /// The limit of locked memory in bytes, or `None` if it is unlimited or unknown.
    pub(crate) memlock: Option<u64>,
    pub(crate) clock_is_synchronised: Option<bool>,
    /// The active value of `/sys/kernel/mm/transparent_hugepage/enabled`.
    pub(crate) huge_pages: Option<String>,
    /// The processors that this process may use.
    pub(crate) cpus: Processors,
    /// The isolated processors (`isolcpus`), on which the kernel runs only threads that are pinned
    /// to them.
    pub(crate) isolated: Processors,
    pub(crate) irqbalance: bool,
}

/// A network interface that receives traffic for VIPs.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    pub(crate) name: String,
    /// The properties of the interface, or the reason why they could not be read.
    pub(crate) found: Result<(Interface, Hardware), String>,
    /// The effective mode of the reverse-path filter: 0 (off), 1 (strict) or 2 (loose). The kernel
    /// uses the larger of the values for `all` and for the interface.
    pub(crate) rp_filter: Option<u8>,
    /// `true` if the kernel skips routes through this interface while the interface has no carrier,
    /// for IPv4 and for IPv6. `None` if the setting does not exist.
    pub(crate) skips_linkdown: [Option<bool>; 2],
    /// `true` if the kernel forwards IPv4 packets that arrive on this interface.
    pub(crate) forwards_v4: bool,
    /// `true` if the kernel forwards IPv6 packets.
    pub(crate) forwards_v6: bool,
    /// `true` if the interface is a PCI device with its own interrupts.
    pub(crate) has_interrupts: bool,
    /// `true` if interrupts are deferred during busy polling, which needs both
    /// `napi_defer_hard_irqs` and `gro_flush_timeout`.
    pub(crate) defers_interrupts: Option<bool>,
}

/// An address of a VIP.
#[derive(Clone, Debug)]
pub(crate) struct VipFact {
    pub(crate) name: Arc<str>,
    pub(crate) address: IpAddr,
    /// The index of the interface through which the kernel would send packets to the VIP, or the
    /// reason why there is no such interface.
    pub(crate) route: Result<u32, Unresolved>,
    /// The interfaces of all hops, if the route is a multipath route.
    pub(crate) several: Vec<u32>,
    /// The local address or loopback prefix that makes the VIP a local address.
    pub(crate) local: Option<OwnAddress>,
    /// The address of this machine whose subnet contains the VIP.
    pub(crate) subnet: Option<OwnAddress>,
}

/// An address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnAddress {
    pub(crate) address: IpAddr,
    pub(crate) prefix_length: u8,
    pub(crate) interface: String,
}

/// The path to one destination with one encapsulation. The destination is a backend, another
/// machine or another cluster.
#[derive(Clone, Debug)]
pub(crate) struct PathFact {
    /// The noun for the destination in messages, either `backend` or `machine`.
    pub(crate) noun: &'static str,
    /// The maximum size of an IP packet from a client, in bytes.
    pub(crate) clients: u32,
    pub(crate) backend: Arc<str>,
    pub(crate) address: IpAddr,
    /// The encapsulation, which is `gre`, `ipip`, `gue` or `l2`.
    pub(crate) kind: &'static str,
    /// `true` if packets are sent to the backend address and not to the VIP (`kv.path =
    /// "proxied"`). Routers can then forward the packets without outer headers.
    pub(crate) is_readdressed: bool,
    /// The size of the outer headers in bytes.
    pub(crate) encap_overhead: u32,
    pub(crate) next_hop: Result<Resolved, Unresolved>,
    /// All next hops of a multipath route. Empty if the route has one next hop.
    pub(crate) several: Vec<Hop>,
    /// The outgoing interface and its MTU in bytes. If the route uses several interfaces, this is
    /// the interface with the smallest MTU.
    pub(crate) link: Option<(String, u32)>,
    /// The result of the pings, or `None` if the address was not pinged.
    pub(crate) reach: Option<Reach>,
}

/// Facts about BGP and BFD.
#[derive(Clone, Debug)]
pub(crate) struct Routers {
    pub(crate) peers: Vec<PeerFact>,
    /// The configured listening addresses, each with the error that the kernel returned for a test
    /// socket.
    pub(crate) listens: Vec<(SocketAddr, Option<Errno>)>,
    /// `true` if the kernel supports TCP MD5 signatures. `None` if the support is unknown or not
    /// needed.
    pub(crate) signs_tcp: Option<bool>,
    /// The error that the kernel returned for a test socket on the BFD port. The port is tested
    /// only if a peer uses BFD.
    pub(crate) bfd_port: Option<Errno>,
}

/// A BGP peer.
#[derive(Clone, Debug)]
pub(crate) struct PeerFact {
    pub(crate) name: Arc<str>,
    pub(crate) address: IpAddr,
    /// The result of the route lookup. The error is the reason why packets to the peer cannot be
    /// sent.
    pub(crate) route: Result<(), Unresolved>,
    /// The gateway to the peer, or `None` if the peer is directly connected or there is no route.
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) hops: Option<u8>,
    pub(crate) has_bfd: bool,
    pub(crate) is_signed: bool,
    /// The configured source address of the session, if no local interface has it.
    pub(crate) absent_source: Option<IpAddr>,
}

/// The result of pings with the don't-fragment flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// No ping was answered.
    Silent,
    /// The size in bytes of the largest IP packet that was answered, which is at most the requested
    /// size.
    Longest(u32),
}

/// The directory of the admin socket.
#[derive(Clone, Debug)]
pub(crate) struct AdminFolder {
    pub(crate) path: PathBuf,
    pub(crate) state: FolderState,
    /// `true` if the configuration sets the path of the socket. In this case, the load balancer
    /// does not start without the directory.
    pub(crate) is_asked_for: bool,
}

/// The state of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolderState {
    Missing,
    NoFolder,
    NotWritable,
    /// Other users can create a socket in the directory.
    OpenToOthers,
    Sound,
}

impl Facts {
    /// Returns the interfaces whose properties could be read.
    pub(crate) fn usable(&self) -> impl Iterator<Item = &(Interface, Hardware)> {
        self.interfaces.iter().filter_map(|nic| nic.found.as_ref().ok())
    }

    /// Returns `true` if the load balancer sends frames on the interface with this index.
    pub(crate) fn sends_on(&self, index: u32) -> bool {
        self.usable().any(|(interface, _)| interface.index == index)
    }

    /// Returns a command that adds an address to the first interface whose properties could be
    /// read.
    pub(crate) fn address_command(&self, address: IpAddr) -> Option<String> {
        let (interface, _) = self.usable().next()?;
        Some(format!("ip address add {} dev {}", host_prefix(address), interface.name))
    }

    pub(crate) fn sockets_on(&self, interface: &Interface) -> u32 {
        self.sockets.unwrap_or(interface.queues)
    }

    /// Returns the number of threads that process packets of an interface. There is one thread for
    /// each socket and, with software steering, there are also the packet threads.
    pub(crate) fn threads_on(&self, interface: &Interface) -> u32 {
        self.sockets_on(interface) + self.threads.steered
    }

    /// Returns the processors on which the first `count` threads will run. The processors in `near`
    /// are close to the interface and are used first.
    pub(crate) fn thread_cpus(&self, count: u32, near: &Processors) -> Processors {
        order(&self.host.cpus, near).into_iter().take(count as usize).collect()
    }
}

impl PathFact {
    /// Returns the size in bytes of the largest client packet after encapsulation.
    pub(crate) fn needed(&self) -> u32 {
        self.clients + self.encap_overhead
    }
}

/// Formats the address with the prefix length of a single host, /32 or /128.
pub(crate) fn host_prefix(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}
