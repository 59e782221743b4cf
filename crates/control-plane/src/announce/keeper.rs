//! What goes on beside the routes: BFD for sessions that are up, and the end of those that don't hear in time.
//!
//! In: the speaker's status. Out: BFD sessions; the end of sessions whose peers have not acknowledged.
//! A BFD session begins after its BGP session (FRR ends a BGP session whose BFD is not up yet) and ends after it: the
//! AdminDown that ends it is no sign of failure (RFC 5882 §3.2), so routes must be gone before. bird takes it for one all the
//! same, and would name it as the reason where it reads it before the BGP message that ended the session. So while a BGP
//! session is up its BFD session is not ended for a configuration: other times are agreed on in it, and what needs another
//! one, or none, waits for the next BGP session.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bgp::bfd::{Bfd, BfdChange, BfdConfig};
use bgp::{Speaker, State, StatusWatch};
use tokio::sync::watch;

/// By the peer's address.
pub(super) type Watched = BTreeMap<IpAddr, BfdConfig>;

/// A BFD session that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    config: BfdConfig,
    /// Which BGP session of the peer it is beside.
    session: u64,
}

/// A BGP session that is up, and what is wanted beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Up {
    wanted: Option<BfdConfig>,
    session: u64,
}

/// What becomes of a BFD session.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Ends,
    /// It goes on under this configuration, beside that BGP session.
    Stays(Kept),
}

impl Kept {
    fn fate(&self, up: Option<&Up>) -> Fate {
        match up {
            None => Fate::Ends,
            Some(Up { wanted: Some(wanted), session }) if self.config.keeps_session(wanted) => {
                Fate::Stays(Self { config: wanted.clone(), session: *session })
            }
            Some(up) if up.session == self.session => Fate::Stays(self.clone()),
            Some(_) => Fate::Ends,
        }
    }
}

/// Keeps a BFD session for each BGP session that is established and wants one; until the speaker is gone.
pub(super) async fn keep(bfd: Arc<Bfd>, mut status: StatusWatch, mut wanted: watch::Receiver<Watched>) {
    let mut have = BTreeMap::new();
    loop {
        let mut up = up_now(&mut status, &mut wanted);
        if have.iter().any(|(peer, kept): (&IpAddr, &Kept)| kept.fate(up.get(peer)) == Fate::Ends) {
            tokio::time::sleep(OUTLIVES).await;
            up = up_now(&mut status, &mut wanted);
        }
        follow(&bfd, &mut have, &up);
        tokio::select! {
            true = status.changed() => {}
            Ok(()) = wanted.changed() => {}
            else => return,
        }
    }
}

fn up_now(status: &mut StatusWatch, wanted: &mut watch::Receiver<Watched>) -> BTreeMap<IpAddr, Up> {
    let (status, wanted) = (status.look(), wanted.borrow_and_update());
    let up = status.values().filter(|peer| peer.state == State::Established);
    up.map(|peer| {
        (peer.address, Up { wanted: wanted.get(&peer.address).cloned(), session: peer.established })
    })
    .collect()
}

fn follow(bfd: &Bfd, have: &mut BTreeMap<IpAddr, Kept>, up: &BTreeMap<IpAddr, Up>) {
    have.retain(|peer, kept| match kept.fate(up.get(peer)) {
        Fate::Ends => {
            bfd.remove(&kept.config.name);
            false
        }
        Fate::Stays(next) => {
            if next.config != kept.config
                && let Err(error) = bfd.change(next.config.clone())
            {
                tracing::error!(%peer, %error, "BFD goes on with the times that it had");
            }
            *kept = next;
            true
        }
    });
    for (peer, Up { wanted, session }) in up {
        let Some(config) = wanted.as_ref().filter(|_| !have.contains_key(peer)) else { continue };
        match bfd.add(config.clone()) {
            Ok(()) => drop(have.insert(*peer, Kept { config: config.clone(), session: *session })),
            Err(error) => tracing::error!(%peer, %error, "no BFD beside the BGP session"),
        }
    }
}

/// On the thread of BFD: a peer that is lost takes its BGP session with it.
pub(super) fn changed(speaker: &Speaker, change: &BfdChange) {
    let BfdChange { name, from, to, diagnostic, .. } = change;
    let status = speaker.status();
    let peer = status.values().find(|peer| peer.address.to_string() == *name);
    // A router ends BFD with the BGP session, whose end has been reported.
    let is_up = peer.is_some_and(|peer| peer.state == State::Established);
    let peer = peer.map_or(name, |peer| &peer.name);
    if change.is_loss() {
        speaker.bfd_down(peer);
    }
    if change.is_loss() && is_up {
        tracing::warn!(change = "router", peer, address = name, %from, %to, why = %diagnostic, "BFD has lost the peer: its BGP session ends");
    } else {
        tracing::info!(change = "router", peer, address = name, %from, %to, why = %diagnostic, "BFD");
    }
}

/// Ends sessions with those that did not take the withdrawal in time.
pub(super) async fn end_those_not_told(speaker: Arc<Speaker>) {
    for name in speaker.flushed(WITHDRAWN_WITHIN).await {
        tracing::error!(
            change = "router",
            peer = name,
            "the withdrawal was not acknowledged in time: the session is closed"
        );
        speaker.reset(&name, "a withdrawal was not acknowledged in time");
    }
}

/// How much longer than its BGP session a BFD session lives: a router reads in that time why the other ended.
pub(super) const OUTLIVES: Duration = Duration::from_millis(300);
/// An unhealthy forwarder's VIPs are withdrawn by then, or the session is closed.
const WITHDRAWN_WITHIN: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bfd_session_ends_for_no_configuration_while_its_bgp_session_is_up() {
        let peer = [192, 0, 2, 0].into();
        let config = BfdConfig::new("192.0.2.0", peer);
        let (mut slower, mut elsewhere) = (config.clone(), config.clone());
        (slower.interval, slower.multiplier) = (Duration::from_secs(1), 5);
        elsewhere.local = Some([192, 0, 2, 1].into());
        let kept = Kept { config: config.clone(), session: 1 };
        let fate =
            |wanted: Option<&BfdConfig>, session| kept.fate(Some(&Up { wanted: wanted.cloned(), session }));
        let stays = |config: &BfdConfig, session| Fate::Stays(Kept { config: config.clone(), session });
        assert_eq!(fate(Some(&config), 1), stays(&config, 1));
        assert_eq!(fate(Some(&slower), 1), stays(&slower, 1), "other times are taken over");
        assert_eq!(fate(Some(&elsewhere), 1), stays(&config, 1), "another source waits");
        assert_eq!(fate(None, 1), stays(&config, 1), "and so does none");
        assert_eq!(fate(Some(&config), 2), stays(&config, 2), "a short gap is none");
        assert_eq!(fate(Some(&elsewhere), 2), Fate::Ends);
        assert_eq!(fate(None, 2), Fate::Ends);
        assert_eq!(kept.fate(None), Fate::Ends, "the BGP session is gone");
    }
}
