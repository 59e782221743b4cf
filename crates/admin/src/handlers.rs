//! Request handlers. Each handler translates an HTTP request into a [`Command`], and the reply from
//! the run loop into JSON.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::oneshot;

use super::app_state::AppState;
use super::command::{
    ANSWER_WITHIN_SECONDS, Answer, BackendAction, Command, EVENTS_AT_MOST, EventQuery, FLOWS_AT_MOST,
    FlowQuery, LogLevelOverride, MachineAction, OverrideNote, ReloadTerms, ThenDown,
};
use super::guard::AuditRecord;
use super::refuse::{bad_request, plural};
use super::server::Peer;
use super::view::{
    BackendChange, Confirmed, EventKind, EventsView, FlowPage, GenerationView, LogChange, LogLevel,
    MachineDrain, Purged, Refusal, RefusalKind, ReloadReport, Upgraded, VipAction, VipChange, WhereView,
};

type Asked<T> = Result<Json<T>, Refusal>;
/// The response to an operator command, with the log entry for the command.
pub(super) type Done<T> = (Extension<AuditRecord>, Json<T>);

pub(super) fn done<T>(record: AuditRecord, answer: T) -> Done<T> {
    (Extension(record), Json(answer))
}

/// Handles a request without parameters.
pub(super) async fn plain<T>(state: State<AppState>, command: fn(Answer<T>) -> Command) -> Asked<T> {
    ask(&state, command).await.map(Json)
}

pub(super) async fn machine(
    state: State<AppState>,
    action: MachineAction,
) -> Result<Done<MachineDrain>, Refusal> {
    let drain = ask(&state, |answer| Command::Machine { action, answer }).await??;
    let words = match action {
        MachineAction::Drain => "drain this machine",
        MachineAction::Undrain => "undrain this machine",
    };
    Ok(done(AuditRecord::said(words), drain))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfUpgrade {
    binary: Option<String>,
}

/// A client on another machine cannot choose the program that replaces this process.
pub(super) async fn upgrade(
    state: State<AppState>,
    of: Result<Query<OfUpgrade>, QueryRejection>,
    peer: Option<Extension<Peer>>,
) -> Result<Done<Upgraded>, Refusal> {
    let Query(OfUpgrade { binary }) = query(of)?;
    if binary.is_some() && !matches!(peer.as_deref(), None | Some(Peer::Unix { .. })) {
        let words =
            "an upgrade to another program file is possible only through the Unix socket of this machine";
        return Err(Refusal::new(RefusalKind::Forbidden, words));
    }
    let upgraded = ask(&state, |answer| Command::Upgrade { binary, answer }).await??;
    let words = format!("upgrade to process {} of version {}", upgraded.pid, upgraded.version);
    Ok(done(AuditRecord::said(words), upgraded))
}

/// The conditions of a configuration change.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfReload {
    confirm_seconds: Option<u64>,
    #[serde(default)]
    force: bool,
}

impl OfReload {
    fn terms(&self, peer: Option<&Peer>) -> Result<ReloadTerms, Refusal> {
        if let Some(seconds) = self.confirm_seconds.filter(|seconds| !(1..=CONFIRM_SECONDS).contains(seconds))
        {
            return Err(out_of_range("confirm_seconds", seconds, CONFIRM_SECONDS));
        }
        let confirm = self.confirm_seconds.map(Duration::from_secs);
        Ok(ReloadTerms { by: who(peer), confirm, force: self.force })
    }
}

pub(super) async fn reload(
    state: State<AppState>,
    of: Result<Query<OfReload>, QueryRejection>,
    peer: Option<Extension<Peer>>,
) -> Result<Done<ReloadReport>, Refusal> {
    let terms = query(of)?.terms(peer.as_deref())?;
    let report = ask(&state, |answer| Command::Reload { terms, answer }).await??;
    Ok(done(AuditRecord::Logged, report))
}

