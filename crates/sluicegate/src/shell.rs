//! `sluicegate completions` and `sluicegate man`: the command line as shells and `man` read it, made of this binary's own verbs.
//!
//! In: the command. Out: a script on standard output; pages in a folder. Packages ship both (`packages`).

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use admin_client::out;
use anyhow::Context as _;
use clap::{Args, Command, ValueEnum};
use clap_complete::aot;

/// Whose script.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell that reads it.
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Fish,
    Zsh,
}

/// Where pages go.
#[derive(Debug, Args)]
pub(crate) struct Manual {
    /// The folder; it is made where it is missing.
    folder: PathBuf,
}

/// Prints a script that completes verbs and options.
pub(crate) fn completions(asked: &Completions, mut command: Command) -> ExitCode {
    let shell = match asked.shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Fish => aot::Shell::Fish,
        Shell::Zsh => aot::Shell::Zsh,
    };
    let name = command.get_name().to_owned();
    // Into memory: what writes it panics when a pipe is closed.
    let mut script = Vec::new();
    aot::generate(shell, &mut command, name, &mut script);
    out!("{}", String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

/// Writes a page for the program and for each of its verbs: `sluicegate.1`, `sluicegate-config-check.1`.
pub(crate) fn manual(asked: &Manual, command: Command) -> anyhow::Result<ExitCode> {
    let folder = &asked.folder;
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .with_context(|| folder.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}
