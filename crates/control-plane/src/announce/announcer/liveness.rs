//! BFD between two processes: it goes over before the BGP sessions that it is beside, and comes before they do.
//!
//! In: the sessions of a speaker that is about to leave. Out: the same in another process, or in this one again.
//! A router takes the loss of BFD for a loss of the machine, while it waits for a BGP session that restarts too (RFC 5882 §4.3.2), so
//! its BFD session must not see an end: bird and FRR both keep it over the end of a BGP session that restarts.
//! Invariant: one process at a time has the sessions; who has let go of them hears and says nothing.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bgp::bfd::{Bfd, BfdChange, BfdPorts, HandedBfd};
use bgp::{PeerConfig, PeerStatus, Speaker, State};

use super::{AnnounceError, Announcer, keeper};
use crate::announce::keeper::Watched;

/// BFD at work, also before there is a speaker.
#[derive(Debug)]
pub(super) struct Liveness {
    pub(super) bfd: Arc<Bfd>,
    /// Who hears of a loss, once it is there.
    speaker: Arc<OnceLock<Weak<Speaker>>>,
    /// What came from another process.
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
        // It is asked once.
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
            tracing::info!(change = "router", peer = name, %from, %to, why = %diagnostic, "BFD");
        }
    };
    (speaker, changed)
}

impl Announcer {
    /// Why a hand-over to another process would cost routes, in words; `None`: it costs none.
    #[must_use]
    pub fn loses_routes(&self) -> Option<String> {
        let running = self.running.as_ref()?;
        let restarts = |peer: &PeerConfig| peer.graceful_restart.is_some();
        if !self.plan.peers.iter().all(restarts) {
            return Some("routers would drop the routes of this machine: set bgp.graceful_restart and reload, or drain and restart".into());
        }
        let status = running.speaker.status();
        // A session of before a reload that asks for it has not agreed, and restarts soon.
        let agreed = |peer: &PeerStatus| peer.negotiated.as_ref().is_some_and(|both| both.graceful_restart);
        let other = status.values().find(|peer| peer.state == State::Established && !agreed(peer));
        if let Some(peer) = other {
            return Some(format!(
                "router {} has not agreed in this session to keep routes over a restart (RFC 4724): drain and restart",
                peer.name
            ));
        }
        let (name, spare) = running.bfd.as_ref()?.least_spare()?;
        let peer = status.values().find(|peer| peer.address.to_string() == name);
        let peer = peer.map_or(&name, |peer| &peer.name);
        (spare < SILENT_FOR).then(|| too_impatient(peer, spare))
    }

    /// Whether there are BFD sessions, or are to be.
    #[must_use]
    pub fn has_bfd(&self) -> bool {
        let running = self.running.as_ref().and_then(|running| running.bfd.as_ref());
        running.is_some_and(|bfd| !self.plan.bfd.is_empty() || !bfd.status().is_empty())
    }

    /// Lets go of all BFD sessions for another process, whatever becomes of BGP; `None`: there is nothing to let go of.
    #[must_use]
    pub fn let_bfd_go(&mut self) -> Option<HandedBfd> {
        let running = self.running.as_mut()?;
        if let Some(keeper) = running.keeper.take() {
            keeper.abort();
        }
        running.bfd.as_ref()?.let_go()
    }

    /// Goes on with BFD sessions that another process, or this one before, has let go of: at once, and beside BGP sessions that are
    /// there or that [`Announcer::resume`] brings. Until [`Announcer::keep_bfd`] no router hears of their end.
    ///
    /// # Errors
    /// The system has no thread left, or a socket is not its session's.
    pub fn take_bfd(&mut self, handed: HandedBfd) -> Result<(), AnnounceError> {
        let liveness = Liveness::take_over(handed)?;
        match &mut self.running {
            Some(running) => running.watch(liveness, &self.plan),
            None => self.liveness = Some(liveness),
        }
        Ok(())
    }

    /// The BFD sessions are this process's.
    pub fn keep_bfd(&self) {
        let running = self.running.as_ref().and_then(|running| running.bfd.as_ref());
        running.into_iter().chain(self.liveness.as_ref().map(|early| &early.bfd)).for_each(|bfd| bfd.keep());
    }
}

/// How long a BFD session of another process waits for a BGP session: routers have forgotten the routes by then.
pub(super) fn patience(peers: &[PeerConfig]) -> Duration {
    let seconds = peers.iter().filter_map(|peer| peer.graceful_restart).map(|restart| restart.seconds);
    Duration::from_secs(seconds.max().unwrap_or(0).into())
}

fn too_impatient(peer: &str, spare: Duration) -> String {
    format!(
        "BFD with router {peer} spares {} ms of silence, and a hand-over may take {} ms: a longer bfd.interval or a larger \
         bfd.multiplier and a reload, or drain and restart",
        spare.as_millis(),
        SILENT_FOR.as_millis()
    )
}

/// BFD was silent for 0.7 to 12 ms while it went over, on two processors that others used too.
const SILENT_FOR: Duration = Duration::from_millis(100);
