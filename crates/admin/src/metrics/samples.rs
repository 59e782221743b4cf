//! Computes the samples of all metrics at a scrape.
//!
//! [`Samples`] converts a [`MetricsInput`] to metric families for the registry. Each metric has a
//! limited number of series. Objects above the limit are summed and exported under the name
//! `other`.

use std::collections::{BTreeMap, BTreeSet};

use counters::{Kind, Metric, Spec};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric as Sample, MetricFamily, MetricType,
};

use super::catalogue as the;
use super::{MAX_SERIES_BACKENDS, MAX_SERIES_HEALTH, MAX_SERIES_PEERS, MAX_SERIES_VIPS, MetricsInput, OTHER};
use crate::stats::{ThreadStats, TrafficStats};
use crate::view::{
    AnnouncedVip, AnnouncementState, BfdState, BgpView, CheckState, Family, ReloadOutcome, ServiceRow,
    SessionState,
};

/// The samples of one scrape, as a Prometheus collector.
pub(super) struct Samples {
    descs: Vec<Desc>,
    by_name: BTreeMap<&'static str, MetricFamily>,
}

impl Collector for Samples {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.by_name.values().cloned().collect()
    }
}

impl Samples {
    /// # Errors
    /// Returns an error only if names or labels of the catalogue are invalid or duplicate. A test
    /// checks that the catalogue is valid.
    pub(super) fn new(input: &MetricsInput) -> prometheus::Result<Self> {
        let descs = the::all().iter().map(the::describe).collect::<Result<_, _>>()?;
        let mut samples = Self { descs, by_name: BTreeMap::new() };
        samples.vips(input);
        samples.backends(input);
        samples.health(input);
        samples.routers(&input.bgp);
        samples.xdp(input);
        for (number, thread) in input.stats.threads.iter().enumerate() {
            samples.thread(&number.to_string(), thread);
        }
        samples.batches(&input.stats.total);
        samples.configuration(input);
        Ok(samples)
    }

    fn vips(&mut self, input: &MetricsInput) {
        let mut rows: BTreeMap<[&str; 3], TrafficStats> = BTreeMap::new();
        for (name, traffic) in bounded(&input.stats.services, MAX_SERIES_VIPS) {
            *rows.entry(service_labels(name)).or_default() += *traffic;
        }
        for (labels, traffic) in &rows {
            self.push(&the::VIP_PACKETS, labels, traffic.packets);
            self.push(&the::VIP_BYTES, labels, traffic.bytes);
            self.push(&the::VIP_NEW_FLOWS, labels, traffic.new_flows);
        }
        // The gauges of services above the limit are not summed, because the sum `other` would hide
        // a single VIP without backends. Services with the fewest serving backends come first.
        let mut services: Vec<&ServiceRow> = input.vips.iter().flat_map(|vip| &vip.services).collect();
        services.sort_by_key(|service| (service.serving, &service.name));
        for service in services.into_iter().take(MAX_SERIES_VIPS) {
            let labels = service_labels(&service.name);
            self.push(&the::VIP_SERVING, &labels, service.serving as u64);
            self.push(&the::VIP_MEMBERS, &labels, service.total as u64);
            service.flows.into_iter().for_each(|flows| self.push(&the::VIP_FLOWS, &labels, flows));
        }
    }

    fn backends(&mut self, input: &MetricsInput) {
        let mut rows: BTreeMap<&str, TrafficStats> = BTreeMap::new();
        for (name, traffic) in bounded(&input.stats.backends, MAX_SERIES_BACKENDS) {
            *rows.entry(name).or_default() += *traffic;
        }
        for (name, traffic) in &rows {
            self.push(&the::BACKEND_PACKETS, &[name], traffic.packets);
            self.push(&the::BACKEND_BYTES, &[name], traffic.bytes);
            self.push(&the::BACKEND_NEW_FLOWS, &[name], traffic.new_flows);
        }
        let mut flows: BTreeMap<&str, u64> = BTreeMap::new();
        for row in &input.backends {
            row.flows.into_iter().for_each(|count| *flows.entry(&row.name).or_default() += count);
        }
        // Backends with the most flows come first, so that the limit hides only backends with few
        // flows.
        let mut flows: Vec<(&str, u64)> = flows.into_iter().collect();
        flows.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        for (name, count) in flows.into_iter().take(MAX_SERIES_BACKENDS) {
            self.push(&the::BACKEND_FLOWS, &[name], count);
        }
    }

