//! A test with many faults at the same time: floods of several kinds, reloads, backend failures and
//! a flapping link. Downloads run at the same time, and only downloads from the failed backend may
//! break.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::{
    Bed, BedSpec, Downloads, Flood, FrameSpec, HttpServer, LbConfig, VIP_V4, VIP_V6, cut, eventually,
};

use crate::scene::{BOUND, Scene, count};
use crate::soak::footprint;

/// The index of the backend that fails repeatedly. Flows of other backends must not be affected.
const MORTAL: usize = 3;

/// A backend is marked down after five seconds without a response. Shorter outages of healthy
/// backends occur because of the flapping link and a busy machine.
const CHECKS: &str = "
[check.web]
tcp = { port = 80 }
interval = \"900ms\"
timeout = \"800ms\"
fall = 6
rise = 1
";

/// Returns a configuration with a small connection table. The flood entries fit into the table only
/// if timeouts are shortened. With shortened timeouts, the flood entries fill at least half of the
/// table.
fn config(bed: &Bed, round: usize) -> LbConfig {
    let mut config = LbConfig::new(bed).weights(&[[1, 1, 1, 1], [1, 3, 1, 1], [2, 1, 0, 1]][round % 3]);
    config.pool_keys = "checks = [\"web\"]".into();
    config.io = "flows_per_thread = 65_536".into();
    config.more = CHECKS.into();
    config
}

/// Returns the source address and port of packet `n`. Each flood has a separate range of addresses.
fn source(kind: usize, n: usize) -> SocketAddr {
    let port = 1_024 + u16::try_from(n % 60_000).unwrap();
    let host = u8::try_from(kind * 36 + n / 60_000 % 36).unwrap();
    SocketAddr::new(Ipv4Addr::new(198, 51, 100, host).into(), port)
}

