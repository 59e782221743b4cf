//! Checks a machine and prints the problems found. The exit code is 1 if at least one problem is an
//! error. Usage: `preflight sluicegate.toml lb1`.

use std::error::Error;
use std::process::ExitCode;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, machine] = arguments.as_slice() else {
        return Err("usage: preflight FILE MACHINE".into());
    };
    let diagnosis = diagnosis::diagnose(file.as_ref(), machine)?;
    for finding in diagnosis.findings() {
        eprintln!("{}: {}", finding.id, finding.what);
    }
    Ok(if diagnosis.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
