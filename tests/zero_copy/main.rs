//! Tests of the zero-copy mode with a real driver, in the virtual machine of `xtask/zc-vm`. The
//! backends use the kernel's tunnel devices for decapsulation. The kernel of the virtual machine
//! also has SCTP, so a test with SCTP clients and servers runs there too.
//!
//! `cargo xtask test --lane zero-copy` runs the tests one at a time, because they share the virtual
//! machine's NICs. The virtual wire drops frames above about 15,000 per second, so the tests do not
//! measure speed.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a failed step must fail the test")]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use testbed::{
    Balancer, Bed, BedSpec, Counters, Encapsulation, FrameSpec, Host, LbConfig, Namespace, Service, Tunnels,
    device_counts, eventually, flood, mac_of, take_in,
};

const BOUND: Duration = Duration::from_secs(20);
const REQUESTS: usize = 40;
const QUEUES: usize = 4;

/// The tested encapsulations. The second value is `true` if the outer header is IPv4.
const KINDS: [(Encapsulation, bool); 6] = [
    (Encapsulation::Gre, true),
    (Encapsulation::Gre, false),
    (Encapsulation::Ipip, true),
    (Encapsulation::Ipip, false),
    (Encapsulation::Gue, true),
    (Encapsulation::Gue, false),
];

/// Two NICs that are connected. The first NIC belongs to the balancer and supports zero-copy, and
/// the second is a standard virtio NIC.
const WIRE: [&str; 2] = ["zc0", "peer0"];
/// Two NICs that are connected. The balancer has the NIC without zero-copy support.
const PLAIN: [&str; 2] = ["peer1", "zc1"];

struct Stage {
    balancer: Balancer,
    tunnels: Vec<Tunnels>,
    bed: Bed,
}

