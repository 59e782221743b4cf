//! Tests of the packet tracer. The client sends marked packets to a VIP, and the balancers report
//! to the client how they handled the packets.

use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use forwarder::{Flow, HashKey, Mark, TraceKey};
use serde_json::Value;
use testbed::{Balancer, Bed, BedSpec, Capture, Ended, LbConfig, Process, Service, eventually, send_at};

use crate::scene::{BOUND, SILENCE, Scene, backend_of};

const PORT: u16 = 41_000;

fn scene() -> Scene {
    Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        config.more = receivers(bed);
        // The program that traces the flow may start late on a busy machine, and the flow has only
        // one packet.
        config.cluster += "\nflow_timeouts = { new = \"2m\" }";
        config
    })
}

fn receivers(bed: &Bed) -> String {
    format!("[trace]\nreceivers = [\"{}\", \"{}\"]\n", bed.client.v4, bed.client.v6)
}

fn file(bed: &Bed) -> PathBuf {
    bed.dir().join(format!("{}.toml", bed.balancers[0].name))
}

fn router(ipv4: bool) -> &'static str {
    if ipv4 { "198.18.0.1" } else { "2001:db8::1" }
}

/// Runs `sluicegate trace` on the client host.
fn trace(bed: &Bed, file: &Path, source: SocketAddr, vip: SocketAddr, more: &[&str]) -> Ended {
    let (source, to, ipv4) = (source.to_string(), vip.to_string(), vip.is_ipv4());
    let file = file.to_str().unwrap();
    let patience: &[&str] = if more.contains(&"--timeout") { &[] } else { &["--timeout", "20s"] };
    let args =
        [&["trace", &source, &to], more, patience, &["--via", router(ipv4), "--config", file]].concat();
    Process::to_end(&bed.client.ns, bed.program().unwrap(), &args, 2 * BOUND).unwrap()
}

/// Runs `sluicegate trace` and returns its reports. Each packet must have exactly one report, from
/// the balancer.
fn reported(scene: &Scene, source: SocketAddr, vip: SocketAddr, more: &[&str]) -> Vec<Value> {
    let ended = trace(&scene.bed, &file(&scene.bed), source, vip, &[more, &["--json"]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}\n{}", scene.diagnosis());
    let trace: Value = serde_json::from_str(&ended.out).unwrap();
    let said = (&trace["schema"], &trace["source"], &trace["strangers"]);
    assert_eq!(said, (&1.into(), &Value::from(source.to_string()), &0.into()));
    let one = |probe: &Value| {
        let reports = probe["reports"].as_array().unwrap();
        assert_eq!(reports.len(), 1, "{trace}");
        assert_eq!((&reports[0]["machine"], &reports[0]["cluster"]), (&"lb1".into(), &"bed".into()));
        reports[0].clone()
    };
    trace["probes"].as_array().unwrap().iter().map(one).collect()
}

fn steps(reports: &[Value]) -> Vec<&str> {
    reports.iter().map(|report| report["step"].as_str().unwrap()).collect()
}

/// Captures encapsulated packets with a mark on each backend.
fn watch(bed: &Bed) -> Vec<Capture> {
    let marked = |frame: &[u8]| frame.windows(8).any(|bytes| bytes == b"\x8d\xf1SLUICE");
    bed.backends.iter().map(|host| Capture::start(&host.ns, "eth0", 100, marked).unwrap()).collect()
}

fn arrived(watches: &[Capture]) -> Vec<usize> {
    let incoming = |watch: &Capture| watch.frames().iter().filter(|frame| !frame.outgoing).count();
    watches.iter().map(incoming).collect()
}

#[test]
fn marked_packet_is_reported_and_delivered() {
    let scene = scene();
    for ipv4 in [true, false] {
        let vip = scene.bed.vip(ipv4, Bed::HTTP_PORT);
        let source = SocketAddr::new(scene.bed.client.address(vip.ip()), PORT);
        let watches = watch(&scene.bed);
        let reports = reported(&scene, source, vip, &["tcp"]);
        assert_eq!(steps(&reports), ["maglev", "flow_table"]);
        let expected = backend_of(&scene.bed, &file(&scene.bed), source, vip, "tcp");
        for report in &reports {
            assert_eq!((&report["verdict"], &report["protocol"]), (&"forward".into(), &6.into()));
            assert_eq!(report["backend"]["name"], expected.as_str(), "{report}");
            assert_eq!((&report["backend"]["encapsulation"], &report["thread"]), (&"gre".into(), &0.into()));
            assert_eq!(report["service"], "www tcp 80");
        }
        let at = scene.bed.backends.iter().position(|host| host.name == expected).unwrap();
        eventually(BOUND, || (arrived(&watches)[at] == 2).then_some(()))
            .expect("a packet did not reach the backend");
        assert_eq!(arrived(&watches).iter().sum::<usize>(), 2, "a packet reached a second backend");
    }
    let counts = scene.balancer.counters().unwrap().0;
    assert_eq!(counts["total"]["trace_reports"], 4, "{counts:#}");
}

#[test]
fn sctp_and_udp_lite_are_traced_to_their_backends() {
    let scene = Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        config.more = receivers(bed);
        for protocol in ["sctp", "udp-lite"] {
            config.services.push(Service { ports: "3868".to_owned(), protocol, hash: None });
        }
        config
    });
    for (ipv4, protocol) in [(true, "sctp"), (false, "sctp"), (true, "udp-lite"), (false, "udp-lite")] {
        let vip = scene.bed.vip(ipv4, 3868);
        let source = SocketAddr::new(scene.bed.client.address(vip.ip()), PORT);
        let watches = watch(&scene.bed);
        let reports = reported(&scene, source, vip, &[protocol]);
        assert_eq!(steps(&reports), ["maglev", "flow_table"]);
        let expected = backend_of(&scene.bed, &file(&scene.bed), source, vip, protocol);
        for report in &reports {
            assert_eq!(report["service"], format!("www {protocol} 3868"));
            assert_eq!(report["backend"]["name"], expected.as_str(), "{report}");
        }
        let at = scene.bed.backends.iter().position(|host| host.name == expected).unwrap();
        eventually(BOUND, || (arrived(&watches)[at] == 2).then_some(()))
            .expect("a packet did not reach the backend");
        let source = SocketAddr::new(source.ip(), PORT + 1);
        let more = [protocol, "--fragments", "--count", "1", "--json"];
        let ended = trace(&scene.bed, &file(&scene.bed), source, vip, &more);
        assert_eq!(ended.code, Some(0), "{ended:?}\n{}", scene.diagnosis());
        let trace: Value = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(trace["protocol"], protocol);
        let reports = trace["probes"][0]["reports"].as_array().unwrap();
        assert_eq!(steps(reports), ["maglev", "fragment_table"], "{trace:#}");
        assert_eq!(reports[0]["backend"], reports[1]["backend"]);
    }
}

