//! The receive and transmit rings of a packet socket (TPACKET_V2), in memory that is shared with
//! the kernel. A ring is a sequence of slots, and each slot starts with a status word. This module
//! accesses a slot only while the status word assigns the slot to user space.
//!
//! See packet(7), and Linux Documentation/networking/packet_mmap.rst and
//! include/uapi/linux/if_packet.h.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{
    TP_STATUS_AVAILABLE, TP_STATUS_KERNEL, TP_STATUS_SEND_REQUEST, TP_STATUS_SENDING, TP_STATUS_USER,
    TP_STATUS_VLAN_TPID_VALID, TP_STATUS_VLAN_VALID, tpacket2_hdr,
};

use crate::mapping::Mapping;

/// The slots of a ring, all of one size and consecutive in memory.
#[derive(Debug)]
struct Slots {
    /// Keeps the memory alive, because `first` points into it.
    _memory: Arc<Mapping>,
    first: NonNull<u8>,
    count: usize,
    /// The size of a slot in bytes.
    size: usize,
    /// The index of the slot that user space accesses next.
    next: usize,
}

// SAFETY: `_memory` keeps the memory alive. Apart from the kernel, only one ring uses these slots,
// and that ring has one owner at a time.
unsafe impl Send for Slots {}

impl Slots {
    /// Creates a ring of `count` slots of `size` bytes each. The first slot starts `from` bytes
    /// after the start of `memory`.
    ///
    /// # Panics
    /// Panics if the slots do not fit into the memory, or if a header would be misaligned.
    fn new(memory: &Arc<Mapping>, from: usize, count: usize, size: usize) -> Self {
        assert!(
            size >= size_of::<tpacket2_hdr>() && size.is_multiple_of(ALIGNMENT),
            "slot too small or misaligned"
        );
        let end = size.checked_mul(count).and_then(|bytes| bytes.checked_add(from));
        assert!(
            count > 0 && end.is_some_and(|end| end <= memory.len()),
            "slots outside of the mapped memory"
        );
        // SAFETY: `from` is inside the mapping.
        let first = unsafe { memory.base().add(from) };
        assert!(first.addr().get().is_multiple_of(ALIGNMENT), "slot headers not aligned");
        Self { _memory: Arc::clone(memory), first, count, size, next: 0 }
    }

    fn slot(&self, number: usize) -> NonNull<u8> {
        debug_assert!(number < self.count, "slot number out of range");
        // SAFETY: `new` checked that `count` slots are inside the mapping, and `_memory` keeps the
        // mapping alive.
        unsafe { self.first.add(number * self.size) }
    }

    fn status(&self, number: usize) -> &AtomicU32 {
        // SAFETY: the status is the first word of a slot and is aligned. User space and the kernel
        // access it atomically.
        unsafe { self.slot(number).cast::<AtomicU32>().as_ref() }
    }

    fn advance(&mut self) {
        self.next = if self.next + 1 < self.count { self.next + 1 } else { 0 };
    }
}

/// The receive ring.
#[derive(Debug)]
pub(super) struct RxRing(Slots);

/// A received packet in its slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrival<'a> {
    /// The bytes of the packet, starting with its Ethernet header.
    pub(super) bytes: &'a [u8],
    /// The VLAN tag that the kernel removed from the packet, in wire format.
    pub(super) tag: Option<[u8; 4]>,
    /// `true` if the slot holds one complete packet. `false` if the packet was truncated or is the
    /// result of merging several packets.
    pub(super) is_whole: bool,
}

impl RxRing {
    /// Creates the ring at the start of `memory`. Panics under the same conditions as
    /// [`Slots::new`].
    pub(super) fn new(memory: &Arc<Mapping>, count: usize, size: usize) -> Self {
        Self(Slots::new(memory, 0, count, size))
    }