impl Stage {
    fn new(wire: [&'static str; 2]) -> Self {
        Self::on(bed(wire), config)
    }

    fn on(bed: Bed, config: impl FnOnce(&Bed) -> LbConfig) -> Self {
        let tunnels = bed.backends.iter().map(|backend| Tunnels::start(backend).unwrap()).collect();
        let balancer = Balancer::start(&bed, 0, &config(&bed)).unwrap();
        Self { balancer, tunnels, bed }
    }

    /// Starts the fixture with a second pair of connected NICs, over which the balancer reaches the
    /// backends.
    fn on_two(second: [&str; 2]) -> Self {
        let bed = bed(WIRE);
        let [own, far] = second;
        take_in(bed.balancers[0].ns.device(own), bed.router.device(far)).unwrap();
        bed.reach_backends_by(own, far).unwrap();
        Self::on(bed, |bed| LbConfig { interfaces: vec![own.into()], ..config(bed) })
    }

    fn taken_off(&self, kind: Encapsulation, outer_ipv4: bool) -> u64 {
        self.tunnels.iter().map(|tunnels| tunnels.taken_off(kind, outer_ipv4).unwrap()).sum()
    }

    /// Sends requests over IPv4 and IPv6. Each request must be answered by a backend of the pool.
    fn all_answered(&self, what: &str, vips: [IpAddr; 2]) {
        // When an XDP program is attached, a NIC may lose its link for seconds. Clients therefore
        // wait for their fourth SYN, which is sent after 7 s.
        let client = self.bed.http_client();
        for vip in vips.map(|vip| SocketAddr::new(vip, Bed::HTTP_PORT)) {
            let replies = client.get_many(vip, "/", REQUESTS, 8);
            let answered = replies.iter().flatten().filter(|reply| {
                (reply.status, reply.peer, reply.client_seen) == (200, vip, Some(reply.local))
            });
            let answered = answered.count();
            let slowest = replies.iter().flatten().map(|reply| reply.time).max().unwrap_or_default();
            println!(
                "{answered} of {REQUESTS} requests to {vip} answered with {what}, the slowest in {slowest:.1?}"
            );
            let failed: Vec<_> = replies.iter().filter_map(|reply| reply.as_ref().err()).collect();
            let tail = self.balancer.process.tail();
            assert_eq!(answered, REQUESTS, "{failed:?}\n{}\n{tail}", self.figures());
        }
    }

    /// Waits until the counters show that no packet is in flight. Packet threads must have received
    /// every redirected packet, and must have sent or dropped every received packet.
    fn settled(&self) -> Counters {
        let agreed = eventually(BOUND, || {
            let counts = self.balancer.counters().ok()?;
            // The counter of empty fill rings is not included: in zero-copy mode, a NIC without
            // frames drops packets before XDP runs.
            let lost = counts.over_threads(&["socket", "rx_dropped"])
                + counts.over_threads(&["socket", "rx_ring_full"]);
            let dropped: u64 = counts.drops().iter().map(|(_, count)| count).sum();
            (counts.redirected() == counts.received() + lost && counts.received() == counts.sent() + dropped)
                .then_some(counts)
        });
        agreed.unwrap_or_else(|| panic!("the counters do not match, {}", self.figures()))
    }

    /// Returns the counters along the packet's path, for use in messages.
    fn figures(&self) -> String {
        let balancer = &self.bed.balancers[0];
        let mut text = match self.balancer.counters() {
            Ok(Counters(counts)) => format!("{} {}\n", counts["xdp"], counts["total"]),
            Err(error) => format!("{error:#}\n"),
        };
        for (ns, device) in [(&balancer.ns, balancer.device), (&self.bed.router, &*balancer.port)] {
            text += &format!("{device}: {:?}\n", device_counts(ns, device));
        }
        for backend in &self.bed.backends {
            text += &output(&backend.ns, "cat", &["/proc/net/dev"]);
        }
        text += &output(&balancer.ns, "ethtool", &["-S", balancer.device]);
        text += &output(&self.bed.client.ns, "cat", &["/proc/net/snmp"]);
        text
    }

    /// Returns the socket mode. Panics if the log and the counters report different modes.
    fn mode(&self) -> String {
        let modes = self.balancer.counters().unwrap().modes();
        let [(device, mode)] = &modes[..] else { panic!("{modes:?}") };
        assert_eq!(device, self.bed.balancers[0].device);
        assert!(
            logged(&self.balancer, &format!("\"socket_mode\":\"{mode}\"")),
            "{}",
            self.balancer.process.tail()
        );
        mode.clone()
    }
}

/// Makes the kernel defer interrupts of the interface, as an operator would for busy polling. The
/// settings are files in sysfs.
fn put_off_interrupts(host: &Host, time: Duration) {
    let of = format!("/sys/class/net/{}", host.device);
    let nanos = time.as_nanos();
    let script = format!(
        "mount -t sysfs sysfs /sys && echo 100 > {of}/napi_defer_hard_irqs && echo {nanos} > {of}/gro_flush_timeout"
    );
    output(&host.ns, "unshare", &["--mount", "sh", "-c", &script]);
}

fn bed(wire: [&'static str; 2]) -> Bed {
    let vips = KINDS.iter().flat_map(|&(kind, outer_ipv4)| vips(kind, outer_ipv4)).collect();
    // The wires of the virtual machine have an MTU of 1,500 bytes.
    let (client_mtu, core_mtu, wire) = (1400, 1500, Some(wire));
    Bed::new(&BedSpec { backends: 2, client_mtu, core_mtu, vips, wire, ..BedSpec::default() }).unwrap()
}

/// Returns a configuration in which each kind of outer header has its own VIPs and pool. A flow
/// with one kind of outer header therefore cannot match a table entry of an earlier flow with a
/// different kind.
fn config(bed: &Bed) -> LbConfig {
    let mut config = LbConfig { vips: first_vips().into(), ..LbConfig::new(bed) };
    for (kind, outer_ipv4) in KINDS.into_iter().skip(1) {
        let name = format!("{}-{}", kind.name(), if outer_ipv4 { "v4" } else { "v6" });
        let members = bed.backends.iter().map(|Host { name, v4, v6, .. }| match outer_ipv4 {
            true => format!("{{ name = \"{name}\", address = \"{v4}\" }}"),
            false => format!("{{ name = \"{name}-v6\", address = \"{v6}\" }}"),
        });
        let members: Vec<_> = members.collect();
        let [v4, v6] = vips(kind, outer_ipv4);
        config.more += &format!(
            "[pool.{name}]\nencapsulation = \"{}\"\nbackends = [{}]\n\
             [vip.{name}]\naddresses = [\"{v4}\", \"{v6}\"]\n\
             services = [{{ ports = [{}], protocol = \"tcp\", pool = \"{name}\" }}]\n",
            kind.name(),
            members.join(", "),
            Bed::HTTP_PORT,
        );
    }
    config
}

/// Returns the IPv4 and the IPv6 VIP whose packets get this outer header.
fn vips(kind: Encapsulation, outer_ipv4: bool) -> [IpAddr; 2] {
    let n = KINDS.iter().position(|&known| known == (kind, outer_ipv4)).unwrap();
    let n = u8::try_from(10 + n).unwrap();
    [Ipv4Addr::new(203, 0, 113, n).into(), Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, n.into()).into()]
}

fn first_vips() -> [IpAddr; 2] {
    vips(Encapsulation::Gre, true)
}

fn logged(balancer: &Balancer, words: &str) -> bool {
    balancer.process.lines().iter().any(|line| line.text.contains(words))
}

fn output(ns: &Namespace, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args);
    String::from_utf8(ns.output(command).unwrap().stdout).unwrap()
}

