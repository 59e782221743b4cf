//! The routes: one table, from which the router is built and by which the OpenAPI document is tested.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{MethodRouter, delete, get, post, put};
use tokio::sync::{Semaphore, mpsc};

use super::command::{BackendAction, Command, MachineAction};
use super::view::{Refusal, RefusalKind};
use super::{capture, guard, handlers, refuse};

/// What the configuration says of the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// `admin.put`: whether a whole configuration may be put.
    pub put: bool,
}

/// What handlers share.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) rules: Rules,
    /// One permit for each large body that is being read.
    pub(super) large_bodies: Arc<Semaphore>,
}

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
    table().into_iter().map(|(method, path, _)| Route { method, path }).collect()
}

/// The API. `more` brings routes of its own, such as `/metrics`; it must have no fallback.
pub fn router(commands: mpsc::Sender<Command>, rules: Rules, more: Router) -> Router {
    let desk = Desk { commands, rules, large_bodies: Arc::new(Semaphore::new(LARGE_BODIES)) };
    let api =
        table().into_iter().fold(Router::new(), |router, (_, path, handler)| router.route(path, handler));
    api.with_state(desk.clone())
        .merge(more)
        .fallback(async || Refusal::new(RefusalKind::NotFound, "no such path: /openapi.json lists them"))
        .method_not_allowed_fallback(async || {
            refuse::bad(StatusCode::METHOD_NOT_ALLOWED, "not with this method: /openapi.json lists them")
        })
        // The guard has read the body within its own limits.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(desk, guard::guard))
}

fn table() -> Vec<(&'static str, &'static str, MethodRouter<Desk>)> {
    let plain = |route: MethodRouter<Desk>| route.route_layer(from_fn(guard::without_body));
    let machine = |action| plain(post(move |desk| handlers::machine(desk, action)));
    let order = |action| plain(post(move |desk, path, query| handlers::order(desk, path, query, action)));
    vec![
        ("get", "/v1/status", get(handlers::status)),
        ("get", "/v1/vips", get(handlers::vips)),
        ("get", "/v1/backends", get(handlers::backends)),
        ("post", "/v1/backends/{name}/drain", order(BackendAction::Drain)),
        ("post", "/v1/backends/{name}/undrain", order(BackendAction::Undrain)),
        ("post", "/v1/backends/{name}/down", order(BackendAction::Down)),
        ("post", "/v1/backends/{name}/up", order(BackendAction::Up)),
        ("post", "/v1/backends/{name}/weight", post(handlers::weight)),
        ("get", "/v1/health", get(handlers::health)),
        ("get", "/v1/bgp", get(handlers::bgp)),
        ("post", "/v1/machine/drain", machine(MachineAction::Drain)),
        ("post", "/v1/machine/undrain", machine(MachineAction::Undrain)),
        ("get", "/v1/flows", get(handlers::flows)),
        ("delete", "/v1/flows", plain(delete(handlers::purge))),
        ("get", "/v1/where", get(handlers::where_to)),
        ("post", "/v1/capture", plain(post(capture::capture))),
        ("delete", "/v1/capture", plain(delete(capture::end))),
        ("get", "/v1/config", get(handlers::config)),
        ("put", PUT_CONFIG, put(handlers::put_config)),
        ("post", "/v1/reload", plain(post(handlers::reload))),
        ("get", "/v1/counters", get(handlers::counters)),
        ("get", "/counters", get(handlers::counters)),
        ("get", "/openapi.json", get(handlers::openapi)),
    ]
}

/// The only route that takes a large body.
pub(super) const PUT_CONFIG: &str = "/v1/config";
/// How many large bodies are read at a time: together they bound the memory that clients can take.
const LARGE_BODIES: usize = 2;
