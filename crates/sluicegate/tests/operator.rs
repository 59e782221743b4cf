//! Tests the command line against the admin API over a real Unix socket. A mock replaces the
//! control loop of the daemon.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use std::{env, fs, process};

use admin::{Limits, Listener, Rules, Socket, listen, router, serve};
use axum::Router;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

#[path = "../../admin/tests/api/mock.rs"]
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
            let router = router(commands, Rules::new(true), Router::new());
            let (file, listener) = listen(&folder.join("admin.sock"), 0o600, None).unwrap();
            tokio::spawn(serve(Listener::Unix(listener), router, Limits::default()));
            (log, file)
        });
        Self { folder, log, _file: file, _runtime: runtime }
    }

    /// Runs a subcommand and returns its exit code and output.
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
        "7 (files 000000000000) of /etc/sluicegate/sluicegate.toml, the file has changed since the last reload",
        "digests      configuration 111111111111: must be the same on all machines of the cluster (not compared here)\n             \
         tables 222222222222: must be the same on all machines of the shard west shortly after a change\n",
        "VIPs         0 of 1 ready\n             not announced: dl, held down\n",
        "1 serving, 1 draining, 12 down, 0 unknown\n             down: b3 in web, b4 in web and 10 more\n",
        "2 of 3 VIPs announced\n             without a session: tor2\n",
        "refused 1h00m ago, took 3.5 ms: pool.web: no backend",
        "confirmation generation 7 is rolled back to 5 in 4m51s unless `sluicegate config confirm` is run",
        "b2 in web: draining, set 12s ago",
        "local failure",
        "interface    eth0, 2 packet threads, copy, driver",
        "next start   io.batch: 64 -> 32",
        "MTU of eth0 is 1500",
    ];
    assert_says(&text, &wanted);
    let (code, status) = balancer.json(&["status"]);
    assert_eq!((code, &status["boot_id"], &status["drift"]), (1, &json!("b00t"), &json!("file_changed")));
    assert_eq!(status["needs_restart"], json!(["io.batch: 64 -> 32"]));
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
    assert_says(&text, &["198.18.1.1:8080", "vip 203.0.113.10", "412us", "+-", "status 503 (3m10s ago)"]);
    assert_eq!(balancer.json(&["backend", "list"]).1["backends"][0]["name"], "b1");
    assert_eq!(balancer.json(&["vip", "list"]).1["vips"][0]["services"][0]["serving_pool"], "web-spare");
    assert_eq!(balancer.json(&["health", "list"]).1["targets"][1]["state"], "down");
}

#[test]
fn lists_select_rows() {
    let balancer = Balancer::start();
    for (arguments, code, names) in [
        (&["backend", "list", "--vip", "www"][..], 1, &["b1", "b2"][..]),
        (&["backend", "list", "--pool", "web", "--state", "draining"], 1, &["b2"]),
        (&["backend", "list", "--state", "draining", "--state", "serving", "--limit", "1"], 1, &["b1"]),
        (&["backend", "list", "--state", "unknown"], 0, &[]),
        (&["health", "list", "--vip", "www"], 1, &["b1", "b1"]),
        (&["health", "list", "--pool", "web", "--state", "down"], 1, &["b1"]),
        (&["vip", "list", "--pool", "web-spare", "--state", "ready"], 0, &["www"]),
        (&["vip", "list", "--state", "not-ready"], 0, &[]),
        (&["bgp", "status", "--vip", "www", "--limit", "1"], 1, &["www"]),
        (&["flow", "list", "--pool", "nowhere"], 0, &[]),
    ] {
        let (found, text) = balancer.run(arguments);
        let known = |line: &'_ str| {
            ["b1", "b2", "www"].into_iter().find(|name| line.starts_with(&format!("{name} ")))
        };
        let shown: Vec<&str> = text.lines().filter_map(known).collect();
        assert_eq!((found, &*shown), (code, names), "{arguments:?}: {text}");
    }
    let words = "1 row left out (1 not serving), raise --limit";
    assert_says(&balancer.run(&["backend", "list", "--limit", "1"]).1, &[words]);
    for (arguments, words) in [
        (&["backend", "list", "--pool", "nowhere"][..], "no backend in pool \"nowhere\""),
        (&["health", "list", "--vip", "nobody"], "no VIP \"nobody\", `sluicegate vip list` shows all names"),
        (&["bgp", "status", "--vip", "nobody"], "no VIP \"nobody\""),
    ] {
        let (code, text) = balancer.run(arguments);
        assert_eq!((code, text.contains(words)), (1, true), "{arguments:?}: {text}");
    }
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
        (&["machine", "upgrade"], "hand over to None"),
        (&["machine", "upgrade", "/opt/new one"], "hand over to Some(\"/opt/new one\")"),
        (&["config", "reload"], "Reload"),
        (&["config", "reload", "--confirm", "5m", "--force"], "Reload, to be confirmed in 300s, by force"),
        (&["config", "confirm"], "Confirm"),
        (&["config", "history"], "History"),
        (&["config", "history", "6"], "generation 6"),
        (&["config", "rollback"], "go back to None"),
        (&["config", "rollback", "5", "--confirm", "90s"], "go back to Some(5), to be confirmed in 90s"),
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
    assert_says(&balancer.run(&["flow", "purge", "--all"]).1, &["7 flows deleted"]);
    assert_says(&balancer.run(&["flow", "list"]).1, &["00c0ffee1234", "established"]);
    let (code, text) = balancer.run(&["where", "--live", "192.0.2.7:1", "203.0.113.10:80", "tcp"]);
    assert_eq!(code, 0);
    assert_says(&text, &["b1 at 198.18.1.1", "no_vip", "reject", "rejected as no_backend with a TCP reset"]);
}

