//! Tests of a balancer with two interfaces that share the packet memory (UMEM).
//!
//! The balancer has a second link to the router. Its routes to the backends use this link, so
//! packets arrive on one interface and leave on the other.

use std::time::Instant;

use testbed::{
    Balancer, Bed, BedSpec, Counters, Decap, FrameSpec, LbConfig, Process, Veth, eventually, inject, mac_of,
};

use crate::fragments::{FLOWS, INBOX_PORT, have_had, inboxes, received, send_both, with_inbox};
use crate::own_traffic::pings;
use crate::path_mtu::{NARROW, PACKETS, TAKES, download, inject_large, upload};
use crate::scene::{BOUND, Scene, verb};

/// The name of the second interface, and the router's end of its link.
const BACK: &str = "back0";
const BACK_PORT: &str = "to-lb1-back";

/// Adds the second link and routes the balancer's traffic for the backends over it.
fn add_back(bed: &Bed, queues: u32) {
    let host = &bed.balancers[0];
    let link = Veth { queues, mtu: bed.spec.core_mtu };
    link.join(host.ns.device(BACK), bed.router.device(BACK_PORT)).unwrap();
    bed.reach_backends_by(BACK, BACK_PORT).unwrap();
}

fn on_both(config: LbConfig) -> LbConfig {
    LbConfig { interfaces: vec![BACK.into()], ..config }
}

/// Starts the fixture with `front` queues on the first interface and `back` queues on the second.
fn scene([front, back]: [u32; 2], config: impl FnOnce(&Bed) -> LbConfig) -> Scene {
    on(&BedSpec { queues: front, ..BedSpec::default() }, back, config)
}

fn on(spec: &BedSpec, back: u32, config: impl FnOnce(&Bed) -> LbConfig) -> Scene {
    let bed = Bed::new(spec).unwrap();
    add_back(&bed, back);
    let config = on_both(config(&bed));
    let decaps = Decap::start_all(&bed).unwrap();
    let balancer = Balancer::start(&bed, 0, &config).unwrap();
    Scene { balancer, decaps, bed }
}

/// Routes the IPv6 VIPs to the second interface, and with `all` also the IPv4 VIPs.
fn vips_by_back(scene: &Scene, all: bool) {
    let v4 = if all { "route replace 203.0.113.10/32 via 192.0.2.101\n" } else { "" };
    scene.bed.router.ip(&format!("{v4}route replace 2001:db8:f::10/128 via 2001:db8:0:64::1")).unwrap();
}

fn of(counts: &Counters, interface: &str, what: &str) -> u64 {
    counts.at(&["interfaces", interface, what])
}

/// Returns the counters as soon as the sums by interface match the sums by thread. The counters by
/// interface are updated once a second.
fn settled(scene: &Scene) -> Counters {
    let agreed = eventually(BOUND, || {
        let counts = scene.settled();
        let over = |what| of(&counts, "lb0", what) + of(&counts, BACK, what);
        let left = counts.sent() + counts.over_threads(&["replies"]);
        (over("rx") == counts.received() && over("tx") == left).then_some(counts)
    });
    let counts =
        agreed.unwrap_or_else(|| panic!("the interface counters do not match\n{}", scene.diagnosis()));
    assert_eq!(counts.over_threads(&["to_threads"]), counts.over_threads(&["from_threads"]));
    assert_eq!(of(&counts, "lb0", "lost") + of(&counts, BACK, "lost"), 0);
    counts
}

/// Sends requests and datagrams over IPv4 and IPv6.
fn carry(scene: &Scene) {
    for ipv4 in [true, false] {
        scene.ask(ipv4, 50);
        let mut flows = scene.flows(ipv4, 50);
        (0..4).for_each(|_| drop(scene.round(&mut flows)));
    }
}

