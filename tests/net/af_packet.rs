//! Tests of `io.mode = "af-packet"`. Packet sockets must provide the same guarantees as AF_XDP, and
//! the kernel's network stack must not process packets for VIPs.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testbed::{Balancer, Bed, BedSpec, Capture, Encapsulation, Frame, HttpServer, LbConfig, eventually};

use crate::fragments::{FLOWS, inboxes, received, send_both, with_inbox};
use crate::liveness::{becomes_unhealthy, bpftool, described};
use crate::own_traffic::pings;
use crate::path_mtu::upload;
use crate::scene::{BOUND, SILENCE, Scene, verb};
use crate::vlan::comes_back_tagged;

/// Returns the configuration with packet sockets and `threads` packet threads.
fn packet(config: LbConfig, threads: u32) -> LbConfig {
    LbConfig { io: format!("mode = \"af-packet\"\nqueues = {threads}"), ..config }
}

fn config(bed: &Bed) -> LbConfig {
    packet(LbConfig::new(bed), 1)
}

#[test]
fn af_packet_serves_requests_and_counters_match() {
    for encapsulation in [Encapsulation::Gre, Encapsulation::Gue] {
        let scene = Scene::with(|bed| config(bed).encapsulation(encapsulation));
        for ipv4 in [true, false] {
            scene.ask(ipv4, 30);
            let mut flows = scene.flows(ipv4, 30);
            scene.round(&mut flows);
            pings(&scene.bed.client.ns, scene.bed.vip(ipv4, Bed::HTTP_PORT).ip(), 2);
        }
        let counts = scene.settled();
        assert_eq!((counts.drops(), counts.over_threads(&["replies"])), (vec![], 4));
        assert_eq!(counts.modes(), [("lb0".to_owned(), "af-packet".to_owned())]);
        // Packets are received with enough headroom for every encapsulation.
        assert_eq!(counts.over_threads(&["head_room_mismatch"]), 0);
        scene.taken_off(counts.sent());
        let socket = LbConfig::admin_socket(&scene.bed, 0);
        let status = verb(&scene.bed, &["status", "--json", "--socket", socket.to_str().unwrap()]).out;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        assert_eq!(
            (status["mode"].as_str(), status["xdp_mode"].as_str()),
            (Some("af-packet"), Some("ingress"))
        );
    }
}

#[test]
fn af_packet_flow_stays_on_one_of_four_threads() {
    let scene = Scene::with(|bed| packet(LbConfig::new(bed), 4));
    for ipv4 in [true, false] {
        scene.ask(ipv4, 50);
        let mut flows = scene.flows(ipv4, 50);
        for _ in 0..4 {
            scene.round(&mut flows);
        }
    }
    let counts = scene.settled();
    assert_eq!((counts.threads(), counts.drops()), (4, vec![]));
    let rows = counts.0["threads"].as_array().unwrap();
    let received: Vec<u64> = rows.iter().map(|row| row["rx"].as_u64().unwrap()).collect();
    println!("received by thread: {received:?}");
    // The probability that at least one of the four threads gets none of the 200 flows is below 4 x
    // (3/4)^200 < 1e-24.
    assert!(received.iter().all(|&count| count > 0), "{received:?}");
    // A flow that changed its thread would be counted as new on each thread.
    let entries = counts.over_threads(&["flows", "inserts"]);
    assert_eq!(entries, 200);
    assert_eq!(counts.over_threads(&["to_threads"]), 0);
}

// Promise: af-packet-isolation
#[test]
fn af_packet_hides_vip_packets_from_the_kernel() {
    let scene = Scene::with(config);
    let host = &scene.bed.balancers[0];
    let vips = [true, false].map(|ipv4| scene.bed.vip(ipv4, Bed::ECHO_PORT).ip());
    // In the first case, the host has IP forwarding enabled, so its network stack would send
    // packets for the VIPs back to the router. In the second case the host has the VIP addresses
    // and would send errors for closed ports.
    host.ns.sysctl(&[("ipv4/conf/all/forwarding", "1"), ("ipv6/conf/all/forwarding", "1")]).unwrap();
    for is_local in [false, true] {
        if is_local {
            vips.iter().for_each(|vip| host.ns.ip(&format!("address add {vip} dev lo")).unwrap());
        }
        let of_vip = move |frame: &[u8]| {
            Frame::parse(frame).is_some_and(|frame| {
                let ends = [frame.ip.source, frame.ip.destination];
                ends.iter().any(|end| vips.contains(end))
            })
        };
        let seen = Capture::start(&scene.bed.router, &host.port, 1_000, of_vip).unwrap();
        for ipv4 in [true, false] {
            let mut flows = scene.flows(ipv4, 20);
            scene.round(&mut flows);
        }
        // The router sends all packets to the balancer through this port. A packet from a VIP may
        // return through this port only in encapsulated form.
        let frames = eventually(BOUND, || Some(seen.frames()).filter(|frames| frames.len() >= 40)).unwrap();
        let back: Vec<_> = frames.iter().filter(|frame| !frame.outgoing).collect();
        assert!(back.is_empty() && frames.len() == 40, "local: {is_local}: {back:02x?}");
    }
    assert_eq!(scene.settled().drops(), []);
}