/// The name of a flood and the function that creates its packets. The function gets a UDP packet
/// with the current source and the packet's number.
type Kind = (&'static str, fn(&FrameSpec, usize) -> Vec<Vec<u8>>);

const FLOODS: [Kind; 7] = [
    (ACK_PAIRS, |from, _| vec![tcp(from, 0x10).bytes()]),
    (HANDSHAKES, |from, n| vec![tcp(from, if (n / ROUND).is_multiple_of(2) { 0x02 } else { 0x10 }).bytes()]),
    ("SYN", |from, _| vec![tcp(from, 0x02).bytes()]),
    ("UDP", |from, _| vec![from.bytes()]),
    ("pings", |from, _| vec![FrameSpec { icmp: Some([8, 0]), ..from.clone() }.bytes()]),
    ("fragments", |from, n| {
        let whole = FrameSpec { payload: vec![7; 600], ..from.clone() };
        let pieces = cut(&whole.bytes(), u32::try_from(n).unwrap(), 200);
        // Sends only a part of the fragments of each datagram.
        if n.is_multiple_of(2) { pieces[..1].to_vec() } else { pieces[1..].to_vec() }
    }),
    ("forged ICMP", |from, _| {
        let answer = FrameSpec { source: from.destination, destination: from.source, ..tcp(from, 0x10) };
        let quote = answer.bytes()[14..].to_vec();
        vec![FrameSpec { icmp: Some([3, 4]), payload: quote, ..from.clone() }.bytes()]
    }),
];
const ACK_PAIRS: &str = "ACK pairs";
const HANDSHAKES: &str = "SYN and ACK";
const ROUND: usize = 500;

fn tcp(from: &FrameSpec, flags: u8) -> FrameSpec {
    let destination = SocketAddr::new(from.destination.ip(), Bed::HTTP_PORT);
    FrameSpec { destination, tcp_flags: Some(flags), payload: vec![], ..from.clone() }
}

fn floods(scene: &Scene, per_second: f64) -> Vec<(&'static str, Flood)> {
    let (router, port) = (&scene.bed.router, &scene.bed.balancers[0].port);
    let start = |(flood, (name, make)): (usize, Kind)| {
        let (like, mut next) = (scene.frame(true, Bed::SINK_PORT), 0);
        let round = move || {
            next += ROUND;
            let of = |n: usize| {
                // The two packets of a pair have the same source, and the second is sent one round
                // after the first.
                let is_pair = [ACK_PAIRS, HANDSHAKES].contains(&name);
                let nth = if is_pair { n / (2 * ROUND) * ROUND + n % ROUND } else { n };
                make(&FrameSpec { source: source(flood, nth), ..like.clone() }, n)
            };
            (next - ROUND..next).flat_map(of).collect()
        };
        (name, Flood::start(router, port, per_second, round).unwrap())
    };
    FLOODS.into_iter().enumerate().map(start).collect()
}

/// Takes the router's end of the link down and up again, and restores the routes that the kernel
/// removed.
fn flap(bed: &Bed) {
    let host = &bed.balancers[0];
    bed.router.ip(&format!("link set {} down\n", host.port)).unwrap();
    sleep(Duration::from_millis(300));
    let mut script = format!("link set {} up\n", host.port);
    for vip in [VIP_V4, VIP_V6] {
        let (bits, via): (u8, IpAddr) = (if vip.is_ipv4() { 32 } else { 128 }, host.address(vip));
        script += &format!("route replace {vip}/{bits} via {via}\n");
    }
    assert!(eventually(BOUND, || bed.router.ip(&script).ok()).is_some(), "{:?}", bed.router.ip(&script));
}

/// Returns the state of the backend that fails repeatedly.
fn state(scene: &Scene) -> Value {
    let answer = scene.balancer.ask("/v1/backends").unwrap();
    let name = &scene.bed.backends[MORTAL].name;
    let rows = answer.as_array().unwrap();
    rows.iter().find(|row| row["name"] == **name).unwrap()["state"].clone()
}

/// Starts downloads, and causes each kind of fault while they run. Returns the number of complete
/// downloads, and the number of downloads that ended because their backend failed.
fn wave(scene: &mut Scene, number: usize, downloads: usize, length: Duration) -> (usize, usize) {
    let vip = scene.bed.vip(number.is_multiple_of(2), Bed::HTTP_PORT);
    let running = Downloads::start(&scene.bed.client.ns, vip, downloads, length);
    let begun = eventually(10 * BOUND, || (running.begun() == downloads).then_some(()));
    assert!(begun.is_some(), "{} of {downloads} began\n{}", running.begun(), scene.diagnosis());
    let name = scene.bed.backends[MORTAL].name.clone();
    scene.balancer.reload(&scene.bed, &config(&scene.bed, number + 1)).unwrap();
    flap(&scene.bed);
    drop(scene.bed.http.remove(MORTAL));
    let becomes = |wanted: &str| eventually(BOUND, || (state(scene) == wanted).then_some(()));
    assert!(becomes("down").is_some(), "the backend failure was not detected\n{}", scene.diagnosis());
    let server = HttpServer::start(&scene.bed.backends[MORTAL].ns, &name, Bed::HTTP_PORT).unwrap();
    assert!(becomes("serving").is_some(), "the backend recovery was not detected\n{}", scene.diagnosis());
    scene.bed.http.push(server);
    scene.balancer.reload(&scene.bed, &config(&scene.bed, number + 2)).unwrap();
    flap(&scene.bed);
    let ended = running.join();
    let (broke, whole): (Vec<_>, Vec<_>) = ended.into_iter().partition(|one| one.broke.is_some());
    let others: Vec<_> = broke.iter().filter(|one| one.backend != name).collect();
    assert!(others.is_empty(), "round of faults {number}: {others:?}\n{}", scene.diagnosis());
    (whole.len(), broke.len())
}

// Promise: combined-faults
#[test]
fn combined_faults_break_no_download_of_healthy_backends() {
    let spec = BedSpec { backends: 4, queues: 2, ..BedSpec::default() };
    let mut scene = Scene::new(&spec, |bed| config(bed, 0));
    scene.bed.router.sysctl(&[("ipv6/conf/all/keep_addr_on_down", "1")]).unwrap();
    // After lost ACKs, Linux changes the IPv6 flow label and the transmit hash of a connection.
    // With a different hash, the router would choose a different queue, and packets would reach a
    // thread that does not have the connection in its table.
    for host in scene.bed.backends.iter().chain([&scene.bed.client]) {
        host.ns.sysctl(&[("core/txrehash", "0"), ("ipv6/auto_flowlabels", "0")]).unwrap();
    }
    let (downloads, length) = (count(20, 200), Duration::from_secs(count(10, 50) as u64));
    let (start, time) = (Instant::now(), Duration::from_secs(count(20, 1_800) as u64));
    #[expect(clippy::cast_precision_loss, reason = "the rate is far below 2^52")]
    let floods = floods(&scene, count(300, 1_000) as f64);
    let (mut waves, mut whole, mut broken, mut warm) = (0, 0, 0, None);
    while start.elapsed() < time || waves < 2 {
        let (came, broke) = wave(&mut scene, waves, downloads, length);
        (waves, whole, broken) = (waves + 1, whole + came, broken + broke);
        warm.get_or_insert_with(|| footprint(&scene));
    }
    let sent: Vec<(&str, u64)> =
        floods.into_iter().map(|(name, flood)| (name, flood.end().unwrap())).collect();
    assert!(sent.iter().all(|(_, sent)| *sent > 0), "{sent:?}");
    assert!(
        whole > 0 && broken > 0,
        "expected complete and broken downloads, found {whole} complete and {broken} broken"
    );
    // Held fragments are counted as drops only when they expire.
    let counts = scene.balanced(10 * BOUND);
    let ((descriptors, resident), warm) = (footprint(&scene), warm.unwrap());
    println!(
        "{waves} waves in {:?}: {whole} downloads whole, {broken} broken by a backend failure; sent {sent:?}; \
         {} received, {} lost before threads, dropped {:?}; descriptors {} then {descriptors}, resident {} KiB then {resident}",
        start.elapsed(),
        counts.received(),
        counts.lost_before_threads(),
        counts.drops(),
        warm.0,
        warm.1
    );
    assert!(
        descriptors <= warm.0 + 4,
        "{descriptors} open descriptors, but {} after the first round of faults",
        warm.0
    );
    assert!(
        resident < warm.1 + 16 * 1024,
        "{resident} KiB of resident memory, but {} KiB after the first round of faults",
        warm.1
    );
    scene.ask(true, 8);
    scene.ask(false, 8);
}
