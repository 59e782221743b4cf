//! Delays the end of a session when its peer is removed from the configuration.
//!
//! The routes of a removed peer carry the graceful-shutdown community for the `notice` time of the
//! peer, which makes routers switch to other routes first. Then the session ends. If the peer has
//! no routes, its session ends immediately.
//!
//! A peer is either in `by_name` or in `parting` of [`Peers`]. After the `notice` time, a timer
//! removes the peer from `parting` and ends its session. If a reload adds the peer again before
//! that time, the peer returns to `by_name` and its session continues.
//!
//! See RFC 8326 §4.

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
    /// The number that identifies this removal. If the peer was added again and removed again, the
    /// timer of the earlier removal must not end the session.
    removal: u64,
}

/// The shared state, other than [`Peers`], that is updated when the session of a removed peer ends.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    callers: Callers,
    board: Arc<watch::Sender<Status>>,
}

impl Ending {
    /// Ends the session of a removed peer immediately.
    pub(super) fn end(&self, peers: &Peers, Running { config, commands, .. }: Running) {
        // Sending fails only if the task has ended.
        drop(commands.send(PeerCommand::Stop(Stop::Deconfigured)));
        self.callers.remove(&config);
        if let Err(error) = peers.listeners.set_key(config.address, None) {
            // log: A router was removed from the configuration, but the kernel did not remove its
            // MD5 key. This matters only if the same address is used again without a key.
            tracing::warn!(peer = config.name, %error, "MD5 key removal failed");
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

    /// Removes a peer, immediately or after its `notice`. `configs` contains the configurations of
    /// the remaining peers.
    pub(super) fn part(&self, peers: &mut Peers, mut running: Running, configs: &[PeerConfig]) {
        let (place, config) = (running.config.place(), &running.config);
        let name = format!("{} (removed)", config.name);
        let is_taken = peers.all().map(|other| &other.config).chain(configs).any(|other| other.name == name);
        let has_routes =
            self.board.borrow().get(&config.name).is_some_and(|peer| peer.counts.announced_any());
        if is_taken || !has_routes || config.times.notice.is_zero() {
            return self.ending().end(peers, running);
        }
        // From now on, another peer can use the name.
        self.board.send_modify(|status| {
            if let Some(peer) = status.remove(&config.name) {
                drop(status.insert(name.clone(), PeerStatus { name: name.clone(), ..peer }));
            }
        });
        // Sending fails only if the task has ended.
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
