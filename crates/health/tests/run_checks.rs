//! A test of the programs of exec checks. It is a test program of its own, because the runner kills
//! children of its process that it did not start.

#![allow(clippy::unwrap_used, reason = "a failed step must fail the test")]

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{CheckKind, ExecCheck};
use health::{Dialer, Failure, Interim, Pass, RunnerSetup, attempt, kill_programs, run_checks};
use tokio::net::UnixListener;
use tokio::time::{sleep, timeout};

/// A folder of programs with a runner. The folder is removed when the handle is dropped.
struct Scene {
    folder: PathBuf,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Scene {
    fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("sluicegate-run-checks-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let scene = Self { folder };
        let listener = UnixListener::bind(scene.path("socket")).unwrap();
        tokio::spawn(run_checks(listener, RunnerSetup { programs: scene.folder.clone(), most: 2 }));
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn write(&self, name: &str, mode: u32, text: &str) {
        fs::write(self.path(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn kind(&self, program: &str) -> CheckKind {
        let arguments = vec!["a b".into(), "$HOME;*".into()];
        let socket = self.path("socket").into();
        CheckKind::Exec(ExecCheck { program: program.into(), arguments, port: Some(3306), socket })
    }

    async fn ask(&self, program: &str) -> Result<Pass, Failure> {
        let (kind, interim) = (self.kind(program), Interim::default());
        let attempt = attempt(&kind, BACKEND, &Dialer::Direct, &interim);
        timeout(BOUND, attempt).await.unwrap_or_else(|_| interim.expired())
    }

    /// Writes a program that hangs, with a child, an orphan, and a child and an orphan in sessions
    /// of their own. Returns the files with their process IDs.
    fn hanging(&self, name: &str) -> [PathBuf; 5] {
        let parts = ["shell", "child", "orphan", "session", "daemon"];
        let files = parts.map(|part| self.path(&format!("{name}-{part}")));
        let [shell, child, orphan, session, daemon] = files.each_ref().map(|file| file.display().to_string());
        let text = format!(
            "sleep 1000 & echo $! > {child}\n(sleep 1000 & echo $! > {orphan})\n\
             setsid sh -c 'echo $$ > {session}; exec sleep 1000' &\n\
             setsid --fork sh -c 'echo $$ > {daemon}; exec sleep 1000'\n\
             while [ ! -s {session} ] || [ ! -s {daemon} ]; do sleep 0.01; done\necho $$ > {shell}\nwait"
        );
        self.write(name, 0o755, &text);
        files
    }
}

/// Waits until a file with a process ID satisfies `wanted`.
async fn becomes(file: &Path, wanted: impl Fn(&str) -> bool) {
    for _ in 0..600 {
        if fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n') && wanted(text.trim())) {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("{} has {:?}", file.display(), fs::read_to_string(file));
}

async fn started(files: &[PathBuf]) {
    for file in files {
        becomes(file, |_| true).await;
    }
}

async fn ended(files: &[PathBuf]) {
    for file in files {
        becomes(file, |id| fs::read_to_string(format!("/proc/{id}/stat")).is_err()).await;
    }
}

fn run_on(files: &[PathBuf]) {
    for file in files {
        let id = fs::read_to_string(file).unwrap();
        let state = fs::read_to_string(format!("/proc/{}/stat", id.trim()));
        assert!(state.is_ok_and(|state| !state.contains(") Z ")), "{}", file.display());
    }
}

async fn results(scene: &Scene) {
    let wanted = r#"[ "$#/$1/$2" = '2/a b/$HOME;*' ] && [ "$SLUICEGATE_ADDRESS:$SLUICEGATE_PORT" = 192.0.2.7:3306 ] &&
        [ "$(pwd)" = / ] && [ -z "$HOME" ] && ! read line"#;
    scene.write("environment", 0o755, wanted);
    assert_eq!(scene.ask("environment").await, Ok(Pass::Answered));
    scene.write("noisy", 0o755, "head -c 10000000 /dev/zero; echo");
    assert_eq!(scene.ask("noisy").await, Ok(Pass::Answered));
    for (text, words) in [
        ("exit 2", "exit status 2"),
        ("echo; echo '  lag 90 s'; echo more; exit 2", "exit status 2: lag 90 s"),
        ("echo broken >&2; exit 1", "exit status 1: broken"),
        ("printf 'no line break'; exit 1", "exit status 1: no line break"),
        ("printf 'a\\033[2Jb'; exit 1", r"exit status 1: a\u{1b}[2Jb"),
        ("kill -9 $$", "killed by SIGKILL"),
        // A process that keeps the output open does not prolong the check.
        ("sleep 1000 & echo first; exit 3", "exit status 3: first"),
    ] {
        scene.write("program", 0o755, text);
        assert_eq!(scene.ask("program").await.expect_err(text).to_string(), words, "{text}");
    }
}

async fn refusals(scene: &Scene) {
    scene.write("open", 0o775, "exit 0");
    scene.write("plain", 0o644, "exit 0");
    for (program, words) in [
        ("absent", "No such file"),
        ("open", "is writable by its group or others"),
        ("plain", "Permission denied"),
    ] {
        let failure = scene.ask(program).await.expect_err(program);
        assert!(failure.is_local() && failure.to_string().contains(words), "{program}: {failure}");
    }
}

/// Runs a second program while another one runs, and drops it. A third one is refused.
async fn at_most_two(scene: &Scene) {
    let (files, kind, interim) = (scene.hanging("second"), scene.kind("second"), Interim::default());
    let third = async {
        started(&files).await;
        let failure = scene.ask("environment").await.expect_err("a third program");
        assert!(failure.is_local() && failure.to_string().contains("already runs 2 programs"), "{failure}");
    };
    tokio::select! {
        result = attempt(&kind, BACKEND, &Dialer::Direct, &interim) => panic!("{result:?}"),
        () = third => {}
    }
    ended(&files).await;
}

// Promise: check-programs
#[test]
fn programs_end_with_their_attempts_and_leave_no_process() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let scene = runtime.block_on(async { Scene::start() });
    runtime.block_on(attempts(&scene));
    let (files, kind) = (scene.hanging("last"), scene.kind("last"));
    runtime.block_on(async {
        tokio::spawn(async move { attempt(&kind, BACKEND, &Dialer::Direct, &Interim::default()).await });
        started(&files).await;
    });
    drop(runtime);
    kill_programs();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(ended(&files));
}

async fn attempts(scene: &Scene) {
    results(scene).await;
    refusals(scene).await;
    let (files, kind, interim) = (scene.hanging("hangs"), scene.kind("hangs"), Interim::default());
    let meanwhile = async {
        started(&files).await;
        at_most_two(scene).await;
        // Sleeps until the runner has looked for the processes of the second program.
        while scene.ask("environment").await.is_err() {
            sleep(Duration::from_millis(100)).await;
        }
        sleep(Duration::from_millis(500)).await;
        run_on(&files);
    };
    tokio::select! {
        result = attempt(&kind, BACKEND, &Dialer::Direct, &interim) => panic!("{result:?}"),
        () = meanwhile => {}
    }
    assert_eq!(interim.expired(), Err(Failure::Program("the program did not end in time".into())));
    ended(&files).await;
    // The killed programs occupy no place.
    for _ in 0..600 {
        match scene.ask("environment").await {
            Ok(_) => return,
            Err(failure) => assert!(failure.is_local(), "{failure}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("no place is free");
}

const BACKEND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));
const BOUND: Duration = Duration::from_secs(60);
