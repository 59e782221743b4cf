//! Tests of faults that health checks must detect, and of packets that must not be accepted.

use std::net::{SocketAddr, UdpSocket};

use forwarder::SlotState;
use nix::sys::socket::{setsockopt, sockopt::Mark};
use testbed::{Balancer, Bed, Encapsulation, eventually};

use crate::scene::{BOUND, DEVICE, Scene, direct, fails};

/// Checks HTTP and UDP at each VIP through the tunnel, and compares the results with `expected`.
/// HTTP to the backend's own addresses must always succeed.
fn looks(scene: &Scene, expected: [bool; 4]) {
    let vips = [scene.bed.vip(true, 80), scene.bed.vip(false, 80)];
    let host = &scene.bed.backends[0];
    let own: [SocketAddr; 2] = [(host.v4, 80).into(), (host.v6, 80).into()];
    scene.with_tunnel(async move |checks| {
        let through = [
            passes(checks.http("b1", vips[0]), expected[0]).await,
            passes(checks.udp("b1", vips[0].ip()), expected[1]).await,
            passes(checks.http("b1", vips[1]), expected[2]).await,
            passes(checks.udp("b1", vips[1].ip()), expected[3]).await,
        ];
        assert_eq!(through, expected);
        for own in own {
            direct(own).await.unwrap();
        }
    });
}

/// Returns `true` if the attempt succeeds. If success is expected, this function sets no time limit
/// for the attempt.
async fn passes(attempt: impl Future<Output = Result<String, String>>, expected: bool) -> bool {
    if expected { attempt.await.is_ok() } else { !fails(attempt).await }
}

const ALL: [bool; 4] = [true; 4];

#[test]
fn missing_vip_on_backend_is_detected() {
    let scene = Scene::gre();
    let backend = &scene.bed.backends[0].ns;
    looks(&scene, ALL);
    backend.ip("addr del 203.0.113.10/32 dev lo").unwrap();
    looks(&scene, [false, false, true, true]);
    backend.ip("addr add 203.0.113.10/32 dev lo\naddr del 2001:db8:f::10/128 dev lo").unwrap();
    looks(&scene, [true, true, false, false]);
    backend.ip("addr add 2001:db8:f::10/128 dev lo nodad").unwrap();
    looks(&scene, ALL);
}

#[test]
fn broken_tunnel_is_detected() {
    let mut scene = Scene::new(1, Encapsulation::Gue, false, "", &[]);
    looks(&scene, ALL);
    scene.decaps.pop().unwrap().stop().unwrap();
    looks(&scene, [false; 4]);
}

#[test]
fn each_backend_is_met_by_its_own_checks() {
    let scene = Scene::new(3, Encapsulation::Ipip, true, "", &[]);
    let vip = scene.bed.vip(true, 80);
    scene.bed.backends[1].ns.ip("addr del 203.0.113.10/32 dev lo").unwrap();
    scene.with_tunnel(async move |checks| {
        for _ in 0..10 {
            for (name, well) in [("b1", true), ("b2", false), ("b3", true)] {
                if !well {
                    assert!(fails(checks.udp(name, vip.ip())).await, "{name}");
                    break;
                }
                let answer = checks.udp(name, vip.ip()).await.unwrap();
                assert!(answer.starts_with(name), "{name} {answer}");
            }
            assert!(checks.http("b3", vip).await.unwrap().contains("b3"));
        }
    });
}

#[test]
fn missing_tunnel_device_fails_all_checks() {
    let scene = Scene::gre();
    // A balancer serves the VIP, so a check that used the normal route instead of the tunnel would
    // be answered.
    let _balancer = Balancer::start(&scene.bed, 0, &scene.config).unwrap();
    let (ns, vips) = (scene.ns().clone(), [scene.bed.vip(true, 80), scene.bed.vip(false, 80)]);
    for command in [format!("link set {DEVICE} down"), format!("link del {DEVICE}")] {
        let ns = ns.clone();
        scene.with_tunnel(async move |checks| {
            for vip in vips {
                checks.http("b1", vip).await.unwrap();
            }
            ns.ip(&command).unwrap();
            for vip in vips {
                let failed = checks.http("b1", vip).await.unwrap_err();
                assert!(failed.contains("unreachable") || failed.contains("No route"), "{failed}");
                assert!(fails(checks.udp("b1", vip.ip())).await);
            }
            let before = checks.tunnel.counts();
            assert_eq!(before.errors, 0, "{before:?}");
            if command.contains("del") {
                let gone = eventually(BOUND, || (!checks.tunnel.is_running()).then_some(()));
                assert!(gone.is_some(), "the tunnel did not detect the missing device");
            }
        });
    }
}

