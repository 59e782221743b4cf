//! Against bird 2.

use bgp::{Attributes, Community, Connect, Family, LargeCommunity};
use testbed::Process;

use crate::bed::*;

/// bird in the router's namespace, with these protocols.
struct Bird {
    process: Process,
    socket: String,
}

impl Bird {
    fn start(bed: &Bed, protocols: &str) -> Self {
        let config = bed.write("bird.conf", &format!("{COMMON}{protocols}"));
        let socket = bed.path("bird.ctl").to_string_lossy().into_owned();
        let pid = bed.path("bird.pid").to_string_lossy().into_owned();
        let process = start(&bed.router, "bird", "bird", &["-f", "-c", &config, "-s", &socket, "-P", &pid]);
        let bird = Self { process, socket };
        bird.ask(bed, "show status", |text| text.contains("Daemon is up"));
        bird
    }

    fn ask(&self, bed: &Bed, question: &str, wanted: impl Fn(&str) -> bool) -> String {
        ask(&bed.router, "birdc", &["-s", &self.socket, question], wanted)
    }
}

const COMMON: &str = "log stderr all;
router id 192.0.2.0;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; merge paths on limit 16; }
protocol kernel { ipv6 { import none; export where source = RTS_BGP; }; merge paths on limit 16; }
";

/// A session with machine `n` over a family; `more` stands among its options.
fn session(name: &str, family: Family, n: u8, asn: &str, more: &str) -> String {
    let (local, neighbor, channel) = match family {
        Family::Ipv4 => (format!("192.0.2.{}", 2 * n - 2), format!("192.0.2.{}", 2 * n - 1), "ipv4"),
        Family::Ipv6 => (format!("2001:db8:0:{n}::2"), format!("2001:db8:0:{n}::1"), "ipv6"),
    };
    format!(
        "protocol bgp {name} {{ local {local} as 65000; neighbor {neighbor} as {asn};
         hold time 9; error wait time 1, 3; {more} {channel} {{ import all; export none; }}; }}\n"
    )
}

fn secured(mut config: bgp::PeerConfig, key: &str) -> bgp::PeerConfig {
    config.gtsm_hops = Some(1);
    config = with_key(config, key);
    config
}

#[test]
fn routes_of_both_families_come_and_go_under_md5_and_gtsm() {
    let bed = Bed::new(1);
    let secure = "password \"s3cret\"; ttl security on; passive on;";
    let sessions =
        session("v4", Family::Ipv4, 1, "65101", secure) + &session("v6", Family::Ipv6, 1, "65101", secure);
    let bird = Bird::start(&bed, &sessions);
    let peers =
        vec![secured(peer("v4", Family::Ipv4, 1), "s3cret"), secured(peer("v6", Family::Ipv6, 1), "s3cret")];
    let lb = Running::start(&bed.machines[0], 1, 65_101, peers);
    let attributes = Attributes {
        med: Some(50),
        prepend: 1,
        communities: vec![Community(65_101, 7)],
        large_communities: vec![LargeCommunity(65_101, 1, 2)],
        ..Attributes::default()
    };
    lb.speaker.announce(table(&[VIP_V4, VIP_V6, "203.0.113.0/24"], &attributes));
    for (prefix, next_hop) in
        [(VIP_V4, "192.0.2.1"), (VIP_V6, "2001:db8:0:1::1"), ("203.0.113.0/24", "192.0.2.1")]
    {
        let text = bird.ask(&bed, &format!("show route all {prefix}"), |text| text.contains("BGP.as_path"));
        for word in [
            "BGP.as_path: 65101 65101",
            &format!("BGP.next_hop: {next_hop}"),
            "BGP.med: 50",
            "BGP.community: (65101,7)",
            "BGP.large_community: (65101, 1, 2)",
        ] {
            assert!(text.contains(word), "no {word} in\n{text}");
        }
        bed.wait_for_next_hops(prefix, 1);
    }
    lb.speaker.announce(table(&[VIP_V6], &attributes));
    bed.wait_for_next_hops(VIP_V4, 0);
    bed.wait_for_next_hops("203.0.113.0/24", 0);
    bed.wait_for_next_hops(VIP_V6, 1);
    assert_eq!(lb.established("v6").counts.announced_v6, 1);
    assert_eq!(lb.established("v6").counts.unannounceable, 0);
    lb.shutdown("rack 7 moves");
    bed.wait_for_next_hops(VIP_V6, 0);
    bird.ask(&bed, "show protocols all v4", |text| text.contains("Administrative shutdown"));
}

