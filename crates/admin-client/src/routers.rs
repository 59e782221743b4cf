//! `bgp status` and `machine`: what is announced to routers, and a machine's drain.

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
use crate::out::outln;
use crate::table::{ago, failed, lines, or_dash, table, word};

/// `sluicegate bgp`.
#[derive(Debug, Subcommand)]
pub enum BgpVerb {
    /// Peers, their sessions, and what is announced where and why not; 1 when a session or an announcement is missing.
    Status(Common),
}

/// `sluicegate machine`.
#[derive(Debug, Subcommand)]
pub enum MachineVerb {
    /// Take this machine out: its routes are announced as about to go, then withdrawn; the balancer forwards on
    /// until traffic has gone (5 s without a packet) or `cluster.drain_time` has passed, and ends.
    Drain(Drain),
    /// Take a drain back, as long as the balancer has not ended.
    Undrain(Common),
    /// Have a new process take over, without losing a connection: flows, orders, verdicts, learned path MTUs and, queue by queue,
    /// the packets; then the old process ends. One that does not become ready leaves everything as it was.
    Upgrade(Upgrade),
}

/// What to run.
#[derive(Debug, Args)]
pub struct Upgrade {
    #[command(flatten)]
    common: Common,
    /// The new program. Default: the file that the balancer was started from, which a package may have replaced.
    binary: Option<PathBuf>,
}

/// How to drain.
#[derive(Debug, Args)]
pub struct Drain {
    #[command(flatten)]
    common: Common,
    /// Return when the balancer has ended, and not at once.
    #[arg(long)]
    until_stopped: bool,
}

/// Carries out a verb of `bgp`.
pub fn bgp(BgpVerb::Status(common): &BgpVerb) -> anyhow::Result<ExitCode> {
    let view: BgpView = common.get("/v1/bgp")?;
    common.show(&view, words)?;
    let is_announced =
        |state| matches!(state, AnnouncementState::Announced | AnnouncementState::NotConfigured);
    Ok(verdict(
        view.peers.iter().all(|peer| peer.state == SessionState::Established)
            && view.vips.iter().all(|vip| is_announced(vip.state))
            && view.warnings.is_empty(),
    ))
}

fn words(view: &BgpView) -> String {
    let (Some(asn), Some(router_id)) = (view.asn, view.router_id) else {
        return "nothing is announced: the file has no peers for this machine\n".to_owned();
    };
    let stage = match view.stage {
        DrainStage::Serving => String::new(),
        DrainStage::Leaving => ", draining: routes are announced as about to go".to_owned(),
        DrainStage::Left => ", draining: routes are withdrawn".to_owned(),
    };
    format!(
        "AS {asn}, router id {router_id}{stage}\n\n{}\n{}{}",
        peers(&view.peers),
        vips(&view.vips),
        lines("warning: ", &view.warnings)
    )
}

fn peers(rows: &[BgpPeerRow]) -> String {
    let headings = ["peer", "address", ">asn", "state", ">since", "bfd", ">ipv4", ">ipv6", "last error"];
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
            failed(row.last_error.as_deref(), row.last_error_seconds),
        ]
    };
    table(headings, rows.iter().map(row))
}

fn vips(rows: &[AnnouncedVip]) -> String {
    let headings = ["vip", "state", "route", "to", ">med", "communities", "why not"];
    let row = |row: &AnnouncedVip, route: Option<&RouteRow>| {
        let anchor = if row.anchor { " (anchor)" } else { "" };
        [
            row.vip.clone(),
            word(&row.state) + anchor,
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

/// Carries out a verb of `machine`.
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
            outln!("ended");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn upgrade(Upgrade { common, binary }: &Upgrade) -> anyhow::Result<ExitCode> {
    let path = match binary {
        Some(binary) => {
            let whole = std::path::absolute(binary)?;
            let whole = whole.to_str().context("the path of the program is not in UTF-8")?;
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
        "{machine} runs version {version} as process {pid}: it took {took_ms:.0} ms, and no queue was without a socket for more than {longest:.0} ms\n"
    )
}

fn sentence(begun: &MachineDrain) -> String {
    let MachineDrain { machine, stage, notice_seconds, drain_seconds, .. } = begun;
    match stage {
        DrainStage::Serving => format!("{machine} serves again"),
        DrainStage::Leaving => format!(
            "{machine} drains: routes are withdrawn within {notice_seconds:.0} s, and it ends {drain_seconds:.0} s later at most"
        ),
        DrainStage::Left => {
            format!("{machine} drains: routes are withdrawn, and it ends within {drain_seconds:.0} s")
        }
    }
}

fn wait_for_the_end(client: &Client) -> anyhow::Result<()> {
    loop {
        match client.get::<Status>("/v1/status") {
            Ok(status) if !status.stopping => anyhow::bail!("the drain was taken back"),
            Ok(_) => sleep(LOOK_EVERY),
            Err(error) if matches!(error.downcast_ref(), Some(Failure::NoDaemon(_))) => return Ok(()),
            // A balancer that is about to end answers nothing any more.
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
            state,
            why: why.map(Into::into),
            returns_in_seconds: None,
            since_seconds: None,
            withdrawals: 0,
            anchor: false,
            routes: vec![],
        };
        let view = BgpView {
            asn: Some(65_101),
            router_id: Some([192, 0, 2, 1].into()),
            stage: DrainStage::Leaving,
            vips: vec![
                vip("www", AnnouncementState::Announced, None),
                vip("dns", AnnouncementState::Away, Some("dns udp 53 has 0 of the 1 backends that it needs")),
            ],
            ..BgpView::default()
        };
        let page = words(&view);
        assert!(
            page.starts_with("AS 65101, router id 192.0.2.1, draining: routes are announced as about"),
            "{page}"
        );
        assert!(page.contains("dns  away       -      -     -  -            dns udp 53 has 0 of"), "{page}");
        assert!(words(&BgpView::default()).contains("no peers for this machine"));
    }
}
