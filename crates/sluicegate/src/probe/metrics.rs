//! Counts attempts in Prometheus metrics and serves them over HTTP at `/metrics`.
//!
//! Each target has 30 time series: 1 for attempts, 12 for failures by reason, 16 for the latency
//! histogram and 1 for the state.
//!
//! References: Prometheus, "Metric and label naming".

use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use health::Failure;
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TEXT_FORMAT, TextEncoder,
};
use tokio::net::TcpListener;

use super::Outcome;
use super::target::Target;

pub(super) struct Metrics {
    registry: Registry,
    attempts: IntCounterVec,
    failures: IntCounterVec,
    latency: HistogramVec,
    up: GaugeVec,
    labels: Vec<[String; 3]>,
}

impl Metrics {
    /// Creates the metrics. All counters of a target start at 0, and the metric `up` appears after
    /// the first attempt.
    pub(super) fn new(targets: &[Target]) -> Self {
        let attempts = IntCounterVec::new(Opts::new("sluicegate_probe_attempts_total", ATTEMPTS), &LABELS);
        let failures = Opts::new("sluicegate_probe_failures_total", FAILURES);
        let failures = IntCounterVec::new(failures, &[LABELS.as_slice(), &["reason"]].concat());
        let latency =
            HistogramOpts::new("sluicegate_probe_latency_seconds", LATENCY).buckets(BUCKETS.to_vec());
        let latency = HistogramVec::new(latency, &LABELS);
        let up = GaugeVec::new(Opts::new("sluicegate_probe_up", UP), &LABELS);
        let (attempts, failures) = (attempts.expect(FIXED), failures.expect(FIXED));
        let (latency, up) = (latency.expect(FIXED), up.expect(FIXED));
        let registry = Registry::new();
        registry.register(Box::new(attempts.clone())).expect(FIXED);
        registry.register(Box::new(failures.clone())).expect(FIXED);
        registry.register(Box::new(latency.clone())).expect(FIXED);
        registry.register(Box::new(up.clone())).expect(FIXED);
        let label = |target: &Target| [&*target.name, &*target.vip, target.protocol()].map(ToOwned::to_owned);
        let labels: Vec<_> = targets.iter().map(label).collect();
        for [target, vip, kind] in &labels {
            attempts.with_label_values(&[target, vip, kind]);
            latency.with_label_values(&[target, vip, kind]);
            for reason in Failure::REASONS {
                failures.with_label_values(&[target.as_str(), vip, kind, reason]);
            }
        }
        Self { registry, attempts, failures, latency, up, labels }
    }

    pub(super) fn count(&self, outcome: &Outcome) {
        let [target, vip, kind] = &self.labels[outcome.target];
        let labels = [target.as_str(), vip, kind];
        self.attempts.with_label_values(&labels).inc();
        match &outcome.verdict {
            Ok(latency) => self.latency.with_label_values(&labels).observe(latency.as_secs_f64()),
            Err(failure) => {
                self.failures.with_label_values(&[target.as_str(), vip, kind, failure.reason()]).inc();
            }
        }
        self.up.with_label_values(&labels).set(if outcome.verdict.is_ok() { 1.0 } else { 0.0 });
    }

    /// Starts the HTTP server and returns the address on which it listens. If port 0 is requested,
    /// the address contains the port that the kernel assigned.
    pub(super) async fn serve(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        let router = Router::new().route("/metrics", get(show)).with_state(self.registry.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(bound)
    }
}

async fn show(State(registry): State<Registry>) -> impl IntoResponse {
    ([(CONTENT_TYPE, TEXT_FORMAT)], text(&registry))
}

fn text(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_default()
}

const LABELS: [&str; 3] = ["target", "vip", "kind"];
/// Upper bounds of the latency buckets in seconds. The bounds cover latencies within a rack, within
/// a site and over the Internet, and the delay of a retransmitted SYN.
const BUCKETS: [f64; 13] = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0];
const ATTEMPTS: &str = "Completed attempts.";
const FAILURES: &str = "Failed attempts by reason. The reason no_answer is a timeout.";
const LATENCY: &str = "Time from the start of the connection to the response, for successful attempts only.";
const UP: &str = "1 if the last attempt succeeded, 0 if it failed. Absent before the first result.";
const FIXED: &str = "metric names and labels are unique constants";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::target::{Trust, Url};
    use super::*;

    #[test]
    fn an_outcome_moves_exactly_its_own_series() {
        let urls = ["tcp://192.0.2.1:80", "dns://[2001:db8::1]/example.org"];
        let target = |url: &str| url.parse::<Url>().unwrap().target(&Trust::new(None, false), None).unwrap();
        let metrics = Metrics::new(&urls.map(target));
        let before = text(&metrics.registry);
        assert!(!before.contains("sluicegate_probe_up{"), "{before}");
        metrics.count(&Outcome { target: 0, verdict: Ok(Duration::from_millis(3)) });
        metrics.count(&Outcome { target: 1, verdict: Err(Failure::Rcode(2)) });
        let after = text(&metrics.registry);
        let moved: Vec<&str> = after.lines().filter(|line| !before.lines().any(|old| old == *line)).collect();
        let first = r#"kind="tcp",target="tcp://192.0.2.1:80",vip="""#;
        let second = r#"kind="dns",target="dns://[2001:db8::1]:53/example.org?type=A",vip="""#;
        let has = |series: &str| assert!(moved.contains(&series), "{series} not in {moved:#?}");
        has(&format!("sluicegate_probe_attempts_total{{{first}}} 1"));
        has(&format!("sluicegate_probe_attempts_total{{{second}}} 1"));
        let reason = second.replace(",target", ",reason=\"dns\",target");
        has(&format!("sluicegate_probe_failures_total{{{reason}}} 1"));
        has(&format!("sluicegate_probe_up{{{first}}} 1"));
        has(&format!("sluicegate_probe_up{{{second}}} 0"));
        has(&format!("sluicegate_probe_latency_seconds_bucket{{{first},le=\"0.005\"}} 1"));
        has(&format!("sluicegate_probe_latency_seconds_count{{{first}}} 1"));
        assert_eq!(moved.iter().filter(|line| line.starts_with("sluicegate_probe_failures")).count(), 1);
        assert!(
            !moved.contains(&&*format!("sluicegate_probe_latency_seconds_bucket{{{first},le=\"0.002\"}} 1"))
        );
    }
}
