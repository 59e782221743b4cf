//! The steering program selects the packets for packet threads and delivers them to sockets. This
//! module loads the program and updates its filter. The BPF code is in `bpf/{steer,packet}.bpf.c`
//! and `bpf/whose.h`. The binary decides when VIPs are added to or removed from the filter.
//!
//! Invariant: the maps contain exactly the entries of the field `filter`. This field contains the
//! last filter that was passed to [`Steer::set_filter`].

mod filter;
mod handed;
mod maps;
mod prefixes;
mod program;
mod reserved;
mod several;
mod tables;
#[cfg(test)]
mod tests;
mod tunnel_endpoints;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use aya::maps::{MapData, PerCpuArray, XskMap};
use aya::{Ebpf, EbpfLoader};
use forwarder::{FILTER_PREFIXES, NoSocket};

pub use self::filter::Filter;
pub use self::handed::{MAPS_VERSION, SteerFacts};
pub use self::program::takes;
pub use self::reserved::ReservedPorts;
pub use self::several::Steers;
pub use self::tunnel_endpoints::TunnelEndpoints;

use self::filter::HeldFilter;
use self::maps::FilterMaps;
use self::tables::OWN_BUCKETS;
use self::tunnel_endpoints::EndpointMaps;
use crate::attach::{self, AttachError, AttachMode, Attachment, in_map};
use crate::ingress;
use crate::interface::Interface;

/// The options of a steering program. The options cannot change while the program is attached.
#[derive(Clone, Copy, Debug)]
pub struct SteerOptions {
    /// The maximum number of VIP addresses. The kernel reserves about 160 bytes for each address.
    pub max_vips: u32,
    /// The action of the program for VIP packets that arrive on a queue without a socket.
    pub no_socket: NoSocket,
    /// The number of queues that can have a socket. This is the highest possible queue number plus
    /// one.
    pub max_queues: u32,
}

/// The number of changes that [`Steer::set_filter`] made to the addresses and prefixes in its maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// The number of added entries.
    pub added: usize,
    /// The number of removed entries.
    pub removed: usize,
}

counters::xdp! {
    counters::stats! [
        /// The number of frames for each result. Each frame increments exactly one counter.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct SteerCounts
    ]
}

/// The reason why the program could not be attached or its maps could not be changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SteerError {
    /// The program could not be attached, or the kernel refused a change to a map
    /// ([`AttachError::Map`]).
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// There are more VIPs than the limit that was set at startup.
    #[error("{wanted} VIP addresses exceed io.max_vips = {allowed}")]
    TooManyVips {
        /// The number of VIP addresses in the new filter.
        wanted: usize,
        /// The limit, [`SteerOptions::max_vips`].
        allowed: u32,
    },
    /// There are more VIP prefixes than the program supports.
    #[error("{0} VIP prefixes exceed the limit of {FILTER_PREFIXES}")]
    TooManyPrefixes(usize),
    /// Too many addresses of this machine are inside VIP prefixes.
    #[error("{0} addresses of this machine are inside VIP prefixes, which exceeds the limit of {MAX_OWN}")]
    TooManyOwn(usize),
    /// There are too many tunnel endpoints or too many tunnel sources.
    #[error("{wanted} tunnel endpoints or sources exceed the limit of {allowed}")]
    TooManyTunnelEndpoints {
        /// The number of entries in the new set.
        wanted: usize,
        /// The maximum number of entries.
        allowed: usize,
    },
    /// Another process uses one of the source ports for upstream requests.
    #[error(
        "cannot reserve UDP port {port} of io.source_ports: {cause}; stop the process that uses it, or change io.source_ports"
    )]
    SourcePort {
        /// The source port that is in use.
        port: u16,
        /// The error that the kernel returned.
        cause: String,
    },
}

/// The mechanism that delivers filtered packets to the sockets.
enum Handover {
    /// The XDP program redirects packets to AF_XDP sockets.
    Redirect(XskMap<MapData>),
    /// Each packet socket uses the socket filter from this BPF object. The ingress program drops
    /// the packets that the sockets have received.
    Filter(Box<Ebpf>),
}

/// The steering program on one interface. Dropping the value detaches the program.
pub struct Steer {
    attachment: Attachment,
    maps: FilterMaps,
    handover: Handover,
    counts: PerCpuArray<MapData, u64>,
    /// The values that the counters had when this process took over the program.
    earlier_counts: SteerCounts,
    ends: EndpointMaps,
    filter: HeldFilter,
    max_vips: u32,
    /// Duplicates of the map descriptors, for a handover to another process. The list is empty for
    /// the ingress program.
    descriptors: Vec<OwnedFd>,
}