#[test]
fn client_flow_is_traced_to_its_backend() {
    let scene = scene();
    for ipv4 in [true, false] {
        let mut flows = scene.flows(ipv4, 6);
        let answered = scene.round(&mut flows);
        let local = flows.local().unwrap();
        drop(flows);
        for (source, backend) in local.into_iter().zip(answered) {
            let reports =
                reported(&scene, source, scene.bed.vip(ipv4, Bed::ECHO_PORT), &["udp", "--count", "1"]);
            assert_eq!(
                (steps(&reports), reports[0]["backend"]["name"].as_str()),
                (vec!["flow_table"], Some(&*backend))
            );
        }
    }
}

#[test]
fn trace_tree_names_machine_steps_and_drop_reason() {
    let scene = scene();
    let (vip, client) = (scene.bed.vip(true, Bed::HTTP_PORT), IpAddr::from(scene.bed.client.v4));
    // The source address of a traced packet does not need to belong to a host.
    let source = SocketAddr::new([198, 18, 0, 77].into(), PORT);
    let ended =
        trace(&scene.bed, &file(&scene.bed), source, vip, &["tcp", "--listen", &format!("{client}:9000")]);
    assert_eq!(ended.code, Some(0), "{ended:?}\n{}", scene.diagnosis());
    let backend = backend_of(&scene.bed, &file(&scene.bed), source, vip, "tcp");
    let lines: Vec<&str> = ended.out.lines().collect();
    assert!(
        lines[0].ends_with("reports to 198.18.0.2:9000") && lines[0].contains(" tcp, via 198.18.0.1 ("),
        "{ended:?}"
    );
    assert_eq!((lines[1], lines[3]), ("packet 1", "packet 2"));
    assert!(
        lines[2].starts_with("└─ lb1 (generation 1, thread 0) at +") && lines[2].contains("Maglev entry"),
        "{ended:?}"
    );
    assert!(lines[4].contains(&format!("ms: flow table -> backend {backend} at 198.18.1.")), "{ended:?}");
    let other = SocketAddr::new(vip.ip(), 81);
    let ended = trace(&scene.bed, &file(&scene.bed), source, other, &["tcp", "--count", "1"]);
    assert!(ended.code == Some(1) && ended.out.contains("dropped as no_vip"), "{ended:?}");
}

