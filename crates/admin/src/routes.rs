//! The routes: one table, of which the router and the OpenAPI document are made.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::app_state::{AppState, CONFIRM, PUT_CONFIG, RELOAD, ROLLBACK, Rules, UPGRADE};
use super::capture::{self, CAPTURE_SECONDS_AT_MOST};
use super::command::{
    Answer, BackendAction, Command, EVENTS_AT_MOST, FLOWS_AT_MOST, HOT_KEYS_AT_MOST,
    HOT_KEYS_SECONDS_AT_MOST, MachineAction, SNAP_BYTES,
};
use super::document::{Content, Operation, document};
use super::view::{
    BackendChange, CaptureEnd, ConfigView, Confirmed, EventsView, FlowPage, GenerationView, HotKeysView,
    LogChange, LogLevel, MachineDrain, Purged, Refusal, RefusalKind, ReloadReport, Upgraded, WhereView,
};
use super::{guard, handlers, hot_keys, refuse};

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

fn table() -> Vec<Operation> {
    let orders = [backend_orders(), machine_orders(), log_orders()];
    let all = [reading(), events(), flows(), hot_keys(), captures(), configuration(), ways_back()]
        .into_iter()
        .chain(orders);
    all.flatten().collect()
}

fn plain(route: MethodRouter<AppState>) -> MethodRouter<AppState> {
    route.route_layer(from_fn(guard::without_body))
}

/// A question about the balancer as a whole.
fn question<T>(
    path: &'static str,
    summary: &'static str,
    answer: &'static str,
    command: fn(Answer<T>) -> Command,
) -> Operation
where
    T: JsonSchema + Serialize + Send + 'static,
{
    Operation::read::<T>(path, summary, answer, get(move |state| handlers::plain(state, command)))
}

fn reading() -> Vec<Operation> {
    let bgp = "Routers, and what is announced where and why not.";
    let counters = |path| question(path, "Everything that is counted.", "The counters.", Command::Stats);
    vec![
        question("/v1/status", "How it is.", "The status.", Command::Status),
        question("/v1/vips", "Every VIP.", "The VIPs.", Command::Vips),
        question("/v1/backends", "Every membership.", "The memberships.", Command::Backends),
        question("/v1/health", "Every check target.", "The targets.", Command::Health),
        question("/v1/bgp", bgp, "What is announced.", Command::Bgp),
        counters("/v1/counters"),
        counters("/counters"),
        Operation::read::<Map<String, Value>>(
            "/openapi.json",
            "This document.",
            "OpenAPI 3.1.",
            get(openapi),
        ),
    ]
}

/// Changes of state.
fn events() -> Vec<Operation> {
    let kinds = "Of these kinds: names with commas between them. Default: of all.";
    let list = Operation::read::<EventsView>(
        "/v1/events",
        "The last 1,000 changes of state, oldest first.",
        "Those that were asked for.",
        get(handlers::events),
    );
    vec![
        list.query("kind", kinds, text())
            .query("after", "With a number above this.", number(0, u64::MAX))
            .query("since_seconds", "No older than this.", number(1, handlers::FOR_SECONDS))
            .query("limit", "The last so many. Default: 1000.", number(1, EVENTS_AT_MOST)),
    ]
}

/// Overrides of a backend.
fn backend_orders() -> Vec<Operation> {
    let change = |path, summary, handler| {
        let operation = Operation::json::<BackendChange>("post", path, summary, "Done.", handler);
        operation
            .query("pool", "The leaf pool; default: all its memberships.", text())
            .query("reason", REASON, text())
            .query(
                "for_seconds",
                "After how long it ends by itself; default: never.",
                number(1, handlers::FOR_SECONDS),
            )
            .refuses(&[403, 404, 409])
    };
    let order = |path, summary, action| {
        let handler = move |state, name, about, peer| handlers::order(state, name, about, peer, action);
        change(path, summary, plain(post(handler)))
    };
    vec![
        order(
            "/v1/backends/{name}/drain",
            "Out of the table; its flows go on to their end.",
            BackendAction::Drain,
        ),
        order("/v1/backends/{name}/undrain", "Takes back a drain.", BackendAction::Undrain),
        order("/v1/backends/{name}/down", "Out of the table; its flows are reselected.", BackendAction::Down),
        order(
            "/v1/backends/{name}/up",
            "Takes back every override: health and file decide again.",
            BackendAction::Up,
        ),
        change("/v1/backends/{name}/weight", "Another weight.", post(handlers::weight))
            .takes(Content::json::<handlers::Weight>("The weight."))
            .refuses(&[403, 404, 409, 422]),
    ]
}

