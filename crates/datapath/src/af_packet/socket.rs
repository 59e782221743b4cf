//! A packet socket: its options, its filter, its rings, the group that shares an interface's packets.
//!
//! In: an interface, sizes, the filter. Out: two rings, and the call that makes the kernel send.
//! Not here: the filter's program (`steer`), what lies in slots (`ring`).
//! Source: packet(7), socket(7).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::mapping::Mapping;
use super::ring::{RxRing, TxRing};

/// How large the rings are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Packets that wait for the thread.
    pub(super) rx: usize,
    /// Frames that wait for the kernel.
    pub(super) tx: usize,
    /// Bytes of a slot: a power of two, at most those of a block.
    pub(super) slot: usize,
}

/// The sockets that share an interface's packets by the hash of their flows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group(u16);

/// A socket that receives nothing before [`PacketSocket::bind`].
#[derive(Debug)]
pub(super) struct PacketSocket {
    fd: OwnedFd,
    pub(super) rx: RxRing,
    pub(super) tx: TxRing,
}

impl PacketSocket {
    /// # Errors
    /// What the kernel says: among others, without CAP_NET_RAW, or without memory for the rings.
    pub(super) fn new(sizes: Sizes) -> io::Result<Self> {
        // SAFETY: no pointer is passed. Protocol 0: nothing is received yet.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set(&fd, libc::SOL_PACKET, libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V2)?;
        set(&fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        // A frame that the kernel refuses, such as one above the MTU, does not stop those behind it.
        set(&fd, libc::SOL_PACKET, libc::PACKET_LOSS, &1i32)?;
        // All slots may be on their way at once; what the kernel keeps beside a frame counts too.
        let in_flight = i32::try_from(sizes.tx * (sizes.slot + BESIDE_A_FRAME)).unwrap_or(i32::MAX / 2);
        set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &in_flight)?;
        let [rx, tx] = [sizes.rx, sizes.tx].map(|slots| request(slots, sizes.slot));
        set(&fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &rx)?;
        set(&fd, libc::SOL_PACKET, libc::PACKET_TX_RING, &tx)?;
        let [rx_bytes, tx_bytes] =
            [rx, tx].map(|ring| ring.tp_block_nr as usize * ring.tp_block_size as usize);
        let memory = Arc::new(Mapping::of_socket(fd.as_fd(), rx_bytes + tx_bytes)?);
        let slots = |bytes: usize| bytes / sizes.slot;
        Ok(Self {
            fd,
            rx: RxRing::new(&memory, slots(rx_bytes), sizes.slot),
            tx: TxRing::new(&memory, rx_bytes, slots(tx_bytes), sizes.slot),
        })
    }

    /// Receives what arrives on an interface from now on, as far as the filter lets it.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn bind(&self, interface: u32) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: family(),
            // All protocols: those sockets see a packet before the ingress program does.
            sll_protocol: u16::try_from(libc::ETH_P_ALL).unwrap_or_default().to_be(),
            sll_ifindex: interface.cast_signed(),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or_default();
        // SAFETY: `address` is a whole `sockaddr_ll` of `len` bytes that outlives the call.
        let result = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Joins the sockets of other threads on this interface, or begins a group.
    ///
    /// # Errors
    /// What the kernel says: among others, while the interface is down.
    pub(super) fn share(&self, group: Option<Group>) -> io::Result<Group> {
        let how = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
        let wanted = match group {
            Some(Group(number)) => how << 16 | u32::from(number),
            None => (how | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16,
        };
        set(&self.fd, libc::SOL_PACKET, libc::PACKET_FANOUT, &wanted)?;
        let [low, high, ..] = get::<u32>(&self.fd, libc::PACKET_FANOUT)?.to_le_bytes();
        Ok(Group(u16::from_le_bytes([low, high])))
    }

    /// Makes the kernel send what was put into the ring. What it has no room for remains there.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn send(&self) -> io::Result<()> {
        // SAFETY: no bytes are passed: they lie in the ring.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT) };
        if sent >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Packets that found the receive ring full since the last call.
    ///
    /// # Errors
    /// What getsockopt says.
    pub(super) fn lost(&self) -> io::Result<u64> {
        get::<libc::tpacket_stats>(&self.fd, libc::PACKET_STATISTICS).map(|stats| stats.tp_drops.into())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A ring of as many slots, at least one block.
fn request(slots: usize, slot: usize) -> libc::tpacket_req {
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let blocks = (slots * slot).div_ceil(BLOCK).max(1);
    libc::tpacket_req {
        tp_block_size: number(BLOCK),
        tp_block_nr: number(blocks),
        tp_frame_size: number(slot),
        tp_frame_nr: number(blocks * (BLOCK / slot)),
    }
}

fn family() -> u16 {
    u16::try_from(libc::AF_PACKET).unwrap_or_default()
}

/// `T`: the C type of the option's value.
fn set<T: Copy>(fd: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).unwrap_or_default();
    // SAFETY: `value` is `len` bytes that the call only reads.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `T`: the C type of the option's value, for which zeroes are valid.
fn get<T: Copy>(fd: &OwnedFd, option: i32) -> io::Result<T> {
    // SAFETY: callers name structures of integers.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of::<T>()).unwrap_or_default();
    // SAFETY: `value` has the `len` bytes that the call may write, and outlives it.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_PACKET, option, (&raw mut value).cast(), &raw mut len)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Bytes of a block of a ring: pages that the kernel takes together.
pub(super) const BLOCK: usize = 65_536;
/// Bytes that the kernel counts for a frame on its way besides the frame's own: a `sk_buff` and its end.
const BESIDE_A_FRAME: usize = 1_024;
