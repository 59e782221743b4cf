//! The steering program, from outside: which addresses it takes from the kernel, and which sockets get them.
//!
//! In: a [`Filter`], sockets. Out: counts.
//! Not here: the programs (`bpf/{steer,packet}.bpf.c`, which ask `bpf/whose.h`), rings and frames, when a VIP comes and goes (the binary).
//! Invariant: what [`Steer::set_filter`] was given last is what the maps hold, and each of their entries is in
//! `filter` too. The first byte of a frame says how far its head was moved: [`head_room_bytes`].

mod ends;
mod filter;
mod handed;
mod prefixes;
mod program;
mod reserved;
mod several;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use aya::maps::{HashMap, MapData, MapError, PerCpuArray, XskMap};
use aya::{Ebpf, EbpfLoader};
use forwarder::{FILTER_PREFIXES, NoSocket};

pub use self::ends::Ends;
pub use self::filter::Filter;
pub use self::handed::{MAPS_VERSION, SteerFacts};
pub use self::program::takes;
pub use self::reserved::ReservedPorts;
pub use self::several::Steers;

use self::ends::EndMaps;
use self::prefixes::PrefixMaps;
use crate::attach::{self, AttachError, AttachMode, Attachment, in_map};
use crate::ingress;
use crate::interface::{Interface, MAX_ENCAP_OVERHEAD_BYTES};

/// What cannot be changed while the program is attached.
#[derive(Clone, Copy, Debug)]
pub struct SteerOptions {
    /// How many addresses of VIPs may be there at once. The kernel sets aside about 160 bytes for each.
    pub max_vips: u32,
    /// What becomes of a packet for a VIP on a queue without a socket.
    pub no_socket: NoSocket,
    /// Queues that can have a socket: one more than the highest queue's number.
    pub max_queues: u32,
}

/// What [`Steer::set_filter`] did to the entries of its maps: addresses and prefixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Entries that were not there.
    pub added: usize,
    /// Entries that said something else, such as another encapsulation overhead.
    pub updated: usize,
    /// Entries that are gone.
    pub removed: usize,
}

impl Changed {
    fn written(&mut self, is_new: bool) {
        self.added += usize::from(is_new);
        self.updated += usize::from(!is_new);
    }
}

counters::xdp! {
    counters::stats! [
        /// Frames by what the program did with them. Each frame of the interface moves exactly one.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct SteerCounts
    ]
}

/// Why the program was not attached, or its maps not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SteerError {
    /// The program is not attached, or the kernel refused a change ([`AttachError::Map`]).
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// More VIPs than the start-time limit.
    #[error("{wanted} VIPs wanted, {allowed} allowed")]
    TooManyVips {
        /// How many there would be.
        wanted: usize,
        /// [`SteerOptions::max_vips`].
        allowed: u32,
    },
    /// More prefixes than the program looks through for a packet.
    #[error("{0} prefixes wanted, {FILTER_PREFIXES} allowed")]
    TooManyPrefixes(usize),
    /// More addresses of this machine within prefixes than there is room for.
    #[error("{0} of this machine's addresses lie in prefixes of VIPs, {MAX_OWN} are allowed")]
    TooManyOwn(usize),
    /// More addresses of tunnels' ends, or of those who send to them, than there is room for.
    #[error("{wanted} tunnel ends or sources wanted, {allowed} allowed")]
    TooManyEnds {
        /// How many there would be.
        wanted: usize,
        /// How many there may be.
        allowed: usize,
    },
    /// A port for requests of our own that somebody else has.
    #[error(
        "UDP port {port}, of io.own_ports, cannot be reserved: {cause}; end what has it, or give io.own_ports others"
    )]
    OwnPort {
        /// Which.
        port: u16,
        /// What the kernel says.
        cause: String,
    },
    /// More head room than a mark can hold.
    #[error("{what} wants {growth_bytes} bytes of head room, at most {MAX_ENCAP_OVERHEAD_BYTES} are allowed")]
    GrowthTooLarge {
        /// The VIP or the prefix.
        what: String,
        /// What it wants, in bytes.
        growth_bytes: u8,
    },
}

