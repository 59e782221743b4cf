//! Implements [`Device`] for `io.mode = "af-packet"`, with one packet socket for each interface.
//!
//! Received packets are copied from the receive ring into a frame with headroom. Frames to send are
//! copied into the transmit ring. A thread can therefore hold a frame or pass it to another thread
//! without occupying a ring slot. The kernel processes slots in order, so a slot that the thread
//! keeps would block all slots behind it. The module `steer` provides the BPF filter of the
//! sockets. The module `ingress` provides the BPF program that drops the original packets in the
//! kernel, after the sockets have received copies.
//!
//! Each thread sends on its own sockets. The kernel distributes received packets to the threads by
//! flow hash. Every free frame of this device is either in the list `fill` or in the list
//! `returned`.

mod pool;
mod ring;
mod socket;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use engine::{Device, InKernel, MAX_BATCH, Received, TxOwner};
use forwarder::{InterfaceId, ThreadId};

use crate::error::StartError;
use crate::interface::Interface;
use crate::sockets::{SocketCounters, Sockets};
use crate::steer::{Steer, Steers};
use crate::umem::HEAD_ROOM;
use crate::wait::Trigger;

use self::pool::{Frames, PacketFrame};
use self::ring::{Arrival, RX_HEADER, TX_HEADER};
use self::socket::{Group, PacketSocket, Sizes};

/// The packet sockets of one packet thread.
#[derive(Debug)]
pub(crate) struct PacketDevice {
    frames: Frames,
    /// The sockets, indexed by interface.
    links: Box<[Link]>,
    /// Free frames for received packets.
    fill: Vec<PacketFrame>,
    /// Frames that are free again after their content was copied into a transmit ring.
    returned: Vec<PacketFrame>,
    /// The index of the interface that the next call to `receive` reads first. The index rotates so
    /// that no interface is starved.
    first: usize,
}

#[derive(Debug)]
struct Link {
    socket: PacketSocket,
    interface: InterfaceId,
    received: u64,
    sent: u64,
    /// The number of packets that were rejected because GRO had merged them, or because they exceed
    /// the slot size.
    merged: u64,
    /// The number of packets that the kernel dropped because the receive ring was full.
    lost: u64,
}

/// The frame size and the ring capacity of a data plane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// The size of a frame and a ring slot, in bytes.
    frame: usize,
    /// The number of frames in each thread's pool. This is also the capacity of a receive ring, in
    /// packets.
    frames: usize,
}

impl Room {
    /// Computes the frame size. A frame is at least `least` bytes long and can hold a packet of the
    /// largest MTU among `interfaces`. The frame size never exceeds [`LARGEST_FRAME`].
    pub(crate) fn new(interfaces: &[Interface], least: u32, frames: u32) -> Self {
        let longest = interfaces.iter().map(|interface| interface.mtu_bytes).max().unwrap_or(0);
        let bytes = longest.saturating_add(AROUND).clamp(least, LARGEST_FRAME).next_power_of_two();
        Self { frame: bytes as usize, frames: frames as usize }
    }

    /// Returns the size of the longest IP packet that a frame holds, in bytes.
    pub(crate) fn largest_packet(self) -> u32 {
        u32::try_from(self.frame).unwrap_or(u32::MAX) - AROUND
    }
}

/// The device of each thread, together with the frames that the thread owns.
pub(crate) type Opened = Vec<(PacketDevice, Vec<PacketFrame>)>;

/// Opens a socket on each interface for each of `threads` threads, and attaches the socket filter
/// of the interface.
pub(crate) fn open_all(
    interfaces: &[Interface],
    steers: &Steers,
    threads: u16,
    room: Room,
) -> Result<Opened, StartError> {
    let memory = Frames::new(threads, room.frames, room.frame);
    let (frames, pools) = memory.map_err(|error| StartError::Umem(error.to_string()))?;
    let mut groups: Vec<Option<Group>> = vec![None; interfaces.len()];
    let mut opened = Opened::new();
    for (thread, pool) in (0..threads).zip(pools) {
        let mut links = Vec::with_capacity(interfaces.len());
        for ((interface, steer), group) in interfaces.iter().zip(steers.each()).zip(&mut groups) {
            let refused = |error: io::Error| StartError::Packet {
                interface: interface.name.clone(),
                thread,
                why: error.to_string(),
            };
            let socket = open(interface, steer, room).map_err(refused)?;
            if threads > 1 {
                *group = Some(socket.share(*group).map_err(refused)?);
            }
            links.push(socket);
        }
        opened.push((PacketDevice::new(frames.clone(), links), pool));
    }
    Ok(opened)
}

