//! The table of routes, from which the router and the OpenAPI document are built.

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
    LogChange, LogLevel, MachineDrain, Purged, Refusal, RefusalKind, ReloadReport, Upgraded, VipAction,
    VipChange, WhereView,
};
use super::{guard, handlers, hot_keys, refuse};

/// A route in the OpenAPI document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The HTTP method in lower case.
    pub method: &'static str,
    /// The path, with parameter names in braces.
    pub path: &'static str,
}

/// Returns all API routes, except routes that the caller of [`router`] adds.
pub fn routes() -> Vec<Route> {
    table().iter().map(|operation| Route { method: operation.method, path: operation.path }).collect()
}

/// Returns the router of the API. `more` contains additional routes, such as `/metrics`, and must
/// not have a fallback handler.
pub fn router(commands: mpsc::Sender<Command>, rules: Rules, more: Router) -> Router {
    let state = AppState::new(commands, rules);
    let api = table().into_iter().fold(Router::new(), |router, one| router.route(one.path, one.handler));
    api.with_state(state.clone())
        .merge(more)
        .fallback(async || {
            Refusal::new(RefusalKind::NotFound, "unknown path, /openapi.json lists all routes")
        })
        .method_not_allowed_fallback(async || {
            refuse::bad(
                StatusCode::METHOD_NOT_ALLOWED,
                "method not allowed for this path, /openapi.json lists all routes",
            )
        })
        // The guard has already read the body within its own limits.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(state, guard::guard))
}

fn table() -> Vec<Operation> {
    let overrides = [backend_overrides(), vip_overrides(), machine_commands(), log_level_overrides()];
    let all = [reading(), events(), flows(), hot_keys(), captures(), configuration(), ways_back()]
        .into_iter()
        .chain(overrides);
    all.flatten().collect()
}

fn plain(route: MethodRouter<AppState>) -> MethodRouter<AppState> {
    route.route_layer(from_fn(guard::without_body))
}

/// Defines a `GET` route without parameters.
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
    let bgp = "Lists BGP peers, announced routes, and the reasons why VIPs are not announced.";
    let counters = |path| question(path, "Returns all counters.", "The counters.", Command::Stats);
    vec![
        question("/v1/status", "Returns the status of the load balancer.", "The status.", Command::Status),
        question("/v1/vips", "Lists all VIPs with their services.", "The VIPs.", Command::Vips),
        question(
            "/v1/backends",
            "Lists all pool members. A pool member is one backend in one leaf pool, which is a pool that lists the backend directly.",
            "The pool members.",
            Command::Backends,
        ),
        question("/v1/health", "Lists all health check targets.", "The targets.", Command::Health),
        question("/v1/bgp", bgp, "The BGP peers and routes.", Command::Bgp),
        counters("/v1/counters"),
        counters("/counters"),
        Operation::read::<Map<String, Value>>(
            "/openapi.json",
            "Returns the OpenAPI document of this API.",
            "The document in OpenAPI 3.1.",
            get(openapi),
        ),
    ]
}

fn events() -> Vec<Operation> {
    let kinds = "Returns only events of these kinds, separated by commas. The default is all kinds.";
    let list = Operation::read::<EventsView>(
        "/v1/events",
        "Lists recent events, oldest first. The last 1,000 events are stored.",
        "The matching events.",
        get(handlers::events),
    );
    vec![
        list.query("kind", kinds, text())
            .query("after", "Returns only events with a number greater than this.", number(0, u64::MAX))
            .query(
                "since_seconds",
                "Returns only events that are at most this many seconds old.",
                number(1, handlers::FOR_SECONDS),
            )
            .query(
                "limit",
                "The maximum number of events. If more events match, the most recent ones are returned. The default is 1000.",
                number(1, EVENTS_AT_MOST),
            ),
    ]
}

