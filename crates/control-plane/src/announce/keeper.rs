//! Runs BFD sessions for established BGP sessions, and closes BGP sessions with routers that do not
//! acknowledge a withdrawal.
//!
//! A BFD session starts after its BGP session, because FRR ends a BGP session whose BFD session is
//! not up. The keeper closes a BFD session only after its BGP session has ended. AdminDown in BFD
//! does not mean a failure (RFC 5882 §3.2), but bird treats it as a failure and would report it as
//! the reason why the BGP session ended. A reload therefore never ends the BFD session of an
//! established BGP session. The reload negotiates new timers within the session, and all other
//! changes take effect with the next BGP session.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgp::bfd::{Bfd, BfdChange, BfdConfig, BfdError};
use bgp::{Speaker, State, StatusWatch};
use tokio::sync::watch;

/// The configured BFD settings by peer address.
pub(super) type Watched = BTreeMap<IpAddr, BfdConfig>;

/// A running BFD session.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    config: BfdConfig,
    /// The number of the BGP session to which the BFD session belongs. The value is `None` if the
    /// BFD session comes from the previous process and still waits for its BGP session.
    session: Option<u64>,
}

/// An established BGP session, with the BFD settings that the configuration requires for it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Up {
    wanted: Option<BfdConfig>,
    session: u64,
}

/// The action to take for a BFD session.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Ends,
    /// The BFD session continues with these settings and belongs to this BGP session.
    Stays(Kept),
}

impl Kept {
    fn fate(&self, up: Option<&Up>) -> Fate {
        match up {
            // The BFD session comes from the previous process, and its BGP session may still
            // restart.
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

/// Runs a BFD session for each established BGP session that has a BFD configuration.
#[derive(Debug)]
pub(super) struct Keeper {
    bfd: Arc<Bfd>,
    wanted: watch::Receiver<Watched>,
    have: BTreeMap<IpAddr, Kept>,
    /// The time until which BFD sessions of the previous process wait for their BGP sessions.
    until: Instant,
}

impl Keeper {
    /// Creates a keeper. `taken` contains the BFD sessions of the previous process. Each of these
    /// BFD sessions waits up to `patience` for its BGP session.
    pub(super) fn new(
        bfd: Arc<Bfd>,
        taken: Watched,
        patience: Duration,
        wanted: watch::Receiver<Watched>,
    ) -> Self {
        let kept = |(peer, config)| (peer, Kept { config, session: None });
        Self { bfd, wanted, have: taken.into_iter().map(kept).collect(), until: Instant::now() + patience }
    }

    /// Starts and ends BFD sessions until the speaker is dropped.
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

    /// Ends the wait for BGP sessions. BFD sessions of the previous process that still have no BGP
    /// session end now.
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
                // log: The new BFD timers of a peer could not be set, so the old timers stay in
                // use. Restart the process to apply the new timers.
                tracing::error!(%peer, %error, "BFD timer change failed");
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
            // A new process has taken over the BFD sessions.
            Err(BfdError::Gone) => {}
            // log: The socket of a BFD session could not be opened, for example because port 3784
            // is in use. Without BFD, a failure of this peer is detected only when the BGP hold
            // time expires.
            Err(error) => tracing::error!(%peer, %error, "BFD session start failed"),
        }
    }
}

/// Logs a state change of a BFD session. If the BFD session was lost, its BGP session ends. This
/// function runs on the BFD thread.
pub(super) fn changed(speaker: &Speaker, change: &BfdChange) {
    let BfdChange { name, from, to, diagnostic, .. } = change;
    let status = speaker.status();
    let peer = status.values().find(|peer| peer.address.to_string() == *name);
    // A router closes its BFD session when its BGP session ends, and the end of the BGP session was
    // logged already.
    let is_up = peer.is_some_and(|peer| peer.state == State::Established);
    let peer = peer.map_or(name, |peer| &peer.name);
    if change.is_loss() {
        speaker.bfd_down(peer);
    }
    if change.is_loss() && is_up {
        // log: BFD detected that a router is unreachable, and the BGP session with the router ends.
        // Check the link to the router and the BFD configuration of the router.
        tracing::warn!(change = "router", peer, address = name, %from, %to, why = %diagnostic, "BFD session lost");
    } else {
        // log: The state of a BFD session changed. No action is needed.
        tracing::info!(change = "router", peer, address = name, %from, %to, why = %diagnostic, "BFD state changed");
    }
}

/// Closes the BGP sessions with routers that did not acknowledge the withdrawal in time.
pub(super) async fn end_those_not_told(speaker: Arc<Speaker>) {
    for name in speaker.flushed(WITHDRAWN_WITHIN).await {
        // log: A router did not acknowledge a withdrawal in time, so its BGP session was closed.
        // Check whether the router is overloaded. The session is opened again automatically.
        tracing::error!(change = "router", peer = name, "BGP session closed by withdrawal timeout");
        speaker.reset(&name, "withdrawal not acknowledged in time");
    }
}

/// The time for which a BFD session continues after its BGP session ended. The router therefore
/// processes the end of the BGP session before the end of the BFD session.
pub(super) const OUTLIVES: Duration = Duration::from_millis(300);
/// A session number that no BGP session has. The BGP sessions of a peer are numbered from 1.
const NONE: u64 = 0;
/// The time limit for routers to acknowledge the withdrawals after a forwarder fault.
const WITHDRAWN_WITHIN: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfd_session_survives_reloads_while_bgp_is_up() {
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
        assert_eq!(fate(Some(&slower), 1), stays(&slower, 1), "new timers apply within the session");
        assert_eq!(
            fate(Some(&elsewhere), 1),
            stays(&config, 1),
            "a new source address applies to the next session"
        );
        assert_eq!(fate(None, 1), stays(&config, 1), "BFD is removed when the BGP session ends");
        assert_eq!(fate(Some(&config), 2), stays(&config, 2), "a short gap between BGP sessions");
        assert_eq!(fate(Some(&elsewhere), 2), Fate::Ends);
        assert_eq!(fate(None, 2), Fate::Ends);
        assert_eq!(kept.fate(None), Fate::Ends, "the BGP session ended");
    }

    #[test]
    fn bfd_session_of_previous_process_waits_for_bgp() {
        let peer: IpAddr = [192, 0, 2, 0].into();
        let config = BfdConfig::new("192.0.2.0", peer);
        let bfd = Arc::new(Bfd::start(bgp::bfd::BfdPorts::default(), |_| ()).unwrap());
        let (_wants, wanted) = watch::channel(Watched::new());
        let taken = Watched::from([(peer, config.clone())]);
        let mut keeper = Keeper::new(bfd, taken, Duration::ZERO, wanted);
        let waiting = keeper.have[&peer].clone();
        assert_eq!(waiting.fate(None), Fate::Stays(waiting.clone()), "BGP may still restart");
        for wanted in [None, Some(config.clone())] {
            let beside = Kept { session: Some(3), ..waiting.clone() };
            assert_eq!(
                waiting.fate(Some(&Up { wanted, session: 3 })),
                Fate::Stays(beside),
                "continues as the same session"
            );
        }
        keeper.give_up();
        assert_eq!(keeper.have[&peer].fate(None), Fate::Ends, "no BGP session within the time limit");
    }
}
