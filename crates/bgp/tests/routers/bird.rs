//! Tests against bird 2.

use std::time::{Duration, Instant};

use bgp::{Attributes, Community, Connect, Family, LargeCommunity};
use testbed::{Bed, CLUSTER_ASN, ROUTER_ASN, Router, RouterKind, RouterSession, router_config};

use crate::bed::*;

/// The names of the two sessions, which the router and the machine use.
const V4: &str = "r4lb1";
const V6: &str = "r6lb1";

fn session(ipv4: bool) -> RouterSession {
    RouterSession::new(1, ipv4)
}

fn unkeyed(ipv4: bool) -> RouterSession {
    RouterSession { key: "", ..session(ipv4) }
}

fn start(bed: &Bed, sessions: &[RouterSession]) -> Router {
    Router::start(bed, RouterKind::Bird, sessions).unwrap()
}

#[test]
fn routes_of_both_families_come_and_go_under_md5_and_gtsm() {
    let bed = bed(1);
    let sessions = [true, false].map(|ipv4| RouterSession { near: true, ..session(ipv4) });
    let bird = start(&bed, &sessions);
    let lb = Running::start(&bed, &sessions);
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
        let text =
            bird.until(&format!("show route all {prefix}"), |text| text.contains("BGP.as_path")).unwrap();
        for word in [
            "BGP.as_path: 65101 65101",
            &format!("BGP.next_hop: {next_hop}"),
            "BGP.med: 50",
            "BGP.community: (65101,7)",
            "BGP.large_community: (65101, 1, 2)",
        ] {
            assert!(text.contains(word), "no {word} in\n{text}");
        }
        wait_for_next_hops(&bed, prefix, 1);
    }
    lb.speaker.announce(table(&[VIP_V6], &attributes));
    wait_for_next_hops(&bed, VIP_V4, 0);
    wait_for_next_hops(&bed, "203.0.113.0/24", 0);
    wait_for_next_hops(&bed, VIP_V6, 1);
    assert_eq!(lb.established(V6).counts.announced_v6, 1);
    assert_eq!(lb.established(V6).counts.unannounceable, 0);
    lb.shutdown("rack 7 moves");
    wait_for_next_hops(&bed, VIP_V6, 0);
    bird.until(&format!("show protocols all {V4}"), |text| text.contains("Administrative shutdown")).unwrap();
}

#[test]
fn a_wrong_key_stops_its_own_session_and_says_what_to_look_at() {
    let bed = bed(1);
    let sessions = [true, false].map(session);
    let _bird = start(&bed, &sessions);
    let guess = RouterSession { key: "guess", ..sessions[0] };
    let lb = Running::start(&bed, &[guess, sessions[1]]);
    let wrong = lb.until(V4, |status| status.last_error.is_some());
    let (why, _) = wrong.last_error.unwrap();
    assert!(why.contains("no answer from 192.0.2.0:179") && why.contains("the same MD5 key"), "{why}");
    lb.established(V6);
    // With the correct key, the session comes up. The other session is not affected.
    assert!(lb.speaker.set_peers(sessions.iter().map(peer).collect()).is_empty());
    lb.established(V4);
    assert_eq!(lb.established(V6).established, 1);
}

#[test]
fn bird_may_dial_and_is_held_to_key_and_hops() {
    let bed = bed(1);
    let session = RouterSession { dials: true, near: true, ..session(true) };
    let bird = start(&bed, &[session]);
    let mut config = peer(&session);
    config.connect = Connect::Listen;
    let lb = Running::start_with(&bed, &session, vec![config]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes::default()));
    lb.established(V4);
    wait_for_next_hops(&bed, VIP_V4, 1);
    drop(bird);
    lb.until(V4, |status| status.state < bgp::State::Established);
}

#[test]
fn internal_peer_gets_local_pref_and_no_path() {
    let bed = bed(1);
    let asn = 4_200_000_001;
    let session = RouterSession { asn, own_asn: asn, ..unkeyed(true) };
    let bird = start(&bed, &[session]);
    let lb = Running::start(&bed, &[session]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes { local_pref: Some(250), ..Attributes::default() }));
    let text =
        bird.until(&format!("show route all {VIP_V4}"), |text| text.contains("BGP.local_pref")).unwrap();
    assert!(text.contains("BGP.local_pref: 250") && text.contains("BGP.next_hop: 192.0.2.1"), "{text}");
    assert!(!text.contains("BGP.as_path: 4"), "{text}");
}

