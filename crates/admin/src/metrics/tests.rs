use std::collections::{BTreeMap, BTreeSet};

use counters::Kind;

use super::catalogue;
use super::*;
use crate::stats::{
    FlowTableStats, FragmentTableStats, InterfaceStats, SocketStats, ThreadStats, TrafficStats, XdpStats,
};
use crate::view::{
    CheckRow, CheckState, DigestView, ForwarderView, InterfaceRow, LastReload, ReloadOutcome, ServiceRow,
};

/// Returns the name of the kind in the exposition format.
fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    }
}

/// Returns the value of a series in the rendered text, independently of the renderer.
fn value(text: &str, series: &str) -> Option<f64> {
    let line =
        text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

fn traffic(packets: u64) -> TrafficStats {
    TrafficStats { packets, bytes: packets * 100, new_flows: packets / 2 }
}

/// Returns increasing values for a group of counters.
fn from<const N: usize>(first: u64) -> [u64; N] {
    std::array::from_fn(|place| first + place as u64)
}

fn thread() -> ThreadStats {
    ThreadStats {
        rx: 1,
        from_threads: 7,
        busy_nanos: 1_500_000_000,
        batches: 12,
        batch_sizes: vec![5, 4, 3],
        trace_refused: BTreeMap::from([("mac".into(), 91)]),
        drops: BTreeMap::from([("ttl".into(), 13), ("no_vip".into(), 0)]),
        requests: BTreeMap::from([("get".into(), 14), ("mg".into(), 15)]),
        flows: FlowTableStats::from_values(from(200)),
        fragments: FragmentTableStats::from_values(from(300)),
        socket: SocketStats::from_values(from(400)),
        ..ThreadStats::from_values(from(100))
    }
}

fn backend(name: &str, checks: &[CheckState]) -> BackendRow {
    let rows: Vec<BackendRow> = serde_json::from_str(include_str!("../page/sample/backends.json")).unwrap();
    let check = |&state| CheckRow { check: "http".into(), state, ..rows[0].checks[0].clone() };
    let checks = checks.iter().map(check).collect();
    BackendRow { name: name.into(), pool: "web".into(), checks, ..rows[0].clone() }
}

fn vip(service: &str, serving: usize, total: usize) -> VipRow {
    let vips: Vec<VipRow> = serde_json::from_str(include_str!("../page/sample/vips.json")).unwrap();
    let service = ServiceRow { name: service.into(), serving, total, ..vips[0].services[0].clone() };
    VipRow { services: vec![service], ..vips[0].clone() }
}

pub(super) fn full_input() -> MetricsInput {
    MetricsInput {
        stats: Stats {
            generation: 31,
            xdp: XdpStats::from_values(from(32)),
            xdp_mode: "driver".into(),
            mode: BTreeMap::from([("eth0".into(), "zero-copy".into())]),
            interfaces: BTreeMap::from([(
                "eth0".into(),
                InterfaceStats { sockets: 2, rx: 61, tx: 62, lost: 63 },
            )]),
            total: thread(),
            threads: vec![thread()],
            packet_threads: 1,
            backends: BTreeMap::from([("b1".into(), traffic(40))]),
            services: BTreeMap::from([("www tcp 80,443".into(), traffic(50))]),
        },
        status: Status {
            boot_id: "0f".into(),
            digests: DigestView {
                table_algorithm: 3,
                configuration: "0123456789abcdef".into(),
                tables: Some("0000000000123abc".into()),
                shard: Some("west".into()),
            },
            last_reload: Some(LastReload {
                unix_seconds: 1_000,
                outcome: ReloadOutcome::Published,
                took_ms: 250.0,
                message: String::new(),
            }),
            ready: true,
            forwarder: ForwarderView { healthy: true, ..ForwarderView::default() },
            interfaces: vec![InterfaceRow {
                name: "eth0".into(),
                link: true,
                mtu_bytes: 1_601,
                largest_packet_bytes: 1_600,
            }],
            checks_unable: 2,
            ..Status::default()
        },
        vips: vec![vip("www tcp 80,443", 1, 3)],
        backends: vec![
            backend("b1", &[CheckState::Up]),
            backend("b2", &[CheckState::Down]),
            backend("b3", &[CheckState::Unknown]),
        ],
        bgp: serde_json::from_str(include_str!("../page/sample/bgp.json")).unwrap(),
        build: Build { version: "1.2.3", commit: "abc" },
    }
}

/// The values of `thread`, `traffic` and `full_input` for each series.
const KNOWN: &[(&str, f64)] = &[
    (r#"vip_packets_total{ports="80,443",protocol="tcp",vip="www"}"#, 50.0),
    (r#"vip_bytes_total{ports="80,443",protocol="tcp",vip="www"}"#, 5000.0),
    (r#"vip_new_flows_total{ports="80,443",protocol="tcp",vip="www"}"#, 25.0),
    (r#"vip_flows{ports="80,443",protocol="tcp",vip="www"}"#, 2_408.0),
    (r#"backend_flows{backend="b1"}"#, 1_204.0),
    (r#"backend_flows{backend="b2"}"#, 1_204.0),
    (r#"backend_flows{backend="b3"}"#, 1_204.0),
    (r#"vip_backends_serving{ports="80,443",protocol="tcp",vip="www"}"#, 1.0),
    (r#"vip_backends{ports="80,443",protocol="tcp",vip="www"}"#, 3.0),
    (r#"backend_packets_total{backend="b1"}"#, 40.0),
    (r#"backend_bytes_total{backend="b1"}"#, 4000.0),
    (r#"backend_new_flows_total{backend="b1"}"#, 20.0),
    (r#"health_up{backend="b1",check="http",pool="web"}"#, 1.0),
    (r#"health_up{backend="b2",check="http",pool="web"}"#, 0.0),
    (r#"health_checks{state="up"}"#, 1.0),
    (r#"health_checks{state="down"}"#, 1.0),
    (r#"health_checks{state="unknown"}"#, 1.0),
    (r#"bgp_session_up{peer="tor1"}"#, 1.0),
    (r#"bgp_session_up{peer="tor2"}"#, 0.0),
    (r#"bgp_sessions_total{peer="tor1"}"#, 2.0),
    (r#"bgp_sessions_total{peer="tor2"}"#, 0.0),
    (r#"bgp_announced_routes{family="ipv4",peer="tor1"}"#, 3.0),
    (r#"bgp_announced_routes{family="ipv6",peer="tor1"}"#, 0.0),
    (r#"bgp_announced_routes{family="ipv4",peer="tor2"}"#, 0.0),
    (r#"bgp_announced_routes{family="ipv6",peer="tor2"}"#, 0.0),
    (r#"bfd_session_up{peer="tor1"}"#, 1.0),
    (r#"vip_announced{family="ipv4",vip="www"}"#, 1.0),
    (r#"vip_announced{family="ipv6",vip="www"}"#, 0.0),
    (r#"vip_announced{family="ipv4",vip="dns"}"#, 0.0),
    (r#"vip_not_announced_seconds_total{family="",vip="www"}"#, 0.0),
    (r#"vip_not_announced_seconds_total{family="",vip="dns"}"#, 62.5),
    (r#"vip_withdrawals_total{family="",vip="www"}"#, 0.0),
    (r#"vip_withdrawals_total{family="",vip="dns"}"#, 5.0),
    ("local_failure", 0.0),
    ("health_unable", 2.0),
    ("ready", 1.0),
    ("forwarder_healthy", 1.0),
    ("forwarder_unhealthy_seconds_total", 0.0),
    (r#"dropped_packets_total{reason="ttl"}"#, 13.0),
    (r#"keyed_requests_total{verb="get"}"#, 14.0),
    (r#"keyed_requests_total{verb="mg"}"#, 15.0),
    (r#"dropped_packets_total{reason="no_vip"}"#, 0.0),
    (r#"xdp_mode_info{mode="driver"}"#, 1.0),
    (r#"xdp_socket_mode_info{interface="eth0",mode="zero-copy"}"#, 1.0),
    (r#"interface_up{interface="eth0"}"#, 1.0),
    (r#"interface_mtu_fits{interface="eth0"}"#, 0.0),
    (r#"interface_received_packets_total{interface="eth0"}"#, 61.0),
    (r#"interface_sent_packets_total{interface="eth0"}"#, 62.0),
    (r#"interface_lost_packets_total{interface="eth0"}"#, 63.0),
    (r#"thread_trace_refused_packets_total{reason="mac",thread="0"}"#, 91.0),
    (r#"batch_packets_bucket{le="1"}"#, 5.0),
    (r#"batch_packets_bucket{le="3"}"#, 9.0),
    (r#"batch_packets_bucket{le="7"}"#, 12.0),
    (r#"batch_packets_bucket{le="+Inf"}"#, 12.0),
    ("batch_packets_sum", 8.0),
    ("batch_packets_count", 12.0),
    ("generation", 31.0),
    (r#"config_info{boot_id="0f",digest="0123456789ab"}"#, 1.0),
    (r#"tables_digest{shard="west"}"#, 291.0),
    ("table_algorithm", 3.0),
    ("last_reload_success", 1.0),
    ("last_reload_duration_seconds", 0.25),
    ("last_reload_timestamp_seconds", 1_000.0),
    (r#"build_info{commit="abc",version="1.2.3"}"#, 1.0),
];

/// Returns the values of the counter groups in [`full_input`] for each series. Some values are
/// literal numbers, which independently verify the order of the tables.
fn counted() -> BTreeMap<String, f64> {
    let (thread, xdp) = (thread(), full_input().stats.xdp);
    let groups: [(&[counters::Spec], Vec<u64>); 5] = [
        (counters::XDP, xdp.values().into()),
        (counters::THREAD, thread.values().into()),
        (counters::SOCKET, thread.socket.values().into()),
        (counters::FLOW_TABLE, thread.flows.values().into()),
        (counters::FRAGMENT_TABLE, thread.fragments.values().into()),
    ];
    let series = |spec: &counters::Spec| {
        let thread = spec.metric.labels.contains(&"thread").then(|| r#"thread="0""#.to_owned());
        let own =
            spec.value.map(|value| format!("{}={value:?}", spec.metric.labels[spec.metric.labels.len() - 1]));
        let mut labels: Vec<String> = thread.into_iter().chain(own).collect();
        labels.sort_unstable();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        spec.metric.name.replace("sluicegate_", "") + &labels
    };
    let rows = groups.into_iter().flat_map(|(specs, values)| specs.iter().zip(values));
    let mut rows: BTreeMap<String, f64> = rows.map(|(spec, value)| (series(spec), value as f64)).collect();
    for (series, value) in [
        (r#"thread_busy_seconds_total{thread="0"}"#, 1.5),
        (r#"thread_received_packets_total{thread="0"}"#, 1.0),
        (r#"thread_taken_over_packets_total{thread="0"}"#, 7.0),
        (r#"flow_table_lookups_total{result="miss",thread="0"}"#, 203.0),
        (r#"xdp_lost_packets_total{reason="no_socket"}"#, 36.0),
    ] {
        assert!(rows.insert(series.to_owned(), value).is_some(), "{series}");
    }
    rows
}

/// Sorts the labels of each line by name, which is their order in [`KNOWN`].
fn normal(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        match (line.find('{'), line.rfind('}')) {
            (Some(open), Some(close)) if !line.starts_with('#') => {
                let mut labels: Vec<&str> = line[open + 1..close].split_inclusive("\",").collect();
                labels.sort_unstable();
                let labels: Vec<&str> = labels.iter().map(|label| label.trim_end_matches(',')).collect();
                out += &format!("{}{{{}}}{}\n", &line[..open], labels.join(","), &line[close + 1..]);
            }
            _ => out += &format!("{line}\n"),
        }
    }
    out
}

#[test]
fn every_value_has_its_own_series() {
    let text = normal(&render(&full_input()).unwrap());
    let known: BTreeMap<String, f64> =
        KNOWN.iter().map(|(series, value)| ((*series).to_owned(), *value)).chain(counted()).collect();
    for (series, expected) in &known {
        let series = format!("sluicegate_{series}");
        assert_eq!(value(&text, &series), Some(*expected), "{series}\n{text}");
    }
    let samples = text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(samples, known.len(), "{text}");
}

#[test]
fn every_metric_is_exported_with_help_and_type() {
    let text = render(&full_input()).unwrap();
    for metric in catalogue::all() {
        assert!(text.contains(&format!("# HELP {} {}\n", metric.name, metric.help)), "{}", metric.name);
        assert!(
            text.contains(&format!("# TYPE {} {}\n", metric.name, kind_name(metric.kind))),
            "{}",
            metric.name
        );
    }
    assert_eq!(text.matches("# TYPE ").count(), catalogue::all().len());
}

#[test]
fn names_follow_the_conventions() {
    let all = catalogue::all();
    let names: BTreeSet<&str> = all.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), all.len());
    for metric in catalogue::all() {
        assert_eq!(metric.kind == Kind::Counter, metric.name.ends_with("_total"), "{}", metric.name);
        assert!(metric.help.ends_with('.'), "{}", metric.name);
        for sloppy in ["_ms", "_nanos", "_count", "_kb", "__"] {
            assert!(!metric.name.contains(sloppy), "{}", metric.name);
        }
    }
}

#[test]
fn rows_above_the_limit_are_summed_as_other() {
    let mut input = full_input();
    let many = MAX_SERIES_BACKENDS + 7;
    input.stats.backends = (0..many).map(|n| (format!("b{n:05}"), traffic(2))).collect();
    input.stats.services =
        (0..MAX_SERIES_VIPS + 3).map(|n| (format!("v{n:05} udp 53"), traffic(3))).collect();
    let text = normal(&render(&input).unwrap());
    assert_eq!(value(&text, r#"sluicegate_backend_packets_total{backend="other"}"#), Some(14.0));
    let other = r#"sluicegate_vip_packets_total{ports="",protocol="",vip="other"}"#;
    assert_eq!(value(&text, other), Some(9.0));
    assert_eq!(text.matches("\nsluicegate_backend_packets_total{").count(), MAX_SERIES_BACKENDS + 1);
    assert_eq!(text.matches("\nsluicegate_vip_packets_total{").count(), MAX_SERIES_VIPS + 1);
}

#[test]
fn a_backend_named_other_joins_the_sum() {
    let mut input = full_input();
    input.stats.backends = (0..MAX_SERIES_BACKENDS).map(|n| (format!("b{n:05}"), traffic(2))).collect();
    input.stats.backends.insert("other".into(), traffic(5));
    input.stats.backends.insert("a".into(), traffic(5));
    let text = render(&input).unwrap();
    assert_eq!(text.matches("sluicegate_backend_packets_total{backend=\"other\"} 7\n").count(), 1);
    assert_eq!(text.matches("sluicegate_backend_packets_total{backend=\"other\"}").count(), 1);
}

#[test]
fn limits_never_hide_failed_checks_or_empty_vips() {
    let mut input = full_input();
    let [up, down, _] = &input.backends[..] else { panic!("three") };
    let (up, down) = (up.clone(), down.clone());
    input.backends =
        (0..MAX_SERIES_HEALTH).map(|n| BackendRow { name: format!("a{n}"), ..up.clone() }).collect();
    input.backends.push(down);
    input.vips = (0..MAX_SERIES_VIPS).map(|n| vip(&format!("a{n} tcp 80"), 1, 1)).collect();
    input.vips.push(vip("z tcp 80", 0, 0));
    let text = normal(&render(&input).unwrap());
    assert_eq!(value(&text, r#"sluicegate_health_up{backend="b2",check="http",pool="web"}"#), Some(0.0));
    assert_eq!(text.matches("\nsluicegate_health_up{").count(), MAX_SERIES_HEALTH);
    let empty = r#"sluicegate_vip_backends_serving{ports="80",protocol="tcp",vip="z"}"#;
    assert_eq!(value(&text, empty), Some(0.0));
    assert_eq!(text.matches("\nsluicegate_vip_backends_serving{").count(), MAX_SERIES_VIPS);
}

#[test]
fn the_worst_state_of_a_check_over_vips_is_exported() {
    use CheckState::{Down, Unknown, Up};
    for (verdicts, expected) in [
        ([Up, Up, Up], Some(1.0)),
        ([Up, Down, Up], Some(0.0)),
        ([Unknown, Up, Down], Some(0.0)),
        ([Up, Unknown, Up], None),
    ] {
        let mut input = full_input();
        input.backends = vec![backend("b1", &verdicts)];
        let text = normal(&render(&input).unwrap());
        let series = r#"sluicegate_health_up{backend="b1",check="http",pool="web"}"#;
        assert_eq!(
            (value(&text, series), text.matches(series).count() <= 1),
            (expected, true),
            "{verdicts:?}"
        );
    }
}

#[test]
fn replies_of_the_admin_api_become_series() {
    let input = MetricsInput {
        status: serde_json::from_str(include_str!("../page/sample/status.json")).unwrap(),
        vips: serde_json::from_str(include_str!("../page/sample/vips.json")).unwrap(),
        backends: serde_json::from_str(include_str!("../page/sample/backends.json")).unwrap(),
        ..MetricsInput::default()
    };
    let text = normal(&render(&input).unwrap());
    for (series, expected) in [
        (r#"vip_backends_serving{ports="80,443",protocol="tcp",vip="www"}"#, 2.0),
        (r#"vip_backends{ports="80,443",protocol="tcp",vip="www"}"#, 4.0),
        (r#"health_up{backend="b2",check="http",pool="web"}"#, 0.0),
        ("last_reload_success", 0.0),
        ("last_reload_duration_seconds", 0.012),
        ("last_reload_timestamp_seconds", 1_700_000_000.0),
        ("ready", 1.0),
        ("forwarder_healthy", 1.0),
        ("local_failure", 0.0),
    ] {
        assert_eq!(value(&text, &format!("sluicegate_{series}")), Some(expected), "{series}");
    }
}

#[test]
fn labels_are_escaped() {
    let mut input = full_input();
    input.backends[0].checks[0].check = "a\"b\\c\nd".into();
    let text = render(&input).unwrap();
    assert!(text.contains(r#"check="a\"b\\c\nd""#), "{text}");
}

#[test]
fn no_reload_series_before_the_first_reload() {
    let input = MetricsInput::default();
    let text = render(&input).unwrap();
    assert!(!text.contains("last_reload") && text.contains("sluicegate_ready 0\n"), "{text}");
}

/// Returns the table of the reference page.
fn table() -> String {
    let mut text = String::from("| name | kind | unit | labels | description |\n|---|---|---|---|---|\n");
    for metric in catalogue::all() {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        text += &format!(
            "| `{}` | {} | {} | {} | {} |\n",
            metric.name,
            kind_name(metric.kind),
            metric.unit,
            labels.join(", "),
            metric.help
        );
    }
    text
}

#[test]
fn reference_metrics_is_current() {
    let is_current = testbed::generated_page("docs/reference/metrics.md", &table()).unwrap();
    assert!(is_current, "docs/reference/metrics.md differs from the catalogue, run `cargo xtask docs`");
    let document = include_str!("../../../../docs/reference/metrics.md");
    for bound in [MAX_SERIES_VIPS, MAX_SERIES_BACKENDS, MAX_SERIES_HEALTH] {
        let words = format!("{},{:03}", bound / 1000, bound % 1000);
        assert!(document.contains(&words), "docs/reference/metrics.md does not name the limit {words}");
    }
}

#[test]
fn reference_drop_reasons_is_current() {
    let mut text = String::from("| reason | description |\n|---|---|\n");
    for reason in counters::DropReason::ALL {
        text += &format!("| `{}` |{} |\n", reason.name(), reason.description());
    }
    let is_current = testbed::generated_page("docs/reference/drop-reasons.md", &text).unwrap();
    assert!(is_current, "docs/reference/drop-reasons.md differs from the code; `cargo xtask docs` writes it");
}