fn backend_overrides() -> Vec<Operation> {
    let change = |path, summary, handler| {
        let operation =
            Operation::json::<BackendChange>("post", path, summary, "The changed pool members.", handler);
        operation
            .query("pool", "The leaf pool in which the command applies. The default is all pools of the backend.", text())
            .query("reason", REASON, text())
            .query(
                "for_seconds",
                "The time in seconds after which the override ends. Without this parameter, the override does not expire.",
                number(1, handlers::FOR_SECONDS),
            )
            .refuses(&[403, 404, 409])
    };
    let operation = |path, summary, action| {
        let handler =
            move |state, name, about, peer| handlers::override_backend(state, name, about, peer, action);
        change(path, summary, plain(post(handler)))
    };
    vec![
        operation(
            "/v1/backends/{name}/drain",
            "Stops new flows to a backend. Existing flows continue.",
            BackendAction::Drain,
        )
        .query(
            "then",
            "With `down`, the backend goes down after the time `after_seconds`, and its remaining flows move to other backends.",
            json!({ "type": "string", "enum": ["down"] }),
        )
        .query(
            "after_seconds",
            "The time in seconds after which the backend goes down. The default is `cluster.drain_time`.",
            number(1, handlers::FOR_SECONDS),
        ),
        operation("/v1/backends/{name}/undrain", "Ends the drain of a backend.", BackendAction::Undrain),
        operation(
            "/v1/backends/{name}/down",
            "Stops all traffic to a backend. Existing flows move to other backends.",
            BackendAction::Down,
        ),
        operation(
            "/v1/backends/{name}/up",
            "Removes all overrides of a backend. Its state and weight then depend on the health checks and the configuration again.",
            BackendAction::Up,
        ),
        change("/v1/backends/{name}/weight", "Sets the weight of a backend.", post(handlers::weight))
            .takes(Content::json::<handlers::Weight>("The new weight."))
            .refuses(&[403, 404, 409, 422]),
    ]
}

fn vip_overrides() -> Vec<Operation> {
    let change = |path, summary, handler| {
        let change = Operation::json::<VipChange>("post", path, summary, "The changed VIPs.", handler);
        change.refuses(&[403, 404, 409])
    };
    let ends = || number(1, handlers::FOR_SECONDS);
    let undamped = "The time in seconds for which flap damping is suspended. The default is 60.";
    let announced = |operation: Operation| {
        operation.query("reason", REASON, text()).query("for_seconds", undamped, ends())
    };
    let announce = |state, name, about, peer| {
        handlers::override_vip(state, Some(name), about, peer, VipAction::Announce)
    };
    let announce_all =
        |state, about, peer| handlers::override_vip(state, None, about, peer, VipAction::Announce);
    let withdraw = |state, name, about, peer| {
        handlers::override_vip(state, Some(name), about, peer, VipAction::Withdraw)
    };
    let withdraw = change(
        "/v1/vips/{name}/withdraw",
        "Withdraws the routes of a VIP on this machine for a limited time. The machine keeps forwarding packets to the VIP.",
        plain(post(withdraw)),
    );
    vec![
        announced(change(
            "/v1/vips/{name}/announce",
            "Ends a withdrawal and the hold-down of a VIP, and suspends its flap damping for a limited time.",
            plain(post(announce)),
        )),
        announced(change(
            "/v1/vips/announce",
            "Ends the withdrawals and hold-downs of all VIPs, and suspends their flap damping for a limited time.",
            plain(post(announce_all)),
        )),
        withdraw.needed("reason", REASON, text()).needed(
            "for_seconds",
            "The time in seconds after which the withdrawal ends.",
            ends(),
        ),
    ]
}

fn machine_commands() -> Vec<Operation> {
    let operation = |path, summary, action| {
        let handler = plain(post(move |state| handlers::machine(state, action)));
        Operation::json::<MachineDrain>("post", path, summary, "The state of the drain.", handler)
            .refuses(&[403, 409])
    };
    let upgrade = Operation::json::<Upgraded>(
        "post",
        UPGRADE,
        "Starts a new process that takes over flows, overrides, health states and queues, and ends this process.",
        "The version and the process ID of the new process, and the duration of the upgrade.",
        plain(post(handlers::upgrade)),
    );
    let binary = "The absolute path of the new program. The default is the file from which this process was started. The parameter is allowed only on the Unix socket.";
    vec![
        upgrade.query("binary", binary, text()).refuses(&[403, 409]),
        operation(
            "/v1/machine/drain",
            "Drains this machine: withdraws its routes, and ends the process after traffic has stopped.",
            MachineAction::Drain,
        ),
        operation(
            "/v1/machine/undrain",
            "Cancels a drain of this machine while the process is still running.",
            MachineAction::Undrain,
        ),
    ]
}

