//! Tests of packets larger than 1,500 bytes, in one frame or in several. If the MTU is larger than
//! the frames allow, the balancer must refuse to start and explain why.

use std::collections::BTreeSet;
use std::net::UdpSocket;

use testbed::{Balancer, Bed, BedSpec, Encapsulation, LbConfig, Received, digest, eventually};

use crate::fragments::{FLOWS, INBOX_PORT, have_had, inboxes, received, send_both, with_inbox};
use crate::own_traffic::pings;
use crate::path_mtu::{download, upload};
use crate::scene::{BOUND, Scene, verb};

/// Returns a testbed whose links have the MTU `mtu`. The MTU of the client's link is 100 bytes
/// smaller, so that outer headers fit on the other links.
fn spec(mtu: u32) -> BedSpec {
    BedSpec { client_mtu: mtu - 100, core_mtu: mtu, ..BedSpec::default() }
}

fn with_frames(frame_size: u32, config: LbConfig) -> LbConfig {
    // The balancer has enough frames for the packets in flight, but fewer than a whole upload
    // needs. If frames leaked, the upload would fail.
    LbConfig { io: format!("frame_size = {frame_size}\nframes_per_queue = 2_048"), ..config }
}

/// Sends datagrams of these lengths with DF set, each from a new port. Each datagram must arrive
/// complete at one backend.
fn datagrams_come_whole(scene: &Scene, ipv4: bool, lengths: impl Iterator<Item = usize>) {
    let inboxes = inboxes(scene, ipv4);
    let to = scene.bed.vip(ipv4, INBOX_PORT);
    let mut sent = BTreeSet::new();
    for length in lengths {
        let payload: Vec<u8> = (0..length).map(|n| u8::try_from((n * 7 + length) % 251).unwrap()).collect();
        sent.insert((length, digest(&payload)));
        scene.bed.client.ns.run(move || {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            assert_eq!(UdpSocket::bind(any).unwrap().send_to(&payload, to).unwrap(), length);
        });
    }
    assert!(have_had(&inboxes, sent.len()), "{}", scene.diagnosis());
    let seen: Vec<Received> = inboxes.iter().flat_map(testbed::UdpInbox::seen).collect();
    let digests: BTreeSet<_> = seen.iter().map(|one| (one.len, one.digest)).collect();
    assert_eq!((seen.len(), digests), (sent.len(), sent));
}

fn largest_packet(scene: &Scene) -> u32 {
    let lines = scene.balancer.process.lines();
    let ready = lines.iter().find(|line| line.text.contains("\"largest_packet\":")).unwrap();
    let line: serde_json::Value = serde_json::from_str(&ready.text).unwrap();
    u32::try_from(line["largest_packet"].as_u64().unwrap()).unwrap()
}

fn carried_whole(mtu: u32, frame_size: u32, outer_v4: bool, largest: u32) {
    let scene = Scene::new(&spec(mtu), |bed| {
        let config = with_frames(frame_size, with_inbox(bed));
        if outer_v4 { config } else { config.outer_v6(bed) }
    });
    assert_eq!(largest_packet(&scene), largest);
    let most = usize::try_from(mtu).unwrap() - 100;
    for ipv4 in [true, false] {
        let vip = scene.bed.vip(ipv4, Bed::HTTP_PORT);
        let (reported, route) = upload(&scene, vip, 10_000_000);
        assert!(reported == 0 && !route.contains("mtu"), "{reported}, {route}");
        let whole = most - if ipv4 { 28 } else { 48 };
        // Lengths at which a packet starts to need one more frame, and lengths near the maximum.
        let near =
            |frames: usize| (frames * (usize::try_from(frame_size).unwrap() - 256)).saturating_sub(150);
        let lengths = (1..=5).flat_map(|frames| (near(frames)..near(frames) + 180).step_by(3));
        datagrams_come_whole(&scene, ipv4, lengths.filter(|length| *length < whole).chain([1, whole]));
        let size = (most - if ipv4 { 28 } else { 48 }).to_string();
        for _ in 0..5 {
            // The whole ping is in one packet, so the balancer answers it in place.
            let args = ["-n", "-c", "1", "-W", "20", "-M", "do", "-s", &size, &vip.ip().to_string()];
            scene.bed.client.ns.text("ping", &args).unwrap_or_else(|e| panic!("{e:#}{}", scene.diagnosis()));
        }
        pings(&scene.bed.client.ns, scene.bed.balancers[0].v4.into(), 1);
    }
    download(&scene, scene.bed.vip(true, Bed::HTTP_PORT));
    let counts = scene.settled();
    let average = counts.over_threads(&["rx_bytes"]) / counts.received();
    println!("{} packets with an average of {average} bytes", counts.received());
    let cut = counts.over_threads(&["fragmented"]);
    assert_eq!(
        (counts.drops(), cut, counts.over_threads(&["replies"])),
        (vec![], 0, 10),
        "{}",
        scene.diagnosis()
    );
    scene.taken_off(counts.sent());
}

#[test]
fn packets_of_3000_bytes_use_one_frame_of_4096() {
    for outer_v4 in [true, false] {
        carried_whole(3_000, 4_096, outer_v4, 3_755);
    }
}

#[test]
fn packets_of_3000_bytes_use_two_frames_of_2048() {
    carried_whole(3_000, 2_048, true, 15_779);
}

