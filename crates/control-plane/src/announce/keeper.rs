//! What goes on beside the routes: BFD for sessions that are up, and the end of those that don't hear in time.
//!
//! In: the speaker's status. Out: BFD sessions; whether every peer has been told.
//! A BFD session begins after its BGP session (FRR ends a BGP session whose BFD is not up yet) and ends after it: the
//! AdminDown that ends it is no sign of failure (RFC 5882 §3.2), so routes must be gone before. bird takes it for one all the
//! same, and would name it as the reason where it reads it before the BGP message that ended the session.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bgp::bfd::{Bfd, BfdChange, BfdConfig};
use bgp::{Desired, PeerStatus, Speaker, State, Status};
use tokio::sync::watch;

pub(super) type Watched = BTreeMap<String, BfdConfig>;

/// Keeps a BFD session for each BGP session that is established and wants one; until the speaker is gone.
pub(super) async fn keep(
    bfd: Arc<Bfd>,
    mut status: watch::Receiver<Status>,
    mut wanted: watch::Receiver<Watched>,
) {
    let mut have = Watched::new();
    loop {
        let mut up = up_now(&mut status, &mut wanted);
        if have.iter().any(|(name, config)| up.get(name) != Some(config)) {
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
    let up = |name: &str| status.get(name).is_some_and(|peer| peer.state == State::Established);
    wanted.iter().filter(|(name, _)| up(name)).map(|(name, config)| (name.clone(), config.clone())).collect()
}

fn follow(bfd: &Bfd, have: &mut Watched, up: &Watched) {
    have.retain(|name, config| {
        let stays = up.get(name) == Some(config);
        if !stays {
            bfd.remove(name);
        }
        stays
    });
    for (name, config) in up {
        if have.contains_key(name) {
            continue;
        }
        match bfd.add(config.clone()) {
            Ok(()) => drop(have.insert(name.clone(), config.clone())),
            Err(error) => tracing::error!(peer = name, %error, "no BFD beside the BGP session"),
        }
    }
}

/// On the thread of BFD: a peer that is lost takes its BGP session with it.
pub(super) fn changed(speaker: &Speaker, change: &BfdChange) {
    let BfdChange { name, from, to, diagnostic } = change;
    if change.is_loss() {
        tracing::warn!(peer = name, %from, %to, ?diagnostic, "BFD has lost the peer: its BGP session ends");
        speaker.bfd_down(name);
    } else {
        tracing::info!(peer = name, %from, %to, ?diagnostic, "BFD");
    }
}

/// Whether a peer has what it is to have, as far as its connection has taken it.
fn is_told(peer: &PeerStatus, desired: &Desired) -> bool {
    let counts = &peer.counts;
    let known = counts.announced_v4 + counts.announced_v6 + counts.unannounceable;
    peer.state != State::Established
        || (known == desired.of(&peer.name).len() && counts.pending == 0 && counts.unsent_bytes == 0)
}

/// Waits until every established peer has what is desired now, and no longer than `patience`: the names of those that have not.
/// What is desired must have been lessened alone, as a peer is judged by the number of its routes.
pub(super) async fn told(speaker: &Speaker, patience: Duration) -> Vec<String> {
    let (mut status, desired) = (speaker.watch(), speaker.announced());
    let all = status.wait_for(|peers| peers.values().all(|peer| is_told(peer, &desired)));
    if tokio::time::timeout(patience, all).await.is_ok() {
        return Vec::new();
    }
    let peers = speaker.status();
    peers.values().filter(|peer| !is_told(peer, &desired)).map(|peer| peer.name.clone()).collect()
}

/// Ends sessions with those that did not take the withdrawal in time.
pub(super) async fn end_those_not_told(speaker: Arc<Speaker>) {
    for name in told(&speaker, WITHDRAWN_WITHIN).await {
        tracing::error!(peer = name, "the withdrawal was not taken in time: the session is closed");
        speaker.reset(&name, "a withdrawal was not taken in time");
    }
}

/// How much longer than its BGP session a BFD session lives: a router reads in that time why the other ended.
pub(super) const OUTLIVES: Duration = Duration::from_millis(300);
/// An unhealthy forwarder's VIPs are withdrawn by then, or the session is closed.
const WITHDRAWN_WITHIN: Duration = Duration::from_millis(300);