    fn health(&mut self, input: &MetricsInput) {
        // A check that runs through several VIPs has one health state per VIP, of which the worst
        // is exported.
        let mut worst: BTreeMap<[&str; 3], CheckState> = BTreeMap::new();
        for (row, check) in
            input.backends.iter().flat_map(|row| row.checks.iter().map(move |check| (row, check)))
        {
            let verdict = worst.entry([row.name.as_str(), &row.pool, &check.check]).or_insert(check.state);
            *verdict = worse(*verdict, check.state);
        }
        let mut known: Vec<_> =
            worst.iter().filter(|(_, verdict)| **verdict != CheckState::Unknown).collect();
        // Failed checks come first, so that the limit on series does not hide failures.
        known.sort_by_key(|(_, verdict)| **verdict == CheckState::Up);
        for (labels, verdict) in known.into_iter().take(MAX_SERIES_HEALTH) {
            self.push(&the::HEALTH_UP, labels, (*verdict == CheckState::Up).into());
        }
        for (verdict, name) in VERDICTS {
            let count = worst.values().filter(|found| **found == verdict).count();
            self.push(&the::HEALTH_CHECKS, &[name], count as u64);
        }
        self.push(&the::LOCAL_FAILURE, &[], input.status.own_fault.is_some().into());
        self.push(&the::HEALTH_UNABLE, &[], input.status.checks_unable as u64);
        self.push(&the::READY, &[], input.status.ready.into());
        self.push(&the::FORWARDER_HEALTHY, &[], input.status.forwarder.healthy.into());
        self.put(&the::FORWARDER_UNHEALTHY, &[], input.status.forwarder.unhealthy_seconds);
    }

    fn routers(&mut self, bgp: &BgpView) {
        for peer in bgp.peers.iter().take(MAX_SERIES_PEERS) {
            self.push(&the::BGP_UP, &[&peer.name], (peer.state == SessionState::Established).into());
            self.push(&the::BGP_SESSIONS, &[&peer.name], peer.established);
            self.push(&the::BGP_ROUTES, &[&peer.name, "ipv4"], peer.announced_v4 as u64);
            self.push(&the::BGP_ROUTES, &[&peer.name, "ipv6"], peer.announced_v6 as u64);
            if let Some(bfd) = &peer.bfd {
                self.push(&the::BFD_UP, &[&peer.name], (bfd.state == BfdState::Up).into());
            }
        }
        let wanted = bgp.vips.iter().filter(|vip| vip.state != AnnouncementState::NotConfigured);
        let mut vips: Vec<&AnnouncedVip> = wanted.collect();
        // VIPs that are not announced come first, so that the limit on series does not hide these
        // VIPs.
        let has_routes = |vip: &AnnouncedVip| {
            matches!(vip.state, AnnouncementState::Announced | AnnouncementState::Marked)
        };
        vips.sort_by_key(|vip| has_routes(vip));
        let mut decided = BTreeSet::new();
        for vip in vips.into_iter().take(MAX_SERIES_VIPS) {
            let labels = [vip.vip.as_str(), vip.family.map_or("", family_label)];
            self.push(&the::VIP_ANNOUNCED, &labels, has_routes(vip).into());
            // If the families are not decided separately, their rows contain the same counters, so
            // only one series without a family is exported.
            let [name, family] = labels;
            let decision = [name, if vip.by_family { family } else { "" }];
            if decided.insert(decision) {
                self.put(&the::VIP_NOT_ANNOUNCED, &decision, vip.not_announced_seconds);
                self.push(&the::VIP_WITHDRAWALS, &decision, vip.withdrawals);
            }
        }
    }

