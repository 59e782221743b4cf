//! Tests of peers that are removed while they have routes, and of canceled removals.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bgp::{Attributes, Desired, PeerConfig, Prefix, Routes, Speaker, State};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::hand::*;

const ROUTER_ID: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 200);
/// The graceful-shutdown community (RFC 8326).
const MARK: &[u8] = &[0xff, 0xff, 0, 0];
const ROUTE: [u8; 4] = [203, 0, 113, 10];

fn table_of(names: &[&str]) -> Desired {
    let mut routes = Routes::new();
    routes.insert(Prefix::host(ROUTE.into()), Attributes::default()).unwrap();
    let routes = std::sync::Arc::new(routes);
    let peers = names.iter().map(|name| ((*name).to_owned(), std::sync::Arc::clone(&routes)));
    Desired { peers: peers.collect(), ..Desired::default() }
}

/// Starts a speaker with a peer that has received the route.
async fn scene(last: u8, notice: Duration) -> (Speaker, PeerConfig, TcpListener, Router) {
    let (listener, at) = listen(last).await;
    let mut config = peer("a", at);
    config.times.notice = notice;
    let speaker = speaker(vec![config.clone()]);
    speaker.announce(table_of(&["a"]));
    let mut router = Router::accept(&listener).await;
    router.shake_hands(ROUTER_ID, 0).await;
    until(&speaker, "a", |a| a.counts.announced_v4 == 1).await;
    (speaker, config, listener, router)
}

/// Reads messages until an UPDATE announces the route. `marked` selects whether the route must have
/// the community.
async fn hears_route(router: &mut Router, marked: bool) {
    loop {
        let update = router.wait_for(UPDATE).await.expect("the session is gone");
        let says = update.ends_with(&[&[32][..], &ROUTE].concat()) && !update.starts_with(&[0, 5]);
        if says && update.windows(4).any(|part| part == MARK) == marked {
            return;
        }
    }
}

#[tokio::test]
async fn removed_peer_gets_marked_routes_before_the_end() {
    let notice = Duration::from_millis(500);
    let (speaker, _, listener, mut router) = scene(53, notice).await;
    let removed = Instant::now();
    assert!(speaker.set_peers(vec![]).is_empty());
    speaker.announce(table_of(&["another"]));
    hears_route(&mut router, true).await;
    let status = speaker.status();
    assert_eq!(status.keys().collect::<Vec<_>>(), ["a (removed)"]);
    assert_eq!(status["a (removed)"].state, State::Established);
    assert_eq!(router.ended_with().await, Some((6, 3)));
    assert!(removed.elapsed() >= notice, "{:?}", removed.elapsed());
    println!("ended {:?} after the removal", removed.elapsed());
    assert!(speaker.status().is_empty());
    drop(router);
    assert!(
        timeout(Duration::from_millis(500), listener.accept()).await.is_err(),
        "the peer is dialed again"
    );
}

#[tokio::test]
async fn a_peer_that_comes_back_in_time_keeps_its_session() {
    let notice = Duration::from_millis(1_500);
    let (speaker, mut config, _listener, mut router) = scene(54, notice).await;
    assert!(speaker.set_peers(vec![]).is_empty());
    speaker.announce(Desired { peers: table_of(&["b"]).peers, ..Desired::default() });
    hears_route(&mut router, true).await;
    config.name = "b".into();
    assert!(speaker.set_peers(vec![config]).is_empty());
    speaker.announce(table_of(&["b"]));
    hears_route(&mut router, false).await;
    // After this time, the removal would be complete.
    tokio::time::sleep(notice * 2).await;
    let status = established(&speaker, "b").await;
    assert_eq!((status.established, status.last_end, speaker.status().len()), (1, None, 1));
}

#[tokio::test]
async fn peer_with_a_new_address_overlaps_both_sessions() {
    let (speaker, mut config, _listener, mut old) = scene(55, Duration::from_secs(3)).await;
    let (listener, at) = listen(56).await;
    (config.address, config.port) = (at.ip(), at.port());
    assert!(speaker.set_peers(vec![config]).is_empty());
    speaker.announce(table_of(&["a"]));
    let mut new = Router::accept(&listener).await;
    new.shake_hands(ROUTER_ID, 0).await;
    hears_route(&mut new, false).await;
    hears_route(&mut old, true).await;
    let status = speaker.status();
    assert_eq!(status.keys().collect::<Vec<_>>(), ["a", "a (removed)"]);
    assert_eq!(status["a (removed)"].state, State::Established, "both sessions have the route");
    // A withdrawal for all peers is also sent to the removed peer, and `flushed` waits for it.
    speaker.announce(Desired {
        peers: [("a".to_owned(), std::sync::Arc::default())].into(),
        ..Desired::default()
    });
    assert_eq!(speaker.flushed(BOUND).await, Vec::<String>::new());
    let withdrawal = [&[0, 5, 32][..], &ROUTE, &[0, 0]].concat();
    for router in [&mut old, &mut new] {
        while router.wait_for(UPDATE).await.expect("the session is gone") != withdrawal {}
    }
    assert_eq!(old.ended_with().await, Some((6, 3)));
    assert_eq!(established(&speaker, "a").await.established, 1);
}

#[tokio::test]
async fn removed_peer_without_routes_or_notice_ends_immediately() {
    let (speaker, config, _listener, mut router) = scene(57, Duration::from_secs(3_600)).await;
    speaker.announce(Desired::default());
    until(&speaker, "a", |a| a.counts.announced_v4 == 0).await;
    assert!(speaker.set_peers(vec![]).is_empty() && speaker.status().is_empty());
    assert_eq!(router.ended_with().await, Some((6, 3)));
    // A shutdown does not wait for the notice.
    let (stopped, _, _listener, mut router) = scene(58, config.times.notice).await;
    assert!(stopped.set_peers(vec![]).is_empty());
    hears_route(&mut router, true).await;
    let reads = async { router.ended_with().await.inspect(|_| drop(router)) };
    assert_eq!(tokio::join!(stopped.shutdown("rack 7 moves"), reads).1, Some((6, 2)));
}

#[tokio::test]
async fn a_peer_that_was_removed_and_loses_its_session_gets_no_other() {
    let (speaker, _, listener, mut router) = scene(59, Duration::from_secs(3_600)).await;
    assert!(speaker.set_peers(vec![]).is_empty());
    hears_route(&mut router, true).await;
    drop(router);
    until(&speaker, "a (removed)", |a| a.state == State::Idle).await;
    assert!(
        timeout(Duration::from_millis(700), listener.accept()).await.is_err(),
        "the peer is dialed again"
    );
}
