//! Implements `backend`, `health list` and `flow`, which show the state of backends, health checks
//! and flows, and change it.

use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use admin::FLOWS_AT_MOST;
use admin::view::{
    BackendChange, BackendRow, BackendState, CheckState, FlowPage, FlowRow, HealthView, MembershipChange,
    Override, Purged, TargetRow,
};
use clap::{Args, Subcommand, ValueEnum};
use config::parse_duration;
use config::words::count;
use serde::Serialize;
use serde_json::json;

use crate::client::{Common, Endpoint, Reach, escape, whole_seconds};
use crate::failure::{usage, verdict};
use crate::filter::{BACKEND_STATES, CHECK_STATES, FLOW_STATES, Of, in_states};
use crate::out::errln;
use crate::table::{ago, failed, lines, or_dash, table, word};

/// The backend that a command applies to.
#[derive(Debug, Args)]
pub struct Which {
    /// Name of the backend
    #[arg(value_name = "BACKEND")]
    name: String,
    /// Apply the command only to this leaf pool (default: all pools of the backend)
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// The reason and the duration of an override.
#[derive(Debug, Default, Args)]
pub struct Beside {
    /// Record this reason, which `status` and the log show
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// End the override after this time, such as `2h`; 1 s to 30 days in whole seconds (default: no
    /// end)
    #[arg(long = "for", value_name = "TIME", value_parser = whole_seconds)]
    lasts: Option<u64>,
}

/// The subcommands of `sluicegate backend`.
#[derive(Debug, Subcommand)]
pub enum BackendVerb {
    /// List backends with their states; the exit code is 1 if any of them is not serving
    List(BackendList),
    /// Stop new flows to a backend; existing flows continue
    Drain(Drain),
    /// End a drain
    Undrain(Which),
    /// Stop all traffic to a backend; its flows move to other backends
    Down {
        /// The backend.
        #[command(flatten)]
        which: Which,
        /// The reason and the end of the override.
        #[command(flatten)]
        beside: Beside,
    },
    /// Remove every override of a backend; health checks and the configuration apply again
    Up(Which),
    /// Override the weight of a backend, or restore the configured weight
    Weight {
        /// The backend.
        #[command(flatten)]
        which: Which,
        /// The reason and the end of the override.
        #[command(flatten)]
        beside: Beside,
        /// New weight, a number from 0, or `file` for the configured weight
        #[arg(value_name = "WEIGHT", value_parser = weight)]
        weight: FileOr,
    },
}

/// A weight, or the keyword `file` for the configured weight.
#[derive(Clone, Copy, Debug)]
pub struct FileOr(Option<u32>);

fn weight(text: &str) -> Result<FileOr, String> {
    match text {
        "file" => Ok(FileOr(None)),
        number => number
            .parse()
            .map(|weight| FileOr(Some(weight)))
            .map_err(|_| "expected a number or `file`".to_owned()),
    }
}

/// The arguments of `backend drain`. In this subcommand, `--wait` is not the response timeout, but
/// how long to wait until flows end.
#[derive(Debug, Args)]
pub struct Drain {
    /// Name of the backend
    #[arg(value_name = "BACKEND")]
    name: String,
    /// Drain only in this leaf pool (default: all pools of the backend)
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    #[command(flatten)]
    beside: Beside,
    /// Take the backend down after the drain; its remaining flows then move to other backends
    #[arg(long, value_name = "STATE")]
    then: Option<Then>,
    /// Time after which `--then down` applies, such as 10m; 1 s to 30 days in whole seconds
    /// (default: `cluster.drain_time`)
    #[arg(long, value_name = "TIME", value_parser = whole_seconds, requires = "then")]
    after: Option<u64>,
    /// Wait until the backend has no active flows, which are flows with a packet in the last 60 s,
    /// or until it is down; after TIME (such as 10m) exit with code 1 while the drain continues
    /// (default: no limit)
    #[arg(long, value_name = "TIME", value_parser = time, num_args = 0..=1)]
    wait: Option<Option<Duration>>,
    #[command(flatten)]
    endpoint: Endpoint,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The state that follows a drain.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Then {
    /// Stop all traffic to the backend.
    Down,
}

fn time(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "expected a whole number with ms, s, m or h, such as 10m".to_owned())
}

/// The subcommands of `sluicegate health`.
#[derive(Debug, Subcommand)]
pub enum HealthVerb {
    /// List health check targets; the exit code is 1 if one of them is not up
    List(HealthList),
}

/// The arguments of `backend list`.
#[derive(Debug, Args)]
pub struct BackendList {
    #[command(flatten)]
    of: Of,
    /// List only backends in this state; repeat the option for several states
    #[arg(long, value_name = "STATE", value_parser = BACKEND_STATES)]
    state: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// The arguments of `health list`.
#[derive(Debug, Args)]
pub struct HealthList {
    #[command(flatten)]
    of: Of,
    /// List only targets in this state; repeat the option for several states
    #[arg(long, value_name = "STATE", value_parser = CHECK_STATES)]
    state: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// The options that select flows.
#[derive(Debug, Args)]
#[group(id = "flows", multiple = false)]
pub struct WhichFlows {
    /// Select flows of this VIP
    #[arg(long, value_name = "VIP", group = "flows")]
    vip: Option<String>,
    /// Select flows of this backend
    #[arg(long, value_name = "BACKEND", group = "flows")]
    backend: Option<String>,
    /// Select all flows
    #[arg(long, group = "flows")]
    all: bool,
}

/// The subcommands of `sluicegate flow`.
#[derive(Debug, Subcommand)]
pub enum FlowVerb {
    /// List tracked flows (default: flows of all VIPs)
    List {
        /// The flows to list.
        #[command(flatten)]
        which: WhichFlows,
        /// List only flows to backends of this leaf pool
        #[arg(long, value_name = "POOL")]
        pool: Option<String>,
        /// List only flows in this state; repeat the option for several states
        #[arg(long, value_name = "STATE", value_parser = FLOW_STATES)]
        state: Vec<String>,
        /// List at most N flows, 1 to 10000
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: usize,
        /// The admin socket and the output format.
        #[command(flatten)]
        common: Common,
    },
    /// Delete flows from the connection tables; requires `--vip`, `--backend` or `--all`. The next
    /// packet of a deleted flow is handled as a new flow
    Purge {
        /// The flows to delete.
        #[command(flatten)]
        which: WhichFlows,
        /// The admin socket and the output format.
        #[command(flatten)]
        common: Common,
    },
}

/// Runs a subcommand of `backend`.
pub fn backend(verb: &BackendVerb) -> anyhow::Result<ExitCode> {
    match verb {
        BackendVerb::List(asked) => list_backends(asked),
        BackendVerb::Drain(asked) => drain(asked),
        BackendVerb::Undrain(which) => set_override(which, "undrain", &Beside::default(), &[], None),
        BackendVerb::Down { which, beside } => set_override(which, "down", beside, &[], None),
        BackendVerb::Up(which) => set_override(which, "up", &Beside::default(), &[], None),
        BackendVerb::Weight { which, beside, weight } => {
            set_override(which, "weight", beside, &[], Some(*weight))
        }
    }
}

fn drain(asked: &Drain) -> anyhow::Result<ExitCode> {
    let Drain { name, pool, beside, then, after, wait, endpoint, json } = asked;
    let reach = Reach { endpoint: endpoint.clone(), wait: None };
    let which = Which { name: name.clone(), pool: pool.clone(), common: Common { reach, json: *json } };
    let then = then.map(|Then::Down| "then=down".to_owned());
    let then = [then, after.map(|seconds| format!("after_seconds={seconds}"))];
    let then: Vec<String> = then.into_iter().flatten().collect();
    let result = set_override(&which, "drain", beside, &then, None)?;
    match wait {
        None => Ok(result),
        Some(time) => wait_for_flows(&which, time.map(|time| Instant::now() + time)),
    }
}

/// Waits until the backend has no active flows or is down. The exit code is 1 if active flows are
/// left at `end`.
fn wait_for_flows(which: &Which, end: Option<Instant>) -> anyhow::Result<ExitCode> {
    let (client, mut said, mut counted) = (which.common.client()?, None, None);
    loop {
        let rows: Vec<BackendRow> = client.get("/v1/backends")?;
        let meant = |row: &&BackendRow| {
            // A backend that was removed from the configuration has an empty pool name.
            row.name == which.name
                && which.pool.as_ref().is_none_or(|pool| row.pool == *pool || row.pool.is_empty())
        };
        let rows: Vec<&BackendRow> = rows.iter().filter(meant).collect();
        let left = remaining(&rows);
        if left.is_some_and(|left| left.active == 0) || rows.iter().all(|row| row.state == BackendState::Down)
        {
            return Ok(ExitCode::SUCCESS);
        }
        // If a busy packet thread does not report its flows in time, the previous count is kept.
        counted = left.or(counted);
        let now = counted.map_or_else(|| "number of flows unknown".to_owned(), |left| left.to_string());
        if end.is_some_and(|end| Instant::now() >= end) {
            errln!("{}: {now}, the drain continues", which.name);
            return Ok(ExitCode::FAILURE);
        }
        if said.as_ref() != Some(&now) {
            errln!("{}: {now}", which.name);
            said = Some(now);
        }
        std::thread::sleep(LOOK);
    }
}

/// The flows that a draining backend still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remaining {
    /// Flows with a packet in the last 60 s.
    active: u64,
    /// Other entries in the connection table.
    idle: u64,
}

impl fmt::Display for Remaining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = if self.idle == 1 { "entry" } else { "entries" };
        write!(f, "{} and {} idle {entries} left", count(self.active, "active flow"), self.idle)
    }
}

