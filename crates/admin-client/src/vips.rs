//! Implements `vip`, which shows the state of VIPs and changes their announcements.

use std::collections::BTreeSet;
use std::process::ExitCode;

use admin::view::{ServiceRow, VipRow};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::client::Common;
use crate::failure::verdict;
use crate::filter::Of;
use crate::table::{lines, or_dash, table};
use crate::vip_overrides::{self, Announce, Withdraw};

/// The subcommands of `sluicegate vip`.
#[derive(Debug, Subcommand)]
pub enum VipVerb {
    /// List VIPs with their services; the exit code is 1 if one of them is not ready
    List(VipList),
    /// End a withdrawal and the hold-down of a VIP, and suspend its flap damping
    Announce(Announce),
    /// Withdraw the routes of a VIP on this machine for a limited time; the machine keeps
    /// forwarding packets
    Withdraw(Withdraw),
}

/// The arguments of `vip list`.
#[derive(Debug, Args)]
pub struct VipList {
    #[command(flatten)]
    of: Of,
    /// List only VIPs in this state
    #[arg(long, value_name = "STATE", value_parser = ["ready", "not-ready"])]
    state: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Wraps the list of VIPs in an object, because JSON output is always an object.
#[derive(Serialize)]
struct Vips {
    vips: Vec<VipRow>,
}

/// Runs a subcommand of `vip`.
pub fn vip(verb: &VipVerb) -> anyhow::Result<ExitCode> {
    match verb {
        VipVerb::List(asked) => list_vips(asked),
        VipVerb::Announce(asked) => vip_overrides::announce(asked),
        VipVerb::Withdraw(asked) => vip_overrides::withdraw(asked),
    }
}

fn list_vips(VipList { of, state, common }: &VipList) -> anyhow::Result<ExitCode> {
    let mut rows: Vec<VipRow> = common.get("/v1/vips")?;
    of.vips(&mut rows)?;
    rows.retain(|vip| state.as_ref().is_none_or(|state| vip.ready == (state == "ready")));
    let all_ready = rows.iter().all(|vip| vip.ready);
    let why: BTreeSet<String> = rows.iter().flat_map(|vip| vip.not_ready.clone()).collect();
    let more = of.most.cut(&mut rows, |vip| vip.ready, "not ready");
    let headings = [
        "vip",
        "addresses",
        "service",
        "pool",
        "served by",
        "serving",
        "announced to",
        "ready",
        ">flows",
        ">packets",
    ];
    let row = |vip: &VipRow, service: &ServiceRow| {
        [
            vip.name.clone(),
            vip.addresses.join(" "),
            format!("{} {}", service.protocol, service.ports),
            service.pool.clone(),
            if service.redirected_to.is_empty() {
                service.serving_pool.clone()
            } else {
                format!("redirected to {}", service.redirected_to.join(", "))
            },
            serving(service),
            or_dash(vip.announced_to.as_ref().filter(|peers| !peers.is_empty()).map(|peers| peers.join(" "))),
            if vip.ready { "yes" } else { "no" }.to_owned(),
            or_dash(service.flows),
            service.packets.to_string(),
        ]
    };
    let list = Vips { vips: rows };
    common.show(&list, |list| {
        let services =
            |vip: &'_ VipRow| vip.services.iter().map(|service| row(vip, service)).collect::<Vec<_>>();
        table(headings, list.vips.iter().flat_map(services)) + &more + &lines("", &Vec::from_iter(why))
    })?;
    Ok(verdict(all_ready))
}

/// Formats the number of serving backends, for example `2 of 3` or `2 of 3 IPv4, 0 of 3 IPv6`.
fn serving(service: &ServiceRow) -> String {
    let by_family = service.families.iter().filter_map(|row| {
        let family = row.family?;
        Some(format!("{} of {} {family}", row.serving, row.total))
    });
    let by_family = by_family.collect::<Vec<_>>().join(", ");
    if by_family.is_empty() { format!("{} of {}", service.serving, service.total) } else { by_family }
}