#[test]
fn trace_of_fragments_shows_fragment_table() {
    let scene = scene();
    for ipv4 in [true, false] {
        let vip = scene.bed.vip(ipv4, Bed::SINK_PORT);
        let source = SocketAddr::new(scene.bed.client.address(vip.ip()), PORT);
        let ended = trace(
            &scene.bed,
            &file(&scene.bed),
            source,
            vip,
            &["udp", "--fragments", "--count", "1", "--json"],
        );
        assert_eq!(ended.code, Some(0), "{ended:?}\n{}", scene.diagnosis());
        let trace: Value = serde_json::from_str(&ended.out).unwrap();
        let reports = trace["probes"][0]["reports"].as_array().unwrap();
        assert_eq!(steps(reports), ["maglev", "fragment_table"], "{trace:#}");
        assert_eq!(reports[0]["backend"], reports[1]["backend"]);
    }
}

#[test]
fn wrong_trace_key_brings_no_report() {
    let scene = scene();
    // The configuration is the same, but it refers to a different key file.
    let folder = scene.bed.dir().join("outsider");
    fs::create_dir(&folder).unwrap();
    let mut key = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(folder.join("hash.key"))
        .unwrap();
    key.write_all(b"ffffffffffffffffffffffffffffffff\n").unwrap();
    let text = fs::read_to_string(file(&scene.bed)).unwrap();
    let (ours, his) = (scene.bed.dir().join("hash.key"), folder.join("hash.key"));
    let text = text.replace(ours.to_str().unwrap(), his.to_str().unwrap());
    let his_file = folder.join("lb1.toml");
    fs::write(&his_file, text).unwrap();
    let vip = scene.bed.vip(true, Bed::HTTP_PORT);
    let source = SocketAddr::new(scene.bed.client.v4.into(), PORT);
    let watches = watch(&scene.bed);
    let ended = trace(&scene.bed, &his_file, source, vip, &["tcp", "--count", "3", "--timeout", "1s"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.out.matches("└─ no report").count(), 3, "{ended:?}");
    assert!(!ended.out.contains("lb1"), "{ended:?}");
    eventually(BOUND, || (arrived(&watches).iter().sum::<usize>() == 3).then_some(())).expect("forwarded");
    let total = &scene.balancer.counters().unwrap().0["total"];
    assert_eq!(
        (&total["trace_reports"], &total["trace_refused"]["mac"]),
        (&0.into(), &3.into()),
        "{total:#}"
    );
    std::thread::sleep(SILENCE);
    assert!(!scene.balancer.process.tail().contains("trace report lost"), "{}", scene.diagnosis());
}

/// The marks have the correct layout, but one has a wrong key, one has an old time, and one names a
/// receiver that is not listed.
#[test]
fn forged_stale_and_unlisted_marks_bring_no_report() {
    let scene = scene();
    let client = IpAddr::from(scene.bed.client.v4);
    let ears = scene.bed.client.ns.run(move || UdpSocket::bind((client, 9000))).unwrap();
    ears.set_read_timeout(Some(BOUND)).unwrap();
    let (ours, other) = ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [9; 16]);
    let [ours, other] = [ours, other].map(|key| TraceKey::derive(&HashKey::new(key)));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let good = Mark { receiver: (client, 9000).into(), unix_seconds: now, trace: 0x7ace, probe: 0 };
    // The receiver is the backend's own address, which is not in the list of receivers.
    let stranger = (IpAddr::from(scene.bed.backends[0].v4), 9000).into();
    let marks = [
        (other, Mark { probe: 1, ..good }),
        (ours, Mark { probe: 2, unix_seconds: now - 3_600, ..good }),
        (ours, Mark { probe: 3, unix_seconds: now + 3_600, ..good }),
        (ours, Mark { probe: 4, receiver: stranger, ..good }),
        (ours, Mark { probe: 5, ..good }),
    ];
    let at_stranger = Capture::start(&scene.bed.backends[0].ns, "eth0", 100, is_report).unwrap();
    let frames = marks.map(|(key, mark)| {
        let mut frame = scene.frame(true, Bed::SINK_PORT);
        let flow = Flow::new(frame.source, frame.destination, 17).unwrap();
        frame.payload = mark.sign(&key, &flow).to_vec();
        frame.bytes()
    });
    let sent = frames.len();
    send_at(&scene.bed.router, &scene.bed.balancers[0].port, frames.to_vec(), 1_000.0).unwrap();
    // Reports arrive in the order of their packets. After the report of the last packet, no other
    // report can follow.
    let mut room = [0; 2_000];
    let length = heard(&ears, &mut room).unwrap_or_else(|error| panic!("{error}\n{}", scene.diagnosis()));
    let line = room[..length].split(|byte| *byte == b'\n').next().unwrap();
    let report: Value = serde_json::from_slice(line).unwrap();
    assert_eq!((&report["probe"], &report["trace"]), (&5.into(), &"0000000000007ace".into()), "{report}");
    ears.set_read_timeout(Some(SILENCE)).unwrap();
    assert!(ears.recv(&mut room).is_err(), "an unexpected second report arrived");
    assert_eq!(at_stranger.frames().len(), 0);
    let counts = scene.settled();
    assert_eq!((counts.sent(), counts.drops()), (sent as u64, vec![]), "a packet was not forwarded");
    let total = &counts.0["total"];
    let refused = ["mac", "time", "receiver"].map(|reason| total["trace_refused"][reason].as_u64().unwrap());
    assert_eq!((total["trace_reports"].as_u64(), refused), (Some(1), [1, 2, 1]), "{total:#}");
}

