//! Writes the status entry and the log lines of one peer.
//!
//! A task that was replaced cannot change the status entry of its successor. A failure that repeats
//! with the same reason is logged at debug level.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::config::PeerConfig;
use crate::session::Session;
use crate::status::{Counts, Negotiated, PeerStatus, State, Status};
use crate::words;

/// The end of a session or of a connection attempt.
#[derive(Debug)]
pub(crate) struct End<'a> {
    pub(crate) why: &'a str,
    /// `true` if this speaker ended the session or attempt on purpose.
    pub(crate) is_planned: bool,
    /// `true` if the session was established.
    pub(crate) was_up: bool,
}

#[derive(Debug)]
pub(crate) struct Report {
    board: Arc<watch::Sender<Status>>,
    own: PeerStatus,
    /// The reason for the last end of a session or attempt, and `true` if this end was planned.
    said: Option<(String, bool)>,
    suspected: Option<String>,
}

impl Report {
    pub(crate) fn new(board: Arc<watch::Sender<Status>>, config: &PeerConfig, task: u64) -> Self {
        let own = PeerStatus::new(&config.name, config.address, config.asn, task);
        board.send_modify(|status| drop(status.insert(config.name.clone(), own.clone())));
        Self { board, own, said: None, suspected: None }
    }

    /// Changes the name of the peer in the status.
    pub(crate) fn rename(&mut self, name: &str) {
        if self.own.name != name {
            // log: A reload changed the name of a router. The session is not affected.
            tracing::info!(peer = name, before = self.own.name, "BGP peer renamed");
            name.clone_into(&mut self.own.name);
        }
    }

    /// Reports the removal of the peer. The status shows the peer under `name` until its session
    /// has ended.
    pub(crate) fn part(&mut self, name: &str, notice: Duration) {
        // log: A reload removed a router. The routes of the session carry the graceful-shutdown
        // community for the time in `after`, then the session ends.
        tracing::info!(change = "router", peer = self.own.name, address = %self.own.address, after = ?notice, "BGP peer removed");
        name.clone_into(&mut self.own.name);
    }

    pub(crate) fn established(&mut self, negotiated: Option<&Negotiated>) {
        self.own.established += 1;
        self.own.last_error = None;
        (self.said, self.suspected) = (None, None);
        let Some(negotiated) = negotiated else { return };
        // log: A session with a router is up. The fields show the negotiated address families and
        // hold time. The field `refused` lists capabilities that the router did not offer. Without
        // a family, the router receives no routes of this family; activate the family on the
        // router.
        tracing::info!(
            change = "router",
            peer = self.own.name,
            address = %self.own.address,
            asn = negotiated.asn,
            router_id = %negotiated.router_id,
            hold_time = words::span(negotiated.hold),
            family = words::list(&negotiated.families),
            refused = (!negotiated.refused.is_empty()).then(|| words::list(&negotiated.refused)),
            "BGP session established"
        );
    }

    /// Reports the end of a session or attempt. `next` is the time until the next attempt.
    pub(crate) fn failed(&mut self, end: &End<'_>, next: Option<Duration>, failures: u32) {
        let now = SystemTime::now();
        self.own.last_error = Some((end.why.into(), now));
        if end.was_up {
            self.own.last_end = Some((end.why.into(), now));
        }
        self.own.failures = failures;
        let (peer, address, why) = (&self.own.name, self.own.address, end.why);
        let retry_in = next.map(words::span);
        let is_known =
            self.said.as_ref().is_some_and(|(said, planned)| said == why && *planned == end.is_planned);
        if is_known {
            tracing::debug!(peer, why, retry_in, failures, "BGP session still down");
        } else if end.is_planned {
            // log: A reload or the router ended the session on purpose, or the router refused a
            // connection shortly after a planned restart.
            tracing::info!(change = "router", peer, %address, why, retry_in, "BGP session ended as planned");
        } else if end.was_up {
            // log: The session with a router ended because of a fault. The field `why` contains the
            // reason, and `retry_in` the time until the next attempt.
            tracing::warn!(change = "router", peer, %address, why, retry_in, "BGP session lost");
        } else {
            // log: An attempt to set up a session failed. Check the router's address, AS number,
            // MD5 key, `hops` and the firewall for port 179 ([Connect
            // routers](../how-to/connect-routers.md)).
            tracing::warn!(change = "router", peer, %address, why, retry_in, "BGP session attempt failed");
        }
        self.said = Some((why.into(), end.is_planned));
    }

    /// Reports the probable cause of a problem while the attempt continues.
    pub(crate) fn suspect(&mut self, why: &str) {
        self.own.last_error = Some((why.into(), SystemTime::now()));
        if self.suspected.as_deref() != Some(why) {
            // log: An attempt to set up a session gets no response, and kernel counters show a
            // probable cause, such as a missing MD5 key. The attempt continues. Fix the setting
            // named in `why`.
            tracing::warn!(peer = self.own.name, address = %self.own.address, why, "BGP peer not responding");
            self.suspected = Some(why.into());
        }
    }

    pub(crate) fn publish(&mut self, config: &PeerConfig, waiting: State, session: Option<&Session>) {
        let state = session.map_or(waiting, Session::state);
        if state != self.own.state {
            (self.own.state, self.own.since) = (state, SystemTime::now());
        }
        if state == State::Established {
            self.own.failures = 0;
        }
        (self.own.address, self.own.asn) = (config.address, config.asn);
        self.own.negotiated = session.and_then(|session| session.negotiated.clone());
        self.own.counts = session.map(Session::counts).unwrap_or_default();
        self.own.routes = session.map(Session::routes).unwrap_or_default();
        self.own.blocked = session.map(Session::blocked).unwrap_or_default();
        let own = &self.own;
        self.board.send_if_modified(|status| match status.get_mut(&own.name) {
            Some(shown) if shown.task == own.task && shown != own => {
                let news = worth_telling(shown) != worth_telling(own);
                shown.clone_from(own);
                news
            }
            _ => false,
        });
    }
}

/// Returns a copy of the status in which counters that must not wake watchers are zero. Watchers
/// wake if the copy differs from the previous copy.
fn worth_telling(status: &PeerStatus) -> PeerStatus {
    let counts = Counts { messages_sent: 0, messages_received: 0, ignored_prefixes: 0, ..status.counts };
    PeerStatus { counts, ..status.clone() }
}
