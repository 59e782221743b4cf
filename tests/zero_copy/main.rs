//! Zero-copy on a real driver's code path, and the kernel's own tunnels at the far end. They run in the VM of `xtask/zc-vm`.
//!
//! `cargo xtask test --lane zero-copy` runs them, one at a time: they share the VM's NICs. The wire drops what exceeds
//! some 15,000 frames a second, so nothing here is a measure of speed.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use testbed::{
    Balancer, Bed, BedSpec, Counters, Encapsulation, FrameSpec, Host, LbConfig, Namespace, Tunnels, blast,
    device_counts, eventually, mac_of, take_in,
};

const BOUND: Duration = Duration::from_secs(20);
const REQUESTS: usize = 40;
const QUEUES: usize = 4;

/// Encapsulations, with whether the outer header is of IPv4.
const KINDS: [(Encapsulation, bool); 6] = [
    (Encapsulation::Gre, true),
    (Encapsulation::Gre, false),
    (Encapsulation::Ipip, true),
    (Encapsulation::Ipip, false),
    (Encapsulation::Gue, true),
    (Encapsulation::Gue, false),
];

/// The first can do zero-copy, the second is a plain virtio NIC.
const WIRE: [&str; 2] = ["zc0", "peer0"];
/// The other way round: the balancer gets the NIC that refuses zero-copy.
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

    /// On a second pair of NICs besides, by which the backends are reached.
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

    /// Makes requests over both families, and demands that the pool answers each.
    fn all_answered(&self, what: &str, vips: [IpAddr; 2]) {
        // A NIC may drop its link for seconds when XDP comes: the fourth SYN is sent after 7 s.
        let client = self.bed.http_client();
        for vip in vips.map(|vip| SocketAddr::new(vip, Bed::HTTP_PORT)) {
            let replies = client.get_many(vip, "/", REQUESTS, 8);
            let answered = replies.iter().flatten().filter(|reply| {
                (reply.status, reply.peer, reply.client_seen) == (200, vip, Some(reply.local))
            });
            let answered = answered.count();
            let slowest = replies.iter().flatten().map(|reply| reply.time).max().unwrap_or_default();
            println!(
                "{what}: {answered} of {REQUESTS} requests to {vip} answered, the slowest in {slowest:.1?}"
            );
            let failed: Vec<_> = replies.iter().filter_map(|reply| reply.as_ref().err()).collect();
            let tail = self.balancer.process.tail();
            assert_eq!(answered, REQUESTS, "{failed:?}\n{}\n{tail}", self.figures());
        }
    }

    /// Waits until nothing is on its way: what was redirected has been received, and what was received is sent or dropped.
    fn settled(&self) -> Counters {
        let agreed = eventually(BOUND, || {
            let counts = self.balancer.counters().ok()?;
            // An empty fill ring is no lost packet here: without a frame the NIC's own ring overflows, before XDP.
            let lost = counts.over_threads(&["socket", "rx_dropped"])
                + counts.over_threads(&["socket", "rx_ring_full"]);
            let dropped: u64 = counts.drops().iter().map(|(_, count)| count).sum();
            (counts.redirected() == counts.received() + lost && counts.received() == counts.sent() + dropped)
                .then_some(counts)
        });
        agreed.unwrap_or_else(|| panic!("the counts do not agree: {}", self.figures()))
    }

    /// What each part of the way has counted, for a message.
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

    /// The mode by the log and by the counters, which must say the same.
    fn mode(&self) -> String {
        let modes = self.balancer.counters().unwrap().modes();
        let [(device, mode)] = &modes[..] else { panic!("{modes:?}") };
        assert_eq!(device, self.bed.balancers[0].device);
        assert!(
            logged(&self.balancer, &format!("\"sockets\":\"{mode}\"")),
            "{}",
            self.balancer.process.tail()
        );
        mode.clone()
    }
}

