//! Tests that every subcommand with `--json` prints only objects that match their schema, even for
//! errors.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, process};

use admin::{Limits, Listener, Rules, Socket, listen, router, serve};
use axum::Router;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

#[path = "../../admin/tests/api/mock.rs"]
mod mock;

/// A simulated balancer, and files for the subcommands that need no balancer.
struct Bed {
    folder: PathBuf,
    _file: Socket,
    _runtime: Runtime,
}

impl Bed {
    fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("sluicegate-json-{name}-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let file = runtime.block_on(async {
            let (commands, _) = mock::start();
            let router = router(commands, Rules::new(true), Router::new());
            let (file, listener) = listen(&folder.join("admin.sock"), 0o600, None).unwrap();
            tokio::spawn(serve(Listener::Unix(listener), router, Limits::default()));
            file
        });
        fs::write(folder.join("hash.key"), "000102030405060708090a0b0c0d0e0f\n").unwrap();
        let alone = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(folder.join("hash.key"), alone).unwrap();
        fs::write(folder.join("lb.toml"), FILE).unwrap();
        fs::write(folder.join("in.pcap"), EMPTY_PCAP).unwrap();
        Self { folder, _file: file, _runtime: runtime }
    }

    /// Runs a command line and returns its exit code and output. Each `@` is replaced by the
    /// folder.
    fn run(&self, line: &str) -> (i32, String) {
        let line = line.replace('@', self.folder.to_str().unwrap());
        sluicegate(&line.split_whitespace().collect::<Vec<_>>())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn sluicegate(words: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sluicegate")).args(words).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

/// Returns all subcommands whose help lists `--json`.
fn verbs_with_json() -> BTreeSet<String> {
    let (mut left, mut found) = (vec![String::new()], BTreeSet::new());
    while let Some(verb) = left.pop() {
        let words: Vec<&str> = verb.split_whitespace().chain(["--help"]).collect();
        let (code, help) = sluicegate(&words);
        assert_eq!(code, 0, "{help}");
        let below = help.split_once("Commands:\n").map(|(_, below)| below).unwrap_or_default();
        let names =
            below.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("    "));
        let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
        left.extend(names.map(|name| format!("{verb} {name}").trim().to_owned()));
        if help.lines().any(|line| line.trim_start().starts_with("--json")) {
            found.insert(verb);
        }
    }
    found
}

// Promise: json-output
#[test]
fn every_answer_of_every_verb_is_an_object_with_a_schema() {
    let bed = Bed::new("answers");
    let run = ANSWERS.iter().map(|(verb, _)| (*verb).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(verbs_with_json(), run, "ANSWERS does not list all verbs");
    for (verb, rest) in ANSWERS {
        let line = format!("{verb} --json {}", rest.replace("SOCKET", "--socket @/admin.sock"));
        let (code, text) = bed.run(&line);
        let objects: Vec<Value> = serde_json::Deserializer::from_str(&text)
            .into_iter()
            .collect::<Result<_, _>>()
            .unwrap_or_else(|error| panic!("{line}: {error}: {text}"));
        assert!(!objects.is_empty(), "{line}: no output");
        for object in objects {
            assert_eq!(object["schema"], 1, "{line}: {object:#}");
            assert_eq!(object.get("error").is_some(), REFUSED.contains(verb), "{line}: {object:#}");
        }
        assert!(code <= 1 || REFUSED.contains(verb), "{line}: {code}");
    }
}

// Promise: json-output
#[test]
fn wrong_usage_is_an_object_too_on_standard_output_alone() {
    let bed = Bed::new("usage");
    for (line, why) in [
        ("--json", "Usage: sluicegate"),
        ("status --json --bogus", "unexpected argument '--bogus' found"),
        ("backend drain --json", "<BACKEND>"),
        ("backend weight b1 heavy --json", "expected a number or `file`"),
        ("no-such-verb --json", "unrecognized subcommand"),
        ("capture --json", "unexpected argument '--json' found"),
        // The following errors are reported by the subcommand, not by the argument parser.
        ("flow purge --json", "`flow purge` needs --vip"),
        ("log level loud --json", "expected error, warn, info, debug, trace or file"),
        ("log level debug --json", "log level debug --for 10m"),
        ("log level --for 10m --json", "<LEVEL>"),
        ("log level file --for 10m --json", "does not accept --for or --reason"),
        ("top --json", "needs --once"),
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = Command::new(env!("CARGO_BIN_EXE_sluicegate")).args(&words).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!((output.status.code(), &*output.stderr), (Some(2), &b""[..]), "{line}: {text}");
        let said: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"));
        let shape = (&said["schema"], &said["kind"], &said["problems"]);
        assert_eq!(shape, (&json!(1), &json!("usage"), &json!([])), "{line}: {said}");
        assert!(said["error"].as_str().unwrap().contains(why), "{line}: {said}");
    }
    // An argument after `--` is not an option.
    assert!(!bed.run("where --bogus -- --json").1.starts_with('{'));
    for help in ["--help --json", "status --help --json", "--version --json", "backend list --version --json"]
    {
        let (code, text) = bed.run(help);
        assert!(code == 0 && !text.starts_with('{'), "{help}: {text}");
    }
}

#[test]
fn json_errors_have_the_fields_of_api_errors() {
    let bed = Bed::new("refusals");
    let asked = |line: &str| {
        let (code, text) = bed.run(line);
        let mut said: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        (code, said["kind"].take(), said["error"].take(), said["problems"].as_array().unwrap().len())
    };
    let refused = asked("backend drain b9 --json --socket @/admin.sock");
    assert_eq!(refused, (1, json!("not_found"), json!("no backend b9"), 0));
    fs::write(bed.folder.join("wrong.toml"), "wrong = 1\n").unwrap();
    let (code, kind, _, problems) =
        asked("config put @/wrong.toml --if-match b00t-7 --json --socket @/admin.sock");
    assert_eq!((code, kind, problems), (1, json!("invalid"), 2));
    let (code, kind, why, _) = asked("status --json --socket @/none.sock");
    assert_eq!((code, kind), (3, json!("no_daemon")));
    assert!(why.as_str().unwrap().starts_with("cannot reach the balancer at "), "{why}");
    let (code, kind, ..) = asked("config diff @/none.toml @/none.toml --json");
    assert_eq!((code, kind), (1, json!("failed")));
}

/// All subcommands with their arguments. `SOCKET` is replaced by the option that selects the socket
/// of the simulated balancer.
const ANSWERS: &[(&str, &str)] = &[
    ("backend down", "b1 SOCKET"),
    ("backend drain", "b1 SOCKET"),
    ("backend list", "SOCKET"),
    ("backend undrain", "b1 SOCKET"),
    ("backend up", "b1 SOCKET"),
    ("backend weight", "b1 5 SOCKET"),
    ("bgp status", "SOCKET"),
    ("config check", "@/lb.toml"),
    ("config diff", "@/lb.toml @/lb.toml"),
    ("config confirm", "SOCKET"),
    ("config get", "SOCKET"),
    ("config history", "SOCKET"),
    ("config put", "@/lb.toml --if-match b00t-7 SOCKET"),
    ("config reload", "SOCKET"),
    ("config rollback", "SOCKET"),
    ("decap", "--interface no-such-nic --from 192.0.2.1 --vip 203.0.113.10"),
    ("digest", "SOCKET"),
    ("doctor", "--config @/lb.toml --machine lb1"),
    ("events", "SOCKET"),
    ("flow list", "SOCKET"),
    ("flow purge", "--all SOCKET"),
    ("health list", "SOCKET"),
    ("kv top", "SOCKET"),
    ("log level", "SOCKET"),
    ("machine drain", "SOCKET"),
    ("machine undrain", "SOCKET"),
    ("machine upgrade", "SOCKET"),
    ("probe", "tcp://127.0.0.1:1 --count 1 --interval 100ms --timeout 100ms"),
    ("replay", "@/in.pcap @/out.pcap --config @/lb.toml --machine lb1"),
    ("simulate", "--config @/lb.toml --to @/lb.toml --flows 10"),
    ("status", "SOCKET"),
    ("top", "--once --interval 100ms SOCKET"),
    ("trace", "192.0.2.77:4000 203.0.113.10:80 tcp --via 192.0.2.1 --config @/lb.toml"),
    ("vip announce", "--all SOCKET"),
    ("vip list", "SOCKET"),
    ("vip withdraw", "www --for 10m --reason test SOCKET"),
    ("where", "192.0.2.77:4000 203.0.113.10:80 tcp --config @/lb.toml"),
];

/// The subcommands that fail in this test: two need a real interface, and `machine undrain` needs a
/// machine that is draining.
const REFUSED: [&str; 3] = ["decap", "machine undrain", "trace"];

const FILE: &str = "[cluster]\nname = \"fra1\"\nhash_key_file = \"hash.key\"\n\
    [machine.lb1]\naddresses = [\"192.0.2.1\"]\ninterfaces = [\"no-such-nic\"]\n\
    [pool.web]\nchecks = []\nbackends = [{ name = \"b1\", address = \"198.18.1.1\" }]\n\
    [vip.www]\naddresses = [\"203.0.113.10\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"web\" }]\n";

/// The header of a pcap file with Ethernet frames: microseconds, little endian, version 2.4.
const EMPTY_PCAP: [u8; 24] =
    [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
