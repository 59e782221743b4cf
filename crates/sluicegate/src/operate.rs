//! `backend`, `vip list`, `health list`, `flow`: what serves, and an operator's orders.

use std::process::ExitCode;

use admin::view::{
    BackendChange, BackendRow, BackendState, CheckState, FlowPage, HealthView, Override, Purged, VipRow,
};
use clap::{Args, Subcommand};
use config::words::count;
use serde_json::json;

use crate::client::{Client, Reach, escape};
use crate::out::{errln, outln};
use crate::table::{Table, ago, or_dash, print_json, word};

/// Which balancer, and how to print.
#[derive(Debug, Args)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which backend.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The backend.
    #[arg(value_name = "BACKEND")]
    name: String,
    /// Only in this leaf pool. Default: all its memberships.
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// `sluicegate backend`.
#[derive(Debug, Subcommand)]
pub(crate) enum BackendVerb {
    /// Every membership with its state; 1 when one does not serve.
    List(Common),
    /// No new flows; those it has go on to their end.
    Drain(Which),
    /// Take back a drain.
    Undrain(Which),
    /// No packet: its flows go to others at once.
    Down(Which),
    /// Take back every override: health and file decide again.
    Up(Which),
    /// Another weight, or the file's again.
    Weight {
        #[command(flatten)]
        which: Which,
        /// A number, or `file`.
        #[arg(value_name = "WEIGHT", value_parser = weight)]
        weight: FileOr,
    },
}

/// A weight, or the file's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOr(Option<u32>);

fn weight(text: &str) -> Result<FileOr, String> {
    match text {
        "file" => Ok(FileOr(None)),
        number => number
            .parse()
            .map(|weight| FileOr(Some(weight)))
            .map_err(|_| format!("`{number}` is neither a number nor `file`")),
    }
}

/// `sluicegate vip`.
#[derive(Debug, Subcommand)]
pub(crate) enum VipVerb {
    /// Every service of every VIP; 1 when one is not ready.
    List(Common),
}

/// `sluicegate health`.
#[derive(Debug, Subcommand)]
pub(crate) enum HealthVerb {
    /// Every check target; 1 when one is not up.
    List(Common),
}

/// Which flows.
#[derive(Debug, Args)]
#[group(id = "flows", multiple = false)]
pub(crate) struct WhichFlows {
    /// Those of this VIP.
    #[arg(long, value_name = "VIP", group = "flows")]
    vip: Option<String>,
    /// Those of this backend.
    #[arg(long, value_name = "BACKEND", group = "flows")]
    backend: Option<String>,
    /// All.
    #[arg(long, group = "flows")]
    all: bool,
}

/// `sluicegate flow`.
#[derive(Debug, Subcommand)]
pub(crate) enum FlowVerb {
    /// Tracked flows; by default of all VIPs.
    List {
        #[command(flatten)]
        which: WhichFlows,
        /// At most so many, up to 10,000.
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: usize,
        #[command(flatten)]
        common: Common,
    },
    /// Forget flows: the next packet of each is a new flow's. Wants `--vip`, `--backend` or `--all`.
    Purge {
        #[command(flatten)]
        which: WhichFlows,
        #[command(flatten)]
        common: Common,
    },
}

/// Carries out a verb of `backend`.
pub(crate) fn backend(verb: &BackendVerb) -> anyhow::Result<ExitCode> {
    match verb {
        BackendVerb::List(common) => list_backends(common),
        BackendVerb::Drain(which) => order(which, "drain", None),
        BackendVerb::Undrain(which) => order(which, "undrain", None),
        BackendVerb::Down(which) => order(which, "down", None),
        BackendVerb::Up(which) => order(which, "up", None),
        BackendVerb::Weight { which, weight } => order(which, "weight", Some(*weight)),
    }
}

