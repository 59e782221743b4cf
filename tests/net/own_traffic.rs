//! Tests that the kernel still handles the machine's own traffic while the balancer runs.

use std::net::{IpAddr, SocketAddr};

use testbed::{Bed, Client, HttpServer, LbConfig, Namespace};

use crate::scene::Scene;

/// Sends `count` pings and checks that each ping is answered.
pub(crate) fn pings(from: &Namespace, to: IpAddr, count: u32) {
    for _ in 0..count {
        // Each call sends one ping. If one call sent several, `ping` would wait for the last reply
        // only as long as the earlier replies took.
        let text = from.text("ping", &["-n", "-c", "1", "-W", "20", &to.to_string()]).unwrap();
        assert!(text.contains("1 received"), "{text}");
    }
}

#[test]
fn own_traffic_works_in_both_directions() {
    let scene = Scene::with(LbConfig::new);
    let host = &scene.bed.balancers[0];
    let server = HttpServer::start(&host.ns, "own", 2222).unwrap();
    for own in [IpAddr::from(host.v4), IpAddr::from(host.v6)] {
        pings(&scene.bed.client.ns, own, 5);
        let reply = scene.bed.http_client().get(SocketAddr::new(own, 2222), "/bytes/100000").unwrap();
        assert_eq!((reply.backend.as_str(), reply.body.len()), ("own", 100_000));
        // Requests that the machine itself sends work too, because the kernel gets the replies.
        let backend = scene.bed.backends[0].address(own);
        let reply = Client::new(&host.ns).get(SocketAddr::new(backend, 80), "/").unwrap();
        assert_eq!(reply.client_seen.map(|seen| seen.ip()), Some(own));
        pings(&host.ns, scene.bed.client.address(own), 2);
    }
    assert_eq!(server.requests(), 2);
    scene.ask(true, 4);
    scene.ask(false, 4);
}

#[test]
fn neighbours_find_the_machine_anew() {
    let scene = Scene::with(LbConfig::new);
    let host = &scene.bed.balancers[0];
    for own in [IpAddr::from(host.v4), IpAddr::from(host.v6)] {
        scene.bed.router.ip(&format!("neigh flush dev {}", host.port)).unwrap();
        pings(&scene.bed.router, own, 2);
        let neighbours = scene.bed.router.text("ip", &["neigh", "show", &own.to_string()]).unwrap();
        assert!(neighbours.contains("lladdr"), "{neighbours}");
        host.ns.ip("neigh flush dev lb0").unwrap();
        scene.ask(own.is_ipv4(), 4);
    }
}

#[test]
fn vip_answers_pings_over_both_families() {
    let scene = Scene::with(LbConfig::new);
    for ipv4 in [true, false] {
        pings(&scene.bed.client.ns, scene.bed.vip(ipv4, Bed::HTTP_PORT).ip(), 5);
    }
    let counts = scene.settled();
    assert_eq!((counts.over_threads(&["replies"]), counts.drops()), (10, vec![]));
    assert_eq!(counts.sent(), 0);
    scene.taken_off(0);
}
