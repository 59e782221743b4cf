//! The steering program, from outside: which addresses it takes from the kernel, and which sockets get them.
//!
//! In: VIPs with the head room that each wants, one socket a queue. Out: counts.
//! Not here: the program (`bpf/steer.bpf.c`), rings and frames, when a VIP comes and goes (the binary).
//! Invariant: what [`Steer::set_vips`] was given last is what the map holds, and each of its entries is in
//! `vips` too. The first byte of a frame says how far its head was moved: [`head_room_bytes`].

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use aya::EbpfLoader;
use aya::maps::{HashMap, MapData, MapError, PerCpuArray, XskMap};

use crate::attach::{self, AttachError, AttachMode, Attachment};

/// What cannot be changed while the program is attached.
#[derive(Clone, Copy, Debug)]
pub struct SteerOptions {
    /// How many VIPs may be there at once. The kernel sets aside about 160 bytes for each.
    pub max_vips: u32,
    /// What becomes of a packet for a VIP on a queue without a socket.
    pub no_socket: NoSocket,
    /// Queues that can have a socket: one more than the highest queue's number.
    pub max_queues: u32,
}

/// What becomes of a packet for a VIP on a queue without a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoSocket {
    /// The kernel gets it, untouched.
    #[default]
    Pass,
    /// It is dropped.
    Drop,
}

/// What [`Steer::set_vips`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// VIPs that were not there.
    pub added: usize,
    /// VIPs that had another growth.
    pub updated: usize,
    /// VIPs that are gone.
    pub removed: usize,
}

/// Frames by what the program did with them. Each frame of the interface moves exactly one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteerCounts {
    /// For a VIP, and given to its queue's socket. A full ring can still drop it: the socket counts that.
    pub redirected: u64,
    /// Not for a VIP, or not to be parsed: the kernel got it.
    pub passed: u64,
    /// Sent to a group address of Ethernet: the kernel got it.
    pub multicast: u64,
    /// For a VIP, of ICMPv6's types 133 to 137: the kernel got it.
    pub neighbour_discovery: u64,
    /// For a VIP, on a queue without a socket: passed or dropped, as [`NoSocket`] says.
    pub no_socket: u64,
    /// For a VIP, and the driver had no room in front of the frame: dropped.
    pub no_head_room: u64,
    /// For a VIP, and the socket went away meanwhile: dropped.
    pub socket_gone: u64,
}

/// Why the program was not attached, or its maps not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SteerError {
    /// The program is not attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The kernel refused a change.
    #[error("cannot use map `{map}`")]
    Map {
        /// The map's name.
        map: &'static str,
        /// What the kernel said.
        source: MapError,
    },
    /// More VIPs than the start-time limit.
    #[error("{wanted} VIPs wanted, {allowed} allowed")]
    TooManyVips {
        /// How many there would be.
        wanted: usize,
        /// [`SteerOptions::max_vips`].
        allowed: u32,
    },
    /// More head room than a mark can tell.
    #[error("{vip} wants {growth_bytes} bytes of head room, at most {MAX_GROWTH_BYTES} are allowed")]
    GrowthTooLarge {
        /// The VIP.
        vip: IpAddr,
        /// What it wants, in bytes.
        growth_bytes: u8,
    },
}

/// The steering program on one interface. Dropping it leaves the interface as it was found.
pub struct Steer {
    attachment: Attachment,
    addresses: HashMap<MapData, [u8; 16], u32>,
    sockets: XskMap<MapData>,
    counts: PerCpuArray<MapData, u64>,
    /// What `addresses` holds.
    vips: BTreeMap<IpAddr, u8>,
    max_vips: u32,
}

