//! The routes: one table, of which the router and the OpenAPI document are made.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::app_state::{AppState, PUT_CONFIG, Rules};
use super::command::{BackendAction, Command, MachineAction};
use super::document::{Content, Operation, document};
use super::stats::Stats;
use super::view::{
    BackendChange, BackendRow, BgpView, CaptureEnd, ConfigView, FlowPage, HealthView, MachineDrain, Purged,
    Refusal, RefusalKind, ReloadReport, Status, VipRow, WhereView,
};
use super::{capture, guard, handlers, refuse};

/// One route as it stands in the OpenAPI document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// In lower case.
    pub method: &'static str,
    /// With names in braces.
    pub path: &'static str,
}

/// Every route of the API, apart from those that are handed in.
pub fn routes() -> Vec<Route> {
    table().iter().map(|operation| Route { method: operation.method, path: operation.path }).collect()
}

/// The API. `more` brings routes of its own, such as `/metrics`; it must have no fallback.
pub fn router(commands: mpsc::Sender<Command>, rules: Rules, more: Router) -> Router {
    let state = AppState::new(commands, rules);
    let api = table().into_iter().fold(Router::new(), |router, one| router.route(one.path, one.handler));
    api.with_state(state.clone())
        .merge(more)
        .fallback(async || Refusal::new(RefusalKind::NotFound, "no such path: /openapi.json lists them"))
        .method_not_allowed_fallback(async || {
            refuse::bad(StatusCode::METHOD_NOT_ALLOWED, "not with this method: /openapi.json lists them")
        })
        // The guard has read the body within its own limits.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(state, guard::guard))
}

fn table() -> Vec<Operation<AppState>> {
    [reading(), orders(), flows(), configuration()].into_iter().flatten().collect()
}

fn plain(route: MethodRouter<AppState>) -> MethodRouter<AppState> {
    route.route_layer(from_fn(guard::without_body))
}

/// What only looks.
fn reading() -> Vec<Operation<AppState>> {
    let counters = |path| {
        let answer = Content::json::<Stats>("The counters.");
        Operation::new("get", path, "Everything that is counted.", answer, get(handlers::counters))
    };
    let read = |path, summary, answer, handler| Operation::new("get", path, summary, answer, handler);
    vec![
        read("/v1/status", "How it is.", Content::json::<Status>("The status."), get(handlers::status)),
        read("/v1/vips", "Every VIP.", Content::json::<Vec<VipRow>>("The VIPs."), get(handlers::vips)),
        read(
            "/v1/backends",
            "Every membership.",
            Content::json::<Vec<BackendRow>>("The memberships."),
            get(handlers::backends),
        ),
        read(
            "/v1/health",
            "Every check target.",
            Content::json::<HealthView>("The targets."),
            get(handlers::health),
        ),
        read(
            "/v1/bgp",
            "Routers, and what is announced where and why not.",
            Content::json::<BgpView>("What is announced."),
            get(handlers::bgp),
        ),
        counters("/v1/counters"),
        counters("/counters"),
        read(
            "/openapi.json",
            "This document.",
            Content::json::<Map<String, Value>>("OpenAPI 3.1."),
            get(openapi),
        ),
    ]
}

/// Orders of an operator.
fn orders() -> Vec<Operation<AppState>> {
    let backend = |path, summary, handler| {
        let answer = Content::json::<BackendChange>("Done.");
        let operation = Operation::new("post", path, summary, answer, handler).refuses(&[403, 404, 409]);
        operation.query("pool", "The leaf pool; default: all its memberships.", json!({ "type": "string" }))
    };
    let order = |action| plain(post(move |desk, path, query| handlers::order(desk, path, query, action)));
    let machine = |path, summary, action| {
        let handler = plain(post(move |desk| handlers::machine(desk, action)));
        let answer = Content::json::<MachineDrain>("Begun.");
        Operation::new("post", path, summary, answer, handler).refuses(&[403, 409])
    };
    vec![
        backend(
            "/v1/backends/{name}/drain",
            "Out of the table; its flows go on to their end.",
            order(BackendAction::Drain),
        ),
        backend("/v1/backends/{name}/undrain", "Takes back a drain.", order(BackendAction::Undrain)),
        backend(
            "/v1/backends/{name}/down",
            "Out of the table; its flows are reselected.",
            order(BackendAction::Down),
        ),
        backend(
            "/v1/backends/{name}/up",
            "Takes back every override: health and file decide again.",
            order(BackendAction::Up),
        ),
        backend("/v1/backends/{name}/weight", "Another weight.", post(handlers::weight))
            .takes(Content::json::<handlers::Weight>("The weight."))
            .refuses(&[403, 404, 409, 422]),
        machine(
            "/v1/machine/drain",
            "Take the machine out: its routes go, and when traffic has gone the process ends.",
            MachineAction::Drain,
        ),
        machine(
            "/v1/machine/undrain",
            "Take a drain back, as long as the process has not ended.",
            MachineAction::Undrain,
        ),
    ]
}