/// Opens a socket. The filter is attached before the socket is bound, so that no unfiltered packet
/// arrives.
fn open(interface: &Interface, steer: &Steer, room: Room) -> io::Result<PacketSocket> {
    let sizes = Sizes { rx: room.frames, tx: TX_SLOTS, slot: room.frame };
    let socket = PacketSocket::new(sizes)?;
    steer.attach_filter(socket.as_fd()).map_err(io::Error::other)?;
    socket.bind(interface.index)?;
    Ok(socket)
}

impl PacketDevice {
    /// Creates the device. `sockets` contains one socket for each interface, in interface order.
    fn new(frames: Frames, sockets: Vec<PacketSocket>) -> Self {
        let link = |(interface, socket)| Link { socket, interface, received: 0, sent: 0, merged: 0, lost: 0 };
        let links = (0..).map(InterfaceId).zip(sockets).map(link).collect();
        let fill = Vec::with_capacity(MAX_BATCH);
        let returned = Vec::with_capacity(MAX_BATCH);
        Self { frames, links, fill, returned, first: 0 }
    }
}

impl Link {
    fn flush(&self) {
        if self.socket.tx.is_unsent()
            && let Err(error) = self.socket.send()
        {
            tracing::debug!(%error, "packet socket send failed");
        }
    }
}

/// Copies a packet into a frame, starting at byte `start`, and inserts the VLAN tag after the
/// Ethernet addresses. Returns the offset at which the packet ends. Returns `None` if the packet
/// does not fit, or if it is the result of merging several packets.
fn place(packet: &Arrival<'_>, to: &mut [u8], start: usize) -> Option<usize> {
    if !packet.is_whole {
        return None;
    }
    let (addresses, rest) = packet.bytes.split_at_checked(ADDRESSES)?;
    let tag = packet.tag.as_ref().map(<[u8; 4]>::as_slice).unwrap_or_default();
    let end = start + packet.bytes.len() + tag.len();
    let mut to = to.get_mut(start..end)?;
    for part in [addresses, tag, rest] {
        let (place, behind) = to.split_at_mut_checked(part.len())?;
        place.copy_from_slice(part);
        to = behind;
    }
    Some(end)
}

impl Device for PacketDevice {
    type Frame = PacketFrame;

    fn receive(&mut self, batch: &mut Vec<Received<PacketFrame>>, limit: usize) {
        let Self { frames, links, fill, first, .. } = self;
        let start = HEAD_ROOM;
        let limit = batch.len() + limit;
        let (before, behind) = links.split_at_mut(*first);
        for link in behind.iter_mut().chain(before) {
            while batch.len() < limit
                && let Some(mut frame) = fill.pop()
            {
                let taken = link.socket.rx.take(|packet| place(&packet, frames.bytes(&mut frame), start));
                let Some(Some(end)) = taken else {
                    fill.push(frame);
                    let Some(_merged) = taken else { break };
                    link.merged += 1;
                    continue;
                };
                link.received += 1;
                batch.push(Received { frame, interface: link.interface, start, end });
            }
        }
        *first = if *first + 1 < links.len() { *first + 1 } else { 0 };
    }

    #[inline]
    fn bytes<'a>(&'a self, frame: &'a mut PacketFrame) -> &'a mut [u8] {
        self.frames.bytes(frame)
    }

    fn tx_owner(&self, interface: InterfaceId) -> TxOwner {
        if usize::from(interface.0) < self.links.len() { TxOwner::Own } else { TxOwner::Nobody }
    }

    #[inline]
    fn send(
        &mut self,
        mut frame: PacketFrame,
        bounds: Range<usize>,
        interface: InterfaceId,
    ) -> Result<(), PacketFrame> {
        let Some(link) = self.links.get_mut(usize::from(interface.0)) else { return Err(frame) };
        let bytes = self.frames.bytes(&mut frame).get(bounds).unwrap_or_default();
        if !link.socket.tx.put(bytes) {
            return Err(frame);
        }
        link.sent += 1;
        self.returned.push(frame);
        Ok(())
    }

    fn flush(&mut self) {
        self.links.iter().for_each(Link::flush);
    }

    fn is_unsent(&mut self) -> bool {
        self.links.iter().any(|link| link.socket.tx.is_unsent())
    }

    fn reap(&mut self, free: &mut Vec<PacketFrame>) {
        free.append(&mut self.returned);
    }

    fn refill(&mut self, free: &mut Vec<PacketFrame>) {
        let wanted = MAX_BATCH - self.fill.len();
        self.fill.extend(free.drain(free.len().saturating_sub(wanted)..));
    }

