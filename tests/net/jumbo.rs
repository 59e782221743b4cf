//! Packets above Ethernet's usual size: carried as far as a frame holds them, and refused in words beyond.

use std::fs;

use testbed::{Balancer, Bed, BedSpec, LbConfig, Received, digest};

use crate::fragments::{INBOX_PORT, have_had, inboxes, with_inbox};
use crate::path_mtu::{download, upload};
use crate::scene::{Scene, verb};

/// All links take that, and clients' a hundred bytes less, so that outer headers have room.
fn spec(mtu: u32) -> BedSpec {
    BedSpec { client_mtu: mtu - 100, core_mtu: mtu, ..BedSpec::default() }
}

fn large_frames(config: LbConfig) -> LbConfig {
    LbConfig { io: "frame_size = 4_096".into(), ..config }
}

#[test]
fn packets_of_3000_bytes_are_carried_whole_in_frames_of_4096() {
    for outer_v4 in [true, false] {
        let scene = Scene::new(&spec(3_000), |bed| {
            let config = large_frames(with_inbox(bed));
            if outer_v4 { config } else { config.outer_v6(bed) }
        });
        for ipv4 in [true, false] {
            let vip = scene.bed.vip(ipv4, Bed::HTTP_PORT);
            let (told, route) = upload(&scene, vip, 10_000_000);
            assert!(told == 0 && !route.contains("mtu"), "{told}, {route}");
            download(&scene, vip);
            let inboxes = inboxes(&scene, ipv4);
            let whole = 2_900 - if ipv4 { 28 } else { 48 };
            let payload: Vec<u8> = (0..whole).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let to = scene.bed.vip(ipv4, INBOX_PORT);
            let sent = payload.clone();
            scene.bed.client.ns.run(move || {
                let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                assert_eq!(std::net::UdpSocket::bind(any).unwrap().send_to(&sent, to).unwrap(), whole);
            });
            assert!(have_had(&inboxes, 1), "{}", scene.told());
            let seen: Vec<Received> = inboxes.iter().flat_map(testbed::UdpInbox::seen).collect();
            assert_eq!((seen[0].len, seen[0].digest), (whole, digest(&payload)));
        }
        let counts = scene.settled();
        let average = counts.over_threads(&["rx_bytes"]) / counts.received();
        println!("{} packets of {average} bytes on average", counts.received());
        assert_eq!((counts.drops(), counts.over_threads(&["cut"])), (vec![], 0), "{}", scene.told());
        let ready = scene.balancer.process.lines();
        assert!(ready.iter().any(|line| line.text.contains("\"largest_packet\":3755")), "{}", scene.told());
    }
}

/// What a start says, and what `doctor` says.
fn refusals(bed: &Bed, config: &LbConfig) -> [String; 2] {
    let started = format!("{:#}", Balancer::start(bed, 0, config).unwrap_err());
    let file = config.write(bed, 0).unwrap();
    let ended = verb(bed, &["doctor", "--machine", "lb1", "--config", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(1), "{}", ended.out);
    [started, ended.out]
}

#[test]
fn an_interface_whose_packets_do_not_fit_is_refused_with_what_fits_and_what_to_do() {
    let small = ["an MTU of {mtu} bytes, and io.frame_size = 2048 holds packets of up to 1707", "mtu 1707"];
    let large = ["an MTU of {mtu} bytes, and io.frame_size = 4096 holds packets of up to 3755", "mtu 3755"];
    for (mtu, frames, said, hint) in [
        (3_000, false, small, "set io.frame_size = 4096, which holds packets of up to 3755"),
        (9_000, false, small, "set io.frame_size = 4096, and the MTU to 3755 at most"),
        (9_000, true, large, "those of several (XDP multi-buffer) are not taken"),
    ] {
        let bed = Bed::new(&BedSpec { backends: 1, ..spec(mtu) }).unwrap();
        let config = LbConfig::new(&bed);
        let config = if frames { large_frames(config) } else { config };
        for text in refusals(&bed, &config) {
            println!("{text}");
            for words in
                said.map(|words| words.replace("{mtu}", &mtu.to_string())).iter().chain([&hint.into()])
            {
                assert!(text.contains(words), "no `{words}` in {text}");
            }
        }
        let link = bed.balancers[0].ns.text("ip", &["link", "show", "dev", "lb0"]).unwrap();
        assert!(!link.contains("xdp"), "{link}");
        // The command that it gives mends it.
        let command = if frames { "link set lb0 mtu 3755" } else { "link set lb0 mtu 1707" };
        bed.balancers[0].ns.ip(command).unwrap();
        let text = fs::read_to_string(config.write(&bed, 0).unwrap()).unwrap();
        let started = Balancer::start(&bed, 0, &config);
        assert!(started.is_ok(), "{text}\n{started:?}");
    }
}