#[test]
fn ipv4_routes_go_over_an_ipv6_session() {
    let bed = bed(1);
    let session = RouterSession { both: true, ..unkeyed(false) };
    let bird = start(&bed, &[session]);
    let lb = Running::start(&bed, &[session]);
    lb.speaker.announce(table(&[VIP_V4, VIP_V6], &Attributes::default()));
    assert!(lb.established(V6).negotiated.unwrap().extended_next_hop);
    let text = bird.until(&format!("show route all {VIP_V4}"), |text| text.contains("BGP.next_hop")).unwrap();
    assert!(text.contains("BGP.next_hop: 2001:db8:0:1::1"), "{text}");
    wait_for_next_hops(&bed, VIP_V4, 1);
    wait_for_next_hops(&bed, VIP_V6, 1);
}

#[test]
fn a_refresh_and_a_restart_of_bird_bring_the_routes_back() {
    let bed = bed(1);
    let sessions = [unkeyed(true)];
    let mut bird = start(&bed, &sessions);
    let lb = Running::start(&bed, &sessions);
    lb.speaker.announce(table(&[VIP_V4], &Attributes::default()));
    wait_for_next_hops(&bed, VIP_V4, 1);
    bird.ask(&format!("reload in {V4}")).unwrap();
    lb.until(V4, |status| status.counts.refreshes > 0);
    wait_for_next_hops(&bed, VIP_V4, 1);
    bird.kill();
    lb.until(V4, |status| status.state < bgp::State::Established);
    let _again = start(&bed, &sessions);
    lb.until(V4, |status| status.established == 2);
    wait_for_next_hops(&bed, VIP_V4, 1);
}

#[test]
fn a_drain_is_heard_as_the_community_of_rfc_8326() {
    let bed = bed(1);
    let bird = start(&bed, &[unkeyed(true)]);
    let lb = Running::start(&bed, &[unkeyed(true)]);
    let routes = table(&[VIP_V4], &Attributes { shutdown_prepend: 2, ..Attributes::default() });
    lb.speaker.announce(routes.clone());
    wait_for_next_hops(&bed, VIP_V4, 1);
    lb.speaker.announce(routes.graceful_shutdown());
    let words = ["(65535,0)", "BGP.med: 4294967295", "BGP.as_path: 65101 65101 65101"];
    bird.until(&format!("show route all {VIP_V4}"), |text| words.iter().all(|word| text.contains(word)))
        .unwrap();
}

#[test]
fn another_as_is_named_at_our_end() {
    let bed = bed(1);
    let _bird = start(&bed, &[unkeyed(true)]);
    let lb = Running::start(&bed, &[RouterSession { own_asn: 65_009, ..unkeyed(true) }]);
    let status = lb.until(V4, |status| status.last_error.is_some());
    let (why, _) = status.last_error.unwrap();
    assert!(why.contains("AS mismatch: the peer reports AS 65000, expected 65009"), "{why}");
}

#[test]
fn bfd_comes_up_stays_up_and_sees_the_router_go() {
    let bed = bed(1);
    let bird = start(&bed, &[unkeyed(true)]);
    let lb = Running::start(&bed, &[unkeyed(true)]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes::default()));
    let ns = bed.balancers[0].ns.clone();
    let (changes, heard) = std::sync::mpsc::channel();
    let watch = ns.run(move || {
        bgp::bfd::Bfd::start(bgp::bfd::BfdPorts::default(), move |change| drop(changes.send(change))).unwrap()
    });
    watch.add(patient(bgp::bfd::BfdConfig::new(V4, [192, 0, 2, 0].into()))).unwrap();
    wait_for_next_hops(&bed, VIP_V4, 1);
    wait_for_calm(&watch, &heard);
    bird.until("show bfd sessions", |text| text.contains("Up")).unwrap();
    drop(bird);
    let lost = heard.recv_timeout(BOUND).unwrap();
    assert!(lost.is_loss(), "{lost:?}");
    assert!(lb.speaker.bfd_down(V4));
    assert!(watch.status()[V4].losses > 0);
}

#[test]
fn a_session_that_restarts_for_its_families_is_back_soon() {
    let bed = bed(1);
    let session = unkeyed(true);
    let bird = start(&bed, &[session]);
    let mut config = peer(&session);
    config.times.notice = Duration::from_secs(1);
    let lb = Running::start_with(&bed, &session, vec![config.clone()]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes::default()));
    wait_for_next_hops(&bed, VIP_V4, 1);
    let routes = format!("show route all {VIP_V4}");
    for (round, families) in [(2, Family::ALL.to_vec()), (3, vec![Family::Ipv4])] {
        config.families = families;
        assert!(lb.speaker.set_peers(vec![config.clone()]).is_empty());
        bird.until(&routes, |text| text.contains("(65535,0)")).unwrap();
        let is_new = || lb.speaker.status()[V4].established == round;
        println!("bird: without the route for {:?} at most", gap(&bed, VIP_V4, is_new));
    }
    let text = bird.until(&routes, |text| text.contains("BGP.as_path")).unwrap();
    assert!(!text.contains("(65535,0)"), "{text}");
}