#[test]
fn packets_leave_by_other_interface_for_all_queue_counts() {
    for queues in [[1, 1], [1, 3], [3, 1], [4, 2]] {
        let scene = scene(queues, LbConfig::new);
        carry(&scene);
        let counts = settled(&scene);
        let [front, back] = queues.map(u64::from);
        assert_eq!(counts.threads() as u64, front.max(back));
        assert_eq!([of(&counts, "lb0", "sockets"), of(&counts, BACK, "sockets")], [front, back]);
        assert_eq!(counts.drops(), []);
        assert_eq!((of(&counts, "lb0", "rx"), of(&counts, BACK, "rx")), (counts.received(), 0));
        assert_eq!((of(&counts, "lb0", "tx"), of(&counts, BACK, "tx")), (0, counts.sent()));
        let crossed = counts.over_threads(&["to_threads"]);
        println!("queues {queues:?}, {} packets, {crossed} crossed threads", counts.sent());
        // If the other interface has fewer queues than there are threads, a thread without a queue
        // on that interface hands its packets to a thread that has one.
        assert_eq!(crossed > 0, front > back, "{queues:?}");
        assert_eq!(counts.modes(), [BACK, "lb0"].map(|name| (name.into(), "copy".into())));
        scene.taken_off(counts.sent());
        let status = scene.balancer.ask("/v1/status").unwrap();
        assert_eq!(status["interface"], "lb0, back0");
    }
}

#[test]
fn vips_and_pings_work_on_both_interfaces() {
    let scene = scene([2, 1], LbConfig::new);
    vips_by_back(&scene, false);
    carry(&scene);
    for ipv4 in [true, false] {
        pings(&scene.bed.client.ns, scene.bed.vip(ipv4, Bed::HTTP_PORT).ip(), 5);
    }
    let counts = settled(&scene);
    assert_eq!((counts.drops(), counts.over_threads(&["replies"])), (vec![], 10));
    let (front, back) = (of(&counts, "lb0", "rx"), of(&counts, BACK, "rx"));
    println!("{front} packets on lb0, {back} on the second interface");
    assert!(front > 200 && back > 200);
    // All packets to backends leave on one interface. Ping replies leave on the interface where the
    // ping arrived.
    assert_eq!((of(&counts, "lb0", "tx"), of(&counts, BACK, "tx")), (5, counts.sent() + 5));
    // The machine's own traffic stays with the kernel on both interfaces.
    pings(&scene.bed.client.ns, [192, 0, 2, 101].into(), 3);
    pings(&scene.bed.client.ns, scene.bed.balancers[0].v6.into(), 3);
}

#[test]
fn fragments_cross_interfaces() {
    for ipv4 in [true, false] {
        let scene = scene([4, 2], with_inbox);
        // IPv6 packets arrive and leave on the second interface.
        vips_by_back(&scene, false);
        let inboxes = inboxes(&scene, ipv4);
        let vip = scene.bed.vip(ipv4, INBOX_PORT);
        let sent = send_both(&scene, vip, &inboxes);
        assert!(have_had(&inboxes, 2 * FLOWS), "{}", scene.diagnosis());
        let counts = settled(&scene);
        println!(
            "{FLOWS} datagrams to {vip} in {} packets, {} packets crossed threads",
            counts.received(),
            counts.over_threads(&["to_threads"])
        );
        assert_eq!((counts.drops(), counts.sent()), (vec![], counts.received()));
        assert_eq!(of(&counts, if ipv4 { "lb0" } else { BACK }, "rx"), counts.received());
        assert_eq!(of(&counts, BACK, "tx"), counts.sent());
        assert_eq!(received(&inboxes), sent);
    }
}

#[test]
fn icmp_errors_are_accepted_on_both_interfaces() {
    for by_back in [false, true] {
        let scene = scene([2, 1], LbConfig::new);
        let Bed { router, backends, balancers, .. } = &scene.bed;
        if by_back {
            router.ip(&format!("route add {}/32 via 192.0.2.101", balancers[0].v4)).unwrap();
        }
        for host in backends {
            router.ip(&format!("link set {} mtu {TAKES}", host.port)).unwrap();
        }
        for ipv4 in [true, false] {
            let (reported, route) = upload(&scene, scene.bed.vip(ipv4, Bed::HTTP_PORT), 3_000_000);
            assert!(reported > 0 && route.contains(&format!("mtu {}", TAKES - 24)), "{reported}, {route}");
        }
        let counts = settled(&scene);
        assert!(
            matches!(&counts.drops()[..], [(reason, 1..)] if reason == "taken_in"),
            "{}",
            scene.diagnosis()
        );
        assert_eq!(of(&counts, BACK, "rx") > 0, by_back);
        // Packet-too-big errors to clients leave on the interface where the packet arrived.
        assert_eq!(of(&counts, "lb0", "tx"), counts.over_threads(&["replies"]));
    }
}

