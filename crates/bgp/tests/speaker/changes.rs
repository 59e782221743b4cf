//! Peers come, change and go while others stay; sessions end with a text and come back by themselves.

use std::net::Ipv4Addr;
use std::time::Duration;

use bgp::{Attributes, Desired, Prefix, Routes, State};

use crate::hand::*;

const ROUTER_ID: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 200);

#[tokio::test]
async fn a_shutdown_reaches_every_peer_with_its_text() {
    let (listener_a, at_a) = listen(30).await;
    let (listener_b, at_b) = listen(31).await;
    let speaker = speaker(vec![peer("a", at_a), peer("b", at_b)]);
    let (mut a, mut b) = (Router::accept(&listener_a).await, Router::accept(&listener_b).await);
    for (router, name) in [(&mut a, "a"), (&mut b, "b")] {
        router.shake_hands(ROUTER_ID, 0).await;
        established(&speaker, name).await;
    }
    let read = async {
        for router in [&mut a, &mut b] {
            assert_eq!(router.wait_for(NOTIFICATION).await.unwrap(), b"\x06\x02\x0crack 7 moves");
        }
        // It waits for the other ends to close.
        drop((a, b));
    };
    tokio::join!(speaker.shutdown("rack 7 moves"), read);
    assert!(speaker.status().is_empty());
}

#[tokio::test]
async fn peers_are_added_and_removed_without_harm_to_others() {
    let (listener_a, at_a) = listen(32).await;
    let (listener_b, at_b) = listen(33).await;
    let speaker = speaker(vec![peer("a", at_a)]);
    let mut a = Router::accept(&listener_a).await;
    a.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "a").await;
    speaker.add_peer(peer("b", at_b)).unwrap();
    let mut b = Router::accept(&listener_b).await;
    b.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "b").await;
    assert!(speaker.remove_peer("b"));
    assert_eq!(b.ended_with().await, Some((6, 3)));
    assert!(!speaker.remove_peer("b"));
    assert_eq!(speaker.status().keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!(established(&speaker, "a").await.established, 1);
}

#[tokio::test]
async fn names_and_addresses_are_taken_once() {
    let speaker = speaker(vec![peer("a", ([127, 0, 0, 34], 9).into())]);
    let twice = speaker.add_peer(peer("a", ([127, 0, 0, 35], 9).into())).unwrap_err();
    assert_eq!(twice.to_string(), "peer a: name: another peer has it");
    let twice = speaker.add_peer(peer("b", ([127, 0, 0, 34], 10).into())).unwrap_err();
    assert_eq!(twice.to_string(), "peer b: address: peer a has 127.0.0.34");
    let unknown = speaker.change_peer(peer("c", ([127, 0, 0, 36], 10).into())).unwrap_err();
    assert_eq!(unknown.to_string(), "peer c: name: no peer has it");
}

#[tokio::test]
async fn a_change_that_the_session_can_take_keeps_it_and_another_begins_a_new_one_at_once() {
    let (listener, at) = listen(37).await;
    let mut config = peer("a", at);
    config.first_retry = Duration::from_secs(3_600);
    config.longest_retry = Duration::from_secs(3_600);
    let speaker = speaker(vec![config.clone()]);
    let mut routes = Routes::new();
    routes.insert(Prefix::host([203, 0, 113, 10].into()), Attributes::default()).unwrap();
    speaker.announce(Desired::everyone(routes));
    let mut router = Router::accept(&listener).await;
    router.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "a").await;
    config.next_hop_v4 = Some([198, 51, 100, 9].into());
    speaker.change_peer(config.clone()).unwrap();
    loop {
        let update = router.wait_for(UPDATE).await.expect("the session is gone");
        if update.windows(4).any(|part| part == [198, 51, 100, 9]) {
            break;
        }
    }
    config.hold = Duration::from_secs(30);
    speaker.change_peer(config).unwrap();
    assert_eq!(router.ended_with().await, Some((6, 6)));
    let mut router = Router::accept(&listener).await;
    router.shake_hands(ROUTER_ID, 0).await;
    until(&speaker, "a", |a| a.state == State::Established && a.established == 2).await;
}

#[tokio::test]
async fn a_lost_session_comes_back_by_itself() {
    let (listener, at) = listen(38).await;
    let speaker = speaker(vec![peer("a", at)]);
    for round in 1..=3 {
        let mut router = Router::accept(&listener).await;
        router.shake_hands(ROUTER_ID, 0).await;
        until(&speaker, "a", |a| a.state == State::Established && a.established == round).await;
        drop(router);
        until(&speaker, "a", |a| a.last_error.as_ref().is_some_and(|e| e.0.contains("connection lost")))
            .await;
    }
}

#[tokio::test]
async fn a_peer_that_bfd_has_lost_is_told_so_and_tried_again() {
    let (listener, at) = listen(39).await;
    let speaker = speaker(vec![peer("a", at)]);
    let mut router = Router::accept(&listener).await;
    router.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "a").await;
    assert!(speaker.bfd_down("a") && !speaker.bfd_down("b"));
    assert_eq!(router.ended_with().await, Some((6, 10)));
    Router::accept(&listener).await.shake_hands(ROUTER_ID, 0).await;
}

#[tokio::test]
async fn a_port_that_nobody_listens_at_is_told_with_its_reason() {
    let (listener, at) = listen(40).await;
    drop(listener);
    let speaker = speaker(vec![peer("a", at)]);
    let status = until(&speaker, "a", |a| a.failures > 2).await;
    let (why, _) = status.last_error.unwrap();
    assert!(why.starts_with(&format!("can't connect to {at}: Connection refused")), "{why}");
}

#[tokio::test]
async fn each_peer_gets_its_own_table() {
    let (listener_a, at_a) = listen(41).await;
    let (listener_b, at_b) = listen(42).await;
    let speaker = speaker(vec![peer("a", at_a), peer("b", at_b)]);
    let table = |last| {
        let mut routes = Routes::new();
        routes.insert(Prefix::host([203, 0, 113, last].into()), Attributes::default()).unwrap();
        routes
    };
    let mut desired = Desired::everyone(table(1));
    desired.peers.insert("b".into(), std::sync::Arc::new(table(2)));
    speaker.announce(desired);
    for (listener, last) in [(listener_a, 1), (listener_b, 2)] {
        let mut router = Router::accept(&listener).await;
        router.shake_hands(ROUTER_ID, 0).await;
        let first = router.wait_for(UPDATE).await.unwrap();
        assert!(first.ends_with(&[32, 203, 0, 113, last]), "{first:02x?}");
    }
}

#[tokio::test]
async fn a_peer_that_is_reset_hears_nothing_more_and_gets_another_session() {
    let (listener, at) = listen(44).await;
    let speaker = speaker(vec![peer("a", at)]);
    let mut a = Router::accept(&listener).await;
    a.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "a").await;
    assert!(speaker.reset("a", "a withdrawal was not taken in time") && !speaker.reset("b", ""));
    assert_eq!(a.ended_with().await, None, "no NOTIFICATION");
    let status = until(&speaker, "a", |status| status.last_error.is_some()).await;
    assert_eq!(status.last_error.unwrap().0, "a withdrawal was not taken in time");
    let mut again = Router::accept(&listener).await;
    again.shake_hands(ROUTER_ID, 0).await;
    assert_eq!(until(&speaker, "a", |status| status.established == 2).await.state, State::Established);
}
