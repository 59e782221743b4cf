//! Generates the flows of a scenario, ordered by their first packets.
//!
//! A [`Flow`] takes 32 bytes. The hashes of a flow are not stored but computed from the index of
//! the flow.

use crate::random::{Stream, draw, unit};
use crate::scenario::Scenario;

/// A live flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    /// The index of the flow. Indexes follow the order of the flows' first packets.
    pub(crate) number: u32,
    /// The time of the first packet.
    pub(crate) first_ms: u32,
    /// The time of the last packet.
    pub(crate) last_ms: u32,
    /// The backend that received the first packet.
    pub(crate) backend: u16,
    /// A bit mask of the machines whose flow tables may contain the flow. The entries may have
    /// expired.
    holders: [u64; 2],
}

impl Flow {
    pub(crate) fn new(begun: Begun, backend: u16) -> Self {
        let Begun { number, first_ms, last_ms } = begun;
        Self { number, first_ms, last_ms, backend, holders: [0; 2] }
    }

    /// Returns `true` if the flow table of the machine may contain the flow.
    #[inline]
    pub(crate) fn is_held(&self, machine: u16) -> bool {
        self.holders[usize::from(machine / 64)] >> (machine % 64) & 1 == 1
    }

    #[inline]
    pub(crate) fn set_held(&mut self, machine: u16, is_held: bool) {
        let word = &mut self.holders[usize::from(machine / 64)];
        *word = *word & !(1 << (machine % 64)) | u64::from(is_held) << (machine % 64);
    }

    /// Returns the time of the first packet at or after `at_ms`. The result may be after the end of
    /// the flow.
    #[inline]
    pub(crate) fn packet_from(&self, at_ms: u32, interval_ms: u32) -> u32 {
        self.first_ms
            .saturating_add((at_ms - self.first_ms).div_ceil(interval_ms).saturating_mul(interval_ms))
    }

    /// Returns the time of the last packet before `at_ms`. `at_ms` must be later than the first
    /// packet.
    #[inline]
    pub(crate) fn packet_before(&self, at_ms: u32, interval_ms: u32) -> u32 {
        self.first_ms + (at_ms - 1 - self.first_ms) / interval_ms * interval_ms
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) number: u32,
    pub(crate) first_ms: u32,
    pub(crate) last_ms: u32,
}

/// An iterator over all flows. The flows that are live at the start of the scenario are returned
/// first, followed by new flows.
pub(crate) struct Arrivals<'a> {
    scenario: &'a Scenario,
    next: u32,
    /// The time at which the last flow arrived.
    clock_ms: f64,
    waiting: Option<Begun>,
}

impl<'a> Arrivals<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Self {
        Self { scenario, next: 0, clock_ms: 0.0, waiting: None }
    }

    /// Returns the next flow if it begins before `at_ms`. The values of `at_ms` must not decrease
    /// between calls.
    #[inline]
    pub(crate) fn next_before(&mut self, at_ms: u32) -> Option<Begun> {
        if self.waiting.is_none() {
            self.waiting = self.begin();
        }
        self.waiting.take_if(|begun| begun.first_ms < at_ms)
    }

    /// Creates the next flow. Returns `None` if the scenario ends before another flow begins.
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

    /// Returns the start time of the next new flow. New flows start after the initial flows have
    /// started, so that all flows are ordered by time.
    fn arrival(&mut self, seed: u64) -> Option<u32> {
        let traffic = &self.scenario.traffic;
        if traffic.arrivals <= 0.0 {
            return None;
        }
        let place = u64::from(self.next);
        self.clock_ms -= unit(draw(seed, Stream::Arrival, place)).ln() * 1_000.0 / traffic.arrivals;
        let at = self.clock_ms + f64::from(traffic.packet_interval_ms);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
        let at = at as u32;
        Some(at)
    }
}
