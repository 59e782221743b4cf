//! Tests of capability negotiation and its effects.

use super::super::*;
use super::bed::*;
use crate::config::GracefulRestart;
use crate::message::Capability;

#[test]
fn open_negotiates_hold_time_and_capabilities() {
    let (mut fast, mut slow) = (config(PEER), config(US));
    fast.times.hold = Duration::from_secs(9);
    slow.times.hold = Duration::from_secs(90);
    let (a, b, _) = established(fast, slow, &[]);
    for side in [&a, &b] {
        let negotiated = side.session.negotiated.as_ref().unwrap();
        assert_eq!(negotiated.hold, Duration::from_secs(9));
        assert_eq!(negotiated.families, Family::ALL);
        assert!(negotiated.four_byte_asn && negotiated.route_refresh && negotiated.enhanced_route_refresh);
        assert!(!negotiated.extended_next_hop && !negotiated.hard_reset);
    }
}

#[test]
fn an_internal_peer_and_numbers_of_four_bytes_are_spoken_with() {
    let now = Instant::now();
    let us = Identity { asn: 4_200_000_001, ..US };
    let them = Identity { asn: 4_200_000_001, ..PEER };
    let mut a = Side::new(us, config(them), &["203.0.113.10/32"], now);
    let mut b = Side::new(them, config(us), &[], now);
    exchange(&mut a, &mut b, now);
    assert_eq!(a.session.negotiated.as_ref().unwrap().asn, 4_200_000_001);
    assert_eq!(own_open(&a).short_asn, 23_456);
    // An internal peer gets a local preference and an empty AS path.
    assert!(contains(&a.bytes, &[0x40, 5, 4, 0, 0, 0, 100]));
    assert!(contains(&a.bytes, &[0x40, 2, 0]));
}

#[test]
fn two_byte_peer_gets_as4_path() {
    let now = Instant::now();
    let us = Identity { asn: 4_200_000_001, ..US };
    let mut session = Side::new(us, config(PEER), &["203.0.113.10/32"], now).session;
    session.received(&open(65_000, 90, &[MP_V4]), now);
    session.received(&frame(KEEPALIVE, &[]), now);
    let bytes = session.output(now);
    assert!(contains(bytes, &[0x40, 2, 4, 2, 1, 0x5b, 0xa0]), "23456 in the path");
    assert!(contains(bytes, &[0xc0, 17, 6, 2, 1, 0xfa, 0x56, 0xea, 0x01]), "4200000001 in AS4_PATH");
}

#[test]
fn a_peer_without_capabilities_speaks_ipv4() {
    let (side, _) = against_hand(config(PEER), 90, &[]);
    let negotiated = side.session.negotiated.as_ref().unwrap();
    assert_eq!(negotiated.families, [Family::Ipv4]);
    assert!(!negotiated.route_refresh && !negotiated.four_byte_asn);
}

#[test]
fn family_that_peer_did_not_offer_is_blocked() {
    let mut wanted = config(PEER);
    wanted.graceful_restart = Some(GracefulRestart { seconds: 60, restarting: false, forwarding: false });
    let (mut side, now) = against_hand(wanted, 90, &[MP_V6, (65, &[0, 0, 0xfd, 0xe8])]);
    assert_eq!(side.session.negotiated.as_ref().unwrap().refused, ["ipv4 unicast", "graceful restart"]);
    side.session.desire(Arc::new(table(&["203.0.113.10/32", "2001:db8:f::10/128"])));
    side.take_all(now);
    assert_eq!(*side.session.routes(), table(&["2001:db8:f::10/128"]));
    assert_eq!(side.session.blocked(), [(Family::Ipv4, Blocked::NotNegotiated)].into());
    let mut without_hop = config(PEER);
    without_hop.next_hops.v6 = None;
    let (side, _) = against_hand(without_hop, 90, &[MP_V4, MP_V6]);
    assert_eq!(side.session.blocked(), [(Family::Ipv6, Blocked::NoNextHop)].into());
    assert!(side.session.negotiated.as_ref().unwrap().refused.is_empty());
}

#[test]
fn a_peer_without_a_common_family_is_told_which_is_missing() {
    let mut only_v6 = config(PEER);
    only_v6.families = vec![Family::Ipv6];
    let now = Instant::now();
    let mut side = Side::new(US, only_v6, &[], now);
    side.session.received(&open(65_000, 90, &[MP_V4]), now);
    side.take_all(now);
    assert_eq!(side.codes(), Some((2, 7)));
    assert!(side.session.end().unwrap().starts_with("no common family"), "{:?}", side.session.end());
}

