//! Runs the commands of the README in a minimal Debian root, on a checkout of the last commit.
//!
//! Such a run shows which requirements the tasks do not install themselves. The script
//! `xtask/bare-root` creates the root. All traces are removed even if this process is killed:
//! processes and mounts are in namespaces that end with the run, and a second process removes the
//! folder after this process has ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, Metadata, root};
use crate::setup;

/// A command that the README shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Readme {
    Demo,
    Test,
}

impl Readme {
    pub(crate) const ALL: [Self; 2] = [Self::Demo, Self::Test];

    fn name(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Test => "test",
        }
    }
}

/// Runs the commands one after the other in one minimal Debian root. If a command fails, the next
/// commands still run.
pub(crate) fn run(commands: &[Readme]) -> Result<()> {
    setup::require_root("creating a Debian root")?;
    setup::ensure(setup::BARE)?;
    let folder = Folder::new("bare")?;
    let bare = folder.path().join("root");
    fs::create_dir(&bare)?;
    let script = commands.iter().map(|command| format!("cargo xtask {} || failed=1; ", command.name()));
    let script = format!("failed=0; {}exit $failed", script.collect::<String>());
    cargo::run(
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"])
            .arg(root().join("xtask/bare-root"))
            .args([&bare, root(), &toolchain()?])
            .args(["sh", "-c", &script]),
    )
}

/// Returns the sysroot of the current Rust compiler.
fn toolchain() -> Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).current_dir(root()).output()?;
    ensure!(output.status.success(), "rustc --print sysroot failed ({})", output.status);
    Ok(Path::new(String::from_utf8(output.stdout)?.trim()).canonicalize()?)
}

/// An empty new folder, which is removed when this process ends.
///
/// A helper process (`keeper`) removes the folder when its standard input is closed.
pub(crate) struct Folder {
    path: PathBuf,
    keeper: Child,
}

impl Folder {
    /// Creates a folder below the cargo target directory. The name of the folder begins with
    /// `kind`.
    pub(crate) fn new(kind: &str) -> Result<Self> {
        let path = Metadata::read()?.target_directory()?.join(format!("{kind}-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        // Some processes may still write into the folder while they end, so `rm` is repeated.
        let keep = "cat > /dev/null; until rm -rf --one-file-system \"$0\"; do sleep 1; done";
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", keep]).arg(&path).stdin(Stdio::piped());
        Ok(Self {
            keeper: command.spawn().context("cannot start the process that removes the folder")?,
            path,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // `wait` first closes the standard input of the helper process. An error means that the
        // helper process has already ended.
        drop(self.keeper.wait());
    }
}