#[test]
fn down_and_draining_backends_are_checked() {
    let scene = Scene::gre();
    let vip = scene.bed.vip(true, 80);
    scene.with_tunnel(async move |checks| {
        for state in [SlotState::Down, SlotState::Draining, SlotState::Serving] {
            checks.put(state);
            checks.http("b1", vip).await.unwrap();
        }
        checks.put(SlotState::Free);
        let failed = checks.http("b1", vip).await.unwrap_err();
        assert_eq!(failed, "the backend has left its pool");
    });
}

#[test]
fn packets_without_a_check_are_counted() {
    let scene = Scene::gre();
    let vip = scene.bed.vip(true, Bed::ECHO_PORT);
    let (own, hits) = (scene.bed.balancers[0].v4, scene.bed.udp_answered());
    let counts = scene.with_tunnel(async move |checks| {
        let stranger = UdpSocket::bind((own, 0)).unwrap();
        setsockopt(&stranger, Mark, &83).unwrap();
        // A running check has reserved this port for a different address.
        let claimed = checks.dialer("b1", vip.ip()).udp(vip).await.unwrap();
        stranger.send_to(b"query", vip).unwrap();
        claimed.send_to(b"query", SocketAddr::from(([203, 0, 113, 99], 53))).await.unwrap();
        eventually(BOUND, || Some(checks.tunnel.counts()).filter(|counts| counts.no_port == 2)).unwrap()
    });
    assert_eq!((counts.no_port, counts.sent, counts.errors), (2, 0, 0), "{counts:?}");
    assert_eq!(scene.bed.udp_answered(), hits);
}

#[test]
fn unroutable_and_oversized_packets_are_counted() {
    let scene = Scene::gre();
    let vip = scene.bed.vip(true, Bed::ECHO_PORT);
    let counts = scene.with_tunnel(async move |checks| {
        let socket = checks.dialer("b1", vip.ip()).udp(vip).await.unwrap();
        checks.change(|slot| slot.mtu = 1000);
        socket.send(&[7; 1000 - 24 - 28]).await.unwrap();
        socket.recv(&mut [0; 2000]).await.unwrap();
        socket.send(&[7; 1000 - 24 - 28 + 1]).await.unwrap();
        eventually(BOUND, || (checks.tunnel.counts().too_big == 1).then_some(())).unwrap();
        checks.change(|slot| slot.next_hop = None);
        // All packets of a batch use the same snapshot, so the batch of the last packet may still
        // use the old snapshot.
        let counts = eventually(BOUND, || {
            socket.try_send(b"query").unwrap();
            Some(checks.tunnel.counts()).filter(|counts| counts.no_next_hop > 0)
        });
        counts.unwrap()
    });
    assert_eq!((counts.too_big, counts.no_port, counts.errors), (1, 0, 0), "{counts:?}");
    assert!((1..=64).contains(&counts.sent), "{counts:?}");
}

#[test]
fn long_request_is_segmented() {
    let scene = Scene::gre();
    let vip = scene.bed.vip(false, 80);
    scene.with_tunnel(async move |checks| {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        checks.change(|slot| slot.mtu = 1300);
        let mut stream = checks.dialer("b1", vip.ip()).tcp(vip).await.unwrap();
        stream
            .write_all(b"POST / HTTP/1.1\r\nHost: bed\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n")
            .await
            .unwrap();
        stream.write_all(&[7; 100_000]).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("received 100000\n"), "{answer}");
        let counts = checks.tunnel.counts();
        assert_eq!((counts.too_big, counts.errors), (0, 0), "{counts:?}");
    });
}

#[test]
fn replies_pass_strict_rp_filter() {
    let scene = Scene::gre();
    scene.ns().sysctl(&[("ipv4/conf/all/rp_filter", "1"), ("ipv4/conf/lb0/rp_filter", "1")]).unwrap();
    looks(&scene, ALL);
}