impl Steer {
    /// Attaches the XDP program to `interface`. Driver mode is tried first, then generic mode. The
    /// filter is empty at first, and no queue has a socket.
    ///
    /// # Errors
    /// [`AttachError`], for example if another XDP program is attached, or if the interface is a
    /// member of a bond.
    ///
    /// # Cost
    /// About 40 ms. On many NICs, attaching the program also takes the link down for about a
    /// second.
    pub fn attach(interface: &str, options: &SteerOptions) -> Result<Self, SteerError> {
        let interface = attach::free_interface(interface)?;
        let no_socket_verdict = match options.no_socket {
            NoSocket::Pass => XDP_PASS,
            NoSocket::Drop => XDP_DROP,
        };
        let mut loader = EbpfLoader::new();
        loader
            .override_global("no_socket_verdict", &no_socket_verdict, true)
            .map_max_entries("xsks", options.max_queues.max(1));
        let mut ebpf = load(loader, OBJECT, options.max_vips)?;
        let descriptors = handed::descriptors(&ebpf)?;
        let maps = Maps::new(&mut ebpf, options.max_vips)?;
        let handover = Handover::Redirect(attach::map(&mut ebpf, "xsks")?);
        let attachment = attach::attach(ebpf, ["steer", "steer_frags"], &interface)?;
        Ok(Self::new(attachment, maps, handover, options.max_vips, descriptors))
    }

    /// Attaches the ingress program to `interface` with an empty filter. Packet sockets receive the
    /// filtered packets after a call to [`Self::attach_filter`]. Received packets start at the
    /// Ethernet header, without headroom.
    ///
    /// # Errors
    /// [`AttachError`], for example if the kernel is too old.
    pub fn attach_ingress(interface: &str, max_vips: u32) -> Result<Self, SteerError> {
        let interface = Interface::read(interface).map_err(AttachError::from)?;
        let mut loader = EbpfLoader::new();
        // The standard library seeds `RandomState` from system randomness.
        let classified = RandomState::new().hash_one(0_u8);
        loader.override_global("classified", &classified, true);
        let mut ebpf = load(loader, PACKET_OBJECT, max_vips)?;
        let maps = Maps::new(&mut ebpf, max_vips)?;
        ingress::load_socket_filter(&mut ebpf)?;
        let attachment = ingress::attach(&mut ebpf, &interface)?;
        Ok(Self::new(attachment, maps, Handover::Filter(Box::new(ebpf)), max_vips, Vec::new()))
    }

    fn new(
        attachment: Attachment,
        maps: Maps,
        handover: Handover,
        max_vips: u32,
        descriptors: Vec<OwnedFd>,
    ) -> Self {
        let Maps { filter: maps, counts, ends } = maps;
        let filter = HeldFilter::default();
        let earlier_counts = SteerCounts::default();
        Self { attachment, maps, handover, counts, earlier_counts, ends, filter, max_vips, descriptors }
    }

    /// Returns the mode in which the program runs.
    #[must_use]
    pub const fn mode(&self) -> AttachMode {
        self.attachment.mode
    }

    /// Returns the ID of the program in the kernel.
    pub(crate) const fn program(&self) -> u32 {
        self.attachment.program
    }

    /// Returns `true` if the calling thread has the capabilities to change the filter. The check
    /// tries a change that has no effect.
    #[must_use]
    pub fn may_change(&mut self) -> bool {
        self.maps.settle().is_ok()
    }

    /// Redirects packets from `queue` to `socket`, an AF_XDP socket that is bound to that queue.
    /// The kernel removes the socket from the map when the socket is closed.
    ///
    /// # Errors
    /// [`AttachError::Map`] if the queue does not exist, or if `socket` is not an AF_XDP socket.
    pub fn set_socket(&mut self, queue: u32, socket: &impl AsRawFd) -> Result<(), SteerError> {
        Ok(self.redirects()?.set(queue, socket.as_raw_fd(), 0).map_err(in_map("xsks"))?)
    }

    /// Stops redirecting packets from `queue`. Has no effect if the queue has no socket.
    ///
    /// # Errors
    /// [`AttachError::Map`] if the queue does not exist.
    pub fn clear_socket(&mut self, queue: u32) -> Result<(), SteerError> {
        Ok(self.redirects()?.unset(queue).map_err(in_map("xsks"))?)
    }

    fn redirects(&mut self) -> Result<&mut XskMap<MapData>, AttachError> {
        match &mut self.handover {
            Handover::Redirect(sockets) => Ok(sockets),
            Handover::Filter(_) => Err(AttachError::Part("xsks")),
        }
    }

    /// Attaches the socket filter to a packet socket, so that the socket receives only packets for
    /// VIPs.
    ///
    /// # Errors
    /// [`AttachError`] if the kernel refuses the filter, or if this program redirects packets to
    /// AF_XDP sockets.
    pub fn attach_filter(&self, socket: BorrowedFd<'_>) -> Result<(), SteerError> {
        match &self.handover {
            Handover::Redirect(_) => Err(AttachError::Part("take").into()),
            Handover::Filter(ebpf) => Ok(ingress::filter_socket(ebpf, socket)?),
        }
    }

    /// Returns the current filter.
    #[must_use]
    pub const fn filter(&self) -> &Filter {
        self.filter.get()
    }