fn log_level_overrides() -> Vec<Operation> {
    let path = "/v1/log/level";
    let level = json!({ "type": "string", "enum": LogLevel::ALL });
    let operation = Operation::json::<LogChange>(
        "post",
        path,
        "Sets the log level for a limited time. The override survives a reload, but not a restart.",
        "The levels before and after the change.",
        plain(post(handlers::log_level)),
    );
    let file = Operation::json::<LogChange>(
        "delete",
        path,
        "Restores the configured log level.",
        "The levels before and after the change.",
        plain(delete(handlers::file_log_level)),
    );
    let ends = number(1, handlers::FOR_SECONDS);
    vec![
        question(path, "Returns the current log level.", "The log level.", Command::Log),
        operation
            .needed("level", "The least severe level of the log lines that are written.", level)
            .needed(
                "for_seconds",
                "The time in seconds after which the configured level applies again.",
                ends,
            )
            .query("reason", REASON, text())
            .refuses(&[403]),
        file.refuses(&[403]),
    ]
}

fn flows() -> Vec<Operation> {
    let chosen = |operation: Operation| {
        let operation = operation.query("vip", "Selects only flows of this VIP.", text());
        let operation = operation.query("backend", "Selects only flows of this backend.", text());
        operation.query("all", "Selects all flows.", flag())
    };
    let list = Operation::read::<FlowPage>(
        "/v1/flows",
        "Lists tracked flows. Without the parameters `vip` and `backend`, all flows are listed.",
        "The flows, up to `limit`.",
        get(handlers::flows),
    );
    let purge = Operation::json::<Purged>(
        "delete",
        "/v1/flows",
        "Removes flows from the connection tables. Exactly one of `vip`, `backend` and `all` is required.",
        "The number of removed flows.",
        plain(delete(handlers::purge)),
    );
    vec![
        chosen(list)
            .query("limit", "The maximum number of flows. The default is 100.", number(1, FLOWS_AT_MOST))
            .refuses(&[404]),
        chosen(purge).refuses(&[403, 404]),
        flow_path(),
    ]
}

/// Defines the route that explains the decision for a flow.
fn flow_path() -> Operation {
    let where_to = Operation::read::<WhereView>(
        "/v1/where",
        "Returns the decision that each packet thread would make for a packet of this flow.",
        "One row for each packet thread.",
        get(handlers::where_to),
    );
    let protocol = "The protocol: tcp, udp, sctp, udp-lite, icmp or a number from 0 to 255. The ports are ignored for icmp.";
    where_to
        .required("query", "source", "The address and port of the client.")
        .required("query", "destination", "The address and port of the VIP.")
        .required("query", "protocol", protocol)
        .query("key", "The key in a request, if the service is keyed.", text())
        .refuses(&[404])
}

fn hot_keys() -> Vec<Operation> {
    let top = Operation::json::<HotKeysView>(
        "post",
        "/v1/kv/top",
        "Counts the requests for each key of keyed services for a few seconds, and returns the most requested keys with their backends.",
        "The keys, most requested first. The response is sent after the measurement has ended.",
        plain(post(hot_keys::top)),
    );
    vec![
        top.query("vip", "Counts only requests to this VIP. The default is all VIPs.", text())
            .query("limit", "The maximum number of keys. The default is 20.", number(1, HOT_KEYS_AT_MOST))
            .query(
                "seconds",
                "The duration of the measurement in seconds. The default is 2.",
                number(1, HOT_KEYS_SECONDS_AT_MOST),
            )
            .refuses(&[403, 404, 409]),
    ]
}