#[test]
fn kernel_tunnels_decapsulate_zero_copy_packets() {
    let stage = Stage::new(WIRE);
    assert_eq!(stage.mode(), "zero-copy");
    for (kind, outer_ipv4) in KINDS {
        let what = format!("zero-copy, {} over {}", kind.name(), if outer_ipv4 { "IPv4" } else { "IPv6" });
        let (sent, off) = (stage.settled().sent(), stage.taken_off(kind, outer_ipv4));
        stage.all_answered(&what, vips(kind, outer_ipv4));
        // The number of decapsulated packets is read before the number of sent packets. If the two
        // numbers match, no packet is in flight.
        let counted = || (stage.taken_off(kind, outer_ipv4) - off, stage.settled().sent() - sent);
        let agreed = eventually(BOUND, || Some(counted()).filter(|(off, sent)| off == sent));
        let (off, sent) = agreed.unwrap_or_else(counted);
        println!("{sent} packets sent and {off} decapsulated with {what}");
        assert!(sent > 0 && sent == off, "{}", stage.figures());
    }
    stage.balancer.stop().unwrap();
}

#[test]
fn zero_copy_queues_share_memory_and_survive_a_flood() {
    let stage = Stage::new(WIRE);
    assert_eq!((stage.mode().as_str(), stage.settled().threads()), ("zero-copy", QUEUES));
    let balancer = &stage.bed.balancers[0];
    let from = mac_of(&stage.bed.router, &balancer.port).unwrap();
    let to = mac_of(&balancer.ns, balancer.device).unwrap();
    let source = (stage.bed.client.v4, 10_000).into();
    let frames = FrameSpec::smallest_udp(from, to, source, stage.bed.vip(true, Bed::SINK_PORT)).flows(1000);
    let running = flood(&stage.bed.router, &balancer.port, frames, Duration::from_secs(1)).unwrap();
    let (offered, _) = running.join().unwrap().unwrap();
    stage.all_answered("zero-copy, after a flood", first_vips());
    let counts = stage.settled();
    let threads = counts.0["threads"].as_array().unwrap();
    let by_thread: Vec<u64> = threads.iter().map(|thread| Counters(thread.clone()).at(&["rx"])).collect();
    let (sent, drops) = (counts.sent(), counts.drops());
    println!(
        "flood of {offered} packets in zero-copy mode, received {by_thread:?}, sent {sent}, dropped {drops:?}"
    );
    assert!(by_thread.iter().all(|&rx| rx > 0), "{by_thread:?}");
    assert_eq!(counts.at(&["xdp", "no_socket"]), 0);
    stage.balancer.stop().unwrap();
}

#[test]
fn killed_balancer_restores_nic_for_next_start() {
    let mut stage = Stage::new(WIRE);
    let host = stage.bed.balancers[0].clone();
    let link = || output(&host.ns, "ip", &["-details", "link", "show", host.device]);
    assert!(link().contains("prog/xdp"), "{}", link());
    stage.balancer.process.kill();
    let clean = eventually(BOUND, || (!link().contains("xdp")).then_some(()));
    assert!(clean.is_some(), "{}", link());
    stage.balancer = Balancer::start(&stage.bed, 0, &config(&stage.bed)).unwrap();
    assert_eq!(stage.mode(), "zero-copy");
    stage.all_answered("zero-copy, after a kill", first_vips());
    stage.balancer.stop().unwrap();
    assert!(!link().contains("xdp"), "{}", link());
}

#[test]
fn nic_without_zero_copy_uses_copy_mode() {
    let stage = Stage::new(PLAIN);
    assert_eq!((stage.mode().as_str(), stage.settled().threads()), ("copy", QUEUES));
    let said = |line: &str| line.contains("refuses zero-copy") && line.contains("\"peer1\"");
    let lines = stage.balancer.process.lines();
    assert!(lines.iter().any(|line| said(&line.text)), "{}", stage.balancer.process.tail());
    stage.all_answered("copy", first_vips());
    stage.balancer.stop().unwrap();
}

