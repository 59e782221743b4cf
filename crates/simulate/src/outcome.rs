//! What became of the flows of one run.
//!
//! In: what `run` meets. Out: counts, by event and over time, and how even the load was. Not here: words and drawings.

use serde::Serialize;

use crate::Hashing;

/// One run: a way of hashing, with flow tables or without.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// How backends are chosen.
    pub hashing: Hashing,
    /// Whether machines keep flow tables.
    pub flow_tables: bool,
    /// All flows that were seen.
    pub flows: u64,
    /// Sums over all events, and what was before the first.
    #[serde(flatten)]
    pub counts: Counts,
    /// The same by event, what was before the first at place 0.
    pub by_event: Vec<Counts>,
    /// Broken connections in each of [`SPANS`] equal spans of the time.
    pub broken_over_time: Vec<u64>,
    /// Living flows over backends that serve, by weight.
    pub backends: Balance,
    /// Living flows over machines.
    pub machines: Balance,
}

/// What befell flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Packets that met another machine than the one before: routers had changed.
    pub moved: u64,
    /// Flows of which a packet went to another backend than the first, or to none, while that one lived: these connections break.
    pub broken: u64,
    /// Flows whose backend died, or was dead when they began.
    pub lost: u64,
    /// Flows that met no machine, or no backend, at their first packet.
    pub unserved: u64,
    /// Flows that found no place in the first machine's flow table.
    pub untracked: u64,
}

/// How even a load is: the most that one has by what it should have. 1 is even.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Balance {
    /// Before the first event.
    pub at_start: f64,
    /// The worst before an event, and at the end.
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

    /// Broken connections as a share of all flows.
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
    /// Takes a measure in; the first is that of the start. Loads are by what each should have, which may be 0 for none.
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

/// Spans into which [`Outcome::broken_over_time`] parts the time.
pub const SPANS: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balance_is_the_most_by_what_it_should_be() {
        let mut balance = Balance::default();
        balance.add(&[30, 10, 7], &[2.0, 1.0, 0.0]);
        assert_eq!(balance, Balance { at_start: 1.125, worst: 1.125 });
        balance.add(&[10, 30], &[1.0, 1.0]);
        balance.add(&[0, 0], &[1.0, 1.0]);
        assert_eq!(balance, Balance { at_start: 1.125, worst: 1.5 });
    }
}
