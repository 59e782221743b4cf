//! `config get`, `put`, `reload`, `confirm`, `history`, `rollback`: the configuration of the running balancer, and the way back.

use std::path::PathBuf;
use std::process::ExitCode;

use admin::view::{
    ConfigText, ConfigView, Confirmed, GenerationRow, GenerationView, HistoryView, ReloadReport,
};
use anyhow::Context;
use clap::Args;

use crate::client::Common;
use crate::operate::whole_seconds;
use crate::status::waiting;
use crate::table::{ago, lines, or_dash, table, word};

/// On what terms another configuration comes into force.
#[derive(Debug, Args)]
pub struct Terms {
    /// Go back to the generation before unless `sluicegate config confirm` comes within this time, such as `5m`: up to 24h. The
    /// balancer counts, so that it holds also when the way to this machine is gone.
    #[arg(long, value_name = "TIME", value_parser = whole_seconds)]
    confirm: Option<u64>,
    /// However many slots move: past `cluster.max_moved`.
    #[arg(long)]
    force: bool,
}

impl Terms {
    /// As the API takes them.
    fn path(&self, path: &str, generation: Option<u64>) -> String {
        let generation = generation.map(|number| format!("generation={number}"));
        let confirm = self.confirm.map(|seconds| format!("confirm_seconds={seconds}"));
        let force = self.force.then(|| "force=true".to_owned());
        let parts: Vec<String> = [generation, confirm, force].into_iter().flatten().collect();
        if parts.is_empty() { path.to_owned() } else { format!("{path}?{}", parts.join("&")) }
    }
}

/// What to put where.
#[derive(Debug, Args)]
pub struct Put {
    /// The new configuration, one file whole.
    file: PathBuf,
    /// The entity tag that the change started from (`config get --json`), or `*` for whatever is in force.
    #[arg(long, value_name = "ETAG")]
    if_match: String,
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    common: Common,
}

/// How the file is read again.
#[derive(Debug, Args)]
pub struct Reload {
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    common: Common,
}

/// Which generations.
#[derive(Debug, Args)]
pub struct History {
    /// Print this one's texts. Default: list all that are kept.
    #[arg(value_name = "GENERATION")]
    generation: Option<u64>,
    #[command(flatten)]
    common: Common,
}

/// Which generation to go back to.
#[derive(Debug, Args)]
pub struct Rollback {
    /// Its number, as `config history` lists it. Default: the last that was confirmed while one is on trial, else the one before that
    /// in force.
    #[arg(value_name = "GENERATION")]
    generation: Option<u64>,
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    common: Common,
}

/// Prints what is in force: the text of one file as it is, of several each under its path.
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

/// Takes a configuration in the file's place.
pub fn put(put: &Put) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(&put.file).with_context(|| put.file.display().to_string())?;
    let tag = match put.if_match.as_str() {
        "*" => "*".to_owned(),
        tag => format!("\"{}\"", tag.trim_matches('"')),
    };
    let path = put.terms.path("/v1/config", None);
    say(&put.common, &put.common.client()?.put(&path, &tag, text)?)
}

/// Has the file read again.
pub fn reload(Reload { terms, common }: &Reload) -> anyhow::Result<ExitCode> {
    say(common, &common.client()?.reload(&terms.path("/v1/reload", None))?)
}

/// Goes back to what was in force before.
pub fn rollback(Rollback { generation, terms, common }: &Rollback) -> anyhow::Result<ExitCode> {
    say(common, &common.client()?.reload(&terms.path("/v1/config/rollback", *generation))?)
}

/// Has what is in force stay.
pub fn confirm(common: &Common) -> anyhow::Result<ExitCode> {
    let confirmed: Confirmed = common.client()?.post("/v1/config/confirm", &())?;
    common.show(&confirmed, |confirmed| {
        format!("generation {} is confirmed, and stays\n", confirmed.generation)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the last generations, or the texts of one.
pub fn history(History { generation, common }: &History) -> anyhow::Result<ExitCode> {
    if let Some(number) = generation {
        let view: GenerationView = common.get(&format!("/v1/config/history/{number}"))?;
        common.show(&view, |view| texts(&view.files))?;
    } else {
        let view: HistoryView = common.get("/v1/config/history")?;
        common.show(&view, |view| listed(&view.generations))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn listed(generations: &[GenerationRow]) -> String {
    let row = |row: &GenerationRow| {
        let mark = if row.in_force { "*" } else { "" };
        let files: String = row.sha256.chars().take(12).collect();
        [
            format!("{}{mark}", row.generation),
            ago(since(row.unix_seconds)),
            word(&row.cause),
            or_dash(row.by.as_ref()),
            files,
            row.bytes.to_string(),
        ]
    };
    table(["generation", ">ago", "cause", "by", "files", ">bytes"], generations.iter().map(row))
}

/// By this machine's clock, as the balancer's is: they are on one machine.
#[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are exact")]
fn since(unix_seconds: u64) -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    now.as_secs_f64() - unix_seconds as f64
}

fn say(common: &Common, report: &ReloadReport) -> anyhow::Result<ExitCode> {
    common.show(report, |report| {
        let generation = report.generation;
        let head = if report.changed.is_empty() {
            format!("nothing changed: generation {generation} stays in force\n")
        } else {
            format!("generation {generation} is in force, after {:.1} ms\n", report.took_ms)
        };
        let waits: Vec<String> = report.confirmation.iter().map(waiting).collect();
        head + &lines("  ", &report.changed)
            + &lines("waits for a restart: ", &report.needs_restart)
            + &lines("warning: ", &report.warnings)
            + &lines("", &waits)
    })?;
    Ok(ExitCode::SUCCESS)
}