    #[inline]
    fn home(&self, frame: &PacketFrame) -> ThreadId {
        self.frames.home(frame)
    }

    fn in_kernel(&self) -> InKernel {
        InKernel { receiving: self.fill.len(), sending: self.returned.len() }
    }
}

impl Sockets for PacketDevice {
    // Packets stay in the receive ring while the thread has no free frame.
    const TRIGGER: Trigger = Trigger::Waiting;

    fn sockets(&self) -> impl Iterator<Item = (InterfaceId, RawFd)> {
        self.links.iter().map(|link| (link.interface, link.socket.as_fd().as_raw_fd()))
    }

    fn is_sending(&mut self) -> bool {
        self.is_unsent()
    }

    fn is_short_of_frames(&self) -> bool {
        self.fill.len() < MAX_BATCH / 4
    }

    fn copy_statistics(&mut self, to: &SocketCounters) -> io::Result<()> {
        for (link, counters) in self.links.iter_mut().zip(&to.links) {
            // Reading the statistics resets the counters in the kernel.
            link.lost += link.socket.lost()?;
            counters.rx.set(link.received);
            counters.tx.set(link.sent);
            counters.lost.set(link.lost + link.merged);
        }
        to.rx_ring_full.set(self.links.iter().map(|link| link.lost).sum());
        to.rx_merged.set(self.links.iter().map(|link| link.merged).sum());
        Ok(())
    }
}

/// The length of the two Ethernet addresses together, in bytes.
const ADDRESSES: usize = 12;
/// The number of slots in each transmit ring.
const TX_SLOTS: usize = 1_024;
/// The largest frame size in bytes. The same limit applies to packets in AF_XDP mode.
const LARGEST_FRAME: u32 = 16_384;
/// The space in bytes that a slot or frame needs in addition to the IP packet: the Ethernet header,
/// two VLAN tags, and the larger of the receive and transmit headers.
#[allow(clippy::cast_possible_truncation, reason = "below 200")]
const AROUND: u32 = {
    let link_header = 14 + 2 * 4;
    let received = RX_HEADER + link_header;
    let sent = TX_HEADER + HEAD_ROOM + link_header;
    (if received > sent { received } else { sent }) as u32
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::LONGEST_PACKET;

    fn interface(mtu_bytes: u32) -> Interface {
        Interface { mtu_bytes, ..Interface::read("lo").unwrap() }
    }

    #[test]
    fn room_frame_holds_the_longest_mtu_and_its_overhead() {
        for (mtus, least, frame, largest) in [
            (&[1_500][..], 2_048, 2_048, 1_931),
            (&[1_500], 4_096, 4_096, 3_979),
            (&[1_931], 2_048, 2_048, 1_931),
            (&[1_932], 2_048, 4_096, 3_979),
            (&[1_500, 9_000, 1_600], 2_048, 16_384, 16_267),
            (&[LONGEST_PACKET], 2_048, 16_384, 16_267),
            (&[u32::MAX], 2_048, 16_384, 16_267),
        ] {
            let interfaces: Vec<_> = mtus.iter().map(|mtu| interface(*mtu)).collect();
            let room = Room::new(&interfaces, least, 512);
            assert_eq!((room.frame, room.largest_packet()), (frame, largest), "{mtus:?} {least}");
        }
    }

    #[test]
    fn place_puts_the_packet_and_its_tag_behind_the_head_room() {
        let bytes: Vec<u8> = (0..60).collect();
        let tagged = [&bytes[..12], &[0x81, 0, 0x20, 7], &bytes[12..]].concat();
        for (tag, is_whole, start, room, expected) in [
            (None, true, 0, 60, Some(&bytes)),
            (None, true, 24, 84, Some(&bytes)),
            (None, true, 24, 83, None),
            (Some([0x81, 0, 0x20, 7]), true, 24, 88, Some(&tagged)),
            (Some([0x81, 0, 0x20, 7]), true, 24, 87, None),
            (None, false, 24, 200, None),
        ] {
            let mut frame = vec![0xee; room];
            let end = place(&Arrival { bytes: &bytes, tag, is_whole }, &mut frame, start);
            assert_eq!(end, expected.map(|expected| start + expected.len()), "{tag:?} {start} {room}");
            let before = frame.iter().take(start).all(|byte| *byte == 0xee);
            assert!(before, "bytes in front of the packet have changed");
            assert_eq!(end.map(|end| &frame[start..end]), expected.map(Vec::as_slice));
        }
        let cut = Arrival { bytes: &bytes[..11], tag: None, is_whole: true };
        assert_eq!(place(&cut, &mut [0; 100], 0), None, "no Ethernet addresses");
    }
}