/// The drain of the machine, and a new process in this one's place.
fn machine_orders() -> Vec<Operation> {
    let order = |path, summary, action| {
        let handler = plain(post(move |state| handlers::machine(state, action)));
        Operation::json::<MachineDrain>("post", path, summary, "Begun.", handler).refuses(&[403, 409])
    };
    let upgrade = Operation::json::<Upgraded>(
        "post",
        UPGRADE,
        "Start a new process, by the Unix socket alone: it takes over flows, orders, verdicts and queues, and this one ends.",
        "The new process has everything.",
        plain(post(handlers::upgrade)),
    );
    let binary = "The new program, by its path from the root on. Default: the file that this process was started from.";
    vec![
        upgrade.query("binary", binary, text()).refuses(&[403, 409]),
        order(
            "/v1/machine/drain",
            "Take the machine out: its routes go, and when traffic has gone the process ends.",
            MachineAction::Drain,
        ),
        order(
            "/v1/machine/undrain",
            "Take a drain back, as long as the process has not ended.",
            MachineAction::Undrain,
        ),
    ]
}

/// Which lines of the log are written.
fn log_orders() -> Vec<Operation> {
    let path = "/v1/log/level";
    let level = json!({ "type": "string", "enum": LogLevel::ALL });
    let order = Operation::json::<LogChange>(
        "post",
        path,
        "Write lines of this level and above for a while; a reload does not end it.",
        "Done.",
        plain(post(handlers::log_level)),
    );
    let file = Operation::json::<LogChange>(
        "delete",
        path,
        "Take that back: the file's level again.",
        "Done.",
        plain(delete(handlers::file_log_level)),
    );
    let ends = number(1, handlers::FOR_SECONDS);
    vec![
        question(path, "Which lines of the log are written.", "The level.", Command::Log),
        order
            .needed("level", "The least important lines that are written.", level)
            .needed("for_seconds", "After how long it ends by itself.", ends)
            .query("reason", REASON, text())
            .refuses(&[403]),
        file.refuses(&[403]),
    ]
}

/// Tracked flows, and what would become of one.
fn flows() -> Vec<Operation> {
    let chosen = |operation: Operation| {
        let operation = operation.query("vip", "Flows of this VIP.", text());
        operation.query("backend", "Flows of this backend.", text()).query("all", "All flows.", flag())
    };
    let list = Operation::read::<FlowPage>(
        "/v1/flows",
        "Tracked flows; without vip and backend: all.",
        "At most limit flows.",
        get(handlers::flows),
    );
    let purge = Operation::json::<Purged>(
        "delete",
        "/v1/flows",
        "Forget flows. One of vip, backend, all must be given.",
        "Done.",
        plain(delete(handlers::purge)),
    );
    vec![
        chosen(list).query("limit", "How many; default 100.", number(1, FLOWS_AT_MOST)).refuses(&[404]),
        chosen(purge).refuses(&[403, 404]),
        flow_path(),
    ]
}

/// What would become of a flow.
fn flow_path() -> Operation {
    let where_to = Operation::read::<WhereView>(
        "/v1/where",
        "What would each packet thread do with this flow?",
        "One row a thread.",
        get(handlers::where_to),
    );
    let protocol = "tcp, udp, icmp or a number from 0 to 255. Of ICMP the ports say nothing.";
    where_to
        .required("query", "source", "Address and port of the client.")
        .required("query", "destination", "Address and port of the VIP.")
        .required("query", "protocol", protocol)
        .query("key", "Of a request for this key, to a service that chooses by key.", text())
        .refuses(&[404])
}

/// Keys of requests.
fn hot_keys() -> Vec<Operation> {
    let top = Operation::json::<HotKeysView>(
        "post",
        "/v1/kv/top",
        "Count the keys of requests for services that choose by key, for a while: which are asked for most, and who has them.",
        "Those that were asked for most first. It comes when they have been counted.",
        plain(post(hot_keys::top)),
    );
    vec![
        top.query("vip", "Of this VIP's services. Default: of all.", text())
            .query("limit", "How many keys. Default: 20.", number(1, HOT_KEYS_AT_MOST))
            .query("seconds", "How long they are counted. Default: 2.", number(1, HOT_KEYS_SECONDS_AT_MOST))
            .refuses(&[403, 404, 409]),
    ]
}

