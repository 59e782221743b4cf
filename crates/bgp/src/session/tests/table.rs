//! Tests that the route table of the peer follows the desired routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::super::*;
use super::bed::*;
use crate::route::{Attributes, Community, LargeCommunity};

fn elsewhere() -> PeerConfig {
    let mut config = config(PEER);
    config.next_hops.v4 = Some([198, 51, 100, 9].into());
    config
}

#[test]
fn a_first_table_is_followed_by_the_end_of_each_family() {
    let (a, ..) = established(config(PEER), config(US), &["203.0.113.10/32", "2001:db8:f::10/128"]);
    assert_eq!(a.mirror, prefixes(&["203.0.113.10/32", "2001:db8:f::10/128"]));
    let v4_end = frame(2, &[0; 4]);
    let v6_end = frame(2, &[0, 0, 0, 6, 0x80, 15, 3, 0, 2, 1]);
    assert!(a.bytes.ends_with(&[v4_end, v6_end].concat()), "{:02x?}", a.bytes);
}

#[test]
fn attributes_are_written_as_the_registry_says() {
    let attributes = Attributes {
        med: Some(7),
        local_pref: Some(200),
        prepend: 2,
        shutdown_prepend: 0,
        communities: vec![Community(65_000, 1), Community::GRACEFUL_SHUTDOWN],
        large_communities: vec![LargeCommunity(65_101, 2, 3)],
    };
    let (mut a, mut b, now) = established(config(PEER), config(US), &[]);
    let mut routes = Routes::new();
    routes.insert("203.0.113.0/24".parse().unwrap(), attributes).unwrap();
    a.bytes.clear();
    a.session.desire(Arc::new(routes));
    exchange(&mut a, &mut b, now);
    for part in [
        &[0x40, 1, 1, 0][..],
        &[0x40, 2, 14, 2, 3, 0, 0, 0xfe, 0x4d, 0, 0, 0xfe, 0x4d, 0, 0, 0xfe, 0x4d],
        &[0x40, 3, 4, 192, 0, 2, 1],
        &[0x80, 4, 4, 0, 0, 0, 7],
        &[0xc0, 8, 8, 0xfd, 0xe8, 0, 1, 0xff, 0xff, 0, 0],
        &[0xc0, 32, 12, 0, 0, 0xfe, 0x4d, 0, 0, 0, 2, 0, 0, 0, 3],
        &[24, 203, 0, 113],
    ] {
        assert!(contains(&a.bytes, part), "{part:02x?} in {:02x?}", a.bytes);
    }
    assert!(!contains(&a.bytes, &[0x40, 5, 4]), "no local preference for an external peer");
}

#[test]
fn next_hop_change_announces_all_routes_again() {
    let (mut a, mut b, now) = established(config(PEER), config(US), &["203.0.113.10/32"]);
    assert!(contains(&a.bytes, &[0x40, 3, 4, 192, 0, 2, 1]));
    let other = elsewhere();
    a.bytes.clear();
    a.session.reconfigure(Arc::new(other));
    exchange(&mut a, &mut b, now);
    assert!(contains(&a.bytes, &[0x40, 3, 4, 198, 51, 100, 9]));
    assert!(contains(&a.bytes, &[32, 203, 0, 113, 10]));
    assert_eq!(a.session.counts().announced_v4, 1);
}

#[test]
fn a_withdrawal_that_waits_survives_a_change_of_next_hops() {
    let (mut a, mut b, now) = established(config(PEER), config(US), &["203.0.113.10/32", "203.0.113.11/32"]);
    a.session.desire(Arc::new(table(&["203.0.113.11/32"])));
    let other = elsewhere();
    a.session.reconfigure(Arc::new(other));
    exchange(&mut a, &mut b, now);
    assert_eq!(a.mirror, prefixes(&["203.0.113.11/32"]));
}

