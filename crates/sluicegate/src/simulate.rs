//! `sluicegate simulate`: prints what the crate `simulate` finds.

use std::process::ExitCode;

use ::simulate::Arguments;
use admin_client::{out, print_json};

/// Simulates, and prints what breaks.
pub(crate) fn simulate(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let report = ::simulate::simulate(arguments)?;
    if arguments.json {
        print_json(&report)?;
    } else {
        out!("{report}");
    }
    Ok(ExitCode::SUCCESS)
}