#[test]
fn zero_copy_forwards_between_two_nics() {
    let stage = Stage::on_two(["zc1", "peer1"]);
    let modes = stage.balancer.counters().unwrap().modes();
    assert_eq!(modes, ["zc0", "zc1"].map(|name| (name.to_owned(), "zero-copy".to_owned())));
    stage.all_answered("zero-copy, two NICs", first_vips());
    // The last packets of a connection may arrive after its response. The counters are read until
    // they match.
    let agreed = eventually(BOUND, || {
        let counts = stage.settled();
        let of = |what| ["zc0", "zc1"].map(|name| counts.at(&["interfaces", name, what]));
        let sent = counts.sent();
        (sent > 0 && [of("rx"), of("tx")] == [[sent, 0], [0, sent]]).then_some(sent)
    });
    let sent = agreed.unwrap_or_else(|| panic!("{}", stage.figures()));
    println!("{sent} packets received on zc0 and sent on zc1 in zero-copy mode");
    stage.balancer.stop().unwrap();
}

#[test]
fn nic_without_zero_copy_switches_both_to_copy_mode() {
    let stage = Stage::on_two(["peer1", "zc1"]);
    let modes = stage.balancer.counters().unwrap().modes();
    assert_eq!(modes, ["peer1", "zc0"].map(|name| (name.to_owned(), "copy".to_owned())));
    let said = |line: &str| line.contains("refuses zero-copy") && line.contains("\"peer1\"");
    let lines = stage.balancer.process.lines();
    assert!(lines.iter().any(|line| said(&line.text)), "{}", stage.balancer.process.tail());
    stage.all_answered("copy, two NICs", first_vips());
    stage.balancer.stop().unwrap();
}

#[test]
fn zero_copy_frames_get_tag_of_vlan_device() {
    let bed = bed(WIRE);
    let [(own, near), (far, port)] =
        [(&bed.balancers[0].ns, "zc0"), (&bed.router, "peer0")].map(|(ns, parent)| {
            let device = format!("{parent}.7");
            let made = format!("link add link {parent} name {device} type vlan id 7\nlink set {device} up");
            ns.ip(&made).unwrap();
            (ns.clone(), device)
        });
    bed.reach_backends_by(&near, &port).unwrap();
    // IPv4 packets arrive with the VLAN tag, and IPv6 packets without a tag.
    far.ip(&format!("route replace {}/32 via 192.0.2.101", first_vips()[0])).unwrap();
    let stage = Stage::on(bed, config);
    assert_eq!(stage.mode(), "zero-copy");
    let before = device_counts(&far, &port).unwrap().rx_packets;
    stage.all_answered("zero-copy, VLAN 7", first_vips());
    let sent = stage.settled().sent();
    let tagged = || device_counts(&far, &port).unwrap().rx_packets - before;
    // The router's device also counts packets for neighbor discovery.
    let agreed = eventually(BOUND, || (tagged() >= sent).then_some(()));
    println!("{sent} packets sent with VLAN 7 in zero-copy mode, {} received by the router", tagged());
    assert!(agreed.is_some() && sent > 0, "{}", stage.figures());
    assert!(output(&own, "ip", &["neigh"]).contains(&near), "{}", stage.figures());
    stage.balancer.stop().unwrap();
}

/// Opens a one-to-one SCTP socket at this address. Such a socket has the same calls as a TCP
/// socket.
fn sctp(at: SocketAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::SCTP))?;
    socket.bind(&at.into())?;
    Ok(socket)
}

fn sctp_listen(host: &Host, at: SocketAddr) -> TcpListener {
    let socket = host.ns.run(move || sctp(at).and_then(|socket| socket.listen(16).map(|()| socket))).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.into()
}

/// Sets up an association from the client host.
fn sctp_connect(bed: &Bed, to: SocketAddr) -> std::io::Result<TcpStream> {
    let from = (bed.client.address(to.ip()), 0).into();
    let socket = bed.client.ns.run(move || {
        let socket = sctp(from)?;
        socket.connect_timeout(&to.into(), BOUND).map(|()| socket)
    })?;
    socket.set_read_timeout(Some(BOUND))?;
    Ok(socket.into())
}

