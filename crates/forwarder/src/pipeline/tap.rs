//! Where a tap looks in: before the first stage and after the last.
//!
//! Not here: what is kept of a packet, and of which (`capture`).

use super::{Core, NO_SERVICE, NO_STATE, Stage};
use crate::capture::{Moment, Seen};
use crate::snapshot::Snapshot;
use crate::{Now, Packet, Verdict};

impl Core {
    /// The packets as they came.
    #[inline]
    pub(super) fn tap_before(&mut self, packets: &[Packet<'_>]) {
        if self.tap.is_some() {
            self.begin_tap(packets);
        }
    }

    /// What became of them.
    #[inline]
    pub(super) fn tap_after(
        &mut self,
        snapshot: &Snapshot,
        now: Now,
        packets: &[Packet<'_>],
        verdicts: &[Verdict],
    ) {
        if self.tap.is_some() {
            self.offer_to_tap(snapshot, now, packets, verdicts);
        }
    }

    #[cold]
    fn begin_tap(&mut self, packets: &[Packet<'_>]) {
        let Some(tap) = &mut self.tap else { return };
        tap.begin(packets);
        // What the last batch left there would be told of packets that end before the stage that writes it.
        for work in self.work.iter_mut().take(packets.len()) {
            (work.counted, work.slot, work.road) = (NO_STATE.counted, NO_STATE.slot, NO_STATE.road);
        }
    }

    #[cold]
    fn offer_to_tap(&mut self, snapshot: &Snapshot, now: Now, packets: &[Packet<'_>], verdicts: &[Verdict]) {
        let Some(tap) = self.tap.as_mut().filter(|tap| tap.is_open()) else { return };
        let before = tap.counts();
        let moment = Moment { time: now, thread: self.config.thread, generation: snapshot.generation() };
        let worked = packets.iter().zip(verdicts).zip(&self.work);
        for (place, ((packet, verdict), work)) in worked.enumerate() {
            let seen = Seen {
                place,
                verdict: *verdict,
                service: (work.counted.0 != NO_SERVICE).then_some(work.counted),
                slot: (work.slot != NO_STATE.slot).then_some(work.slot),
                new_flow: work.road == Stage::NewFlow,
            };
            tap.offer(&seen, packet.frame(), &moment, snapshot);
        }
        let after = tap.counts();
        self.counters.captured.add(after.taken - before.taken);
        self.counters.capture_lost.add(after.lost - before.lost);
    }
}
