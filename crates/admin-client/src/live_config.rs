//! Implements `config get`, `put`, `reload`, `confirm`, `history` and `rollback`, which read and
//! replace the configuration of the running balancer.

use std::path::PathBuf;
use std::process::ExitCode;

use admin::view::{
    ConfigText, ConfigView, Confirmed, GenerationRow, GenerationView, HistoryView, ReloadReport, Status,
};
use anyhow::Context;
use clap::Args;

use crate::client::Common;
use crate::client::whole_seconds;
use crate::out::file_or_stdin;
use crate::status::waiting;
use crate::table::{ago, lines, or_dash, table, word};

/// The options of every subcommand that changes the configuration.
#[derive(Debug, Args)]
pub struct Terms {
    /// Roll back unless `sluicegate config confirm` is run within this time, such as `5m`; 1 s to
    /// 24 h in whole seconds. The load balancer runs the timer, so the rollback happens even if
    /// this machine becomes unreachable
    #[arg(long, value_name = "TIME", value_parser = whole_seconds)]
    confirm: Option<u64>,
    /// Apply the change even if more table entries move than `cluster.max_moved` allows, or if the
    /// hash key changes, which breaks existing flows
    #[arg(long)]
    force: bool,
}

impl Terms {
    /// Builds the request path with the options as query parameters.
    fn path(&self, path: &str, generation: Option<u64>) -> String {
        let generation = generation.map(|number| format!("generation={number}"));
        let confirm = self.confirm.map(|seconds| format!("confirm_seconds={seconds}"));
        let force = self.force.then(|| "force=true".to_owned());
        let parts: Vec<String> = [generation, confirm, force].into_iter().flatten().collect();
        if parts.is_empty() { path.to_owned() } else { format!("{path}?{}", parts.join("&")) }
    }
}

/// The arguments of `config put`.
#[derive(Debug, Args)]
pub struct Put {
    /// Read the new configuration from this file, or from standard input for `-`
    #[arg(value_parser = file_or_stdin)]
    file: PathBuf,
    /// Apply the change only if the current configuration has this entity tag (see `config get
    /// --json`); use `*` to accept any tag
    #[arg(long, value_name = "ETAG")]
    if_match: String,
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    common: Common,
}

/// The arguments of `config reload`.
#[derive(Debug, Args)]
pub struct Reload {
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    common: Common,
}

/// The arguments of `config history`.
#[derive(Debug, Args)]
pub struct History {
    /// Print the files of this generation (default: list all stored generations)
    #[arg(value_name = "GENERATION")]
    generation: Option<u64>,
    #[command(flatten)]
    common: Common,
}

/// The arguments of `config rollback`.
#[derive(Debug, Args)]
pub struct Rollback {
    /// Roll back to this generation of `config history` (default: the last confirmed generation if
    /// the current one is unconfirmed, else the previous generation)
    #[arg(value_name = "GENERATION")]
    generation: Option<u64>,
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    common: Common,
}

/// Prints the current configuration. A single file is printed unchanged. If there are several
/// files, each is preceded by a comment with its path.
pub fn get(common: &Common) -> anyhow::Result<ExitCode> {
    let view: ConfigView = common.get("/v1/config")?;
    common.show(&view, |view| texts(&view.files))?;
    Ok(ExitCode::SUCCESS)
}

fn texts(files: &[ConfigText]) -> String {
    match files {
        [only] => only.text.clone(),
        files => files.iter().map(|file| format!("# {}\n{}", file.path, file.text)).collect(),
    }
}

/// Replaces the configuration through the API.
pub fn put(put: &Put) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(&put.file).with_context(|| put.file.display().to_string())?;
    let tag = match put.if_match.as_str() {
        "*" => "*".to_owned(),
        tag => format!("\"{}\"", tag.trim_matches('"')),
    };
    let path = put.terms.path("/v1/config", None);
    say(&put.common, &put.common.client()?.put(&path, &tag, text)?)
}

/// Makes the daemon reload its configuration file.
pub fn reload(Reload { terms, common }: &Reload) -> anyhow::Result<ExitCode> {
    say(common, &common.client()?.reload(&terms.path("/v1/reload", None))?)
}

/// Rolls back to an earlier generation of the configuration.
pub fn rollback(Rollback { generation, terms, common }: &Rollback) -> anyhow::Result<ExitCode> {
    say(common, &common.client()?.reload(&terms.path("/v1/config/rollback", *generation))?)
}

/// Confirms the current configuration, which cancels a pending rollback.
pub fn confirm(common: &Common) -> anyhow::Result<ExitCode> {
    let confirmed: Confirmed = common.client()?.post("/v1/config/confirm", &())?;
    common.show(&confirmed, |confirmed| format!("generation {} confirmed\n", confirmed.generation))?;
    Ok(ExitCode::SUCCESS)
}

/// Lists the stored generations, or prints the files of one generation.
#[expect(clippy::cast_precision_loss, reason = "an `f64` is exact for Unix times in seconds")]
pub fn history(History { generation, common }: &History) -> anyhow::Result<ExitCode> {
    if let Some(number) = generation {
        let view: GenerationView = common.get(&format!("/v1/config/history/{number}"))?;
        common.show(&view, |view| texts(&view.files))?;
    } else {
        // The ages are computed with the clock of the load balancer, which may be a remote machine.
        let status: Status = common.get("/v1/status")?;
        let view: HistoryView = common.get("/v1/config/history")?;
        let now = status.started_unix_seconds as f64 + status.uptime_seconds;
        common.show(&view, |view| listed(&view.generations, now))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::cast_precision_loss, reason = "an `f64` is exact for Unix times in seconds")]
fn listed(generations: &[GenerationRow], now: f64) -> String {
    let row = |row: &GenerationRow| {
        let mark = if row.in_force { "*" } else { "" };
        let files: String = row.sha256.chars().take(12).collect();
        [
            format!("{}{mark}", row.generation),
            ago(now - row.unix_seconds as f64),
            word(&row.cause),
            or_dash(row.by.as_ref()),
            files,
            row.bytes.to_string(),
        ]
    };
    table(["generation", ">ago", "cause", "by", "files", ">bytes"], generations.iter().map(row))
}

fn say(common: &Common, report: &ReloadReport) -> anyhow::Result<ExitCode> {
    common.show(report, |report| {
        let generation = report.generation;
        let head = if report.changed.is_empty() {
            format!("nothing changed, generation {generation} stays in force\n")
        } else {
            format!("generation {generation} is in force (took {:.1} ms)\n", report.took_ms)
        };
        let waits: Vec<String> = report.confirmation.iter().map(waiting).collect();
        head + &lines("  ", &report.changed)
            + &lines("needs a restart: ", &report.needs_restart)
            + &lines("warning: ", &report.warnings)
            + &lines("", &waits)
    })?;
    Ok(ExitCode::SUCCESS)
}
