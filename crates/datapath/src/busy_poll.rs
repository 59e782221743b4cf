//! With busy polling, system calls of the packet thread run the driver of a queue on the thread's
//! processor. Without busy polling, the driver runs in interrupt context. The interface settings
//! `napi_defer_hard_irqs` and `gro_flush_timeout` defer these interrupts. This crate does not
//! change these settings, but `sluicegate doctor` checks them.
//!
//! See Linux `Documentation/networking/napi.rst`, section "Busy polling". In Linux `net/xdp/xsk.c`,
//! `recvmsg` and `sendmsg` run the driver.

use std::io;
use std::num::NonZeroU16;
use std::os::fd::{BorrowedFd, RawFd};

use nix::sys::socket::{MsgFlags, getsockopt, recv, setsockopt};
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};

/// Makes system calls on `socket` run the driver. Each call processes at most `budget` packets.
///
/// # Errors
/// Returns `EPERM` without `CAP_NET_ADMIN`, and `ENOPROTOOPT` before Linux 5.11.
pub(crate) fn prefer(socket: BorrowedFd<'_>, budget: NonZeroU16) -> io::Result<()> {
    setsockopt(&socket, PreferBusyPoll, &1)?;
    setsockopt(&socket, BusyPoll, &ANY_MICROSECONDS)?;
    Ok(setsockopt(&socket, BusyPollBudget, &budget.get().into())?)
}

/// Runs the driver, so that it can receive packets. The cost is one system call plus the work of
/// the driver.
pub(crate) fn run_driver(socket: RawFd) {
    // The call transfers no data, because the buffer is empty. Errors are ignored: they mean that
    // no packet was waiting, or that another processor was running the driver.
    let _ = recv(socket, &mut [], MsgFlags::MSG_DONTWAIT);
}

/// Returns `true` if the kernel knows which driver queue (NAPI ID) belongs to the socket. The
/// kernel stores the ID when the first packet arrives.
pub(crate) fn knows_driver(socket: BorrowedFd<'_>) -> bool {
    getsockopt(&socket, IncomingNapiId).is_ok_and(|id| id != 0)
}

/// The busy-poll time in microseconds. Any value works, because a call with MSG_DONTWAIT polls only
/// once.
const ANY_MICROSECONDS: i32 = 20;

sockopt_impl!(
    /// The socket option `SO_INCOMING_NAPI_ID`.
    IncomingNapiId,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_INCOMING_NAPI_ID,
    u32
);
sockopt_impl!(
    /// The socket option `SO_PREFER_BUSY_POLL`.
    PreferBusyPoll,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_PREFER_BUSY_POLL,
    i32
);
sockopt_impl!(
    /// The socket option `SO_BUSY_POLL`.
    BusyPoll,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_BUSY_POLL,
    i32
);
sockopt_impl!(
    /// The socket option `SO_BUSY_POLL_BUDGET`.
    BusyPollBudget,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_BUSY_POLL_BUDGET,
    i32
);
