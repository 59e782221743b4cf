//! The command line against the admin API over a real Unix socket; the control loop behind it is played by the test.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use axum::Router;
use control_plane::admin::socket::listen;
use control_plane::admin::{Door, Limits, Rules, Socket, router, serve};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

#[path = "../../control-plane/tests/admin/mock.rs"]
mod mock;

struct Balancer {
    folder: PathBuf,
    log: mock::Log,
    _file: Socket,
    _runtime: Runtime,
}

impl Balancer {
    fn start() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("sluicegate-operator-{}-{number}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (log, file) = runtime.block_on(async {
            let (commands, log) = mock::start();
            let router = router(commands, Rules { put: true }, Router::new());
            let (file, listener) = listen(&folder.join("admin.sock"), 0o600, None).unwrap();
            tokio::spawn(serve(Door::Unix(listener), router, Limits::default()));
            (log, file)
        });
        Self { folder, log, _file: file, _runtime: runtime }
    }

    /// Runs a verb; its exit code and what it prints.
    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let output = sluicegate(arguments, &self.folder.join("admin.sock"));
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap(), text)
    }

    fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let (code, text) = self.run(&[arguments, &["--json"]].concat());
        (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    fn last(&self) -> String {
        self.log.lock().unwrap().last().cloned().unwrap_or_default()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn sluicegate(arguments: &[&str], socket: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.args(arguments).arg("--socket").arg(socket).output().unwrap()
}

fn assert_says(text: &str, wanted: &[&str]) {
    for words in wanted {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
}

#[test]
fn status_says_what_is_and_ends_with_a_finding() {
    let balancer = Balancer::start();
    let (code, text) = balancer.run(&["status"]);
    assert_eq!(code, 1, "not ready is a finding");
    let wanted = [
        "lb1 of fra1, sluicegate 0.1.0, up 1h02m",
        "ready        no\n             no VIP is ready",
        "7 (000000000000) of /etc/sluicegate/sluicegate.toml, the file has changed since",
        "0 of 1 ready",
        "1 serving, 1 draining, 0 down, 0 unknown",
        "refused, took 3.5 ms: pool.web: no backend",
        "b2 in web: draining, for 12s",
        "own fault",
        "MTU of eth0 is 1500",
    ];
    assert_says(&text, &wanted);
    let (code, status) = balancer.json(&["status"]);
    assert_eq!((code, &status["boot_id"], &status["drift"]), (1, &json!("b00t"), &json!("file_changed")));
}

#[test]
fn lists_have_a_row_for_each_thing() {
    let balancer = Balancer::start();
    let (code, text) = balancer.run(&["backend", "list"]);
    assert_eq!(code, 1, "a backend that drains is a finding");
    assert_says(&text, &["BACKEND", "198.18.1.1", "100.00%", "operator", "draining weight 3"]);
    assert_eq!(text.lines().count(), 3);
    let (code, text) = balancer.run(&["vip", "list"]);
    assert_eq!(code, 0);
    assert_says(&text, &["203.0.113.10 2001:db8:f::10", "tcp 80,443", "web-spare", "1 of 2"]);
    let (code, text) = balancer.run(&["health", "list"]);
    assert_eq!(code, 1);
    assert_says(&text, &["198.18.1.1:8080", "vip 203.0.113.10", "412us", "+-", "status 503"]);
    assert_eq!(balancer.json(&["backend", "list"]).1[0]["name"], "b1");
    assert_eq!(balancer.json(&["vip", "list"]).1[0]["services"][0]["serving_pool"], "web-spare");
    assert_eq!(balancer.json(&["health", "list"]).1["targets"][1]["state"], "down");
}

#[test]
fn orders_reach_the_loop_as_typed() {
    let balancer = Balancer::start();
    for (arguments, asked) in [
        (&["backend", "drain", "b1"][..], "Drain b1 in None"),
        (&["backend", "undrain", "b1", "--pool", "web"], "Undrain b1 in Some(\"web\")"),
        (&["backend", "down", "b1"], "Down b1 in None"),
        (&["backend", "up", "b1"], "Up b1 in None"),
        (&["backend", "weight", "b1", "5", "--pool", "a b&c"], "Weight(Some(5)) b1 in Some(\"a b&c\")"),
        (&["backend", "weight", "b1", "file"], "Weight(None) b1 in None"),
        (&["flow", "purge", "--vip", "www"], "purge Vip(\"www\")"),
        (&["flow", "purge", "--backend", "b1"], "purge Backend(\"b1\")"),
        (&["flow", "purge", "--all"], "purge All"),
        (&["flow", "list"], "list All up to 100"),
        (&["flow", "list", "--backend", "b1", "--limit", "1"], "list Backend(\"b1\") up to 1"),
        (&["config", "reload"], "Reload"),
        (
            &["where", "--live", "[2001:db8::7]:40000", "[2001:db8:f::10]:443", "udp"],
            "where [2001:db8::7]:40000 [2001:db8:f::10]:443 17",
        ),
    ] {
        let (code, text) = balancer.run(arguments);
        assert_eq!((code, balancer.last().as_str()), (0, asked), "{text}");
        assert_eq!(balancer.json(arguments).0, 0);
    }
    assert_says(
        &balancer.run(&["backend", "drain", "b1"]).1,
        &["serving", "draining", "note: kept over reloads"],
    );
    assert_says(&balancer.run(&["flow", "purge", "--all"]).1, &["7 flows forgotten"]);
    assert_says(&balancer.run(&["flow", "list"]).1, &["00c0ffee1234", "established"]);
    let (code, text) = balancer.run(&["where", "--live", "192.0.2.7:1", "203.0.113.10:80", "tcp"]);
    assert_eq!(code, 0);
    assert_says(&text, &["b1 at 198.18.1.1", "no_vip"]);
}

#[test]
fn what_the_balancer_refuses_is_said_and_ends_with_a_finding() {
    let balancer = Balancer::start();
    let (code, text) = balancer.run(&["backend", "drain", "b9"]);
    assert_eq!((code, text.as_str()), (1, "sluicegate: no backend b9\n"));
    assert_eq!(balancer.run(&["flow", "list", "--vip", "nowhere"]).0, 1);
    assert_eq!(balancer.run(&["flow", "list", "--limit", "0"]).0, 1);
}

#[test]
fn a_configuration_goes_there_and_back() {
    let balancer = Balancer::start();
    assert_eq!(balancer.run(&["config", "get"]), (0, "schema = 1\n".to_owned()));
    let tag = balancer.json(&["config", "get"]).1["etag"].as_str().unwrap().to_owned();
    let file = balancer.folder.join("new.toml");
    let path = file.to_str().unwrap();
    fs::write(&file, "schema = 1 # new\n").unwrap();
    let (code, text) = balancer.run(&["config", "put", path, "--if-match", &tag]);
    assert_eq!((code, balancer.last().as_str()), (0, "put \"schema = 1 # new\\n\" onto Some(\"b00t-7\")"));
    assert_says(
        &text,
        &["generation 8 is in force", "backend b3 comes", "at the next start: io", "warning: "],
    );
    assert_eq!(balancer.run(&["config", "put", path, "--if-match", "*"]).0, 0);
    assert_eq!(balancer.run(&["config", "put", path, "--if-match", "b00t-6"]).0, 1);
    fs::write(&file, "wrong = 1\n").unwrap();
    let (code, text) = balancer.run(&["config", "put", path, "--if-match", &tag]);
    assert_eq!(code, 1);
    assert_says(&text, &["2 problems", "put:1:2: error: wrong: found a key, allowed schema"]);
}

#[test]
fn top_once_gives_rates() {
    let balancer = Balancer::start();
    let (code, rates) = balancer.json(&["top", "--once", "--interval", "100ms"]);
    assert_eq!(code, 0);
    // The mock's readings are 1,000 packets apart, whatever the time.
    let seconds = rates["seconds"].as_f64().unwrap();
    let about = |value: &Value, packets: f64| (value.as_f64().unwrap() * seconds - packets).abs() < 1e-6;
    assert!(seconds >= 0.1, "{rates}");
    assert!(about(&rates["total"]["packets_per_second"], 1_000.0), "{rates}");
    assert_eq!(rates["backends"][0]["name"], "b1");
    assert!(about(&rates["backends"][0]["packets_per_second"], 900.0), "{rates}");
    assert!(about(&rates["services"][0]["bits_per_second"], 512_000.0), "{rates}");
    assert!(about(&rates["drops"][0]["packets_per_second"], 4.0), "{rates}");
    assert_eq!(
        (rates["drops"].as_array().unwrap().len(), rates["threads"].as_array().unwrap().len()),
        (1, 2)
    );
    let (code, text) = balancer.run(&["top", "--once", "--interval", "100ms"]);
    assert_eq!(code, 0);
    assert_says(&text, &["packets/s", "www tcp 80,443", "b2", "no_vip", "80 of 2000 flow entries"]);
}

#[test]
fn wrong_usage_is_two_and_asks_nobody() {
    let balancer = Balancer::start();
    for arguments in [
        &["flow", "purge"][..],
        &["flow", "list", "--vip", "www", "--backend", "b1"],
        &["backend", "weight", "b1", "heavy"],
        &["backend", "weight", "b1", "-1"],
        &["backend", "drain"],
        &["top"],
        &["top", "--json"],
        &["top", "--once", "--interval", "1ms"],
        &["where", "192.0.2.7:1", "203.0.113.10:80", "tcp"],
        &["config", "put", "/dev/null"],
    ] {
        let (code, text) = balancer.run(arguments);
        assert_eq!(code, 2, "{arguments:?} {text}");
    }
    assert_eq!(balancer.last(), "");
}

#[test]
fn no_daemon_is_three() {
    let folder = env::temp_dir().join(format!("sluicegate-operator-none-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (nowhere, left) = (folder.join("nowhere.sock"), folder.join("left.sock"));
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    for socket in [&nowhere, &left] {
        for arguments in [
            &["status"][..],
            &["backend", "drain", "b1"],
            &["vip", "list", "--json"],
            &["health", "list"],
            &["flow", "purge", "--all"],
            &["top", "--once"],
            &["config", "get"],
            &["where", "--live", "192.0.2.7:1", "203.0.113.10:80", "tcp"],
        ] {
            let output = sluicegate(arguments, socket);
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{arguments:?} {text}");
            assert!(text.contains("no balancer answers") && text.contains(".sock"), "{text}");
        }
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_socket_is_found_through_the_configuration() {
    let balancer = Balancer::start();
    let file = balancer.folder.join("sluicegate.toml");
    let example = include_str!("../../../config/sluicegate.toml");
    let socket = balancer.folder.join("admin.sock");
    let text = example.replace("/run/sluicegate/admin.sock", socket.to_str().unwrap());
    fs::write(&file, text).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_sluicegate")).args(["vip", "list", "--config"]).arg(&file).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}