/// By which way sockets get what is taken.
enum Handover {
    /// The program redirects to them.
    Redirect(XskMap<MapData>),
    /// Each has a filter of this object, and the program drops what they have had.
    Filter(Box<Ebpf>),
}

/// The steering program on one interface. Dropping it leaves the interface as it was found.
pub struct Steer {
    attachment: Attachment,
    addresses: HashMap<MapData, [u8; 16], u32>,
    prefixes: PrefixMaps,
    handover: Handover,
    counts: PerCpuArray<MapData, u64>,
    ends: EndMaps,
    /// What they hold.
    filter: Filter,
    max_vips: u32,
    /// Of the maps, for another process; none of the ingress program's.
    descriptors: Vec<OwnedFd>,
}

impl Steer {
    /// Attaches the XDP program to `interface`, in the driver or else generic, with no VIP and no socket.
    ///
    /// # Errors
    /// [`AttachError`]: among others, when another XDP program is there, or the interface is a bond's slave.
    /// # Cost
    /// Some 40 ms, and on many NICs a second without link.
    pub fn attach(interface: &str, options: &SteerOptions) -> Result<Self, SteerError> {
        let interface = attach::free_interface(interface)?;
        let no_socket_drops = u8::from(options.no_socket == NoSocket::Drop);
        let mut loader = EbpfLoader::new();
        loader
            .override_global("no_socket_drops", &no_socket_drops, true)
            .map_max_entries("xsks", options.max_queues.max(1));
        let mut ebpf = load(loader, OBJECT, options.max_vips)?;
        let descriptors = handed::descriptors(&ebpf)?;
        let maps = Maps::new(&mut ebpf)?;
        let handover = Handover::Redirect(attach::map(&mut ebpf, "xsks")?);
        let attachment = attach::attach(ebpf, ["steer", "steer_frags"], &interface)?;
        Ok(Self::new(attachment, maps, handover, options.max_vips, descriptors))
    }

    /// Attaches the ingress program to `interface`, with no VIP: packet sockets with [`Self::attach_filter`] get what it takes
    /// from the kernel. What they get starts at its Ethernet header: no head room is opened.
    ///
    /// # Errors
    /// [`AttachError`]: among others, when the kernel is too old.
    pub fn attach_ingress(interface: &str, max_vips: u32) -> Result<Self, SteerError> {
        let interface = Interface::read(interface).map_err(AttachError::from)?;
        let mut ebpf = load(EbpfLoader::new(), PACKET_OBJECT, max_vips)?;
        let maps = Maps::new(&mut ebpf)?;
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
        let Maps { addresses, prefixes, counts, ends } = maps;
        let filter = Filter::default();
        Self { attachment, addresses, prefixes, handover, counts, ends, filter, max_vips, descriptors }
    }

    /// Where the program runs.
    #[must_use]
    pub const fn mode(&self) -> AttachMode {
        self.attachment.mode
    }

    /// The kernel's id of the program.
    pub(crate) const fn program(&self) -> u32 {
        self.attachment.program
    }

    /// Whether the calling thread may change the filter, with the capabilities that it has now: asks for a change that
    /// changes nothing.
    #[must_use]
    pub fn may_change(&mut self) -> bool {
        // No VIP is the unspecified address, so that there is nothing to remove.
        match self.addresses.remove(&[0; 16]) {
            Ok(()) | Err(MapError::KeyNotFound | MapError::ElementNotFound) => true,
            Err(MapError::SyscallError(error)) => error.io_error.kind() == std::io::ErrorKind::NotFound,
            Err(_) => false,
        }
    }

    /// Gives what comes on `queue` to `socket`, an AF_XDP socket bound to that queue. The map holds no
    /// descriptor: a socket that is closed leaves it by itself.
    ///
    /// # Errors
    /// [`AttachError::Map`]: no such queue, or not an AF_XDP socket.
    pub fn set_socket(&mut self, queue: u32, socket: &impl AsRawFd) -> Result<(), SteerError> {
        Ok(self.redirects()?.set(queue, socket.as_raw_fd(), 0).map_err(in_map("xsks"))?)
    }

