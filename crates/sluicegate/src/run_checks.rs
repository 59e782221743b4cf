//! `sluicegate run-checks`: the process that runs the programs of exec checks.
//!
//! The process has its own user and no capabilities, so check programs can neither read the keys of
//! the load balancer nor change its packets. With systemd, the listening socket is the standard
//! input, and only the user of the load balancer can connect to it.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, RawFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use health::RunnerSetup;
use nix::unistd::Uid;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Create and listen on this Unix socket with mode 0660 [default: the standard input is a
    /// listening socket, as with sluicegate-checks.socket]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Run programs from this folder
    #[arg(long, value_name = "FOLDER", default_value = "/etc/sluicegate/checks")]
    programs: PathBuf,
    /// Run at most this many programs in parallel
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    most: u16,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<()> {
    if Uid::effective().is_root() {
        bail!(
            "run-checks must not run as root, because its programs would be root too; start sluicegate-checks.socket, or \
             use setpriv or a container with another user"
        );
    }
    // The programs inherit only the standard file descriptors.
    datapath::set_close_on_exec(FIRST_OTHER)
        .context("cannot keep inherited file descriptors from programs")?;
    // A program with set-user-ID bits gains no privileges.
    nix::sys::prctl::set_no_new_privs()?;
    let listener = match &arguments.socket {
        Some(path) => bind(path).with_context(|| format!("cannot listen on {}", path.display()))?,
        None => inherited()?,
    };
    listener.set_nonblocking(true)?;
    let setup = RunnerSetup { programs: arguments.programs, most: arguments.most.into() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        tokio::select! {
            ended = health::run_checks(listener, setup) => ended.context("cannot run programs"),
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            _ = hangup.recv() => Ok(()),
        }
    });
    // Ends the connections, so that no program starts later.
    drop(runtime);
    health::kill_programs();
    result
}

/// The first descriptor after the standard input, output and error.
const FIRST_OTHER: RawFd = 3;

/// Returns the listening socket on standard input.
fn inherited() -> anyhow::Result<UnixListener> {
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let help = "standard input is not a Unix socket; start sluicegate-checks.socket, or use --socket";
    listener.local_addr().context(help)?;
    Ok(listener)
}

/// Creates the socket, and replaces the socket of an earlier process.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o660))?;
    Ok(listener)
}