    /// Replaces the filter in one step. Packets to an address that is in both the old and the new
    /// filter are redirected without interruption. Packets to an address that is in neither filter
    /// always go to the kernel.
    ///
    /// # Errors
    /// The filter is unchanged after [`SteerError::TooManyVips`], [`SteerError::TooManyPrefixes`]
    /// or [`SteerError::TooManyOwn`]. After [`AttachError::Map`], the program uses the old or the
    /// new filter, and another call completes the change.
    ///
    /// # Cost
    /// Writes a table with room for all VIPs, and makes four system calls. One of them waits until
    /// no program reads the old filter anymore, which takes some milliseconds. Packet threads must
    /// not call this function.
    pub fn set_filter(&mut self, wanted: &Filter) -> Result<Changed, SteerError> {
        check(wanted, self.max_vips)?;
        self.exchange(wanted)
    }

    /// Removes all entries that `next` does not contain, without adding any. This call is the first
    /// half of a filter change to `next`. The second half is [`Self::set_filter`], after the packet
    /// threads have received the new entries.
    ///
    /// # Errors
    /// The errors are the same as for [`Self::set_filter`].
    pub fn narrow_to(&mut self, next: &Filter) -> Result<Changed, SteerError> {
        self.exchange(&self.filter.get().narrowed_to(next))
    }

    /// Sets the tunnel endpoints of this machine. Packet threads receive tunneled packets from
    /// allowed senders, and ICMP errors about encapsulated packets from this machine. The kernel
    /// receives all other packets to the machine.
    ///
    /// # Errors
    /// [`SteerError::TooManyTunnelEndpoints`] if there are too many entries. After
    /// [`AttachError::Map`], the change is partial, and another call completes it.
    pub fn set_tunnel_endpoints(&mut self, wanted: &TunnelEndpoints) -> Result<(), SteerError> {
        self.ends.set(wanted)
    }

    /// Returns the counters since the program was attached, summed over all CPUs.
    ///
    /// # Errors
    /// [`AttachError::Map`] if the kernel cannot read a counter.
    ///
    /// # Cost
    /// One system call for each counter.
    pub fn counts(&self) -> Result<SteerCounts, SteerError> {
        let mut values = self.earlier_counts.values();
        for (place, value) in (0..).zip(&mut values) {
            *value = attach::total(&self.counts, place).map_err(in_map("counts"))?.wrapping_sub(*value);
        }
        Ok(SteerCounts::from_values(values))
    }

    /// Sets the counters to 0 for this process. The counters of another process that uses the same
    /// program do not change.
    ///
    /// # Errors
    /// The errors are the same as for [`Steer::counts`].
    pub fn restart_counts(&mut self) -> Result<(), SteerError> {
        let since = self.counts()?;
        self.earlier_counts.add(&since);
        Ok(())
    }

    fn exchange(&mut self, wanted: &Filter) -> Result<Changed, SteerError> {
        self.filter.change(wanted, |filter| self.maps.set(filter))
    }
}

/// The maps that the XDP program and the ingress program both use.
struct Maps {
    filter: FilterMaps,
    counts: PerCpuArray<MapData, u64>,
    ends: EndpointMaps,
}

impl Maps {
    fn new(ebpf: &mut Ebpf, max_vips: u32) -> Result<Self, SteerError> {
        let take = |name| ebpf.take_map(name).ok_or(AttachError::Part(name));
        Ok(Self {
            filter: FilterMaps::new(take, max_vips)?,
            counts: attach::map(ebpf, "counts")?,
            ends: EndpointMaps::new(attach::map(ebpf, "ends")?, attach::map(ebpf, "sources")?),
        })
    }
}

fn load(mut loader: EbpfLoader<'_>, object: &[u8], max_vips: u32) -> Result<Ebpf, AttachError> {
    let vips = maps::buckets(max_vips).saturating_mul(2);
    loader.map_max_entries("vips4", vips).map_max_entries("vips6", vips);
    loader.map_max_entries("own", 2 * OWN_BUCKETS);
    attach::load(&mut loader, object)
}

impl fmt::Debug for Steer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steer")
            .field("mode", &self.mode())
            .field("filter", self.filter.get())
            .finish_non_exhaustive()
    }
}

/// Checks the number of entries in a filter.
fn check(wanted: &Filter, max_vips: u32) -> Result<(), SteerError> {
    let (vips, prefixes, own) = (wanted.vips.len(), wanted.prefixes.len(), wanted.own.len());
    if vips > max_vips as usize {
        return Err(SteerError::TooManyVips { wanted: vips, allowed: max_vips });
    }
    if prefixes > FILTER_PREFIXES {
        return Err(SteerError::TooManyPrefixes(prefixes));
    }
    if own > MAX_OWN as usize {
        return Err(SteerError::TooManyOwn(own));
    }
    Ok(())
}

/// The maximum number of this machine's addresses that are inside VIP prefixes.
pub const MAX_OWN: u32 = 1_024;
/// Constants of Linux `include/uapi/linux/bpf.h`.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));
static PACKET_OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/packet.bpf.o"));
