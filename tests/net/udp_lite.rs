//! Tests of UDP-Lite with sockets of the kernel. Linux has UDP-Lite up to version 7.0, so on newer
//! kernels the tests fail.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};
use testbed::{Bed, LbConfig, Namespace, Service, eventually};

use crate::scene::{BOUND, Scene, backend_of};

const PORT: u16 = 3868;
const FLOWS: usize = 8;

fn bind(ns: &Namespace, at: SocketAddr) -> UdpSocket {
    let socket = ns.run(move || {
        let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDPLITE))?;
        socket.bind(&at.into()).map(|()| socket)
    });
    socket.unwrap_or_else(|error| panic!("no UDP-Lite socket at {at}: {error}")).into()
}

/// Opens a socket of the client that is connected to `to`.
fn connect(bed: &Bed, to: SocketAddr) -> UdpSocket {
    let socket = bind(&bed.client.ns, (bed.client.address(to.ip()), 0).into());
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(BOUND)).unwrap();
    socket
}

#[test]
fn udp_lite_reaches_backends_and_is_rejected_at_once() {
    let scene = Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        config.services.push(Service { ports: PORT.to_string(), protocol: "udp-lite", hash: None });
        config.vip_keys = "on_unserved_port = \"reject\"".into();
        config
    });
    let bed = &scene.bed;
    for ipv4 in [true, false] {
        let vip = bed.vip(ipv4, PORT);
        let servers: Vec<_> = bed.backends.iter().map(|host| bind(&host.ns, vip)).collect();
        servers.iter().for_each(|server| server.set_nonblocking(true).unwrap());
        for _ in 0..FLOWS {
            let client = connect(bed, vip);
            let local = client.local_addr().unwrap();
            client.send(b"question").unwrap();
            let mut room = [0; 64];
            let received = eventually(BOUND, || {
                let mut servers = bed.backends.iter().zip(&servers);
                servers.find_map(|(host, server)| Some((host, server, server.recv_from(&mut room).ok()?)))
            });
            let (host, server, (len, from)) = received.unwrap_or_else(|| panic!("{}", scene.diagnosis()));
            assert_eq!((&room[..len], from), (&b"question"[..], local));
            let file = bed.dir().join("lb1.toml");
            assert_eq!(host.name, backend_of(bed, &file, local, vip, "udp-lite"));
            // The reply comes from the VIP, because the client ignores other addresses.
            server.send_to(b"answer", from).unwrap();
            let len = client.recv(&mut room).unwrap();
            assert_eq!(&room[..len], b"answer");
        }
        let client = connect(bed, bed.vip(ipv4, PORT + 1));
        client.send(b"question").unwrap();
        let refused = client.recv(&mut [0; 64]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{}", scene.diagnosis());
    }
    let counters = scene.settled();
    assert_eq!(counters.over_threads(&["unreachables_sent"]), 2);
    assert_eq!(counters.over_threads(&["rejected_no_vip"]), 2);
    assert!(counters.drops().is_empty(), "{:?}", counters.drops());
}
