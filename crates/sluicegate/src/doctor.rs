//! `sluicegate doctor`: the machine is looked at before it carries traffic; exit code 1 when something is an error.
//!
//! In: a configuration and its machine. Out: the diagnosis, in words or as JSON. Not here: what is looked at (`diagnosis`).

use std::process::ExitCode;

use clap::Args;

use crate::Source;
use admin_client::{outln, print_json, verdict};

/// What to look at.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// Print findings and facts as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints all findings. 1 when one of them is an error.
pub(crate) fn diagnose(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { source, json } = arguments;
    let diagnosis = diagnosis::diagnose(&source.config, &source.machine()?)?;
    if *json {
        print_json(&diagnosis.report(&source.config))?;
    } else {
        outln!("{diagnosis}");
    }
    Ok(verdict(diagnosis.is_well()))
}