#[test]
fn rejected_request_exits_with_1_and_reason() {
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
        &["generation 8 is in force", "backend b3 comes", "needs a restart: io.batch: 64 -> 32", "warning: "],
    );
    fs::write(&file, "schema = 1\n").unwrap();
    let (code, text) = balancer.run(&["config", "put", path, "--if-match", "*"]);
    assert_eq!(code, 0);
    assert!(text.starts_with("nothing changed, generation 7 stays in force\n"), "{text}");
    fs::write(&file, "schema = 1 # new\n").unwrap();
    assert_eq!(balancer.run(&["config", "put", path, "--if-match", "*"]).0, 0);
    assert_eq!(balancer.run(&["config", "put", path, "--if-match", "b00t-6"]).0, 1);
    fs::write(&file, "wrong = 1\n").unwrap();
    let (code, text) = balancer.run(&["config", "put", path, "--if-match", &tag]);
    assert_eq!(code, 1);
    assert_says(
        &text,
        &[
            "2 problems",
            "\nerror: put:1:2: unknown key \"wrong\"\nhelp: known keys: schema\n",
            "\nerror: put: unknown key \"wrong\"\nhelp: known keys: schema\n",
        ],
    );
}

#[test]
fn top_once_gives_rates() {
    let balancer = Balancer::start();
    let (code, rates) = balancer.json(&["top", "--once", "--interval", "100ms"]);
    assert_eq!(code, 0);
    // Consecutive readings of the mock always differ by 1,000 packets.
    let seconds = rates["seconds"].as_f64().unwrap();
    let about = |value: &Value, packets: f64| (value.as_f64().unwrap() * seconds - packets).abs() < 1e-6;
    assert!(seconds >= 0.1, "{rates}");
    assert!(about(&rates["total"]["packets_per_second"], 1_000.0), "{rates}");
    assert_eq!(
        (&rates["backends"][0]["name"], &rates["backends"][1]["state"]),
        (&json!("b1"), &json!("draining"))
    );
    assert_eq!(
        (&rates["backends"][0]["state"], &rates["services"][0]["state"]),
        (&json!("down/serving"), &json!("ready"))
    );
    assert!(about(&rates["backends"][0]["packets_per_second"], 900.0), "{rates}");
    assert!(about(&rates["services"][0]["bits_per_second"], 512_000.0), "{rates}");
    assert!(about(&rates["drops"][0]["packets_per_second"], 4.0), "{rates}");
    assert_eq!(
        (rates["drops"].as_array().unwrap().len(), rates["threads"].as_array().unwrap().len()),
        (1, 2)
    );
    let (code, text) = balancer.run(&["top", "--once", "--interval", "100ms"]);
    assert_eq!(code, 0);
    assert_says(
        &text,
        &["packets/s", "www tcp 80,443", "b2", "draining", "no_vip", "80 of 2000 flow entries"],
    );
}

