//! An open AF_XDP socket: its configuration, and the system calls that wake the kernel.

use std::os::fd::{BorrowedFd, RawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use xsk_rs::config::{BindFlags, LibxdpFlags, QueueSize, SocketConfig};
use xsk_rs::socket::XdpStatistics;
use xsk_rs::{CompQueue, FillQueue, RxQueue, TxQueue};

use crate::umem::RING;

/// A socket with the handles that keep it open and its rings mapped.
#[derive(Debug)]
pub(super) struct Handles {
    pub(super) fd: RawFd,
    /// The handles from the crate xsk-rs. Tests simulate the kernel and have no such handles.
    pub(super) kept: Option<(RxQueue, TxQueue, FillQueue, CompQueue)>,
}

impl Handles {
    /// Makes the kernel take frames from the transmit ring. Returns `false` if the kernel has no
    /// resources for some frames, or if the interface is down.
    pub(super) fn wake_to_send(&self) -> nix::Result<bool> {
        match send(self.fd, &[], MsgFlags::MSG_DONTWAIT) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EBUSY | Errno::ENOBUFS | Errno::ENETDOWN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes the kernel take frames from the fill ring.
    pub(super) fn wake_to_receive(&self) -> nix::Result<()> {
        // SAFETY: the descriptor stays open as long as `self` lives, which is longer than this
        // borrow.
        let socket = unsafe { BorrowedFd::borrow_raw(self.fd) };
        poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], PollTimeout::ZERO).map(drop)
    }

    pub(super) fn statistics(&self) -> std::io::Result<XdpStatistics> {
        match &self.kept {
            Some((rx, ..)) => rx.fd().xdp_statistics(),
            None => Err(std::io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Returns the configuration of a socket. `rx_slots` is the size of its receive ring.
///
/// The receive ring must hold all frames that a queue uses for receiving, so that it never
/// overflows. Under overload, the NIC then finds no buffer and drops packets itself. If the driver
/// had to drop packets because the ring is full, it would return their buffers to the NIC and could
/// use the whole processor, so that the packet thread stops (receive livelock).
pub(super) fn socket_config(
    rx_slots: u32,
    force_copy: bool,
    multi_buffer: bool,
) -> Result<SocketConfig, String> {
    let ring = |slots| QueueSize::new(slots).map_err(|error| error.to_string());
    let mut flags = BindFlags::XDP_USE_NEED_WAKEUP;
    if force_copy {
        flags |= BindFlags::XDP_COPY;
    }
    if multi_buffer {
        flags |= BindFlags::XDP_USE_SG;
    }
    let mut config = SocketConfig::builder();
    config
        .rx_queue_size(ring(rx_slots)?)
        .tx_queue_size(ring(RING)?)
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        .bind_flags(flags);
    Ok(config.build())
}
