//! Tests of the findings with artificial facts. Each problem is tested together with a similar
//! state that is not a problem.

use std::net::IpAddr;
use std::path::PathBuf;

use datapath::interface::{
    Channels, Features, Finding, Hardware, Interface, Privileges, Severity, XdpSupport,
};
use datapath::placement::Processors;
use next_hop::{Hop, Hops, Resolved, Unresolved};
use nix::errno::Errno;

use crate::facts::{
    AdminFolder, Facts, FolderState, Host, Nic, OwnAddress, PathFact, PeerFact, Reach, Routers, Threads,
    VipFact,
};
use crate::judge;

const VIP_V4: &str = "203.0.113.10";
const VIP_V6: &str = "2001:db8:f::10";
const INDEX: u32 = 7;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn resolved() -> Resolved {
    Resolved {
        interface: INDEX,
        leaves_by: INDEX,
        tags: packet::Tags::NONE,
        destination: [2, 0, 0, 0, 0, 9],
        source: [2, 0, 0, 0, 0, 1],
        mtu_bytes: 1_600,
        gateway: Some(ip("192.0.2.254")),
        preferred_source: Some(ip("192.0.2.1")),
    }
}

fn path(n: u8) -> PathFact {
    PathFact {
        noun: "backend",
        clients: 1_500,
        backend: format!("b{n}").into(),
        address: ip(&format!("198.18.1.{n}")),
        kind: "gre",
        is_readdressed: false,
        encap_overhead: 24,
        next_hop: Ok(resolved()),
        several: Vec::new(),
        link: Some(("eth0".to_owned(), 1_600)),
        reach: Some(Reach::Longest(1_524)),
    }
}

fn vip(address: &str) -> VipFact {
    VipFact {
        name: "www".into(),
        address: ip(address),
        route: Ok(INDEX),
        several: Vec::new(),
        local: None,
        subnet: None,
    }
}

fn nic() -> Nic {
    let interface = Interface {
        name: "eth0".to_owned(),
        index: INDEX,
        mac: [2, 0, 0, 0, 0, 1],
        mtu_bytes: 1_600,
        is_up: true,
        has_carrier: true,
        driver: "ixgbe".to_owned(),
        queues: 4,
        max_queues: 8,
        features: Features::default(),
        master: None,
        xdp_program: None,
        xdp_program_name: None,
        multi_buffer: None,
    };
    let hardware = Hardware {
        xdp: XdpSupport { native: Some(true), redirect: Some(true), zero_copy: Some(true) },
        rss_queues: Some(vec![0, 1, 2, 3]),
        channels: Channels::Combined,
        gro: true,
        bus: "0000:01:00.0".to_owned(),
        near: Processors::from_iter(0..8),
    };
    Nic {
        name: "eth0".to_owned(),
        found: Ok((interface, hardware)),
        rp_filter: Some(0),
        skips_linkdown: [Some(false); 2],
        forwards_v4: false,
        forwards_v6: false,
        has_interrupts: true,
        defers_interrupts: Some(false),
    }
}

/// Returns the interface eth1 with the index 8.
fn second_nic() -> Nic {
    let mut nic = nic();
    nic.name = "eth1".to_owned();
    if let Ok((interface, _)) = &mut nic.found {
        (interface.name, interface.index) = ("eth1".to_owned(), 8);
    }
    nic
}

/// Gives the machine two interfaces, and all paths a multipath route with these hops. `skips` is
/// the setting of both interfaces for links without carrier.
fn two_hops(facts: &mut Facts, found: [Result<Resolved, Unresolved>; 2], skips: Option<bool>) {
    facts.interfaces.push(second_nic());
    facts.interfaces.iter_mut().for_each(|nic| nic.skips_linkdown = [skips; 2]);
    let neighbours = [(7, ip("192.0.2.254")), (8, ip("192.0.2.253"))];
    let hop = |(neighbour, found)| Hop { neighbour, weight: 1, found };
    let hops = Hops::new(neighbours.into_iter().zip(found).map(hop).collect());
    for path in &mut facts.paths {
        (path.next_hop, path.several) = (hops.first(), hops.several().to_vec());
    }
}

fn peer() -> PeerFact {
    PeerFact {
        name: "tor1".into(),
        address: ip("192.0.2.254"),
        route: Ok(()),
        gateway: None,
        hops: Some(1),
        has_bfd: true,
        is_signed: true,
        absent_source: None,
    }
}

