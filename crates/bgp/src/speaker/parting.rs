//! Peers that were removed while they had routes of us: these are marked for a while, so that routers choose others first.
//!
//! In: a peer that goes. Out: its session's end, at once when it has no route, else after its `notice`.
//! Invariant: a peer's place is in `by_name` or in `parting` of [`Peers`], and what takes it out decides what becomes of it:
//! the timer here, or a reload that has the peer again.
//! Source: RFC 8326 §4.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::watch;
use tokio::time::sleep;

use super::{Peers, Place, Running, Speaker};
use crate::config::PeerConfig;
use crate::listener::Callers;
use crate::peer::PeerCommand;
use crate::session::Stop;
use crate::status::{PeerStatus, Status};

#[derive(Debug)]
pub(super) struct Parting {
    pub(super) running: Running,
    /// Which removal: the peer may come back, and go again.
    removal: u64,
}

/// What the end of a peer touches beside [`Peers`].
#[derive(Clone, Debug)]
pub(super) struct Ending {
    callers: Callers,
    board: Arc<watch::Sender<Status>>,
}

impl Ending {
    /// At once.
    pub(super) fn end(&self, peers: &Peers, Running { config, commands, .. }: Running) {
        // It fails only when the task has ended.
        drop(commands.send(PeerCommand::Stop(Stop::Deconfigured)));
        self.callers.remove(&config);
        if let Err(error) = peers.listeners.set_key(config.address, None) {
            tracing::warn!(peer = config.name, %error, "the MD5 key stays set");
        }
        self.board.send_modify(|status| drop(status.remove(&config.name)));
    }

    async fn end_later(self, peers: Weak<Mutex<Peers>>, place: Place, removal: u64, config: PeerConfig) {
        sleep(config.times.notice).await;
        let Some(peers) = peers.upgrade() else { return };
        let mut peers = peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.parting.get(&place).is_some_and(|parting| parting.removal == removal)
            && let Some(Parting { running, .. }) = peers.parting.remove(&place)
        {
            self.end(&peers, running);
        }
    }
}

impl Speaker {
    pub(super) fn ending(&self) -> Ending {
        Ending { callers: self.callers.clone(), board: Arc::clone(&self.board) }
    }

    /// `configs`: who the peers are from now on.
    pub(super) fn part(&self, peers: &mut Peers, mut running: Running, configs: &[PeerConfig]) {
        let (place, config) = (running.config.place(), &running.config);
        let name = format!("{} (removed)", config.name);
        let is_taken = peers.all().map(|other| &other.config).chain(configs).any(|other| other.name == name);
        let has_routes =
            self.board.borrow().get(&config.name).is_some_and(|peer| peer.counts.announced_any());
        if is_taken || !has_routes || config.times.notice.is_zero() {
            return self.ending().end(peers, running);
        }
        // Its name is free for another from now on.
        self.board.send_modify(|status| {
            if let Some(peer) = status.remove(&config.name) {
                drop(status.insert(name.clone(), PeerStatus { name: name.clone(), ..peer }));
            }
        });
        // It fails only when the task has ended.
        drop(running.commands.send(PeerCommand::Part(name.clone())));
        running.config.name = name;
        peers.next_task += 1;
        let removal = peers.next_task;
        let later =
            self.ending().end_later(Arc::downgrade(&self.peers), place, removal, running.config.clone());
        drop(self.runtime.spawn(later));
        peers.parting.insert(place, Parting { running, removal });
    }
}
