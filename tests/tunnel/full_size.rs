//! Tests of checks with `probe_mtu` on a path that loses full-size packets.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

use config::{CheckKind, DnsCheck, DnsRecord, GrpcCheck, HttpCheck, MemcachedCheck, Transport};
use health::{self, Dialer};
use testbed::eventually;

use crate::carried::dns_reply;
use crate::scene::{BOUND, DEVICE, SILENCE, Scene};

/// Returns a check of each kind that has the key, with its name.
fn kinds(probe_mtu: bool) -> [(&'static str, CheckKind); 5] {
    let http = HttpCheck {
        port: 80,
        tls: None,
        method: "GET".into(),
        path: "/".into(),
        host: None,
        headers: Vec::new(),
        status: vec![200..=299],
        body_contains: None,
        probe_mtu,
    };
    let dns = DnsCheck { port: DNS_PORT, name: "www.example.com".into(), record: DnsRecord::A, probe_mtu };
    let memcached = |transport| MemcachedCheck { port: MEMCACHED_PORT, transport, probe_mtu };
    [
        ("http", CheckKind::Http(http)),
        ("grpc", CheckKind::Grpc(GrpcCheck { port: GRPC_PORT, service: "".into(), tls: None, probe_mtu })),
        ("memcached over TCP", CheckKind::Memcached(memcached(Transport::Tcp))),
        ("memcached over UDP", CheckKind::Memcached(memcached(Transport::Udp))),
        ("dns", CheckKind::Dns(dns)),
    ]
}

/// Starts the servers of the backend, except the HTTP server of the testbed. They run until the
/// test program ends.
fn serve(scene: &Scene, addresses: [IpAddr; 2]) {
    scene.bed.backends[0].ns.run(move || {
        serve_tcp(GRPC_PORT, answer_grpc);
        serve_tcp(MEMCACHED_PORT, |stream| {
            let _ = stream.read(&mut [0; 64])?;
            stream.write_all(b"VERSION 1.6.38\r\n")
        });
        for address in addresses {
            serve_udp((address, DNS_PORT).into(), dns_reply);
            serve_udp((address, MEMCACHED_PORT).into(), |request| {
                [&request[..8], b"VERSION 1.6.38\r\n"].concat()
            });
        }
    });
}

fn serve_udp(address: SocketAddr, reply: fn(&[u8]) -> Vec<u8>) {
    let socket = UdpSocket::bind(address).unwrap();
    thread::spawn(move || {
        let mut room = [0; 4_096];
        while let Ok((length, client)) = socket.recv_from(&mut room) {
            let _ = socket.send_to(&reply(&room[..length]), client);
        }
    });
}

fn serve_tcp(port: u16, answer: fn(&mut TcpStream) -> io::Result<()>) {
    let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                // The check resets its connection.
                let _ = answer(&mut stream).and_then(|()| stream.read_to_end(&mut Vec::new()));
            });
        }
    });
}

/// Reports SERVING to the first gRPC request of a connection, when the request has arrived.
fn answer_grpc(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(&[frame(SETTINGS, 0, 0, &[]), frame(SETTINGS, 1, 0, &[])].concat())?;
    stream.read_exact(&mut [0; PREFACE_BYTES])?;
    loop {
        let mut header = [0; 9];
        stream.read_exact(&mut header)?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        stream.read_exact(&mut vec![0; length.try_into().unwrap()])?;
        if header[3] == DATA && header[4] & END_STREAM != 0 {
            break;
        }
    }
    // The status 200 has the index 8 in the static table of HPACK.
    let status = frame(HEADERS, END_HEADERS, 1, &[0x88]);
    let message = frame(DATA, 0, 1, &[0, 0, 0, 0, 2, 8, 1]);
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x0bgrpc-status\x010");
    stream.write_all(&[status, message, trailers].concat())
}

/// Returns an HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Runs each check through the tunnel, and the checks over UDP also directly. Returns the names
/// and the failures.
fn results(scene: &Scene, probe_mtu: bool) -> Vec<(String, Result<(), String>)> {
    let (vip, backend) = (scene.bed.vip(true, 80), scene.bed.backends[0].v4.into());
    scene.with_tunnel(async move |checks| {
        let tunnel = Dialer::Tunnel(checks.dialer("b1", vip.ip()));
        let limit = if probe_mtu { SILENCE } else { BOUND };
        let mut results = Vec::new();
        for (name, kind) in kinds(probe_mtu) {
            let is_udp = kind.protocol() == config::Protocol::Udp;
            let direct = is_udp.then_some(("direct", &Dialer::Direct));
            for (path, dialer) in [("tunnel", &tunnel)].into_iter().chain(direct) {
                let interim = health::Interim::default();
                let attempt = health::attempt(&kind, backend, dialer, &interim);
                let result = tokio::time::timeout(limit, attempt).await;
                let result = result.unwrap_or_else(|_| interim.expired());
                results.push((
                    format!("{name}, {path}"),
                    result.map(drop).map_err(|failure| failure.to_string()),
                ));
            }
        }
        results
    })
}

/// Waits until every result is `wanted`. On a busy machine, an attempt may need more time than
/// SILENCE.
fn all_become(scene: &Scene, probe_mtu: bool, wanted: fn(&str, &Result<(), String>) -> bool) {
    let mut last = Vec::new();
    let found = eventually(3 * BOUND, || {
        last = results(scene, probe_mtu);
        last.iter().all(|(name, result)| wanted(name, result)).then_some(())
    });
    assert!(found.is_some(), "{last:#?}");
}

/// The link of the backend drops longer packets without an ICMP error, as a path MTU black hole
/// does.
#[test]
fn padded_checks_detect_a_path_that_loses_full_size_packets() {
    let scene = Scene::gre();
    let (vip, backend) = (scene.bed.vip(true, 80).ip(), &scene.bed.backends[0]);
    serve(&scene, [vip, backend.v4.into()]);
    all_become(&scene, true, |_, result| result.is_ok());
    backend.ns.ip("link set eth0 mtu 1400").unwrap();
    all_become(&scene, false, |_, result| result.is_ok());
    all_become(&scene, true, |name, result| {
        let size = match name {
            // The backend announces segments of 1360 bytes. TCP options need 12 of these bytes.
            _ if !name.contains("UDP") && !name.contains("dns") => "1348 bytes of TCP data",
            _ if name.contains("direct") => "1572 bytes of UDP data",
            // The links of the testbed have an MTU of 1600 bytes. The outer header needs 24 bytes.
            _ => "1548 bytes of UDP data",
        };
        let failure = format!("no answer to a full-size packet with {size}");
        result.as_ref().is_err_and(|why| why.contains(&failure))
    });
    // The router reports the MTU, so direct checks send shorter packets.
    scene.bed.router.ip(&format!("link set {} mtu 1400", backend.port)).unwrap();
    all_become(&scene, true, |name, result| !name.contains("direct") || result.is_ok());
}

/// The MTU of the device limits checks through the tunnel less than the MTU toward the backend.
#[test]
fn tunnel_device_carries_jumbo_packets() {
    let mtu = Scene::gre().with_tunnel(async |_| {
        let shown = std::process::Command::new("ip").args(["link", "show", DEVICE]).output().unwrap();
        String::from_utf8(shown.stdout).unwrap()
    });
    assert!(mtu.contains(" mtu 65535 "), "{mtu}");
}

const DNS_PORT: u16 = 5300;
const MEMCACHED_PORT: u16 = 11_211;
const GRPC_PORT: u16 = 9_000;
const PREFACE_BYTES: usize = 24;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
