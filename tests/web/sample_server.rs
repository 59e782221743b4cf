//! A server for the status page with sample responses. Tests can change the responses while the
//! page is open.
//!
//! The server sends the balancer's page with the balancer's HTTP headers. The sample responses are
//! in `admin/page/sample`. Tests of the crate `admin` check that the samples have the correct
//! format.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use admin::stats::Stats;
use admin::status_page;
use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde_json::Value;
use testbed::Namespace;

/// The responses that the server sends.
#[derive(Clone, Debug)]
pub(crate) struct Samples {
    pub(crate) status: Value,
    pub(crate) vips: Value,
    pub(crate) backends: Value,
    pub(crate) health: Value,
    pub(crate) counters: Value,
    pub(crate) bgp: Value,
    pub(crate) events: Value,
}

type Shared = Arc<Mutex<Samples>>;

/// A running server with sample responses. Dropping the handle stops the server.
pub(crate) struct SampleServer {
    pub(crate) origin: String,
    samples: Shared,
    _runtime: tokio::runtime::Runtime,
}

impl SampleServer {
    pub(crate) fn start(ns: &Namespace) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = ns.run(|| TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))).unwrap();
        listener.set_nonblocking(true).unwrap();
        let origin = format!("http://{}/", listener.local_addr().unwrap());
        let samples = Arc::new(Mutex::new(Samples::shipped()));
        let app = Router::new()
            .route("/v1/status", answer(|samples| &samples.status))
            .route("/v1/vips", answer(|samples| &samples.vips))
            .route("/v1/backends", answer(|samples| &samples.backends))
            .route("/v1/health", answer(|samples| &samples.health))
            .route("/v1/bgp", answer(|samples| &samples.bgp))
            .route("/v1/events", answer(|samples| &samples.events))
            .route("/counters", answer(|samples| &samples.counters))
            .merge(status_page())
            .with_state(Arc::clone(&samples));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, app).await
        });
        Self { origin, samples, _runtime: runtime }
    }

    /// Changes the responses that the server sends to later requests.
    pub(crate) fn change(&self, edit: impl FnOnce(&mut Samples)) {
        edit(&mut self.samples.lock().unwrap());
    }
}

impl Samples {
    fn shipped() -> Self {
        let read = |text| serde_json::from_str(text).unwrap();
        Self {
            status: read(include_str!("../../crates/admin/src/page/sample/status.json")),
            vips: read(include_str!("../../crates/admin/src/page/sample/vips.json")),
            backends: read(include_str!("../../crates/admin/src/page/sample/backends.json")),
            health: read(include_str!("../../crates/admin/src/page/sample/health.json")),
            bgp: read(include_str!("../../crates/admin/src/page/sample/bgp.json")),
            events: read(include_str!("../../crates/admin/src/page/sample/events.json")),
            counters: serde_json::to_value(counters()).unwrap(),
        }
    }
}

/// Returns the sample counters. The sample file contains only the counters that are not 0, and the
/// type `Stats` adds the others.
fn counters() -> Stats {
    let mut stats: Stats =
        serde_json::from_str(include_str!("../../crates/admin/src/page/sample/counters.json")).unwrap();
    for thread in &stats.threads {
        stats.total += thread;
    }
    stats
}

fn answer(pick: fn(&Samples) -> &Value) -> axum::routing::MethodRouter<Shared> {
    get(
        move |State(samples): State<Shared>| async move { axum::Json(pick(&samples.lock().unwrap()).clone()) },
    )
}