/// Flows and packets.
fn flows() -> Vec<Operation<AppState>> {
    let text = || json!({ "type": "string" });
    let number = |most: Value| json!({ "type": "integer", "minimum": 1, "maximum": most });
    let chosen = |operation: Operation<AppState>| {
        operation
            .query("vip", "Flows of this VIP.", text())
            .query("backend", "Flows of this backend.", text())
            .query("all", "All flows.", json!({ "type": "boolean" }))
    };
    let list = Operation::new(
        "get",
        "/v1/flows",
        "Tracked flows; without vip and backend: all.",
        Content::json::<FlowPage>("At most limit flows."),
        get(handlers::flows),
    );
    let purge = Operation::new(
        "delete",
        "/v1/flows",
        "Forget flows. One of vip, backend, all must be given.",
        Content::json::<Purged>("Done."),
        plain(delete(handlers::purge)),
    );
    let where_to = Operation::new(
        "get",
        "/v1/where",
        "What would each packet thread do with this flow?",
        Content::json::<WhereView>("One row a thread."),
        get(handlers::where_to),
    );
    let file = "A capture file as it is made. The statistics at its end say how many packets were lost.";
    let capture = Operation::new(
        "post",
        "/v1/capture",
        "Capture packets before and after the pipeline, until a bound is reached, the client goes or the capture is ended.",
        Content::binary("application/x-pcapng", file),
        plain(post(capture::capture)),
    );
    let end = Operation::new(
        "delete",
        "/v1/capture",
        "End the capture that runs: its file is brought to its end.",
        Content::json::<CaptureEnd>("Done."),
        plain(delete(capture::end)),
    );
    vec![
        chosen(list).query("limit", "How many; default 100.", number(json!(10_000))).refuses(&[404]),
        chosen(purge).refuses(&[403, 404]),
        where_to
            .required("query", "source", "Address and port of the client.")
            .required("query", "destination", "Address and port of the VIP.")
            .required(
                "query",
                "protocol",
                "tcp, udp, icmp or a number from 0 to 255. Of ICMP the ports say nothing.",
            )
            .refuses(&[404]),
        capture
            .query("vip", "Of this VIP.", text())
            .query("backend", "For this backend.", text())
            .query("drop", "Dropped for one of these reasons: names with commas between them.", text())
            .query(
                "new_flows",
                "Of flows that the connection table did not know.",
                json!({ "type": "boolean" }),
            )
            .query(
                "sample",
                "One matching packet in so many, on each thread. Default: 1.",
                number(json!(u32::MAX)),
            )
            .query(
                "snaplen",
                "Bytes of each packet. Default: 256.",
                json!({ "type": "integer", "minimum": 64, "maximum": 2_048 }),
            )
            .query("count", "No more packets than this.", number(json!(u64::MAX)))
            .query("seconds", "No longer than this. Default: 3600.", number(json!(86_400)))
            .refuses(&[403, 404, 409]),
        end.refuses(&[403, 404]),
    ]
}

/// The configuration in force, and another one.
fn configuration() -> Vec<Operation<AppState>> {
    let put = Operation::new(
        "put",
        PUT_CONFIG,
        "Take this configuration in the file's place. The next reload of the file wins.",
        Content::json::<ReloadReport>("It is in force."),
        put(handlers::put_config),
    );
    let reload = Operation::new(
        "post",
        "/v1/reload",
        "Read the file again.",
        Content::json::<ReloadReport>("A new generation is in force, or nothing was different."),
        plain(post(handlers::reload)),
    );
    let config = Content::json::<ConfigView>("Its texts.");
    vec![
        Operation::new("get", "/v1/config", "The configuration in force.", config, get(handlers::config))
            .with_header("ETag", "For If-Match."),
        put.required("header", "If-Match", "The ETag that the change started from, or *.")
            .takes(Content::of("application/toml", "TOML, at most 16 MiB."))
            .refuses(&[403, 409, 412, 422, 428]),
        reload.refuses(&[403, 409, 422]),
    ]
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

/// The document that describes all this.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| document(&table()).to_string());
