//! Tests of the testbed.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use testbed::{
    Bed, BedSpec, Capture, Frame, FrameSpec, Namespace, Process, UdpServer, device_counts, eventually, flood,
    inject, mac_of, udp_ask,
};

const BOUND: Duration = Duration::from_secs(20);

fn without_balancer() -> BedSpec {
    BedSpec { balancers: 0, backends: 2, ..BedSpec::default() }
}

#[test]
fn client_reaches_backends_over_both_families() {
    let bed = Bed::new(&without_balancer()).unwrap();
    for host in &bed.backends {
        for server in [SocketAddr::from((host.v4, 80)), SocketAddr::from((host.v6, 80))] {
            let reply = bed.http_client().get(server, "/").unwrap();
            assert_eq!((reply.status, reply.backend.as_str()), (200, host.name.as_str()));
            assert_eq!(reply.client_seen, Some(reply.local));
            assert_eq!(reply.local.ip(), bed.client.address(server.ip()));
            assert_eq!(reply.server_seen, Some(server));
        }
    }
    assert_eq!(bed.http.iter().map(testbed::HttpServer::requests).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn parallel_requests_and_large_bodies_succeed() {
    let bed = Bed::new(&without_balancer()).unwrap();
    let server = SocketAddr::from((bed.backends[0].v4, 80));
    let replies = bed.http_client().get_many(server, "/", 300, 16);
    assert_eq!(replies.len(), 300);
    assert!(replies.iter().all(|reply| reply.as_ref().is_ok_and(|r| r.backend == "b1")));
    let ports: BTreeSet<u16> = replies.iter().flatten().map(|reply| reply.local.port()).collect();
    // A few ports may repeat: the kernel reuses a port when the old connection is gone.
    assert!(ports.len() > 250, "too few distinct source ports, {}", ports.len());

    let mut open = bed.http_client().connect(server).unwrap();
    assert_eq!(open.get("/bytes/1000000").unwrap().body.len(), 1_000_000);
    let posted = open.post("/", &[7; 100_000]).unwrap();
    assert!(posted.body.ends_with(b"received 100000\n"));
    assert_eq!(open.get("/status/503").unwrap().status, 503);
}

#[test]
fn without_a_balancer_a_vip_answers_nobody() {
    let spec = BedSpec { balancers: 1, backends: 1, ..BedSpec::default() };
    let bed = Bed::new(&spec).unwrap();
    let client = bed.http_client().connect_timeout(Duration::from_millis(300));
    for ipv4 in [true, false] {
        let replies = client.get_many(bed.vip(ipv4, 80), "/", 8, 8);
        assert_eq!((replies.len(), replies.iter().flatten().count()), (8, 0));
    }
}

#[test]
fn backend_replies_from_the_vip() {
    // The packet is sent directly to the backend, encapsulated as by a balancer.
    let bed = Bed::new(&BedSpec { balancers: 0, backends: 1, ..BedSpec::default() }).unwrap();
    let backend = &bed.backends[0];
    for ipv4 in [true, false] {
        let vip = bed.vip(ipv4, 80);
        let via = backend.address(vip.ip());
        bed.router.ip(&format!("route add {}/{} via {via}", vip.ip(), if ipv4 { 32 } else { 128 })).unwrap();
        let reply = bed.http_client().get(vip, "/").unwrap();
        assert_eq!((reply.peer, reply.server_seen, reply.client_seen), (vip, Some(vip), Some(reply.local)));
        let echo = bed.vip(ipv4, Bed::ECHO_PORT);
        let reply = udp_ask(&bed.client.ns, echo, b"hello there", BOUND).unwrap();
        assert_eq!((reply.backend.as_str(), reply.from, reply.client_seen), ("b1", echo, Some(reply.local)));
        let sink = bed.vip(ipv4, Bed::SINK_PORT);
        udp_ask(&bed.client.ns, sink, b"x", Duration::from_millis(100)).unwrap_err();
    }
    assert_eq!(bed.udp_answered(), 2);
}

#[test]
fn switched_testbed_shares_one_link() {
    let bed = Bed::new(&BedSpec { balancers: 2, backends: 2, switched: true, ..BedSpec::default() }).unwrap();
    for balancer in &bed.balancers {
        for (n, backend) in bed.backends.iter().enumerate() {
            for server in [SocketAddr::from((backend.v4, 80)), SocketAddr::from((backend.v6, 80))] {
                let replies = testbed::Client::new(&balancer.ns).get(server, "/").unwrap();
                assert_eq!(replies.backend, format!("b{}", n + 1));
            }
        }
        // The hosts have resolved each other's MAC address without the router.
        let mut neighbours = Command::new("ip");
        neighbours.args(["neigh", "show", "198.18.1.1"]);
        let neighbours = String::from_utf8(balancer.ns.output(neighbours).unwrap().stdout).unwrap();
        let mac = mac_of(&bed.backends[0].ns, "eth0").unwrap().map(|byte| format!("{byte:02x}")).join(":");
        assert!(neighbours.contains(&mac), "{neighbours} {mac}");
    }
}

#[test]
fn frames_are_injected_and_captured_with_vlan_tags() {
    let (left, right) = (Namespace::new("left").unwrap(), Namespace::new("right").unwrap());
    testbed::Veth { queues: 1, mtu: 1500 }.join(left.device("eth0"), right.device("eth0")).unwrap();
    let (from, to) = (mac_of(&left, "eth0").unwrap(), mac_of(&right, "eth0").unwrap());
    let port_9 = |frame: &[u8]| Frame::parse(frame).is_some_and(|f| f.ip.ports() == Some((4000, 9)));
    let (there, here) = (
        Capture::start(&right, "eth0", 3, port_9).unwrap(),
        Capture::start(&left, "eth0", 9, port_9).unwrap(),
    );
    let plain = FrameSpec::smallest_udp(
        from,
        to,
        "198.18.0.2:4000".parse().unwrap(),
        "203.0.113.10:9".parse().unwrap(),
    );
    inject(&left, "eth0", &plain.bytes()).unwrap();
    let tagged = FrameSpec { vlans: vec![7], ..plain.clone() }.bytes();
    inject(&left, "eth0", &tagged).unwrap();
    let twice = FrameSpec { vlans: vec![100, 7], ..plain.clone() }.bytes();
    inject(&left, "eth0", &twice).unwrap();
    let seen = there.wait_for(3, BOUND).unwrap();
    assert_eq!(seen[0].bytes, plain.bytes());
    assert_eq!((&seen[1].bytes, &seen[2].bytes), (&tagged, &twice));
    assert!(seen.iter().all(|frame| !frame.outgoing));
    assert!(here.wait_for(1, BOUND).unwrap()[0].outgoing);
    inject(&left, "eth0", &plain.bytes()).unwrap();
    assert_eq!(eventually(BOUND, || Some(there.beyond_limit()).filter(|&n| n > 0)), Some(1));
    assert_eq!(there.frames().len(), 3);
}

#[test]
fn flood_sends_as_many_frames_as_the_device_counts() {
    let (left, right) = (Namespace::new("left").unwrap(), Namespace::new("right").unwrap());
    testbed::Veth { queues: 4, mtu: 1500 }.join(left.device("eth0"), right.device("eth0")).unwrap();
    right.ip("addr add 198.18.0.1/24 dev eth0").unwrap();
    let _sink = UdpServer::sink(&right, "198.18.0.1:9".parse().unwrap()).unwrap();
    let (from, to) = (mac_of(&left, "eth0").unwrap(), mac_of(&right, "eth0").unwrap());
    let spec = FrameSpec::smallest_udp(
        from,
        to,
        "198.18.0.2:1000".parse().unwrap(),
        "198.18.0.1:9".parse().unwrap(),
    );
    let before = device_counts(&left, "eth0").unwrap();
    let running = flood(&left, "eth0", spec.flows(100), Duration::from_millis(200)).unwrap();
    let (sent, time) = running.join().unwrap().unwrap();
    let counted =
        |now: testbed::DeviceCounts| now.tx_packets + now.tx_dropped - before.tx_packets - before.tx_dropped;
    // The kernel may send a few packets of its own, for neighbor discovery.
    let seen = counted(device_counts(&left, "eth0").unwrap());
    assert!(
        sent > 0 && (sent..sent + 20).contains(&seen),
        "{sent} frames sent in {time:?}, {seen} counted by the device"
    );
}

#[test]
fn process_output_signals_and_drop_work() {
    let ns = Namespace::new("process").unwrap();
    let script = "trap 'echo going; exit 3' TERM; echo up; echo aside >&2; while :; do sleep 0.05; done";
    let mut process = Process::start(&ns, "script", "sh", &["-c", script]).unwrap();
    process.wait_for_line(BOUND, |line| line == "up").unwrap();
    process.wait_for_line(BOUND, |line| line == "aside").unwrap();
    let id = process.id();
    assert_eq!(process.stop(BOUND).unwrap().code(), Some(3));
    assert!(process.lines().iter().any(|line| line.text == "going"));
    assert!(!Path::new(&format!("/proc/{id}")).exists());

    let mut absent = Process::start(&ns, "absent", "no-such-program", &[]).unwrap();
    assert_eq!(absent.wait(BOUND).unwrap().code(), Some(127));
    let mut stubborn =
        Process::start(&ns, "stubborn", "sh", &["-c", "trap '' TERM; echo up; exec sleep 1000"]).unwrap();
    stubborn.wait_for_line(BOUND, |line| line == "up").unwrap();
    let message = stubborn.stop(Duration::from_millis(200)).unwrap_err().to_string();
    assert!(message.contains("stubborn did not end"), "{message}");
    assert_eq!(stubborn.wait(BOUND).unwrap().signal(), Some(9));
}

#[test]
fn child_ends_with_its_namespace() {
    let ns = Namespace::new("short").unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", "sh", "-c", "echo up; exec sleep 1000"])
        .stdout(Stdio::piped());
    let mut child = ns.start(command).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    drop(ns);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

/// Builds a testbed and waits. The next test runs this function in a separate process and kills the
/// process.
#[test]
fn holder_of_a_bed() {
    let Ok(witness) = env::var(HOLDER) else { return };
    let bed = Bed::new(&BedSpec { backends: 1, ..BedSpec::default() }).unwrap();
    let sleeper = Process::start(&bed.backends[0].ns, "sleeper", "sleep", &["1000"]).unwrap();
    let is_asleep =
        || fs::read_to_string(format!("/proc/{}/comm", sleeper.id())).ok().filter(|name| name == "sleep\n");
    eventually(BOUND, is_asleep).unwrap();
    let spaces = [&bed.client.ns, &bed.router, &bed.balancers[0].ns, &bed.backends[0].ns];
    for (n, ns) in spaces.iter().enumerate() {
        ns.ip(&format!("link add name w{n} type veth peer name w{n} netns {witness}")).unwrap();
    }
    println!("\nHELD {}", sleeper.id());
    loop {
        thread::park();
    }
}

#[test]
fn killed_testbed_leaves_no_process_or_namespace() {
    // Each namespace of the testbed gets one end of a link, and the namespace `witness` has the
    // other end. A link disappears when the namespace of the testbed is removed.
    let witness = Namespace::new("witness").unwrap();
    let links = || (0..9).filter(|n| device_counts(&witness, &format!("w{n}")).is_ok()).count();
    let mut holder = Command::new(env::current_exe().unwrap())
        .args(["bed::holder_of_a_bed", "--exact", "--nocapture"])
        .env(HOLDER, witness.tid().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let held = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("HELD ").map(str::to_owned));
    let sleeper = format!("/proc/{}", held.unwrap());
    assert!(links() == 4 && Path::new(&sleeper).exists());
    holder.kill().unwrap();
    holder.wait().unwrap();
    let gone = eventually(BOUND, || (links() == 0 && !Path::new(&sleeper).exists()).then_some(()));
    assert!(gone.is_some(), "{} namespaces, process {sleeper}: {}", links(), Path::new(&sleeper).exists());
}

const HOLDER: &str = "SLUICEGATE_TEST_HOLDER";
