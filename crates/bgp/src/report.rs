//! What a peer's task lets others see: its entry in the status, and its log lines.
//!
//! Invariant: a task that was replaced changes nothing of its successor's entry; the same failure again is logged at debug level.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::config::PeerConfig;
use crate::session::Session;
use crate::status::{Counts, Negotiated, PeerStatus, State, Status};
use crate::words;

/// The end of a session, or of an attempt at one.
#[derive(Debug)]
pub(crate) struct End<'a> {
    pub(crate) why: &'a str,
    /// We wanted it so.
    pub(crate) is_planned: bool,
    /// It was established.
    pub(crate) was_up: bool,
}

#[derive(Debug)]
pub(crate) struct Report {
    board: Arc<watch::Sender<Status>>,
    own: PeerStatus,
    /// The last failure, and whether it was one that we wanted.
    said: Option<(String, bool)>,
    suspected: Option<String>,
}

impl Report {
    pub(crate) fn new(board: Arc<watch::Sender<Status>>, config: &PeerConfig, task: u64) -> Self {
        let own = PeerStatus::new(&config.name, config.address, config.asn, task);
        board.send_modify(|status| drop(status.insert(config.name.clone(), own.clone())));
        Self { board, own, said: None, suspected: None }
    }

    /// The operator calls it otherwise now.
    pub(crate) fn rename(&mut self, name: &str) {
        if self.own.name != name {
            tracing::info!(peer = name, before = self.own.name, "peer renamed");
            name.clone_into(&mut self.own.name);
        }
    }

    /// It is no peer any more, and shown under this name until its session has ended.
    pub(crate) fn part(&mut self, name: &str, notice: Duration) {
        tracing::info!(change = "router", peer = self.own.name, address = %self.own.address, after = ?notice, "peer removed: its session ends");
        name.clone_into(&mut self.own.name);
    }

    pub(crate) fn established(&mut self, negotiated: Option<&Negotiated>) {
        self.own.established += 1;
        self.own.last_error = None;
        (self.said, self.suspected) = (None, None);
        let Some(negotiated) = negotiated else { return };
        tracing::info!(
            change = "router",
            peer = self.own.name,
            address = %self.own.address,
            asn = negotiated.asn,
            router_id = %negotiated.router_id,
            hold_time = words::span(negotiated.hold),
            families = words::list(&negotiated.families),
            "BGP session established"
        );
    }

    /// `next`: after so long the peer is dialled again.
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
            tracing::debug!(peer, why, retry_in, failures, "no BGP session, as before");
        } else if end.is_planned {
            tracing::info!(change = "router", peer, %address, why, retry_in, "no BGP session, as ordered");
        } else if end.was_up {
            tracing::warn!(change = "router", peer, %address, why, retry_in, "BGP session lost");
        } else {
            tracing::warn!(change = "router", peer, %address, why, retry_in, "no BGP session");
        }
        self.said = Some((why.into(), end.is_planned));
    }

    /// Why an attempt that goes on may fail.
    pub(crate) fn suspect(&mut self, why: &str) {
        self.own.last_error = Some((why.into(), SystemTime::now()));
        if self.suspected.as_deref() != Some(why) {
            tracing::warn!(peer = self.own.name, address = %self.own.address, why, "no BGP session yet");
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

/// Messages that come and go wake nobody.
fn worth_telling(status: &PeerStatus) -> PeerStatus {
    let counts = Counts { messages_sent: 0, messages_received: 0, ignored_prefixes: 0, ..status.counts };
    PeerStatus { counts, ..status.clone() }
}
