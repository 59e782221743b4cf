//! Implements [`Outlet`], through which the forwarder sends packets that it generates, and releases
//! or splits packets that it holds.

use std::ops::Range;

use forwarder::{DropReason, FragmentStep, HoldSlot, NotSent, Origin, Outlet, Packet, Verdict};

use super::{Arrival, Port};
use crate::device::{Device, Received};

impl<D: Device> Port<D> {
    /// Sends the fragments that `carve` writes from a held packet. Returns the number of fragments
    /// that were sent or handed over, and an error if some fragments could not be sent.
    fn carve(
        &mut self,
        arrival: &mut Arrival<D::Frame>,
        carve: &mut dyn FnMut(&Packet<'_>, &mut [u8]) -> FragmentStep,
    ) -> (u64, Result<(), DropReason>) {
        let mut sent = 0;
        loop {
            let Some(frame) = self.free.pop() else { return (sent, Err(DropReason::NoFrame)) };
            let mut frame = self.device.lengthen(frame);
            let Received { frame: whole, interface, start, end } = &mut arrival.received;
            let interface = *interface;
            let packet = Packet::new(self.device.bytes(whole), *start, *end, arrival.origin).on(interface);
            let end = match carve(&packet, self.device.bytes(&mut frame)) {
                FragmentStep::Of(length) => length,
                last @ (FragmentStep::End | FragmentStep::Failed(_)) => {
                    self.free.push(frame);
                    let failed = if let FragmentStep::Failed(reason) = last { Err(reason) } else { Ok(()) };
                    return (sent, failed);
                }
            };
            if let Err(reason) = self.leave(Received { frame, interface, start: 0, end }, false) {
                return (sent, Err(reason));
            }
            sent += 1;
        }
    }
}

impl<D: Device> Outlet for Port<D> {
    fn originate(&mut self, build: &mut dyn FnMut(&mut Packet<'_>) -> bool) -> Result<(), NotSent> {
        let mut frame = self.free.pop().ok_or(NotSent::NoFrame)?;
        let bytes = self.device.bytes(&mut frame);
        let whole = bytes.len();
        let mut packet = Packet::new(bytes, 0, whole, Origin::Wire);
        let is_built = build(&mut packet);
        let (interface, Range { start, end }) = (packet.interface(), packet.bounds());
        if !is_built {
            self.free.push(frame);
            return Err(NotSent::NotBuilt);
        }
        // Only frames that were sent are counted as originated, so that the invariant of the
        // thread's counters always holds.
        if self.leave(Received { frame, interface, start, end }, false).is_err() {
            return Err(NotSent::NoRoom);
        }
        self.counters.originated.add(1);
        Ok(())
    }

    fn free_frames(&self) -> usize {
        self.free.len()
    }

    fn release(&mut self, slot: HoldSlot, decide: &mut dyn FnMut(&mut Packet<'_>) -> Verdict) {
        let Some(mut arrival) = self.take_held(slot) else { return };
        let Received { frame, interface, start, end } = &mut arrival.received;
        let mut packet = Packet::new(self.device.bytes(frame), *start, *end, arrival.origin).on(*interface);
        let verdict = decide(&mut packet);
        (Range { start: *start, end: *end }, *interface) = (packet.bounds(), packet.interface());
        if let Err(reason) = self.carry_out(verdict, arrival) {
            self.counters.dropped(reason);
        }
        self.counters.held.set(self.holding as u64);
    }

    fn split(&mut self, slot: HoldSlot, carve: &mut dyn FnMut(&Packet<'_>, &mut [u8]) -> FragmentStep) {
        let Some(mut arrival) = self.take_held(slot) else { return };
        let (sent, outcome) = self.carve(&mut arrival, carve);
        self.release_frame(arrival.received.frame);
        // The held packet is counted as its first sent fragment or as dropped, so only further
        // fragments are counted as originated. A packet that yields no fragment is dropped as
        // malformed.
        let outcome = if sent == 0 { outcome.and(Err(DropReason::Malformed)) } else { outcome };
        self.counters.originated.add(sent - u64::from(outcome.is_ok()));
        if let Err(reason) = outcome {
            self.counters.dropped(reason);
        }
        self.counters.held.set(self.holding as u64);
    }
}