impl Steer {
    /// Attaches the program to `interface`, in the driver or else generic, with no VIP and no socket.
    ///
    /// # Errors
    /// [`AttachError`]: among others, when another XDP program is there, or the interface is a bond's slave.
    /// # Cost
    /// Some 40 ms, and on many NICs a second without link.
    pub fn attach(interface: &str, options: &SteerOptions) -> Result<Self, SteerError> {
        let interface = attach::free_interface(interface)?;
        let no_socket_drops = u8::from(options.no_socket == NoSocket::Drop);
        let mut ebpf = attach::load(
            EbpfLoader::new()
                .override_global("no_socket_drops", &no_socket_drops, true)
                // Twice, so that a wholly other set can come before the old one goes.
                .map_max_entries("vips", options.max_vips.max(1).saturating_mul(2))
                .map_max_entries("xsks", options.max_queues.max(1)),
            OBJECT,
        )?;
        Ok(Self {
            addresses: attach::map(&mut ebpf, "vips")?,
            sockets: attach::map(&mut ebpf, "xsks")?,
            counts: attach::map(&mut ebpf, "counts")?,
            attachment: attach::attach(ebpf, "steer", &interface)?,
            vips: BTreeMap::new(),
            max_vips: options.max_vips,
        })
    }

    /// Where the program runs.
    #[must_use]
    pub const fn mode(&self) -> AttachMode {
        self.attachment.mode()
    }

    /// The kernel's id of the program.
    pub(crate) const fn program(&self) -> u32 {
        self.attachment.program()
    }

    /// Packets for VIPs that came on a queue without a socket. One system call.
    pub(crate) fn no_socket(&self) -> Result<u64, SteerError> {
        attach::total(&self.counts, Count::NoSocket as u32).map_err(in_map("counts"))
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
    /// [`SteerError::Map`]: no such queue, or not an AF_XDP socket.
    pub fn set_socket(&mut self, queue: u32, socket: &impl AsRawFd) -> Result<(), SteerError> {
        self.sockets.set(queue, socket.as_raw_fd(), 0).map_err(in_map("xsks"))
    }

    /// Leaves `queue` without a socket. One that has none stays as it is.
    ///
    /// # Errors
    /// [`SteerError::Map`]: no such queue.
    pub fn clear_socket(&mut self, queue: u32) -> Result<(), SteerError> {
        self.sockets.unset(queue).map_err(in_map("xsks"))
    }

    /// The VIPs that are taken from the kernel, each with its growth in bytes.
    pub fn vips(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        self.vips.iter().map(|(vip, growth)| (*vip, *growth))
    }

    /// Takes exactly `wanted` from the kernel: VIPs, each with its growth in bytes (the head room to open).
    /// What is new comes first, then what is not wanted goes. The last growth of a VIP given twice counts.
    ///
    /// # Errors
    /// [`SteerError::TooManyVips`] and [`SteerError::GrowthTooLarge`] before anything is changed;
    /// [`SteerError::Map`] with a part done, which another call completes.
    /// # Cost
    /// One system call a change. Not for a packet thread.
    pub fn set_vips(
        &mut self,
        wanted: impl IntoIterator<Item = (IpAddr, u8)>,
    ) -> Result<Changed, SteerError> {
        let wanted = checked(wanted, self.max_vips)?;
        let gone: Vec<IpAddr> = self.vips.keys().filter(|vip| !wanted.contains_key(vip)).copied().collect();
        let mut changed = self.write(&wanted)?;
        changed.removed = self.remove(gone)?;
        Ok(changed)
    }

    /// Takes `vips` from the kernel too, or gives them another growth.
    ///
    /// # Errors
    /// As [`Self::set_vips`].
    pub fn add_vips(&mut self, vips: impl IntoIterator<Item = (IpAddr, u8)>) -> Result<Changed, SteerError> {
        let vips = checked(vips, u32::MAX)?;
        let new = vips.keys().filter(|vip| !self.vips.contains_key(vip)).count();
        within(self.vips.len() + new, self.max_vips)?;
        self.write(&vips)
    }

    /// Leaves `vips` to the kernel again. How many were there; others are no error.
    ///
    /// # Errors
    /// [`SteerError::Map`], with a part done.
    pub fn remove_vips(&mut self, vips: impl IntoIterator<Item = IpAddr>) -> Result<usize, SteerError> {
        self.remove(vips.into_iter().map(|vip| vip.to_canonical()))
    }

    /// What the program has done since it was attached, summed over the CPUs.
    ///
    /// # Errors
    /// [`SteerError::Map`].
    /// # Cost
    /// Seven system calls.
    pub fn counts(&self) -> Result<SteerCounts, SteerError> {
        let count = |count: Count| attach::total(&self.counts, count as u32).map_err(in_map("counts"));
        Ok(SteerCounts {
            redirected: count(Count::Redirected)?,
            passed: count(Count::Passed)?,
            multicast: count(Count::Multicast)?,
            neighbour_discovery: count(Count::NeighbourDiscovery)?,
            no_socket: count(Count::NoSocket)?,
            no_head_room: count(Count::NoHeadRoom)?,
            socket_gone: count(Count::SocketGone)?,
        })
    }

    fn write(&mut self, vips: &BTreeMap<IpAddr, u8>) -> Result<Changed, SteerError> {
        let mut changed = Changed::default();
        for (&vip, &growth) in vips {
            let before = self.vips.get(&vip).copied();
            if before == Some(growth) {
                continue;
            }
            self.addresses.insert(attach::key(vip), u32::from(growth), 0).map_err(in_map("vips"))?;
            self.vips.insert(vip, growth);
            changed.added += usize::from(before.is_none());
            changed.updated += usize::from(before.is_some());
        }
        Ok(changed)
    }

    fn remove(&mut self, vips: impl IntoIterator<Item = IpAddr>) -> Result<usize, SteerError> {
        let mut removed = 0;
        for vip in vips {
            if self.vips.contains_key(&vip) {
                self.addresses.remove(&attach::key(vip)).map_err(in_map("vips"))?;
                self.vips.remove(&vip);
                removed += 1;
            }
        }
        Ok(removed)
    }
}

impl fmt::Debug for Steer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steer").field("mode", &self.mode()).field("vips", &self.vips).finish_non_exhaustive()
    }
}

