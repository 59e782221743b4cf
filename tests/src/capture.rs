//! Raw frames: watching a device, and sending on it.
//!
//! In: a namespace and a device. Out: the frames seen there, bounded in number.
//! Not here: what a frame says (`decode`), how one is made (`frame`).
//! The kernel takes the outer VLAN tag off a frame that arrives, and tells it beside; here it is put back where it was.
//! Source: packet(7), PACKET_AUXDATA; Linux `include/uapi/linux/if_packet.h`.

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

/// A frame as seen on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// From the Ethernet header on, as on the wire.
    pub bytes: Vec<u8>,
    /// It was leaving by this device (else it arrived).
    pub outgoing: bool,
}

/// A watch on a device; it ends with its handle.
#[derive(Debug)]
pub struct Capture {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    /// Watches `device` from now on, and keeps the first `limit` frames that `wanted` accepts.
    ///
    /// # Errors
    /// There is no such device.
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

    /// The frames up to now, in the order seen.
    #[must_use]
    pub fn frames(&self) -> Vec<Captured> {
        self.lock().frames.clone()
    }

    /// Waits until `count` frames have been seen, and returns them all.
    ///
    /// # Errors
    /// There were fewer by `bound`.
    pub fn wait_for(&self, count: usize, bound: Duration) -> Result<Vec<Captured>> {
        let found = eventually(bound, || Some(self.frames()).filter(|frames| frames.len() >= count));
        found.with_context(|| format!("{} frames in {bound:?}, {count} awaited", self.frames().len()))
    }

    /// Accepted frames that went beyond the limit.
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
            // It panics only if `wanted` did, and the test has other news then.
            drop(thread.join());
        }
    }
}

/// Sends one frame, from its Ethernet header on, out of `device`.
///
/// # Errors
/// There is no such device, or it refuses the frame.
pub fn inject(ns: &Namespace, device: &str, frame: &[u8]) -> Result<()> {
    let to = link_address(ns, device)?;
    let bytes = frame.to_owned();
    let sent = ns.run(move || -> Result<usize> {
        let fd = raw_socket(None)?;
        Ok(sendmsg(fd.as_raw_fd(), &[IoSlice::new(&bytes)], &[], MsgFlags::empty(), Some(&to))?)
    })?;
    ensure!(sent == frame.len(), "{sent} of {} bytes sent", frame.len());
    Ok(())
}

/// The address by which packet sockets name a device.
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
        .context("can't open a packet socket (root is needed)")
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
        // The socket hears every device of its namespace: binding to one takes an address that safe code can't make.
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

/// One frame and the device that it passed; its outer tag, which the kernel tells beside it, is back in its place.
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

/// Type and content of the tag in a `tpacket_auxdata`: status, len, snaplen (32 bits each), mac, net, tci, tpid (16 each).
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