/// Packets as a stream.
fn captures() -> Vec<Operation> {
    let file = "A capture file as it is made. The statistics at its end say how many packets were lost.";
    let begin = Operation::new(
        "post",
        "/v1/capture",
        "Capture packets before and after the pipeline, until a bound is reached, the client goes or the capture is ended.",
        Content::binary("application/x-pcapng", file),
        plain(post(capture::capture)),
    );
    let end = Operation::json::<CaptureEnd>(
        "delete",
        "/v1/capture",
        "End the capture that runs: its file is brought to its end.",
        "Done.",
        plain(delete(capture::end)),
    );
    let sample = "One matching packet in so many, on each thread. Default: 1.";
    vec![
        begin
            .query("vip", "Of this VIP.", text())
            .query("backend", "For this backend.", text())
            .query("drop", "Dropped for one of these reasons: names with commas between them.", text())
            .query("new_flows", "Of flows that the connection table did not know.", flag())
            .query("sample", sample, number(1, u32::MAX))
            .query(
                "snaplen",
                "Bytes of each packet. Default: 256.",
                number(*SNAP_BYTES.start(), *SNAP_BYTES.end()),
            )
            .query("count", "No more packets than this.", number(1, u64::MAX))
            .query("seconds", "No longer than this. Default: 3600.", number(1, CAPTURE_SECONDS_AT_MOST))
            .refuses(&[403, 404, 409]),
        end.refuses(&[403, 404]),
    ]
}

/// The configuration in force, and another one.
fn configuration() -> Vec<Operation> {
    let config = Operation::read::<ConfigView>(
        "/v1/config",
        "The configuration in force.",
        "Its texts.",
        get(handlers::config),
    );
    let put = Operation::json::<ReloadReport>(
        "put",
        PUT_CONFIG,
        "Take this configuration in the file's place. The next reload of the file wins.",
        "It is in force.",
        put(handlers::put_config),
    );
    let reload = Operation::json::<ReloadReport>(
        "post",
        RELOAD,
        "Read the file again.",
        "A new generation is in force, or nothing was different.",
        plain(post(handlers::reload)),
    );
    vec![
        config.with_header("ETag", "For If-Match."),
        on_terms(put)
            .required("header", "If-Match", "The ETag that the change started from, or *.")
            .takes(Content::of("application/toml", "TOML, at most 16 MiB."))
            .refuses(&[403, 409, 412, 422, 428]),
        on_terms(reload).refuses(&[403, 409, 422]),
    ]
}

fn on_terms(operation: Operation) -> Operation {
    let seconds = number(1, handlers::CONFIRM_SECONDS);
    operation
        .query("confirm_seconds", "It is taken back unless it is confirmed within this time.", seconds)
        .query("force", "However many slots move; else cluster.max_moved refuses.", flag())
}

/// What was in force before, and what is to stay.
fn ways_back() -> Vec<Operation> {
    let generation = Operation::read::<GenerationView>(
        "/v1/config/history/{generation}",
        "One of the last generations, with its texts.",
        "It.",
        get(handlers::generation),
    );
    let confirm = Operation::json::<Confirmed>(
        "post",
        CONFIRM,
        "What is in force stays, though it came with confirm_seconds.",
        "It stays.",
        plain(post(handlers::confirm)),
    );
    let rollback = Operation::json::<ReloadReport>(
        "post",
        ROLLBACK,
        "Go back to a generation that was in force before, as it was then; the file is left as it is.",
        "A new generation is in force, or nothing was different.",
        plain(post(handlers::rollback)),
    );
    let which = "The number of the generation. Default: the last that was confirmed while one waits for it, else the one before.";
    vec![
        question(
            "/v1/config/history",
            "The last generations since the start.",
            "Oldest first.",
            Command::History,
        ),
        generation.required("path", "generation", "Its number.").refuses(&[404]),
        confirm.refuses(&[403, 409]),
        on_terms(rollback.query("generation", which, number(0, u64::MAX))).refuses(&[403, 404, 409, 422]),
    ]
}

/// Of an order.
const REASON: &str = "Why, in 200 bytes at most; shown beside the order.";

fn text() -> Value {
    json!({ "type": "string" })
}

fn flag() -> Value {
    json!({ "type": "boolean" })
}

fn number(least: usize, most: impl Into<Value>) -> Value {
    json!({ "type": "integer", "minimum": least, "maximum": most.into() })
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

/// The document that describes all this.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| document(&table()).to_string());