fn routers() -> Routers {
    let listens = vec![("192.0.2.1:179".parse().unwrap(), None)];
    Routers { peers: vec![peer()], listens, signs_tcp: Some(true), bfd_port: None }
}

/// Returns the facts of a machine without problems.
fn sound() -> Facts {
    Facts {
        host: Host {
            kernel: "6.12.0-amd64".to_owned(),
            reports_nexthop_objects: Some(true),
            knows_af_xdp: Some(true),
            bpf_jit: Some(1),
            privileges: Some(Privileges::from_mask(u64::MAX)),
            memlock: Some(8 << 20),
            clock_is_synchronised: Some(true),
            huge_pages: Some("always".to_owned()),
            cpus: Processors::from_iter(0..8),
            isolated: Processors::new(),
            irqbalance: false,
        },
        interfaces: vec![nic()],
        vips: vec![vip(VIP_V4), vip(VIP_V6)],
        paths: vec![path(1), path(2)],
        routers: Some(routers()),
        absent_addresses: vec![],
        unasked: vec![],
        has_packet_sockets: false,
        sockets: None,
        frames_per_queue: 4_096,
        frame_size: 2_048,
        flows_per_thread: 1_000_000,
        threads: Threads::default(),
        admin: Some(AdminFolder {
            path: PathBuf::from("/srv/lb"),
            state: FolderState::Sound,
            is_asked_for: true,
        }),
        is_running: false,
    }
}

fn interface(facts: &mut Facts) -> &mut Interface {
    &mut facts.interfaces[0].found.as_mut().unwrap().0
}

fn hardware(facts: &mut Facts) -> &mut Hardware {
    &mut facts.interfaces[0].found.as_mut().unwrap().1
}

/// Sets the default path of the admin socket.
fn with_usual_admin(facts: &mut Facts, state: FolderState) {
    facts.admin = Some(AdminFolder { path: PathBuf::from("/run/sluicegate"), state, is_asked_for: false });
}

fn with_admin(facts: &mut Facts, path: &str, state: FolderState) {
    facts.admin = Some(AdminFolder { path: PathBuf::from(path), state, is_asked_for: true });
}

fn own(address: &str, prefix_length: u8, interface: &str) -> Option<OwnAddress> {
    Some(OwnAddress { address: ip(address), prefix_length, interface: interface.to_owned() })
}

const ERROR: Severity = Severity::Error;
const WARN: Severity = Severity::Warn;
const ADVICE: Severity = Severity::Advice;

/// A change to the facts of a machine without problems, and the expected findings. Each expected
/// finding consists of an identifier, a severity, a part of the text, and the complete command,
/// which is empty if there is no command.
type Row = (fn(&mut Facts), &'static [(&'static str, Severity, &'static str, &'static str)]);

fn check(rows: &[Row]) {
    for (row, (change, expected)) in rows.iter().enumerate() {
        let mut facts = sound();
        change(&mut facts);
        let found = judge(&facts);
        let said: Vec<_> = found.iter().map(|finding| (finding.id, finding.severity)).collect();
        let wanted: Vec<_> = expected.iter().map(|(id, severity, ..)| (*id, *severity)).collect();
        assert_eq!(said, wanted, "row {row}: {found:#?}");
        for (finding, (_, _, what, command)) in found.iter().zip(*expected) {
            assert!(finding.what.contains(what), "row {row}: {finding}");
            assert_eq!(finding.command.as_deref().unwrap_or_default(), *command, "row {row}: {finding}");
            assert!(!finding.why.is_empty() && !finding.fix().is_empty(), "row {row}: {finding}");
        }
    }
}

#[test]
fn a_machine_without_problems_has_no_findings() {
    assert_eq!(judge(&sound()), []);
}

#[test]
fn advice_is_reported_by_doctor_only() {
    let mut facts = sound();
    facts.host.huge_pages = Some("never".into());
    facts.host.bpf_jit = Some(0);
    let ids = |found: Vec<Finding>| found.iter().map(|finding| finding.id).collect::<Vec<_>>();
    assert_eq!(ids(judge(&facts)), ["bpf-jit", "huge-pages"]);
    assert_eq!(ids(crate::judge_at_start(&facts)), ["bpf-jit"]);
    assert!(crate::is_well(&judge(&facts)), "warnings and advice are not errors");
}

