//! The packets of a batch that the stages process. Usually these are all packets. While the thread
//! is overloaded, some packets are dropped before stage 1 (classification), and the stages process
//! the other packets. See the module `overload`.
//!
//! The stages number the packets that they process from 0, so that the states of these packets are
//! adjacent in memory. The stages are compiled for both cases, so a thread that is not overloaded
//! pays nothing.

use super::state::Batch;
use super::{Core, Scratch};
use crate::{Packet, Verdict};

/// The packets that the stages process.
pub(super) trait Admitted<'p> {
    /// Returns the number of packets.
    fn count(&self) -> usize;

    /// Returns the packet with this number.
    fn packet(&self, number: usize) -> Option<&Packet<'p>>;

    /// Returns the packet with this number for modification.
    fn packet_mut(&mut self, number: usize) -> Option<&mut Packet<'p>>;

    /// Returns the packets in batch order.
    fn packets<'a>(&'a self) -> impl Iterator<Item = &'a Packet<'p>>
    where
        'p: 'a,
    {
        (0..self.count()).map_while(|number| self.packet(number))
    }

    /// Runs stage 3 (rewriting) for all packets in batch order.
    fn write_all(&mut self, core: &mut Core, batch: &Batch<'_>, scratch: &mut Scratch);
}

/// All packets of a batch.
pub(super) struct Whole<'a, 'p> {
    pub(super) packets: &'a mut [Packet<'p>],
    pub(super) verdicts: &'a mut [Verdict],
}

/// The packets of a batch with the indexes `numbers`, in ascending order.
pub(super) struct Part<'a, 'p> {
    pub(super) batch: Whole<'a, 'p>,
    pub(super) numbers: &'a [u16],
}

impl<'p> Admitted<'p> for Whole<'_, 'p> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.packets.len()
    }

    #[inline(always)]
    fn packet(&self, number: usize) -> Option<&Packet<'p>> {
        self.packets.get(number)
    }

    #[inline(always)]
    fn packet_mut(&mut self, number: usize) -> Option<&mut Packet<'p>> {
        self.packets.get_mut(number)
    }

    #[inline(always)]
    fn packets<'a>(&'a self) -> impl Iterator<Item = &'a Packet<'p>>
    where
        'p: 'a,
    {
        self.packets.iter()
    }

    #[inline(never)]
    fn write_all(&mut self, core: &mut Core, batch: &Batch<'_>, scratch: &mut Scratch) {
        let places = scratch.fast.places.iter().zip(scratch.states.iter_mut());
        let packets = self.packets.iter_mut().zip(self.verdicts.iter_mut());
        for (packet, (place, state)) in packets.zip(places) {
            core.write_one(batch, packet, place, state);
        }
    }
}

impl<'p> Admitted<'p> for Part<'_, 'p> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.numbers.len()
    }

    #[inline(always)]
    fn packet(&self, number: usize) -> Option<&Packet<'p>> {
        self.batch.packets.get(usize::from(*self.numbers.get(number)?))
    }

    #[inline(always)]
    fn packet_mut(&mut self, number: usize) -> Option<&mut Packet<'p>> {
        self.batch.packets.get_mut(usize::from(*self.numbers.get(number)?))
    }

    #[inline(never)]
    fn write_all(&mut self, core: &mut Core, batch: &Batch<'_>, scratch: &mut Scratch) {
        let places = scratch.fast.places.iter().zip(scratch.states.iter_mut());
        let Whole { packets, verdicts } = &mut self.batch;
        for (number, (place, state)) in self.numbers.iter().zip(places) {
            let number = usize::from(*number);
            if let (Some(packet), Some(verdict)) = (packets.get_mut(number), verdicts.get_mut(number)) {
                core.write_one(batch, (packet, verdict), place, state);
            }
        }
    }
}
