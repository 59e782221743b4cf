//! Against FRR.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use bgp::bfd::{Bfd, BfdConfig, BfdPorts};
use bgp::{Attributes, Family, GracefulRestart};
use testbed::{Process, eventually};

use crate::bed::*;

/// zebra, bfdd and bgpd in the router's namespace. They run as the user frr, who owns the folder of their sockets.
struct Frr {
    _daemons: Vec<Process>,
    folder: String,
}

impl Frr {
    fn start(bed: &Bed, bgpd: &str) -> Self {
        let folder = bed.path("frr");
        fs::create_dir(&folder).unwrap();
        let (user, group) = frr_ids();
        chown(&folder, Some(user), Some(group)).unwrap();
        let folder = folder.to_string_lossy().into_owned();
        let zserv = format!("{folder}/zserv.api");
        let control = format!("{folder}/bfdd.sock");
        let mut daemons = Vec::new();
        for (name, config) in [("zebra", "hostname er\n"), ("bfdd", BFDD), ("bgpd", bgpd)] {
            let file = bed.write(&format!("{name}.conf"), config);
            let pid = format!("{folder}/{name}.pid");
            let mut args =
                vec!["--vty_socket", &folder, "-z", &zserv, "-A", "127.0.0.1", "-f", &file, "-i", &pid];
            if name == "bfdd" {
                args.extend(["--bfdctl", &control]);
            }
            daemons.push(start(&bed.router, name, &format!("/usr/lib/frr/{name}"), &args));
            let socket = format!("{folder}/{name}.vty");
            let there = eventually(BOUND, || Path::new(&socket).exists().then_some(()));
            assert!(there.is_some(), "{name}:\n{}", daemons.last().map(Process::tail).unwrap_or_default());
        }
        Self { _daemons: daemons, folder }
    }

    fn ask(&self, bed: &Bed, question: &str, wanted: impl Fn(&str) -> bool) -> String {
        ask(&bed.router, "vtysh", &["--vty_socket", &self.folder, "-c", question], wanted)
    }
}

fn frr_ids() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("frr:")).expect("FRR's package makes its user");
    let mut ids = line.split(':').skip(2).map(|id| id.parse().unwrap());
    (ids.next().unwrap(), ids.next().unwrap())
}

const BFDD: &str = "bfd
 profile fast
  detect-multiplier 10
  receive-interval 100
  transmit-interval 100
";

/// Two machines over both families, with keys, BFD, ECMP and a policy for what drains.
const BGPD: &str = "ip prefix-list VIPS4 seq 5 permit 203.0.113.0/24 ge 32
ipv6 prefix-list VIPS6 seq 5 permit 2001:db8:beef::/48 ge 128
bgp community-list standard GSHUT seq 5 permit graceful-shutdown
router bgp 65000
 bgp router-id 192.0.2.0
 no bgp default ipv4-unicast
 bgp bestpath as-path multipath-relax
 MORE
 neighbor LB4 peer-group
 neighbor LB4 remote-as external
 neighbor LB4 password s3cret
 neighbor LB4 timers 3 9
 neighbor LB4 passive
 neighbor LB4 bfd profile fast
 neighbor LB6 peer-group
 neighbor LB6 remote-as external
 neighbor LB6 password s3cret
 neighbor LB6 timers 3 9
 neighbor LB6 passive
 neighbor LB6 bfd profile fast
 neighbor 192.0.2.1 peer-group LB4
 neighbor 192.0.2.3 peer-group LB4
 neighbor 2001:db8:0:1::1 peer-group LB6
 neighbor 2001:db8:0:2::1 peer-group LB6
 address-family ipv4 unicast
  neighbor LB4 activate
  neighbor LB4 route-map IN4 in
  neighbor LB4 route-map NONE out
  maximum-paths 16
 exit-address-family
 address-family ipv6 unicast
  neighbor LB6 activate
  neighbor LB6 route-map IN6 in
  neighbor LB6 route-map NONE out
  maximum-paths 16
 exit-address-family
route-map IN4 permit 5
 match community GSHUT
 match ip address prefix-list VIPS4
 set local-preference 0
route-map IN4 permit 10
 match ip address prefix-list VIPS4
route-map IN6 permit 5
 match community GSHUT
 match ipv6 address prefix-list VIPS6
 set local-preference 0
route-map IN6 permit 10
 match ipv6 address prefix-list VIPS6
 set ipv6 next-hop prefer-global
route-map NONE deny 10
";

fn machine(bed: &Bed, n: u8, restart: Option<GracefulRestart>) -> Running {
    let peers = [("v4", Family::Ipv4), ("v6", Family::Ipv6)].map(|(name, family)| {
        let mut config = with_key(peer(name, family, n), "s3cret");
        config.graceful_restart = restart;
        config
    });
    let ns = &bed.machines[usize::from(n) - 1];
    let running = Running::start(ns, n, 65_100 + u32::from(n), peers.to_vec());
    running.speaker.announce(table(&[VIP_V4, VIP_V6], &Attributes::default()));
    running
}