/// How many bytes lie in front of the Ethernet header of a frame that the program redirected.
///
/// The program marks the first of them with `2 growth + 1`. A frame whose head was not moved starts with
/// its destination's first byte, which is even: the program redirects nothing that is sent to a group.
#[must_use]
#[inline]
pub const fn head_room_bytes(first_byte: u8) -> u8 {
    if first_byte & 1 == 1 { first_byte >> 1 } else { 0 }
}

/// The VIPs in the map's own terms: IPv4 as IPv4, no growth too large, no more than `allowed`.
fn checked(
    vips: impl IntoIterator<Item = (IpAddr, u8)>,
    allowed: u32,
) -> Result<BTreeMap<IpAddr, u8>, SteerError> {
    let mut checked = BTreeMap::new();
    for (vip, growth_bytes) in vips {
        if growth_bytes > MAX_GROWTH_BYTES {
            return Err(SteerError::GrowthTooLarge { vip, growth_bytes });
        }
        checked.insert(vip.to_canonical(), growth_bytes);
    }
    within(checked.len(), allowed)?;
    Ok(checked)
}

fn within(wanted: usize, allowed: u32) -> Result<(), SteerError> {
    if wanted > allowed as usize {
        return Err(SteerError::TooManyVips { wanted, allowed });
    }
    Ok(())
}

fn in_map(map: &'static str) -> impl FnOnce(MapError) -> SteerError {
    move |source| SteerError::Map { map, source }
}

/// Indices of the map `counts`, in the order of `enum count` in `bpf/steer.bpf.c`.
#[derive(Clone, Copy)]
enum Count {
    Redirected,
    Passed,
    Multicast,
    NeighbourDiscovery,
    NoSocket,
    NoHeadRoom,
    SocketGone,
}

/// The most head room that a VIP can have: the mark tells no more.
pub const MAX_GROWTH_BYTES: u8 = 63;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));
