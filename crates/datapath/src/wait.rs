//! Lets a packet thread sleep until packets arrive, another thread wakes it, or time has passed.
//! The thread waits with epoll.
//!
//! The system call `poll` would be slower. In Linux `net/xdp/xsk.c`, each query of an AF_XDP socket
//! for events makes the driver run, which costs an interrupt. `poll` queries all sockets before and
//! after it sleeps. An edge-triggered epoll instance queries a socket only after packets have
//! arrived.

use std::os::fd::{BorrowedFd, RawFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::interface::MAX_INTERFACES;
use crate::wake::Waker;

/// The sources of events for one packet thread.
#[derive(Debug)]
pub(crate) struct Events {
    epoll: Epoll,
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Packets have arrived, another thread woke this thread, or a signal arrived.
    Event,
    Timeout,
}

/// The condition under which a socket wakes its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// Packets have arrived since the last wakeup. The thread must take all packets before it waits
    /// again.
    Arrival,
    Waiting,
}

impl Events {
    /// Creates the event sources of a thread from its waker and its sockets.
    ///
    /// # Errors
    /// Returns the error of `epoll_create` or `epoll_ctl`.
    pub(crate) fn new(
        waker: &Waker,
        sockets: impl Iterator<Item = (RawFd, Trigger)>,
    ) -> std::io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let arrival = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(waker.fd(), EpollEvent::new(arrival, 0))?;
        for (socket, trigger) in sockets {
            let flags = if trigger == Trigger::Arrival { arrival } else { EpollFlags::EPOLLIN };
            // SAFETY: the caller passes open sockets, and the borrow ends with this statement. The
            // kernel removes a socket from the instance when it is closed.
            epoll.add(unsafe { BorrowedFd::borrow_raw(socket) }, EpollEvent::new(flags, 0))?;
        }
        Ok(Self { epoll })
    }

    /// Waits for an event, for at most `millis` milliseconds.
    pub(crate) fn wait(&self, millis: u8) -> Woken {
        let mut events = [EpollEvent::empty(); MOST_EVENTS];
        // An interrupted wait ends like an event. The thread then runs an iteration in vain.
        match self.epoll.wait(&mut events, millis) {
            Ok(0) => Woken::Timeout,
            _ => Woken::Event,
        }
    }
}

/// One event for each socket, and one for the waker.
const MOST_EVENTS: usize = MAX_INTERFACES + 1;

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn events_wait_ends_for_each_packet_and_each_wakeup() {
        for trigger in [Trigger::Arrival, Trigger::Waiting] {
            let waker = Waker::new().unwrap();
            let (socket, peer) = UnixDatagram::pair().unwrap();
            let events = Events::new(&waker, std::iter::once((socket.as_raw_fd(), trigger))).unwrap();
            assert_eq!(events.wait(0), Woken::Timeout);
            for _ in 0..3 {
                waker.ring();
                assert_eq!(events.wait(255), Woken::Event);
                assert_eq!(events.wait(0), Woken::Timeout, "a wakeup ends one wait");
            }
            peer.send(b"first").unwrap();
            assert_eq!(events.wait(255), Woken::Event);
            let still = if trigger == Trigger::Waiting { Woken::Event } else { Woken::Timeout };
            assert_eq!(events.wait(0), still, "a packet is waiting, but no other packet has arrived");
            peer.send(b"second").unwrap();
            assert_eq!(events.wait(255), Woken::Event);
        }
    }
}