/// Sums the flows of `rows`. Returns `None` if the flows of one row were not counted.
fn remaining(rows: &[&BackendRow]) -> Option<Remaining> {
    let sum = |of: fn(&BackendRow) -> Option<u64>| rows.iter().map(|row| of(row)).sum::<Option<u64>>();
    let (all, active) = (sum(|row| row.flows)?, sum(|row| row.active_flows)?);
    Some(Remaining { active, idle: all.saturating_sub(active) })
}

/// The interval between two requests. The daemon counts flows once a second.
const LOOK: Duration = Duration::from_secs(1);

fn set_override(
    which: &Which,
    action: &str,
    beside: &Beside,
    more: &[String],
    weight: Option<FileOr>,
) -> anyhow::Result<ExitCode> {
    let about = [
        which.pool.as_ref().map(|pool| format!("pool={}", escape(pool))),
        beside.reason.as_ref().map(|reason| format!("reason={}", escape(reason))),
        beside.lasts.map(|seconds| format!("for_seconds={seconds}")),
    ];
    let about = about.into_iter().flatten().chain(more.iter().cloned()).collect::<Vec<_>>().join("&");
    let about = if about.is_empty() { about } else { format!("?{about}") };
    let path = format!("/v1/backends/{}/{action}{about}", escape(&which.name));
    let body = weight.map(|FileOr(weight)| json!({ "weight": weight }));
    let change: BackendChange = which.common.client()?.post(&path, &body)?;
    which.common.show(&change, changed)?;
    Ok(verdict(change.changed))
}

