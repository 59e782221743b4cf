//! `sluicegate config import`.
//!
//! In: rules of another load balancer, by a file or standard input. Out: a configuration on standard output, and on standard
//! error a line for each rule that is different there.
//! Not here: what becomes of a rule (`import`).

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use config_text::{MAX_BYTES, read_text};

use admin_client::{errln, out, verdict};

/// Whose rules.
#[derive(Debug, Subcommand)]
pub(crate) enum ImportVerb {
    /// Of IPVS: `ipvsadm -S -n | sluicegate config import ipvs`. 1 when a rule is left out; each rule that is different is said
    /// on standard error, and in a comment.
    Ipvs(Rules),
}

/// Where the rules are.
#[derive(Debug, Args)]
pub(crate) struct Rules {
    /// The file; `-` for standard input.
    #[arg(default_value = "-")]
    file: PathBuf,
}

/// Prints the configuration. 1 when a rule is left out of it.
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
    let read = read.context("standard input")?;
    anyhow::ensure!(u64::try_from(read).is_ok_and(|read| read <= MAX_BYTES), "standard input: over 16 MiB");
    Ok(text)
}