#[test]
fn a_wrong_key_stops_its_own_session_and_says_what_to_look_at() {
    let bed = Bed::new(1);
    let sessions = session("v4", Family::Ipv4, 1, "65101", "password \"s3cret\"; passive on;")
        + &session("v6", Family::Ipv6, 1, "65101", "password \"s3cret\"; passive on;");
    let _bird = Bird::start(&bed, &sessions);
    let peers =
        vec![with_key(peer("v4", Family::Ipv4, 1), "guess"), with_key(peer("v6", Family::Ipv6, 1), "s3cret")];
    let lb = Running::start(&bed.machines[0], 1, 65_101, peers);
    let wrong = lb.until("v4", |status| status.last_error.is_some());
    let (why, _) = wrong.last_error.unwrap();
    assert!(why.contains("no answer from 192.0.2.0:179") && why.contains("the same MD5 key"), "{why}");
    lb.established("v6");
    // The right key makes it work, without a word to the other session.
    lb.speaker.set_peers(vec![
        with_key(peer("v4", Family::Ipv4, 1), "s3cret"),
        with_key(peer("v6", Family::Ipv6, 1), "s3cret"),
    ]);
    lb.established("v4");
    assert_eq!(lb.established("v6").established, 1);
}

#[test]
fn bird_may_dial_and_is_held_to_key_and_hops() {
    let bed = Bed::new(1);
    let secure = "password \"s3cret\"; ttl security on; connect delay time 1; connect retry time 1;";
    let bird = Bird::start(&bed, &session("v4", Family::Ipv4, 1, "65101", secure));
    let mut config = secured(peer("v4", Family::Ipv4, 1), "s3cret");
    config.connect = Connect::Listen;
    let lb = Running::start(&bed.machines[0], 1, 65_101, vec![config]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes::default()));
    lb.established("v4");
    bed.wait_for_next_hops(VIP_V4, 1);
    drop(bird);
    lb.until("v4", |status| status.state < bgp::State::Established);
}

#[test]
fn an_internal_peer_with_a_long_number_gets_preference_and_no_path() {
    let bed = Bed::new(1);
    let asn = "4200000001";
    let sessions =
        session("v4", Family::Ipv4, 1, asn, "passive on;").replace("as 65000", &format!("as {asn}"));
    let bird = Bird::start(&bed, &sessions);
    let mut config = peer("v4", Family::Ipv4, 1);
    config.asn = 4_200_000_001;
    let lb = Running::start(&bed.machines[0], 1, 4_200_000_001, vec![config]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes { local_pref: Some(250), ..Attributes::default() }));
    let text = bird.ask(&bed, &format!("show route all {VIP_V4}"), |text| text.contains("BGP.local_pref"));
    assert!(text.contains("BGP.local_pref: 250") && text.contains("BGP.next_hop: 192.0.2.1"), "{text}");
    assert!(!text.contains("BGP.as_path: 4"), "{text}");
}

#[test]
fn ipv4_routes_go_over_an_ipv6_session() {
    let bed = Bed::new(1);
    let channels = "ipv4 { import all; export none; extended next hop on; };";
    let bird =
        Bird::start(&bed, &session("v6", Family::Ipv6, 1, "65101", &format!("passive on; {channels}")));
    let mut config = peer("v6", Family::Ipv6, 1);
    config.families = Family::ALL.to_vec();
    config.extended_next_hop = true;
    let lb = Running::start(&bed.machines[0], 1, 65_101, vec![config]);
    lb.speaker.announce(table(&[VIP_V4, VIP_V6], &Attributes::default()));
    assert!(lb.established("v6").negotiated.unwrap().extended_next_hop);
    let text = bird.ask(&bed, &format!("show route all {VIP_V4}"), |text| text.contains("BGP.next_hop"));
    assert!(text.contains("BGP.next_hop: 2001:db8:0:1::1"), "{text}");
    bed.wait_for_next_hops(VIP_V4, 1);
    bed.wait_for_next_hops(VIP_V6, 1);
}

