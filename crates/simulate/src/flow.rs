//! Flows: when they begin, when they send, what is kept of one.
//!
//! In: [`Traffic`](crate::Traffic) and a seed. Out: flows in the order of their first packets. 32 bytes a flow.
//! Not here: where a flow goes. Its hashes follow from its number, and are not kept.

use crate::random::{Stream, draw, unit};
use crate::scenario::Scenario;

/// A flow that lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    /// Its place among all flows.
    pub(crate) number: u32,
    /// Its first packet.
    pub(crate) first_ms: u32,
    /// Its last packet.
    pub(crate) last_ms: u32,
    /// Where its first packet went.
    pub(crate) backend: u16,
    /// Machines that hold it in their flow tables, by bits; as far as that has not timed out.
    holders: [u64; 2],
}

impl Flow {
    pub(crate) fn new(begun: Begun, backend: u16) -> Self {
        let Begun { number, first_ms, last_ms } = begun;
        Self { number, first_ms, last_ms, backend, holders: [0; 2] }
    }

    /// Whether the machine may hold it.
    #[inline]
    pub(crate) fn is_held(&self, machine: u16) -> bool {
        self.holders[usize::from(machine / 64)] >> (machine % 64) & 1 == 1
    }

    #[inline]
    pub(crate) fn set_held(&mut self, machine: u16, is_held: bool) {
        let word = &mut self.holders[usize::from(machine / 64)];
        *word = *word & !(1 << (machine % 64)) | u64::from(is_held) << (machine % 64);
    }

    /// Its first packet from a time on that is not before its first; it may have ended before.
    #[inline]
    pub(crate) fn packet_from(&self, at_ms: u32, interval_ms: u32) -> u32 {
        self.first_ms
            .saturating_add((at_ms - self.first_ms).div_ceil(interval_ms).saturating_mul(interval_ms))
    }

    /// Its last packet before a time that is after its first.
    #[inline]
    pub(crate) fn packet_before(&self, at_ms: u32, interval_ms: u32) -> u32 {
        self.first_ms + (at_ms - 1 - self.first_ms) / interval_ms * interval_ms
    }
}

/// A flow that begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) number: u32,
    pub(crate) first_ms: u32,
    pub(crate) last_ms: u32,
}

/// All flows by their first packets: those that live at the start, then those that arrive.
pub(crate) struct Arrivals<'a> {
    scenario: &'a Scenario,
    next: u32,
    /// When the last one arrived.
    clock_ms: f64,
    waiting: Option<Begun>,
}

impl<'a> Arrivals<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Self {
        Self { scenario, next: 0, clock_ms: 0.0, waiting: None }
    }

    /// The next one, if it begins before a time, which does not go back.
    #[inline]
    pub(crate) fn next_before(&mut self, at_ms: u32) -> Option<Begun> {
        if self.waiting.is_none() {
            self.waiting = self.begin();
        }
        self.waiting.take_if(|begun| begun.first_ms < at_ms)
    }

    /// `None`: no more come in this scenario's time.
    fn begin(&mut self) -> Option<Begun> {
        let Scenario { seed, traffic, duration_ms, .. } = self.scenario;
        let (number, interval) = (self.next, traffic.packet_interval_ms);
        let is_residual = number < traffic.flows;
        let first_ms = if is_residual {
            let even = u64::from(number) * u64::from(interval) / u64::from(traffic.flows);
            u32::try_from(even).unwrap_or(u32::MAX)
        } else {
            self.arrival(*seed)?
        };
        if first_ms >= *duration_ms {
            return None;
        }
        self.next += 1;
        let lifetime = traffic.lifetime(*seed, number, is_residual);
        let last_ms = first_ms.saturating_add(lifetime / interval * interval);
        Some(Begun { number, first_ms, last_ms })
    }

    /// The time of the next arrival: these begin behind the flows of the start, so that all are in the order of time.
    fn arrival(&mut self, seed: u64) -> Option<u32> {
        let traffic = &self.scenario.traffic;
        if traffic.arrivals <= 0.0 {
            return None;
        }
        let place = u64::from(self.next);
        self.clock_ms -= unit(draw(seed, Stream::Arrival, place)).ln() * 1_000.0 / traffic.arrivals;
        let at = self.clock_ms + f64::from(traffic.packet_interval_ms);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let at = at as u32;
        Some(at)
    }
}
