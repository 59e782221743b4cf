//! Tests of VIPs that reject packets, with clients of the kernel. A rejected client fails at once.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, UdpSocket};

use testbed::{Bed, LbConfig, Namespace, PoolMember};

use crate::scene::{BOUND, Scene};

/// Connects over TCP, and returns the error.
fn connect(from: &Namespace, to: SocketAddr) -> Option<ErrorKind> {
    from.run(move || TcpStream::connect_timeout(&to, BOUND).err().map(|error| error.kind()))
}

/// Sends a datagram on a connected socket, and returns the error that the next call reports.
fn ask(from: &Namespace, to: SocketAddr) -> Option<ErrorKind> {
    from.run(move || {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(BOUND)).unwrap();
        socket.send(b"question").unwrap();
        socket.recv(&mut [0; 64]).err().map(|error| error.kind())
    })
}

/// Returns a configuration whose VIPs reject packets.
fn config(bed: &Bed) -> LbConfig {
    let mut config = LbConfig::new(bed);
    config.vip_keys = "on_unserved_port = \"reject\"\non_no_backend = \"reject\"".into();
    config
}

fn check(scene: &Scene) {
    let refused = Some(ErrorKind::ConnectionRefused);
    let client = &scene.bed.client.ns;
    for ipv4 in [true, false] {
        scene.ask(ipv4, 3);
        let unserved = scene.bed.vip(ipv4, 9_999);
        assert_eq!(connect(client, unserved), refused, "{}", scene.diagnosis());
        assert_eq!(ask(client, unserved), refused, "{}", scene.diagnosis());
    }
    let counters = scene.settled();
    assert_eq!(counters.over_threads(&["resets_sent"]), 2);
    assert_eq!(counters.over_threads(&["unreachables_sent"]), 2);
    assert_eq!(counters.over_threads(&["rejected_no_vip"]), 4);
    assert!(counters.drops().is_empty(), "{:?}", counters.drops());
}

#[test]
fn unserved_port_refuses_clients_at_once() {
    check(&Scene::with(config));
}

#[test]
fn unserved_port_refuses_clients_at_once_over_packet_sockets() {
    check(&Scene::with(|bed| {
        let mut config = config(bed);
        config.io += "\nmode = \"af-packet\"";
        config
    }));
}

#[test]
fn service_without_backend_refuses_clients_at_once() {
    let scene = Scene::with(|bed| {
        let mut config = config(bed);
        config.pool.iter_mut().for_each(|member: &mut PoolMember| member.weight = 0);
        config
    });
    let refused = Some(ErrorKind::ConnectionRefused);
    for ipv4 in [true, false] {
        let client = &scene.bed.client.ns;
        assert_eq!(connect(client, scene.bed.vip(ipv4, Bed::HTTP_PORT)), refused, "{}", scene.diagnosis());
        assert_eq!(ask(client, scene.bed.vip(ipv4, Bed::ECHO_PORT)), refused, "{}", scene.diagnosis());
    }
    let counters = scene.settled();
    assert_eq!(counters.over_threads(&["rejected_no_backend"]), 4);
}