#[test]
fn wrong_usage_exits_with_2_without_request() {
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
            let json = arguments.contains(&"--json");
            let text = String::from_utf8_lossy(if json { &output.stdout } else { &output.stderr });
            assert_eq!(output.status.code(), Some(3), "{arguments:?} {text}");
            assert_eq!(text.contains(r#""kind":"no_daemon""#), json, "{text}");
            assert!(text.contains("cannot reach the balancer at") && text.contains(".sock"), "{text}");
        }
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn unresponsive_balancer_fails_after_wait_timeout() {
    let folder = env::temp_dir().join(format!("sluicegate-operator-mute-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mute = folder.join("mute.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&mute).unwrap();
    let timed = |arguments: &[&str]| {
        let started = Instant::now();
        let output = sluicegate(arguments, &mute);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments:?} {text}");
        (started.elapsed(), text)
    };
    let (took, text) = timed(&["config", "reload", "--wait", "200ms"]);
    println!("--wait 200ms: ended after {took:?}");
    assert!(took >= Duration::from_millis(200), "{took:?}");
    assert!(
        text.contains("cannot reach the balancer at") && text.contains("no response within 200ms"),
        "{text}"
    );
    let (took, text) = timed(&["status"]);
    println!("without: ended after {took:?}");
    assert!(took >= Duration::from_secs(10), "{took:?}");
    assert!(text.contains("no response within 10s (--wait sets a longer timeout)"), "{text}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn wrong_usage_message_explains_the_fix() {
    let balancer = Balancer::start();
    for (arguments, wanted) in [
        (&["top", "--json"][..], "needs --once"),
        (
            &["where", "192.0.2.7", "203.0.113.10:80", "tcp"],
            "expected an address with a port, such as 192.0.2.7:40000",
        ),
        (
            &["where", "192.0.2.7:1", "203.0.113.10:80", "quic"],
            "expected tcp, udp, sctp, udp-lite, icmp or a number",
        ),
        (&["status", "--wait", "10"], "such as 10s"),
        (&["backend", "drain", "b1", "--for", "0s"], "expected whole seconds with a unit"),
    ] {
        let (code, text) = balancer.run(arguments);
        assert_eq!(code, 2, "{arguments:?} {text}");
        assert_says(&text, &[wanted]);
    }
    for (arguments, wanted) in [
        (&["probe"][..], "sluicegate probe [OPTIONS] --config <FILE>"),
        (&["probe", "203.0.113.1"], "such as tcp://203.0.113.1:80"),
        (&["probe", "http://www.example.org/"], "host names are not resolved"),
        (&["probe", "tcp://203.0.113.1"], "tcp, udp, grpc, grpcs and agent have no default port"),
        (&["probe", "tcp://203.0.113.1:80/x"], "a tcp or udp target ends with its port"),
        (&["probe", "https://203.0.113.1"], "needs --ca FILE to verify the certificate, or --insecure"),
        (&["probe", "tcp://203.0.113.1:80", "--count", "0"], "expected a number of at least 1"),
        (&["probe", "tcp://203.0.113.1:80", "--metrics", "9000"], "expected an address with a port"),
        (&["probe", "tcp://203.0.113.1:80", "--timeout", "2s"], "--timeout 2s is longer than --interval 1s"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_sluicegate")).args(arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?} {text}");
        assert_says(&text, &[wanted]);
    }
}

#[test]
fn events_are_a_line_each_and_followed_without_a_repeat() {
    let balancer = Balancer::start();
    let (code, text) =
        balancer.run(&["events", "--since", "10m", "-n", "5", "--kind", "backend", "--kind", "link"]);
    assert_eq!(code, 0, "{text}");
    let wanted = [
        "2023-11-14T22:15:00.250Z warning backend backend down (backend=b1): connection refused\n",
        "2023-11-14T22:15:00.250Z info    link    eth0 is up again\n",
    ];
    assert_eq!(text, wanted.concat());
    let asked = balancer.last();
    for words in ["kinds: [Backend, Link]", "since: Some(600s)", "limit: 5"] {
        assert!(asked.contains(words), "{asked}");
    }
    let (_, view) = balancer.json(&["events"]);
    assert_eq!(
        (&view["schema"], &view["newest"], &view["events"][1]["cause"]),
        (&json!(1), &json!(7), &Value::Null)
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    let socket = balancer.folder.join("admin.sock");
    command.args(["events", "--follow", "--json", "--kind", "link", "--socket"]).arg(&socket);
    let following = command.stdout(process::Stdio::piped()).stderr(process::Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(100);
    let asks = || balancer.log.lock().unwrap().iter().filter(|asked| asked.contains("after: 7")).count();
    while asks() < 2 {
        assert!(Instant::now() < end, "no request for new events: {:?}", balancer.log.lock().unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(balancer);
    let output = following.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "the balancer is gone");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> =
        serde_json::Deserializer::from_str(&text).into_iter().map(Result::unwrap).collect();
    let numbers: Vec<_> = rows.iter().map(|row| row["number"].clone()).collect();
    assert_eq!(numbers[..2], [json!(6), json!(7)], "{text}");
    assert!(rows.iter().all(|row| row["schema"] == 1) && rows[2]["kind"] == "no_daemon", "{text}");
}

/// The log lines come from the API server, which runs in this test process.
#[test]
fn an_order_leaves_one_line_in_words() {
    let log = captured();
    let balancer = Balancer::start();
    for (arguments, words) in [
        (&["backend", "drain", "b1", "--pool", "web"][..], "operator command: drain backend b1 in pool web"),
        (&["backend", "weight", "b1", "5"], "operator command: set weight 5 for backend b1 "),
        (&["backend", "weight", "b1", "file"], "operator command: reset the weight of backend b1 "),
        (&["flow", "purge", "--vip", "www"], "operator command: purge the flows of VIP www: 7 flows"),
    ] {
        assert_eq!(balancer.run(arguments).0, 0);
        let text = String::from_utf8(log.lock().unwrap().clone()).unwrap();
        let logged = text.lines().filter(|line| line.contains(words.trim_end())).count();
        assert!(logged >= 1 && text.contains(words), "{words}: {text}");
    }
    assert_eq!(balancer.run(&["backend", "down", "b1", "--pool", "once"]).0, 0);
    assert_eq!(balancer.run(&["backend", "down", "b9", "--pool", "twice"]).0, 1);
    let text = String::from_utf8(log.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains("pool once")).count(), 1, "{text}");
    assert!(text.contains("operator command rejected"), "{text}");
    assert!(!text.contains("Weight(") && !text.contains("Some("), "{text}");
}

/// Returns a buffer with the log lines of this process.
fn captured() -> Arc<Mutex<Vec<u8>>> {
    static LOG: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();
    let log = LOG.get_or_init(|| {
        let log = Arc::new(Mutex::new(Vec::new()));
        let writer = Arc::clone(&log);
        let writer = move || Written(Arc::clone(&writer));
        tracing_subscriber::fmt().with_writer(writer).with_ansi(false).init();
        log
    });
    Arc::clone(log)
}

struct Written(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The configuration in this test has a warning and names an interface that does not exist.
#[test]
fn start_log_has_no_escape_sequences() {
    let balancer = Balancer::start();
    let file = balancer.folder.join("lb.toml");
    let key = balancer.folder.join("hash.key");
    fs::write(&key, "00112233445566778899aabbccddeeff").unwrap();
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(&file, SMALL.replace("KEY", key.to_str().unwrap())).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
        .args(["run", "--machine", "lb1", "--config"])
        .arg(&file)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
    assert!(
        text.contains("WARN")
            && text.contains(
                "pool \\\"p\\\" is never used, because it has 1 backend and its fallback has below = 9"
            ),
        "{text}"
    );
    assert!(!text.contains("warning:"), "the severity is printed twice: {text}");
}

#[test]
fn where_explains_icmp() {
    let balancer = Balancer::start();
    let (file, key) = (balancer.folder.join("lb.toml"), balancer.folder.join("hash.key"));
    fs::write(&key, "00112233445566778899aabbccddeeff").unwrap();
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(&file, SMALL.replace("KEY", key.to_str().unwrap())).unwrap();
    let ask = |destination: &str, protocol: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        let command = command.args(["where", "192.0.2.7:0", destination, protocol, "--config"]).arg(&file);
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    for protocol in ["icmp", "1"] {
        let (code, text) = ask("203.0.113.1:0", protocol);
        assert_eq!(code, 0, "{text}");
        assert_says(&text, &["echo requests to a VIP are answered in place", "other ICMP is dropped"]);
        assert!(!text.contains("no_vip"), "{text}");
    }
    assert_says(&ask("203.0.113.1:0", "58").1, &["dropped", "ICMP of the other address family"]);
    assert_eq!(ask("203.0.113.1:0", "58").0, 1);
    assert_says(&ask("203.0.113.9:0", "icmp").1, &["no_vip"]);
    // The request must contain the protocol number of ICMP for the address family.
    let live = ["where", "--live", "[2001:db8::7]:0", "[2001:db8:f::10]:0", "icmp"];
    assert_eq!(balancer.run(&live).0, 0);
    assert_eq!(balancer.last(), "where [2001:db8::7]:0 [2001:db8:f::10]:0 58");
}

const SMALL: &str = r#"
[cluster]
name = "c"
hash_key_file = "KEY"
table_size = 1009
[machine.lb1]
addresses = ["192.0.2.1"]
interfaces = ["no-such-nic"]
[pool.spare]
backends = [{ name = "b2", address = "198.18.0.2" }]
[pool.p]
fallback = { pool = "spare", below = 9 }
backends = [{ name = "b1", address = "198.18.0.1" }]
[vip.v]
addresses = ["203.0.113.1"]
services = [{ ports = [80], protocol = "tcp", pool = "p" }]
"#;

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