#[test]
fn packet_sockets_need_no_xdp() {
    fn packet(facts: &mut Facts) {
        facts.has_packet_sockets = true;
        // Each of these facts is an error with AF_XDP.
        facts.host.knows_af_xdp = Some(false);
        facts.host.privileges = Some(Privileges::from_mask(!(1 << 14)));
        facts.sockets = Some(1);
        hardware(facts).xdp = XdpSupport { native: Some(true), redirect: Some(false), zero_copy: None };
        hardware(facts).gro = false;
        interface(facts).xdp_program = Some(42);
    }
    #[rustfmt::skip]
    check(&[
        (packet, &[]),
        (|f| { packet(f); f.host.kernel = "6.6.0".into(); }, &[]),
        (|f| { packet(f); f.host.kernel = "6.5.9".into(); }, &[("kernel-old", ERROR, "the minimum is 6.6", "")]),
        (|f| { packet(f); interface(f).features.gro = true; }, &[("coalescing", ERROR, "eth0 has GRO on", "ethtool -K eth0 gro off")]),
        (|f| { packet(f); interface(f).features.rx_vlan = true; }, &[]),
    ]);
}

#[test]
fn problems_of_the_machine_are_found() {
    #[rustfmt::skip]
    check(&[
        (|f| f.host.kernel = "5.9.0".into(), &[]),
        (|f| f.host.kernel = "5.8.18-arch".into(), &[("kernel-old", ERROR, "kernel 5.8.18-arch is too old", "")]),
        (|f| f.host.kernel = "4.19.0".into(), &[("kernel-old", ERROR, "the minimum is 5.9", "")]),
        (|f| f.host.kernel = "6.1".into(), &[]),
        (|f| f.host.kernel = String::new(), &[]),
        (|f| f.host.knows_af_xdp = Some(false), &[("no-af-xdp", ERROR, "does not support AF_XDP", "")]),
        (|f| f.host.knows_af_xdp = None, &[]),
        (|f| f.host.bpf_jit = Some(0), &[("bpf-jit", WARN, "JIT compiler of the kernel is off", "sysctl -w net.core.bpf_jit_enable=1")]),
        (|f| f.host.bpf_jit = Some(2), &[]),
        (|f| f.host.bpf_jit = None, &[]),
        (|f| f.host.privileges = Some(Privileges::from_mask(!(1 << 13))), &[("capability", ERROR, "lacks CAP_NET_RAW", "")]),
        // 4 queues of 4,096 frames of 2 KiB: 32 MiB.
        (|f| f.host.privileges = Some(Privileges::from_mask(!(1 << 14))), &[("memlock", ERROR, "needs 32768 KiB, but the limit of locked memory is 8192 KiB", "ulimit -l unlimited")]),
        (|f| { f.host.privileges = Some(Privileges::from_mask(!(1 << 14))); f.host.memlock = Some(32 << 20); }, &[]),
        (|f| { f.host.privileges = Some(Privileges::from_mask(!(1 << 14))); f.host.memlock = Some(32 << 20); f.threads.steered = 4; }, &[("memlock", ERROR, "needs 36864 KiB", "ulimit -l unlimited")]),
        (|f| { f.host.privileges = Some(Privileges::from_mask(!(1 << 14))); f.host.memlock = None; }, &[]),
        (|f| { f.host.privileges = Some(Privileges::from_mask(!(1 << 14))); f.host.memlock = Some((32 << 20) - 1); }, &[("memlock", ERROR, "32768 KiB", "ulimit -l unlimited")]),
        (|f| f.host.huge_pages = Some("madvise".into()), &[]),
        (|f| { f.host.huge_pages = Some("never".into()); f.flows_per_thread = 131_071; }, &[]),
        (|f| { f.host.huge_pages = Some("never".into()); f.flows_per_thread = 131_072; }, &[("huge-pages", ADVICE, "set to `never`", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")]),
        (|f| f.host.huge_pages = None, &[]),
        (|f| f.host.clock_is_synchronised = Some(false), &[("clock", WARN, "clock", "timedatectl set-ntp true")]),
        (|f| f.host.clock_is_synchronised = None, &[]),
        (|f| with_admin(f, "/srv/a b", FolderState::Missing), &[("admin-folder", ERROR, "directory /srv/a b of the admin socket", "install -d -m 0755 '/srv/a b'")]),
        (|f| with_admin(f, "/run/sluicegate", FolderState::Missing), &[("admin-folder", WARN, "does not exist", "install -d -m 0755 /run/sluicegate")]),
        (|f| with_admin(f, "/srv/lb", FolderState::NoFolder), &[("admin-folder", ERROR, "is not a directory", "")]),
        (|f| with_admin(f, "/srv/lb", FolderState::NotWritable), &[("admin-folder", ERROR, "is not writable for this user", "")]),
        (|f| with_admin(f, "/srv/lb", FolderState::OpenToOthers), &[("admin-folder", WARN, "writable for all users", "chmod o-w /srv/lb")]),
        (|f| with_usual_admin(f, FolderState::NotWritable), &[("admin-folder", WARN, "is not writable for this user", "")]),
        (|f| with_usual_admin(f, FolderState::Missing), &[("admin-folder", WARN, "does not exist", "install -d -m 0755 /run/sluicegate")]),
        (|f| f.admin = None, &[]),
    ]);
}

fn router(facts: &mut Facts) -> &mut Routers {
    facts.routers.as_mut().unwrap()
}

fn tor(facts: &mut Facts) -> &mut PeerFact {
    &mut router(facts).peers[0]
}

#[test]
fn problems_of_routers_and_bgp_are_found() {
    #[rustfmt::skip]
    check(&[
        (|f| f.routers = None, &[]),
        (|f| tor(f).route = Err(Unresolved::NoRoute), &[("bgp-no-route", ERROR, "cannot send to BGP peer tor1 (192.0.2.254): no route", "")]),
        (|f| tor(f).route = Err(Unresolved::Local), &[("bgp-no-route", ERROR, "the address belongs to this machine", "")]),
        (|f| tor(f).route = Err(Unresolved::LinkDown { interface: INDEX }), &[("bgp-no-route", ERROR, "is down or has no carrier", "")]),
        (|f| tor(f).route = Err(Unresolved::NeighbourFailed { interface: INDEX, neighbour: ip("192.0.2.254") }), &[("bgp-no-route", ERROR, "does not respond", "")]),
        (|f| tor(f).route = Err(Unresolved::NeighbourPending { interface: INDEX, neighbour: ip("192.0.2.254") }), &[]),
        (|f| tor(f).gateway = Some(ip("192.0.2.9")), &[("bgp-not-direct", ERROR, "tor1 (192.0.2.254) has hops = 1, but its route uses the gateway 192.0.2.9", "")]),
        (|f| { tor(f).gateway = Some(ip("192.0.2.9")); tor(f).hops = Some(2); }, &[("bgp-not-direct", ERROR, "has bfd, but its route uses the gateway 192.0.2.9", "")]),
        (|f| { tor(f).gateway = Some(ip("192.0.2.9")); tor(f).hops = Some(2); tor(f).has_bfd = false; }, &[]),
        (|f| { tor(f).gateway = Some(ip("192.0.2.9")); tor(f).hops = None; tor(f).has_bfd = false; }, &[]),
        (|f| tor(f).absent_source = Some(ip("192.0.2.7")), &[("bgp-source", ERROR, "no local interface has the source address 192.0.2.7 of BGP peer tor1", "ip address add 192.0.2.7/32 dev eth0")]),
        (|f| router(f).listens[0].1 = Some(Errno::EADDRINUSE), &[("bgp-listen", ERROR, "192.0.2.1:179, which another program uses", "")]),
        (|f| { router(f).listens[0].1 = Some(Errno::EADDRINUSE); f.is_running = true; }, &[]),
        (|f| { router(f).listens[0].1 = Some(Errno::EADDRNOTAVAIL); f.is_running = true; }, &[("bgp-listen", ERROR, "which no local interface has", "ip address add 192.0.2.1/32 dev eth0")]),
        (|f| router(f).listens[0].1 = Some(Errno::EACCES), &[("bgp-listen", ERROR, "ports below 1024 need a capability", "")]),
        (|f| router(f).listens[0].1 = Some(Errno::EPERM), &[("bgp-listen", ERROR, "the kernel returns", "")]),
        (|f| router(f).signs_tcp = Some(false), &[("bgp-md5", ERROR, "tor1 has a password_file, but the kernel does not support", "")]),
        (|f| { router(f).signs_tcp = Some(false); tor(f).is_signed = false; }, &[]),
        (|f| router(f).signs_tcp = None, &[]),
        (|f| router(f).bfd_port = Some(Errno::EADDRINUSE), &[("bfd-port", ERROR, "UDP port 3784, which another program uses", "")]),
        (|f| { router(f).bfd_port = Some(Errno::EADDRINUSE); f.is_running = true; }, &[]),
    ]);
}

#[test]
fn problems_of_thread_placement_are_found() {
    #[rustfmt::skip]
    check(&[
        (|f| f.host.cpus = Processors::from_iter(0..4), &[]),
        (|f| f.host.cpus = Processors::from_iter(0..3), &[("threads-shared", WARN, "eth0 needs 4 packet threads, but only 3 processors are available", "ethtool -L eth0 combined 3")]),
        (|f| { f.host.cpus = Processors::from_iter(0..3); f.sockets = Some(4); }, &[("threads-shared", WARN, "4 packet threads", "ethtool -L eth0 combined 3")]),
        (|f| f.threads.steered = 4, &[]),
        (|f| f.threads.steered = 5, &[("threads-shared", WARN, "eth0 needs 5 packet threads and 4 I/O threads, but only 8 processors are available", "")]),
        (|f| { f.threads.steered = 3; f.threads.spins = true; f.host.isolated = Processors::from_iter(0..6); }, &[("threads-disturbed", WARN, "processors 6, which", "systemctl set-property sluicegate.service AllowedCPUs=0-5")]),
        (|f| f.host.cpus = Processors::new(), &[]),
        (|f| hardware(f).near = Processors::from_iter(0..4), &[]),
        // Threads use the near processors first.
        (|f| hardware(f).near = Processors::from_iter(4..8), &[]),
        (|f| hardware(f).near = Processors::from_iter(5..9), &[("threads-far", WARN, "processors 0, which are not on the NUMA node of eth0", "systemctl set-property sluicegate.service AllowedCPUs=5-8")]),
        (|f| hardware(f).near = Processors::new(), &[]),
        (|f| f.threads.spins = true, &[("threads-disturbed", WARN, "processors 0-3, which are not isolated", "")]),
        (|f| { f.threads.spins = true; f.host.isolated = Processors::from_iter(0..4); }, &[]),
        (|f| f.host.isolated = Processors::from_iter(1..5), &[("threads-disturbed", WARN, "processors 0, which", "systemctl set-property sluicegate.service AllowedCPUs=1-4")]),
        (|f| f.threads.polls = true, &[("busy-poll", WARN, "io.busy_poll is set, but eth0 does not defer its interrupts", "echo 2 > /sys/class/net/eth0/napi_defer_hard_irqs && echo 200000 > /sys/class/net/eth0/gro_flush_timeout")]),
        (|f| { f.threads.polls = true; f.interfaces[0].defers_interrupts = Some(true); }, &[]),
        (|f| { f.threads.polls = true; f.interfaces[0].defers_interrupts = None; }, &[]),
        (|f| f.host.irqbalance = true, &[("irqbalance", WARN, "interrupts of eth0", "systemctl disable --now irqbalance")]),
        (|f| { f.host.irqbalance = true; f.interfaces[0].has_interrupts = false; }, &[]),
    ]);
}

#[test]
fn problems_of_the_interface_are_found() {
    #[rustfmt::skip]
    check(&[
        (|f| f.interfaces[0].found = Err("there is none".into()), &[("interface", ERROR, "interface eth0 cannot be used: there is none", "")]),
        (|f| interface(f).features.lro = true, &[("coalescing", ERROR, "LRO on", "ethtool -K eth0 lro off")]),
        (|f| interface(f).features.gro_list = true, &[("coalescing", WARN, "rx-gro-list on", "ethtool -K eth0 rx-gro-list off")]),
        (|f| interface(f).features.rx_vlan = true, &[("rxvlan", WARN, "rxvlan on", "ethtool -K eth0 rxvlan off")]),
        (|f| interface(f).xdp_program = Some(9), &[("xdp-occupied", ERROR, "XDP program, id 9", "ip link set dev eth0 xdp off")]),
        (|f| { interface(f).xdp_program = Some(9); f.is_running = true; }, &[]),
        (|f| { hardware(f).xdp.native = Some(false); hardware(f).gro = false; }, &[("xdp-generic", WARN, "driver ixgbe of eth0 has no native XDP", "")]),
        (|f| hardware(f).xdp.native = Some(false), &[("xdp-generic", WARN, "no native XDP", ""), ("coalescing", ERROR, "GRO on", "ethtool -K eth0 gro off")]),
        (|f| hardware(f).xdp.redirect = Some(false), &[("xdp-no-redirect", ERROR, "cannot redirect packets", "")]),
        (|f| hardware(f).xdp.zero_copy = Some(false), &[("no-zero-copy", WARN, "no zero-copy", "")]),
        (|f| { hardware(f).xdp.zero_copy = Some(false); interface(f).driver = "veth".into(); }, &[]),
        (|f| hardware(f).xdp = XdpSupport::default(), &[]),
        (|f| f.sockets = Some(4), &[]),
        (|f| f.sockets = Some(3), &[("queue-without-socket", ERROR, "to queues 3, which have no socket", "ethtool -X eth0 equal 3")]),
        (|f| { f.sockets = Some(2); hardware(f).rss_queues = Some(vec![0, 1]); }, &[]),
        (|f| { f.sockets = Some(1); hardware(f).rss_queues = None; }, &[("queue-without-socket", ERROR, "queues 1-3", "ethtool -L eth0 combined 1")]),
        (|f| { f.sockets = Some(1); hardware(f).rss_queues = None; hardware(f).channels = Channels::Separate; }, &[("queue-without-socket", ERROR, "queues 1-3", "ethtool -L eth0 rx 1 tx 1")]),
        (|f| hardware(f).rss_queues = None, &[]),
    ]);
}

#[test]
fn problems_of_rp_filter_and_forwarding_are_found() {
    const LOOSE: &str = "sysctl -w net.ipv4.conf.eth0.rp_filter=2";
    const OFF: &str = "sysctl -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0";
    #[rustfmt::skip]
    check(&[
        (|f| f.interfaces[0].rp_filter = Some(1), &[("rp-filter", WARN, "strict on eth0", LOOSE)]),
        (|f| { f.interfaces[0].rp_filter = Some(1); f.vips[0].route = Ok(8); }, &[("rp-filter", ERROR, "the route of VIP 203.0.113.10 uses another interface", LOOSE)]),
        (|f| { f.interfaces[0].rp_filter = Some(1); f.vips[0].route = Ok(8); f.vips[0].several = vec![8, INDEX]; }, &[("rp-filter", WARN, "strict on eth0", LOOSE)]),
        (|f| { f.interfaces[0].rp_filter = Some(1); f.vips[0].route = Err(Unresolved::NoRoute); }, &[("rp-filter", ERROR, "VIP 203.0.113.10", OFF)]),
        (|f| { f.interfaces[0].rp_filter = Some(1); f.vips[1].route = Ok(8); f.vips.remove(0); }, &[]),
        (|f| f.interfaces[0].rp_filter = Some(2), &[]),
        (|f| { f.interfaces[0].rp_filter = Some(2); f.vips[0].route = Ok(8); }, &[]),
        (|f| { f.interfaces[0].rp_filter = Some(2); f.vips[0].route = Err(Unresolved::Blackhole); }, &[("rp-filter", ERROR, "loose on eth0, but VIP 203.0.113.10 has no route", OFF)]),
        (|f| f.vips[0].route = Err(Unresolved::NoRoute), &[]),
        (|f| f.interfaces[0].rp_filter = None, &[]),
        (|f| f.interfaces[0].forwards_v4 = true, &[("forwarding-loop", ERROR, "forwards IPv4 packets that arrive on eth0", "sysctl -w net.ipv4.conf.eth0.forwarding=0")]),
        (|f| { f.interfaces[0].forwards_v4 = true; interface(f).name = "eth0.9".into(); }, &[("forwarding-loop", ERROR, "IPv4", "sysctl -w net/ipv4/conf/eth0.9/forwarding=0")]),
        (|f| { f.interfaces[0].forwards_v4 = true; f.vips[0].route = Ok(8); }, &[("forwarding-loop", WARN, "IPv4", "sysctl -w net.ipv4.conf.eth0.forwarding=0")]),
        (|f| { f.interfaces[0].forwards_v4 = true; f.vips[0].route = Err(Unresolved::Blackhole); }, &[]),
        (|f| { f.interfaces[0].forwards_v4 = true; f.vips.remove(0); }, &[]),
        (|f| f.interfaces[0].forwards_v6 = true, &[("forwarding-loop", ERROR, "forwards IPv6", "sysctl -w net.ipv6.conf.all.forwarding=0")]),
        (|f| { f.interfaces[0].forwards_v6 = true; f.vips.remove(1); }, &[]),
    ]);
}

#[test]
fn problems_of_vips_and_own_addresses_are_found() {
    #[rustfmt::skip]
    check(&[
        (|f| f.vips[0].local = own(VIP_V4, 32, "lo"), &[("local-vip", ERROR, "VIP www 203.0.113.10 is a local address", "ip address del 203.0.113.10/32 dev lo")]),
        (|f| f.vips[0].local = own("203.0.113.1", 24, "lo"), &[("local-vip", ERROR, "lo has 203.0.113.1/24", "ip address del 203.0.113.1/24 dev lo")]),
        (|f| f.vips[1].local = own(VIP_V6, 128, "eth0"), &[("local-vip", ERROR, VIP_V6, "ip address del 2001:db8:f::10/128 dev eth0")]),
        (|f| f.vips[0].route = Err(Unresolved::Local), &[("local-vip", ERROR, "is local because of a route", "")]),
        (|f| { f.vips[0].route = Err(Unresolved::Local); f.vips[0].local = own(VIP_V4, 32, "lo"); }, &[("local-vip", ERROR, "lo has 203.0.113.10/32", "ip address del 203.0.113.10/32 dev lo")]),
        (|f| f.vips[0].subnet = own("203.0.113.1", 24, "eth0"), &[("vip-in-subnet", WARN, "VIP www 203.0.113.10 is in the subnet of eth0, which has 203.0.113.1/24", "")]),
        (|f| { f.vips[0].subnet = own("203.0.113.1", 24, "eth0"); f.routers = None; }, &[("vip-in-subnet", ERROR, "in the subnet of eth0", "")]),
        (|f| { f.vips[0].subnet = own("203.0.113.1", 24, "eth0"); f.vips[0].local = own(VIP_V4, 32, "lo"); }, &[("local-vip", ERROR, "lo has 203.0.113.10/32", "ip address del 203.0.113.10/32 dev lo")]),
        (|f| f.absent_addresses = vec![ip("192.0.2.1")], &[("own-address", WARN, "no local interface has the machine address 192.0.2.1", "ip address add 192.0.2.1/32 dev eth0")]),
        (|f| f.absent_addresses = vec![ip("2001:db8::1")], &[("own-address", WARN, "2001:db8::1", "ip address add 2001:db8::1/128 dev eth0")]),
        (|f| f.unasked = vec!["no ICMP socket".into()], &[("not-pinged", WARN, "no ICMP socket", "sysctl -w net.ipv4.ping_group_range=\"0 2147483647\"")]),
    ]);
}

#[test]
fn problems_of_paths_to_backends_are_found() {
    const NEIGHBOUR: Unresolved = Unresolved::NeighbourFailed {
        interface: INDEX,
        neighbour: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 254)),
    };
    #[rustfmt::skip]
    check(&[
        (|f| f.paths[0].next_hop = Err(Unresolved::NoRoute), &[("no-next-hop", ERROR, "cannot send to backend b1 (198.18.1.1): no route", "")]),
        (|f| f.paths.iter_mut().for_each(|path| path.next_hop = Err(NEIGHBOUR)), &[("no-next-hop", ERROR, "backend b1 (198.18.1.1) and 1 more: neighbour 192.0.2.254", "")]),
        (|f| f.paths[0].next_hop = Err(Unresolved::LinkDown { interface: 7 }), &[("no-next-hop", ERROR, "is down", "ip link set dev eth0 up")]),
        (|f| f.paths[0].next_hop = Ok(Resolved { leaves_by: 8, ..resolved() }), &[("other-interface", ERROR, "the route of backend b1 (198.18.1.1) uses eth0", "")]),
        // With two interfaces, a route may use either of them.
        (|f| { f.interfaces.push(second_nic()); f.paths[0].next_hop = Ok(Resolved { leaves_by: 8, ..resolved() }); }, &[]),
        (|f| { f.interfaces.push(second_nic()); f.paths[0].next_hop = Ok(Resolved { leaves_by: 9, ..resolved() }); }, &[("other-interface", ERROR, "but the load balancer sends on eth0, eth1", "")]),
        (|f| two_hops(f, [Ok(resolved()), Ok(Resolved { interface: 8, leaves_by: 8, ..resolved() })], Some(true)), &[]),
        (|f| two_hops(f, [Ok(resolved()), Ok(Resolved { interface: 8, leaves_by: 8, ..resolved() })], Some(false)), &[("linkdown-routes", WARN, "keeps IPv4 next hops on eth0, eth1", "sysctl -w net.ipv4.conf.eth0.ignore_routes_with_linkdown=1 net.ipv4.conf.eth1.ignore_routes_with_linkdown=1")]),
        (|f| two_hops(f, [Ok(resolved()), Err(Unresolved::LinkDown { interface: 8 })], Some(true)), &[("next-hop-down", WARN, "one of 2 next hops of backend b1 (198.18.1.1) and 1 more is not used: interface 8 is down", "")]),
        (|f| two_hops(f, [Ok(resolved()), Ok(Resolved { interface: 9, leaves_by: 9, ..resolved() })], Some(true)), &[("next-hop-down", WARN, "the route uses interface 9", "")]),
        (|f| two_hops(f, [Err(Unresolved::LinkDown { interface: 7 }), Err(Unresolved::LinkDown { interface: 8 })], Some(true)), &[("no-next-hop", ERROR, "cannot send to backend b1 (198.18.1.1) and 1 more", "ip link set dev eth0 up")]),
        (|f| f.host.reports_nexthop_objects = Some(false), &[("nexthop-objects", WARN, "does not report the next hops", "sysctl -w net.ipv4.nexthop_compat_mode=1")]),
 (|f| { f.paths[0].kind = "l2"; f.paths[0].encap_overhead = 0; f.paths[0].is_readdressed = true; }, &[]),
        (|f| { f.paths[0].kind = "l2"; f.paths[0].encap_overhead = 0; }, &[("l2-routed", ERROR, "packets to backend b1 (198.18.1.1) have no outer header", "")]),
        (|f| { f.paths[0].kind = "l2"; f.paths[0].encap_overhead = 0; f.paths[0].next_hop = Ok(Resolved { gateway: None, ..resolved() }); }, &[]),
        // A client packet of 1,500 bytes plus 24 bytes of outer headers.
        (|f| { f.paths[0].link = Some(("eth0".into(), 1_524)); f.paths[0].next_hop = Ok(Resolved { mtu_bytes: 1_524, ..resolved() }); }, &[]),
        (|f| { f.paths[0].link = Some(("eth0".into(), 1_523)); f.paths[0].reach = Some(Reach::Longest(1_523)); f.paths[0].next_hop = Ok(Resolved { mtu_bytes: 1_523, ..resolved() }); }, &[("mtu-link", WARN, "is 1523 bytes, but packets to backend b1 (198.18.1.1) need 1524", "ip link set dev eth0 mtu 1524")]),
        (|f| f.paths.iter_mut().for_each(|path| { path.link = Some(("eth0".into(), 1_500)); path.reach = None; path.encap_overhead = 20 + u32::from(&*path.backend == "b2") * 12; path.next_hop = Ok(Resolved { mtu_bytes: 1_500, ..resolved() }); }), &[("mtu-link", WARN, "and 1 more need 1532", "ip link set dev eth0 mtu 1532")]),
        (|f| f.paths[0].reach = Some(Reach::Longest(1_500)), &[("mtu-path", ERROR, "larger than 1500 bytes do not reach backend b1 (198.18.1.1), but 1524", "")]),
        (|f| f.paths[0].reach = Some(Reach::Longest(1_523)), &[("mtu-path", ERROR, "larger than 1523", "")]),
        // The kernel route has the same MTU, which is not reported a second time.
        (|f| { f.paths[0].reach = Some(Reach::Longest(1_500)); f.paths[0].next_hop = Ok(Resolved { mtu_bytes: 1_500, ..resolved() }); }, &[("mtu-path", ERROR, "larger than 1500", "")]),
        (|f| f.paths[0].next_hop = Ok(Resolved { mtu_bytes: 1_523, ..resolved() }), &[("mtu-route", WARN, "has an MTU of 1523 bytes", "ip route flush cache")]),
        (|f| { f.paths[0].reach = None; f.paths[0].next_hop = Ok(Resolved { mtu_bytes: 1_500, ..resolved() }); }, &[("mtu-route", WARN, "has an MTU of 1500 bytes", "ip route flush cache")]),
        (|f| { f.paths[0].address = ip("2001:db8:18::1"); f.paths[0].next_hop = Ok(Resolved { mtu_bytes: 1_500, ..resolved() }); }, &[("mtu-route", WARN, "2001:db8:18::1", "ip -6 route flush cache")]),
        (|f| f.paths[0].reach = Some(Reach::Silent), &[("no-answer", WARN, "no answer to pings from backend b1 (198.18.1.1)", "")]),
        (|f| { f.paths[0].reach = Some(Reach::Silent); f.paths[0].next_hop = Err(Unresolved::NoRoute); }, &[("no-next-hop", ERROR, "cannot send to", "")]),
        (|f| f.paths.iter_mut().for_each(|path| path.reach = None), &[]),
    ]);
}

#[test]
fn a_finding_has_one_shape_in_json() {
    let finding = Finding::warning("a-fault", "this", "that").command("fix it");
    let expected = serde_json::json!({
        "id": "a-fault", "level": "warning", "what": "this", "why": "that", "command": "fix it", "hint": null,
    });
    assert_eq!(crate::report::row(&finding), expected);
    assert_eq!(crate::report::row(&Finding::error("x", "y", "z"))["level"], "error");
}
