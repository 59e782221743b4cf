//! Implements `sluicegate doctor`, which checks the machine before it receives traffic. The crate
//! `diagnosis` contains the checks.

use std::process::ExitCode;

use clap::Args;

use crate::Source;
use admin_client::{outln, print_json, verdict};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// Print findings and facts as JSON
    #[arg(long)]
    json: bool,
}

/// Prints all findings. The exit code is 1 if a finding is an error.
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