#[test]
fn a_refresh_and_a_restart_of_bird_bring_the_routes_back() {
    let bed = Bed::new(1);
    let sessions = session("v4", Family::Ipv4, 1, "65101", "passive on;");
    let mut bird = Bird::start(&bed, &sessions);
    let lb = Running::start(&bed.machines[0], 1, 65_101, vec![peer("v4", Family::Ipv4, 1)]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes::default()));
    bed.wait_for_next_hops(VIP_V4, 1);
    bird.ask(&bed, "reload in v4", |_| true);
    lb.until("v4", |status| status.counts.refreshes > 0);
    bed.wait_for_next_hops(VIP_V4, 1);
    bird.process.kill();
    lb.until("v4", |status| status.state < bgp::State::Established);
    let _again = Bird::start(&bed, &sessions);
    lb.until("v4", |status| status.established == 2);
    bed.wait_for_next_hops(VIP_V4, 1);
}

#[test]
fn a_drain_is_heard_as_the_community_of_rfc_8326() {
    let bed = Bed::new(1);
    let bird = Bird::start(&bed, &session("v4", Family::Ipv4, 1, "65101", "passive on;"));
    let lb = Running::start(&bed.machines[0], 1, 65_101, vec![peer("v4", Family::Ipv4, 1)]);
    let routes = table(&[VIP_V4], &Attributes::default());
    lb.speaker.announce(routes.clone());
    bed.wait_for_next_hops(VIP_V4, 1);
    lb.speaker.announce(routes.graceful_shutdown());
    bird.ask(&bed, &format!("show route all {VIP_V4}"), |text| text.contains("(65535,0)"));
}

#[test]
fn another_as_is_named_at_our_end() {
    let bed = Bed::new(1);
    let _bird = Bird::start(&bed, &session("v4", Family::Ipv4, 1, "65101", "passive on;"));
    let mut config = peer("v4", Family::Ipv4, 1);
    config.asn = 65_009;
    let lb = Running::start(&bed.machines[0], 1, 65_101, vec![config]);
    let status = lb.until("v4", |status| status.last_error.is_some());
    let (why, _) = status.last_error.unwrap();
    assert!(why.contains("AS mismatch: the peer says 65000, 65009 is configured"), "{why}");
}

#[test]
fn bfd_comes_up_stays_up_and_sees_the_router_go() {
    let bed = Bed::new(1);
    let bfd = "protocol bfd { interface \"*\" { min rx interval 100 ms; min tx interval 100 ms; multiplier 10; }; }\n";
    let sessions = session("v4", Family::Ipv4, 1, "65101", "passive on; bfd on;");
    let bird = Bird::start(&bed, &format!("{bfd}{sessions}"));
    let lb = Running::start(&bed.machines[0], 1, 65_101, vec![peer("v4", Family::Ipv4, 1)]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes::default()));
    let ns = bed.machines[0].clone();
    let (told, heard) = std::sync::mpsc::channel();
    let watch = ns.run(move || {
        bgp::bfd::Bfd::start(bgp::bfd::BfdPorts::default(), move |change| drop(told.send(change))).unwrap()
    });
    watch.add(patient(bgp::bfd::BfdConfig::new("v4", [192, 0, 2, 0].into()))).unwrap();
    bed.wait_for_next_hops(VIP_V4, 1);
    wait_for_calm(&watch, &heard);
    bird.ask(&bed, "show bfd sessions", |text| text.contains("Up"));
    drop(bird);
    let lost = heard.recv_timeout(BOUND).unwrap();
    assert!(lost.is_loss(), "{lost:?}");
    assert!(lb.speaker.bfd_down("v4"));
    assert!(watch.status()["v4"].losses > 0);
}

#[test]
fn a_session_that_restarts_for_its_families_is_back_soon() {
    let bed = Bed::new(1);
    let bird = Bird::start(&bed, &session("v4", Family::Ipv4, 1, "65101", "passive on;"));
    let mut config = peer("v4", Family::Ipv4, 1);
    config.notice = std::time::Duration::from_secs(1);
    let lb = Running::start(&bed.machines[0], 1, 65_101, vec![config.clone()]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes::default()));
    bed.wait_for_next_hops(VIP_V4, 1);
    for (round, families) in [(2, Family::ALL.to_vec()), (3, vec![Family::Ipv4])] {
        config.families = families;
        assert!(lb.speaker.set_peers(vec![config.clone()]).is_empty());
        bird.ask(&bed, &format!("show route all {VIP_V4}"), |text| text.contains("(65535,0)"));
        let is_new = || lb.speaker.status()["v4"].established == round;
        println!("bird: without the route for {:?} at most", bed.gap(VIP_V4, is_new));
    }
    let text = bird.ask(&bed, &format!("show route all {VIP_V4}"), |text| text.contains("BGP.as_path"));
    assert!(!text.contains("(65535,0)"), "{text}");
}

