//! Marked packets on their way through the pipeline.
//!
//! In: each parsed packet, while the snapshot says whom to tell; its verdict. Out: notices. What a packet thread does for a
//! packet without a mark is one load and one comparison.
//! Not here: what a mark is (`trace`).
//! Invariant: a mark changes nothing of what becomes of its packet.

use packet::{Parsed, parse};

use super::{Core, NO_SERVICE, NO_STATE, flow_of};
use crate::guard::Meter;
use crate::snapshot::{SlotId, Snapshot};
use crate::trace::{MARK_BYTES, TraceEvent, TraceRefusal, WallClock, has_magic, payload_at};
use crate::{
    Explanation, Flow, HoldSlot, Notice, Now, Outcome, Packet, ServiceId, TunnelSourceKind, Verdict,
};

/// What one thread keeps of marked packets.
#[derive(Debug)]
pub(super) struct Tracing {
    clock: WallClock,
    meter: Meter,
    /// Those of the batch at hand; at most a batch.
    marked: Vec<Marked>,
    /// Of those that are held, by hold slot: who had sent them in a tunnel. A held frame tells that no more.
    held: Box<[Option<TunnelSourceKind>]>,
}

/// A packet that begins like a marked one, as it came in.
#[derive(Clone, Copy, Debug)]
struct Marked {
    place: usize,
    /// Who had sent it in a tunnel.
    decapsulated_from: Option<TunnelSourceKind>,
    flow: Flow,
    payload: [u8; MARK_BYTES],
    /// How much of it there was.
    length: usize,
}

impl Tracing {
    pub(super) fn new(clock: WallClock, max_batch: usize, hold_slots: usize) -> Self {
        let held = vec![None; hold_slots].into_boxed_slice();
        Self { clock, meter: Meter::default(), marked: Vec::with_capacity(max_batch), held }
    }
}

impl Core {
    /// Looks for a mark, before the packet is changed.
    #[inline]
    pub(super) fn look_for_mark(
        &mut self,
        snapshot: &Snapshot,
        frame: &[u8],
        parsed: &Parsed,
        came: (usize, Option<TunnelSourceKind>),
    ) {
        if snapshot.trace.is_none() {
            return;
        }
        if let Some(at) = payload_at(frame, parsed).filter(|at| has_magic(frame, *at)) {
            self.take_mark(frame, parsed, came, at);
        }
    }

    /// The same for a frame that was held.
    pub(super) fn look_at_held(&mut self, snapshot: &Snapshot, packet: &Packet<'_>, slot: HoldSlot) {
        if snapshot.trace.is_some()
            && let Ok(parsed) = parse(packet.frame())
        {
            let decapsulated_from = self.tracing.held.get_mut(slot.0 as usize).and_then(Option::take);
            self.look_for_mark(snapshot, packet.frame(), &parsed, (0, decapsulated_from));
        }
    }

    #[cold]
    fn take_mark(
        &mut self,
        frame: &[u8],
        parsed: &Parsed,
        (place, decapsulated_from): (usize, Option<TunnelSourceKind>),
        at: usize,
    ) {
        // A packet that is dropped before it is written down must not be told with another's words.
        if let Some(work) = self.work.get_mut(place) {
            *work = NO_STATE;
        }
        let bytes = frame.get(at..usize::from(parsed.end)).unwrap_or_default();
        let mut payload = [0; MARK_BYTES];
        payload.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let (flow, length) = (flow_of(frame, parsed), bytes.len().min(MARK_BYTES));
        let marked = Marked { place, decapsulated_from, flow, payload, length };
        // As many as there are places, so that nothing is allocated.
        if self.tracing.marked.len() < self.tracing.marked.capacity() {
            self.tracing.marked.push(marked);
        }
    }

    /// Tells of the marked packets of a batch.
    #[inline]
    pub(super) fn tell_of_marked(&mut self, snapshot: &Snapshot, now: Now, verdicts: &[Verdict]) {
        if self.tracing.marked.is_empty() {
            return;
        }
        self.tell_of_each(snapshot, now, verdicts);
    }

    #[cold]
    fn tell_of_each(&mut self, snapshot: &Snapshot, now: Now, verdicts: &[Verdict]) {
        for n in 0..self.tracing.marked.len() {
            let Some(marked) = self.tracing.marked.get(n).copied() else { continue };
            let Some(verdict) = verdicts.get(marked.place).copied() else { continue };
            // Without an outcome its decision is another thread's, or waits for another piece.
            let Some(outcome) = self.outcome(verdict) else {
                self.remember(verdict, marked.decapsulated_from);
                continue;
            };
            match self.tell_control(snapshot, now, &marked, outcome) {
                Ok(()) => self.counters.trace_reports.add(1),
                Err(refusal) => self.counters.trace_refused(refusal),
            }
        }
        self.tracing.marked.clear();
    }

    fn outcome(&self, verdict: Verdict) -> Option<Outcome> {
        match verdict {
            Verdict::Tx => Some(Outcome::Forward),
            Verdict::Reply => Some(Outcome::Reply),
            Verdict::Drop(reason) => Some(Outcome::Drop(reason)),
            // Behind the pieces' holds are those of packets that are cut, each on its way to a backend.
            Verdict::Hold(slot) if slot.0 as usize >= self.fragments.hold_slots() => Some(Outcome::Forward),
            Verdict::Hold(_) | Verdict::ToThread(..) => None,
        }
    }

    fn remember(&mut self, verdict: Verdict, decapsulated_from: Option<TunnelSourceKind>) {
        if let Verdict::Hold(slot) = verdict
            && let Some(held) = self.tracing.held.get_mut(slot.0 as usize)
        {
            *held = decapsulated_from;
        }
    }

    fn tell_control(
        &mut self,
        snapshot: &Snapshot,
        now: Now,
        marked: &Marked,
        outcome: Outcome,
    ) -> Result<(), TraceRefusal> {
        let trace = snapshot.trace.as_deref().ok_or(TraceRefusal::Receiver)?;
        let payload = marked.payload.get(..marked.length).unwrap_or_default();
        let mark = trace.read(payload, &marked.flow, self.tracing.clock.unix_seconds())?;
        if !self.tracing.meter.admit(trace.per_second, now) {
            return Err(TraceRefusal::Rate);
        }
        let sighting = TraceEvent {
            thread: self.config.thread,
            generation: snapshot.generation(),
            at: now,
            flow: marked.flow,
            decapsulated_from: marked.decapsulated_from,
            mark,
            explanation: self.explanation(snapshot, marked, outcome),
        };
        let told = self.notices.as_mut().is_some_and(|notices| notices.tell(Notice::Trace(sighting)));
        if told { Ok(()) } else { Err(TraceRefusal::RingFull) }
    }

    fn explanation(&self, snapshot: &Snapshot, marked: &Marked, outcome: Outcome) -> Explanation {
        let work = self.work.get(marked.place).copied().unwrap_or(NO_STATE);
        let Flow { destination, protocol, destination_port, .. } = &marked.flow;
        let sought = || snapshot.vips.find(destination, *protocol, *destination_port);
        // Who is refused by a list gets no further than its service.
        let service = match work.counted {
            ServiceId(NO_SERVICE) => sought().and_then(|at| snapshot.services.get(at as usize)).map(|s| s.id),
            known => Some(known),
        };
        let decided = work.counted.0 != NO_SERVICE;
        Explanation {
            service,
            hash: decided.then_some(work.hash),
            step: work.step,
            slot: Some(work.slot).filter(|slot| *slot != SlotId(u32::MAX)),
            outcome,
        }
    }
}
