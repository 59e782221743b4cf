//! Takes packets from the receive ring of a queue.

use std::ops::Range;

use arrayvec::ArrayVec;
use engine::{MAX_BATCH, Received};
use forwarder::InterfaceId;

use super::Queue;
use crate::frame::{Descriptor, Frame};
use crate::umem::Area;

impl Queue {
    /// Takes up to `most` frames from the receive ring. If these frames contain no complete packet,
    /// takes further frames until one does, or until the ring is empty.
    pub(super) fn receive(
        &mut self,
        area: &Area,
        most: usize,
        batch: &mut Vec<Received<Frame>>,
        returned: &mut Vec<Frame>,
    ) {
        let Self { rx, gathering, interface, received, .. } = self;
        let interface = *interface;
        // Each descriptor belongs to this UMEM and becomes the only `Frame` of its chunk.
        if !area.has_slots() {
            let count = rx.take(most, batch, move |descriptor| in_one_chunk(area, descriptor, interface));
            self.receiving -= count;
            *received += count as u64;
            return;
        }
        let before = batch.len();
        // Frames of packets that are incomplete or too long add no packet to the batch. If the
        // batch stays empty, the thread may sleep, and frames that are already in the ring do not
        // wake it. The loop ends, because the kernel gets no free frames in the meantime.
        while batch.len() == before {
            let mut parts = ArrayVec::<Descriptor, MAX_BATCH>::new();
            let count = rx.take(most.min(MAX_BATCH), &mut parts, |descriptor| descriptor);
            if count == 0 {
                return;
            }
            self.receiving -= count;
            for descriptor in parts {
                if !descriptor.is_followed() && !gathering.has_begun() {
                    batch.push(in_one_chunk(area, descriptor, interface));
                    *received += 1;
                    continue;
                }
                let (mut frame, len) = (Frame(descriptor), descriptor.len());
                let start = if gathering.has_begun() { 0 } else { area.open_head_room(&mut frame) };
                let gathered = area.gather(gathering, frame, start..start + len, returned);
                let Some((frame, Range { start, end })) = gathered else { continue };
                batch.push(Received { frame, interface, start, end });
                *received += 1;
            }
        }
    }
}

/// Describes a packet that arrived in one chunk, with the headroom in front of it.
#[inline]
fn in_one_chunk(area: &Area, descriptor: Descriptor, interface: InterfaceId) -> Received<Frame> {
    let mut frame = Frame(descriptor);
    let start = area.open_head_room(&mut frame);
    Received { frame, interface, start, end: start + descriptor.len() }
}
