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
use std::time::{Duration, Instant};

use bgp::bfd::{Bfd, BfdChange, BfdConfig, BfdError};
use bgp::{Speaker, State, StatusWatch};
use tokio::sync::watch;

/// By the peer's address.
pub(super) type Watched = BTreeMap<IpAddr, BfdConfig>;

/// A BFD session that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    config: BfdConfig,
    /// Which BGP session of the peer it is beside; `None`: one of another process, or the next one.
    session: Option<u64>,
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
            // Of another process: the time of a BGP session that restarts is not over.
            None if self.session.is_none() => Fate::Stays(self.clone()),
            None => Fate::Ends,
            Some(Up { wanted: Some(wanted), session }) if self.config.keeps_session(wanted) => {
                Fate::Stays(Self { config: wanted.clone(), session: Some(*session) })
            }
            Some(up) if self.session.is_none_or(|session| session == up.session) => {
                Fate::Stays(Self { session: Some(up.session), ..self.clone() })
            }
            Some(_) => Fate::Ends,
        }
    }
}

/// Keeps a BFD session for each BGP session that is established and wants one.
#[derive(Debug)]
pub(super) struct Keeper {
    bfd: Arc<Bfd>,
    wanted: watch::Receiver<Watched>,
    have: BTreeMap<IpAddr, Kept>,
    /// When sessions of another process have waited long enough for their BGP sessions.
    until: Instant,
}

impl Keeper {
    /// `taken`: sessions of another process, which wait for their BGP sessions for so long.
    pub(super) fn new(
        bfd: Arc<Bfd>,
        taken: Watched,
        patience: Duration,
        wanted: watch::Receiver<Watched>,
    ) -> Self {
        let kept = |(peer, config)| (peer, Kept { config, session: None });
        Self { bfd, wanted, have: taken.into_iter().map(kept).collect(), until: Instant::now() + patience }
    }

    /// Until the speaker is gone.
    pub(super) async fn keep(mut self, mut status: StatusWatch) {
        loop {
            let mut up = up_now(&mut status, &mut self.wanted);
            if self.have.iter().any(|(peer, kept)| kept.fate(up.get(peer)) == Fate::Ends) {
                tokio::time::sleep(OUTLIVES).await;
                up = up_now(&mut status, &mut self.wanted);
            }
            follow(&self.bfd, &mut self.have, &up);
            let waits = self.have.values().any(|kept| kept.session.is_none());
            tokio::select! {
                true = status.changed() => {}
                Ok(()) = self.wanted.changed() => {}
                () = tokio::time::sleep_until(self.until.into()), if waits => self.give_up(),
                else => return,
            }
        }
    }

    /// No BGP session came back to these: as after the end of any other one.
    fn give_up(&mut self) {
        self.have.values_mut().for_each(|kept| _ = kept.session.get_or_insert(NONE));
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
            Ok(()) => {
                let kept = Kept { config: config.clone(), session: Some(*session) };
                drop(have.insert(*peer, kept));
            }
            // They are another process's from now on.
            Err(BfdError::Gone) => {}
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
/// Sessions of a peer are counted from 1.
const NONE: u64 = 0;
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
        let kept = Kept { config: config.clone(), session: Some(1) };
        let fate =
            |wanted: Option<&BfdConfig>, session| kept.fate(Some(&Up { wanted: wanted.cloned(), session }));
        let stays = |config: &BfdConfig, session| {
            Fate::Stays(Kept { config: config.clone(), session: Some(session) })
        };
        assert_eq!(fate(Some(&config), 1), stays(&config, 1));
        assert_eq!(fate(Some(&slower), 1), stays(&slower, 1), "other times are taken over");
        assert_eq!(fate(Some(&elsewhere), 1), stays(&config, 1), "another source waits");
        assert_eq!(fate(None, 1), stays(&config, 1), "and so does none");
        assert_eq!(fate(Some(&config), 2), stays(&config, 2), "a short gap is none");
        assert_eq!(fate(Some(&elsewhere), 2), Fate::Ends);
        assert_eq!(fate(None, 2), Fate::Ends);
        assert_eq!(kept.fate(None), Fate::Ends, "the BGP session is gone");
    }

    #[test]
    fn a_bfd_session_of_another_process_waits_for_its_bgp_session_and_no_longer() {
        let peer: IpAddr = [192, 0, 2, 0].into();
        let config = BfdConfig::new("192.0.2.0", peer);
        let bfd = Arc::new(Bfd::start(bgp::bfd::BfdPorts::default(), |_| ()).unwrap());
        let (_wants, wanted) = watch::channel(Watched::new());
        let taken = Watched::from([(peer, config.clone())]);
        let mut keeper = Keeper::new(bfd, taken, Duration::ZERO, wanted);
        let waiting = keeper.have[&peer].clone();
        assert_eq!(waiting.fate(None), Fate::Stays(waiting.clone()), "it restarts");
        for wanted in [None, Some(config.clone())] {
            let beside = Kept { session: Some(3), ..waiting.clone() };
            assert_eq!(
                waiting.fate(Some(&Up { wanted, session: 3 })),
                Fate::Stays(beside),
                "as the same session"
            );
        }
        keeper.give_up();
        assert_eq!(keeper.have[&peer].fate(None), Fate::Ends, "none came");
    }
}
