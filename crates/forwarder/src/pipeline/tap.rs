//! Passes packets to the packet capture, before the first and after the last pipeline stage. The
//! module `capture` selects and stores the packets.

use super::Core;
use super::state::{Batch, PacketState};
use crate::capture::{Moment, Seen};
use crate::{Packet, Verdict};

impl Core {
    /// Passes the received packets to the capture, before the pipeline changes them.
    #[inline]
    pub(super) fn tap_before(&mut self, packets: &[Packet<'_>]) {
        if let Some(tap) = &mut self.tap {
            tap.begin(packets);
        }
    }

    /// Passes the packets and their verdicts to the capture, after the last pipeline stage.
    #[inline]
    pub(super) fn tap_after(
        &mut self,
        batch: &Batch<'_>,
        packets: &[Packet<'_>],
        states: &[PacketState],
        verdicts: &[Verdict],
    ) {
        if self.tap.is_some() {
            self.offer_to_tap(batch, packets, states, verdicts);
        }
    }

    #[cold]
    fn offer_to_tap(
        &mut self,
        batch: &Batch<'_>,
        packets: &[Packet<'_>],
        states: &[PacketState],
        verdicts: &[Verdict],
    ) {
        let Some(tap) = self.tap.as_mut().filter(|tap| tap.is_open()) else { return };
        let before = tap.counts();
        let generation = batch.snapshot.generation();
        let moment = Moment { time: batch.now, thread: self.config.thread, generation };
        for ((packet, state), verdict) in packets.iter().zip(states).zip(verdicts) {
            let seen = Seen {
                place: state.place,
                verdict: *verdict,
                service: state.service_id(),
                slot: state.chosen(),
                new_flow: state.choice.is_new_flow,
            };
            tap.offer(&seen, packet.frame(), &moment, batch.snapshot);
        }
        let after = tap.counts();
        self.counters.captured.add(after.taken - before.taken);
        self.counters.capture_lost.add(after.lost - before.lost);
    }
}