    /// Leaves `queue` without a socket. One that has none is left as it is.
    ///
    /// # Errors
    /// [`AttachError::Map`]: no such queue.
    pub fn clear_socket(&mut self, queue: u32) -> Result<(), SteerError> {
        Ok(self.redirects()?.unset(queue).map_err(in_map("xsks"))?)
    }

    fn redirects(&mut self) -> Result<&mut XskMap<MapData>, AttachError> {
        match &mut self.handover {
            Handover::Redirect(sockets) => Ok(sockets),
            Handover::Filter(_) => Err(AttachError::Part("xsks")),
        }
    }

    /// Lets a packet socket have what is taken, and nothing else.
    ///
    /// # Errors
    /// [`AttachError`]: what the kernel says, or that the program is one for AF_XDP sockets.
    pub fn attach_filter(&self, socket: BorrowedFd<'_>) -> Result<(), SteerError> {
        match &self.handover {
            Handover::Redirect(_) => Err(AttachError::Part("take").into()),
            Handover::Filter(ebpf) => Ok(ingress::filter_socket(ebpf, socket)?),
        }
    }

    /// What is taken from the kernel.
    #[must_use]
    pub const fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Takes exactly what `wanted` says from the kernel. What is new comes first, then what is not wanted goes; at no moment
    /// has an address that both leave to the kernel been taken, or one that both take been left.
    ///
    /// # Errors
    /// [`SteerError::TooManyVips`], [`SteerError::TooManyPrefixes`], [`SteerError::TooManyOwn`] and
    /// [`SteerError::GrowthTooLarge`] before anything is changed; [`AttachError::Map`] with a part done, which another call
    /// completes.
    /// # Cost
    /// One system call a changed address, and two for all prefixes, the second of which waits until no program reads the old
    /// ones: some milliseconds. Not for a packet thread.
    pub fn set_filter(&mut self, wanted: &Filter) -> Result<Changed, SteerError> {
        check(wanted, self.max_vips)?;
        self.exchange(wanted)
    }

    /// Leaves to the kernel what `next` does not take, and takes nothing new: the first half of a change to `next`, while
    /// the threads do not know yet what is new.
    ///
    /// # Errors
    /// As [`Self::set_filter`].
    pub fn narrow_to(&mut self, next: &Filter) -> Result<Changed, SteerError> {
        self.exchange(&self.filter.narrowed_to(next))
    }

    /// Hands over tunnelled packets that end at this machine, from those who may send them, and errors about outer packets
    /// of its own. All else that is sent to it remains the kernel's.
    ///
    /// # Errors
    /// [`SteerError::TooManyEnds`], or [`AttachError::Map`] with a part done, which another call completes.
    pub fn set_ends(&mut self, wanted: &Ends) -> Result<(), SteerError> {
        self.ends.set(wanted)
    }

    /// What the program has done since it was attached, summed over the CPUs.
    ///
    /// # Errors
    /// [`AttachError::Map`].
    /// # Cost
    /// A system call for each of them.
    pub fn counts(&self) -> Result<SteerCounts, SteerError> {
        let mut values = SteerCounts::default().values();
        for (place, value) in (0..).zip(&mut values) {
            *value = attach::total(&self.counts, place).map_err(in_map("counts"))?;
        }
        Ok(SteerCounts::from_values(values))
    }

    /// Addresses first: the machine's own must be there before a prefix covers them, and stay until none does.
    fn exchange(&mut self, wanted: &Filter) -> Result<Changed, SteerError> {
        let mut changed = Changed::default();
        self.write(wanted, &mut changed)?;
        self.exchange_prefixes(wanted, &mut changed)?;
        self.remove(wanted, &mut changed)?;
        Ok(changed)
    }

    fn write(&mut self, wanted: &Filter, changed: &mut Changed) -> Result<(), SteerError> {
        for (address, value) in wanted.entries() {
            let before = self.filter.entry(address);
            if before != Some(value) {
                self.addresses.insert(attach::key(address), value, 0).map_err(in_map("vips"))?;
                self.filter.set_entry(address, Some(value));
                changed.written(before.is_none());
            }
        }
        Ok(())
    }

