//! Tests in which peers are added, changed and removed, shutdown messages are sent, and sessions
//! are established again.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bgp::{Attributes, Desired, Prefix, Routes, Speaker, State};

use crate::hand::*;

const ROUTER_ID: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 200);
/// The graceful-shutdown community (RFC 8326).
const GRACEFUL_SHUTDOWN: &[u8] = &[0xff, 0xff, 0, 0];

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
        // The speaker waits until the routers have closed their connections.
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
    assert!(speaker.set_peers(vec![peer("a", at_a)]).is_empty());
    assert_eq!(b.ended_with().await, Some((6, 3)));
    assert_eq!(speaker.status().keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!(established(&speaker, "a").await.established, 1);
}

#[tokio::test]
async fn names_and_addresses_are_taken_once() {
    let speaker = speaker(vec![peer("a", ([127, 0, 0, 34], 9).into())]);
    let twice = speaker.add_peer(peer("a", ([127, 0, 0, 35], 9).into())).unwrap_err();
    assert_eq!(twice.to_string(), "name of peer a is already used by another peer");
    let twice = speaker.add_peer(peer("b", ([127, 0, 0, 34], 10).into())).unwrap_err();
    assert_eq!(twice.to_string(), "address of peer b must not be 127.0.0.34, which peer a already has");
    let at = |last| ([127, 0, 0, last], 10).into();
    let refused = speaker.set_peers(vec![peer("c", at(34)), peer("c", at(35)), peer("d", at(34))]);
    let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    assert_eq!(
        refused,
        [
            "name of peer c is already used by another peer",
            "address of peer d must not be 127.0.0.34, which peer c already has"
        ]
    );
    assert_eq!(speaker.status().keys().collect::<Vec<_>>(), ["c"], "the new name replaces a");
}

fn one_route() -> Desired {
    let mut routes = Routes::new();
    routes.insert(Prefix::host([203, 0, 113, 10].into()), Attributes::default()).unwrap();
    Desired::everyone(routes)
}

/// Reads UPDATEs until one contains these bytes.
async fn update_with(router: &mut Router, bytes: &[u8]) {
    loop {
        let update = router.wait_for(UPDATE).await.expect("the session is gone");
        if update.windows(bytes.len()).any(|part| part == bytes) {
            return;
        }
    }
}

#[tokio::test]
async fn what_a_session_can_take_keeps_it() {
    let (listener, at) = listen(37).await;
    let mut config = peer("a", at);
    let speaker = speaker(vec![config.clone()]);
    speaker.announce(one_route());
    let mut router = Router::accept(&listener).await;
    router.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "a").await;
    config.next_hops.v4 = Some([198, 51, 100, 9].into());
    config.connect = bgp::Connect::Listen;
    config.times.hold = Duration::from_secs(30);
    config.gtsm_hops = Some(255);
    config.port = 9;
    config.local_address = Some([127, 0, 0, 1].into());
    assert!(speaker.set_peers(vec![config.clone()]).is_empty());
    update_with(&mut router, &[198, 51, 100, 9]).await;
    // The kernel now drops segments with a TTL below 255. Packets on loopback have a TTL of 64.
    config.gtsm_hops = Some(1);
    speaker.set_peers(vec![config.clone()]);
    let (mut before, began) = (0, Instant::now());
    loop {
        assert!(began.elapsed() < BOUND, "the kernel does not drop segments");
        let heard = established(&speaker, "a").await.counts.messages_received;
        if heard == before {
            break;
        }
        before = heard;
        router.send(&frame(KEEPALIVE, &[])).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    config.gtsm_hops = None;
    speaker.set_peers(vec![config]);
    let heard = until(&speaker, "a", |a| a.counts.messages_received > before).await;
    assert_eq!((heard.established, heard.last_end), (1, None));
}

#[tokio::test]
async fn change_that_needs_a_restart_marks_routes_first() {
    let (listener, at) = listen(29).await;
    let mut config = peer("a", at);
    // With these long retry times, the test times out if the restart is treated as a failure.
    config.times.first_retry = Duration::from_secs(3_600);
    config.times.max_retry = Duration::from_secs(3_600);
    config.times.notice = Duration::from_millis(500);
    let speaker = speaker(vec![config.clone()]);
    speaker.announce(one_route());
    let mut router = Router::accept(&listener).await;
    router.shake_hands(ROUTER_ID, 0).await;
    until(&speaker, "a", |a| a.counts.announced_v4 == 1).await;
    let families = config.families.clone();
    config.families.pop();
    let changed = Instant::now();
    speaker.set_peers(vec![config.clone()]);
    update_with(&mut router, GRACEFUL_SHUTDOWN).await;
    // The change is reverted before the restart. The community is removed, and the session
    // continues.
    config.families = families;
    speaker.set_peers(vec![config.clone()]);
    let unmarked = router.wait_for(UPDATE).await.expect("the session is gone");
    assert!(!unmarked.windows(4).any(|part| part == GRACEFUL_SHUTDOWN));
    assert!(speaker.status()["a"].state == State::Established, "{:?}", changed.elapsed());
    config.families.pop();
    let changed = Instant::now();
    speaker.set_peers(vec![config.clone()]);
    update_with(&mut router, GRACEFUL_SHUTDOWN).await;
    assert_eq!(router.ended_with().await, Some((6, 6)));
    assert!(changed.elapsed() >= config.times.notice, "{:?}", changed.elapsed());
    drop(router);
    // A router that has not closed its old session yet refuses a new session.
    for _ in 0..2 {
        drop(Router::accept(&listener).await);
    }
    let mut router = Router::accept(&listener).await;
    println!(
        "the third attempt came {:?} after the change, which includes {:?} of notice",
        changed.elapsed(),
        config.times.notice
    );
    router.shake_hands(ROUTER_ID, 0).await;
    let unmarked = router.wait_for(UPDATE).await.unwrap();
    assert!(!unmarked.windows(4).any(|part| part == GRACEFUL_SHUTDOWN));
    let again = until(&speaker, "a", |a| a.established == 2).await;
    assert_eq!(
        (again.last_error, again.last_end.unwrap().0.as_str()),
        (None, "the peer's configuration changed")
    );
}

