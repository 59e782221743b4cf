//! The two rings of a packet socket (TPACKET_V2), in memory that the kernel shares: slots in order, each with its own status.
//!
//! In: what the kernel received, frames to send. Out: a look at each packet where it lies, bytes in slots for the kernel.
//! Not here: the socket, and waking the kernel (`socket`); frames (`af_packet`).
//! Invariant: a slot is read or written while its status says that it is ours, and no longer.
//! Source: packet(7); Linux Documentation/networking/packet_mmap.rst, include/uapi/linux/if_packet.h.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{
    TP_STATUS_AVAILABLE, TP_STATUS_KERNEL, TP_STATUS_SEND_REQUEST, TP_STATUS_SENDING, TP_STATUS_USER,
    TP_STATUS_VLAN_TPID_VALID, TP_STATUS_VLAN_VALID, tpacket2_hdr,
};

use super::mapping::Mapping;

/// Slots of one size that lie one behind the other.
#[derive(Debug)]
struct Slots {
    /// Holds what `first` points into.
    _memory: Arc<Mapping>,
    first: NonNull<u8>,
    count: usize,
    /// Bytes of a slot.
    size: usize,
    /// The slot that is next, by us and by the kernel.
    next: usize,
}

// SAFETY: the memory is held, and beside the kernel one ring alone uses these slots of it; threads take turns with a ring.
unsafe impl Send for Slots {}

impl Slots {
    /// `count` slots of `size` bytes, from byte `from` of `memory` on.
    ///
    /// # Panics
    /// When they do not lie in it, or a header would not be aligned.
    fn new(memory: &Arc<Mapping>, from: usize, count: usize, size: usize) -> Self {
        assert!(size >= size_of::<tpacket2_hdr>() && size.is_multiple_of(ALIGNMENT), "a header fits a slot");
        let end = size.checked_mul(count).and_then(|bytes| bytes.checked_add(from));
        assert!(count > 0 && end.is_some_and(|end| end <= memory.len()), "the slots lie in the memory");
        // SAFETY: `from` lies in the mapping.
        let first = unsafe { memory.base().add(from) };
        assert!(first.addr().get().is_multiple_of(ALIGNMENT), "headers are aligned");
        Self { _memory: Arc::clone(memory), first, count, size, next: 0 }
    }

    fn slot(&self, number: usize) -> NonNull<u8> {
        debug_assert!(number < self.count, "there is such a slot");
        // SAFETY: `new` checked that `count` slots lie in the mapping, which the slots hold.
        unsafe { self.first.add(number * self.size) }
    }

    fn status(&self, number: usize) -> &AtomicU32 {
        // SAFETY: the status is a slot's first word, aligned, and neither side accesses it but atomically.
        unsafe { self.slot(number).cast::<AtomicU32>().as_ref() }
    }

    fn advance(&mut self) {
        self.next = if self.next + 1 < self.count { self.next + 1 } else { 0 };
    }
}

/// The receive ring.
#[derive(Debug)]
pub(super) struct RxRing(Slots);

/// A received packet, where it lies.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrival<'a> {
    /// From its Ethernet header on.
    pub(super) bytes: &'a [u8],
    /// The VLAN tag that the kernel keeps beside the packet, as it stood behind the addresses.
    pub(super) tag: Option<[u8; 4]>,
    /// It came as one packet, and the slot holds all of it: not several that were merged.
    pub(super) is_whole: bool,
}

impl RxRing {
    /// See [`Slots::new`].
    pub(super) fn new(memory: &Arc<Mapping>, count: usize, size: usize) -> Self {
        Self(Slots::new(memory, 0, count, size))
    }

    /// Shows the next packet to `look`, then gives its slot back to the kernel; `None`: nothing has come.
    pub(super) fn take<T>(&mut self, look: impl FnOnce(Arrival<'_>) -> T) -> Option<T> {
        let slots = &mut self.0;
        // Acquire: pairs with the kernel's barrier between the packet and its status.
        let status = slots.status(slots.next).load(Ordering::Acquire);
        if status & TP_STATUS_USER == 0 {
            return None;
        }
        let slot = slots.slot(slots.next);
        // SAFETY: the slot is ours by its status, and starts with a header, which is aligned.
        let header = unsafe { slot.cast::<tpacket2_hdr>().read() };
        let (start, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        assert!(start + len <= slots.size, "a packet lies in its slot");
        // SAFETY: `start` lies in the slot.
        let first = unsafe { slot.add(start) };
        // SAFETY: those bytes lie in the slot, which is ours until its status is written below.
        let bytes = unsafe { std::slice::from_raw_parts(first.as_ptr(), len) };
        let is_whole = header.tp_len == header.tp_snaplen && status & TP_STATUS_GSO_TCP == 0;
        let seen = look(Arrival { bytes, tag: tag(status, &header), is_whole });
        // Release: pairs with the kernel's look at the status before it writes into the slot again.
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
    /// See [`Slots::new`]; `from`: where the receive ring ends.
    pub(super) fn new(memory: &Arc<Mapping>, from: usize, count: usize, size: usize) -> Self {
        Self(Slots::new(memory, from, count, size))
    }

    /// Copies a frame into the next slot, for the kernel to send; `false`: the kernel still has that slot, or it is too small.
    pub(super) fn put(&mut self, frame: &[u8]) -> bool {
        let slots = &mut self.0;
        // Acquire: the kernel has read what lay in the slot before it gave it back.
        let status = slots.status(slots.next).load(Ordering::Acquire);
        let is_taken = status & (TP_STATUS_SEND_REQUEST | TP_STATUS_SENDING) != TP_STATUS_AVAILABLE;
        if is_taken || TX_HEADER + frame.len() > slots.size {
            return false;
        }
        let slot = slots.slot(slots.next);
        // SAFETY: the header lies in the slot.
        let body = unsafe { slot.add(TX_HEADER) };
        // SAFETY: the slot is ours by its status, and the frame fits behind its header.
        unsafe { body.copy_from_nonoverlapping(NonNull::from_ref(frame).cast(), frame.len()) };
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        // SAFETY: the word lies in the header.
        let said = unsafe { slot.add(offset_of!(tpacket2_hdr, tp_len)) }.cast::<u32>();
        // SAFETY: the slot is ours, and the word is aligned, as the header is.
        unsafe { said.write(len) };
        // Release: the kernel that sees the request sees the frame.
        slots.status(slots.next).store(TP_STATUS_SEND_REQUEST, Ordering::Release);
        slots.advance();
        true
    }

    /// Whether the kernel has not begun to send all that was put. It takes slots in their order.
    pub(super) fn is_unsent(&self) -> bool {
        let last = self.0.next.checked_sub(1).unwrap_or(self.0.count - 1);
        self.0.status(last).load(Ordering::Acquire) & TP_STATUS_SEND_REQUEST != 0
    }
}

/// TPACKET_ALIGNMENT.
const ALIGNMENT: usize = 16;
/// Where the kernel looks for a frame to send: `TPACKET2_HDRLEN - sizeof(struct sockaddr_ll)`.
pub(super) const TX_HEADER: usize = libc::TPACKET2_HDRLEN - size_of::<libc::sockaddr_ll>();
/// Bytes of a received packet's slot that lie in front of its Ethernet header.
pub(super) const RX_HEADER: usize = 66;
const VLAN: u16 = 0x8100;
/// From Linux 5.14 on; libc does not know it yet.
const TP_STATUS_GSO_TCP: u32 = 1 << 8;

#[cfg(test)]
mod tests;
