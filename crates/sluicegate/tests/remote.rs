//! Tests that every subcommand for a running balancer also works with `--url`, over TLS with client
//! certificates.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use admin::{Limits, Listener, Roles, Rules, Tls, acceptor, router, serve};
use axum::Router;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

#[path = "../../admin/tests/api/mock.rs"]
mod mock;

/// A simulated balancer with a TLS listener, and the certificates of its clients.
struct Balancer {
    folder: PathBuf,
    port: u16,
    log: mock::Log,
    _runtime: Runtime,
}

impl Balancer {
    fn start() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("sluicegate-remote-{}-{number}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let issue = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec!["127.0.0.1".into(), "localhost".into()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            (params.signed_by(&key, &ca).unwrap().pem(), key.serialize_pem())
        };
        fs::write(folder.join("ca.pem"), ca.pem()).unwrap();
        fs::write(folder.join("lb.toml"), "").unwrap();
        for role in ROLES {
            let (certificate, key) = issue(role);
            fs::write(folder.join(format!("{role}.pem")), certificate).unwrap();
            fs::write(folder.join(format!("{role}.key")), key).unwrap();
            fs::set_permissions(folder.join(format!("{role}.key")), fs::Permissions::from_mode(0o600))
                .unwrap();
        }
        let (certificate, key) = issue("lb1");
        let acceptor = acceptor(&certificate, &key, &ca.pem()).unwrap();
        let roles = Roles { operate: vec!["operate".into()], configure: vec!["configure".into()] };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (log, port) = runtime.block_on(async {
            let (commands, log) = mock::start();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let (tls, shown) = watch::channel(Tls { acceptor, roles: Arc::new(roles) });
            let router = router(commands, Rules::new(true), Router::new());
            tokio::spawn(async move {
                serve(Listener::Tls(listener, shown), router, Limits::default()).await;
                drop(tls);
            });
            (log, port)
        });
        Self { folder, port, log, _runtime: runtime }
    }

    /// Runs a command line with a client certificate, and returns its exit code and output. Each
    /// `@` is replaced by the folder.
    fn run(&self, line: &str, role: &str) -> (i32, String) {
        self.run_with(line, &self.remote(role))
    }

    fn remote(&self, role: &str) -> String {
        let url = format!("https://127.0.0.1:{}", self.port);
        format!("--url {url} --ca @/ca.pem --cert @/{role}.pem --cert-key @/{role}.key")
    }

    fn run_with(&self, line: &str, remote: &str) -> (i32, String) {
        let line = format!("{line} {remote}").replace('@', self.folder.to_str().unwrap());
        sluicegate(&line.split_whitespace().collect::<Vec<_>>())
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn sluicegate(words: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sluicegate")).args(words).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

/// Returns all subcommands that have no further subcommands, and whether their help lists `--url`.
fn verbs() -> Vec<(String, bool)> {
    let (mut left, mut found) = (vec![String::new()], Vec::new());
    while let Some(verb) = left.pop() {
        let words: Vec<&str> = verb.split_whitespace().chain(["--help"]).collect();
        let (code, help) = sluicegate(&words);
        assert_eq!(code, 0, "{help}");
        let Some((_, below)) = help.split_once("Commands:\n") else {
            let has_url = help.lines().any(|line| line.trim_start().starts_with("--url"));
            found.push((verb, has_url));
            continue;
        };
        let names =
            below.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("    "));
        let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
        left.extend(names.map(|name| format!("{verb} {name}").trim().to_owned()));
    }
    found
}

// Promise: remote-commands
#[test]
fn every_verb_works_remotely_with_its_role() {
    let balancer = Balancer::start();
    let (remote, local): (Vec<_>, Vec<_>) = verbs().into_iter().partition(|(_, has_url)| *has_url);
    let names = |verbs: Vec<(String, bool)>| verbs.into_iter().map(|(verb, _)| verb).collect::<BTreeSet<_>>();
    let wanted = |verbs: &[&str]| verbs.iter().map(|verb| (*verb).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(names(local), wanted(&LOCAL), "a verb for a running balancer needs --url");
    let run: Vec<&str> = REMOTE.iter().map(|(verb, ..)| *verb).collect();
    assert_eq!(names(remote), wanted(&run), "REMOTE does not list all verbs");
    for (verb, rest, needed) in REMOTE {
        let line = format!("{verb} {rest}");
        let least = ROLES.iter().position(|role| *role == needed).unwrap();
        for (has, role) in ROLES.into_iter().enumerate() {
            let before = balancer.log.lock().unwrap().len();
            let (code, text) = balancer.run(&line, role);
            let asked = balancer.log.lock().unwrap().len() > before;
            let refused = text.contains(&format!("this request needs the role {needed}"));
            assert_eq!(refused, has < least, "{line} as {role}: {text}");
            assert_eq!(asked, has >= least, "{line} as {role} reaches the balancer: {text}");
            // `machine undrain` fails, because the simulated machine is not draining.
            assert!(
                code <= 1 && (refused || code == 0 || FINDINGS.contains(&verb)),
                "{line} as {role}: {code} {text}"
            );
        }
    }
}

#[test]
fn top_on_a_terminal_of_80x24_reacts_to_keys() {
    let balancer = Balancer::start();
    let options = balancer.remote("read").replace('@', balancer.folder.to_str().unwrap());
    let program = env!("CARGO_BIN_EXE_sluicegate");
    let top = format!("stty rows 24 cols 80; exec {program} top --interval 100ms {options}");
    // `script` runs the command on a pseudoterminal.
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &top, "/dev/null"]).env("TERM", "xterm");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut keys = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut until = |word: &str| {
        let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
        while !String::from_utf8_lossy(&seen).contains(word) {
            let read = output.read(&mut buffer).unwrap();
            assert!(read > 0, "{word}: {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&buffer[..read]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    };
    let first = until("quit");
    assert!(first.contains("BACKEND") && first.contains("REASON") && first.contains("bit/s"), "{first}");
    keys.write_all(b"?").unwrap();
    until("Ctrl-C");
    keys.write_all(b"q").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn url_with_host_name_is_resolved() {
    let balancer = Balancer::start();
    let with = |host: &str| balancer.remote("read").replace("127.0.0.1", host);
    // The simulated balancer does not listen on ::1, which is often the first address.
    let (code, text) = balancer.run_with("vip list", &with("localhost"));
    assert!(code <= 1 && text.contains("www"), "{code} {text}");
    let (code, text) = balancer.run_with("vip list", &with("lb1.invalid"));
    assert_eq!(
        (code, text.contains("cannot reach the balancer at https://lb1.invalid:")),
        (3, true),
        "{text}"
    );
    // Without a resolver, the command may time out first.
    assert!(text.contains("cannot resolve the host name lb1.invalid") || text.contains("--wait"), "{text}");
}

#[test]
fn faults_of_the_connection_are_explained() {
    let balancer = Balancer::start();
    let (code, text) = balancer.run_with(
        "status",
        "--url https://127.0.0.1:1 --ca @/ca.pem --cert @/read.pem --cert-key @/read.key",
    );
    assert_eq!(
        (code, text.contains("cannot reach the balancer at https://127.0.0.1:1: ")),
        (3, true),
        "{text}"
    );
    let url = format!("--url https://127.0.0.1:{}", balancer.port);
    for (options, wanted, exit) in [
        ("", "--cert <FILE>", 2),
        ("--ca @/ca.pem --cert @/read.pem --cert-key @/read.key --socket /x", "cannot be used with", 2),
        (
            "--ca @/lb.toml --cert @/read.pem --cert-key @/read.key",
            "lb.toml contains no certificate in PEM",
            1,
        ),
        ("--ca @/ca.pem --cert @/read.pem --cert-key @/operate.key", "read.pem with --cert-key", 1),
        ("--ca @/read.pem --cert @/read.pem --cert-key @/read.key", "invalid peer certificate", 3),
        ("--ca @/ca.pem --cert @/read.pem --cert-key @/read.key --server-name lb9", "not valid for name", 3),
    ] {
        let (code, text) = balancer.run_with(&format!("status {url}"), options);
        assert_eq!((code, text.contains(wanted)), (exit, true), "{options}: {code} {text}");
    }
    let (code, text) = balancer.run("machine upgrade /tmp/other", "configure");
    assert_eq!(
        (code, text.contains("to another program file is possible only through the Unix socket")),
        (1, true),
        "{text}"
    );
}

const ROLES: [&str; 3] = ["read", "operate", "configure"];
/// The subcommands that need no running balancer, or that run on the machine of the balancer.
const LOCAL: [&str; 14] = [
    "completions",
    "config check",
    "config diff",
    "config import ipvs",
    "config schema",
    "decap",
    "doctor",
    "man",
    "probe",
    "replay",
    "run",
    "run-checks",
    "simulate",
    "trace",
];
/// The subcommands that may exit with 1, because the simulated balancer has faults or its response
/// is no capture.
const FINDINGS: [&str; 13] = [
    "capture",
    "status",
    "backend list",
    "vip list",
    "health list",
    "bgp status",
    "machine undrain",
    "log level",
    "backend undrain",
    "backend up",
    "backend down",
    "backend drain",
    "where",
];
/// Each subcommand for a running balancer, its arguments, and the role that it needs.
const REMOTE: [(&str, &str, &str); 30] = [
    ("backend down", "b1", "operate"),
    ("backend drain", "b1", "operate"),
    ("backend list", "--vip www --state serving --limit 5", "read"),
    ("backend undrain", "b1", "operate"),
    ("backend up", "b1", "operate"),
    ("backend weight", "b1 3", "operate"),
    ("bgp status", "", "read"),
    ("capture", "-w @/out.pcapng --count 1", "operate"),
    ("config confirm", "", "configure"),
    ("config get", "", "read"),
    ("config history", "", "read"),
    ("config put", "@/lb.toml --if-match *", "configure"),
    ("config reload", "", "configure"),
    ("config rollback", "", "configure"),
    ("digest", "", "read"),
    ("events", "", "read"),
    ("flow list", "", "read"),
    ("flow purge", "--all", "operate"),
    ("health list", "", "read"),
    ("kv top", "--once", "operate"),
    ("log level", "debug --for 10m", "operate"),
    ("machine drain", "", "operate"),
    ("machine undrain", "", "operate"),
    ("machine upgrade", "", "configure"),
    ("status", "", "read"),
    ("top", "--once --interval 100ms", "read"),
    ("vip announce", "--all", "operate"),
    ("vip list", "", "read"),
    ("vip withdraw", "www --reason maintenance --for 10m", "operate"),
    ("where", "192.0.2.77:4000 203.0.113.10:80 tcp", "read"),
];
