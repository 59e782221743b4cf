//! Trace reports for marked packets. If tracing is enabled in the snapshot, each parsed packet is
//! checked for a trace mark. The verdict for a marked packet is sent to the control plane as a
//! notice. A packet without a mark costs one load and one comparison. The format of marks is in
//! `trace-mark`. A mark does not change how a packet is processed.

use classifier::Meter;
use packet::parse;
use trace_mark::{MARK_BYTES, TraceRefusal, WallClock, has_magic, payload_at};

use super::Core;
use super::state::{Batch, PacketState};
use crate::{
    Explanation, Flow, HoldSlot, Notice, Outcome, Packet, Snapshot, TraceEvent, TunnelSourceKind, Verdict,
};

/// The tracing state of one packet thread.
#[derive(Debug)]
pub(super) struct Tracing {
    clock: WallClock,
    meter: Meter,
    /// The marked packets of the current batch.
    marked: Vec<Marked>,
    /// For each held packet with a trace mark, the kind of tunnel sender that the packet came from.
    /// The index is the hold slot, which is the packet's index in the driver's table of held
    /// frames. The kind of tunnel sender must be stored, because the outer header is removed before
    /// the packet is held.
    held: Box<[Option<TunnelSourceKind>]>,
}

/// A received packet whose payload starts with the magic bytes of a trace mark.
#[derive(Clone, Copy, Debug)]
struct Marked {
    place: usize,
    /// The kind of tunnel sender, or `None` if the packet was not decapsulated.
    decapsulated_from: Option<TunnelSourceKind>,
    flow: Flow,
    payload: [u8; MARK_BYTES],
    /// The number of valid bytes in `payload`.
    length: usize,
}

impl Tracing {
    pub(super) fn new(clock: WallClock, max_batch: usize, hold_slots: usize) -> Self {
        let held = vec![None; hold_slots].into_boxed_slice();
        Self { clock, meter: Meter::default(), marked: Vec::with_capacity(max_batch), held }
    }
}

impl Core {
    /// Looks for a trace mark in a packet. This function must run before the packet is changed.
    #[inline]
    pub(super) fn look_for_mark(&mut self, batch: &Batch<'_>, frame: &[u8], state: &PacketState) {
        if batch.snapshot.trace.is_none() {
            return;
        }
        if let Some(at) = payload_at(frame, &state.parsed).filter(|at| has_magic(frame, *at)) {
            self.take_mark(frame, state, at);
        }
    }

    /// Looks for a trace mark in a packet that is released from its hold slot.
    pub(super) fn look_at_held(&mut self, batch: &Batch<'_>, packet: &Packet<'_>, slot: HoldSlot) {
        if batch.snapshot.trace.is_some()
            && let Ok(parsed) = parse(packet.frame())
        {
            let from = self.tracing.held.get_mut(slot.0 as usize).and_then(Option::take);
            self.look_for_mark(batch, packet.frame(), &PacketState::of(0, parsed, from));
        }
    }

    #[cold]
    fn take_mark(&mut self, frame: &[u8], state: &PacketState, at: usize) {
        let PacketState { place, parsed, decapsulated_from, .. } = state;
        let bytes = frame.get(at..usize::from(parsed.end)).unwrap_or_default();
        let mut payload = [0; MARK_BYTES];
        payload.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let (flow, length) = (Flow::of(frame, parsed), bytes.len().min(MARK_BYTES));
        let marked = Marked { place: *place, decapsulated_from: *decapsulated_from, flow, payload, length };
        // The list never grows beyond its capacity, which is the maximum batch size, so `push` does
        // not allocate.
        if self.tracing.marked.len() < self.tracing.marked.capacity() {
            self.tracing.marked.push(marked);
        }
    }

    /// Returns `true` if the batch contains marked packets.
    pub(super) fn has_marked(&self) -> bool {
        !self.tracing.marked.is_empty()
    }

    /// Replaces the number of each marked packet with its index in the batch. `admitted` contains
    /// the indexes of the admitted packets.
    pub(super) fn renumber_marked(&mut self, admitted: &[u16]) {
        for marked in &mut self.tracing.marked {
            if let Some(place) = admitted.get(marked.place) {
                marked.place = usize::from(*place);
            }
        }
    }

    /// Sends trace reports for the marked packets of a batch.
    #[inline]
    pub(super) fn report_marked(&mut self, batch: &Batch<'_>, states: &[PacketState], verdicts: &[Verdict]) {
        if self.has_marked() {
            self.report_each(batch, states, verdicts);
        }
    }

    #[cold]
    fn report_each(&mut self, batch: &Batch<'_>, states: &[PacketState], verdicts: &[Verdict]) {
        for n in 0..self.tracing.marked.len() {
            let Some(marked) = self.tracing.marked.get(n).copied() else { continue };
            let (Some(state), Some(&verdict)) = (states.get(marked.place), verdicts.get(marked.place)) else {
                continue;
            };
            // A packet without an outcome was passed to another thread, or is a fragment that is
            // waiting for the first fragment of its datagram.
            let Some(outcome) = self.outcome(verdict) else {
                self.remember(verdict, marked.decapsulated_from);
                continue;
            };
            let explanation = explanation(batch.snapshot, &marked, state, outcome);
            match self.report(batch, &marked, explanation) {
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
            // The hold slots after the hold slots of the fragment table contain packets that are
            // waiting to be split into fragments.
            Verdict::Hold(slot) if slot.0 as usize >= self.fragments.hold_slots() => Some(Outcome::Forward),
            Verdict::Hold(_) | Verdict::ToThread(..) | Verdict::Taken => None,
        }
    }

    fn remember(&mut self, verdict: Verdict, decapsulated_from: Option<TunnelSourceKind>) {
        if let Verdict::Hold(slot) = verdict
            && let Some(held) = self.tracing.held.get_mut(slot.0 as usize)
        {
            *held = decapsulated_from;
        }
    }

    fn report(
        &mut self,
        batch: &Batch<'_>,
        marked: &Marked,
        explanation: Explanation,
    ) -> Result<(), TraceRefusal> {
        let trace = batch.snapshot.trace.as_deref().ok_or(TraceRefusal::Receiver)?;
        let payload = marked.payload.get(..marked.length).unwrap_or_default();
        let mark = trace.read(payload, &marked.flow, self.tracing.clock.unix_seconds())?;
        if !self.tracing.meter.admit(trace.per_second, batch.now) {
            return Err(TraceRefusal::Rate);
        }
        let event = TraceEvent {
            thread: self.config.thread,
            generation: batch.snapshot.generation(),
            at: batch.now,
            flow: marked.flow,
            decapsulated_from: marked.decapsulated_from,
            mark,
            explanation,
        };
        let sent = self.notices.as_mut().is_some_and(|notices| notices.send(Notice::Trace(event)));
        if sent { Ok(()) } else { Err(TraceRefusal::RingFull) }
    }
}

fn explanation(snapshot: &Snapshot, marked: &Marked, state: &PacketState, outcome: Outcome) -> Explanation {
    let Flow { destination, protocol, destination_port, .. } = &marked.flow;
    // If a source list refused the packet, its state has no service yet.
    let found = || snapshot.vips.find(destination, *protocol, *destination_port);
    let service = state.service_id().or_else(|| found().map(|index| snapshot.service(index).id));
    let hash = state.service_id().map(|_| state.hash);
    let route = state.route;
    Explanation { service, hash, route, step: state.choice.step, slot: state.chosen(), outcome }
}
