//! `sluicegate config diff`: what a change of files would change, and how many slots of each table it would move.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use control_plane::compile::{Compiled, Compiler};
use control_plane::config::{self, Config, Problems};
use control_plane::controller::{Running, Side, changes};
use serde_json::json;

/// Which files.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The file as it is.
    old: PathBuf,
    /// The file as it would be.
    new: PathBuf,
    /// Compare what this machine would serve. Default: each machine of the new file.
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Do not read keys and certificates: for a machine that has the files but not the secrets. Tables are then built
    /// under a stand-in key: as many slots move, within chance.
    #[arg(long)]
    without_secrets: bool,
    /// Print the differences as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the differences. 1 when one of the files would be refused.
pub(crate) fn diff(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let old = load(&arguments.old, arguments.without_secrets)?;
    let new = load(&arguments.new, arguments.without_secrets)?;
    let machines: Vec<&str> = match &arguments.machine {
        Some(name) => vec![name],
        None => new.machines().iter().map(config::Machine::name).collect(),
    };
    // One compiler for all: tables of the same content are built once, and told apart by where they stand.
    let mut compiler = Compiler::default();
    let mut rows = Vec::new();
    for machine in machines {
        if old.machine(machine).is_none() {
            rows.push((machine, vec![format!("machine {machine}: added")], Vec::new()));
            continue;
        }
        let (before, after) =
            (compile(&mut compiler, &old, machine)?, compile(&mut compiler, &new, machine)?);
        let running = Running::of(&old, machine);
        let told = changes(&running, side(&old, &before), side(&new, &after), machine);
        rows.push((machine, told.sentences, told.needs_restart));
    }
    let gone = old.machines().iter().filter(|machine| new.machine(machine.name()).is_none());
    let gone: Vec<String> = gone.map(|machine| format!("machine {}: removed", machine.name())).collect();
    if arguments.json {
        let machines: Vec<_> = rows
            .iter()
            .map(|(machine, changed, restart)| {
                json!({ "machine": machine, "changed": changed, "needs_restart": restart })
            })
            .collect();
        println!("{}", json!({ "removed": gone, "machines": machines }));
        return Ok(ExitCode::SUCCESS);
    }
    for sentence in &gone {
        println!("{sentence}");
    }
    for (machine, sentences, _) in &rows {
        println!("machine {machine}: {}", if sentences.is_empty() { "no difference" } else { "" }.trim_end());
        for sentence in sentences {
            println!("  {sentence}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn load(file: &Path, without_secrets: bool) -> anyhow::Result<Config> {
    let loaded = if without_secrets { config::load_without_secrets(file) } else { config::load(file) };
    let refused = |problems: Problems| anyhow::anyhow!("{} would be refused:\n{problems}", file.display());
    Ok(loaded.map_err(refused)?.0)
}

fn compile(compiler: &mut Compiler, config: &Config, machine: &str) -> anyhow::Result<Compiled> {
    Ok(compiler.compile_file(config, machine)?)
}

fn side<'a>(config: &'a Config, compiled: &'a Compiled) -> Side<'a> {
    Side { config, index: &compiled.index }
}
