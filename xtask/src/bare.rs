//! Both commands of the README in a bare Debian root: what the tasks need and do not install themselves shows here.
//!
//! In: the checkout's last commit. Out: what the commands print; a failure when one of them fails.
//! Not here: what makes the root (`xtask/bare-root`).
//! Invariant: nothing is left, however this process ends: what runs and is mounted is in namespaces that end with it, and the
//! folder is removed by a process that waits for its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, Metadata, root};
use crate::setup;

/// A command of the README.
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

/// Runs these commands of the README, each whatever the one before it did, in one root.
pub(crate) fn run(commands: &[Readme]) -> Result<()> {
    setup::require_root("a bare root")?;
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

/// Where the compiler in use and its libraries are.
fn toolchain() -> Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).current_dir(root()).output()?;
    ensure!(output.status.success(), "rustc --print sysroot: {}", output.status);
    Ok(Path::new(String::from_utf8(output.stdout)?.trim()).canonicalize()?)
}

/// An empty folder, and the process that removes it once its standard input ends, which is with this process.
pub(crate) struct Folder {
    path: PathBuf,
    keeper: Child,
}

impl Folder {
    /// In the build folder; `kind` is the start of its name.
    pub(crate) fn new(kind: &str) -> Result<Self> {
        let path = Metadata::read()?.target_directory()?.join(format!("{kind}-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("can't make {}", path.display()))?;
        // What is ending may still write.
        let keep = "cat > /dev/null; until rm -rf --one-file-system \"$0\"; do sleep 1; done";
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", keep]).arg(&path).stdin(Stdio::piped());
        Ok(Self { keeper: command.spawn().context("no process to clean up")?, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It closes the standard input, and waits; where that fails the process has gone.
        drop(self.keeper.wait());
    }
}