fn changed(change: &BackendChange) -> String {
    let headings = ["backend", "pool", "before", "now", ">weight before", ">weight now", "override"];
    let row = |row: &MembershipChange| {
        [
            change.backend.clone(),
            row.pool.clone(),
            word(&row.before),
            word(&row.after),
            row.weight_before.to_string(),
            row.weight_after.to_string(),
            says(row.overridden),
        ]
    };
    table(headings, change.memberships.iter().map(row)) + &lines("note: ", &change.notes)
}

fn says(overridden: Option<Override>) -> String {
    match overridden {
        Some(Override { state: Some(state), weight: None }) => word(&state),
        Some(Override { state: Some(state), weight: Some(weight) }) => {
            format!("{} weight {weight}", word(&state))
        }
        Some(Override { state: None, weight: Some(weight) }) => format!("weight {weight}"),
        _ => "-".to_owned(),
    }
}

fn list_backends(BackendList { of, state, common }: &BackendList) -> anyhow::Result<ExitCode> {
    let mut rows: Vec<BackendRow> = common.get("/v1/backends")?;
    of.backends(common, &mut rows)?;
    in_states(&mut rows, state, |row| row.state);
    let is_well = |row: &BackendRow| row.state == BackendState::Serving && row.less_for.is_empty();
    let all_well = rows.iter().all(is_well);
    let more = of.most.cut(&mut rows, is_well, "not serving");
    let headings = [
        "backend", "pool", "address", "state", "why", "override", ">weight", ">share", ">flows", ">active",
        ">packets",
    ];
    let row = |row: &BackendRow| {
        let share = row.shares.values().copied().fold(0.0, f64::max);
        [
            row.name.clone(),
            or_dash((!row.pool.is_empty()).then_some(&row.pool)),
            row.address.to_string(),
            state_by_vip(row),
            row.flush_error.as_ref().map_or_else(|| word(&row.why), |error| format!("flush failed: {error}")),
            says(row.overridden),
            format!("{}/{}", row.weight_effective, row.weight_configured),
            format!("{:.2}%", share * 100.0),
            or_dash(row.flows),
            or_dash(row.active_flows),
            row.packets.to_string(),
        ]
    };
    let list = Backends { backends: rows };
    common.show(&list, |list| table(headings, list.backends.iter().map(row)) + &more)?;
    Ok(verdict(all_well))
}

/// Wraps the list of backends in an object, because JSON output is always an object.
#[derive(Serialize)]
struct Backends {
    backends: Vec<BackendRow>,
}

/// Formats the state of a backend, for example `serving` or `serving, down for www IPv6 (+2)`.
fn state_by_vip(row: &BackendRow) -> String {
    let Some((first, more)) = row.less_for.split_first() else { return word(&row.state) };
    let more = if more.is_empty() { String::new() } else { format!(" (+{})", more.len()) };
    format!("{}, {} for {} {}{more}", word(&row.state), word(&first.state), first.vip, first.family)
}

