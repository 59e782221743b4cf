//! Implements `sluicegate completions` and `sluicegate man`, which generate shell completions and
//! manual pages from the command line definition. The distribution packages contain the completions
//! and the manual pages.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use admin_client::out;
use anyhow::Context as _;
use clap::{Args, Command, ValueEnum};
use clap_complete::aot;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Print the script for this shell
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Fish,
    Zsh,
}

#[derive(Debug, Args)]
pub(crate) struct Manual {
    /// Write the pages to this folder, which is created if necessary
    folder: PathBuf,
}

/// Prints a completion script.
pub(crate) fn completions(asked: &Completions, mut command: Command) -> ExitCode {
    let shell = match asked.shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Fish => aot::Shell::Fish,
        Shell::Zsh => aot::Shell::Zsh,
    };
    let name = command.get_name().to_owned();
    // The script is first written to memory, because the generator panics if standard output is a
    // closed pipe.
    let mut script = Vec::new();
    aot::generate(shell, &mut command, name, &mut script);
    out!("{}", String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}

/// Writes one page for the program and one for each subcommand, such as `sluicegate.1` and
/// `sluicegate-config-check.1`.
pub(crate) fn manual(asked: &Manual, command: Command) -> anyhow::Result<ExitCode> {
    let folder = &asked.folder;
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .with_context(|| folder.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}
