//! Implements `sluicegate config diff`, which prints the differences between two configurations,
//! and how many slots of each Maglev table change their backend.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use compile::{Compiled, Compiler};
use config::{self, Config, Machine, Problems};
use control_plane::{Changes, Running, Side, changes};
use serde_json::json;

use admin_client::{outln, print_json};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Use this configuration file as the old side of the comparison, or standard input for `-`
    #[arg(value_parser = admin_client::file_or_stdin)]
    old: PathBuf,
    /// Use this configuration file as the new side of the comparison, or standard input for `-`
    #[arg(value_parser = admin_client::file_or_stdin)]
    new: PathBuf,
    /// Compare only this machine (default: every machine in the new file)
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Do not read keys and certificates, for machines that do not have the secrets. Tables are
    /// built with a placeholder key, so the number of moved entries is an estimate
    #[arg(long)]
    without_secrets: bool,
    /// Print the differences as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the differences. The exit code is 1 if one of the files is invalid.
pub(crate) fn diff(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let old = load(&arguments.old, arguments.without_secrets)?;
    let new = load(&arguments.new, arguments.without_secrets)?;
    let renamed = renamed(&old, &new);
    let rows = rows(arguments, [&old, &new], &renamed)?;
    let remains = |name: &str| new.machine(name).is_some() || renamed.iter().any(|(from, _)| *from == name);
    let gone = old.machines().iter().map(Machine::name).filter(|name| !remains(name));
    let gone: Vec<String> = gone.map(|name| format!("machine {name}: removed")).collect();
    if arguments.json {
        let machines: Vec<_> = rows
            .iter()
            .map(|(machine, found)| {
                json!({ "machine": machine, "changed": found.sentences, "needs_restart": found.needs_restart })
            })
            .collect();
        print_json(&json!({ "removed": gone, "machines": machines }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for sentence in &gone {
        outln!("{sentence}");
    }
    for (machine, Changes { sentences, .. }) in &rows {
        outln!("machine {machine}:{}", if sentences.is_empty() { " no difference" } else { "" });
        for sentence in sentences {
            outln!("  {sentence}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the differences for each selected machine.
fn rows(
    arguments: &Arguments,
    [old, new]: [&Config; 2],
    renamed: &[(&str, &str)],
) -> anyhow::Result<Vec<(String, Changes)>> {
    let machines: Vec<&str> = match &arguments.machine {
        Some(name) => vec![name],
        None => new.machines().iter().map(Machine::name).collect(),
    };
    // All machines share one compiler, so that identical tables are built only once.
    let mut compiler = Compiler::default();
    let row = |machine: &str| {
        // `--machine` accepts both the old and the new name of a renamed machine.
        let pair = renamed.iter().find(|(from, to)| [*from, *to].contains(&machine)).copied();
        let (before, machine) = pair.map_or((None, machine), |(from, to)| (Some(from), to));
        let said = |what: &str| Changes {
            sentences: vec![format!("machine {machine}: {what}")],
            ..Changes::default()
        };
        let found = match (old.machine(before.unwrap_or(machine)), new.machine(machine)) {
            (None, Some(_)) => said("added"),
            (Some(_), None) => said("removed"),
            _ => compared(&mut compiler, [old, new], before, machine)?,
        };
        Ok((machine.to_owned(), found))
    };
    machines.into_iter().map(row).collect()
}

/// Returns pairs of old and new machine names. A machine is considered renamed if its name
/// disappears and a new machine has exactly the same addresses.
fn renamed<'a>(old: &'a Config, new: &'a Config) -> Vec<(&'a str, &'a str)> {
    let gone = old.machines().iter().filter(|machine| new.machine(machine.name()).is_none());
    let come = || new.machines().iter().filter(|machine| old.machine(machine.name()).is_none());
    let addresses = |machine: &Machine| machine.addresses.iter().copied().collect::<BTreeSet<_>>();
    let heir = |machine: &&'a Machine| come().find(|other| addresses(other) == addresses(machine));
    gone.filter_map(|machine| Some((machine.name(), heir(&machine)?.name()))).collect()
}

/// Returns the differences for one machine. `before` is the old name of a renamed machine.
fn compared(
    compiler: &mut Compiler,
    [old, new]: [&Config; 2],
    before: Option<&str>,
    machine: &str,
) -> anyhow::Result<Changes> {
    let named = before.map(|before| old.renamed(before, machine));
    let old = named.as_ref().unwrap_or(old);
    let (from, to) = (compiler.compile_file(old, machine)?, compiler.compile_file(new, machine)?);
    let running = Running::of(old, machine);
    let mut found = changes(&running, side(old, &from), side(new, &to), machine);
    if let Some(before) = before {
        // For all other differences, the machine has its new name in both files.
        if old == new {
            found.sentences.clear();
        }
        found.sentences.insert(0, format!("machine {before}: renamed to {machine}, with the same addresses"));
        found.needs_restart.insert(0, format!("machine: {before} -> {machine}"));
    }
    Ok(found)
}

fn load(file: &Path, without_secrets: bool) -> anyhow::Result<Config> {
    let loaded = if without_secrets { config::load_without_secrets(file) } else { config::load(file) };
    let refused = |problems: Problems| anyhow::anyhow!("{} has problems:\n{problems}", file.display());
    Ok(loaded.map_err(refused)?.0)
}

fn side<'a>(config: &'a Config, compiled: &'a Compiled) -> Side<'a> {
    Side { config, index: &compiled.index }
}