/// Runs a subcommand of `health`.
pub fn health(HealthVerb::List(HealthList { of, state, common }): &HealthVerb) -> anyhow::Result<ExitCode> {
    let mut view: HealthView = common.get("/v1/health")?;
    of.targets(common, &mut view.targets)?;
    in_states(&mut view.targets, state, |row| row.state);
    let is_up = |row: &TargetRow| row.state == CheckState::Up;
    let is_well = view.own_fault.is_none() && view.targets.iter().all(is_up);
    let more = of.most.cut(&mut view.targets, is_up, "not up");
    common.show(&view, |view| {
        let fault = view.own_fault.as_slice();
        table(TARGET_HEADINGS, view.targets.iter().map(target_row))
            + &more
            + &lines("local failure, health states are frozen: ", fault)
    })?;
    Ok(verdict(is_well))
}

fn target_row(row: &TargetRow) -> [String; TARGET_HEADINGS.len()] {
    [
        row.backends.join(" "),
        // An exec check may have no port.
        if row.address.port() == 0 { row.address.ip().to_string() } else { row.address.to_string() },
        row.check.clone(),
        row.vip.map_or_else(|| word(&row.via), |vip| format!("vip {vip}")),
        word(&row.state),
        ago(row.since_seconds),
        or_dash(row.latency_us.map(|latency| format!("{latency}us"))),
        row.history.iter().map(|passed| if *passed { '+' } else { '-' }).collect(),
        failed(row.last_error.as_deref(), row.last_error_seconds),
    ]
}

/// Runs a subcommand of `flow`.
pub fn flow(verb: &FlowVerb) -> anyhow::Result<ExitCode> {
    match verb {
        FlowVerb::List { which, pool, state, limit, common } => {
            list_flows(which, pool.as_ref(), state, *limit, common)
        }
        FlowVerb::Purge { which, common } => {
            let filter = filter(which)
                .ok_or_else(|| usage("`flow purge` needs --vip VIP, --backend BACKEND or --all"))?;
            let purged: Purged = common.client()?.delete(&format!("/v1/flows?{filter}"))?;
            common.show(&purged, |purged| format!("{} deleted\n", count(purged.flows, "flow")))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn filter(which: &WhichFlows) -> Option<String> {
    let vip = which.vip.as_ref().map(|name| format!("vip={}", escape(name)));
    let backend = which.backend.as_ref().map(|name| format!("backend={}", escape(name)));
    vip.or(backend).or_else(|| which.all.then(|| "all=true".to_owned()))
}

fn list_flows(
    which: &WhichFlows,
    pool: Option<&String>,
    state: &[String],
    limit: usize,
    common: &Common,
) -> anyhow::Result<ExitCode> {
    let filter = filter(which).map(|filter| format!("&{filter}")).unwrap_or_default();
    // The API does not select flows by pool or state, so the selection is made here.
    let selects = pool.is_some() || !state.is_empty();
    let asked = if selects { FLOWS_AT_MOST } else { limit };
    let mut page: FlowPage = common.get(&format!("/v1/flows?limit={asked}{filter}"))?;
    let unseen = selects && page.more;
    page.flows.retain(|row| pool.is_none_or(|pool| row.pool.as_ref() == Some(pool)));
    in_states(&mut page.flows, state, |row| row.state);
    page.more |= page.flows.len() > limit;
    page.flows.truncate(limit);
    let row = |row: &FlowRow| {
        let probation = if row.on_probation { ", on probation" } else { "" };
        [
            row.thread.to_string(),
            row.tag.clone(),
            or_dash(row.service.as_deref()),
            or_dash(row.backend.as_deref()),
            or_dash(row.pool.as_deref()),
            word(&row.state) + probation,
            ago(row.idle_seconds),
        ]
    };
    common.show(&page, |page| {
        let headings = [">thread", "tag", "service", "backend", "pool", "state", ">idle"];
        let more = match (unseen, page.more) {
            (true, _) => {
                format!("only {FLOWS_AT_MOST} flows were searched, select flows by --vip or --backend\n")
            }
            (false, true) => "more flows exist, raise --limit to list them\n".to_owned(),
            (false, false) => String::new(),
        };
        table(headings, page.flows.iter().map(row)) + &more
    })?;
    Ok(ExitCode::SUCCESS)
}

const TARGET_HEADINGS: [&str; 9] =
    ["backends", "address", "check", "via", "state", ">since", ">latency", "last", "last error"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_flows_are_active_or_idle() {
        let shown = |active, idle| Remaining { active, idle }.to_string();
        assert_eq!(shown(1, 1), "1 active flow and 1 idle entry left");
        assert_eq!(shown(12, 0), "12 active flows and 0 idle entries left");
    }
}