#[test]
fn icmp_errors_cross_interfaces() {
    let scene = scene([3, 2], LbConfig::new);
    // ICMP errors arrive on the second interface over IPv6 and on the first over IPv4. Threads of
    // both interfaces have entries for the flows.
    vips_by_back(&scene, false);
    scene.bed.router.ip(&format!("link set {} mtu {NARROW}", scene.bed.client.port)).unwrap();
    for ipv4 in [true, false] {
        let vip = scene.bed.vip(ipv4, Bed::HTTP_PORT);
        let served = download(&scene, vip);
        let client = scene.bed.client.address(vip.ip()).to_string();
        for host in scene.bed.backends.iter().filter(|host| served.contains(&host.name)) {
            let route = host.ns.text("ip", &["route", "get", &client]).unwrap();
            assert!(route.contains(&format!("mtu {NARROW}")), "{}: {route}", host.name);
        }
    }
    let counts = settled(&scene);
    // With five threads on two busy cores, a mailbox may be full. TCP then retransmits the lost
    // packet.
    let lost = counts.drops().into_iter().filter(|(reason, _)| reason != "mailbox_full").collect::<Vec<_>>();
    assert_eq!((lost, counts.over_threads(&["replies"])), (vec![], 0));
    assert_eq!(of(&counts, BACK, "tx"), counts.sent());
}

#[test]
fn fragmented_packets_leave_by_other_interface() {
    for (policy, queues) in [("fragment-inner", 1), ("fragment-outer", 1), ("fragment-inner", 3)] {
        let scene = on(&BedSpec { core_mtu: 1500, queues, ..BedSpec::default() }, 1, |bed| LbConfig {
            encapsulation_keys: format!("too_big = \"{policy}\""),
            ..with_inbox(bed)
        });
        let inboxes = inboxes(&scene, true);
        let (_, expected) = inject_large(&scene);
        // With this policy the outer packets are fragmented, and `decap` does not reassemble them,
        // so no packets reach the inbox.
        assert!(policy == "fragment-outer" || have_had(&inboxes, expected.len()), "{}", scene.diagnosis());
        let pieces = 2 * u64::from(PACKETS);
        let sent = eventually(BOUND, || (settled(&scene).sent() == pieces).then_some(()));
        assert!(sent.is_some(), "{}", scene.diagnosis());
        let counts = settled(&scene);
        println!(
            "policy {policy}, {queues} queues, {} fragments crossed threads",
            counts.over_threads(&["to_threads"])
        );
        assert_eq!((counts.over_threads(&["fragmented"]), counts.drops()), (PACKETS.into(), vec![]));
        assert_eq!((of(&counts, "lb0", "tx"), of(&counts, BACK, "tx")), (0, pieces));
    }
}

#[test]
fn reflect_uses_the_receiving_interface() {
    let scene = scene([2, 2], |bed| {
        // The gateways' MAC addresses must be known before the first packet, because packets from
        // an unknown gateway are dropped.
        for gateway in ["192.0.2.0", "192.0.2.100", "2001:db8:0:1::ff", "2001:db8:0:64::ff"] {
            pings(&bed.balancers[0].ns, gateway.parse().unwrap(), 1);
        }
        LbConfig { io: "next_hop = \"reflect\"".into(), ..LbConfig::new(bed) }
    });
    vips_by_back(&scene, false);
    carry(&scene);
    let counts = settled(&scene);
    assert_eq!(counts.drops(), []);
    for interface in ["lb0", BACK] {
        let [rx, tx] = ["rx", "tx"].map(|what| of(&counts, interface, what));
        assert!(rx == tx && rx > 200, "{interface}: {rx} and {tx}");
    }
}

#[test]
fn reflect_drops_unknown_gateways_on_both_interfaces() {
    let scene = scene([1, 1], |bed| LbConfig { io: "next_hop = \"reflect\"".into(), ..LbConfig::new(bed) });
    const NEW: [u8; 6] = [2, 0, 0, 0, 0x99, 1];
    let host = &scene.bed.balancers[0];
    let send = |device: &str, port: &str, from: [u8; 6]| {
        let to = mac_of(&host.ns, device).unwrap();
        let frame = FrameSpec { from, to, ..scene.frame(true, Bed::SINK_PORT) };
        inject(&scene.bed.router, port, &frame.bytes()).unwrap();
    };
    send("lb0", &host.port, NEW);
    scene.drops_become("unknown_gateway", 1);
    send(BACK, BACK_PORT, NEW);
    scene.drops_become("unknown_gateway", 2);
    assert_eq!(settled(&scene).sent(), 0);
    // The second router on this link is a known gateway as soon as a route uses it.
    host.ns
        .ip("addr add 192.0.2.121/31 dev back0\n\
             neigh replace 192.0.2.120 lladdr 02:00:00:00:99:01 dev back0\n\
             route add 198.51.100.0/24 via 192.0.2.120")
        .unwrap();
    let sent = eventually(BOUND, || {
        send(BACK, BACK_PORT, NEW);
        (settled(&scene).sent() > 0).then_some(())
    });
    assert!(sent.is_some(), "{}", scene.diagnosis());
    let counts = settled(&scene);
    assert_eq!((of(&counts, "lb0", "tx"), of(&counts, BACK, "tx")), (0, counts.sent()));
}

