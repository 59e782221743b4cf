//! Implements `bgp status`, which shows BGP peers and announcements, and `machine`, which drains or
//! upgrades this machine.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use admin::view::{
    AnnouncedVip, AnnouncementState, BgpPeerRow, BgpView, DrainStage, MachineDrain, RouteRow, SessionState,
    Status, Upgraded,
};
use anyhow::Context;
use clap::{Args, Subcommand};

use crate::client::{Client, Common, escape};
use crate::failure::{Failure, verdict};
use crate::filter::{ANNOUNCEMENT_STATES, Most, in_states};
use crate::out::outln;
use crate::table::{ago, failed, lines, or_dash, table, word};

/// The subcommands of `sluicegate bgp`.
#[derive(Debug, Subcommand)]
pub enum BgpVerb {
    /// Show BGP peers and announced VIPs, with the reason for each VIP and address family that is
    /// not announced; the exit code is 1 if a session or an announcement is missing
    Status(BgpStatus),
}

/// The arguments of `bgp status`.
#[derive(Debug, Args)]
pub struct BgpStatus {
    /// Show only this VIP
    #[arg(long, value_name = "VIP")]
    vip: Option<String>,
    /// Show only VIPs in this state; repeat the option for several states
    #[arg(long, value_name = "STATE", value_parser = ANNOUNCEMENT_STATES)]
    state: Vec<String>,
    #[command(flatten)]
    most: Most,
    #[command(flatten)]
    common: Common,
}

/// The subcommands of `sluicegate machine`.
#[derive(Debug, Subcommand)]
pub enum MachineVerb {
    /// Remove this machine from the cluster and stop the load balancer. The routes are first
    /// announced with the graceful shutdown community (RFC 8326), then withdrawn. The process exits
    /// after 5 s without packets, or after `cluster.drain_time`
    Drain(Drain),
    /// Cancel a drain while the process is still running
    Undrain(Common),
    /// Replace the running process without losing connections. The new process takes over flows,
    /// overrides, health states, path MTUs and the sockets, one queue at a time. If the new process
    /// does not become ready, the old process continues
    Upgrade(Upgrade),
}

/// The arguments of `machine upgrade`.
#[derive(Debug, Args)]
pub struct Upgrade {
    #[command(flatten)]
    common: Common,
    /// Start this program (default: the program file of the running process, which a package
    /// upgrade may have replaced)
    binary: Option<PathBuf>,
}

/// The arguments of `machine drain`.
#[derive(Debug, Args)]
pub struct Drain {
    #[command(flatten)]
    common: Common,
    /// Wait until the process has exited
    #[arg(long)]
    until_stopped: bool,
}

/// Runs a subcommand of `bgp`.
pub fn bgp(BgpVerb::Status(BgpStatus { vip, state, most, common }): &BgpVerb) -> anyhow::Result<ExitCode> {
    let mut view: BgpView = common.get("/v1/bgp")?;
    if let Some(vip) = vip {
        view.vips.retain(|row| row.vip == *vip);
        anyhow::ensure!(!view.vips.is_empty(), "no VIP {vip:?}, `sluicegate bgp status` shows all names");
    }
    in_states(&mut view.vips, state, |row| row.state);
    let is_announced =
        |state| matches!(state, AnnouncementState::Announced | AnnouncementState::NotConfigured);
    let is_well = view.peers.iter().all(|peer| peer.state == SessionState::Established)
        && view.vips.iter().all(|vip| is_announced(vip.state))
        && view.warnings.is_empty();
    let more = most.cut(&mut view.vips, |vip| is_announced(vip.state), "not announced");
    common.show(&view, |view| words(view) + &more)?;
    Ok(verdict(is_well))
}

fn words(view: &BgpView) -> String {
    let (Some(asn), Some(router_id)) = (view.asn, view.router_id) else {
        // If BGP could not start, a warning names the error.
        let why = if view.warnings.is_empty() {
            "off, because the configuration has no peers for this machine"
        } else {
            "not running"
        };
        return format!("BGP is {why}\n{}", lines("warning: ", &view.warnings));
    };
    let stage = match view.stage {
        DrainStage::Serving => String::new(),
        DrainStage::Leaving => ", draining: graceful shutdown announced".to_owned(),
        DrainStage::Left => ", draining: routes withdrawn".to_owned(),
    };
    format!(
        "AS {asn}, router id {router_id}{stage}\n\n{}\n{}{}",
        peers(&view.peers),
        vips(&view.vips),
        lines("warning: ", &view.warnings)
    )
}

fn peers(rows: &[BgpPeerRow]) -> String {
    let headings = [
        "peer",
        "address",
        ">asn",
        "state",
        ">since",
        "bfd",
        ">ipv4",
        ">ipv6",
        "not negotiated",
        "last error",
    ];
    let row = |row: &BgpPeerRow| {
        [
            row.name.clone(),
            row.address.to_string(),
            row.asn.to_string(),
            format!("{:?}", row.state),
            ago(row.since_seconds),
            or_dash(row.bfd.as_ref().map(|bfd| format!("{:?}", bfd.state))),
            row.announced_v4.to_string(),
            row.announced_v6.to_string(),
            or_dash((!row.refused.is_empty()).then(|| row.refused.join(", "))),
            failed(row.last_error.as_deref(), row.last_error_seconds),
        ]
    };
    table(headings, rows.iter().map(row))
}