/// As an operator of busy polling does, by the interface's files.
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
    // The VM's wires carry 1,500 bytes.
    let (client_mtu, core_mtu, wire) = (1400, 1500, Some(wire));
    Bed::new(&BedSpec { backends: 2, client_mtu, core_mtu, vips, wire, ..BedSpec::default() }).unwrap()
}

/// Each kind of outer header has its VIPs and its pool; a flow of one can't meet what is left of another's.
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

/// The VIPs whose packets get this outer header, of IPv4 and of IPv6.
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
fn the_kernels_own_tunnels_take_off_what_zero_copy_sockets_send() {
    let stage = Stage::new(WIRE);
    assert_eq!(stage.mode(), "zero-copy");
    for (kind, outer_ipv4) in KINDS {
        let what = format!("zero-copy, {} over {}", kind.name(), if outer_ipv4 { "IPv4" } else { "IPv6" });
        let (sent, off) = (stage.settled().sent(), stage.taken_off(kind, outer_ipv4));
        stage.all_answered(&what, vips(kind, outer_ipv4));
        // Taken off is read first: when the two agree, nothing is on its way.
        let counted = || (stage.taken_off(kind, outer_ipv4) - off, stage.settled().sent() - sent);
        let agreed = eventually(BOUND, || Some(counted()).filter(|(off, sent)| off == sent));
        let (off, sent) = agreed.unwrap_or_else(counted);
        println!("{what}: {sent} packets sent, {off} taken off");
        assert!(sent > 0 && sent == off, "{}", stage.figures());
    }
    stage.balancer.stop().unwrap();
}

#[test]
fn four_queues_share_one_memory_in_zero_copy_and_answer_after_a_blast() {
    let stage = Stage::new(WIRE);
    assert_eq!((stage.mode().as_str(), stage.settled().threads()), ("zero-copy", QUEUES));
    let balancer = &stage.bed.balancers[0];
    let from = mac_of(&stage.bed.router, &balancer.port).unwrap();
    let to = mac_of(&balancer.ns, balancer.device).unwrap();
    let source = (stage.bed.client.v4, 10_000).into();
    let frames = FrameSpec::smallest_udp(from, to, source, stage.bed.vip(true, Bed::SINK_PORT)).flows(1000);
    let running = blast(&stage.bed.router, &balancer.port, frames, Duration::from_secs(1)).unwrap();
    let (offered, _) = running.join().unwrap().unwrap();
    stage.all_answered("zero-copy, after a blast", first_vips());
    let counts = stage.settled();
    let threads = counts.0["threads"].as_array().unwrap();
    let by_thread: Vec<u64> = threads.iter().map(|thread| Counters(thread.clone()).at(&["rx"])).collect();
    let (sent, drops) = (counts.sent(), counts.drops());
    println!("zero-copy, blast of {offered}: received {by_thread:?}, sent {sent}, dropped {drops:?}");
    assert!(by_thread.iter().all(|&rx| rx > 0), "{by_thread:?}");
    assert_eq!(counts.at(&["xdp", "no_socket"]), 0);
    stage.balancer.stop().unwrap();
}