#[test]
fn two_machines_are_two_next_hops_and_one_when_the_other_drains_or_dies() {
    let bed = Bed::new(2);
    let frr = Frr::start(&bed, &BGPD.replace(" MORE\n", ""));
    let (first, second) = (machine(&bed, 1, None), machine(&bed, 2, None));
    for prefix in [VIP_V4, VIP_V6] {
        bed.wait_for_next_hops(prefix, 2);
    }
    // What drains is heard and no longer preferred, though still announced.
    let all = second.speaker.announced();
    second.speaker.announce(all.graceful_shutdown());
    for prefix in [VIP_V4, VIP_V6] {
        bed.wait_for_next_hops(prefix, 1);
    }
    frr.ask(&bed, &format!("show bgp ipv4 unicast {VIP_V4}"), |text| text.contains("graceful-shutdown"));
    second.speaker.announce((*all).clone());
    for prefix in [VIP_V4, VIP_V6] {
        bed.wait_for_next_hops(prefix, 2);
    }
    // Dropped without a word: the kernel closes its connections.
    drop(second);
    for prefix in [VIP_V4, VIP_V6] {
        bed.wait_for_next_hops(prefix, 1);
    }
    first.shutdown("rack 7 moves");
    for prefix in [VIP_V4, VIP_V6] {
        bed.wait_for_next_hops(prefix, 0);
    }
    frr.ask(&bed, "show bgp neighbors 192.0.2.1", |text| {
        text.contains("Notification received (Cease/Administrative Shutdown)")
    });
}

#[test]
fn a_shutdown_leaves_no_stale_route_behind_though_both_keep_routes_over_a_restart() {
    let bed = Bed::new(1);
    let frr = Frr::start(&bed, &BGPD.replace("MORE", "bgp graceful-restart"));
    let restart = GracefulRestart { seconds: 600, restarting: false, forwarding: true };
    let lb = machine(&bed, 1, Some(restart));
    bed.wait_for_next_hops(VIP_V4, 1);
    assert!(lb.established("v4").negotiated.unwrap().hard_reset, "FRR has the N bit");
    lb.shutdown("");
    bed.wait_for_next_hops(VIP_V4, 0);
    let text = frr.ask(&bed, "show bgp ipv4 unicast", |_| true);
    assert!(!text.contains("203.0.113.10"), "stale:\n{text}");
}

#[test]
fn bfd_comes_up_with_frr_and_does_not_flap() {
    let bed = Bed::new(1);
    let frr = Frr::start(&bed, &BGPD.replace(" MORE\n", ""));
    let lb = machine(&bed, 1, None);
    let (told, heard) = std::sync::mpsc::channel();
    let watch = bed.machines[0]
        .run(move || Bfd::start(BfdPorts::default(), move |change| drop(told.send(change))).unwrap());
    for (name, address) in [("v4", "192.0.2.0"), ("v6", "2001:db8:0:1::2")] {
        watch.add(patient(BfdConfig::new(name, address.parse().unwrap()))).unwrap();
    }
    lb.established("v4");
    lb.established("v6");
    // FRR flaps without end when the shorter interval is not taken up at once.
    wait_for_calm(&watch, &heard);
    frr.ask(&bed, "show bfd peers brief", |text| text.matches("up").count() >= 2);
    let losses = watch.status().values().map(|status| status.losses).sum::<u64>();
    println!("losses while FRR starts: {losses}; BGP sessions: {}", lb.established("v4").established);
    drop(watch);
    frr.ask(&bed, "show bfd peers", |text| text.contains("Remote diagnostics: administratively down"));
}

#[test]
fn a_session_that_restarts_for_its_families_is_back_as_soon_as_frr_takes_it() {
    let bed = Bed::new(1);
    let _frr = Frr::start(&bed, &BGPD.replace(" MORE\n", "").replace(" neighbor LB4 bfd profile fast\n", ""));
    let mut config = with_key(peer("v4", Family::Ipv4, 1), "s3cret");
    let lb = Running::start(&bed.machines[0], 1, 65_101, vec![config.clone()]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes::default()));
    bed.wait_for_next_hops(VIP_V4, 1);
    for (round, families) in [(2, Family::ALL.to_vec()), (3, vec![Family::Ipv4])] {
        config.families = families;
        assert!(lb.speaker.set_peers(vec![config.clone()]).is_empty());
        let is_new = || lb.speaker.status()["v4"].established == round;
        println!("FRR: without the route for {:?} at most", bed.gap(VIP_V4, is_new));
    }
}
