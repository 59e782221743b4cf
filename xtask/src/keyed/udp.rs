//! Implements a client over UDP. The client uses one socket, keeps many requests outstanding, and
//! sends and receives with `sendmmsg` and `recvmmsg`.
//!
//! The client hashes the key to choose the server. A response is valid if its ID matches an
//! outstanding request and it comes from the server of that request. If a response consists of
//! several datagrams, all datagrams must arrive in order.
//!
//! References: sendmmsg(2), recvmmsg(2); memcached `doc/protocol.txt`, "UDP protocol".

use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;

use anyhow::{Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg};

use crate::keyed::clients::Client;
use crate::keyed::ledger::Asked;
use crate::keyed::protocol::{Answer, name, parse};

/// A socket with its outstanding requests.
pub(crate) struct Udp {
    socket: UdpSocket,
    servers: Vec<SockaddrIn>,
    /// The outstanding requests, one per slot. The low bits of a request's ID are the index of its
    /// slot.
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The indices of the requests that the next flush sends.
    queued: Vec<usize>,
    rooms: Vec<Vec<u8>>,
    outgoing: MultiHeaders<SockaddrIn>,
    incoming: MultiHeaders<SockaddrIn>,
}

/// An outstanding request.
#[derive(Default)]
struct Slot {
    asked: Option<Asked>,
    id: u16,
    server: usize,
    datagram: Vec<u8>,
    /// The payload received so far, for a response with several datagrams.
    parts: Vec<u8>,
    /// The number of datagrams in `parts`.
    have: u16,
}

impl Udp {
    /// Creates a client for this socket. The argument `window` is the maximum number of outstanding
    /// requests and must be a power of two.
    pub(crate) fn new(socket: UdpSocket, servers: &[SocketAddrV4], window: usize) -> Self {
        Self {
            socket,
            servers: servers.iter().map(|&server| server.into()).collect(),
            slots: (0..window).map(|_| Slot::default()).collect(),
            free: (0..window).collect(),
            queued: Vec::with_capacity(window),
            rooms: vec![vec![0; DATAGRAM_BYTES]; BATCH],
            outgoing: MultiHeaders::preallocate(window, None),
            incoming: MultiHeaders::preallocate(BATCH, None),
        }
    }

    /// Returns the index of the server that has the key. The function hashes the key with FNV-1a,
    /// as clients that know all servers do.
    fn server_of(&self, key: u32) -> usize {
        let hash = name(key).iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        // The low bits of FNV-1a depend only on the last digit of the key, so the high bits are
        // used.
        usize::try_from(((hash >> 32) * self.servers.len() as u64) >> 32).unwrap_or_default()
    }

    /// Sends the queued requests, beginning with index `first`. Returns the number of sent
    /// requests.
    fn send(&mut self, first: usize) -> Result<usize> {
        let batch = &self.queued[first..];
        let slices: Vec<[IoSlice<'_>; 1]> =
            batch.iter().map(|&at| [IoSlice::new(&self.slots[at].datagram)]).collect();
        let to: Vec<Option<SockaddrIn>> =
            batch.iter().map(|&at| Some(self.servers[self.slots[at].server])).collect();
        let fd = self.socket.as_raw_fd();
        match sendmmsg(fd, &mut self.outgoing, &slices, &to, [], MsgFlags::MSG_DONTWAIT) {
            Ok(results) => Ok(results.count()),
            // If the socket or the device has no buffer space, the request is counted as sent,
            // although it is lost.
            Err(Errno::ENOBUFS | Errno::EAGAIN) => Ok(1),
            Err(Errno::EINTR) => Ok(0),
            Err(error) => bail!("sendmmsg: {error}"),
        }
    }

    /// Returns the length and the sender of each datagram that was received into `rooms`.
    fn receive(&mut self) -> Result<Vec<(usize, Option<SockaddrIn>)>> {
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            self.rooms.iter_mut().map(|room| [IoSliceMut::new(room)]).collect();
        let fd = self.socket.as_raw_fd();
        match recvmmsg(fd, &mut self.incoming, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None) {
            Ok(results) => Ok(results.map(|message| (message.bytes, message.address)).collect()),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(Vec::new()),
            Err(error) => bail!("recvmmsg: {error}"),
        }
    }
}

impl Slot {
    /// Adds a datagram to the response. Returns `true` if the response is complete, in this
    /// datagram or in `parts`. Datagrams that arrive out of order are ignored.
    fn take(&mut self, sequence: u16, total: u16, payload: &[u8]) -> bool {
        if total == 1 {
            return sequence == 0;
        }
        if sequence != self.have {
            return false;
        }
        self.parts.extend_from_slice(payload);
        self.have += 1;
        self.have == total
    }
}

impl Client for Udp {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn room(&self) -> usize {
        self.free.len()
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    fn ask(&mut self, asked: Asked, command: &[u8]) {
        let server = self.server_of(asked.key);
        let window = u16::try_from(self.slots.len()).expect("the window is at most a few dozen");
        let at = self.free.pop().expect("the caller checks that there is room");
        let slot = &mut self.slots[at];
        slot.id = slot.id.wrapping_add(window) & !(window - 1)
            | u16::try_from(at).expect("the slot is below the window");
        slot.server = server;
        slot.asked = Some(asked);
        (slot.have, slot.parts) = (0, Vec::new());
        slot.datagram.clear();
        let [high, low] = slot.id.to_be_bytes();
        slot.datagram.extend_from_slice(&[high, low, 0, 0, 0, 1, 0, 0]);
        slot.datagram.extend_from_slice(command);
        self.queued.push(at);
    }

    fn flush(&mut self) -> Result<()> {
        let mut sent = 0;
        while sent < self.queued.len() {
            sent += self.send(sent)?;
        }
        self.queued.clear();
        Ok(())
    }

    fn take(&mut self, each: &mut dyn FnMut(Asked, Answer<'_>)) -> Result<()> {
        let received = self.receive()?;
        for ((bytes, from), room) in received.into_iter().zip(&self.rooms) {
            let Some((frame, payload)) = room[..bytes].split_first_chunk::<8>() else { continue };
            let [id, sequence, total] = [0, 2, 4].map(|at| u16::from_be_bytes([frame[at], frame[at + 1]]));
            let at = usize::from(id) % self.slots.len();
            let slot = &mut self.slots[at];
            let is_its_own = slot.id == id && from == Some(self.servers[slot.server]);
            let Some(asked) = slot.asked.filter(|_| is_its_own && slot.take(sequence, total, payload)) else {
                continue;
            };
            slot.asked = None;
            self.free.push(at);
            let whole = if total == 1 { payload } else { &slot.parts };
            let answer = parse(whole).filter(|(_, used)| *used == whole.len());
            each(asked, answer.map_or(Answer::Other(whole), |(answer, _)| answer));
        }
        Ok(())
    }

    fn give_up(&mut self, before: Instant, each: &mut dyn FnMut(Asked)) -> Result<()> {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if let Some(asked) = slot.asked.take_if(|asked| asked.sent < before) {
                self.free.push(at);
                each(asked);
            }
        }
        Ok(())
    }
}

/// The maximum number of datagrams per system call.
const BATCH: usize = 64;
/// The size of a receive buffer in bytes. Datagrams from memcached are at most 1,400 bytes long.
const DATAGRAM_BYTES: usize = 2_048;
