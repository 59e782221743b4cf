//! The result of one run: the numbers of broken, moved and lost flows, by event and over time, and
//! the load balance.

use serde::Serialize;

use crate::Hashing;

/// The result of one run with one hashing method, with or without flow tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The hashing method of the run.
    pub hashing: Hashing,
    /// `true` if machines keep flow tables.
    pub flow_tables: bool,
    /// The number of simulated flows.
    pub flows: u64,
    /// The counts over the whole run.
    #[serde(flatten)]
    pub counts: Counts,
    /// The counts between each event and the next. The entry at index 0 contains the counts before
    /// the first event.
    pub by_event: Vec<Counts>,
    /// The number of broken connections in each of [`SPANS`] time spans of equal length.
    pub broken_over_time: Vec<u64>,
    /// The balance of live flows over the serving backends, relative to the weights of the
    /// backends.
    pub backends: Balance,
    /// The balance of live flows over machines.
    pub machines: Balance,
}

/// The number of flows with each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The number of times that a flow moved to a different machine because the next hops of
    /// routers changed.
    pub moved: u64,
    /// The number of broken flows. A flow breaks if one of its packets reaches no backend. A flow
    /// also breaks if a packet reaches a different backend than the first packet of the flow, even
    /// though the first backend is up.
    pub broken: u64,
    /// The number of flows whose backend failed, or was already down when the flow began.
    pub lost: u64,
    /// The number of flows whose first packet found no machine or no backend.
    pub unserved: u64,
    /// The number of flows that found no free entry in the flow table of their first machine.
    pub untracked: u64,
}

/// The balance of a load: the largest ratio of an actual share to its expected share. A value of 1
/// means that the load is perfectly even.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Balance {
    /// The balance before the first event.
    pub at_start: f64,
    /// The worst balance of all measurements, which are taken before each event and at the end.
    pub worst: f64,
}

impl Outcome {
    pub(crate) fn new(hashing: Hashing, flow_tables: bool, events: usize) -> Self {
        Self {
            hashing,
            flow_tables,
            flows: 0,
            counts: Counts::default(),
            by_event: vec![Counts::default(); events + 1],
            broken_over_time: vec![0; SPANS],
            backends: Balance::default(),
            machines: Balance::default(),
        }
    }

    /// Returns the broken connections as a fraction of all flows.
    #[must_use]
    pub fn broken_share(&self) -> f64 {
        if self.flows == 0 { 0.0 } else { self.counts.broken as f64 / self.flows as f64 }
    }

    pub(crate) fn settle(&mut self) {
        self.by_event.iter().for_each(|counts| self.counts.add(counts));
    }
}

impl Counts {
    pub(crate) fn add(&mut self, more: &Self) {
        let Self { moved, broken, lost, unserved, untracked } = more;
        self.moved += moved;
        self.broken += broken;
        self.lost += lost;
        self.unserved += unserved;
        self.untracked += untracked;
    }
}

impl Balance {
    /// Adds a measurement. The first measurement is also stored in `at_start`. `wanted` contains
    /// the expected share of each backend or machine. Backends and machines with an expected share
    /// of 0 are ignored.
    pub(crate) fn add(&mut self, loads: &[u64], wanted: &[f64]) {
        let all: u64 =
            loads.iter().zip(wanted).filter(|(_, wanted)| **wanted > 0.0).map(|(load, _)| *load).sum();
        let whole: f64 = wanted.iter().sum();
        if all == 0 || whole <= 0.0 {
            return;
        }
        let excess = |(load, wanted): (&u64, &f64)| {
            if *wanted > 0.0 { *load as f64 / (*wanted / whole * all as f64) } else { 0.0 }
        };
        let most = loads.iter().zip(wanted).map(excess).fold(0.0, f64::max);
        if self.worst == 0.0 {
            self.at_start = most;
        }
        self.worst = self.worst.max(most);
    }
}

/// The number of time spans in [`Outcome::broken_over_time`].
pub const SPANS: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balance_divides_the_largest_load_by_the_expected_load() {
        let mut balance = Balance::default();
        balance.add(&[30, 10, 7], &[2.0, 1.0, 0.0]);
        assert_eq!(balance, Balance { at_start: 1.125, worst: 1.125 });
        balance.add(&[10, 30], &[1.0, 1.0]);
        balance.add(&[0, 0], &[1.0, 1.0]);
        assert_eq!(balance, Balance { at_start: 1.125, worst: 1.5 });
    }
}