#[test]
fn packets_of_9000_bytes_use_frames_of_4096() {
    for outer_v4 in [true, false] {
        carried_whole(9_000, 4_096, outer_v4, 15_779);
    }
}

#[test]
fn packets_of_9000_bytes_use_frames_of_2048() {
    carried_whole(9_000, 2_048, false, 15_779);
}

#[test]
fn fragments_of_9000_bytes_cross_threads() {
    for ipv4 in [true, false] {
        let scene = Scene::new(&BedSpec { queues: 4, ..spec(9_000) }, |bed| LbConfig {
            io: "frame_size = 4_096".into(),
            ..with_inbox(bed)
        });
        let inboxes = inboxes(&scene, ipv4);
        let sent = send_both(&scene, scene.bed.vip(ipv4, INBOX_PORT), &inboxes);
        assert!(have_had(&inboxes, 2 * FLOWS), "{}", scene.diagnosis());
        let counts = scene.settled();
        println!("{} packets, {} crossed threads", counts.received(), counts.over_threads(&["to_threads"]));
        assert_eq!((counts.drops(), counts.over_threads(&["to_threads"]) > 0), (vec![], true));
        assert_eq!(received(&inboxes), sent);
        scene.taken_off(counts.sent());
    }
}

#[test]
fn packets_of_9000_bytes_are_fragmented_to_path_mtu() {
    for kind in [Encapsulation::Gre, Encapsulation::Gue] {
        // All links have the same MTU, so outer headers do not fit around the largest packets.
        let scene = Scene::new(&BedSpec { client_mtu: 9_000, ..spec(9_000) }, |bed| {
            with_frames(4_096, with_inbox(bed)).encapsulation(kind)
        });
        let host = &scene.bed.client;
        host.ns.sysctl(&[("ipv4/ip_no_pmtu_disc", "1")]).unwrap();
        datagrams_come_whole(&scene, true, (8_940..=8_972).chain([100]));
        let cut = eventually(BOUND, || {
            let counts = scene.settled();
            (counts.over_threads(&["fragmented"]) > 0).then_some(counts)
        });
        let counts = cut.unwrap_or_else(|| panic!("{}", scene.diagnosis()));
        println!("{kind:?}: {} cut, {} sent", counts.over_threads(&["fragmented"]), counts.sent());
        assert_eq!(counts.drops(), []);
        scene.taken_off(counts.sent());
    }
}

#[test]
fn jumbo_clients_learn_path_mtu_of_1500() {
    let scene =
        Scene::new(&BedSpec { client_mtu: 9_000, ..spec(9_000) }, |bed| with_frames(4_096, with_inbox(bed)));
    for host in &scene.bed.backends {
        scene.bed.router.ip(&format!("link set {} mtu 1500", host.port)).unwrap();
    }
    for ipv4 in [true, false] {
        let (reported, route) = upload(&scene, scene.bed.vip(ipv4, Bed::HTTP_PORT), 3_000_000);
        assert!(reported > 0 && route.contains("mtu 1476"), "{reported}, {route}");
    }
}

/// Tries to start the balancer, and returns the error and the output of `doctor`.
fn refusals(bed: &Bed, config: &LbConfig) -> [String; 2] {
    let started = format!("{:#}", Balancer::start(bed, 0, config).unwrap_err());
    let file = config.write(bed, 0).unwrap();
    let ended = verb(bed, &["doctor", "--machine", "lb1", "--config", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(1), "{}", ended.out);
    [started, ended.out]
}

#[test]
fn too_large_mtu_is_rejected_with_a_fix() {
    for frame_size in [2_048, 4_096] {
        let bed = Bed::new(&BedSpec { backends: 1, client_mtu: 1_500, ..spec(20_000) }).unwrap();
        let config = with_frames(frame_size, LbConfig::new(&bed));
        let held = if frame_size == 2_048 { 1_707 } else { 3_755 };
        let said = format!(
            "lb0 has an MTU of 20000 bytes, and io.frame_size = {frame_size} holds packets of up to {held}"
        );
        for text in refusals(&bed, &config) {
            println!("{text}");
            for words in [&said[..], "ip link set dev lb0 mtu 15779", "(XDP multi-buffer) can be that long"] {
                assert!(text.contains(words), "no `{words}` in {text}");
            }
        }
        let link = bed.balancers[0].ns.text("ip", &["link", "show", "dev", "lb0"]).unwrap();
        assert!(!link.contains("xdp"), "{link}");
        // The command in the output fixes the problem.
        bed.balancers[0].ns.ip("link set dev lb0 mtu 15779").unwrap();
        let started = Balancer::start(&bed, 0, &config);
        assert!(started.is_ok(), "{started:?}");
    }
}

#[test]
fn doctor_suggests_larger_frames() {
    let bed = Bed::new(&BedSpec { backends: 1, ..spec(3_000) }).unwrap();
    for (frame_size, advised) in [(2_048, true), (4_096, false)] {
        let file = with_frames(frame_size, LbConfig::new(&bed)).write(&bed, 0).unwrap();
        let ended = verb(&bed, &["doctor", "--machine", "lb1", "--config", file.to_str().unwrap()]);
        println!("{}", ended.out);
        assert_eq!(ended.out.contains("advice [mtu-frame]"), advised, "{}", ended.out);
    }
}