#[test]
fn reload_updates_filter_of_both_interfaces() {
    let mut scene = scene([2, 2], LbConfig::new);
    carry(&scene);
    let fewer = on_both(LbConfig { services: vec![], ..LbConfig::new(&scene.bed) });
    let mut without_v6 = LbConfig { services: LbConfig::new(&scene.bed).services, ..fewer };
    without_v6.vips.retain(std::net::IpAddr::is_ipv4);
    scene.balancer.reload(&scene.bed, &without_v6).unwrap();
    // The VIP address now belongs to the machine itself, so its packets must go to the kernel on
    // both interfaces.
    let before = settled(&scene).received();
    for all in [false, true] {
        if all {
            vips_by_back(&scene, true);
        }
        let vip = scene.bed.vip(false, Bed::ECHO_PORT);
        testbed::udp_ask(&scene.bed.client.ns, vip, b"x", crate::scene::SILENCE).unwrap_err();
    }
    assert_eq!(settled(&scene).received(), before);
    scene.balancer.reload(&scene.bed, &on_both(LbConfig::new(&scene.bed))).unwrap();
    carry(&scene);
    let counts = settled(&scene);
    assert_eq!(counts.drops(), []);
    assert!(of(&counts, BACK, "rx") > 0, "no packets arrived on the second interface");
    // A changed list of interfaces takes effect only at the next start.
    scene.balancer.reload(&scene.bed, &LbConfig::new(&scene.bed)).unwrap();
    let status = scene.balancer.ask("/v1/status").unwrap();
    assert_eq!(status["needs_restart"][0], "machine.lb1.interfaces: lb0, back0 -> lb0");
    carry(&scene);
}

#[test]
fn removed_interface_is_named_and_ends_the_process() {
    for (gone, why) in
        [(BACK, "queue 0 of back0 has lost its socket"), ("lb0", "queue 0 of lb0 has lost its socket")]
    {
        let mut scene = scene([1, 1], LbConfig::new);
        scene.ask(true, 4);
        let broken = Instant::now();
        scene.bed.balancers[0].ns.ip(&format!("link del {gone}\n")).unwrap();
        let process: &mut Process = &mut scene.balancer.process;
        process.wait_for_line(BOUND, |line| line.contains(&format!("interface {gone} is gone"))).unwrap();
        println!("process ended within {:?}", broken.elapsed());
        // The periodic health check may detect the lost socket first, and logs the same line.
        for line in process.lines().iter().filter(|line| line.text.contains("has lost its socket")) {
            assert!(line.text.contains(why), "{}", line.text);
        }
        assert_eq!(process.wait(BOUND).unwrap().code(), Some(1));
    }
}

#[test]
fn unusable_second_interface_prevents_start() {
    let bed = Bed::new(&BedSpec { backends: 1, ..BedSpec::default() }).unwrap();
    let mut config = on_both(LbConfig::new(&bed));
    config.interfaces.push("none0".into());
    let error = format!("{:#}", Balancer::start(&bed, 0, &config).unwrap_err());
    for name in [BACK, "none0"] {
        assert!(error.contains(&format!("there is no interface `{name}`")), "{error}");
    }
    let file = config.write(&bed, 0).unwrap();
    let ended = verb(&bed, &["doctor", "--machine", "lb1", "--config", file.to_str().unwrap()]);
    for name in [BACK, "none0"] {
        assert!(ended.out.contains(&format!("interface {name} cannot be used")), "{}", ended.out);
    }
    let link = bed.balancers[0].ns.text("ip", &["link", "show", "dev", "lb0"]).unwrap();
    assert!(!link.contains("xdp"), "{link}");
}