    fn xdp(&mut self, input: &MetricsInput) {
        for (reason, count) in &input.stats.total.drops {
            self.push(&the::DROPS, &[reason], *count);
        }
        for (verb, count) in &input.stats.total.requests {
            self.push(&the::REQUESTS, &[verb], *count);
        }
        self.group(counters::XDP, &[], &input.stats.xdp.values());
        self.push(&the::XDP_MODE, &[&input.stats.xdp_mode], 1);
        for (interface, mode) in &input.stats.mode {
            self.push(&the::SOCKET_MODE, &[interface, mode], 1);
        }
        for interface in &input.status.interfaces {
            self.push(&the::INTERFACE_UP, &[&interface.name], interface.link.into());
            self.push(&the::INTERFACE_MTU, &[&interface.name], interface.mtu_fits().into());
        }
        for (interface, carried) in &input.stats.interfaces {
            self.push(&the::INTERFACE_RX, &[interface], carried.rx);
            self.push(&the::INTERFACE_TX, &[interface], carried.tx);
            self.push(&the::INTERFACE_LOST, &[interface], carried.lost);
        }
    }

    fn thread(&mut self, number: &str, thread: &ThreadStats) {
        self.group(counters::SOCKET, &[number], &thread.socket.values());
        self.group(counters::THREAD, &[number], &thread.values());
        self.group(counters::FLOW_TABLE, &[number], &thread.flows.values());
        self.group(counters::FRAGMENT_TABLE, &[number], &thread.fragments.values());
        for (reason, count) in &thread.trace_refused {
            self.push(&the::TRACE_REFUSED, &[number, reason], *count);
        }
    }

    /// Adds the values of a counter group, which are in the same order as the table of the group.
    fn group(&mut self, specs: &[Spec], common: &[&str], values: &[u64]) {
        for (spec, &value) in specs.iter().zip(values) {
            let labels: Vec<&str> = common.iter().copied().chain(spec.value).collect();
            let scale = if spec.metric.unit == the::NANOSECONDS { 1e-9 } else { 1.0 };
            self.put(&spec.metric, &labels, value as f64 * scale);
        }
    }

    /// Element n in `batch_sizes` counts batches with 2ⁿ to 2ⁿ⁺¹ - 1 packets, so the upper bound of
    /// its bucket is 2ⁿ⁺¹ - 1.
    fn batches(&mut self, total: &ThreadStats) {
        let mut histogram = Histogram::default();
        let (mut sum, mut bound, mut buckets) = (0, 1.0, Vec::new());
        for count in &total.batch_sizes {
            sum += count;
            let mut bucket = Bucket::default();
            bucket.set_cumulative_count(sum);
            bucket.set_upper_bound(bound);
            buckets.push(bucket);
            bound = bound * 2.0 + 1.0;
        }
        histogram.set_sample_count(sum);
        histogram.set_sample_sum((total.rx + total.from_threads) as f64);
        histogram.set_bucket(buckets);
        let mut sample = Sample::default();
        sample.set_histogram(histogram);
        self.family(&the::BATCH).mut_metric().push(sample);
    }

    fn configuration(&mut self, input: &MetricsInput) {
        self.push(&the::GENERATION, &[], input.stats.generation);
        let digests = &input.status.digests;
        let digest = digests.configuration.get(..SHORT_DIGEST).unwrap_or(&digests.configuration);
        self.push(&the::CONFIG, &[&input.status.boot_id, digest], 1);
        let shard = digests.shard.as_deref().unwrap_or_default();
        if let Some(number) = digests.tables.as_deref().and_then(number) {
            self.push(&the::TABLES_DIGEST, &[shard], number);
        }
        self.push(&the::TABLE_ALGORITHM, &[], digests.table_algorithm.into());
        if let Some(reload) = &input.status.last_reload {
            self.push(&the::RELOAD_OK, &[], (reload.outcome != ReloadOutcome::Refused).into());
            self.put(&the::RELOAD_SECONDS, &[], reload.took_ms / 1e3);
            self.push(&the::RELOAD_TIME, &[], reload.unix_seconds);
        }
        self.push(&the::BUILD, &[input.build.version, input.build.commit], 1);
    }

    fn push(&mut self, metric: &Metric, labels: &[&str], value: u64) {
        self.put(metric, labels, value as f64);
    }