/// Returns the next datagram. A receive with a timeout fails with EINTR if the process was stopped
/// and resumed (signal(7)), so it is repeated.
fn heard(ears: &UdpSocket, room: &mut [u8]) -> io::Result<usize> {
    loop {
        match ears.recv(room) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            heard => return heard,
        }
    }
}

/// Returns `true` if the frame is a UDP datagram to the report port without encapsulation.
fn is_report(frame: &[u8]) -> bool {
    frame.get(14 + 9) == Some(&17) && frame.get(14 + 22..14 + 24) == Some(&9000u16.to_be_bytes())
}

/// The router sends both fragments of a datagram to one balancer. If the hash of the addresses
/// selects the other balancer, the fragments are redirected, and both balancers report them.
#[test]
fn redirected_fragment_is_reported_by_both_machines() {
    let mut file_of_both = None;
    let spec = BedSpec { balancers: 2, ..BedSpec::default() };
    let scene = Scene::new(&spec, |bed| {
        let mut config = LbConfig::new(bed);
        config.more = receivers(bed);
        file_of_both = Some(config.clone());
        config
    });
    let _second = Balancer::start(&scene.bed, 1, &file_of_both.unwrap()).unwrap();
    for (ipv4, sources) in [(true, "198.18.0."), (false, "2001:db8::")] {
        let vip = scene.bed.vip(ipv4, Bed::SINK_PORT);
        let listen = SocketAddr::new(scene.bed.client.address(vip.ip()), 9000).to_string();
        let args = ["udp", "--fragments", "--count", "1", "--listen", &listen];
        let sources = (30..90).map(|host| format!("{sources}{host}").parse().unwrap());
        let (mut straight, mut redirected) = (0, None);
        for source in sources.map(|host: IpAddr| SocketAddr::new(host, PORT)) {
            let reports = of_pieces(&scene, source, vip, &args);
            match reports.len() {
                2 => straight += 1,
                _ => redirected = Some((source, reports)),
            }
            if straight > 0 && redirected.is_some() {
                break;
            }
        }
        let (source, reports) = redirected.expect("no datagram was redirected");
        assert!(straight > 0, "all datagrams were redirected");
        told_by_both(&scene, source, vip, &reports);
        let ended = trace(&scene.bed, &file(&scene.bed), source, vip, &args);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let lines: Vec<&str> = ended.out.lines().skip(1).collect();
        assert!(lines[1].starts_with("├─ lb") && lines[3].starts_with("└─ lb"), "{}", ended.out);
        assert!(lines[2].starts_with("│  └─ lb") && lines[4].starts_with("   └─ lb"), "{}", ended.out);
        for line in [lines[1], lines[3]] {
            assert!(line.contains("redirected -> machine lb"), "{}", ended.out);
        }
        for line in [lines[2], lines[4]] {
            assert!(
                line.contains("decapsulated, from peer: ") && line.contains("-> backend b"),
                "{}",
                ended.out
            );
        }
        println!("{}", ended.out);
    }
}

