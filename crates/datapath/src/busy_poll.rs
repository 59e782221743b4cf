//! Busy polling: the driver of a queue runs in system calls of its packet thread, on that thread's processor, and not in interrupts.
//!
//! In: an AF_XDP socket. Not here: `napi_defer_hard_irqs` and `gro_flush_timeout` of the interface, which keep its interrupts
//! away meanwhile and are the machine's (`sluicegate doctor` looks at them).
//! Source: Linux `Documentation/networking/napi.rst`, "Busy polling"; `net/xdp/xsk.c`: `recvmsg` and `sendmsg` run the driver.

use std::io;
use std::num::NonZeroU16;
use std::os::fd::{BorrowedFd, RawFd};

use nix::sys::socket::{MsgFlags, getsockopt, recv, setsockopt};
use nix::{getsockopt_impl, libc, setsockopt_impl, sockopt_impl};

/// Gives the driver's work to the thread that makes system calls on `socket`: at most `budget` packets in each.
///
/// # Errors
/// Not permitted: `CAP_NET_ADMIN` is missing. `ENOPROTOOPT`: a kernel before Linux 5.11.
pub(crate) fn prefer(socket: BorrowedFd<'_>, budget: NonZeroU16) -> io::Result<()> {
    setsockopt(&socket, PreferBusyPoll, &1)?;
    setsockopt(&socket, BusyPoll, &ANY_MICROSECONDS)?;
    Ok(setsockopt(&socket, BusyPollBudget, &budget.get().into())?)
}

/// Lets the driver receive now. Costs a system call, and what the driver does.
pub(crate) fn run_driver(socket: RawFd) {
    // It reads nothing: that nothing was there, or that another processor runs the driver, is an answer like any other.
    let _ = recv(socket, &mut [], MsgFlags::MSG_DONTWAIT);
}

/// Whether the kernel knows whose driver the socket's packets come from; before the first one it does not.
pub(crate) fn knows_driver(socket: BorrowedFd<'_>) -> bool {
    getsockopt(&socket, IncomingNapiId).is_ok_and(|id| id != 0)
}

/// A call that may not wait looks once, however long it might look.
const ANY_MICROSECONDS: i32 = 20;

sockopt_impl!(
    /// `SO_INCOMING_NAPI_ID`.
    IncomingNapiId,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_INCOMING_NAPI_ID,
    u32
);
sockopt_impl!(
    /// `SO_PREFER_BUSY_POLL`.
    PreferBusyPoll,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_PREFER_BUSY_POLL,
    i32
);
sockopt_impl!(
    /// `SO_BUSY_POLL`.
    BusyPoll,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_BUSY_POLL,
    i32
);
sockopt_impl!(
    /// `SO_BUSY_POLL_BUDGET`.
    BusyPollBudget,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_BUSY_POLL_BUDGET,
    i32
);
