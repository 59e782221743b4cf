//! Lets a packet thread sleep until packets arrive, another thread wakes it, or time has passed.
//!
//! The thread waits for AF_XDP sockets with an edge-triggered epoll instance, which queries a
//! socket only after packets have arrived. `poll` would query all sockets before and after it
//! sleeps, and in Linux `net/xdp/xsk.c` each query makes the driver run, which costs an interrupt.
//!
//! The thread waits for packet sockets with `poll`. An epoll instance would be notified of each
//! packet, even while the thread does not wait, and a packet socket has no notification for many
//! packets. This would cost about 300 instructions per packet.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use arrayvec::ArrayVec;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::interface::MAX_INTERFACES;
use crate::wake::Waker;

/// The sources of events for one packet thread.
#[derive(Debug)]
pub(crate) struct Events {
    /// Contains the waker, and the sockets with [`Trigger::Arrival`].
    epoll: Epoll,
    /// The sockets with [`Trigger::Waiting`].
    polled: ArrayVec<RawFd, MAX_INTERFACES>,
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
        let mut polled = ArrayVec::new();
        for (socket, trigger) in sockets {
            if trigger == Trigger::Waiting {
                polled.push(socket);
                continue;
            }
            // SAFETY: the caller passes open sockets, and the borrow ends with this statement. The
            // kernel removes a socket from the instance when it is closed.
            epoll.add(unsafe { BorrowedFd::borrow_raw(socket) }, EpollEvent::new(arrival, 0))?;
        }
        Ok(Self { epoll, polled })
    }

    /// Waits for an event, for at most `millis` milliseconds.
    pub(crate) fn wait(&self, millis: u8) -> Woken {
        let mut events = [EpollEvent::empty(); MOST_EVENTS];
        let (mut is_event, mut millis) = (false, millis);
        if !self.polled.is_empty() {
            is_event = self.poll(millis);
            // Takes the event of the waker.
            millis = 0;
        }
        // A wait that a signal interrupts ends like a wait with an event. The next iteration may
        // then find no packets.
        match self.epoll.wait(&mut events, millis) {
            Ok(0) if !is_event => Woken::Timeout,
            _ => Woken::Event,
        }
    }

    /// Waits until a packet waits in one of `polled`, or until the epoll instance has an event.
    /// Returns `false` if the time passed.
    fn poll(&self, millis: u8) -> bool {
        let awaited = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut all: ArrayVec<libc::pollfd, MOST_EVENTS> =
            self.polled.iter().copied().chain([self.epoll.0.as_raw_fd()]).map(awaited).collect();
        // SAFETY: `all` is an array of as many elements as the call is told, and outlives the call.
        // The kernel reports a closed descriptor as an event.
        unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, millis.into()) != 0 }
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