fn order(which: &Which, action: &str, weight: Option<FileOr>) -> anyhow::Result<ExitCode> {
    let pool = which.pool.as_ref().map(|pool| format!("?pool={}", escape(pool))).unwrap_or_default();
    let path = format!("/v1/backends/{}/{action}{pool}", escape(&which.name));
    let client = Client::new(&which.common.reach)?;
    let body = weight.map(|FileOr(weight)| json!({ "weight": weight }));
    let change: BackendChange = client.post(&path, &body)?;
    if which.common.json {
        print_json(&change)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table =
        Table::new(["backend", "pool", "before", "now", ">weight before", ">weight now", "override"]);
    for row in &change.memberships {
        table.row([
            change.backend.clone(),
            row.pool.clone(),
            word(&row.before),
            word(&row.after),
            row.weight_before.to_string(),
            row.weight_after.to_string(),
            says(row.overridden),
        ]);
    }
    table.print();
    for note in &change.notes {
        outln!("note: {}", crate::table::clean(note));
    }
    Ok(ExitCode::SUCCESS)
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

fn list_backends(common: &Common) -> anyhow::Result<ExitCode> {
    let rows: Vec<BackendRow> = Client::new(&common.reach)?.get("/v1/backends")?;
    if common.json {
        print_json(&rows)?;
    } else {
        let headings =
            ["backend", "pool", "address", "state", "why", "override", ">weight", ">share", ">packets"];
        let mut table = Table::new(headings);
        for row in &rows {
            let share = row.shares.values().copied().fold(0.0, f64::max);
            table.row([
                row.name.clone(),
                row.pool.clone(),
                row.address.to_string(),
                word(&row.state),
                word(&row.why),
                says(row.overridden),
                format!("{}/{}", row.weight_effective, row.weight_configured),
                format!("{:.2}%", share * 100.0),
                row.packets.to_string(),
            ]);
        }
        table.print();
    }
    Ok(finding(rows.iter().any(|row| row.state != BackendState::Serving)))
}

/// Carries out a verb of `vip`.
pub(crate) fn vip(VipVerb::List(common): &VipVerb) -> anyhow::Result<ExitCode> {
    let rows: Vec<VipRow> = Client::new(&common.reach)?.get("/v1/vips")?;
    if common.json {
        print_json(&rows)?;
    } else {
        let mut table =
            Table::new(["vip", "addresses", "service", "pool", "served by", "serving", "ready", ">packets"]);
        for (row, service) in
            rows.iter().flat_map(|row| row.services.iter().map(move |service| (row, service)))
        {
            table.row([
                row.name.clone(),
                row.addresses.join(" "),
                format!("{} {}", service.protocol, service.ports),
                service.pool.clone(),
                if service.redirected_to.is_empty() {
                    service.serving_pool.clone()
                } else {
                    format!("redirected to {}", service.redirected_to.join(", "))
                },
                format!("{} of {}", service.serving, service.total),
                if service.ready { "yes" } else { "no" }.to_owned(),
                service.packets.to_string(),
            ]);
        }
        table.print();
    }
    Ok(finding(rows.iter().any(|row| !row.ready)))
}

/// Carries out a verb of `health`.
pub(crate) fn health(HealthVerb::List(common): &HealthVerb) -> anyhow::Result<ExitCode> {
    let view: HealthView = Client::new(&common.reach)?.get("/v1/health")?;
    if common.json {
        print_json(&view)?;
    } else {
        let mut table = Table::new([
            "backends",
            "address",
            "check",
            "via",
            "state",
            ">since",
            ">latency",
            "last",
            "last error",
        ]);
        for row in &view.targets {
            let history: String = row.history.iter().map(|passed| if *passed { '+' } else { '-' }).collect();
            table.row([
                row.backends.join(" "),
                row.address.to_string(),
                row.check.clone(),
                row.vip.map_or_else(|| word(&row.via), |vip| format!("vip {vip}")),
                word(&row.state),
                ago(row.since_seconds),
                row.latency_us.map_or_else(|| "-".to_owned(), |latency| format!("{latency}us")),
                history,
                or_dash(row.last_error.as_deref()),
            ]);
        }
        table.print();
        if let Some(why) = &view.own_fault {
            outln!("verdicts are held for this machine's own fault: {}", crate::table::clean(why));
        }
    }
    Ok(finding(view.own_fault.is_some() || view.targets.iter().any(|row| row.state != CheckState::Up)))
}

/// Carries out a verb of `flow`.
pub(crate) fn flow(verb: &FlowVerb) -> anyhow::Result<ExitCode> {
    match verb {
        FlowVerb::List { which, limit, common } => list_flows(which, *limit, common),
        FlowVerb::Purge { which, common } => {
            let Some(filter) = filter(which) else {
                errln!("sluicegate: say which flows: --vip VIP, --backend BACKEND, or --all");
                return Ok(ExitCode::from(WRONG_USAGE));
            };
            let purged: Purged = Client::new(&common.reach)?.delete(&format!("/v1/flows?{filter}"))?;
            if common.json {
                print_json(&purged)?;
            } else {
                outln!("{} forgotten", count(purged.flows, "flow"));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn filter(which: &WhichFlows) -> Option<String> {
    let vip = which.vip.as_ref().map(|name| format!("vip={}", escape(name)));
    let backend = which.backend.as_ref().map(|name| format!("backend={}", escape(name)));
    vip.or(backend).or_else(|| which.all.then(|| "all=true".to_owned()))
}

fn list_flows(which: &WhichFlows, limit: usize, common: &Common) -> anyhow::Result<ExitCode> {
    let filter = filter(which).map(|filter| format!("&{filter}")).unwrap_or_default();
    let page: FlowPage = Client::new(&common.reach)?.get(&format!("/v1/flows?limit={limit}{filter}"))?;
    if common.json {
        print_json(&page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new([">thread", "tag", "service", "backend", "pool", "state", ">idle"]);
    for row in &page.flows {
        let probation = if row.on_probation { ", on probation" } else { "" };
        table.row([
            row.thread.to_string(),
            row.tag.clone(),
            or_dash(row.service.as_deref()),
            or_dash(row.backend.as_deref()),
            or_dash(row.pool.as_deref()),
            word(&row.state) + probation,
            ago(row.idle_seconds),
        ]);
    }
    table.print();
    if page.more {
        outln!("and more: raise --limit");
    }
    Ok(ExitCode::SUCCESS)
}

fn finding(found: bool) -> ExitCode {
    if found { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

const WRONG_USAGE: u8 = 2;
