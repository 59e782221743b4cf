//! What is known of the machine at one moment: everything that a judgement may rest on.
//!
//! In: filled by `gather` and `reach`. Out: plain values. Not here: files, sockets, opinions.
//! Invariant: a fact that could not be learned is `None` or empty, and no judgement is made of it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use datapath::interface::{Hardware, Interface, Privileges};
use datapath::placement::{Processors, order};
use next_hop::{Resolved, Unresolved};
use nix::errno::Errno;

#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) host: Host,
    pub(crate) interfaces: Vec<Nic>,
    pub(crate) vips: Vec<VipFact>,
    pub(crate) paths: Vec<PathFact>,
    /// `None`: the file has no peers for this machine.
    pub(crate) routers: Option<Routers>,
    /// The machine's own addresses of the configuration that no interface here has.
    pub(crate) absent_addresses: Vec<IpAddr>,
    /// Families whose backends could not be asked, and why not.
    pub(crate) unasked: Vec<String>,
    /// Packet sockets, and no XDP.
    pub(crate) has_packet_sockets: bool,
    /// Sockets wanted on each interface; `None`: one a queue.
    pub(crate) sockets: Option<u32>,
    pub(crate) frames_per_queue: u32,
    /// Bytes.
    pub(crate) frame_size: u32,
    pub(crate) flows_per_thread: usize,
    pub(crate) threads: Threads,
    pub(crate) admin: Option<AdminFolder>,
    /// A balancer answers at the admin socket: an XDP program on the interface is its own.
    pub(crate) is_running: bool,
}

/// What packet threads are to be.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Threads {
    /// How many software steering gives packets to; 0: each queue has one.
    pub(crate) steered: u32,
    /// They spin and never sleep.
    pub(crate) spins: bool,
    /// Drivers are to run in their system calls.
    pub(crate) polls: bool,
}

/// The machine itself.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// As `uname -r` says it.
    pub(crate) kernel: String,
    pub(crate) knows_af_xdp: Option<bool>,
    /// `net.core.bpf_jit_enable`.
    pub(crate) bpf_jit: Option<u32>,
    pub(crate) privileges: Option<Privileges>,
    /// Bytes; `None`: no limit, or not known.
    pub(crate) memlock: Option<u64>,
    pub(crate) clock_is_synchronised: Option<bool>,
    /// The chosen word of `/sys/kernel/mm/transparent_hugepage/enabled`.
    pub(crate) huge_pages: Option<String>,
    /// The processors that this process may use.
    pub(crate) cpus: Processors,
    /// Those that the kernel schedules only what asks for them on.
    pub(crate) isolated: Processors,
    pub(crate) irqbalance: bool,
}

/// An interface that VIP traffic arrives on.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    pub(crate) name: String,
    /// `Err`: it could not be read, in words.
    pub(crate) found: Result<(Interface, Hardware), String>,
    /// The stricter of `all` and the interface's own, as the kernel takes it: 0 off, 1 strict, 2 loose.
    pub(crate) rp_filter: Option<u8>,
    /// The kernel forwards IPv4 that arrives here.
    pub(crate) forwards_v4: bool,
    /// The kernel forwards IPv6.
    pub(crate) forwards_v6: bool,
    /// It has interrupts of its own.
    pub(crate) has_interrupts: bool,
    /// Its interrupts stay away while a thread asks its driver: `napi_defer_hard_irqs` and `gro_flush_timeout` are both set.
    pub(crate) defers_interrupts: Option<bool>,
}

/// An address of a VIP.
#[derive(Clone, Debug)]
pub(crate) struct VipFact {
    pub(crate) name: Arc<str>,
    pub(crate) address: IpAddr,
    /// The interface that the kernel would send it to.
    pub(crate) route: Result<u32, Unresolved>,
    /// The address of this machine that covers it.
    pub(crate) local: Option<OwnAddress>,
}

/// An address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnAddress {
    pub(crate) address: IpAddr,
    pub(crate) prefix_length: u8,
    pub(crate) interface: String,
}