#[tokio::test]
async fn renamed_peers_keep_sessions_and_get_new_tables() {
    let ((listener_a, at_a), (listener_b, at_b)) = (listen(27).await, listen(28).await);
    let speaker = speaker(vec![peer("a", at_a), peer("b", at_b)]);
    let tables = |names: [&str; 2]| {
        let mut desired = Desired::default();
        for (name, last) in names.into_iter().zip([1, 2]) {
            let mut routes = Routes::new();
            routes.insert(Prefix::host([203, 0, 113, last].into()), Attributes::default()).unwrap();
            desired.peers.insert(name.into(), std::sync::Arc::new(routes));
        }
        desired
    };
    speaker.announce(tables(["a", "b"]));
    let (mut a, mut b) = (Router::accept(&listener_a).await, Router::accept(&listener_b).await);
    for (router, last) in [(&mut a, 1), (&mut b, 2)] {
        router.shake_hands(ROUTER_ID, 0).await;
        update_with(router, &[32, 203, 0, 113, last]).await;
    }
    for names in [["b", "a"], ["x", "y"], ["a", "x"]] {
        assert!(speaker.set_peers(vec![peer(names[0], at_a), peer(names[1], at_b)]).is_empty());
        speaker.announce(tables(names));
        for (name, at) in names.into_iter().zip([at_a, at_b]) {
            let status = until(&speaker, name, |peer| peer.counts.announced_v4 == 1).await;
            assert_eq!((status.address, status.established), (at.ip(), 1));
            assert_eq!(status.name, name);
        }
        assert_eq!(speaker.status().len(), 2);
    }
    // Neither router has received a message while the names changed. The next messages are
    // the withdrawal and the route in the last table.
    let mut routes = Routes::new();
    routes.insert(Prefix::host([203, 0, 113, 9].into()), Attributes::default()).unwrap();
    speaker.announce(Desired::everyone(routes));
    for router in [&mut a, &mut b] {
        let mut heard = 0;
        loop {
            let update = router.wait_for(UPDATE).await.unwrap();
            let is_end_of_rib = update == [0; 4] || update.ends_with(&[0, 2, 1]);
            heard += u32::from(!is_end_of_rib);
            if update.ends_with(&[32, 203, 0, 113, 9]) {
                break;
            }
        }
        assert_eq!(heard, 2);
    }
}

#[tokio::test]
async fn listeners_open_move_and_close_while_sessions_go_on() {
    let mut config = peer("a", ([127, 0, 0, 26], 9).into());
    config.connect = bgp::Connect::Listen;
    let speaker = start(vec![], vec![config]);
    assert_eq!(speaker.listens_at(), []);
    let free = |last| async move { listen(last).await.1 };
    let (first, second, taken) = (free(24).await, free(25).await, listen(23).await);
    assert!(speaker.listen(&[first]).is_empty());
    let mut router = Router::dial(26, first).await;
    router.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "a").await;
    let refused = speaker.listen(&[second, taken.1]);
    assert_eq!(refused.len(), 1);
    assert_eq!((refused[0].0, refused[0].1.kind()), (taken.1, std::io::ErrorKind::AddrInUse));
    assert_eq!(speaker.listens_at(), [second]);
    assert!(tokio::net::TcpStream::connect(first).await.is_err(), "the old listener is closed");
    // The listener moves between the wildcard address and a specific address. These addresses
    // overlap, so the old socket must be closed first.
    let any = std::net::SocketAddr::new([0, 0, 0, 0].into(), second.port());
    for at in [any, second, any] {
        assert_eq!(speaker.listen(&[at]).len(), 0, "{at}");
    }
    let mut beside = Router::dial(26, second).await;
    assert_eq!(beside.ended_with().await, Some((6, 7)), "the established session stays");
    assert!(speaker.listen(&[]).is_empty() && speaker.listens_at().is_empty());
    assert_eq!(established(&speaker, "a").await.established, 1);
}

