//! The rate limits of one packet thread, with a meter per guard and a fixed-size table of sources.
//!
//! Packet threads share no state, so each thread enforces the configured limit divided by the
//! number of threads, rounded up. If RSS distributes flows unevenly, fewer flows than the limit are
//! admitted in total. If the limit is below the number of threads, up to one flow per thread is
//! admitted.
//!
//! The source table is four-way set-associative and never grows. Replacing a token bucket that is
//! full loses no information. If no bucket of a set is full, the bucket with the fewest missing
//! tokens is replaced. As a result, the replaced source may be admitted too often. A source over
//! its limit is replaced last, unless the limit is one flow per thread. SipHash with the cluster's
//! key selects the set, so attackers cannot choose the set.

use counters::DropReason;

use super::meter::Meter;
use super::{Guard, GuardId, SourceLimit};
use crate::{Flow, FlowHasher, Now};

/// The rate limits of one packet thread.
#[derive(Debug)]
pub struct Limits {
    threads: u32,
    guards: Box<[Meter]>,
    sources: Sources,
}

impl Limits {
    /// Allocates the meters of all possible guards (8 bytes each) and a table for `sources` sources
    /// (16 bytes each).
    pub fn new(threads: u16, sources: usize) -> Self {
        let guards = vec![Meter::default(); GuardId::LIMIT as usize].into();
        Self { threads: u32::from(threads.max(1)), guards, sources: Sources::new(sources) }
    }

    /// Counts a new flow against the limits of `guard`. The limit per source is checked first, so
    /// that a source over its limit does not use up the limit that all sources share.
    ///
    /// # Errors
    /// Returns [`DropReason::SourceFlowRate`] or [`DropReason::FlowRate`] if a limit is exceeded.
    #[inline]
    pub fn admit(
        &mut self,
        guard: &Guard,
        hasher: &FlowHasher,
        flow: &Flow,
        now: Now,
    ) -> Result<(), DropReason> {
        if let Some(limit) = &guard.per_source {
            let rate = limit.new_flows_per_second.get().div_ceil(self.threads);
            let key = hasher.hash_source(&masked(flow, limit), guard.id.0);
            if !self.sources.admit(key, rate, 1, now) {
                return Err(DropReason::SourceFlowRate);
            }
        }
        if let Some(limit) = guard.new_flows_per_second {
            let rate = limit.get().div_ceil(self.threads);
            let meter = self.guards.get_mut(guard.id.0 as usize);
            if meter.is_some_and(|meter| !meter.admit(rate, now)) {
                return Err(DropReason::FlowRate);
            }
        }
        Ok(())
    }
}

impl Limits {
    /// Counts an event from a source against a limit of `rate` events per second. Use
    /// [`Self::admit`] for new flows. `key` is a keyed hash of the source and the event kind.
    /// Returns `false` if the limit is exceeded.
    pub fn admit_source(&mut self, key: u64, rate: u32, now: Now) -> bool {
        self.sources.admit(key, rate, 1, now)
    }

    /// Returns `true` if [`Self::admit_source`] would admit an event, without counting it.
    #[must_use]
    pub fn would_admit_source(&self, key: u64, rate: u32, now: Now) -> bool {
        let set = self.sources.place(key).and_then(|place| self.sources.sets.get(place));
        // A source without a bucket gets a full bucket.
        let known = set.and_then(|Set(ways)| ways.iter().find(|way| way.key == key));
        known.is_none_or(|known| known.meter.would_admit(rate, now))
    }

    /// Counts `bytes` against a budget in bytes per second for the source with this `key`. Each
    /// thread enforces its share of the budget. Returns `false` if the budget is exceeded.
    pub fn admit_bytes(&mut self, key: u64, budget: u64, bytes: u64, now: Now) -> bool {
        let rate = budget.div_ceil(BLOCK).div_ceil(self.threads.into());
        let (rate, blocks) = (u32::try_from(rate).unwrap_or(u32::MAX), u32::try_from(bytes.div_ceil(BLOCK)));
        self.sources.admit(key, rate, blocks.unwrap_or(u32::MAX), now)
    }
}

/// Returns the source prefix of the flow, with zeroed host bits.
#[inline]
fn masked(flow: &Flow, limit: &SourceLimit) -> [u8; 16] {
    let length =
        if flow.is_v4() { 96 + u32::from(limit.v4_prefix.min(32)) } else { u32::from(limit.v6_prefix) };
    let host = u128::MAX.checked_shr(length).unwrap_or(0);
    (u128::from_be_bytes(flow.source) & !host).to_be_bytes()
}