#[test]
fn ipv4_routes_use_an_ipv6_next_hop_if_negotiated() {
    let both = |extended| {
        let (mut a, mut b) = (config(PEER), config(US));
        a.next_hops.extended = extended;
        b.next_hops.extended = extended;
        let now = Instant::now();
        let want = Arc::new(table(&["203.0.113.10/32", "2001:db8:f::10/128"]));
        let own = "2001:db8::1".parse().unwrap();
        let mut side = Side::new(US, a.clone(), &[], now);
        side.session = Session::new(US, Arc::new(a), own, want, now);
        let mut peer = Side::new(PEER, b, &[], now);
        exchange(&mut side, &mut peer, now);
        side
    };
    let with = both(true);
    assert_eq!(with.mirror, prefixes(&["203.0.113.10/32", "2001:db8:f::10/128"]));
    assert!(contains(&with.bytes, &[5, 6, 0, 1, 0, 1, 0, 2]), "the capability is offered");
    assert!(contains(&with.bytes, &[0, 1, 1, 16, 0x20, 1, 0x0d, 0xb8]), "IPv4 unicast, 16 bytes of next hop");
    let without = both(false);
    assert_eq!(without.mirror, prefixes(&["2001:db8:f::10/128"]));
    assert_eq!(without.session.counts().unannounceable, 1);
    assert!(!contains(&without.bytes, &[5, 6, 0, 1, 0, 1, 0, 2]), "the capability is not offered");
}

#[test]
fn graceful_restart_is_off_and_says_its_bits_when_it_is_on() {
    let (plain, ..) = established(config(PEER), config(US), &[]);
    let restarts = |c: &Capability| matches!(c, Capability::GracefulRestart { .. });
    assert!(!own_open(&plain).capabilities.iter().any(restarts));
    let mut on = config(PEER);
    on.graceful_restart = Some(GracefulRestart { seconds: 120, restarting: true, forwarding: true });
    let (a, ..) = established(on, config(US), &[]);
    // The graceful restart capability (code 64) with the R and N bits, a restart time of 120 s, and
    // both families with the F bit.
    assert!(contains(&a.bytes, &[64, 10, 0xc0, 120, 0, 1, 1, 0x80, 0, 2, 1, 0x80]), "{:02x?}", a.bytes);
}

#[test]
fn routes_are_kept_where_both_have_said_so_in_this_session() {
    let on = Some(GracefulRestart { seconds: 120, restarting: false, forwarding: false });
    for (ours, theirs) in [(on, on), (on, None), (None, on), (None, None)] {
        let (mut a, mut b) = (config(PEER), config(US));
        (a.graceful_restart, b.graceful_restart) = (ours, theirs);
        let (a, ..) = established(a, b, &[]);
        let kept = a.session.negotiated.as_ref().unwrap().graceful_restart;
        assert_eq!(kept, ours.is_some() && theirs.is_some());
    }
}

#[test]
fn cease_is_a_hard_reset_with_the_n_bit() {
    let on = Some(GracefulRestart { seconds: 120, restarting: false, forwarding: false });
    for (ours, theirs, codes) in [(on, on, (6, 9)), (on, None, (6, 2)), (None, on, (6, 2))] {
        let (mut a, mut b) = (config(PEER), config(US));
        (a.graceful_restart, b.graceful_restart) = (ours, theirs);
        let (mut a, mut b, now) = established(a, b, &[]);
        a.session.stop(&Stop::Shutdown("rack 7 moves".into()), now);
        exchange(&mut a, &mut b, now);
        assert_eq!(a.codes(), Some(codes));
        let heard = b.session.end().unwrap();
        assert!(heard.contains("Administrative Shutdown") && heard.contains("rack 7 moves"), "{heard}");
    }
}

#[test]
fn removal_bfd_and_change_are_hard_resets_too() {
    let on = Some(GracefulRestart { seconds: 120, restarting: false, forwarding: false });
    for (stop, inner) in [(Stop::Deconfigured, 3), (Stop::BfdDown, 10), (Stop::ConfigurationChange, 6)] {
        for setting in [on, None] {
            let (mut a, mut b) = (config(PEER), config(US));
            (a.graceful_restart, b.graceful_restart) = (setting, setting);
            let (mut a, _, now) = established(a, b, &[]);
            a.session.stop(&stop, now);
            a.take_all(now);
            let notification = a.notification().unwrap();
            let expected = if setting.is_some() { (9, vec![6, inner]) } else { (inner, vec![]) };
            assert_eq!((notification.subcode, notification.data.clone()), expected, "{stop:?}");
        }
    }
}
