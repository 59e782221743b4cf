//! The status of peers and sessions, for operators and metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::message::Capability;
use crate::prefix::Family;
use crate::route::Routes;

/// The status of all peers, keyed by peer name.
pub type Status = BTreeMap<String, PeerStatus>;

/// A receiver of status changes. [`Speaker::watch`](crate::Speaker::watch) returns this receiver.
#[derive(Clone, Debug)]
pub struct StatusWatch(pub(crate) watch::Receiver<Status>);

impl StatusWatch {
    /// Returns the current status of all peers. [`StatusWatch::changed`] then waits for changes
    /// that occur after this call.
    #[must_use]
    pub fn look(&mut self) -> Status {
        self.0.borrow_and_update().clone()
    }

    /// Waits for a change after the last call of [`StatusWatch::look`] or `changed`. Returns
    /// `false` if the speaker was dropped, because no change can follow.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

/// A state of the BGP state machine (RFC 4271 §8.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The session is stopped, or waits after a failure.
    #[default]
    Idle,
    /// The speaker is connecting to the peer.
    Connect,
    /// The speaker waits for a connection from the peer.
    Active,
    /// The connection is up, and the peer has not sent an OPEN yet.
    OpenSent,
    /// This speaker has accepted the peer's OPEN and waits for a KEEPALIVE.
    OpenConfirm,
    /// The session is up and routes are exchanged.
    Established,
}

/// Writes the name of the state as in the RFC.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The status of a peer and its session.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PeerStatus {
    /// The name of the peer.
    pub name: String,
    /// The address of the peer.
    pub address: IpAddr,
    /// The configured AS number of the peer.
    pub asn: u32,
    /// The state of the session. If the peer has two connections, this is the state of the more
    /// advanced one.
    pub state: State,
    /// The time at which `state` last changed.
    pub since: SystemTime,
    /// The reason why there is no session, and the time of the failure. `None` if a session is up
    /// or no attempt has failed yet.
    pub last_error: Option<(String, SystemTime)>,
    /// The reason why the last session ended, and when it ended. The value is kept while a later
    /// session is up.
    pub last_end: Option<(String, SystemTime)>,
    /// The negotiated parameters of an established session.
    pub negotiated: Option<Negotiated>,
    /// The counters of an established session.
    pub counts: Counts,
    /// The routes that were sent to the peer in the current session and not withdrawn. Empty
    /// without a session.
    pub routes: Arc<Routes>,
    /// The configured families whose routes the current session cannot carry. Empty without a
    /// session.
    pub blocked: BTreeMap<Family, Blocked>,
    /// The number of sessions established since the peer was added.
    pub established: u64,
    /// The number of consecutive failures, which determines the wait before the next attempt.
    pub failures: u32,
    /// The number of the task that owns this entry. A later peer with the same name has a different
    /// task.
    pub(crate) task: u64,
}

impl PeerStatus {
    pub(crate) fn new(name: &str, address: IpAddr, asn: u32, task: u64) -> Self {
        Self {
            name: name.into(),
            address,
            asn,
            state: State::Idle,
            since: SystemTime::now(),
            last_error: None,
            last_end: None,
            negotiated: None,
            counts: Counts::default(),
            routes: Arc::default(),
            blocked: BTreeMap::new(),
            established: 0,
            failures: 0,
            task,
        }
    }
}

/// The reason why an established session cannot carry routes of a configured family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blocked {
    /// The peer did not offer the family in its OPEN.
    NotNegotiated,
    /// The session has no next hop for the family.
    NoNextHop,
}

/// The counters of one session. The counters start at zero with each session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// The number of IPv4 routes from this speaker that the peer currently has.
    pub announced_v4: usize,
    /// The number of IPv6 routes from this speaker that the peer currently has.
    pub announced_v6: usize,
    /// The number of desired routes that cannot be announced, because the session has no next hop
    /// for them or the peer does not support their family.
    pub unannounceable: usize,
    /// The number of routes and withdrawals that are not encoded into messages yet.
    pub pending: usize,
    /// The number of encoded bytes that the connection has not accepted yet.
    pub unsent_bytes: usize,
    /// The number of messages sent.
    pub messages_sent: u64,
    /// The number of messages received.
    pub messages_received: u64,
    /// The number of prefixes that the peer announced, all of which this speaker ignores.
    pub ignored_prefixes: u64,
    /// The number of UPDATEs with an error that does not end the session (RFC 7606).
    pub tolerated_errors: u64,
    /// The number of route refresh requests from the peer.
    pub refreshes: u64,
}

impl Counts {
    /// Returns `true` if the peer has at least one route from this speaker.
    #[must_use]
    pub fn announced_any(&self) -> bool {
        self.announced_v4 + self.announced_v6 > 0
    }
}

/// The parameters that both sides of a session have negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Negotiated {
    /// The AS number of the peer.
    pub asn: u32,
    /// The router ID of the peer.
    pub router_id: Ipv4Addr,
    /// The negotiated hold time. With a value of zero, the session has no hold timer.
    pub hold: Duration,
    /// The address families that both sides support.
    pub families: Vec<Family>,
    /// `true` if both sides support four-byte AS numbers.
    pub four_byte_asn: bool,
    /// `true` if IPv4 routes may have an IPv6 next hop (RFC 8950).
    pub extended_next_hop: bool,
    /// `true` if the peer supports route refresh.
    pub route_refresh: bool,
    /// `true` if route refreshes have begin and end markers (RFC 7313).
    pub enhanced_route_refresh: bool,
    /// `true` if a Cease is sent as a hard reset, because the peer would otherwise keep the routes
    /// (RFC 8538).
    pub hard_reset: bool,
    /// `true` if both sides support graceful restart (RFC 4724). The peer then keeps the routes
    /// when the connection ends without a NOTIFICATION.
    pub graceful_restart: bool,
    /// The capabilities that this speaker offered but the peer did not offer, such as `ipv4
    /// unicast`. Only capabilities that affect the announced routes are listed: families, IPv6 next
    /// hops for IPv4 routes, and graceful restart.
    pub refused: Vec<&'static str>,
    /// All capabilities in the OPEN of the peer.
    pub peer_capabilities: Vec<Capability>,
}
