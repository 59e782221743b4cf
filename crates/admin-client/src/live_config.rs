//! `config get`, `config put`, `config reload`: the configuration of the running balancer.

use std::path::PathBuf;
use std::process::ExitCode;

use admin::view::{ConfigView, ReloadReport};
use anyhow::Context;
use clap::Args;

use crate::client::Common;
use crate::table::lines;

/// What to put where.
#[derive(Debug, Args)]
pub struct Put {
    /// The new configuration, one file whole.
    file: PathBuf,
    /// The entity tag that the change started from (`config get --json`), or `*` for whatever is in force.
    #[arg(long, value_name = "ETAG")]
    if_match: String,
    #[command(flatten)]
    common: Common,
}

/// Prints what is in force: the text of one file as it is, of several each under its path.
pub fn get(common: &Common) -> anyhow::Result<ExitCode> {
    let view: ConfigView = common.get("/v1/config")?;
    common.show(&view, |view| match view.files.as_slice() {
        [only] => only.text.clone(),
        files => files.iter().map(|file| format!("# {}\n{}", file.path, file.text)).collect(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Takes a configuration in the file's place.
pub fn put(put: &Put) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(&put.file).with_context(|| put.file.display().to_string())?;
    let tag = match put.if_match.as_str() {
        "*" => "*".to_owned(),
        tag => format!("\"{}\"", tag.trim_matches('"')),
    };
    say(&put.common, &put.common.client()?.put("/v1/config", &tag, text)?)
}

/// Has the file read again.
pub fn reload(common: &Common) -> anyhow::Result<ExitCode> {
    say(common, &common.client()?.reload()?)
}

fn say(common: &Common, report: &ReloadReport) -> anyhow::Result<ExitCode> {
    common.show(report, |report| {
        let generation = report.generation;
        let head = if report.changed.is_empty() {
            format!("nothing changed: generation {generation} stays in force\n")
        } else {
            format!("generation {generation} is in force, after {:.1} ms\n", report.took_ms)
        };
        head + &lines("  ", &report.changed)
            + &lines("waits for a restart: ", &report.needs_restart)
            + &lines("warning: ", &report.warnings)
    })?;
    Ok(ExitCode::SUCCESS)
}
