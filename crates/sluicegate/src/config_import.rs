//! Implements `sluicegate config import`, which converts the rules of another load balancer into a
//! configuration.
//!
//! The configuration is printed to standard output. Rules that cannot be converted exactly are
//! reported on standard error. The crate `import` converts the rules.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use config_text::{MAX_BYTES, read_text};

use admin_client::{errln, out, verdict};

#[derive(Debug, Subcommand)]
pub(crate) enum ImportVerb {
    /// Convert the IPVS rules that `ipvsadm -S -n` prints. Rules without an exact equivalent are
    /// reported on standard error and in comments; the exit code is 1 if a rule is left out
    Ipvs(Rules),
}

#[derive(Debug, Args)]
pub(crate) struct Rules {
    /// Read the rules from this file, or from standard input for `-`
    #[arg(default_value = "-")]
    file: PathBuf,
}

/// Prints the configuration. The exit code is 1 if a rule is left out.
pub(crate) fn import(verb: &ImportVerb) -> anyhow::Result<ExitCode> {
    let ImportVerb::Ipvs(Rules { file }) = verb;
    let is_stdin = file == Path::new("-");
    let name = if is_stdin { Path::new("standard input") } else { file };
    let text = if is_stdin {
        read_stdin()?
    } else {
        read_text(file, MAX_BYTES).map_err(|problem| anyhow::anyhow!("{problem}"))?
    };
    let import = import::ipvs(&text, name)
        .map_err(|problems| anyhow::anyhow!("the rules have problems:\n{problems}"))?;
    out!("{}", import.toml);
    for note in &import.notes {
        let kind = if note.is_left_out { "left out" } else { "different" };
        errln!("{}:{}: {kind}: {}", name.display(), note.line, note.words);
    }
    Ok(verdict(!import.notes.iter().any(|note| note.is_left_out)))
}

fn read_stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    let read = io::stdin().lock().take(MAX_BYTES + 1).read_to_string(&mut text);
    let read = read.context("cannot read standard input")?;
    anyhow::ensure!(
        u64::try_from(read).is_ok_and(|read| read <= MAX_BYTES),
        "standard input is larger than 16 MiB"
    );
    Ok(text)
}
