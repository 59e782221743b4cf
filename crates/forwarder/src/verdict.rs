//! The contract between the pipeline and its driver.
//!
//! A driver (AF_XDP, memory, pcap) owns frames and moves them as the verdicts say. The pipeline only rewrites bytes and
//! keeps state. [`Forward`] is a trait so that drivers can be tested with a forwarder that answers anything.

use classifier::Now;
use conntrack::FlowTable;

use crate::{DropReason, HandoffReason, Packet, ThreadId};

/// A place in the driver's bounded table of held frames. The forwarder names it, below [`Forward::hold_slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldSlot(pub u32);

/// What becomes of one packet. There is no `Pass`: only XDP gives packets to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a frame without a verdict is a lost frame"]
pub enum Verdict {
    /// Send it: the frame was rewritten in place and starts at the first byte of its buffer.
    Tx,
    /// Send it back: turned round in place.
    Reply,
    /// Keep the frame in this slot until `poll` releases it.
    Hold(HoldSlot),
    /// Hand it to another packet thread, with the reason.
    ToThread(ThreadId, HandoffReason),
    /// It was for this machine, which has read it: give the frame back to the pool.
    Taken,
    /// Give the frame back to the pool.
    Drop(DropReason),
}

/// What a driver learns of each piece of a frame that is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A frame to send, of so many bytes; ask for the next.
    Of(usize),
    /// Nothing follows: the frame is split.
    End,
    /// There can be no further piece: what was held is dropped, for this reason.
    Failed(DropReason),
}

/// Why a packet of our own was not sent. No frame is lost by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// No frame is free; nobody was asked to fill one.
    NoFrame,
    /// It could not be written.
    NotBuilt,
    /// The transmit ring stayed full, or another thread's mailbox, or there is no such interface.
    NoRoom,
}

/// What `poll` may do to the driver.
pub trait Outlet {
    /// Takes a free frame, lets `build` write a packet at the front of its buffer and sends it by the interface that `build` names.
    /// The packet comes with all of its buffer as its frame; `build` says whether there is something to send.
    ///
    /// # Errors
    /// [`NotSent`].
    fn originate(&mut self, build: &mut dyn FnMut(&mut Packet<'_>) -> bool) -> Result<(), NotSent>;

    /// How many frames [`Self::originate`] can take now.
    fn free_frames(&self) -> usize;

    /// Ends a hold. The frame in `slot` goes through `decide`, which may rewrite it and gives its verdict.
    /// An empty slot is left alone.
    fn release(&mut self, slot: HoldSlot, decide: &mut dyn FnMut(&mut Packet<'_>) -> Verdict);

    /// Ends a hold by sending several frames in its place. `carve` reads the held packet and writes the next piece into
    /// a free frame, until it says [`Piece::End`] or [`Piece::Failed`]. An empty slot is left alone.
    ///
    /// Of n pieces one counts as the held packet sent, the others as originated; pieces that no frame is free for, or
    /// that the transmit ring has no room for, are lost: then the held packet is dropped, with that reason.
    fn split(&mut self, slot: HoldSlot, carve: &mut dyn FnMut(&Packet<'_>, &mut [u8]) -> Piece);
}

/// Decides batches of packets.
pub trait Forward {
    /// Decides `packets`, one verdict each, rewriting in place. Packets may come off the wire or from another thread
    /// ([`Packet::origin`]).
    ///
    /// # Panics
    /// When the slices differ in length, or hold more than [`Forward::max_batch`] packets.
    fn process(&mut self, now: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]);

    /// Runs what time alone causes, in bounded steps. Called between batches.
    fn poll(&mut self, now: Now, outlet: &mut dyn Outlet);

    /// Whether a question waits that `poll` would answer.
    fn is_asked(&self) -> bool {
        false
    }

    /// When `poll` has something to do though nothing comes; `None`: nothing is due. What is due later than a driver looks by
    /// itself need not be said.
    fn next_due(&self) -> Option<Now> {
        None
    }

    /// The driver could not carry out a verdict: `reason` says why, and the frame is free again.
    fn failed(&mut self, reason: DropReason);

    /// The most packets that one call of `process` takes.
    fn max_batch(&self) -> usize;

    /// How many frames it may hold at once.
    fn hold_slots(&self) -> usize;

    /// Its connection table, when it has done its last packet; `None`: it has none.
    fn into_flows(self) -> Option<FlowTable>
    where
        Self: Sized,
    {
        None
    }
}
