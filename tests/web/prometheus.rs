//! Tests with a Prometheus server that scrapes a running balancer, and tests with `promtool`.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use testbed::{Counters, Namespace, Process, eventually};

use crate::browser::BOUND;
use crate::http;
use crate::running::{METRICS, Running};

/// A Prometheus server that runs on the client host.
struct Prometheus {
    _process: Process,
    ns: Namespace,
}

impl Prometheus {
    fn start(running: &Running) -> Self {
        let folder = running.bed.dir();
        let rules =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/alerts.yml").canonicalize().unwrap();
        let config = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }}\n\
             rule_files: [{rules:?}]\n\
             scrape_configs:\n  - job_name: sluicegate\n    static_configs: [{{ targets: [\"{METRICS}\"] }}]\n"
        );
        let file = folder.join("prometheus.yml");
        fs::write(&file, config).unwrap();
        let arguments = [
            format!("--config.file={}", file.display()),
            format!("--storage.tsdb.path={}", folder.join("tsdb").display()),
            format!("--web.listen-address={SERVER}"),
            "--log.level=warn".into(),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ns = running.bed.client.ns.clone();
        let process = Process::start(&ns, "prometheus", "prometheus", &arguments).unwrap();
        Self { _process: process, ns }
    }

    fn ask(&self, path: &str) -> Option<Value> {
        let (status, body) = http::get(&self.ns, SERVER.parse().unwrap(), path).ok()?;
        (status == 200).then(|| serde_json::from_str(&body).unwrap())
    }

    /// Runs a query and returns its single value, or `None` if there is none.
    fn value(&self, query: &str) -> Option<f64> {
        let answer = self.ask(&format!("/api/v1/query?query={}", percent(query)))?;
        let result = answer["data"]["result"].as_array()?;
        result.first()?["value"][1].as_str()?.parse().ok()
    }

    /// Waits until a query returns the expected value.
    fn agrees(&self, query: &str, expected: u64) {
        self.follows(query, || expected);
    }

    /// Waits until a query returns the expected value. The expected value may change while the test
    /// waits.
    fn follows(&self, query: &str, expected: impl Fn() -> u64) {
        let agreed = eventually(BOUND, || (self.value(query)? == expected() as f64).then_some(()));
        assert!(
            agreed.is_some(),
            "{query}: {:?}, expected {}; {:?}",
            self.value(query),
            expected(),
            self.targets()
        );
    }

    fn targets(&self) -> Option<Value> {
        Some(self.ask("/api/v1/targets")?["data"]["activeTargets"].take())
    }
}

#[test]
fn prometheus_scrapes_correct_counters() {
    let running = Running::start();
    let prometheus = Prometheus::start(&running);
    prometheus.agrees("up", 1);
    running.ask(30);
    // All packets of the requests have been counted when the sums match.
    let counts = eventually(BOUND, || {
        let counts = running.balancer.counters().unwrap();
        (counts.redirected() == counts.received() && counts.received() == counts.sent()).then_some(counts)
    });
    let counts: Counters = counts.expect("the counters do not match");
    assert!(counts.received() >= 30 * 3, "too few packets received");
    // The last segments of a connection may still arrive, so the expected value is read again each
    // time.
    let now = || running.balancer.counters().unwrap();
    prometheus.follows("sum(sluicegate_thread_received_packets_total)", || now().received());
    prometheus.follows("sum(sluicegate_xdp_redirected_packets_total)", || now().redirected());
    prometheus.follows("sum(sluicegate_vip_packets_total{vip=\"www\",ports=\"80\"})", || now().sent());
    prometheus.follows("sum(sluicegate_backend_packets_total)", || now().sent());
    for backend in ["b1", "b2", "b3"] {
        let query = format!("sluicegate_backend_packets_total{{backend=\"{backend}\"}}");
        prometheus.follows(&query, || now().to_backend(backend));
    }
    prometheus.agrees("sluicegate_vip_backends_serving{vip=\"www\",ports=\"80\"}", 3);
    for one in ["sluicegate_ready", "sluicegate_forwarder_healthy", "count(sluicegate_build_info)"] {
        prometheus.agrees(one, 1);
    }
    let groups = prometheus.ask("/api/v1/rules").unwrap();
    let rules = groups["data"]["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 11 && rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
    prometheus.agrees("count(ALERTS{alertstate=\"firing\"}) or vector(0)", 0);
    let decaps = running.decaps.len();
    running.balancer.stop().unwrap();
    prometheus.agrees("up", 0);
    assert_eq!(decaps, 3);
}

#[test]
fn metrics_listener_is_read_only() {
    let running = Running::start();
    let server: SocketAddr = METRICS.parse().unwrap();
    let ask = |path: &str| http::get(&running.bed.client.ns, server, path).unwrap();
    for (path, well) in [("/healthz", "healthy\n"), ("/readyz", "ready\n")] {
        assert_eq!(ask(path), (200, well.into()));
    }
    for path in ["/", "/v1/status", "/v1/reload", "/counters"] {
        assert_eq!(ask(path).0, 404, "{path}");
    }
    let (status, text) = ask("/metrics");
    assert_eq!(status, 200);
    let mut lint = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is missing, install the Debian package prometheus");
    lint.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let found = lint.wait_with_output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
}

/// Percent-encodes a query for a URL.
fn percent(text: &str) -> String {
    text.bytes()
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            },
        )
        .collect()
}

const SERVER: &str = "127.0.0.1:9090";
