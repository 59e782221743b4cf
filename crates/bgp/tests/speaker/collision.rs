//! Tests of connections that both sides open at the same time (RFC 4271 §6.8).

use std::net::Ipv4Addr;

use crate::hand::*;

/// Opens one connection from each side. `dialled_first` selects the connection that receives its
/// OPEN first.
async fn collide(router_id: Ipv4Addr, dialled_first: bool) -> [Option<(u8, u8)>; 2] {
    let (listener, at) = listen(2).await;
    let speaker = speaker(vec![peer("router", at)]);
    let mut dialled = Router::accept(&listener).await;
    let mut accepted = Router::dial(2, speaker.listens_at()[0]).await;
    // Both connections are open before either side receives an OPEN.
    dialled.wait_for(OPEN).await.unwrap();
    accepted.wait_for(OPEN).await.unwrap();
    let (first, second) =
        if dialled_first { (&mut dialled, &mut accepted) } else { (&mut accepted, &mut dialled) };
    first.send(&open(ASN, router_id, 90)).await;
    first.wait_for(KEEPALIVE).await.unwrap();
    second.send(&open(ASN, router_id, 90)).await;
    let ours_is_higher = OUR_ID > router_id;
    let (stays, goes) =
        if ours_is_higher { (&mut dialled, &mut accepted) } else { (&mut accepted, &mut dialled) };
    let gone = goes.ended_with().await;
    stays.send(&frame(KEEPALIVE, &[])).await;
    let status = established(&speaker, "router").await;
    assert_eq!((status.established, status.last_error), (1, None), "a collision does not count as a failure");
    // The first UPDATE of the session is the End-of-RIB marker.
    let lives = stays.wait_for(UPDATE).await.map(|_| (0, 0));
    [gone, lives]
}

#[tokio::test]
async fn collision_closes_the_lower_identifier() {
    for id in [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 200)] {
        for dialled_first in [true, false] {
            assert_eq!(
                collide(id, dialled_first).await,
                [Some((6, 7)), Some((0, 0))],
                "{id} {dialled_first}"
            );
        }
    }
}

#[tokio::test]
async fn a_connection_beside_an_established_session_is_turned_away() {
    let (listener, at) = listen(3).await;
    let speaker = speaker(vec![peer("router", at)]);
    let mut first = Router::accept(&listener).await;
    first.shake_hands(Ipv4Addr::new(192, 0, 2, 200), 90).await;
    established(&speaker, "router").await;
    let mut second = Router::dial(3, speaker.listens_at()[0]).await;
    assert_eq!(second.ended_with().await, Some((6, 7)));
    assert_eq!(established(&speaker, "router").await.established, 1);
}

#[tokio::test]
async fn new_connection_replaces_a_half_open_one() {
    let (listener, at) = listen(4).await;
    let mut config = peer("router", at);
    config.connect = bgp::Connect::Listen;
    drop(listener);
    let speaker = speaker(vec![config]);
    let mut lost = Router::dial(4, speaker.listens_at()[0]).await;
    lost.wait_for(OPEN).await.unwrap();
    let mut again = Router::dial(4, speaker.listens_at()[0]).await;
    assert_eq!(lost.ended_with().await, Some((6, 7)));
    again.shake_hands(Ipv4Addr::new(192, 0, 2, 200), 90).await;
    established(&speaker, "router").await;
}