/// The token buckets of the sources, in sets of four buckets. Each set fills one cache line.
#[derive(Debug)]
struct Sources {
    sets: Box<[Set]>,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set([Source; WAYS]);

#[derive(Clone, Copy, Debug, Default)]
struct Source {
    /// The 64-bit hash of the guard number and the source prefix. Two sources share a bucket only
    /// if their hashes are equal.
    key: u64,
    meter: Meter,
}

impl Sources {
    fn new(sources: usize) -> Self {
        Self { sets: vec![Set::default(); sources.div_ceil(WAYS)].into() }
    }

    /// Returns the index of the set that may contain the bucket of a source.
    #[inline]
    fn place(&self, key: u64) -> Option<usize> {
        usize::try_from((u128::from(key) * self.sets.len() as u128) >> 64).ok()
    }

    #[inline]
    fn admit(&mut self, key: u64, rate: u32, count: u32, now: Now) -> bool {
        // A table of size 0 admits all events.
        let set = self.place(key).and_then(|place| self.sets.get_mut(place));
        let Some(Set(ways)) = set else { return true };
        if let Some(known) = ways.iter_mut().find(|way| way.key == key) {
            return known.meter.admit_many(rate, count, now);
        }
        // The bucket that will be full first is replaced. If the bucket was already full before
        // `now`, replacing it loses no state.
        let Some(way) = ways.iter_mut().min_by_key(|way| way.meter) else { return true };
        *way = Source { key, meter: Meter::default() };
        way.meter.admit_many(rate, count, now)
    }
}

const WAYS: usize = 4;
/// The unit of byte budgets, in bytes. Rates in bytes would exceed the resolution of a meter.
const BLOCK: u64 = 64;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::{IpAddr, SocketAddr};
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::HashKey;

    const SECOND: u64 = 1_000_000_000;

    fn flow(source: &str) -> Flow {
        let source: IpAddr = source.parse().unwrap();
        let vip = if source.is_ipv4() { "203.0.113.10:80" } else { "[2001:db8:f::10]:80" };
        Flow::new((source, 7), vip.parse::<SocketAddr>().unwrap(), 6).unwrap()
    }

    fn guard(id: u32, all: Option<u32>, each: Option<(u32, u8, u8)>) -> Guard {
        Guard {
            id: GuardId(id),
            new_flows_per_second: all.map(|rate| NonZeroU32::new(rate).unwrap()),
            per_source: each.map(|(rate, v4_prefix, v6_prefix)| SourceLimit {
                new_flows_per_second: NonZeroU32::new(rate).unwrap(),
                v4_prefix,
                v6_prefix,
            }),
            ..Guard::default()
        }
    }

    /// Returns how many new flows are admitted at `now`, and why the next flow was refused.
    fn burst(
        limits: &mut Limits,
        guard: &Guard,
        source: &str,
        now: u64,
        times: u32,
    ) -> (u32, Option<DropReason>) {
        let hasher = FlowHasher::new(&HashKey::new([5; 16]));
        let (mut passed, mut why) = (0, None);
        for _ in 0..times {
            match limits.admit(guard, &hasher, &flow(source), Now::from_nanos(now)) {
                Ok(()) => passed += 1,
                Err(reason) => why = why.or(Some(reason)),
            }
        }
        (passed, why)
    }

    #[test]
    fn each_guard_has_its_rate_and_each_prefix_its_own() {
        let mut limits = Limits::new(1, 1024);
        let all = guard(0, Some(10), None);
        assert_eq!(burst(&mut limits, &all, "192.0.2.1", 0, 15), (10, Some(DropReason::FlowRate)));
        assert_eq!(burst(&mut limits, &guard(1, Some(4), None), "192.0.2.1", 0, 15).0, 4);
        let each = guard(2, None, Some((3, 24, 64)));
        assert_eq!(burst(&mut limits, &each, "192.0.2.1", 0, 9), (3, Some(DropReason::SourceFlowRate)));
        assert_eq!(burst(&mut limits, &each, "192.0.2.200", 0, 9).0, 0, "same /24");
        assert_eq!(burst(&mut limits, &each, "198.51.100.1", 0, 9).0, 3);
        assert_eq!(burst(&mut limits, &each, "2001:db8:0:1::1", 0, 9).0, 3);
        assert_eq!(burst(&mut limits, &each, "2001:db8:0:1:ffff::1", 0, 9).0, 0, "same /64");
        assert_eq!(burst(&mut limits, &each, "2001:db8:0:2::1", 0, 9).0, 3);
        assert_eq!(
            burst(&mut limits, &guard(3, None, Some((3, 24, 64))), "192.0.2.1", 0, 9).0,
            3,
            "another VIP"
        );
        assert_eq!(burst(&mut limits, &each, "192.0.2.1", SECOND, 9).0, 3, "a second later");
    }