// Promise: af-packet-isolation
#[test]
fn af_packet_leaves_own_traffic_to_the_kernel() {
    let scene = Scene::with(config);
    let host = &scene.bed.balancers[0];
    let server = HttpServer::start(&host.ns, "own", 2222).unwrap();
    for own in [IpAddr::from(host.v4), IpAddr::from(host.v6)] {
        pings(&scene.bed.client.ns, own, 5);
        let reply = scene.bed.http_client().get(SocketAddr::new(own, 2222), "/bytes/100000").unwrap();
        assert_eq!((reply.backend.as_str(), reply.body.len()), ("own", 100_000));
        pings(&host.ns, scene.bed.client.address(own), 2);
        scene.bed.router.ip(&format!("neigh flush dev {}", host.port)).unwrap();
        pings(&scene.bed.router, own, 2);
    }
    assert_eq!((server.requests(), scene.settled().received()), (2, 0));
    scene.ask(true, 4);
    scene.ask(false, 4);
    // All counters must come from one response, because packets may arrive between two requests.
    let counts = scene.settled();
    assert_eq!((counts.received(), counts.drops()), (counts.sent(), vec![]));
}

/// Returns `true` if the kernel still has the BPF program with this ID, attached or not.
fn is_loaded(program: &str) -> bool {
    Command::new("bpftool").args(["prog", "show", "id", program]).output().unwrap().status.success()
}

// Promise: af-packet-isolation
#[test]
fn af_packet_program_is_removed_after_exit_or_kill() {
    let mut scene = Scene::with(config);
    let host = scene.bed.balancers[0].clone();
    let disciplines = || host.ns.text("tc", &["qdisc", "show", "dev", host.device]).unwrap();
    let before = disciplines();
    assert!(!before.contains("clsact"), "{before}");
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        scene.ask(true, 8);
        let program = described(&scene, "link_type:\ttcx\n", "prog_id:");
        assert!(is_loaded(&program));
        scene.balancer.process.signal(signal).unwrap();
        scene.balancer.process.wait(BOUND).expect("the process did not end");
        let stopped = Instant::now();
        let gone = eventually(BOUND, || (!is_loaded(&program)).then(|| stopped.elapsed()));
        println!("program removed {gone:?} after {signal}");
        assert!(gone.is_some(), "program {program}");
        assert_eq!(disciplines(), before);
        pings(&scene.bed.client.ns, host.v4.into(), 2);
        scene.balancer = Balancer::start(&scene.bed, 0, &config(&scene.bed)).unwrap();
    }
    scene.ask(false, 8);
}

#[test]
fn af_packet_reassembles_across_threads() {
    let scene = Scene::with(|bed| packet(with_inbox(bed), 4));
    for ipv4 in [true, false] {
        let inboxes = inboxes(&scene, ipv4);
        let sent = send_both(&scene, scene.bed.vip(ipv4, crate::fragments::INBOX_PORT), &inboxes);
        assert_eq!(received(&inboxes), sent);
        assert_eq!(sent.len(), FLOWS);
    }
    let counts = scene.settled();
    assert_eq!((counts.drops(), counts.sent()), (vec![], counts.received()));
    assert!(counts.over_threads(&["to_threads"]) > 0, "{}", scene.diagnosis());
}

#[test]
fn af_packet_reports_packet_too_big() {
    let scene = Scene::new(&BedSpec { core_mtu: 1500, ..BedSpec::default() }, config);
    for ipv4 in [true, false] {
        let (reported, route) = upload(&scene, scene.bed.vip(ipv4, Bed::HTTP_PORT), 3_000_000);
        assert!(reported > 0 && route.contains("mtu 1476"), "{reported}, {route}");
    }
    assert_eq!(scene.settled().drops(), []);
}

#[test]
fn af_packet_forwards_jumbo_packets() {
    let spec = BedSpec { client_mtu: 8_900, core_mtu: 9_000, ..BedSpec::default() };
    let scene = Scene::new(&spec, config);
    for ipv4 in [true, false] {
        let (reported, route) = upload(&scene, scene.bed.vip(ipv4, Bed::HTTP_PORT), 3_000_000);
        assert!(reported == 0 && !route.contains("mtu"), "{reported}, {route}");
    }
    assert_eq!(scene.settled().drops(), []);
}

#[test]
fn af_packet_restores_vlan_tags() {
    comes_back_tagged(|bed| config(bed).encapsulation(Encapsulation::Gre));
}

