//! `config get`, `config put`, `config reload`: the configuration of the running balancer.

use std::path::PathBuf;
use std::process::ExitCode;

use admin::view::{ConfigView, ReloadReport};
use anyhow::Context;
use clap::Args;

use crate::client::{Client, Reach};
use crate::out::{out, outln};
use crate::table::{clean, print_json};

/// Whose configuration.
#[derive(Debug, Args)]
pub(crate) struct Of {
    #[command(flatten)]
    reach: Reach,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What to put where.
#[derive(Debug, Args)]
pub(crate) struct Put {
    /// The new configuration, one file whole.
    file: PathBuf,
    /// The entity tag that the change started from (`config get --json`), or `*` for whatever is in force.
    #[arg(long, value_name = "ETAG")]
    if_match: String,
    #[command(flatten)]
    of: Of,
}

/// Prints what is in force: the text of one file as it is, of several each under its path.
pub(crate) fn get(of: &Of) -> anyhow::Result<ExitCode> {
    let view: ConfigView = Client::new(&of.reach)?.get("/v1/config")?;
    if of.json {
        print_json(&view)?;
    } else if let [only] = view.files.as_slice() {
        out!("{}", only.text);
    } else {
        for file in &view.files {
            outln!("# {}", file.path);
            out!("{}", file.text);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes a configuration in the file's place.
pub(crate) fn put(put: &Put) -> anyhow::Result<ExitCode> {
    let text = std::fs::read_to_string(&put.file).with_context(|| put.file.display().to_string())?;
    let tag = match put.if_match.as_str() {
        "*" => "*".to_owned(),
        tag => format!("\"{}\"", tag.trim_matches('"')),
    };
    say(&put.of, &Client::new(&put.of.reach)?.put("/v1/config", &tag, text)?)
}

/// Has the file read again.
pub(crate) fn reload(of: &Of) -> anyhow::Result<ExitCode> {
    say(of, &Client::new(&of.reach)?.reload()?)
}

fn say(of: &Of, report: &ReloadReport) -> anyhow::Result<ExitCode> {
    if of.json {
        print_json(report)?;
        return Ok(ExitCode::SUCCESS);
    }
    if report.changed.is_empty() {
        outln!("nothing changed: generation {} stays in force", report.generation);
    } else {
        outln!("generation {} is in force, after {:.1} ms", report.generation, report.took_ms);
    }
    for change in &report.changed {
        outln!("  {}", clean(change));
    }
    for setting in &report.needs_restart {
        outln!("waits for a restart: {}", clean(setting));
    }
    for warning in &report.warnings {
        outln!("warning: {}", clean(warning));
    }
    Ok(ExitCode::SUCCESS)
}