    /// All in one step.
    fn exchange_prefixes(&mut self, wanted: &Filter, changed: &mut Changed) -> Result<(), SteerError> {
        let held = &self.filter.prefixes;
        if *held == wanted.prefixes {
            return Ok(());
        }
        self.prefixes.set(&wanted.prefixes)?;
        for (prefix, encap_overhead) in &wanted.prefixes {
            let before = held.get(prefix);
            if before != Some(encap_overhead) {
                changed.written(before.is_none());
            }
        }
        changed.removed += held.keys().filter(|prefix| !wanted.prefixes.contains_key(prefix)).count();
        self.filter.prefixes.clone_from(&wanted.prefixes);
        Ok(())
    }

    fn remove(&mut self, wanted: &Filter, changed: &mut Changed) -> Result<(), SteerError> {
        let gone = |(address, _): (IpAddr, u32)| wanted.entry(address).is_none().then_some(address);
        for address in self.filter.entries().filter_map(gone).collect::<Vec<_>>() {
            self.addresses.remove(&attach::key(address)).map_err(in_map("vips"))?;
            self.filter.set_entry(address, None);
            changed.removed += 1;
        }
        Ok(())
    }
}

/// What both programs ask.
struct Maps {
    addresses: HashMap<MapData, [u8; 16], u32>,
    prefixes: PrefixMaps,
    counts: PerCpuArray<MapData, u64>,
    ends: EndMaps,
}

impl Maps {
    fn new(ebpf: &mut Ebpf) -> Result<Self, SteerError> {
        Ok(Self {
            addresses: attach::map(ebpf, "vips")?,
            prefixes: PrefixMaps::new(ebpf)?,
            counts: attach::map(ebpf, "counts")?,
            ends: EndMaps::new(attach::map(ebpf, "ends")?, attach::map(ebpf, "sources")?),
        })
    }
}

fn load(mut loader: EbpfLoader<'_>, object: &[u8], max_vips: u32) -> Result<Ebpf, AttachError> {
    // Twice, so that a wholly other set can come before the old one goes.
    loader.map_max_entries("vips", max_vips.saturating_add(MAX_OWN).saturating_mul(2));
    attach::load(&mut loader, object)
}

impl fmt::Debug for Steer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steer")
            .field("mode", &self.mode())
            .field("filter", &self.filter)
            .finish_non_exhaustive()
    }
}

/// How many bytes lie in front of the Ethernet header of a frame that the program redirected.
///
/// The program marks the first of them with `2 encapsulation overhead + 1`. A frame whose head was not moved starts with
/// its destination's first byte, which is even: the program redirects nothing that is sent to a group.
#[must_use]
#[inline]
pub const fn head_room_bytes(first_byte: u8) -> u8 {
    if first_byte & 1 == 1 { first_byte >> 1 } else { 0 }
}

/// No encapsulation overhead too large, nothing more than there is room for.
fn check(wanted: &Filter, max_vips: u32) -> Result<(), SteerError> {
    let too_large = |encap_overhead: &u8| *encap_overhead > MAX_ENCAP_OVERHEAD_BYTES;
    let vip = wanted.vips.iter().find(|(_, encap_overhead)| too_large(encap_overhead));
    let prefix = wanted.prefixes.iter().find(|(_, encap_overhead)| too_large(encap_overhead));
    let found = vip.map(|(vip, encap_overhead)| (vip.to_string(), *encap_overhead));
    if let Some((what, growth_bytes)) =
        found.or_else(|| prefix.map(|(prefix, encap_overhead)| (prefix.to_string(), *encap_overhead)))
    {
        return Err(SteerError::GrowthTooLarge { what, growth_bytes });
    }
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

/// How many of the machine's own addresses may lie in prefixes.
pub const MAX_OWN: u32 = 1_024;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));
static PACKET_OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/packet.bpf.o"));
