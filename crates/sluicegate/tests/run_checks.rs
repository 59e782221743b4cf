//! Tests `sluicegate run-checks` as a process of its own, with its listening socket as the standard
//! input, as with systemd.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, process};

use config::{CheckKind, ExecCheck};
use health::{Dialer, Interim};

/// A running `run-checks` and its folder.
struct Runner {
    folder: PathBuf,
    process: Child,
}

impl Runner {
    /// Starts the process with additional descriptors, which the programs it starts would inherit.
    fn start() -> Self {
        let folder = env::temp_dir().join(format!("sluicegate-run-checks-{}", process::id()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let listener = UnixListener::bind(folder.join("socket")).unwrap();
        let inherits = "exec 5</dev/null 7</dev/null 9</dev/null; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", inherits, "sh"]);
        if nix::unistd::Uid::effective().is_root() {
            command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        }
        command.args([env!("CARGO_BIN_EXE_sluicegate"), "run-checks", "--programs"]).arg(&folder);
        let process = command.stdin(Stdio::from(OwnedFd::from(listener))).spawn().unwrap();
        Self { folder, process }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns the result of a program in words.
    fn ask(&self, program: &str) -> String {
        let socket: &Path = &self.folder.join("socket");
        let check =
            ExecCheck { program: program.into(), arguments: Vec::new(), port: None, socket: socket.into() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (kind, interim) = (CheckKind::Exec(check), Interim::default());
        let result = runtime.block_on(async {
            let attempt = health::attempt(&kind, BACKEND, &Dialer::Direct, &interim);
            tokio::time::timeout(BOUND, attempt).await
        });
        result.unwrap().map_or_else(|failure| failure.to_string(), |_| "passed".to_owned())
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn program_inherits_only_standard_descriptors() {
    let runner = Runner::start();
    // The descriptor 3 is the folder that `ls` reads.
    runner.write("list", "#!/bin/sh\necho $(ls /proc/self/fd)\nexit 1\n");
    assert_eq!(runner.ask("list"), "exit status 1: 0 1 2 3");
    runner.write("stdin", "#!/bin/sh\n[ \"$(readlink /proc/self/fd/0)\" = /dev/null ]\n");
    assert_eq!(runner.ask("stdin"), "passed");
}

const BACKEND: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
const BOUND: Duration = Duration::from_secs(60);