pub(super) async fn confirm(state: State<AppState>) -> Result<Done<Confirmed>, Refusal> {
    let confirmed = ask(&state, Command::Confirm).await??;
    Ok(done(AuditRecord::said(format!("confirm generation {}", confirmed.generation)), confirmed))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfRollback {
    generation: Option<u64>,
    confirm_seconds: Option<u64>,
    #[serde(default)]
    force: bool,
}

pub(super) async fn rollback(
    state: State<AppState>,
    of: Result<Query<OfRollback>, QueryRejection>,
    peer: Option<Extension<Peer>>,
) -> Result<Done<ReloadReport>, Refusal> {
    let Query(OfRollback { generation, confirm_seconds, force }) = query(of)?;
    let terms = OfReload { confirm_seconds, force }.terms(peer.as_deref())?;
    let report = ask(&state, |answer| Command::Rollback { generation, terms, answer }).await??;
    Ok(done(AuditRecord::Logged, report))
}

pub(super) async fn generation(
    state: State<AppState>,
    generation: Result<Path<u64>, PathRejection>,
) -> Asked<GenerationView> {
    let Path(generation) = generation.map_err(|error| bad_request(error.body_text()))?;
    ask(&state, |answer| Command::Generation { generation, answer }).await?.map(Json)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichEvents {
    kind: Option<String>,
    #[serde(default)]
    after: u64,
    since_seconds: Option<u64>,
    limit: Option<usize>,
}

impl WhichEvents {
    fn query(&self) -> Result<EventQuery, Refusal> {
        let limit = self.limit.unwrap_or(EVENTS_AT_MOST);
        if !(1..=EVENTS_AT_MOST).contains(&limit) {
            return Err(out_of_range("limit", limit, EVENTS_AT_MOST));
        }
        if let Some(seconds) = self.since_seconds.filter(|seconds| !(1..=FOR_SECONDS).contains(seconds)) {
            return Err(out_of_range("since_seconds", seconds, FOR_SECONDS));
        }
        let names = self.kind.iter().flat_map(|names| names.split(','));
        let kind = |name| {
            let all = EventKind::ALL.map(EventKind::name).join(", ");
            EventKind::named(name)
                .ok_or_else(|| bad_request(format!("unknown event kind {name:?}, use one of {all}")))
        };
        let kinds = names.map(kind).collect::<Result<_, _>>()?;
        let since = self.since_seconds.map(Duration::from_secs);
        Ok(EventQuery { kinds, after: self.after, since, limit })
    }
}

pub(super) async fn events(
    state: State<AppState>,
    which: Result<Query<WhichEvents>, QueryRejection>,
) -> Asked<EventsView> {
    let query = query(which)?.0.query()?;
    ask(&state, |answer| Command::Events { query, answer }).await.map(Json)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct About {
    pool: Option<String>,
    reason: Option<String>,
    for_seconds: Option<u64>,
    then: Option<Then>,
    after_seconds: Option<u64>,
}

/// The state that follows a drain.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Then {
    Down,
}

impl About {
    fn note(&self, peer: Option<&Peer>, action: BackendAction) -> Result<OverrideNote, Refusal> {
        let lasts = self.for_seconds.map(|seconds| lasting("for_seconds", seconds)).transpose()?;
        let after = self.after_seconds.map(|seconds| lasting("after_seconds", seconds)).transpose()?;
        let then_down = match (self.then, after) {
            (Some(_), _) if action != BackendAction::Drain => {
                return Err(bad_request("`then` is only allowed for a drain"));
            }
            (Some(Then::Down), None) => Some(ThenDown::AfterDrainTime),
            (Some(Then::Down), Some(after)) => Some(ThenDown::After(after)),
            (None, Some(_)) => return Err(bad_request("`after_seconds` needs then=down")),
            (None, None) => None,
        };
        Ok(OverrideNote { by: who(peer), reason: because(self.reason.clone())?, lasts, then_down })
    }
}

/// Returns the client name that is written to the log.
fn who(peer: Option<&Peer>) -> String {
    peer.map_or_else(|| "?".to_owned(), Peer::to_string)
}

/// Checks the reason given by the operator, which is written to the log.
fn because(reason: Option<String>) -> Result<Option<String>, Refusal> {
    let is_wrong = |reason: &String| {
        reason.is_empty() || reason.len() > REASON_BYTES || reason.chars().any(char::is_control)
    };
    if reason.as_ref().is_some_and(is_wrong) {
        return Err(bad_request(format!(
            "invalid reason, use 1 to {REASON_BYTES} bytes without control characters"
        )));
    }
    Ok(reason)
}

/// Checks the duration of an override, which is the value of the parameter `name`.
fn lasting(name: &str, seconds: u64) -> Result<Duration, Refusal> {
    if (1..=FOR_SECONDS).contains(&seconds) {
        return Ok(Duration::from_secs(seconds));
    }
    Err(out_of_range(name, seconds, FOR_SECONDS))
}

pub(super) async fn override_backend(
    state: State<AppState>,
    name: Result<Path<String>, PathRejection>,
    about: Result<Query<About>, QueryRejection>,
    peer: Option<Extension<Peer>>,
    action: BackendAction,
) -> Result<Done<BackendChange>, Refusal> {
    let Path(name) = name.map_err(|error| bad_request(error.body_text()))?;
    let Query(about) = query(about)?;
    let note = about.note(peer.as_deref(), action)?;
    let words = in_words(&name, about.pool.as_deref(), action) + &for_how_long(&note);
    let (pool, reason) = (about.pool, note.reason.clone());
    let change = ask(&state, |answer| Command::Backend { name, pool, action, note, answer }).await??;
    Ok(done(AuditRecord::Said { words: with_effect(words, change.changed), reason }, change))
}

/// The parameters of a command for VIPs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AboutVip {
    reason: Option<String>,
    for_seconds: Option<u64>,
}

/// Withdraws the VIP `name` or announces it, or announces all VIPs if `name` is `None`. A
/// withdrawal needs a reason and a duration.
pub(super) async fn override_vip(
    state: State<AppState>,
    name: Option<Result<Path<String>, PathRejection>>,
    about: Result<Query<AboutVip>, QueryRejection>,
    peer: Option<Extension<Peer>>,
    action: VipAction,
) -> Result<Done<VipChange>, Refusal> {
    let name = name.transpose().map_err(|error| bad_request(error.body_text()))?.map(|Path(name)| name);
    let Query(AboutVip { reason, for_seconds }) = query(about)?;
    if action == VipAction::Withdraw && (reason.is_none() || for_seconds.is_none()) {
        return Err(bad_request("a withdrawal needs the parameters reason and for_seconds"));
    }
    let lasts = for_seconds.map(|seconds| lasting("for_seconds", seconds)).transpose()?;
    let note = OverrideNote { by: who(peer.as_deref()), reason: because(reason)?, lasts, then_down: None };
    let target = name.as_ref().map_or_else(|| "all VIPs".to_owned(), |name| format!("VIP {name}"));
    let words = match action {
        VipAction::Announce => format!("announce {target} without flap damping"),
        VipAction::Withdraw => format!("withdraw {target}"),
    };
    let (words, reason) = (words + &for_how_long(&note), note.reason.clone());
    let change = ask(&state, |answer| Command::Vip { name, action, note, answer }).await??;
    Ok(done(AuditRecord::Said { words, reason }, change))
}

fn for_how_long(note: &OverrideNote) -> String {
    let then = match note.then_down {
        None => String::new(),
        Some(ThenDown::AfterDrainTime) => ", then down".to_owned(),
        Some(ThenDown::After(after)) => format!(", then down after {} s", after.as_secs()),
    };
    then + &note.lasts.map(|lasts| format!(", for {} s", lasts.as_secs())).unwrap_or_default()
}

fn with_effect(words: String, changed: bool) -> String {
    if changed { words } else { words + " (no change)" }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfLog {
    level: LogLevel,
    for_seconds: u64,
    reason: Option<String>,
}

pub(super) async fn log_level(
    state: State<AppState>,
    of: Result<Query<OfLog>, QueryRejection>,
    peer: Option<Extension<Peer>>,
) -> Result<Done<LogChange>, Refusal> {
    let Query(OfLog { level, for_seconds, reason }) = query(of)?;
    let (lasts, reason) = (lasting("for_seconds", for_seconds)?, because(reason)?);
    let level_override = LogLevelOverride { level, lasts, by: who(peer.as_deref()), reason: reason.clone() };
    let change = ask(&state, |answer| Command::OverrideLog { command: Some(level_override), answer }).await?;
    let words = with_effect(format!("set log level {level}, for {for_seconds} s"), change.changed);
    Ok(done(AuditRecord::Said { words, reason }, change))
}

pub(super) async fn file_log_level(state: State<AppState>) -> Result<Done<LogChange>, Refusal> {
    let change = ask(&state, |answer| Command::OverrideLog { command: None, answer }).await?;
    let words = with_effect("reset the log level".to_owned(), change.changed);
    Ok(done(AuditRecord::said(words), change))
}

/// Describes a backend command for the log.
fn in_words(backend: &str, pool: Option<&str>, action: BackendAction) -> String {
    let target =
        pool.map_or_else(|| format!("backend {backend}"), |pool| format!("backend {backend} in pool {pool}"));
    match action {
        BackendAction::Drain => format!("drain {target}"),
        BackendAction::Undrain => format!("undrain {target}"),
        BackendAction::Down => format!("take {target} down"),
        BackendAction::Up => format!("remove all overrides of {target}"),
        BackendAction::Weight(Some(weight)) => format!("set weight {weight} for {target}"),
        BackendAction::Weight(None) => format!("reset the weight of {target}"),
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Weight {
    // The field `weight` is required. If the field were optional, an empty object would silently
    // restore the configured weight.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schemars(extend("maximum" = u32::MAX))]
    weight: Option<u32>,
}

pub(super) async fn weight(
    state: State<AppState>,
    name: Result<Path<String>, PathRejection>,
    about: Result<Query<About>, QueryRejection>,
    peer: Option<Extension<Peer>>,
    body: Bytes,
) -> Result<Done<BackendChange>, Refusal> {
    let Weight { weight } = serde_json::from_slice(&body).map_err(|error| {
        bad_request(format!("the body must be {{\"weight\": NUMBER}} or {{\"weight\": null}}, but {error}"))
    })?;
    override_backend(state, name, about, peer, BackendAction::Weight(weight)).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WhichFlows {
    vip: Option<String>,
    backend: Option<String>,
    #[serde(default)]
    all: bool,
    limit: Option<usize>,
}

impl WhichFlows {
    fn filter(self) -> Result<FlowQuery, Refusal> {
        match (self.vip, self.backend, self.all) {
            (None, None, true) => Ok(FlowQuery::All),
            (Some(vip), None, false) => Ok(FlowQuery::Vip(vip)),
            (None, Some(backend), false) => Ok(FlowQuery::Backend(backend)),
            _ => Err(bad_request("select flows with one of vip=NAME, backend=NAME or all=true")),
        }
    }
}

pub(super) async fn flows(
    state: State<AppState>,
    which: Result<Query<WhichFlows>, QueryRejection>,
) -> Asked<FlowPage> {
    let Query(mut which) = query(which)?;
    let limit = which.limit.unwrap_or(FLOWS_USUALLY);
    if !(1..=FLOWS_AT_MOST).contains(&limit) {
        return Err(out_of_range("limit", limit, FLOWS_AT_MOST));
    }
    // Listing flows changes no state, so the filter is optional.
    which.all |= which.vip.is_none() && which.backend.is_none();
    let filter = which.filter()?;
    ask(&state, |answer| Command::Flows { filter, limit, answer }).await?.map(Json)
}

pub(super) async fn purge(
    state: State<AppState>,
    which: Result<Query<WhichFlows>, QueryRejection>,
) -> Result<Done<Purged>, Refusal> {
    let Query(which) = query(which)?;
    if which.limit.is_some() {
        return Err(bad_request("`limit` is not supported when flows are purged"));
    }
    let filter = which.filter()?;
    let whose = match &filter {
        FlowQuery::All => "all flows".to_owned(),
        FlowQuery::Vip(name) => format!("the flows of VIP {name}"),
        FlowQuery::Backend(name) => format!("the flows on backend {name}"),
    };
    let purged = ask(&state, |answer| Command::PurgeFlows { filter, answer }).await??;
    Ok(done(AuditRecord::said(format!("purge {whose}: {}", plural(purged.flows, "flow"))), purged))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfFlow {
    source: SocketAddr,
    destination: SocketAddr,
    protocol: String,
    key: Option<String>,
}

pub(super) async fn where_to(
    state: State<AppState>,
    of: Result<Query<OfFlow>, QueryRejection>,
) -> Asked<WhereView> {
    let Query(OfFlow { source, destination, protocol, key }) = query(of)?;
    let protocol = match protocol.as_str() {
        "tcp" => 6,
        "udp" => 17,
        "sctp" => 132,
        "udp-lite" => 136,
        "icmp" if destination.is_ipv4() => 1,
        "icmp" => 58,
        number => number.parse().map_err(|_| {
            bad_request(format!(
                "unknown protocol {number:?}, use tcp, udp, sctp, udp-lite, icmp or a number from 0 to 255"
            ))
        })?,
    };
    if source.is_ipv4() != destination.is_ipv4() {
        return Err(bad_request(format!(
            "source {source} and destination {destination} must have the same address family"
        )));
    }
    ask(&state, |answer| Command::Where { source, destination, protocol, key, answer }).await?.map(Json)
}

pub(super) async fn config(state: State<AppState>) -> Result<Response, Refusal> {
    let view = ask(&state, Command::Config).await?;
    Ok(([(header::ETAG, format!("\"{}\"", view.etag))], Json(view)).into_response())
}

pub(super) async fn put_config(
    state: State<AppState>,
    of: Result<Query<OfReload>, QueryRejection>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Done<ReloadReport>, Refusal> {
    if !state.rules.put() {
        let message = "uploading a configuration is disabled, set admin.put = true to enable it";
        return Err(Refusal::new(RefusalKind::Forbidden, message));
    }
    let (terms, if_match) = (query(of)?.terms(peer.as_deref())?, read_if_match(&headers)?);
    let text = String::from_utf8(body.into())
        .map_err(|error| bad_request(format!("the configuration is not UTF-8 text: {error}")))?;
    let report = ask(&state, |answer| Command::PutConfig { text, if_match, terms, answer }).await??;
    Ok(done(AuditRecord::Logged, report))
}

/// Returns the entity tag of the `If-Match` header without its quotes, or `None` for `*`.
fn read_if_match(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let mut given = headers.get_all(header::IF_MATCH).iter();
    let Some(first) = given.next() else {
        let message = "the If-Match header is missing, send the ETag of GET /v1/config or *";
        return Err(Refusal::new(RefusalKind::Unconditional, message));
    };
    let wrong = || bad_request("invalid If-Match header, use one entity tag in quotes or *");
    let text = first.to_str().map_err(|_| wrong())?.trim();
    if given.next().is_some() {
        return Err(wrong());
    }
    if text == "*" {
        return Ok(None);
    }
    let tag = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    tag.filter(|tag| !tag.contains('"')).map(|tag| Some(tag.to_owned())).ok_or_else(wrong)
}

pub(super) fn out_of_range(name: &str, found: impl Display, most: impl Display) -> Refusal {
    bad_request(format!("{name}={found} is out of range, use 1 to {most}"))
}

pub(super) fn query<T>(read: Result<Query<T>, QueryRejection>) -> Result<Query<T>, Refusal> {
    read.map_err(|error| bad_request(error.body_text()))
}

/// Sends a command to the run loop and waits for the reply.
pub(super) async fn ask<T>(
    state: &AppState,
    command: impl FnOnce(Answer<T>) -> Command,
) -> Result<T, Refusal> {
    let unavailable = |message| Refusal::new(RefusalKind::Unavailable, message);
    let (answer, answered) = oneshot::channel();
    let asked = async {
        state.commands.send(command(answer)).await.ok()?;
        answered.await.ok()
    };
    match tokio::time::timeout(Duration::from_secs(ANSWER_WITHIN_SECONDS), asked).await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(unavailable("the load balancer is stopping, or does not support this command")),
        Err(_) => Err(unavailable("the load balancer did not reply in time")),
    }
}

const FLOWS_USUALLY: usize = 100;
/// The maximum length of a reason in bytes.
const REASON_BYTES: usize = 200;
/// The maximum time for a confirmation: 24 hours. After this time, the operator has probably
/// forgotten the change.
pub(super) const CONFIRM_SECONDS: u64 = 24 * 3_600;
/// The maximum duration of an override: 30 days. Changes that should last longer belong in the
/// configuration.
pub(super) const FOR_SECONDS: u64 = 30 * 24 * 3_600;
