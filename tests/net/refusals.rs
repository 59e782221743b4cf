//! Tests of configurations and machines with which the balancer must not start, and of the commands
//! that check them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use testbed::{Balancer, Bed, BedSpec, Decap, Ended, LbConfig, Process};

use crate::scene::{BOUND, Scene, backend_of, verb};

fn bed() -> Bed {
    Bed::new(&BedSpec { backends: 1, ..BedSpec::default() }).unwrap()
}

fn run(bed: &Bed, file: &Path, machine: &str) -> Ended {
    verb(bed, &["run", "--config", file.to_str().unwrap(), "--machine", machine])
}

/// Checks that a command exited with status 1 and printed all `words`.
fn refused(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for word in words {
        assert!(ended.err.contains(word), "no `{word}` in:\n{}", ended.err);
    }
}

/// Writes the configuration with some text replaced, and returns its path.
fn file_with(bed: &Bed, from: &str, to: &str) -> PathBuf {
    let file = LbConfig::new(bed).write(bed, 0).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(&file, text.replace(from, to)).unwrap();
    file
}

#[test]
fn an_unknown_interface_is_named() {
    let bed = bed();
    refused(&run(&bed, &file_with(&bed, "\"lb0\"", "\"nope0\""), "lb1"), &["nope0", "no interface"]);
    // The balancer starts on the same machine with a valid configuration, so the machine name was
    // the only problem.
    Balancer::start(&bed, 0, &LbConfig::new(&bed)).unwrap();
}

#[test]
fn unknown_machine_name_lists_known_names() {
    let bed = bed();
    refused(&run(&bed, &LbConfig::new(&bed).write(&bed, 0).unwrap(), "lb9"), &["lb9", "lb1"]);
}

#[test]
fn unknown_group_is_named() {
    let bed = bed();
    let config = LbConfig::new(&bed).write(&bed, 0).unwrap();
    let text = fs::read_to_string(&config).unwrap();
    let (before, after) = text.split_once("[admin]\n").unwrap();
    let (own, after) = after.split_once('\n').unwrap();
    let path = own.split('"').nth(1).unwrap();
    let socket = format!("socket = {{ path = \"{path}\", group = \"nobodys-group\" }}");
    fs::write(&config, format!("{before}[admin]\n{socket}\n{after}")).unwrap();
    refused(&run(&bed, &config, "lb1"), &["nobodys-group"]);
}

#[test]
fn missing_capability_is_named_with_purpose() {
    let bed = bed();
    let file = LbConfig::new(&bed).write(&bed, 0).unwrap();
    let program = bed.program().unwrap();
    for (drop, names) in [
        ("-net_admin", &["CAP_NET_ADMIN", "attach an XDP program"][..]),
        ("-net_raw", &["CAP_NET_RAW", "AF_XDP sockets"]),
        ("-bpf,-sys_admin", &["CAP_BPF or CAP_SYS_ADMIN", "load BPF programs"]),
        ("-all", &["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF"]),
    ] {
        let args = [
            "--bounding-set",
            drop,
            "--",
            program.to_str().unwrap(),
            "run",
            "--machine",
            "lb1",
            "--config",
            file.to_str().unwrap(),
        ];
        refused(&Process::to_end(&bed.balancers[0].ns, "setpriv", &args, BOUND).unwrap(), names);
    }
    let ended = Process::to_end(
        &bed.backends[0].ns,
        "setpriv",
        &[
            "--bounding-set",
            "-all",
            "--",
            program.to_str().unwrap(),
            "decap",
            "--interface",
            "eth0",
            "--from",
            "192.0.2.1",
            "--vip",
            "203.0.113.10",
        ],
        BOUND,
    );
    let ended = ended.unwrap();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    println!("output of decap without capabilities: {}", ended.err);
}

#[test]
fn foreign_xdp_program_is_named() {
    let bed = bed();
    let (host, program) = (&bed.balancers[0], bed.program().unwrap());
    let args = ["decap", "--interface", host.device, "--from", "192.0.2.0/24", "--vip", "203.0.113.10"];
    let mut other = Process::start(&host.ns, "decap", program, &args).unwrap();
    other.wait_for_line(BOUND, |line| line.contains("ready")).unwrap();
    let file = LbConfig::new(&bed).write(&bed, 0).unwrap();
    refused(&run(&bed, &file, "lb1"), &["lb0 already has an XDP program", "running `sluicegate decap`"]);
    assert!(other.stop(BOUND).unwrap().success(), "the other program was stopped");
    Balancer::start(&bed, 0, &LbConfig::new(&bed)).unwrap();
}

#[test]
fn decap_on_an_unknown_interface_is_refused() {
    let bed = bed();
    let args = ["decap", "--interface", "nope0", "--from", "192.0.2.1", "--vip", "203.0.113.10"];
    refused(&verb(&bed, &args), &["nope0"]);
}

#[test]
fn missing_readable_or_invalid_hash_key_is_rejected() {
    let bed = bed();
    let file = LbConfig::new(&bed).write(&bed, 0).unwrap();
    let key = bed.dir().join("hash.key");
    let good = fs::read(&key).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    refused(&run(&bed, &file, "lb1"), &["lb1.toml:", "hash.key\" can be read by other users"]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&key, "0123456789abcdef-secret\n").unwrap();
    let ended = run(&bed, &file, "lb1");
    refused(&ended, &["the secret of \"hash_key_file\""]);
    assert!(!ended.err.contains("0123456789abcdef"), "the hash key was printed, {}", ended.err);
    fs::remove_file(&key).unwrap();
    refused(&run(&bed, &file, "lb1"), &["lb1.toml:", "hash.key"]);
    fs::write(&key, good).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    Balancer::start(&bed, 0, &LbConfig::new(&bed)).unwrap();
}

