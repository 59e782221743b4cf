//! Implements `sluicegate simulate`, which prints the report of the crate `simulate`.

use std::process::ExitCode;

use ::simulate::Arguments;
use admin_client::{out, print_json};

/// Runs the simulation and prints its report.
pub(crate) fn simulate(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let report = ::simulate::simulate(arguments)?;
    if arguments.json {
        print_json(&report)?;
    } else {
        out!("{report}");
    }
    Ok(ExitCode::SUCCESS)
}
