//! Implements `vip announce` and `vip withdraw`, which override the announcements of VIPs.

use std::process::ExitCode;

use admin::view::{VipAction, VipChange, VipOverrideRow};
use clap::Args;

use crate::client::{Common, escape, whole_seconds};
use crate::routers::vips;
use crate::table::{ago, clean, lines};

/// The arguments of `vip announce`.
#[derive(Debug, Args)]
pub struct Announce {
    /// Name of the VIP
    #[arg(value_name = "VIP", required_unless_present = "all", conflicts_with = "all")]
    name: Option<String>,
    /// Announce all VIPs of this machine
    #[arg(long)]
    all: bool,
    /// Record this reason, which `status` and the log show
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Suspend flap damping for this time, such as `10m`; 1 s to 30 days in whole seconds
    #[arg(long = "for", value_name = "TIME", value_parser = whole_seconds, default_value = "1m")]
    lasts: u64,
    #[command(flatten)]
    common: Common,
}

/// The arguments of `vip withdraw`.
#[derive(Debug, Args)]
pub struct Withdraw {
    /// Name of the VIP
    #[arg(value_name = "VIP")]
    name: String,
    /// Record this reason, which `status` and the log show
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// End the withdrawal after this time, such as `2h`; 1 s to 30 days in whole seconds
    #[arg(long = "for", value_name = "TIME", value_parser = whole_seconds)]
    lasts: u64,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn announce(asked: &Announce) -> anyhow::Result<ExitCode> {
    let Announce { name, reason, lasts, common, .. } = asked;
    let which = name.as_ref().map(|name| format!("/{}", escape(name))).unwrap_or_default();
    let reason = reason.as_ref().map(|reason| format!("&reason={}", escape(reason))).unwrap_or_default();
    change(common, &format!("/v1/vips{which}/announce?for_seconds={lasts}{reason}"))
}

pub(crate) fn withdraw(Withdraw { name, reason, lasts, common }: &Withdraw) -> anyhow::Result<ExitCode> {
    let (name, reason) = (escape(name), escape(reason));
    change(common, &format!("/v1/vips/{name}/withdraw?for_seconds={lasts}&reason={reason}"))
}

fn change(common: &Common, path: &str) -> anyhow::Result<ExitCode> {
    let change: VipChange = common.client()?.post(path, &None::<()>)?;
    common.show(&change, |change| {
        let overrides: Vec<String> = change.overrides.iter().map(describe_override).collect();
        vips(&change.vips) + &lines("override: ", &overrides) + &lines("note: ", &change.notes)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Formats an override with its age, author, end and reason.
pub(crate) fn describe_override(row: &VipOverrideRow) -> String {
    let action = match row.action {
        VipAction::Announce => "announced without flap damping",
        VipAction::Withdraw => "withdrawn",
    };
    let reason = row.reason.as_ref().map(|reason| format!(", reason: {reason}")).unwrap_or_default();
    let [since, left] = [row.since_seconds, row.ends_in_seconds].map(ago);
    clean(&format!("VIP {}: {action}, set {since} ago by {}, ends in {left}{reason}", row.vip, row.by))
}
