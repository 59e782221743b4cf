//! Hands BFD sessions over from the old process to the new process.
//!
//! When a router loses a BFD session, it treats this machine as failed, even while it waits for BGP
//! to restart (RFC 5882 §4.3.2). BFD sessions are therefore handed over before BGP sessions, and
//! the router must not notice the change. Bird and FRR both keep a BFD session while its BGP
//! session restarts. Invariant: only one process owns the sessions. A process that released the
//! sessions neither sends nor receives BFD packets.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bgp::bfd::{Bfd, BfdChange, BfdPorts, HandedBfd};
use bgp::{PeerConfig, PeerStatus, Speaker, State};

use super::{AnnounceError, Announcer, keeper};
use crate::announce::keeper::Watched;

/// BFD sessions, which may run before the BGP speaker exists.
#[derive(Debug)]
pub(super) struct Liveness {
    pub(super) bfd: Arc<Bfd>,
    /// The speaker that is notified when a BFD session is lost. The cell is empty until the speaker
    /// exists.
    speaker: Arc<OnceLock<Weak<Speaker>>>,
    /// The sessions that were taken over from the previous process.
    pub(super) taken: Watched,
}

impl Liveness {
    pub(super) fn start() -> Result<Self, AnnounceError> {
        let (speaker, changed) = reporting();
        let bfd = Bfd::start(BfdPorts::default(), changed).map_err(AnnounceError::Thread)?;
        Ok(Self { bfd: Arc::new(bfd), speaker, taken: Watched::new() })
    }

    fn take_over(handed: HandedBfd) -> Result<Self, AnnounceError> {
        let (speaker, changed) = reporting();
        let taken = handed.configs().map(|config| (config.peer, config.clone())).collect();
        let bfd = Bfd::take_over(BfdPorts::default(), handed, changed).map_err(AnnounceError::Bfd)?;
        Ok(Self { bfd: Arc::new(bfd), speaker, taken })
    }

    pub(super) fn belongs_to(&self, speaker: &Arc<Speaker>) {
        // `set` fails only if the speaker was set already.
        _ = self.speaker.set(Arc::downgrade(speaker));
    }
}

fn reporting() -> (Arc<OnceLock<Weak<Speaker>>>, impl FnMut(BfdChange) + Send) {
    let speaker = Arc::<OnceLock<Weak<Speaker>>>::default();
    let hears = Arc::clone(&speaker);
    let changed = move |change: BfdChange| match hears.get().map(Weak::upgrade) {
        Some(Some(speaker)) => keeper::changed(&speaker, &change),
        Some(None) => {}
        None => {
            let BfdChange { name, from, to, diagnostic, .. } = change;
            // log: The state of a BFD session changed. No action is needed.
            tracing::info!(change = "router", peer = name, %from, %to, why = %diagnostic, "BFD state changed");
        }
    };
    (speaker, changed)
}

impl Announcer {
    /// Returns the reason why routers would drop routes during a handover to another process, or
    /// `None` if they would keep all routes.
    #[must_use]
    pub fn loses_routes(&self) -> Option<String> {
        let running = self.running.as_ref()?;
        let restarts = |peer: &PeerConfig| peer.graceful_restart.is_some();
        if !self.plan.peers.iter().all(restarts) {
            return Some("routers would drop the routes of this machine; set bgp.graceful_restart and reload, or drain and restart".into());
        }
        let status = running.speaker.status();
        // A session that was established before a reload enabled graceful restart has not
        // negotiated graceful restart. A session without graceful restart is restarted soon after
        // the reload.
        let agreed = |peer: &PeerStatus| peer.negotiated.as_ref().is_some_and(|both| both.graceful_restart);
        let other = status.values().find(|peer| peer.state == State::Established && !agreed(peer));
        if let Some(peer) = other {
            return Some(format!(
                "router {} did not negotiate graceful restart (RFC 4724) in this session; drain and restart instead",
                peer.name
            ));
        }
        let (name, spare) = running.bfd.as_ref()?.least_spare()?;
        let peer = status.values().find(|peer| peer.address.to_string() == name);
        let peer = peer.map_or(&name, |peer| &peer.name);
        (spare < SILENT_FOR).then(|| too_impatient(peer, spare))
    }

    /// Returns `true` if the speaker runs and BFD sessions exist or are configured.
    #[must_use]
    pub fn has_bfd(&self) -> bool {
        let running = self.running.as_ref().and_then(|running| running.bfd.as_ref());
        running.is_some_and(|bfd| !self.plan.bfd.is_empty() || !bfd.status().is_empty())
    }

    /// Releases all BFD sessions so that another process can take them over. BGP sessions are not
    /// affected. Returns `None` if no sessions exist.
    #[must_use]
    pub fn let_bfd_go(&mut self) -> Option<HandedBfd> {
        let running = self.running.as_mut()?;
        if let Some(keeper) = running.keeper.take() {
            keeper.abort();
        }
        running.bfd.as_ref()?.let_go()
    }

    /// Takes over BFD sessions that another process released, or that this process released itself.
    /// The BFD sessions belong to existing BGP sessions, or to BGP sessions that
    /// [`Announcer::resume`] opens. If a BFD session ends before [`Announcer::keep_bfd`] is called,
    /// the router is not notified.
    ///
    /// # Errors
    /// Returns [`AnnounceError::Bfd`] if the BFD thread cannot be created, or a socket does not
    /// belong to its session.
    pub fn take_bfd(&mut self, handed: HandedBfd) -> Result<(), AnnounceError> {
        let liveness = Liveness::take_over(handed)?;
        match &mut self.running {
            Some(running) => running.watch(liveness, &self.plan),
            None => self.liveness = Some(liveness),
        }
        Ok(())
    }

    /// Makes this process the permanent owner of the BFD sessions that it has taken over.
    pub fn keep_bfd(&self) {
        let running = self.running.as_ref().and_then(|running| running.bfd.as_ref());
        running.into_iter().chain(self.liveness.as_ref().map(|early| &early.bfd)).for_each(|bfd| bfd.keep());
    }
}

/// Returns how long a BFD session of the previous process waits for its BGP session to be
/// established again. After this time, routers have dropped the routes of the previous process
/// anyway.
pub(super) fn patience(peers: &[PeerConfig]) -> Duration {
    let seconds = peers.iter().filter_map(|peer| peer.graceful_restart).map(|restart| restart.seconds);
    Duration::from_secs(seconds.max().unwrap_or(0).into())
}

fn too_impatient(peer: &str, spare: Duration) -> String {
    format!(
        "BFD with router {peer} tolerates {} ms of silence, but a handover may take {} ms; raise bfd.interval or \
         bfd.multiplier and reload, or drain and restart",
        spare.as_millis(),
        SILENT_FOR.as_millis()
    )
}

/// The time without BFD packets that a handover may take. Measured handovers took 0.7 to 12 ms on
/// two shared processors.
const SILENT_FOR: Duration = Duration::from_millis(100);