#[test]
fn a_refresh_says_the_family_again_between_its_marks() {
    let (mut a, mut b, now) =
        established(config(PEER), config(US), &["203.0.113.10/32", "2001:db8:f::10/128"]);
    a.said.clear();
    a.session.received(&frame(5, &[0, 1, 0, 1]), now);
    exchange(&mut a, &mut b, now);
    let kinds = a.said.iter().map(|message| match message {
        Message::Refresh(refresh) => format!("{:?} {:?}", refresh.kind, refresh.family),
        Message::Update(update) => format!("{:?}", update.announced),
        other => format!("{other:?}"),
    });
    let expected = ["Begin Some(Ipv4)", "[203.0.113.10/32]", "End Some(Ipv4)"];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

#[test]
fn a_peer_of_plain_refresh_gets_no_marks() {
    let four_bytes: (u8, &[u8]) = (65, &[0, 0, 0xfd, 0xe8]);
    let (mut side, now) = against_hand(config(PEER), 90, &[MP_V4, (2, &[]), four_bytes]);
    side.session.desire(Arc::new(table(&["203.0.113.10/32"])));
    side.take_all(now);
    side.said.clear();
    side.session.received(&frame(5, &[0, 1, 0, 1]), now);
    side.take_all(now);
    assert!(matches!(side.said.as_slice(), [Message::Update(_)]), "{:?}", side.said);
}

#[test]
fn a_flood_of_refreshes_costs_one_answer_at_a_time() {
    let routes: Vec<String> = (0..200).map(|n| format!("203.0.113.{n}/32")).collect();
    let routes: Vec<&str> = routes.iter().map(String::as_str).collect();
    let (mut a, _, now) = established(config(PEER), config(US), &routes);
    a.bytes.clear();
    a.session.received(&frame(5, &[0, 1, 0, 1]).repeat(1_000), now);
    a.take_all(now);
    assert!(a.bytes.len() < 3_000, "{} bytes for 1,000 requests", a.bytes.len());
    assert_eq!(a.session.counts().refreshes, 1_000);
}

#[test]
fn refresh_of_an_unknown_family_only_resets_the_hold_timer() {
    let (mut a, _, now) = established(config(PEER), config(US), &["203.0.113.10/32"]);
    a.said.clear();
    a.session.received(&frame(5, &[0, 25, 0, 70]), now);
    a.session.received(&frame(5, &[0xff, 0xff, 9, 0xff]), now);
    a.take_all(now);
    assert_eq!((a.said.len(), a.session.end()), (0, None));
}

#[test]
fn a_peer_that_reads_nothing_holds_no_more_than_a_few_messages() {
    let mut big = Routes::new();
    let shared = Arc::new(Attributes::default());
    for n in 0..100_000_u32 {
        let prefix = Prefix::host(Ipv4Addr::from(0xc612_0000 + n).into());
        big.insert(prefix, Arc::clone(&shared)).unwrap();
    }
    let (mut a, _, now) = established(config(PEER), config(US), &[]);
    a.session.desire(Arc::new(big));
    let waiting = a.session.output(now).len();
    assert!((1..16_384 + 4_096).contains(&waiting), "{waiting} bytes");
    a.take_all(now);
    assert_eq!((a.mirror.len(), a.session.counts().announced_v4), (100_000, 100_000));
    assert!(a.bytes.len() < 520_000, "{} bytes", a.bytes.len());
}

#[derive(Clone, Debug)]
enum Step {
    Desire(Vec<(u8, u8)>),
    Take(usize),
    Refresh(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        proptest::collection::vec((0..40_u8, 0..3_u8), 0..40).prop_map(Step::Desire),
        (1..400_usize).prop_map(Step::Take),
        any::<bool>().prop_map(Step::Refresh),
    ]
}

/// Even numbers are IPv4, odd numbers are IPv6.
fn prefix_of(n: u8) -> Prefix {
    if n.is_multiple_of(2) {
        Prefix::host([203, 0, 113, n].into())
    } else {
        Prefix::host(Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, n.into()).into())
    }
}

proptest! {
    #[test]
    fn whatever_is_desired_the_peer_ends_up_with_the_last(steps in proptest::collection::vec(step(), 0..30)) {
        let (mut a, _, now) = established(config(PEER), config(US), &[]);
        let mut last = BTreeMap::new();
        for step in steps {
            match step {
                Step::Desire(list) => {
                    last = list.into_iter().collect();
                    let mut routes = Routes::new();
                    for (&n, &med) in &last {
                        let attributes = Attributes { med: Some(med.into()), ..Attributes::default() };
                        routes.insert(prefix_of(n), attributes).unwrap();
                    }
                    a.session.desire(Arc::new(routes));
                }
                Step::Take(most) => drop(a.take(most, now)),
                Step::Refresh(v4) => {
                    a.session.received(&frame(5, &[0, if v4 { 1 } else { 2 }, 0, 1]), now);
                }
            }
        }
        a.take_all(now);
        let wanted: BTreeSet<Prefix> = last.keys().map(|&n| prefix_of(n)).collect();
        prop_assert_eq!(&a.mirror, &wanted);
        let counts = a.session.counts();
        prop_assert_eq!(counts.announced_v4 + counts.announced_v6, wanted.len());
        prop_assert_eq!((counts.pending, counts.unannounceable), (0, 0));
    }
}
