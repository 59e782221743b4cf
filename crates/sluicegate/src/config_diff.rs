//! `sluicegate config diff`: what a change of files would change, and how many slots of each table it would move.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use compile::{Compiled, Compiler};
use config::{self, Config, Machine, Problems};
use control_plane::{Changes, Running, Side, changes};
use serde_json::json;

use admin_client::{outln, print_json};

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

/// What changes for each machine that is asked for.
fn rows(
    arguments: &Arguments,
    [old, new]: [&Config; 2],
    renamed: &[(&str, &str)],
) -> anyhow::Result<Vec<(String, Changes)>> {
    let machines: Vec<&str> = match &arguments.machine {
        Some(name) => vec![name],
        None => new.machines().iter().map(Machine::name).collect(),
    };
    // One compiler for all: tables of the same content are built once, and differ by where they stand.
    let mut compiler = Compiler::default();
    let row = |machine: &str| {
        // Asked for by either name.
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

/// Machines that are in the old file alone with those that have their addresses in the new one alone: by both names.
fn renamed<'a>(old: &'a Config, new: &'a Config) -> Vec<(&'a str, &'a str)> {
    let gone = old.machines().iter().filter(|machine| new.machine(machine.name()).is_none());
    let come = || new.machines().iter().filter(|machine| old.machine(machine.name()).is_none());
    let addresses = |machine: &Machine| machine.addresses.iter().copied().collect::<BTreeSet<_>>();
    let heir = |machine: &&'a Machine| come().find(|other| addresses(other) == addresses(machine));
    gone.filter_map(|machine| Some((machine.name(), heir(&machine)?.name()))).collect()
}

/// What changes for a machine, which had the name `before` if it had another.
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
        // The rest of the sentences is as if it had always been called so.
        if old == new {
            found.sentences.clear();
        }
        found
            .sentences
            .insert(0, format!("machine {before}: called {machine} from now on, with the same addresses"));
        found.needs_restart.insert(0, format!("machine: {before} -> {machine}"));
    }
    Ok(found)
}

fn load(file: &Path, without_secrets: bool) -> anyhow::Result<Config> {
    let loaded = if without_secrets { config::load_without_secrets(file) } else { config::load(file) };
    let refused = |problems: Problems| anyhow::anyhow!("{} would be refused:\n{problems}", file.display());
    Ok(loaded.map_err(refused)?.0)
}

fn side<'a>(config: &'a Config, compiled: &'a Compiled) -> Side<'a> {
    Side { config, index: &compiled.index }
}