/// Returns the reports for a datagram of two fragments, or an empty list if the trace failed.
fn of_pieces(scene: &Scene, source: SocketAddr, vip: SocketAddr, args: &[&str]) -> Vec<Value> {
    let ended = trace(&scene.bed, &file(&scene.bed), source, vip, &[args, &["--json"]].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}\n{}", scene.diagnosis());
    let trace: Value = serde_json::from_str(&ended.out).unwrap();
    trace["probes"][0]["reports"].as_array().unwrap().clone()
}

/// Checks that one balancer redirected both fragments and that the other balancer sent both to one
/// backend.
fn told_by_both(scene: &Scene, source: SocketAddr, vip: SocketAddr, reports: &[Value]) {
    let expected = backend_of(&scene.bed, &file(&scene.bed), source, vip, "udp");
    let by = |step: &str| reports.iter().filter(|report| report["step"] == step).collect::<Vec<_>>();
    let (redirects, onward) = (by("redirect"), reports.iter().filter(|report| report["opened"] == "peer"));
    let onward: Vec<&Value> = onward.collect();
    assert_eq!((reports.len(), redirects.len(), onward.len()), (4, 2, 2), "{reports:#?}");
    for report in &redirects {
        assert_eq!((&report["opened"], &report["verdict"]), (&Value::Null, &"forward".into()));
        assert_eq!(report["backend"]["name"], onward[0]["machine"], "{reports:#?}");
        assert_eq!(report["backend"]["encapsulation"], "gre");
        assert_ne!(report["machine"], onward[0]["machine"]);
    }
    assert_eq!((by("fragment_table").len(), onward.len()), (1, 2), "{reports:#?}");
    for report in onward {
        assert_eq!(report["backend"]["name"], expected.as_str(), "{reports:#?}");
        let ports = if report["step"] == "fragment_table" { 0 } else { PORT };
        assert_eq!(report["source"], SocketAddr::new(source.ip(), ports).to_string());
    }
}

#[test]
fn wrong_trace_arguments_are_rejected() {
    let scene = scene();
    let (bed, vip) = (&scene.bed, scene.bed.vip(true, Bed::HTTP_PORT));
    let source = SocketAddr::new(bed.client.v4.into(), PORT);
    let at = file(bed);
    for (more, said) in [
        (&["tcp", "--listen", "127.0.0.1:9000"][..], "127.0.0.1 is not a receiver in [trace]"),
        (&["tcp", "--listen", "0.0.0.0:9000"], "is not an address to which machines can send reports"),
        (&["icmp"], "possible values: tcp, udp, sctp, udp-lite"),
        (&["tcp", "--count", "101"], "101 is not in 1..=100"),
    ] {
        let ended = trace(bed, &at, source, vip, more);
        assert!(ended.code == Some(2) && ended.err.contains(said), "{ended:?}");
    }
    let run = |args: &[&str]| Process::to_end(&bed.client.ns, bed.program().unwrap(), args, BOUND).unwrap();
    let (from, to, path) = (source.to_string(), vip.to_string(), at.to_str().unwrap());
    let far = run(&["trace", &from, &to, "tcp", "--via", "198.18.1.1", "--config", path]);
    assert!(far.code == Some(2) && far.err.contains("the route goes through 198.18.0.1"), "{far:?}");
    let silent = run(&["trace", &from, &to, "tcp", "--via", "198.18.0.99", "--config", path]);
    assert!(silent.code == Some(2) && silent.err.contains("--via 198.18.0.99"), "{silent:?}");
    // A balancer without the section `[trace]` sends no reports. The command must fail at once
    // instead of waiting for reports.
    let text = fs::read_to_string(&at).unwrap().replace(&receivers(bed), "");
    let plain = bed.dir().join("plain.toml");
    fs::write(&plain, text).unwrap();
    let ended = trace(bed, &plain, source, vip, &["tcp"]);
    assert!(ended.code == Some(2) && ended.err.contains("no [trace] section"), "{ended:?}");
    let program = bed.program().unwrap().to_str().unwrap().to_owned();
    let args = [
        "--bounding-set",
        "-net_raw",
        "--inh-caps",
        "-net_raw",
        &program,
        "trace",
        &from,
        &to,
        "tcp",
        "--via",
        router(true),
    ];
    let args = [&args[..], &["--config", path]].concat();
    let ended = Process::to_end(&bed.client.ns, "setpriv", &args, BOUND).unwrap();
    assert!(ended.code == Some(1) && ended.err.contains("CAP_NET_RAW"), "{ended:?}");
    assert_eq!(scene.balancer.counters().unwrap().0["total"]["rx"], 0);
}
