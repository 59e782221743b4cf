//! Tests that change the MD5 key in a running session. The tests set the key of each router socket
//! separately.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use bgp::{Connect, Md5Key, PeerConfig, Speaker, State};
use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};
use tokio::net::{TcpListener, TcpSocket};

use crate::hand::*;

const ROUTER_ID: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 200);
const US: Ipv4Addr = Ipv4Addr::LOCALHOST;

sockopt_impl!(
    /// `struct tcp_md5sig`. The family is at offset 0, the IPv4 address at 4, the key length at 130
    /// and the key at 136.
    TcpMd5,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_MD5SIG,
    [u8; 216]
);

/// Sets the MD5 key of a router's socket.
fn set_key(socket: &impl AsFd, key: &str) {
    let mut bytes = [0; 216];
    bytes[..2].copy_from_slice(&u16::try_from(libc::AF_INET).unwrap().to_ne_bytes());
    bytes[4..8].copy_from_slice(&US.octets());
    bytes[130..132].copy_from_slice(&u16::try_from(key.len()).unwrap().to_ne_bytes());
    bytes[136..136 + key.len()].copy_from_slice(key.as_bytes());
    setsockopt(socket, TcpMd5, &bytes).unwrap();
}

/// Sets up a session that the speaker opens with key "one", and changes the key of the speaker to
/// "two". The router's port changes too, because Linux would otherwise reset a session that the
/// router no longer has, with a segment that is signed with the listener's key.
async fn rekeyed(last: u8) -> (Speaker, PeerConfig, TcpListener, Router) {
    let ((first, at), (second, next)) = (listen(last).await, listen(last).await);
    set_key(&first, "one");
    let config = keyed(peer("a", at), "one");
    let speaker = speaker(vec![config.clone()]);
    let mut router = Router::accept(&first).await;
    router.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "a").await;
    let mut config = keyed(config, "two");
    config.port = next.port();
    assert!(speaker.set_peers(vec![config.clone()]).is_empty());
    set_key(&second, "two");
    (speaker, config, second, router)
}

fn keyed(mut config: PeerConfig, key: &str) -> PeerConfig {
    config.md5 = Some(Md5Key::new(key).unwrap());
    config
}

/// Connects to the speaker with key "two".
async fn call(from: u8, to: SocketAddr) -> Router {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, from], 0))).unwrap();
    set_key(&socket, "two");
    Router(socket.connect(to).await.unwrap())
}

/// Sets the new key on the router's session, and checks that the session continues.
async fn takes_the_key_over(speaker: &Speaker, router: &mut Router) {
    set_key(&router.0, "two");
    assert_eq!(speaker.flushed(BOUND).await, Vec::<String>::new());
    router.wait_for(KEEPALIVE).await.expect("the session is gone");
    let status = established(speaker, "a").await;
    assert_eq!((status.established, status.last_end), (1, None));
}

async fn was_found_gone(speaker: &Speaker) {
    let status = until(speaker, "a", |a| a.established == 2 && a.state == State::Established).await;
    let (why, _) = status.last_end.unwrap();
    assert!(why.ends_with("the router has the new MD5 key but no longer has the session"), "{why}");
}

#[tokio::test]
async fn a_session_whose_key_comes_later_than_the_listeners_goes_on() {
    let (speaker, _, listener, mut router) = rekeyed(60).await;
    let mut beside = Router::accept(&listener).await;
    // The router still has a session and closes the second connection (RFC 4271 §6.8).
    beside.wait_for(OPEN).await.unwrap();
    beside.send(&open(ASN, ROUTER_ID, 0)).await;
    beside.send(&frame(NOTIFICATION, &[6, 7])).await;
    while beside.read().await.is_some() {}
    takes_the_key_over(&speaker, &mut router).await;
}

#[tokio::test]
async fn acknowledged_session_closes_the_second_connection() {
    let (speaker, mut config, listener, mut router) = rekeyed(61).await;
    let mut beside = Router::accept(&listener).await;
    beside.wait_for(OPEN).await.unwrap();
    config.max_prefixes = Some(9);
    assert!(speaker.set_peers(vec![config]).is_empty());
    assert_eq!(beside.ended_with().await, Some((6, 6)), "the second connection had the old configuration");
    let mut beside = Router::accept(&listener).await;
    takes_the_key_over(&speaker, &mut router).await;
    assert_eq!(beside.ended_with().await, Some((6, 7)));
}

#[tokio::test]
async fn router_without_its_session_gets_another_after_rekey() {
    let (speaker, _, listener, router) = rekeyed(62).await;
    // The router signs its last segments with a key that the speaker no longer has.
    set_key(&router.0, "none");
    drop(router);
    Router::accept(&listener).await.shake_hands(ROUTER_ID, 0).await;
    was_found_gone(&speaker).await;
}

#[tokio::test]
async fn router_that_reconnects_after_rekey_gets_a_session() {
    let at = ([127, 0, 0, 63], 9).into();
    let mut config = peer("a", at);
    config.connect = Connect::Listen;
    let speaker = speaker(vec![keyed(config.clone(), "two")]);
    let mut router = call(63, speaker.listens_at()[0]).await;
    router.shake_hands(ROUTER_ID, 0).await;
    established(&speaker, "a").await;
    let change_keys = |router: &Router, key| {
        set_key(&router.0, "none");
        assert!(speaker.set_peers(vec![keyed(config.clone(), key)]).is_empty());
    };
    // The key changes twice, because the router's next connection uses the key from the second
    // change.
    change_keys(&router, "one");
    change_keys(&router, "two");
    assert_eq!(call(63, speaker.listens_at()[0]).await.ended_with().await, Some((6, 7)));
    takes_the_key_over(&speaker, &mut router).await;
    change_keys(&router, "one");
    change_keys(&router, "two");
    drop(router);
    loop {
        let mut again = call(63, speaker.listens_at()[0]).await;
        if again.read().await.is_some_and(|(kind, _)| kind == OPEN) {
            again.shake_hands(ROUTER_ID, 0).await;
            break;
        }
        // The pause limits the number of used ports, because each connection occupies a port for a
        // minute.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    was_found_gone(&speaker).await;
}