    /// Passes the next packet to `look`, then returns the slot of the packet to the kernel. Returns
    /// `None` if no packet is waiting.
    pub(super) fn take<T>(&mut self, look: impl FnOnce(Arrival<'_>) -> T) -> Option<T> {
        let slots = &mut self.0;
        // Acquire: pairs with the write barrier of the kernel between the packet and its status.
        let status = slots.status(slots.next).load(Ordering::Acquire);
        if status & TP_STATUS_USER == 0 {
            return None;
        }
        let slot = slots.slot(slots.next);
        // SAFETY: the status assigns the slot to user space, and the slot starts with an aligned
        // header.
        let header = unsafe { slot.cast::<tpacket2_hdr>().read() };
        let (start, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        assert!(start + len <= slots.size, "packet extends past its slot");
        // SAFETY: `start` is inside the slot.
        let first = unsafe { slot.add(start) };
        // SAFETY: these bytes are inside the slot. The slot belongs to user space until the status
        // is stored below.
        let bytes = unsafe { std::slice::from_raw_parts(first.as_ptr(), len) };
        let is_whole = header.tp_len == header.tp_snaplen && status & TP_STATUS_GSO_TCP == 0;
        let seen = look(Arrival { bytes, tag: tag(status, &header), is_whole });
        // Release: the accesses to the slot above complete before the kernel sees the new status.
        slots.status(slots.next).store(TP_STATUS_KERNEL, Ordering::Release);
        slots.advance();
        Some(seen)
    }
}

fn tag(status: u32, header: &tpacket2_hdr) -> Option<[u8; 4]> {
    let protocol = if status & TP_STATUS_VLAN_TPID_VALID == 0 { VLAN } else { header.tp_vlan_tpid };
    let ([a, b], [c, d]) = (protocol.to_be_bytes(), header.tp_vlan_tci.to_be_bytes());
    (status & TP_STATUS_VLAN_VALID != 0).then_some([a, b, c, d])
}

/// The transmit ring.
#[derive(Debug)]
pub(super) struct TxRing(Slots);

impl TxRing {
    /// Creates the ring at byte `from` of `memory`, directly after the receive ring. Panics under
    /// the same conditions as [`Slots::new`].
    pub(super) fn new(memory: &Arc<Mapping>, from: usize, count: usize, size: usize) -> Self {
        Self(Slots::new(memory, from, count, size))
    }

    /// Copies a frame into the next slot, for the kernel to send. Returns `false` if the kernel
    /// still owns that slot, or if the slot is too small.
    pub(super) fn put(&mut self, frame: &[u8]) -> bool {
        let slots = &mut self.0;
        // Acquire: the kernel finished reading the slot before it set this status.
        let status = slots.status(slots.next).load(Ordering::Acquire);
        let is_taken = status & (TP_STATUS_SEND_REQUEST | TP_STATUS_SENDING) != TP_STATUS_AVAILABLE;
        if is_taken || TX_HEADER + frame.len() > slots.size {
            return false;
        }
        let slot = slots.slot(slots.next);
        // SAFETY: the header is inside the slot.
        let body = unsafe { slot.add(TX_HEADER) };
        // SAFETY: the status assigns the slot to user space, and the check above ensures that the
        // frame fits after the header.
        unsafe { body.copy_from_nonoverlapping(NonNull::from_ref(frame).cast(), frame.len()) };
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        // SAFETY: the length word is inside the header.
        let said = unsafe { slot.add(offset_of!(tpacket2_hdr, tp_len)) }.cast::<u32>();
        // SAFETY: the slot belongs to user space. The length word is aligned because the header is
        // aligned.
        unsafe { said.write(len) };
        // Release: a kernel that sees the new status also sees the frame.
        slots.status(slots.next).store(TP_STATUS_SEND_REQUEST, Ordering::Release);
        slots.advance();
        true
    }

    /// Returns `true` if the kernel has not yet started to send the last frame in the ring. The
    /// kernel processes slots in order, so the last frame is sent after all others.
    pub(super) fn is_unsent(&self) -> bool {
        let last = self.0.next.checked_sub(1).unwrap_or(self.0.count - 1);
        self.0.status(last).load(Ordering::Acquire) & TP_STATUS_SEND_REQUEST != 0
    }
}

/// The alignment of slots and headers (`TPACKET_ALIGNMENT` in the kernel).
const ALIGNMENT: usize = 16;
/// The offset of a frame within its transmit slot, which is `TPACKET2_HDRLEN - sizeof(struct
/// sockaddr_ll)` in the kernel.
pub(super) const TX_HEADER: usize = libc::TPACKET2_HDRLEN - size_of::<libc::sockaddr_ll>();
/// The number of bytes between the start of a receive slot and the Ethernet header.
pub(super) const RX_HEADER: usize = 66;
const VLAN: u16 = 0x8100;
/// A status bit of Linux 5.14 and later that the `libc` crate does not define yet.
const TP_STATUS_GSO_TCP: u32 = 1 << 8;

#[cfg(test)]
mod tests;