fn captures() -> Vec<Operation> {
    let file =
        "The capture file in pcapng format. The statistics at its end contain the number of lost packets.";
    let begin = Operation::new(
        "post",
        "/v1/capture",
        "Captures packets before and after processing. The capture ends when a limit is reached, when the client disconnects, or with a DELETE request.",
        Content::binary("application/x-pcapng", file),
        plain(post(capture::capture)),
    );
    let end = Operation::json::<CaptureEnd>(
        "delete",
        "/v1/capture",
        "Ends the active capture and completes its file.",
        "The number of captured packets.",
        plain(delete(capture::end)),
    );
    let sample =
        "The sampling rate N. Each packet thread captures one in N matching packets. The default is 1.";
    vec![
        begin
            .query("vip", "Captures only packets to this VIP.", text())
            .query("backend", "Captures only packets to this backend.", text())
            .query(
                "drop",
                "Captures only packets dropped for one of these reasons, separated by commas.",
                text(),
            )
            .query("new_flows", "Captures only packets whose flow was not in the connection table.", flag())
            .query("sample", sample, number(1, u32::MAX))
            .query(
                "snaplen",
                "The number of bytes to capture of each packet. The default is 256.",
                number(*SNAP_BYTES.start(), *SNAP_BYTES.end()),
            )
            .query("count", "The maximum number of captured packets.", number(1, u64::MAX))
            .query(
                "seconds",
                "The maximum duration in seconds. The default is 3600.",
                number(1, CAPTURE_SECONDS_AT_MOST),
            )
            .refuses(&[403, 404, 409]),
        end.refuses(&[403, 404]),
    ]
}

fn configuration() -> Vec<Operation> {
    let config = Operation::read::<ConfigView>(
        "/v1/config",
        "Returns the current configuration as text.",
        "The files of the configuration.",
        get(handlers::config),
    );
    let put = Operation::json::<ReloadReport>(
        "put",
        PUT_CONFIG,
        "Replaces the current configuration until the next reload. The configuration file on disk is not changed.",
        "The result of the change. The new configuration is active.",
        put(handlers::put_config),
    );
    let reload = Operation::json::<ReloadReport>(
        "post",
        RELOAD,
        "Reads the configuration file again.",
        "The result of the reload. If the configuration is unchanged, the generation keeps its number.",
        plain(post(handlers::reload)),
    );
    vec![
        config.with_header("ETag", "The value for the If-Match header of PUT /v1/config."),
        on_terms(put)
            .required("header", "If-Match", "The ETag of the configuration that was edited, or *.")
            .takes(Content::of("application/toml", "The configuration in TOML, up to 16 MiB."))
            .refuses(&[403, 409, 412, 422, 428]),
        on_terms(reload).refuses(&[403, 409, 422]),
    ]
}

fn on_terms(operation: Operation) -> Operation {
    let seconds = number(1, handlers::CONFIRM_SECONDS);
    operation
        .query(
            "confirm_seconds",
            "The time in seconds within which the change must be confirmed. Otherwise, the change is rolled back.",
            seconds,
        )
        .query(
            "force",
            "Accepts the change even if it moves more table entries to other backends than `cluster.max_moved` allows, or if the hash key changes, which breaks existing flows.",
            flag(),
        )
}

/// Defines the routes for stored generations, confirmations and rollbacks.
fn ways_back() -> Vec<Operation> {
    let generation = Operation::read::<GenerationView>(
        "/v1/config/history/{generation}",
        "Returns a stored generation with its configuration files.",
        "The generation.",
        get(handlers::generation),
    );
    let confirm = Operation::json::<Confirmed>(
        "post",
        CONFIRM,
        "Confirms the current generation, which was loaded with `confirm_seconds`. The generation is then permanent.",
        "The confirmed generation.",
        plain(post(handlers::confirm)),
    );
    let rollback = Operation::json::<ReloadReport>(
        "post",
        ROLLBACK,
        "Restores the configuration of an earlier generation. The configuration file on disk is not changed.",
        "The result of the rollback. If the configuration is unchanged, the generation keeps its number.",
        plain(post(handlers::rollback)),
    );
    let which = "The number of the generation to restore. The default is the last confirmed generation if the current generation is not confirmed, and otherwise the generation before the current one.";
    vec![
        question(
            "/v1/config/history",
            "Lists the generations since the start of the process. The last 20 are stored.",
            "The generations, oldest first.",
            Command::History,
        ),
        generation.required("path", "generation", "The number of the generation.").refuses(&[404]),
        confirm.refuses(&[403, 409]),
        on_terms(rollback.query("generation", which, number(0, u64::MAX))).refuses(&[403, 404, 409, 422]),
    ]
}

const REASON: &str = "The reason for the change, up to 200 bytes. The log and the status show the reason.";

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

/// The OpenAPI document, generated on first use.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| document(&table()).to_string());
