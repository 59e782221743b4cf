use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::catalogue::{self, Kind};
use super::*;
use crate::stats::{
    FlowTableStats, FragmentTableStats, InterfaceStats, SocketStats, ThreadStats, TrafficStats, XdpStats,
};

/// A value of a series in the text: the reader knows nothing of the writer.
fn value(text: &str, series: &str) -> Option<f64> {
    let line =
        text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

fn traffic(packets: u64) -> TrafficStats {
    TrafficStats { packets, bytes: packets * 100, new_flows: packets / 2 }
}

fn thread() -> ThreadStats {
    ThreadStats {
        rx: 1,
        rx_bytes: 2,
        tx: 3,
        tx_bytes: 4,
        replies: 5,
        to_threads: 6,
        from_threads: 7,
        originated: 8,
        held: 9,
        batches: 12,
        batch_sizes: vec![5, 4, 3],
        busy_nanos: 1_500_000_000,
        head_room_mismatch: 10,
        reselected: 11,
        rehashed: 12,
        time_exceeded: 60,
        too_big_told: 61,
        cut: 62,
        opened: 63,
        redirected: 64,
        remote_flows: 65,
        remote_arrivals: 66,
        captured: 41,
        capture_lost: 42,
        trace_reports: 90,
        trace_refused: BTreeMap::from([("mac".into(), 91)]),
        drops: BTreeMap::from([("ttl".into(), 13), ("no_vip".into(), 0)]),
        flows: FlowTableStats {
            entries: 14,
            capacity: 15,
            hits: 16,
            misses: 17,
            inserts: 18,
            refreshes: 19,
            expired: 20,
            evicted: 21,
            untracked: 22,
        },
        fragments: FragmentTableStats {
            datagrams: 63,
            held: 64,
            recorded: 65,
            duplicates: 66,
            followed: 67,
            waited: 68,
            released: 69,
            evicted: 70,
            succeeded: 71,
        },
        socket: SocketStats {
            rx_dropped: 23,
            rx_ring_full: 24,
            rx_fill_ring_empty: 25,
            rx_invalid: 26,
            tx_invalid: 27,
            tx_ring_empty: 28,
            fill_low: 29,
            turns: 30,
        },
    }
}

pub(super) fn full_input() -> MetricsInput {
    let verdict = |backend: &str, verdict| CheckVerdict {
        backend: backend.into(),
        pool: "web".into(),
        check: "http".into(),
        verdict,
    };
    MetricsInput {
        stats: Stats {
            generation: 31,
            xdp: XdpStats {
                redirected: 32,
                passed: 33,
                multicast: 34,
                neighbour_discovery: 35,
                no_socket: 36,
                no_head_room: 37,
                socket_gone: 38,
            },
            xdp_mode: "driver".into(),
            mode: BTreeMap::from([("eth0".into(), "zero-copy".into())]),
            interfaces: BTreeMap::from([(
                "eth0".into(),
                InterfaceStats { sockets: 2, rx: 61, tx: 62, lost: 63 },
            )]),
            total: thread(),
            threads: vec![thread()],
            backends: BTreeMap::from([("b1".into(), traffic(40))]),
            services: BTreeMap::from([("www tcp 80,443".into(), traffic(50))]),
        },
        health: vec![
            verdict("b1", CheckState::Up),
            verdict("b2", CheckState::Down),
            verdict("b3", CheckState::Unknown),
        ],
        vips: BTreeMap::from([("www tcp 80,443".into(), VipBackends { serving: 1, members: 3 })]),
        boot_id: "0f".into(),
        digests: DigestView {
            table_algorithm: 3,
            configuration: "0123456789abcdef".into(),
            tables: Some("0000000000123abc".into()),
            shard: Some("west".into()),
        },
        last_reload: Some(LastReload {
            taken: true,
            took: Duration::from_millis(250),
            ended_unix_seconds: 1_000,
        }),
        bgp: serde_json::from_str(include_str!("../page/sample/bgp.json")).unwrap(),
        ready: true,
        forwarder_healthy: true,
        own_fault: false,
        interfaces: vec![InterfaceRow {
            name: "eth0".into(),
            link: true,
            mtu_bytes: 1_601,
            largest_packet_bytes: 1_600,
        }],
        checks_unable: 2,
        build: Build { version: "1.2.3", commit: "abc" },
    }
}

/// What `thread`, `traffic` and `full_input` say, series by series.
const KNOWN: &[(&str, f64)] = &[
    (r#"vip_packets_total{ports="80,443",protocol="tcp",vip="www"}"#, 50.0),
    (r#"vip_bytes_total{ports="80,443",protocol="tcp",vip="www"}"#, 5000.0),
    (r#"vip_new_flows_total{ports="80,443",protocol="tcp",vip="www"}"#, 25.0),
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
    (r#"bgp_announced_routes{family="ipv6",peer="tor1"}"#, 4.0),
    (r#"bgp_announced_routes{family="ipv4",peer="tor2"}"#, 0.0),
    (r#"bgp_announced_routes{family="ipv6",peer="tor2"}"#, 0.0),
    (r#"bfd_session_up{peer="tor1"}"#, 1.0),
    (r#"vip_announced{vip="www"}"#, 1.0),
    (r#"vip_announced{vip="dns"}"#, 0.0),
    (r#"vip_withdrawals_total{vip="www"}"#, 0.0),
    (r#"vip_withdrawals_total{vip="dns"}"#, 5.0),
    ("own_fault", 0.0),
    ("health_unable", 2.0),
    ("ready", 1.0),
    ("forwarder_healthy", 1.0),
    (r#"dropped_packets_total{reason="ttl"}"#, 13.0),
    (r#"dropped_packets_total{reason="no_vip"}"#, 0.0),
    ("xdp_redirected_packets_total", 32.0),
    ("xdp_passed_packets_total", 33.0),
    ("xdp_passed_multicast_packets_total", 34.0),
    ("xdp_passed_neighbour_discovery_packets_total", 35.0),
    (r#"xdp_lost_packets_total{reason="no_socket"}"#, 36.0),
    (r#"xdp_lost_packets_total{reason="no_head_room"}"#, 37.0),
    (r#"xdp_lost_packets_total{reason="socket_gone"}"#, 38.0),
    (r#"xdp_mode_info{mode="driver"}"#, 1.0),
    (r#"xdp_socket_mode_info{interface="eth0",mode="zero-copy"}"#, 1.0),
    (r#"interface_up{interface="eth0"}"#, 1.0),
    (r#"interface_mtu_fits{interface="eth0"}"#, 0.0),
    (r#"interface_received_packets_total{interface="eth0"}"#, 61.0),
    (r#"interface_sent_packets_total{interface="eth0"}"#, 62.0),
    (r#"interface_lost_packets_total{interface="eth0"}"#, 63.0),
    (r#"xdp_socket_rx_dropped_packets_total{thread="0"}"#, 23.0),
    (r#"xdp_socket_rx_ring_full_packets_total{thread="0"}"#, 24.0),
    (r#"xdp_socket_fill_ring_empty_total{thread="0"}"#, 25.0),
    (r#"xdp_socket_rx_invalid_descriptors_total{thread="0"}"#, 26.0),
    (r#"xdp_socket_tx_invalid_descriptors_total{thread="0"}"#, 27.0),
    (r#"xdp_socket_tx_ring_empty_total{thread="0"}"#, 28.0),
    (r#"xdp_socket_fill_starved_turns_total{thread="0"}"#, 29.0),
    (r#"thread_turns_total{thread="0"}"#, 30.0),
    (r#"thread_received_packets_total{thread="0"}"#, 1.0),
    (r#"thread_received_bytes_total{thread="0"}"#, 2.0),
    (r#"thread_sent_packets_total{thread="0"}"#, 3.0),
    (r#"thread_sent_bytes_total{thread="0"}"#, 4.0),
    (r#"thread_replied_packets_total{thread="0"}"#, 5.0),
    (r#"thread_handed_over_packets_total{thread="0"}"#, 6.0),
    (r#"thread_taken_over_packets_total{thread="0"}"#, 7.0),
    (r#"thread_originated_packets_total{thread="0"}"#, 8.0),
    (r#"thread_held_packets{thread="0"}"#, 9.0),
    (r#"thread_head_room_mismatch_packets_total{thread="0"}"#, 10.0),
    (r#"thread_reselected_flows_total{thread="0"}"#, 11.0),
    (r#"thread_rehashed_packets_total{thread="0"}"#, 12.0),
    (r#"thread_time_exceeded_packets_total{thread="0"}"#, 60.0),
    (r#"thread_too_big_told_packets_total{thread="0"}"#, 61.0),
    (r#"thread_cut_packets_total{thread="0"}"#, 62.0),
    (r#"thread_opened_packets_total{thread="0"}"#, 63.0),
    (r#"thread_redirected_fragments_total{thread="0"}"#, 64.0),
    (r#"thread_remote_flows_total{thread="0"}"#, 65.0),
    (r#"thread_remote_arrivals_packets_total{thread="0"}"#, 66.0),
    (r#"thread_captured_packets_total{thread="0"}"#, 41.0),
    (r#"thread_capture_lost_packets_total{thread="0"}"#, 42.0),
    (r#"thread_trace_reports_total{thread="0"}"#, 90.0),
    (r#"thread_trace_refused_packets_total{reason="mac",thread="0"}"#, 91.0),
    (r#"thread_busy_seconds_total{thread="0"}"#, 1.5),
    (r#"batch_packets_bucket{le="1"}"#, 5.0),
    (r#"batch_packets_bucket{le="3"}"#, 9.0),
    (r#"batch_packets_bucket{le="7"}"#, 12.0),
    (r#"batch_packets_bucket{le="+Inf"}"#, 12.0),
    ("batch_packets_sum", 8.0),
    ("batch_packets_count", 12.0),
    (r#"flow_table_entries{thread="0"}"#, 14.0),
    (r#"flow_table_capacity{thread="0"}"#, 15.0),
    (r#"flow_table_lookups_total{result="hit",thread="0"}"#, 16.0),
    (r#"flow_table_lookups_total{result="miss",thread="0"}"#, 17.0),
    (r#"flow_table_inserts_total{thread="0"}"#, 18.0),
    (r#"flow_table_refreshes_total{thread="0"}"#, 19.0),
    (r#"flow_table_expired_total{thread="0"}"#, 20.0),
    (r#"flow_table_evicted_total{thread="0"}"#, 21.0),
    (r#"flow_table_untracked_total{thread="0"}"#, 22.0),
    (r#"fragment_table_datagrams{thread="0"}"#, 63.0),
    (r#"fragment_table_held_packets{thread="0"}"#, 64.0),
    (r#"fragment_table_recorded_total{thread="0"}"#, 65.0),
    (r#"fragment_table_duplicates_total{thread="0"}"#, 66.0),
    (r#"fragment_table_followed_packets_total{thread="0"}"#, 67.0),
    (r#"fragment_table_waited_packets_total{thread="0"}"#, 68.0),
    (r#"fragment_table_released_packets_total{thread="0"}"#, 69.0),
    (r#"fragment_table_evicted_total{thread="0"}"#, 70.0),
    (r#"fragment_table_succeeded_total{thread="0"}"#, 71.0),
    ("generation", 31.0),
    (r#"config_info{boot_id="0f",digest="0123456789ab"}"#, 1.0),
    (r#"tables_digest{shard="west"}"#, 291.0),
    ("table_algorithm", 3.0),
    ("last_reload_success", 1.0),
    ("last_reload_duration_seconds", 0.25),
    ("last_reload_timestamp_seconds", 1_000.0),
    (r#"build_info{commit="abc",version="1.2.3"}"#, 1.0),
];

/// Labels in the order of their names, as [`KNOWN`] writes them.
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
fn every_figure_stands_under_its_own_name_and_nothing_else_does() {
    let text = normal(&render(&full_input()).unwrap());
    for (series, expected) in KNOWN {
        let series = format!("sluicegate_{series}");
        assert_eq!(value(&text, &series), Some(*expected), "{series}\n{text}");
    }
    let samples = text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(samples, KNOWN.len(), "{text}");
}

#[test]
fn every_metric_of_the_catalogue_is_exported_with_its_sentence_and_kind() {
    let text = render(&full_input()).unwrap();
    for metric in catalogue::ALL {
        assert!(text.contains(&format!("# HELP {} {}\n", metric.name, metric.help)), "{}", metric.name);
        assert!(
            text.contains(&format!("# TYPE {} {}\n", metric.name, metric.kind.name())),
            "{}",
            metric.name
        );
    }
    assert_eq!(text.matches("# TYPE ").count(), catalogue::ALL.len());
}

#[test]
fn names_follow_the_conventions() {
    let names: BTreeSet<&str> = catalogue::ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), catalogue::ALL.len());
    for metric in catalogue::ALL {
        assert_eq!(metric.kind == Kind::Counter, metric.name.ends_with("_total"), "{}", metric.name);
        assert!(metric.help.ends_with('.') && metric.help.matches(". ").count() == 0, "{}", metric.name);
        for sloppy in ["_ms", "_nanos", "_count", "_kb", "__"] {
            assert!(!metric.name.contains(sloppy), "{}", metric.name);
        }
    }
}

#[test]
fn what_lies_past_the_bound_is_summed_under_other() {
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
fn a_backend_called_other_is_one_series_with_the_rest() {
    let mut input = full_input();
    input.stats.backends = (0..MAX_SERIES_BACKENDS).map(|n| (format!("b{n:05}"), traffic(2))).collect();
    input.stats.backends.insert("other".into(), traffic(5));
    input.stats.backends.insert("a".into(), traffic(5));
    let text = render(&input).unwrap();
    assert_eq!(text.matches("sluicegate_backend_packets_total{backend=\"other\"} 7\n").count(), 1);
    assert_eq!(text.matches("sluicegate_backend_packets_total{backend=\"other\"}").count(), 1);
}

#[test]
fn bounds_hide_neither_a_check_that_is_down_nor_a_vip_without_backends() {
    let mut input = full_input();
    let up = input.health[0].clone();
    let down = input.health[1].clone();
    input.health = std::iter::repeat_n(up, MAX_SERIES_HEALTH).collect();
    for (n, check) in input.health.iter_mut().enumerate() {
        check.backend = format!("a{n}");
    }
    input.health.push(down);
    input.vips = (0..MAX_SERIES_VIPS)
        .map(|n| (format!("a{n} tcp 80"), VipBackends { serving: 1, members: 1 }))
        .collect();
    input.vips.insert("z tcp 80".into(), VipBackends::default());
    let text = normal(&render(&input).unwrap());
    assert_eq!(value(&text, r#"sluicegate_health_up{backend="b2",check="http",pool="web"}"#), Some(0.0));
    assert_eq!(text.matches("\nsluicegate_health_up{").count(), MAX_SERIES_HEALTH);
    let empty = r#"sluicegate_vip_backends_serving{ports="80",protocol="tcp",vip="z"}"#;
    assert_eq!(value(&text, empty), Some(0.0));
    assert_eq!(text.matches("\nsluicegate_vip_backends_serving{").count(), MAX_SERIES_VIPS);
}

#[test]
fn of_a_check_by_way_of_several_vips_the_worst_verdict_stands() {
    use CheckState::{Down, Unknown, Up};
    for (verdicts, expected) in [
        ([Up, Up, Up], Some(1.0)),
        ([Up, Down, Up], Some(0.0)),
        ([Unknown, Up, Down], Some(0.0)),
        ([Up, Unknown, Up], None),
    ] {
        let mut input = full_input();
        let one = input.health[0].clone();
        input.health = verdicts.map(|verdict| CheckVerdict { verdict, ..one.clone() }).to_vec();
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
fn the_admin_apis_answers_become_the_input() {
    let status: Status = serde_json::from_str(include_str!("../page/sample/status.json")).unwrap();
    let vips: Vec<VipRow> = serde_json::from_str(include_str!("../page/sample/vips.json")).unwrap();
    let rows: Vec<BackendRow> = serde_json::from_str(include_str!("../page/sample/backends.json")).unwrap();
    let stats = Stats { generation: 3, ..Stats::default() };
    let input = MetricsInput::new(stats, &status, &vips, &rows, BgpView::default());
    assert_eq!(input.vips["www tcp 80,443"], VipBackends { serving: 2, members: 4 });
    let checks: Vec<_> = input
        .health
        .iter()
        .map(|c| (c.backend.as_str(), c.pool.as_str(), c.check.as_str(), c.verdict))
        .collect();
    assert!(checks.contains(&("b2", "web", "http", CheckState::Down)), "{checks:?}");
    assert_eq!((input.stats.generation, input.boot_id, input.digests), (3, status.boot_id, status.digests));
    let reload =
        LastReload { taken: false, took: Duration::from_millis(12), ended_unix_seconds: 1_700_000_000 };
    assert_eq!(input.last_reload, Some(reload));
    assert_eq!((input.ready, input.forwarder_healthy, input.own_fault), (true, true, false));
}

#[test]
fn labels_are_escaped() {
    let mut input = full_input();
    input.health[0].check = "a\"b\\c\nd".into();
    let text = render(&input).unwrap();
    assert!(text.contains(r#"check="a\"b\\c\nd""#), "{text}");
}

#[test]
fn before_the_first_reload_there_is_no_series_for_it() {
    let input = MetricsInput::default();
    let text = render(&input).unwrap();
    assert!(!text.contains("last_reload") && text.contains("sluicegate_ready 0\n"), "{text}");
}

/// The document's table, from the catalogue.
fn table() -> String {
    let mut text = String::from("| name | kind | labels | when it moves |\n|---|---|---|---|\n");
    for metric in catalogue::ALL {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        text += &format!(
            "| `{}` | {} | {} | {} |\n",
            metric.name,
            metric.kind.name(),
            labels.join(", "),
            metric.help
        );
    }
    text
}

#[test]
fn the_document_says_what_the_catalogue_says() {
    let document = include_str!("../../../../docs/metrics.md");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let (before, rest) = document.split_once(BEGIN).expect("the table's begin");
    let (found, after) = rest.split_once(END).expect("the table's end");
    if std::env::var_os("SLUICEGATE_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{}{END}{after}", table())).unwrap();
        return;
    }
    assert!(
        found == table(),
        "docs/metrics.md has drifted; write it anew with: SLUICEGATE_WRITE_DOCS=1 cargo test -p sluicegate-control-plane --lib the_document"
    );
    for bound in [MAX_SERIES_VIPS, MAX_SERIES_BACKENDS, MAX_SERIES_HEALTH] {
        let words = format!("{},{:03}", bound / 1000, bound % 1000);
        assert!(document.contains(&words), "the document does not name the bound {words}");
    }
}

const BEGIN: &str = "<!-- begin: written by a test -->\n";
const END: &str = "<!-- end -->\n";