#[test]
fn packets_from_too_far_away_are_named_before_any_timer() {
    let bed = bed(1);
    // Without `ttl security`, bird sends with a TTL of 1, and its kernel replies with a TTL of 64.
    let sessions = [unkeyed(true), RouterSession { dials: true, ..unkeyed(false) }];
    let _bird = start(&bed, &sessions);
    let mut peers = sessions.map(|session| peer(&session)).to_vec();
    peers.iter_mut().for_each(|peer| peer.gtsm_hops = Some(1));
    peers[1].connect = Connect::Listen;
    let begun = Instant::now();
    let lb = Running::start_with(&bed, &sessions[0], peers.clone());
    let named =
        |status: &bgp::PeerStatus| status.last_error.as_ref().is_some_and(|why| why.0.contains("TTL"));
    let why = lb.until(V4, named).last_error.unwrap().0;
    println!("after {:?}: {why}", begun.elapsed());
    // Both sessions come up after the hop limit is removed.
    peers.iter_mut().for_each(|peer| peer.gtsm_hops = None);
    assert!(lb.speaker.set_peers(peers).is_empty());
    for name in [V4, V6] {
        assert_eq!(lb.established(name).last_error, None);
    }
}

#[test]
fn bird_session_restart_for_a_new_key_is_detected() {
    let bed = bed(1);
    let keyed = |key: &'static str| RouterSession { key, ..session(true) };
    let bird = start(&bed, &[keyed("one")]);
    let with_key = |key| {
        let mut config = peer(&keyed(key));
        config.times.hold = Duration::from_secs(240);
        config
    };
    let lb = Running::start_with(&bed, &keyed("one"), vec![with_key("one")]);
    lb.speaker.announce(table(&[VIP_V4], &Attributes::default()));
    wait_for_next_hops(&bed, VIP_V4, 1);
    assert!(lb.speaker.set_peers(vec![with_key("two")]).is_empty());
    // The old session stays up until bird also has the new key.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((lb.established(V4).established, bed.next_hops(VIP_V4)), (1, 1));
    std::fs::write(bed.dir().join("bird.conf"), router_config(RouterKind::Bird, &[keyed("two")])).unwrap();
    bird.until("configure", |text| text.contains("Reconfig")).unwrap();
    let is_new = || lb.speaker.status()[V4].established == 2;
    println!("bird: without the route for {:?} at most", gap(&bed, VIP_V4, is_new));
    println!("{:?}", lb.established(V4).last_end);
}

#[test]
fn a_key_is_changed_in_the_running_session_when_both_ends_do_so() {
    let bed = bed(1);
    // A segment that was lost between the two key changes is retransmitted by TCP at increasing
    // intervals, regardless of the hold time.
    let ours = |key: &'static str| {
        let mut config = peer(&RouterSession { key, ..session(true) });
        config.times.hold = Duration::from_secs(240);
        config
    };
    let theirs = |key: &'static str| {
        let mut config = ours(key);
        (config.name, config.address, config.asn) = ("lb".into(), session(true).ends().1, CLUSTER_ASN);
        config
    };
    let router = Running::start_in(&bed.router, ROUTER_ASN, [192, 0, 2, 17].into(), vec![theirs("one")]);
    let lb = Running::start_with(&bed, &session(true), vec![ours("one")]);
    // Both sides open connections. With two connections at the same time, the sides may disagree
    // about which one to keep (RFC 4271 §6.8) until a third connection is opened. A received route
    // shows that there is a session.
    lb.speaker.announce(table(&["203.0.113.9/32"], &Attributes::default()));
    router.until("lb", |lb| lb.counts.ignored_prefixes > 0);
    let (ours_before, theirs_before) = (lb.established(V4), router.established("lb"));
    for (n, key) in (1..).zip(["two", "", "three"]) {
        assert!(lb.speaker.set_peers(vec![ours(key)]).is_empty());
        assert!(router.speaker.set_peers(vec![theirs(key)]).is_empty());
        lb.speaker.announce(table(&[&format!("203.0.113.{n}/32")], &Attributes::default()));
        // Received data is signed with the new key.
        router.until("lb", |lb| lb.counts.ignored_prefixes == theirs_before.counts.ignored_prefixes + n);
        // A segment that was lost between the two key changes is retransmitted before the next key
        // change.
        assert_eq!((lb.flushed(), router.flushed()), (vec![], vec![]));
    }
    let (ours, theirs) = (lb.established(V4), router.established("lb"));
    let ends = (&ours.last_end, &theirs.last_end);
    let before = (ours_before.established, theirs_before.established);
    assert_eq!((ours.established, theirs.established), before, "{ends:?}");
}
