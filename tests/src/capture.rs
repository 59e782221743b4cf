//! Captures raw frames on a device, and sends single frames.
//!
//! The kernel removes the outer VLAN tag from a received frame and reports it in auxiliary data.
//! The capture inserts the tag at its original position. The module `decode` parses frames, and the
//! module `frame` builds them.
//!
//! References: packet(7), PACKET_AUXDATA; Linux `include/uapi/linux/if_packet.h`.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::sockopt::{RcvBuf, ReceiveTimeout};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg,
    sendmsg, setsockopt, socket,
};
use nix::sys::time::TimeVal;

use crate::{Namespace, eventually};

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The bytes of the frame, starting with the Ethernet header.
    pub bytes: Vec<u8>,
    /// `true` if the device sent the frame, `false` if it received the frame.
    pub outgoing: bool,
}

/// A capture on a device. Dropping the handle ends the capture.
#[derive(Debug)]
pub struct Capture {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    /// Starts a capture on `device` that keeps the first `limit` frames that `wanted` accepts.
    ///
    /// # Errors
    /// Returns an error if the device does not exist.
    pub fn start(
        ns: &Namespace,
        device: &str,
        limit: usize,
        wanted: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> Result<Self> {
        let index = link_address(ns, device)?.ifindex();
        let fd = ns.run(|| raw_socket(SockProtocol::EthAll))?;
        setsockopt(&fd, ReceiveTimeout, &TimeVal::new(0, 50_000))?;
        setsockopt(&fd, RcvBuf, &(8 << 20))?;
        setsockopt(&fd, AuxiliaryData, &true)?;
        let seen = Arc::new(Mutex::new(Seen { limit, frames: Vec::new(), beyond: 0 }));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (seen, stop) = (Arc::clone(&seen), Arc::clone(&stop));
            ns.spawn(move || watch(&fd, index, &wanted, &seen, &stop))
        };
        Ok(Self { seen, stop, thread: Some(thread) })
    }

    /// Returns the frames captured so far, in order.
    #[must_use]
    pub fn frames(&self) -> Vec<Captured> {
        self.lock().frames.clone()
    }

    /// Waits until `count` frames are captured, and returns all frames.
    ///
    /// # Errors
    /// Returns an error if fewer than `count` frames arrive within `bound`.
    pub fn wait_for(&self, count: usize, bound: Duration) -> Result<Vec<Captured>> {
        let found = eventually(bound, || Some(self.frames()).filter(|frames| frames.len() >= count));
        found.with_context(|| format!("captured {} of {count} frames in {bound:?}", self.frames().len()))
    }

    /// Returns the number of frames that `wanted` accepted but that are not kept because the limit
    /// was reached.
    #[must_use]
    pub fn beyond_limit(&self) -> u64 {
        self.lock().beyond
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread panics only if `wanted` panics, and the test already reports this failure.
            drop(thread.join());
        }
    }
}

/// Sends one frame on `device`. `frame` starts with the Ethernet header.
///
/// # Errors
/// Returns an error if the device does not exist or rejects the frame.
pub fn inject(ns: &Namespace, device: &str, frame: &[u8]) -> Result<()> {
    let to = link_address(ns, device)?;
    let bytes = frame.to_owned();
    let sent = ns.run(move || -> Result<usize> {
        let fd = raw_socket(None)?;
        Ok(sendmsg(fd.as_raw_fd(), &[IoSlice::new(&bytes)], &[], MsgFlags::empty(), Some(&to))?)
    })?;
    ensure!(sent == frame.len(), "only {sent} of {} bytes were sent", frame.len());
    Ok(())
}

/// Returns the packet-socket address of a device.
pub(crate) fn link_address(ns: &Namespace, device: &str) -> Result<LinkAddr> {
    let name = device.to_owned();
    let found = ns.run(move || -> nix::Result<Option<LinkAddr>> {
        let mut all = getifaddrs()?;
        Ok(all.find_map(|entry| {
            (entry.interface_name == name).then_some(entry.address?.as_link_addr().copied()).flatten()
        }))
    })?;
    found.with_context(|| format!("namespace {} has no device {device}", ns.name()))
}

pub(crate) fn raw_socket(protocol: impl Into<Option<SockProtocol>>) -> Result<OwnedFd> {
    socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
        .context("cannot open a packet socket (requires root)")
}

#[derive(Debug)]
struct Seen {
    limit: usize,
    frames: Vec<Captured>,
    beyond: u64,
}

fn watch(fd: &OwnedFd, index: usize, wanted: &dyn Fn(&[u8]) -> bool, seen: &Mutex<Seen>, stop: &AtomicBool) {
    let mut room = vec![0; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        let (from, bytes) = match receive(fd, &mut room) {
            Ok(Some(frame)) => frame,
            Ok(None) | Err(Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN) => continue,
            Err(_) => return,
        };
        // The socket receives frames from all devices of the namespace. Binding the socket to one
        // device needs an address that safe Rust cannot create.
        if from.ifindex() != index || !wanted(&bytes) {
            continue;
        }
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.frames.len() < seen.limit {
            let outgoing = from.pkttype() == PACKET_OUTGOING;
            seen.frames.push(Captured { bytes, outgoing });
        } else {
            seen.beyond += 1;
        }
    }
}

/// Receives one frame and the address of its device. Restores the outer VLAN tag from the auxiliary
/// data.
fn receive(fd: &OwnedFd, room: &mut [u8]) -> nix::Result<Option<(LinkAddr, Vec<u8>)>> {
    let mut control = nix::cmsg_space!([u8; AUXILIARY_BYTES]);
    let (from, len, tag) = {
        let mut parts = [IoSliceMut::new(room)];
        let message = recvmsg::<LinkAddr>(fd.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty())?;
        let Some(from) = message.address else { return Ok(None) };
        (from, message.bytes, message.cmsgs()?.find_map(tag_of))
    };
    let mut bytes = room[..len].to_vec();
    if let Some([tpid, tci]) = tag
        && len >= ADDRESSES_BYTES
    {
        bytes.splice(
            ADDRESSES_BYTES..ADDRESSES_BYTES,
            tpid.to_be_bytes().into_iter().chain(tci.to_be_bytes()),
        );
    }
    Ok(Some((from, bytes)))
}

/// Parses a `tpacket_auxdata` and returns protocol and content (TCI) of the VLAN tag. The structure
/// has the fields status, len and snaplen (32 bits each), and mac, net, tci and tpid (16 bits
/// each).
fn tag_of(message: ControlMessageOwned) -> Option<[u16; 2]> {
    let ControlMessageOwned::Unknown(reported) = message else { return None };
    let header = reported.cmsg_header;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    let data = reported.data_bytes;
    let status = u32::from_ne_bytes(*data.first_chunk()?);
    let half = |at: usize| Some(u16::from_ne_bytes(*data.get(at..)?.first_chunk()?));
    (status & libc::TP_STATUS_VLAN_VALID != 0).then_some([half(18)?, half(16)?])
}

#[derive(Clone, Debug)]
struct AuxiliaryData;
nix::setsockopt_impl!(
    AuxiliaryData,
    libc::SOL_PACKET,
    libc::PACKET_AUXDATA,
    bool,
    nix::sys::socket::sockopt::SetBool
);

const AUXILIARY_BYTES: usize = 20;
const ADDRESSES_BYTES: usize = 12;
const PACKET_OUTGOING: u8 = 4; // include/uapi/linux/if_packet.h