    #[test]
    fn a_source_s_excess_takes_nothing_from_the_others() {
        let mut limits = Limits::new(1, 1024);
        let both = guard(0, Some(10), Some((2, 32, 64)));
        assert_eq!(burst(&mut limits, &both, "192.0.2.1", 0, 1000), (2, Some(DropReason::SourceFlowRate)));
        let others: u32 = (2..=9).map(|n| burst(&mut limits, &both, &format!("192.0.2.{n}"), 0, 2).0).sum();
        assert_eq!(others, 8, "the other sources must share the rest of the limit");
    }

    #[test]
    fn each_thread_takes_its_share_rounded_up() {
        for (threads, rate, share) in [(1, 10, 10), (4, 10, 3), (16, 10, 1), (3, 9, 3)] {
            let mut limits = Limits::new(threads, 1024);
            assert_eq!(burst(&mut limits, &guard(0, Some(rate), None), "192.0.2.1", 0, 50).0, share);
            assert_eq!(
                burst(&mut limits, &guard(0, None, Some((rate, 32, 64))), "192.0.2.1", 0, 50).0,
                share
            );
        }
    }

    #[test]
    fn no_limit_and_no_table_admit_all() {
        let mut limits = Limits::new(1, 0);
        assert_eq!(burst(&mut limits, &guard(0, None, None), "192.0.2.1", 0, 100).0, 100);
        assert_eq!(burst(&mut limits, &guard(0, None, Some((1, 32, 64))), "192.0.2.1", 0, 100).0, 100);
    }

    /// A model of the rate limits that uses exact token fractions and one map entry for each
    /// source.
    #[derive(Default)]
    struct Oracle(HashMap<u64, (u128, u64)>);

    impl Oracle {
        fn admit(&mut self, key: u64, rate: u32, count: u32, now: u64) -> bool {
            let full = u128::from(rate) * u128::from(SECOND);
            let price = (u128::from(count) * u128::from(SECOND)).min(full);
            let (tokens, last) = self.0.entry(key).or_insert((full, now));
            *tokens = (*tokens + u128::from(now - *last) * u128::from(rate)).min(full);
            *last = now;
            let passes = *tokens >= price;
            if passes {
                *tokens -= price;
            }
            passes
        }
    }

    fn asks(keys: u64) -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((1..=keys, prop_oneof![Just(0), 0..SECOND / 20, 0..SECOND]), 1..400)
    }

    fn scattered(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    proptest! {
        /// The number of sources is the same as the number of buckets in a set, so no source is
        /// replaced.
        #[test]
        fn without_collisions_every_source_has_its_exact_bucket(
            asks in asks(WAYS as u64),
            rate in prop::sample::select(vec![1u32, 2, 5, 10]),
            counts in prop::collection::vec(1u32..12, 400),
        ) {
            let (mut table, mut oracle, mut now) = (Sources::new(64), Oracle::default(), 3);
            for ((key, step), count) in asks.into_iter().zip(counts) {
                now += step;
                let expected = oracle.admit(key, rate, count, now);
                prop_assert_eq!(table.admit(scattered(key), rate, count, Now::from_nanos(now)), expected);
            }
        }

        /// All sources share one set. Each source must be admitted at least as often as an exact
        /// token bucket would admit it.
        #[test]
        fn in_collisions_nobody_gets_less_than_an_exact_bucket(
            asks in asks(20),
            rate in prop::sample::select(vec![1u32, 2, 5, 10]),
        ) {
            let (mut table, mut oracle, mut now) = (Sources::new(WAYS), Oracle::default(), 3);
            let mut surplus: HashMap<u64, i64> = HashMap::new();
            for (key, step) in asks {
                now += step;
                let exact = i64::from(oracle.admit(key, rate, 1, now));
                let given = i64::from(table.admit(scattered(key), rate, 1, Now::from_nanos(now)));
                let surplus = surplus.entry(key).or_default();
                *surplus += given - exact;
                prop_assert!(*surplus >= 0, "source {} must be admitted {} more times", key, -*surplus);
            }
        }

        /// Thousands of sources with few flows share one set with a source that sends continuously.
        #[test]
        fn whoever_is_over_the_limit_stays_limited_in_any_crowd(
            crowd in prop::collection::vec((2u64..=10_000, 1u64..4), 100..600),
            rate in prop::sample::select(vec![4u32, 10, 20]),
        ) {
            let mut table = Sources::new(WAYS);
            let (mut now, mut passed) = (0, 0);
            for (key, hog) in crowd {
                now += SECOND / 500;
                passed += (0..hog * 5).filter(|_| table.admit(scattered(1), rate, 1, Now::from_nanos(now))).count() as u64;
                table.admit(scattered(key), rate, 1, Now::from_nanos(now));
            }
            let most = u64::from(rate) + u64::from(rate) * now / SECOND + 1;
            prop_assert!(passed <= most, "{} events were admitted, but the limit is {}", passed, most);
        }
    }
}