#[test]
fn sctp_uses_direct_server_return_and_is_rejected_at_once() {
    const PORT: u16 = 3868;
    let stage = Stage::on(bed(WIRE), |bed| {
        let mut config = config(bed);
        config.services.push(Service { ports: PORT.to_string(), protocol: "sctp", hash: None });
        config.vip_keys = "on_unserved_port = \"reject\"\non_no_backend = \"reject\"".into();
        config
    });
    let bed = &stage.bed;
    let words = |args: &[&str]| bed.say(0, args, BOUND).unwrap();
    let mut open = vec![];
    for vip in first_vips().map(|vip| SocketAddr::new(vip, PORT)) {
        let listeners: Vec<_> = bed.backends.iter().map(|host| sctp_listen(host, vip)).collect();
        for number in 0..8 {
            let mut client =
                sctp_connect(bed, vip).unwrap_or_else(|error| panic!("{error}\n{}", stage.figures()));
            let accepted = eventually(BOUND, || {
                let mut all = bed.backends.iter().zip(&listeners);
                all.find_map(|(host, listener)| Some((host, listener.accept().ok()?)))
            });
            let (host, (mut server, peer)) = accepted.unwrap_or_else(|| panic!("{}", stage.figures()));
            let local = client.local_addr().unwrap();
            assert_eq!((peer, client.peer_addr().unwrap()), (local, vip));
            let live = words(&["where", &local.to_string(), &vip.to_string(), "sctp", "--live"]);
            assert!(live.contains(&host.name), "{} is not the backend of {live}", host.name);
            server.set_nonblocking(false).unwrap();
            server.set_read_timeout(Some(BOUND)).unwrap();
            let (question, reply) =
                (format!("question {number}"), format!("answer {number} of {}", host.name));
            let mut room = [0; 64];
            client.write_all(question.as_bytes()).unwrap();
            let length = server.read(&mut room).unwrap();
            assert_eq!(&room[..length], question.as_bytes());
            server.write_all(reply.as_bytes()).unwrap();
            let length = client.read(&mut room).unwrap();
            assert_eq!(&room[..length], reply.as_bytes());
            open.push((client, server));
        }
        let refused = sctp_connect(bed, SocketAddr::new(vip.ip(), PORT + 1)).unwrap_err();
        println!("an association with {vip} carries data, and one with the next port fails: {refused}");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{}", stage.figures());
    }
    let aborts = || stage.balancer.counters().unwrap().over_threads(&["aborts_sent"]);
    assert_eq!(aborts(), 2);
    // An association without a backend ends at its next packet.
    for host in &bed.backends {
        words(&["backend", "down", &host.name]);
    }
    let (client, _) = &mut open[0];
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    // Packet threads may forward packets until they have loaded the new snapshot.
    let ended = eventually(BOUND, || {
        let ended = client.write(b"question").and_then(|_| client.read(&mut [0; 64])).err()?;
        (ended.kind() != ErrorKind::WouldBlock).then_some(ended)
    });
    let ended = ended.unwrap_or_else(|| panic!("{}", stage.figures()));
    println!("an association whose backends are down fails: {ended}");
    assert_eq!(ended.kind(), ErrorKind::ConnectionReset, "{}", stage.figures());
    assert!(aborts() > 2, "{}", stage.figures());
    stage.balancer.stop().unwrap();
}

#[test]
fn disabled_channels_are_rejected() {
    let bed = bed(WIRE);
    let host = &bed.balancers[0];
    output(&host.ns, "ethtool", &["-L", host.device, "combined", "2"]);
    let refusal = Balancer::start(&bed, 0, &config(&bed)).map(drop);
    output(&host.ns, "ethtool", &["-L", host.device, "combined", &QUEUES.to_string()]);
    let words = format!("{:#}", refusal.unwrap_err());
    assert!(words.contains("zc0 has only 2 of 4 channels enabled"), "{words}");
    println!("channels: {}", words.lines().find(|line| line.contains("2 of 4")).unwrap_or_default());
}

/// Interrupts are deferred for so long that packets arrive in time only if system calls run the
/// driver. The test does not check which system call does this, because sends and `poll` also run
/// the driver.
#[test]
fn busy_poll_serves_with_deferred_interrupts() {
    // A sleeping thread polls ten times per second. A spinning thread would occupy the virtual
    // machine's only processor.
    let stage = Stage::on(bed(WIRE), |bed| LbConfig { io: "busy_poll = 16".into(), ..config(bed) });
    // A socket gets the driver's NAPI ID with its first packet.
    stage.all_answered("busy polling, before interrupts are deferred", first_vips());
    stage.settled();
    assert!(!logged(&stage.balancer, "busy polling unavailable"), "{}", stage.balancer.process.tail());
    put_off_interrupts(&stage.bed.balancers[0], Duration::from_secs(600));
    stage.all_answered("busy polling, interrupts deferred", first_vips());
    stage.settled();
    stage.balancer.stop().unwrap();
}
