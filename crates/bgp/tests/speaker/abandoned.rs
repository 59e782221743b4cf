//! Tests of sessions that are handed over to another process.

use std::net::{Ipv4Addr, SocketAddr};

use bgp::{GracefulRestart, PeerConfig, Speaker, SpeakerConfig};

use crate::hand::*;

const ROUTER_ID: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 200);

/// Returns a peer that negotiates graceful restart with a restart time of 30 s.
fn keeping(at: SocketAddr) -> PeerConfig {
    let restart = GracefulRestart { seconds: 30, restarting: false, forwarding: false };
    let mut config = peer("a", at);
    config.graceful_restart = Some(restart);
    config
}

/// Parses the graceful restart capability of an OPEN. Returns the R bit, the seconds, and the F bit
/// of every family.
fn restart_of(open: &[u8]) -> (bool, u16, Vec<bool>) {
    let (mut params, mut found) = (&open[10..], None);
    while let [2, length, rest @ ..] = params {
        let (mut capabilities, after) = rest.split_at(usize::from(*length));
        while let [code, length, rest @ ..] = capabilities {
            let (value, after) = rest.split_at(usize::from(*length));
            if *code == 64 {
                let head = u16::from_be_bytes([value[0], value[1]]);
                let forwarding = value[2..].chunks(4).map(|family| family[3] & 0x80 != 0).collect();
                found = Some((head & 0x8000 != 0, head & 0xfff, forwarding));
            }
            capabilities = after;
        }
        params = after;
    }
    found.expect("the OPEN must contain the graceful restart capability")
}

/// Returns the OPEN that the router receives, after the session is established.
async fn opened(router: &mut Router) -> Vec<u8> {
    let said = router.wait_for(OPEN).await.unwrap();
    router.shake_hands(ROUTER_ID, 0).await;
    said
}

#[tokio::test]
async fn abandon_sends_no_notification_and_closes_listeners() {
    let (listener, at) = listen(40).await;
    let speaker = speaker(vec![keeping(at)]);
    let mut router = Router::accept(&listener).await;
    assert_eq!(restart_of(&opened(&mut router).await), (false, 30, vec![false, false]));
    established(&speaker, "a").await;
    speaker.abandon().await;
    assert_eq!(router.ended_with().await, None, "no NOTIFICATION");
    assert!(speaker.status().is_empty() && speaker.listens_at().is_empty());
}

#[tokio::test]
async fn who_comes_in_its_place_says_so_until_it_has_a_session() {
    let (listener, at) = listen(41).await;
    let mut config = SpeakerConfig::new(OUR_ASN, OUR_ID);
    (config.peers, config.resumes) = (vec![keeping(at)], true);
    let speaker = Speaker::start(config).unwrap();
    let mut router = Router::accept(&listener).await;
    assert_eq!(restart_of(&router.wait_for(OPEN).await.unwrap()), (true, 30, vec![true, true]));
    drop(router); // The connection ends before the session is up.
    let mut router = Router::accept(&listener).await;
    assert_eq!(restart_of(&opened(&mut router).await), (true, 30, vec![true, true]));
    established(&speaker, "a").await;
    // A reload without a change does not restart the session.
    assert!(speaker.set_peers(vec![keeping(at)]).is_empty());
    drop(router);
    let mut router = Router::accept(&listener).await;
    assert_eq!(restart_of(&opened(&mut router).await), (false, 30, vec![false, false]));
    assert_eq!(established(&speaker, "a").await.established, 2);
}
