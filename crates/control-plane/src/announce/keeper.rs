//! What goes on beside the routes: BFD for sessions that are up, and the end of those that don't hear in time.
//!
//! In: the speaker's status. Out: BFD sessions; the end of sessions whose peers have not acknowledged.
//! A BFD session begins after its BGP session (FRR ends a BGP session whose BFD is not up yet) and ends after it: the
//! AdminDown that ends it is no sign of failure (RFC 5882 §3.2), so routes must be gone before. bird takes it for one all the
//! same, and would name it as the reason where it reads it before the BGP message that ended the session.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bgp::bfd::{Bfd, BfdChange, BfdConfig};
use bgp::{Speaker, State, Status};
use tokio::sync::watch;

/// By the peer's address.
pub(super) type Watched = BTreeMap<IpAddr, BfdConfig>;

/// Keeps a BFD session for each BGP session that is established and wants one; until the speaker is gone.
pub(super) async fn keep(
    bfd: Arc<Bfd>,
    mut status: watch::Receiver<Status>,
    mut wanted: watch::Receiver<Watched>,
) {
    let mut have = Watched::new();
    loop {
        let mut up = up_now(&mut status, &mut wanted);
        if have.iter().any(|(peer, config)| up.get(peer) != Some(config)) {
            tokio::time::sleep(OUTLIVES).await;
            up = up_now(&mut status, &mut wanted);
        }
        follow(&bfd, &mut have, &up);
        tokio::select! {
            Ok(()) = status.changed() => {}
            Ok(()) = wanted.changed() => {}
            else => return,
        }
    }
}

fn up_now(status: &mut watch::Receiver<Status>, wanted: &mut watch::Receiver<Watched>) -> Watched {
    let (status, wanted) = (status.borrow_and_update(), wanted.borrow_and_update());
    let up = status.values().filter(|peer| peer.state == State::Established);
    up.filter_map(|peer| Some((peer.address, wanted.get(&peer.address)?.clone()))).collect()
}

fn follow(bfd: &Bfd, have: &mut Watched, up: &Watched) {
    have.retain(|peer, config| {
        let stays = up.get(peer) == Some(config);
        if !stays {
            bfd.remove(&config.name);
        }
        stays
    });
    for (peer, config) in up {
        if have.contains_key(peer) {
            continue;
        }
        match bfd.add(config.clone()) {
            Ok(()) => drop(have.insert(*peer, config.clone())),
            Err(error) => tracing::error!(%peer, %error, "no BFD beside the BGP session"),
        }
    }
}

/// On the thread of BFD: a peer that is lost takes its BGP session with it.
pub(super) fn changed(speaker: &Speaker, change: &BfdChange) {
    let BfdChange { name, from, to, diagnostic } = change;
    let status = speaker.status();
    let peer = status.values().find(|peer| peer.address.to_string() == *name);
    let peer = peer.map_or(name, |peer| &peer.name);
    if change.is_loss() {
        tracing::warn!(peer, address = name, %from, %to, why = %diagnostic, "BFD has lost the peer: its BGP session ends");
        speaker.bfd_down(peer);
    } else {
        tracing::info!(peer, address = name, %from, %to, why = %diagnostic, "BFD");
    }
}

/// Ends sessions with those that did not take the withdrawal in time.
pub(super) async fn end_those_not_told(speaker: Arc<Speaker>) {
    for name in speaker.told(WITHDRAWN_WITHIN).await {
        tracing::error!(peer = name, "the withdrawal was not acknowledged in time: the session is closed");
        speaker.reset(&name, "a withdrawal was not acknowledged in time");
    }
}

/// How much longer than its BGP session a BFD session lives: a router reads in that time why the other ended.
pub(super) const OUTLIVES: Duration = Duration::from_millis(300);
/// An unhealthy forwarder's VIPs are withdrawn by then, or the session is closed.
const WITHDRAWN_WITHIN: Duration = Duration::from_millis(300);