/// The path to a backend, another machine or another cluster under one encapsulation.
#[derive(Clone, Debug)]
pub(crate) struct PathFact {
    /// `backend` or `machine`.
    pub(crate) noun: &'static str,
    /// The longest IP packet that clients send, in bytes.
    pub(crate) clients: u32,
    pub(crate) backend: Arc<str>,
    pub(crate) address: IpAddr,
    /// `gre`, `ipip`, `gue` or `l2`.
    pub(crate) kind: &'static str,
    /// Packets to it have its own address (kv.path = "through"), so that routers know the way.
    pub(crate) is_readdressed: bool,
    /// Bytes that the outer headers add.
    pub(crate) encap_overhead: u32,
    pub(crate) next_hop: Result<Resolved, Unresolved>,
    /// The interface that it leaves by, and its MTU in bytes.
    pub(crate) link: Option<(String, u32)>,
    /// `None`: not asked.
    pub(crate) reach: Option<Reach>,
}

/// What BGP and BFD rest on.
#[derive(Clone, Debug)]
pub(crate) struct Routers {
    pub(crate) peers: Vec<PeerFact>,
    /// Where this machine is to listen, and what the kernel says against it.
    pub(crate) listens: Vec<(SocketAddr, Option<Errno>)>,
    /// The kernel signs TCP segments with MD5; `None`: not known, or not asked.
    pub(crate) signs_tcp: Option<bool>,
    /// What the kernel says against hearing BFD, where a peer has it.
    pub(crate) bfd_port: Option<Errno>,
}

/// A router.
#[derive(Clone, Debug)]
pub(crate) struct PeerFact {
    pub(crate) name: Arc<str>,
    pub(crate) address: IpAddr,
    /// Why packets for it cannot leave now.
    pub(crate) route: Result<(), Unresolved>,
    /// The router before it; `None`: it is on a link of this machine, or there is no route.
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) hops: Option<u8>,
    pub(crate) has_bfd: bool,
    pub(crate) is_signed: bool,
    /// The address to dial from, when no interface here has it.
    pub(crate) absent_source: Option<IpAddr>,
}

/// What pings with DF set say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Not even a small one was answered.
    Silent,
    /// The longest IP packet that was answered, in bytes, up to what was asked for.
    Longest(u32),
}

/// Where the admin socket is to be.
#[derive(Clone, Debug)]
pub(crate) struct AdminFolder {
    pub(crate) path: PathBuf,
    pub(crate) state: FolderState,
    /// The file names the socket: without it the balancer does not start.
    pub(crate) is_asked_for: bool,
}

/// What became of looking at a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolderState {
    Missing,
    NoFolder,
    NotWritable,
    /// Others may put a socket of their own there.
    OpenToOthers,
    Sound,
}

impl Facts {
    /// The interfaces that could be read.
    pub(crate) fn usable(&self) -> impl Iterator<Item = &(Interface, Hardware)> {
        self.interfaces.iter().filter_map(|nic| nic.found.as_ref().ok())
    }

    /// What gives the first interface that could be read an address of a host.
    pub(crate) fn address_command(&self, address: IpAddr) -> Option<String> {
        let (interface, _) = self.usable().next()?;
        Some(format!("ip address add {} dev {}", host_prefix(address), interface.name))
    }

    /// Sockets on an interface.
    pub(crate) fn sockets_on(&self, interface: &Interface) -> u32 {
        self.sockets.unwrap_or(interface.queues)
    }

    /// Threads that carry an interface's packets: one for each socket, and those that software steering gives packets to.
    pub(crate) fn threads_on(&self, interface: &Interface) -> u32 {
        self.sockets_on(interface) + self.threads.steered
    }

    /// The processors that `count` threads will be on, of an interface that is `near` to some.
    pub(crate) fn thread_cpus(&self, count: u32, near: &Processors) -> Processors {
        order(&self.host.cpus, near).into_iter().take(count as usize).collect()
    }
}

impl PathFact {
    /// The longest outer packet that clients can cause, in bytes.
    pub(crate) fn needed(&self) -> u32 {
        self.clients + self.encap_overhead
    }
}

/// The address as commands take it, with its length when it is a host's.
pub(crate) fn host_prefix(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}