#[test]
fn af_packet_drops_merged_and_oversized_packets() {
    let scene = Scene::with(config);
    let (router, host) = (&scene.bed.router, &scene.bed.balancers[0]);
    let merged = || scene.balancer.counters().unwrap().over_threads(&["socket", "rx_merged"]);
    // The MTU is larger than when the balancer started. A slot of the receive ring is 2,048 bytes
    // long, and its first 66 bytes precede the frame.
    router.ip(&format!("link set {} mtu 9000", host.port)).unwrap();
    host.ns.ip(&format!("link set {} mtu 9000", host.device)).unwrap();
    for (length, is_held) in [(1_982, true), (1_983, false), (4_000, false)] {
        let mut spec = scene.frame(true, Bed::SINK_PORT);
        spec.payload = vec![1; length - 42];
        testbed::inject(router, &host.port, &spec.bytes()).unwrap();
        let before = merged();
        let counted = eventually(BOUND, || {
            let counts = scene.balanced(BOUND);
            (counts.received() == 1 && (is_held || merged() > before)).then_some(())
        });
        assert!(counted.is_some(), "{length}\n{}", scene.diagnosis());
    }
    assert_eq!(merged(), 2);
    // With GRO, a NIC merges packets of a connection that arrive in quick succession. GRO is
    // enabled by default on many NICs.
    host.ns.text("ethtool", &["-K", host.device, "gro", "on"]).unwrap();
    let vip = scene.bed.vip(true, Bed::HTTP_PORT);
    let sender = scene.bed.client.ns.spawn(move || {
        let mut stream = TcpStream::connect_timeout(&vip, BOUND)?;
        stream.set_write_timeout(Some(SILENCE))?;
        stream.write_all(&[0; 4_000_000])
    });
    assert!(eventually(BOUND, || (merged() > 2).then_some(())).is_some(), "{}", scene.diagnosis());
    drop(sender.join());
    scene.balanced(BOUND);
}

#[test]
fn af_packet_recovers_link_and_detects_lost_program() {
    let mut scene = Scene::with(config);
    scene.ask(true, 4);
    let host = scene.bed.balancers[0].clone();
    let routes = host.ns.text("ip", &["-4", "route", "show"]).unwrap();
    let routes: Vec<_> = routes.lines().filter(|route| route.contains(" via ")).collect();
    assert!(!routes.is_empty());
    host.ns.ip(&format!("link set {} down", host.device)).unwrap();
    // The packet threads check their own health four times during this pause.
    std::thread::sleep(Duration::from_secs(1));
    host.ns.ip(&format!("link set {} up", host.device)).unwrap();
    // The kernel has removed the routes because the link was down.
    routes.iter().for_each(|route| host.ns.ip(&format!("route replace {route}")).unwrap());
    assert_eq!(scene.balancer.ask_plainly("/healthz").unwrap(), (200, "healthy".into()));
    let back = || {
        let reply = scene.bed.http_client().connect_timeout(SILENCE).get(scene.bed.vip(true, 80), "/");
        reply.is_ok().then_some(())
    };
    assert!(eventually(BOUND, back).is_some(), "{}", scene.diagnosis());
    let ready = || (scene.balancer.ask_plainly("/readyz").unwrap().0 == 200).then_some(());
    assert!(eventually(BOUND, ready).is_some(), "{}", scene.diagnosis());
    let link = described(&scene, "link_type:\ttcx\n", "link_id:");
    let broken = Instant::now();
    bpftool(&format!("link detach id {link}"));
    let why = "the ingress program is not attached to lb0, so the kernel receives packets for VIPs";
    println!("unhealthy {:?} after the program was detached", becomes_unhealthy(&mut scene, broken, why));
}

#[test]
fn af_packet_rejects_gro_with_a_fix() {
    let bed = Bed::new(&BedSpec::default()).unwrap();
    let host = &bed.balancers[0];
    let file = config(&bed).write(&bed, 0).unwrap();
    host.ns.text("ethtool", &["-K", host.device, "gro", "on"]).unwrap();
    let ended = verb(&bed, &["run", "--config", file.to_str().unwrap(), "--machine", "lb1"]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(
        ended.err.contains("lb0 has GRO on") && ended.err.contains("ethtool -K lb0 gro off"),
        "{}",
        ended.err
    );
}

#[test]
fn af_packet_threads_serve_two_interfaces() {
    let spec = BedSpec::default();
    let bed = Bed::new(&spec).unwrap();
    let link = testbed::Veth { queues: 1, mtu: spec.core_mtu };
    link.join(bed.balancers[0].ns.device("spare0"), bed.router.device("to-lb1-spare")).unwrap();
    bed.reach_backends_by("spare0", "to-lb1-spare").unwrap();
    let config = LbConfig { interfaces: vec!["spare0".into()], ..packet(LbConfig::new(&bed), 2) };
    let decaps = testbed::Decap::start_all(&bed).unwrap();
    let scene = Scene { balancer: Balancer::start(&bed, 0, &config).unwrap(), decaps, bed };
    scene.ask(true, 20);
    let counts = scene.settled();
    assert_eq!((counts.threads(), counts.over_threads(&["to_threads"])), (2, 0));
    // The counters of an interface are updated once a second.
    let carried = eventually(BOUND, || {
        let counts = scene.settled();
        let of = |interface, way| counts.at(&["interfaces", interface, way]);
        let agree = of("lb0", "rx") == counts.received() && of("spare0", "tx") == counts.sent();
        agree.then_some(())
    });
    assert!(carried.is_some(), "{}", scene.diagnosis());
}