pub(crate) fn vips(rows: &[AnnouncedVip]) -> String {
    let headings = ["vip", "state", "route", "to", ">med", "communities", "why not"];
    let row = |row: &AnnouncedVip, route: Option<&RouteRow>| {
        let backup = if row.backup { " (backup)" } else { "" };
        [
            row.vip.clone(),
            word(&row.state) + backup,
            or_dash(route.map(|route| &route.prefix)),
            route.map_or_else(|| some(&[]), |route| some(&route.peers)),
            or_dash(route.and_then(|route| route.med)),
            route.map_or_else(|| some(&[]), |route| some(&route.communities)),
            or_dash(row.why.as_deref()),
        ]
    };
    let all = rows.iter().flat_map(|vip| {
        let routes = vip.routes.iter().map(Some);
        routes.chain(vip.routes.is_empty().then_some(None)).map(move |route| row(vip, route))
    });
    table(headings, all)
}

fn some(words: &[String]) -> String {
    if words.is_empty() { "-".to_owned() } else { words.join(" ") }
}

/// Runs a subcommand of `machine`.
pub fn machine(verb: &MachineVerb) -> anyhow::Result<ExitCode> {
    let (common, action) = match verb {
        MachineVerb::Drain(drain) => (&drain.common, "drain"),
        MachineVerb::Undrain(common) => (common, "undrain"),
        MachineVerb::Upgrade(upgrade) => return self::upgrade(upgrade),
    };
    let client = common.client()?;
    let begun: MachineDrain = client.post(&format!("/v1/machine/{action}"), &None::<()>)?;
    common.show(&begun, |begun| sentence(begun) + "\n" + &lines("note: ", &begun.notes))?;
    if matches!(verb, MachineVerb::Drain(drain) if drain.until_stopped) {
        wait_for_the_end(&client)?;
        if !common.json {
            outln!("process exited");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn upgrade(Upgrade { common, binary }: &Upgrade) -> anyhow::Result<ExitCode> {
    let path = match binary {
        Some(binary) => {
            let whole = std::path::absolute(binary)?;
            let whole = whole.to_str().context("the path of the program is not UTF-8")?;
            format!("/v1/machine/upgrade?binary={}", escape(whole))
        }
        None => "/v1/machine/upgrade".to_owned(),
    };
    let upgraded: Upgraded = common.client()?.reload(&path)?;
    common.show(&upgraded, upgrade_sentence)?;
    Ok(ExitCode::SUCCESS)
}

fn upgrade_sentence(upgraded: &Upgraded) -> String {
    let Upgraded { machine, version, pid, took_ms, handed_over_ms, .. } = upgraded;
    let longest = handed_over_ms.iter().copied().fold(0.0, f64::max);
    format!(
        "{machine} upgraded to version {version} (pid {pid}) in {took_ms:.0} ms; each queue was without a socket for at most {longest:.0} ms\n"
    )
}

fn sentence(begun: &MachineDrain) -> String {
    let MachineDrain { machine, stage, notice_seconds, drain_seconds, .. } = begun;
    match stage {
        DrainStage::Serving => format!("{machine}: drain canceled, the machine serves again"),
        DrainStage::Leaving => format!(
            "{machine} is draining: routes are withdrawn within {notice_seconds:.0} s, and the process exits at most {drain_seconds:.0} s later"
        ),
        DrainStage::Left => {
            format!(
                "{machine} is draining: routes are withdrawn, and the process exits within {drain_seconds:.0} s"
            )
        }
    }
}

fn wait_for_the_end(client: &Client) -> anyhow::Result<()> {
    loop {
        match client.get::<Status>("/v1/status") {
            Ok(status) if !status.stopping => anyhow::bail!("the drain was canceled"),
            Ok(_) => sleep(LOOK_EVERY),
            Err(error) if matches!(error.downcast_ref(), Some(Failure::NoDaemon(_))) => return Ok(()),
            // A process that is about to exit may accept a connection and close it without a
            // response.
            Err(_) => sleep(LOOK_EVERY),
        }
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_what_is_announced_where_and_why_not() {
        let vip = |name: &str, state, why: Option<&str>| AnnouncedVip {
            vip: name.into(),
            family: None,
            state,
            why: why.map(Into::into),
            returns_in_seconds: None,
            since_seconds: None,
            by_family: false,
            withdrawals: 0,
            not_announced_seconds: 0.0,
            backup: false,
            routes: vec![],
        };
        let view = BgpView {
            asn: Some(65_101),
            router_id: Some([192, 0, 2, 1].into()),
            stage: DrainStage::Leaving,
            vips: vec![
                vip("www", AnnouncementState::Announced, None),
                vip(
                    "dns",
                    AnnouncementState::Withdrawn,
                    Some("service \"dns udp 53\" has 0 of 1 required backends"),
                ),
            ],
            ..BgpView::default()
        };
        let page = words(&view);
        assert!(
            page.starts_with("AS 65101, router id 192.0.2.1, draining: graceful shutdown announced"),
            "{page}"
        );
        assert!(
            page.contains("dns  withdrawn  -      -     -  -            service \"dns udp 53\" has 0 of"),
            "{page}"
        );
        assert!(words(&BgpView::default()).contains("no peers for this machine"));
        let failed = BgpView { warnings: vec!["bgp: cannot start".to_owned()], ..BgpView::default() };
        assert_eq!(words(&failed), "BGP is not running\nwarning: bgp: cannot start\n");
    }
}
