//! `sluicegate config check`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use control_plane::config::{self, Config, Problem, Problems, Severity};
use serde_json::json;

/// What to check.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The file.
    file: PathBuf,
    /// Do not read the hash key: for a machine that has the file but not the secret, such as a CI runner.
    #[arg(long)]
    without_secrets: bool,
    /// Print the problems as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints all problems. 1 when one of them is an error.
pub(crate) fn check(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let loaded = if arguments.without_secrets {
        config::load_with(&arguments.file, &|_| Ok(STAND_IN_KEY.to_owned()))
    } else {
        config::load(&arguments.file)
    };
    let (problems, code) = match loaded {
        Ok((_, warnings)) => (warnings, ExitCode::SUCCESS),
        Err(problems) => (problems, ExitCode::FAILURE),
    };
    if arguments.json {
        let rows: Vec<_> = problems.iter().map(row).collect();
        println!("{}", json!({ "file": arguments.file, "problems": rows }));
    } else if problems.is_empty() {
        println!("{}: no problem found", arguments.file.display());
    } else {
        println!("{problems}");
    }
    Ok(code)
}

fn row(problem: &Problem) -> serde_json::Value {
    json!({
        "severity": match problem.severity() { Severity::Error => "error", Severity::Warning => "warning" },
        "file": problem.file(),
        "line": problem.line(),
        "column": problem.column(),
        "field": problem.field(),
        "found": problem.found(),
        "allowed": problem.allowed(),
    })
}

/// Loads a file for a verb that needs it whole; its warnings go to standard error.
pub(crate) fn load(file: &Path) -> anyhow::Result<Config> {
    let refused = |problems: Problems| anyhow::anyhow!("the configuration has problems:\n{problems}");
    let (config, warnings) = config::load(file).map_err(refused)?;
    if !warnings.is_empty() {
        eprintln!("{warnings}");
    }
    Ok(config)
}

const STAND_IN_KEY: &str = "00000000000000000000000000000000";