#[test]
fn packets_from_too_far_away_are_named_before_any_timer() {
    let bed = Bed::new(1);
    // Without `ttl security` bird sends with a TTL of 1, and its kernel answers with 64.
    let passive = session("v4", Family::Ipv4, 1, "65101", "passive on;");
    let dials = session("v6", Family::Ipv6, 1, "65101", "connect delay time 1; connect retry time 1;");
    let _bird = Bird::start(&bed, &(passive + &dials));
    let mut peers = vec![peer("v4", Family::Ipv4, 1), peer("v6", Family::Ipv6, 1)];
    peers.iter_mut().for_each(|peer| peer.gtsm_hops = Some(1));
    peers[1].connect = Connect::Listen;
    let start = std::time::Instant::now();
    let lb = Running::start(&bed.machines[0], 1, 65_101, peers.clone());
    let named =
        |status: &bgp::PeerStatus| status.last_error.as_ref().is_some_and(|why| why.0.contains("TTL"));
    let why = lb.until("v4", named).last_error.unwrap().0;
    println!("after {:?}: {why}", start.elapsed());
    assert!(start.elapsed() < peers[0].dial, "known before the attempt ends");
    // Once the limit is gone, both come up.
    peers.iter_mut().for_each(|peer| peer.gtsm_hops = None);
    assert!(lb.speaker.set_peers(peers).is_empty());
    for name in ["v4", "v6"] {
        assert_eq!(lb.established(name).last_error, None);
    }
}

#[test]
fn bird_that_restarts_the_session_for_its_new_key_is_found_out_soon() {
    let bed = Bed::new(1);
    let conf =
        |key: &str| session("v4", Family::Ipv4, 1, "65101", &format!("passive on; password \"{key}\";"));
    let bird = Bird::start(&bed, &conf("one"));
    let mut config = with_key(peer("v4", Family::Ipv4, 1), "one");
    config.hold = std::time::Duration::from_secs(240);
    let lb = Running::start(&bed.machines[0], 1, 65_101, vec![config.clone()]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes::default()));
    bed.wait_for_next_hops(VIP_V4, 1);
    assert!(lb.speaker.set_peers(vec![with_key(config, "two")]).is_empty());
    // Until bird has it as well, the session is what it was.
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!((lb.established("v4").established, bed.next_hops(VIP_V4)), (1, 1));
    bed.write("bird.conf", &format!("{COMMON}{}", conf("two")));
    bird.ask(&bed, "configure", |text| text.contains("Reconfig"));
    let is_new = || lb.speaker.status()["v4"].established == 2;
    println!("bird: without the route for {:?} at most", bed.gap(VIP_V4, is_new));
    println!("{:?}", lb.established("v4").last_end);
}

#[test]
fn a_key_is_changed_in_the_running_session_when_both_ends_do_so() {
    let bed = Bed::new(1);
    let other_end = |key: &str| {
        let mut config = with_key(peer("lb", Family::Ipv4, 1), key);
        (config.address, config.asn) = ([192, 0, 2, 1].into(), 65_101);
        config
    };
    let router = Running::start(&bed.router, 9, ROUTER_ASN, vec![other_end("one")]);
    let mut config = with_key(peer("v4", Family::Ipv4, 1), "one");
    let lb = Running::start(&bed.machines[0], 1, 65_101, vec![config.clone()]);
    lb.established("v4");
    router.established("lb");
    for (n, key) in ["two", "", "three"].into_iter().enumerate() {
        config = if key.is_empty() { bgp::PeerConfig { md5: None, ..config } } else { with_key(config, key) };
        assert!(lb.speaker.set_peers(vec![config.clone()]).is_empty());
        let theirs = bgp::PeerConfig { md5: config.md5.clone(), ..other_end("one") };
        assert!(router.speaker.set_peers(vec![theirs]).is_empty());
        lb.speaker.announce(table(&[&format!("203.0.113.{n}/32")], &Attributes::default()));
        // What has been heard is signed with the new key.
        router.until("lb", |lb| lb.counts.ignored_prefixes == n as u64 + 1);
    }
    assert_eq!((lb.established("v4").established, router.established("lb").established), (1, 1));
}