    fn put(&mut self, metric: &Metric, labels: &[&str], value: f64) {
        debug_assert_eq!(metric.labels.len(), labels.len(), "{}", metric.name);
        let labels = metric.labels.iter().zip(labels).map(|(name, value)| label(name, value));
        let mut sample = Sample::from_label(labels.collect());
        match metric.kind {
            Kind::Gauge => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                sample.set_gauge(gauge);
            }
            Kind::Counter | Kind::Histogram => {
                let mut counter = Counter::default();
                counter.set_value(value);
                sample.set_counter(counter);
            }
        }
        self.family(metric).mut_metric().push(sample);
    }

    fn family(&mut self, metric: &Metric) -> &mut MetricFamily {
        self.by_name.entry(metric.name).or_insert_with(|| {
            let mut family = MetricFamily::default();
            family.set_name(metric.name.to_owned());
            family.set_help(metric.help.to_owned());
            family.set_field_type(match metric.kind {
                Kind::Counter => MetricType::COUNTER,
                Kind::Gauge => MetricType::GAUGE,
                Kind::Histogram => MetricType::HISTOGRAM,
            });
            family
        })
    }
}

fn family_label(family: Family) -> &'static str {
    if family == Family::Ipv4 { "ipv4" } else { "ipv6" }
}

fn label(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

/// Returns each row with its name. Rows above the limit get the name [`OTHER`] instead. Rows are
/// sorted by name, so that at each scrape, the same rows are above the limit.
fn bounded<T>(rows: &BTreeMap<String, T>, bound: usize) -> impl Iterator<Item = (&str, &T)> {
    rows.iter().enumerate().map(move |(n, (name, row))| (if n < bound { name.as_str() } else { OTHER }, row))
}

fn worse(one: CheckState, other: CheckState) -> CheckState {
    let order = [CheckState::Down, CheckState::Unknown];
    order.into_iter().find(|&verdict| one == verdict || other == verdict).unwrap_or(CheckState::Up)
}

/// Splits the name of a service, such as `www tcp 80,443`, into VIP, protocol and ports.
fn service_labels(name: &str) -> [&str; 3] {
    let mut parts = name.splitn(3, ' ');
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

const SHORT_DIGEST: usize = 12;
const VERDICTS: [(CheckState, &str); 3] =
    [(CheckState::Up, "up"), (CheckState::Down, "down"), (CheckState::Unknown, "unknown")];

/// Returns the first 52 bits of a hexadecimal digest. A gauge can represent a 52-bit number
/// exactly.
fn number(hex: &str) -> Option<u64> {
    u64::from_str_radix(hex.get(..GAUGE_DIGITS)?, 16).ok()
}

/// The number of hexadecimal digits in 52 bits.
const GAUGE_DIGITS: usize = 13;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_stores_the_digest_number_exactly() {
        assert_eq!(number(&"f".repeat(64)), Some((1 << 52) - 1));
        assert_eq!(number("00000000000010ff"), Some(1));
        assert_eq!((number("123"), number("x23456789012345")), (None, None));
    }

    /// Returns the sum of `vip_withdrawals_total` over all series of a VIP with two families.
    fn withdrawals(by_family: bool) -> (usize, f64) {
        let mut bgp: BgpView = serde_json::from_str(include_str!("../page/sample/bgp.json")).unwrap();
        bgp.vips.retain(|row| row.vip == "www");
        for (row, withdrawals) in bgp.vips.iter_mut().zip([5, if by_family { 2 } else { 5 }]) {
            (row.by_family, row.withdrawals) = (by_family, withdrawals);
        }
        assert_eq!(bgp.vips.len(), 2);
        let samples = Samples::new(&MetricsInput { bgp, ..MetricsInput::default() }).unwrap();
        let series = samples.by_name[the::VIP_WITHDRAWALS.name].get_metric().to_vec();
        (series.len(), series.iter().map(|one| one.get_counter().get_value()).sum())
    }

    #[test]
    fn withdrawals_are_counted_once_per_decision() {
        assert_eq!(withdrawals(false), (1, 5.0), "both families were withdrawn by the same decisions");
        assert_eq!(withdrawals(true), (2, 7.0));
    }
}
