//! Tests with a misbehaving peer and a correct peer. The session of the correct peer must stay up,
//! and the status of the misbehaving peer must contain a reason.

use std::net::Ipv4Addr;
use std::time::Duration;

use bgp::{Attributes, Connect, Desired, Prefix, Routes, Speaker, State};

use crate::hand::*;

const ROUTER_ID: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 200);

/// Starts a speaker with two peers. The correct peer has an established session, and the
/// misbehaving peer opens a connection.
async fn beside_a_good_one(good: u8, bad: u8) -> (Speaker, Router) {
    let (listener, at) = listen(good).await;
    let mut config = peer("bad", ([127, 0, 0, bad], 179).into());
    config.connect = Connect::Listen;
    config.times.open = Duration::from_millis(500);
    let speaker = speaker(vec![peer("good", at), config]);
    let mut router = Router::accept(&listener).await;
    router.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "good").await;
    (speaker, router)
}

/// Checks that the session of the correct peer never ended and that it carries a new route.
async fn still_works(speaker: &Speaker, good: &mut Router) {
    let before = established(speaker, "good").await;
    assert_eq!((before.established, &before.last_error), (1, &None));
    let mut routes = Routes::new();
    routes.insert(Prefix::host([203, 0, 113, 10].into()), Attributes::default()).unwrap();
    speaker.announce(Desired::everyone(routes));
    loop {
        let update = good.wait_for(UPDATE).await.expect("the good session is gone");
        if update.ends_with(&[32, 203, 0, 113, 10]) {
            break;
        }
    }
}

async fn fails_with(speaker: &Speaker, word: &str) {
    let has_word = |error: &(String, _)| error.0.contains(word);
    until(speaker, "bad", |bad| bad.state == State::Active && bad.last_error.as_ref().is_some_and(has_word))
        .await;
}

#[tokio::test]
async fn garbage_ends_the_session_of_who_sends_it() {
    let (speaker, mut good) = beside_a_good_one(10, 11).await;
    let mut bad = Router::dial(11, speaker.listens_at()[0]).await;
    bad.send(b"GET / HTTP/1.1\r\nHost: router\r\n\r\n").await;
    assert_eq!(bad.ended_with().await, Some((1, 1)));
    fails_with(&speaker, "malformed message in OpenSent: invalid header marker").await;
    still_works(&speaker, &mut good).await;
}

#[tokio::test]
async fn a_half_open_session_ends_by_the_open_timer() {
    let (speaker, mut good) = beside_a_good_one(12, 13).await;
    let mut bad = Router::dial(13, speaker.listens_at()[0]).await;
    assert_eq!(bad.ended_with().await, Some((4, 0)));
    fails_with(&speaker, "still in OpenSent").await;
    still_works(&speaker, &mut good).await;
}

#[tokio::test]
async fn another_as_than_configured_is_named() {
    let (speaker, mut good) = beside_a_good_one(14, 15).await;
    let mut bad = Router::dial(15, speaker.listens_at()[0]).await;
    bad.send(&open(65_009, ROUTER_ID, 90)).await;
    assert_eq!(bad.ended_with().await, Some((2, 2)));
    fails_with(&speaker, "AS mismatch: the peer reports AS 65009, expected 65000").await;
    still_works(&speaker, &mut good).await;
}

#[tokio::test]
async fn a_full_table_of_100_000_routes_is_read_counted_and_dropped() {
    let (speaker, mut good) = beside_a_good_one(16, 17).await;
    let mut bad = Router::dial(17, speaker.listens_at()[0]).await;
    bad.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "bad").await;
    bad.send(&flood(100_000)).await;
    until(&speaker, "bad", |bad| bad.counts.ignored_prefixes == 100_000).await;
    still_works(&speaker, &mut good).await;
    assert_eq!(established(&speaker, "bad").await.established, 1);
}

// Promise: bgp-unknown-peer
#[tokio::test]
async fn a_stranger_is_closed_without_a_word() {
    let (speaker, mut good) = beside_a_good_one(18, 19).await;
    let mut stranger = Router::dial(20, speaker.listens_at()[0]).await;
    assert_eq!(stranger.read().await, None);
    still_works(&speaker, &mut good).await;
}

#[tokio::test]
async fn connection_flood_of_a_peer_is_handled_one_at_a_time() {
    let (speaker, mut good) = beside_a_good_one(21, 22).await;
    let mut all = Vec::new();
    for _ in 0..100 {
        all.push(Router::dial(22, speaker.listens_at()[0]).await);
    }
    still_works(&speaker, &mut good).await;
    // Each closed connection receives a Cease message or none. The last connection ends when the
    // open timer expires.
    for router in &mut all {
        assert!(matches!(router.ended_with().await, Some((6, 7) | (4, 0)) | None));
    }
    let mut last = Router::dial(22, speaker.listens_at()[0]).await;
    last.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "bad").await;
}