#[tokio::test]
async fn late_listener_requires_the_md5_key_of_the_peer() {
    let mut config = peer("a", ([127, 0, 0, 50], 9).into());
    config.connect = bgp::Connect::Listen;
    config.md5 = Some(bgp::Md5Key::new("s3cret").unwrap());
    let speaker = start(vec![], vec![config.clone()]);
    let at = listen(51).await.1;
    assert!(speaker.listen(&[at]).is_empty());
    let unsigned = tokio::time::timeout(Duration::from_millis(700), Router::dial(50, at)).await;
    assert!(unsigned.is_err(), "the kernel drops unsigned segments");
    config.md5 = None;
    assert!(speaker.set_peers(vec![config]).is_empty());
    Router::dial(50, at).await.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "a").await;
}

/// Sends more data than fits into the TCP window of a peer that does not read, so that the rest
/// stays in the local kernel.
async fn close_window(speaker: &Speaker, name: &str) {
    let mut routes = Routes::new();
    for n in 0..=255 {
        let own = Attributes { med: Some(n.into()), ..Attributes::default() };
        routes.insert(Prefix::host([203, 0, 113, n].into()), own).unwrap();
    }
    speaker.announce(Desired::everyone(routes));
    let all =
        until(speaker, name, |peer| peer.counts.announced_v4 == 256 && peer.counts.unsent_bytes == 0).await;
    assert_eq!(all.counts.pending, 0);
}

#[tokio::test]
async fn a_peer_that_reads_nothing_is_not_taken_for_told() {
    let (listener, at) = listen_tight(22).await;
    let (good_listener, good_at) = listen(21).await;
    let speaker = speaker(vec![peer("deaf", at), peer("good", good_at)]);
    let mut deaf = Router::accept(&listener).await;
    deaf.shake_hands(ROUTER_ID, 0).await;
    let mut good = Router::accept(&good_listener).await;
    good.shake_hands(ROUTER_ID, 0).await;
    for name in ["deaf", "good"] {
        established(&speaker, name).await;
    }
    speaker.announce(one_route());
    assert_eq!(speaker.flushed(BOUND).await, Vec::<String>::new());
    close_window(&speaker, "deaf").await;
    let reads = tokio::spawn(async move {
        while good.read().await.is_some() {}
        good
    });
    speaker.announce(Desired::default());
    let deaf_status = until(&speaker, "deaf", |deaf| deaf.counts.announced_v4 == 0).await;
    assert_eq!(
        (deaf_status.counts.pending, deaf_status.counts.unsent_bytes),
        (0, 0),
        "the local kernel has all data"
    );
    assert_eq!(speaker.flushed(Duration::from_millis(300)).await, ["deaf"]);
    // The peer acknowledges all data when it reads.
    let read = tokio::spawn(async move { while deaf.read().await.is_some() {} });
    assert_eq!(speaker.flushed(BOUND).await, Vec::<String>::new());
    read.abort();
    reads.abort();
}

#[tokio::test]
async fn a_peer_that_does_not_read_the_end_of_its_session_is_reset() {
    let (listener, at) = listen_tight(20).await;
    let speaker = speaker(vec![peer("deaf", at)]);
    let mut deaf = Router::accept(&listener).await;
    deaf.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "deaf").await;
    close_window(&speaker, "deaf").await;
    let began = Instant::now();
    assert!(speaker.set_peers(vec![]).is_empty());
    let end = loop {
        // The data in the peer's kernel is read only after the connection has ended.
        if let Some(error) = deaf.0.take_error().unwrap() {
            break error;
        }
        assert!(began.elapsed() < BOUND, "the connection is still open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    println!("reset after {:?}", began.elapsed());
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset, "the connection is reset");
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
        let lost = |end: &(String, _)| end.0.contains("connection lost");
        let after = until(&speaker, "a", |a| a.last_error.as_ref().is_some_and(lost)).await;
        assert_eq!(after.last_end, after.last_error, "both report the same reason");
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
async fn bfd_that_loses_the_peer_ends_no_attempt_that_began_since() {
    let (listener, at) = listen(52).await;
    let speaker = speaker(vec![peer("a", at)]);
    let mut router = Router::accept(&listener).await;
    until(&speaker, "a", |a| a.state == State::OpenSent).await;
    assert!(speaker.bfd_down("a"));
    router.shake_hands(ROUTER_ID, 0).await;
    let status = established(&speaker, "a").await;
    assert_eq!((status.established, status.failures), (1, 0));
}

#[tokio::test]
async fn a_port_that_nobody_listens_at_is_told_with_its_reason() {
    let (listener, at) = listen(40).await;
    drop(listener);
    let speaker = speaker(vec![peer("a", at)]);
    let status = until(&speaker, "a", |a| a.failures > 2).await;
    let (why, _) = status.last_error.unwrap();
    assert!(why.starts_with(&format!("cannot connect to {at}: Connection refused")), "{why}");
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
async fn reset_peer_gets_another_session() {
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