#[test]
fn a_killed_balancer_leaves_the_nic_as_it_was_and_the_next_one_is_zero_copy_again() {
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
fn a_nic_that_refuses_zero_copy_is_named_and_works_in_copy_mode() {
    let stage = Stage::new(PLAIN);
    assert_eq!((stage.mode().as_str(), stage.settled().threads()), ("copy", QUEUES));
    let said = |line: &str| line.contains("refuses zero-copy") && line.contains("\"peer1\"");
    let lines = stage.balancer.process.lines();
    assert!(lines.iter().any(|line| said(&line.text)), "{}", stage.balancer.process.tail());
    stage.all_answered("copy", first_vips());
    stage.balancer.stop().unwrap();
}

#[test]
fn what_comes_by_one_nic_leaves_by_another_over_one_memory_in_zero_copy() {
    let stage = Stage::on_two(["zc1", "peer1"]);
    let modes = stage.balancer.counters().unwrap().modes();
    assert_eq!(modes, ["zc0", "zc1"].map(|name| (name.to_owned(), "zero-copy".to_owned())));
    stage.all_answered("zero-copy, two NICs", first_vips());
    // A connection's last packets may come after it was answered: all is read at once, until it agrees.
    let agreed = eventually(BOUND, || {
        let counts = stage.settled();
        let of = |what| ["zc0", "zc1"].map(|name| counts.at(&["interfaces", name, what]));
        let sent = counts.sent();
        (sent > 0 && [of("rx"), of("tx")] == [[sent, 0], [0, sent]]).then_some(sent)
    });
    let sent = agreed.unwrap_or_else(|| panic!("{}", stage.figures()));
    println!("zero-copy, two NICs: {sent} packets came by zc0 and left by zc1");
    stage.balancer.stop().unwrap();
}

#[test]
fn one_of_two_nics_that_refuses_zero_copy_is_named_and_both_work_in_copy_mode() {
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
fn the_kernels_vlan_device_on_the_way_to_the_backends_gives_frames_its_tag() {
    let bed = bed(WIRE);
    let [(own, near), (far, port)] =
        [(&bed.balancers[0].ns, "zc0"), (&bed.router, "peer0")].map(|(ns, parent)| {
            let device = format!("{parent}.7");
            let made = format!("link add link {parent} name {device} type vlan id 7\nlink set {device} up");
            ns.ip(&made).unwrap();
            (ns.clone(), device)
        });
    bed.reach_backends_by(&near, &port).unwrap();
    // IPv4 comes tagged as well, IPv6 does not.
    far.ip(&format!("route replace {}/32 via 192.0.2.101", first_vips()[0])).unwrap();
    let stage = Stage::on(bed, config);
    assert_eq!(stage.mode(), "zero-copy");
    let before = device_counts(&far, &port).unwrap().rx_packets;
    stage.all_answered("zero-copy, VLAN 7", first_vips());
    let sent = stage.settled().sent();
    let tagged = || device_counts(&far, &port).unwrap().rx_packets - before;
    // The kernels' own neighbour discovery is among what the router's device has had.
    let agreed = eventually(BOUND, || (tagged() >= sent).then_some(()));
    println!("zero-copy, VLAN 7: {sent} packets sent, the router's VLAN device has had {}", tagged());
    assert!(agreed.is_some() && sent > 0, "{}", stage.figures());
    assert!(output(&own, "ip", &["neigh"]).contains(&near), "{}", stage.figures());
    stage.balancer.stop().unwrap();
}

#[test]
fn channels_that_are_off_are_refused_by_name() {
    let bed = bed(WIRE);
    let host = &bed.balancers[0];
    output(&host.ns, "ethtool", &["-L", host.device, "combined", "2"]);
    let refusal = Balancer::start(&bed, 0, &config(&bed)).map(drop);
    output(&host.ns, "ethtool", &["-L", host.device, "combined", &QUEUES.to_string()]);
    let words = format!("{:#}", refusal.unwrap_err());
    assert!(words.contains("zc0 has 2 of 4 channels on"), "{words}");
    println!("channels: {}", words.lines().find(|line| line.contains("2 of 4")).unwrap_or_default());
}

/// With interrupts put off for so long, a packet comes in good time by a system call or not at all. Which one does not show:
/// sends and `poll` run the driver as well as the call that is made for it.
#[test]
fn with_busy_polling_all_is_answered_while_interrupts_are_put_off() {
    // A thread that sleeps looks ten times a second: one that spins takes all of the VM's processor.
    let stage = Stage::on(bed(WIRE), |bed| LbConfig { io: "busy_poll = 16".into(), ..config(bed) });
    // The sockets learn their driver's instance with the first packets.
    stage.all_answered("busy polling, before interrupts are put off", first_vips());
    stage.settled();
    assert!(!logged(&stage.balancer, "no busy polling"), "{}", stage.balancer.process.tail());
    put_off_interrupts(&stage.bed.balancers[0], Duration::from_secs(600));
    stage.all_answered("busy polling, interrupts put off", first_vips());
    stage.settled();
    stage.balancer.stop().unwrap();
}