#[test]
fn a_missing_file_is_named() {
    let bed = bed();
    refused(&run(&bed, Path::new("/nonexistent/a.toml"), "lb1"), &["/nonexistent/a.toml"]);
}

#[test]
fn wrong_usage_ends_with_2() {
    let bed = bed();
    for args in [
        &["run", "--bogus"][..],
        &["frobnicate"],
        &[],
        &["where", "198.18.0.2:1", "203.0.113.10:80"],
        &["where", "198.18.0.2", "203.0.113.10:80", "tcp"],
        &["where", "198.18.0.2:1", "203.0.113.10:80", "tpc"],
        &["config"],
        &["config", "check"],
        &["replay", "in.pcap"],
        &["decap", "--interface", "eth0"],
        &["decap", "--interface", "eth0", "--from", "192.0.2.1"],
        &["decap", "--interface", "eth0", "--vip", "203.0.113.10"],
        &["decap", "--interface", "eth0", "--from", "192.0.2.0/33", "--vip", "203.0.113.10"],
        &["decap", "--interface", "eth0", "--from", "192.0.2.1", "--vip", "203.0.113.0/33"],
    ] {
        let ended = verb(&bed, args);
        assert_eq!(ended.code, Some(2), "{args:?}: {ended:?}");
        assert!(ended.err.contains("Usage:") || ended.err.contains("--help"), "{args:?}: {}", ended.err);
    }
    assert_eq!(verb(&bed, &["--version"]).code, Some(0));
    assert_eq!(verb(&bed, &["--help"]).code, Some(0));
}

#[test]
fn config_check_reports_all_problems_in_text_and_json() {
    let bed = bed();
    let file = LbConfig::new(&bed).write(&bed, 0).unwrap();
    let path = file.to_str().unwrap();
    let good = verb(&bed, &["config", "check", path]);
    assert_eq!(good.code, Some(0), "{good:?}");
    let text = fs::read_to_string(&file).unwrap();
    let broken = text
        .replace("kind = \"gre\"", "kind = \"gree\"")
        .replace("weight = 1 ", "weight = -1 ")
        .replace("protocol = \"tcp\"", "protocol = \"tcp\", colour = 1");
    fs::write(&file, broken).unwrap();
    let ended = verb(&bed, &["config", "check", path]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for message in
        ["\"kind\" must be ", "\"weight\" must be between 0 and 65535, got -1", "unknown key \"colour\""]
    {
        let line = ended.out.lines().find(|line| line.contains(message));
        let line = line.unwrap_or_else(|| panic!("no {message} in:\n{}", ended.out));
        assert!(line.starts_with(&format!("error: {path}:")), "{line}");
    }
    let json = verb(&bed, &["config", "check", path, "--json"]);
    let reported: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let problems = reported["problems"].as_array().unwrap();
    assert_eq!((json.code, problems.len()), (Some(1), 3), "{reported:#}");
    for problem in problems {
        let line = usize::try_from(problem["line"].as_u64().unwrap()).unwrap();
        let content = fs::read_to_string(&file).unwrap().lines().nth(line - 1).unwrap().to_owned();
        let message = problem["message"].as_str().unwrap();
        assert!(
            content.contains("gree") || content.contains("-1") || content.contains("colour"),
            "{message}: {content}"
        );
    }
}

#[test]
fn where_agrees_with_where_requests_go() {
    let scene = Scene::with(|bed| LbConfig::new(bed).weights(&[1, 2, 3]));
    let file = scene.bed.dir().join("lb1.toml");
    for ipv4 in [true, false] {
        for reply in scene.ask(ipv4, 16) {
            assert_eq!(backend_of(&scene.bed, &file, reply.local, reply.peer, "tcp"), reply.backend);
        }
        let mut flows = scene.flows(ipv4, 16);
        let vip = scene.bed.vip(ipv4, Bed::ECHO_PORT);
        let answered = scene.round(&mut flows);
        for (local, backend) in flows.local().unwrap().into_iter().zip(answered) {
            assert_eq!(backend_of(&scene.bed, &file, local, vip, "udp"), backend);
        }
        // Also checks the text output, and flows that no backend can serve.
        let path = file.to_str().unwrap();
        let (source, to) = (scene.bed.client.address(vip.ip()), |port| scene.bed.vip(ipv4, port).to_string());
        let source = std::net::SocketAddr::new(source, 9).to_string();
        let said = verb(&scene.bed, &["where", &source, &to(80), "tcp", "--config", path]);
        assert!(said.code == Some(0) && said.out.contains("backend  b"), "{said:?}");
        let nowhere = verb(&scene.bed, &["where", &source, &to(81), "tcp", "--config", path]);
        assert!(nowhere.code == Some(1) && nowhere.out.contains("no_vip"), "{nowhere:?}");
    }
}

#[test]
fn decap_starts_again_at_once_after_a_kill() {
    let bed = bed();
    let from = ["192.0.2.0/24".to_owned()];
    let mut first = Decap::start(&bed, 0, &from).unwrap();
    first.process.kill();
    // After SIGKILL, the process may end some time before the kernel removes the program.
    let again = testbed::eventually(BOUND, || Decap::start(&bed, 0, &from).ok());
    again.expect("decap does not start again").stop().unwrap();
}
