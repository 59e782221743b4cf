//! The interface between a forwarder and its driver. A driver (AF_XDP, memory, pcap) owns the
//! frames and moves them as the verdicts require. A forwarder only rewrites packet bytes and
//! updates its own state. [`Forward`] is a trait so that driver tests can use simpler forwarders
//! than the pipeline.

use classifier::Now;
use conntrack::FlowTable;

use crate::{DropReason, HandoffReason, Packet, ThreadId};

/// A hold slot: an index in the driver's table of held frames. The forwarder chooses the index,
/// which must be less than [`Forward::hold_slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldSlot(pub u32);

/// The verdict for one packet. There is no variant that passes a packet to the kernel, because only
/// the XDP program can do this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a frame is lost if its verdict is ignored"]
pub enum Verdict {
    /// Send the frame. The forwarder has moved the frame to the start of its buffer.
    Tx,
    /// Send the frame back to its sender. The forwarder has turned the frame into a reply in place.
    Reply,
    /// Keep the frame in this hold slot until `poll` releases it.
    Hold(HoldSlot),
    /// Pass the frame to this packet thread, with the reason for the handover.
    ToThread(ThreadId, HandoffReason),
    /// Return the frame to its pool. The packet was addressed to this machine, and the forwarder
    /// has processed it.
    Taken,
    /// Drop the packet, with this drop reason, and return the frame to its pool.
    Drop(DropReason),
}

/// The result of writing one fragment of a held packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentStep {
    /// A fragment of this length in bytes, including the headers, is ready to be sent. Another
    /// fragment may follow.
    Of(usize),
    /// All fragments have been written.
    End,
    /// No further fragment can be written. The driver drops the held packet with this drop reason.
    Failed(DropReason),
}

/// The reason why a packet that this machine originated was not sent. The frame of this packet has
/// been released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// No frame was free, so `build` was not called.
    NoFrame,
    /// The function `build` could not write the packet.
    NotBuilt,
    /// The transmit ring or the mailbox of another thread was full, or the interface does not
    /// exist.
    NoRoom,
}

/// The driver operations that `poll` can use.
pub trait Outlet {
    /// Sends a packet that this machine originates. `build` writes the packet to the front of a
    /// free frame, sets the outgoing interface, and returns `true` if the packet is to be sent. The
    /// packet initially spans the whole buffer.
    ///
    /// # Errors
    /// Returns [`NotSent`] if the packet was not sent.
    fn originate(&mut self, build: &mut dyn FnMut(&mut Packet<'_>) -> bool) -> Result<(), NotSent>;

    /// Returns the number of free frames that [`Self::originate`] can currently use.
    fn free_frames(&self) -> usize;

    /// Releases the frame in a hold slot. `decide` returns the verdict for the frame, and may
    /// rewrite the frame first. If the slot is empty, this function does nothing.
    fn release(&mut self, slot: HoldSlot, decide: &mut dyn FnMut(&mut Packet<'_>) -> Verdict);

    /// Releases a held frame by sending fragments of its packet instead. `carve` reads the held
    /// packet and writes the next fragment to a free frame. The driver calls `carve` until it
    /// returns [`FragmentStep::End`] or [`FragmentStep::Failed`]. If the slot is empty, this
    /// function does nothing.
    ///
    /// The first fragment is counted as the held packet, and all further fragments as originated
    /// packets. If no frame is free or the transmit ring is full, the remaining fragments are not
    /// sent, and the held packet is counted as dropped.
    fn split(&mut self, slot: HoldSlot, carve: &mut dyn FnMut(&Packet<'_>, &mut [u8]) -> FragmentStep);
}

/// A forwarder, which decides what happens to the packets of a batch.
pub trait Forward {
    /// Processes a batch: writes one verdict for each packet, and rewrites the packets in place. A
    /// packet comes from the wire or from another thread ([`Packet::origin`]).
    ///
    /// # Panics
    /// Panics if the slices differ in length or contain more than [`Forward::max_batch`] packets.
    fn process(&mut self, now: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]);

    /// Performs work that depends on time, in steps of bounded size. The driver calls this function
    /// between batches.
    fn poll(&mut self, now: Now, outlet: &mut dyn Outlet);

    /// Returns `true` if a request from the control plane is waiting for the next call to `poll`.
    fn is_asked(&self) -> bool {
        false
    }

    /// Returns the time at which `poll` must run next if no packets arrive, or `None` if no work is
    /// scheduled. Ignores work that can wait for the driver's next regular call to `poll`.
    fn next_due(&self) -> Option<Now> {
        None
    }

    /// Informs the forwarder that the driver could not execute a verdict. `reason` is the cause of
    /// the failure. The driver has already released the frame.
    fn failed(&mut self, reason: DropReason);

    /// Returns the maximum number of packets per batch.
    fn max_batch(&self) -> usize;

    /// Returns the maximum number of frames that can be held at a time.
    fn hold_slots(&self) -> usize;

    /// Shuts the forwarder down and returns its connection table, or `None` if it has none.
    fn into_flows(self) -> Option<FlowTable>
    where
        Self: Sized,
    {
        None
    }
}
