//! A packet socket with its options, its filter and its two rings. Several sockets on an interface
//! form a fanout group, which distributes the packets of the interface to the threads.
//!
//! See packet(7) and socket(7).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::ring::{RxRing, TxRing};
use crate::mapping::Mapping;

/// The capacities of the rings and the size of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The capacity of the receive ring in packets.
    pub(super) rx: usize,
    /// The capacity of the transmit ring in frames.
    pub(super) tx: usize,
    /// The size of a slot in bytes. The slot size is a power of two and at most the size of a
    /// block.
    pub(super) slot: usize,
}

/// A fanout group: the kernel distributes an interface's packets to the sockets of the group by
/// flow hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group(u16);

/// A packet socket. The socket receives packets only after [`PacketSocket::bind`].
#[derive(Debug)]
pub(super) struct PacketSocket {
    fd: OwnedFd,
    pub(super) rx: RxRing,
    pub(super) tx: TxRing,
}

impl PacketSocket {
    /// Returns the kernel's error, for example if CAP_NET_RAW is missing or the rings cannot be
    /// allocated.
    pub(super) fn new(sizes: Sizes) -> io::Result<Self> {
        // SAFETY: the call takes no pointer. With protocol 0 the socket receives no packets yet.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just created this descriptor, so it has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set(&fd, libc::SOL_PACKET, libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V2)?;
        set(&fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        // With this option the kernel discards a frame that it cannot send, for example because of
        // the MTU. Otherwise such a frame would block the frames behind it.
        set(&fd, libc::SOL_PACKET, libc::PACKET_LOSS, &1i32)?;
        // The send buffer must be large enough for the frames of all slots together with the
        // metadata that the kernel allocates for each frame.
        let in_flight = i32::try_from(sizes.tx * (sizes.slot + BESIDE_A_FRAME)).unwrap_or(i32::MAX / 2);
        set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &in_flight)?;
        let [rx, tx] = [sizes.rx, sizes.tx].map(|slots| request(slots, sizes.slot));
        set(&fd, libc::SOL_PACKET, libc::PACKET_RX_RING, &rx)?;
        set(&fd, libc::SOL_PACKET, libc::PACKET_TX_RING, &tx)?;
        let [rx_bytes, tx_bytes] =
            [rx, tx].map(|ring| ring.tp_block_nr as usize * ring.tp_block_size as usize);
        let memory = Arc::new(Mapping::of_descriptor(fd.as_fd(), rx_bytes + tx_bytes)?);
        let slots = |bytes: usize| bytes / sizes.slot;
        Ok(Self {
            fd,
            rx: RxRing::new(&memory, slots(rx_bytes), sizes.slot),
            tx: TxRing::new(&memory, rx_bytes, slots(tx_bytes), sizes.slot),
        })
    }

    /// Starts receiving packets that arrive on the given interface and pass the filter.
    pub(super) fn bind(&self, interface: u32) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: family(),
            // A socket with ETH_P_ALL receives a packet before the ingress program runs.
            sll_protocol: u16::try_from(libc::ETH_P_ALL).unwrap_or_default().to_be(),
            sll_ifindex: interface.cast_signed(),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or_default();
        // SAFETY: `address` is a complete `sockaddr_ll` of `len` bytes that outlives the call.
        let result = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Joins the given fanout group. If `group` is `None`, creates a group for the interface.
    ///
    /// # Errors
    /// Returns the kernel's error, for example if the interface is down.
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

    /// Makes the kernel send the frames in the transmit ring. If the kernel cannot send a frame
    /// now, the frame remains in the ring.
    pub(super) fn send(&self) -> io::Result<()> {
        // SAFETY: the call passes a null pointer with length 0, because the frames are in the ring.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT) };
        if sent >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns how many packets the kernel dropped since the last call because the receive ring was
    /// full.
    pub(super) fn lost(&self) -> io::Result<u64> {
        get::<libc::tpacket_stats>(&self.fd, libc::PACKET_STATISTICS).map(|stats| stats.tp_drops.into())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the request that makes the kernel allocate a ring with at least `slots` slots and at
/// least one block.
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

/// Sets a socket option. `T` must be the type that the kernel expects for this option.
fn set<T: Copy>(fd: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).unwrap_or_default();
    // SAFETY: `value` has `len` bytes, and the call only reads them.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads a socket option. `T` is the C type of the value, for which all zeros are valid.
fn get<T: Copy>(fd: &OwnedFd, option: i32) -> io::Result<T> {
    // SAFETY: all callers use structures of integers, for which all zeros are valid.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of::<T>()).unwrap_or_default();
    // SAFETY: `value` has the `len` bytes that the call may write, and outlives the call.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_PACKET, option, (&raw mut value).cast(), &raw mut len)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// The size of a ring block in bytes. The kernel allocates each block as consecutive pages.
pub(super) const BLOCK: usize = 65_536;
/// The metadata that the kernel allocates for each frame in flight, in bytes: an `sk_buff` and its
/// shared info.
const BESIDE_A_FRAME: usize = 1_024;
