//! Computes rates from two readings of the counters.
//!
//! A rate is never negative or infinite. A counter decreases if the balancer restarts, or if a
//! backend is added again under the same name. In that case, the rate is computed as if the counter
//! had been 0 at the first reading.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use admin::stats::{Stats, ThreadStats, TrafficStats};
use admin::view::{BackendRow, VipRow};
use serde::Serialize;

use crate::table::word;

/// The rates of one interval. The names of the JSON fields are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// The length of the interval.
    pub(crate) seconds: f64,
    /// The received traffic of all threads.
    pub(crate) total: Traffic,
    /// The number of tracked flows.
    pub(crate) flow_entries: u64,
    /// The capacity of the connection tables.
    pub(crate) flow_capacity: u64,
    /// The services of all VIPs, busiest first.
    pub(crate) services: Vec<Row>,
    /// The backends, busiest first.
    pub(crate) backends: Vec<Row>,
    /// The drop reasons with at least one packet, highest rate first.
    pub(crate) drops: Vec<Drops>,
    /// The rates of the packet threads, followed by the rates of the I/O threads.
    pub(crate) threads: Vec<Thread>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[expect(clippy::struct_field_names, reason = "the field names contain the unit")]
pub(crate) struct Traffic {
    pub(crate) packets_per_second: f64,
    pub(crate) bits_per_second: f64,
    pub(crate) new_flows_per_second: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// The state of a backend in its pools, or the readiness of a service. `None` if states are not
    /// requested, because there are too many backends or services.
    pub(crate) state: Option<String>,
    #[serde(flatten)]
    pub(crate) traffic: Traffic,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Drops {
    pub(crate) reason: String,
    pub(crate) packets_per_second: f64,
    pub(crate) packets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Thread {
    /// `true` for an I/O thread, which receives and sends frames for packet threads.
    pub(crate) is_io: bool,
    /// The index of the thread. Packet threads and I/O threads are numbered separately.
    pub(crate) number: usize,
    /// The fraction of time spent on packets, 0 to 1. For the rest of the time, the thread spins or
    /// sleeps.
    pub(crate) busy_share: f64,
    pub(crate) packets_per_second: f64,
    pub(crate) flow_entries: u64,
}

impl Rates {
    pub(crate) fn between(before: &Stats, now: &Stats, took: Duration) -> Self {
        let per = Per(took.as_secs_f64().max(f64::MIN_POSITIVE));
        let (nothing, packet_threads) = (ThreadStats::default(), now.packet_threads);
        let thread = |(number, now): (usize, &ThreadStats)| {
            let before = before.threads.get(number).unwrap_or(&nothing);
            let is_io = number >= packet_threads;
            Thread {
                is_io,
                number: if is_io { number - packet_threads } else { number },
                busy_share: (per.second(before.busy_nanos, now.busy_nanos) / 1e9).min(1.0),
                packets_per_second: per.second(before.rx, now.rx),
                flow_entries: now.flows.entries,
            }
        };
        Self {
            seconds: took.as_secs_f64(),
            total: Traffic {
                packets_per_second: per.second(before.total.rx, now.total.rx),
                bits_per_second: per.second(before.total.rx_bytes, now.total.rx_bytes) * 8.0,
                new_flows_per_second: per.second(before.total.flows.inserts, now.total.flows.inserts),
            },
            flow_entries: now.total.flows.entries,
            flow_capacity: now.total.flows.capacity,
            services: per.rows(&before.services, &now.services),
            backends: per.rows(&before.backends, &now.backends),
            drops: per.drops(&before.total.drops, &now.total.drops),
            threads: now.threads.iter().enumerate().map(thread).collect(),
        }
    }
}

impl Rates {
    /// Adds backend states to the rates. A backend in several pools may have several states.
    pub(crate) fn enter_states(&mut self, rows: &[BackendRow]) {
        let mut states: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for row in rows {
            let said = states.entry(&row.name).or_default();
            said.insert(word(&row.state));
            said.extend(row.less_for.iter().map(|less| word(&less.state)));
        }
        for row in &mut self.backends {
            let said = states.get(&*row.name).into_iter().flatten().cloned();
            row.state = said.reduce(|all, next| all + "/" + &next);
        }
    }

    /// Adds the readiness of services. If a VIP is not ready, for example because it is not
    /// announced, none of its services counts as ready. `vip list` follows the same rule.
    pub(crate) fn enter_ready(&mut self, rows: &[VipRow]) {
        let services = rows.iter().flat_map(|vip| vip.services.iter().map(move |service| (vip, service)));
        let ready: BTreeMap<&str, bool> =
            services.map(|(vip, service)| (&*service.name, vip.ready && service.ready)).collect();
        for row in &mut self.services {
            let ready = ready.get(&*row.name);
            row.state = ready.map(|ready| if *ready { "ready" } else { "not ready" }.to_owned());
        }
    }
}

struct Per(f64);

impl Per {
    #[expect(clippy::cast_precision_loss, reason = "rates are shown rounded")]
    fn second(&self, before: u64, now: u64) -> f64 {
        now.checked_sub(before).unwrap_or(now) as f64 / self.0
    }

    fn rows(
        &self,
        before: &BTreeMap<String, TrafficStats>,
        now: &BTreeMap<String, TrafficStats>,
    ) -> Vec<Row> {
        let row = |(name, now): (&String, &TrafficStats)| {
            let before = before.get(name).copied().unwrap_or_default();
            let traffic = Traffic {
                packets_per_second: self.second(before.packets, now.packets),
                bits_per_second: self.second(before.bytes, now.bytes) * 8.0,
                new_flows_per_second: self.second(before.new_flows, now.new_flows),
            };
            Row { name: name.clone(), state: None, traffic }
        };
        let mut rows: Vec<Row> = now.iter().map(row).collect();
        // The sort is stable, so rows with the same rate stay sorted by name.
        rows.sort_by(|a, b| b.traffic.packets_per_second.total_cmp(&a.traffic.packets_per_second));
        rows
    }

    fn drops(&self, before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Vec<Drops> {
        let drops = |(reason, now): (&String, &u64)| Drops {
            reason: reason.clone(),
            packets_per_second: self.second(before.get(reason).copied().unwrap_or_default(), *now),
            packets: *now,
        };
        let mut rows: Vec<Drops> = now.iter().filter(|(_, count)| **count > 0).map(drops).collect();
        rows.sort_by(|a, b| {
            b.packets_per_second.total_cmp(&a.packets_per_second).then(b.packets.cmp(&a.packets))
        });
        rows
    }
}

/// Formats a number with an SI suffix, for example `999`, `1.23k` or `12.3M`.
pub(crate) fn short(number: f64) -> String {
    let (scaled, unit) = match number {
        n if n >= 999_950_000.0 => (n / 1e9, "G"),
        n if n >= 999_950.0 => (n / 1e6, "M"),
        n if n >= 999.95 => (n / 1e3, "k"),
        n => (n, ""),
    };
    match scaled {
        n if unit.is_empty() && (n.fract() < 0.05 || n >= 100.0) => format!("{n:.0}"),
        n if unit.is_empty() => format!("{n:.1}"),
        n if n < 10.0 => format!("{n:.2}{unit}"),
        n => format!("{n:.1}{unit}"),
    }
}

pub(crate) fn bits(rate: f64) -> String {
    format!("{}bit/s", short(rate))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn traffic(packets: u64) -> TrafficStats {
        TrafficStats { packets, bytes: packets * 100, new_flows: packets / 10 }
    }

    fn reading(packets: [u64; 2], drops: u64, busy_nanos: u64) -> Stats {
        let thread = ThreadStats {
            rx: packets[0] + packets[1],
            rx_bytes: 100 * (packets[0] + packets[1]),
            busy_nanos,
            drops: [("no_vip".to_owned(), drops), ("ttl".to_owned(), 0)].into(),
            ..ThreadStats::default()
        };
        Stats {
            total: thread.clone(),
            threads: vec![thread.clone(), thread],
            packet_threads: 1,
            backends: [("b1".to_owned(), traffic(packets[0])), ("b2".to_owned(), traffic(packets[1]))].into(),
            ..Stats::default()
        }
    }

    #[test]
    fn a_rate_is_the_difference_over_the_time() {
        let rates = Rates::between(
            &reading([100, 50], 4, 1_000_000_000),
            &reading([200, 450], 10, 1_500_000_000),
            Duration::from_secs(2),
        );
        assert_eq!(rates.total.packets_per_second, 250.0);
        assert_eq!(rates.total.bits_per_second, 250.0 * 800.0);
        let names: Vec<_> = rates.backends.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["b2", "b1"], "busiest first");
        assert_eq!(
            rates.backends[0].traffic,
            Traffic { packets_per_second: 200.0, bits_per_second: 160_000.0, new_flows_per_second: 20.0 }
        );
        assert_eq!(rates.threads[0].busy_share, 0.25);
        let threads: Vec<_> = rates.threads.iter().map(|thread| (thread.is_io, thread.number)).collect();
        assert_eq!(threads, [(false, 0), (true, 0)]);
        assert_eq!(
            rates.drops,
            [Drops { reason: "no_vip".into(), packets_per_second: 3.0, packets: 10 }],
            "reasons without packets are left out"
        );
    }

    #[test]
    fn service_of_a_vip_that_is_not_ready_is_not_ready() {
        let stats = Stats { services: [("www tcp 80".to_owned(), traffic(1))].into(), ..Stats::default() };
        let mut rates = Rates::between(&Stats::default(), &stats, Duration::from_secs(1));
        let mut row = serde_json::json!({
            "name": "www", "addresses": [], "ready": true, "not_ready": [], "serving": true, "announced_to": null,
            "services": [{
                "name": "www tcp 80", "protocol": "tcp", "ports": "80", "pool": "web", "serving_pool": "web",
                "serving": 1, "total": 1, "ready": true, "redirected_to": [], "families": [], "flows": null,
                "packets": 0, "bytes": 0,
            }],
        });
        for (vip, service, word) in
            [(true, true, "ready"), (false, true, "not ready"), (true, false, "not ready")]
        {
            (row["ready"], row["services"][0]["ready"]) = (vip.into(), service.into());
            rates.enter_ready(&[serde_json::from_value(row.clone()).unwrap()]);
            assert_eq!(rates.services[0].state.as_deref(), Some(word), "{vip} {service}");
        }
    }

    #[test]
    fn a_counter_that_went_back_began_at_zero() {
        let rates = Rates::between(&reading([900, 0], 0, 0), &reading([30, 0], 0, 0), Duration::from_secs(3));
        assert_eq!(rates.backends[0].traffic.packets_per_second, 10.0);
        let new = Rates::between(&Stats::default(), &reading([30, 0], 0, 0), Duration::from_secs(3));
        assert_eq!(new.backends[0].traffic.packets_per_second, 10.0);
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (0.3, "0.3"),
            (42.0, "42"),
            (99.96, "100.0"),
            (999.0, "999"),
            (999.96, "1.00k"),
            (12_345.0, "12.3k"),
            (999_999.0, "1.00M"),
            (14_880_000.0, "14.9M"),
            (2.5e9, "2.50G"),
        ] {
            assert_eq!(short(number), text, "{number}");
        }
        assert_eq!(bits(1_500.0), "1.50kbit/s");
    }

    proptest! {
        #[test]
        fn no_reading_makes_a_rate_that_is_no_number(
            before in any::<[u32; 4]>(), now in any::<[u32; 4]>(), nanos in 0_u64..10_000_000_000
        ) {
            let reading = |n: [u32; 4]| reading([n[0].into(), n[1].into()], n[2].into(), n[3].into());
            let rates = Rates::between(&reading(before), &reading(now), Duration::from_nanos(nanos));
            let mut all = vec![rates.total, rates.backends[0].traffic, rates.backends[1].traffic];
            all.retain(|t| nanos > 0 && !(t.packets_per_second >= 0.0 && t.packets_per_second.is_finite()));
            prop_assert!(all.is_empty());
            prop_assert!((0.0..=1.0).contains(&rates.threads[0].busy_share));
            prop_assert!(nanos == 0 || short(rates.total.packets_per_second).len() <= 8);
        }
    }
}
