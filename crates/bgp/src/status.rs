//! What a peer's session is like, for operators and metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::message::Capability;
use crate::prefix::Family;

/// All peers, by their names.
pub type Status = BTreeMap<String, PeerStatus>;

/// The status as it changes: [`Speaker::watch`](crate::Speaker::watch).
#[derive(Clone, Debug)]
pub struct StatusWatch(pub(crate) watch::Receiver<Status>);

impl StatusWatch {
    /// All peers, as they are now. [`StatusWatch::changed`] waits for what comes after.
    #[must_use]
    pub fn look(&mut self) -> Status {
        self.0.borrow_and_update().clone()
    }

    /// Waits until something has changed since the last look, or since the last change that this has waited for. `false`: the
    /// speaker is gone, and nothing will.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

/// A state of RFC 4271 §8.2.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Stopped, or waiting after a failure.
    #[default]
    Idle,
    /// Dialling.
    Connect,
    /// Waiting for the peer to dial.
    Active,
    /// Connected; the peer has said nothing yet.
    OpenSent,
    /// The peer's OPEN is accepted.
    OpenConfirm,
    /// Routes are exchanged.
    Established,
}

/// Its name in the RFC.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A peer and its session.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Its AS number, as configured.
    pub asn: u32,
    /// The furthest of its connections.
    pub state: State,
    /// Since when.
    pub since: SystemTime,
    /// Why there is no session, and since when; `None`: there is one, or nothing has failed yet.
    pub last_error: Option<(String, SystemTime)>,
    /// Why the last session ended, and when; it stays while another one is up.
    pub last_end: Option<(String, SystemTime)>,
    /// What an established session agreed on.
    pub negotiated: Option<Negotiated>,
    /// What an established session exchanged.
    pub counts: Counts,
    /// Sessions established since the peer was added.
    pub established: u64,
    /// Failures in a row: what the wait before the next attempt comes from.
    pub failures: u32,
    /// The task that it is about: a name can be used again.
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
            established: 0,
            failures: 0,
            task,
        }
    }
}

/// Of one session, from its begin on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// IPv4 routes that the peer has from us now.
    pub announced_v4: usize,
    /// IPv6 routes that the peer has from us now.
    pub announced_v6: usize,
    /// Routes to be announced that have no next hop in this session, or a family that the peer does not speak.
    pub unannounceable: usize,
    /// Routes said to the peer but not written to its connection yet, and withdrawals.
    pub pending: usize,
    /// Bytes that wait for the connection to take them.
    pub unsent_bytes: usize,
    /// Messages sent.
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Prefixes that the peer announced; none was kept.
    pub ignored_prefixes: u64,
    /// UPDATEs with an error that does not end a session (RFC 7606).
    pub tolerated_errors: u64,
    /// Requests of the peer to say all routes again.
    pub refreshes: u64,
}

impl Counts {
    /// Whether the peer has a route from us.
    #[must_use]
    pub fn announced_any(&self) -> bool {
        self.announced_v4 + self.announced_v6 > 0
    }
}

/// What both ends agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Negotiated {
    /// The peer's AS number.
    pub asn: u32,
    /// The peer's identifier.
    pub router_id: Ipv4Addr,
    /// Silence that ends the session; zero: none does.
    pub hold: Duration,
    /// Families that both speak.
    pub families: Vec<Family>,
    /// AS numbers have four bytes.
    pub four_byte_asn: bool,
    /// IPv4 routes may have an IPv6 next hop (RFC 8950).
    pub extended_next_hop: bool,
    /// The peer may ask for all routes again.
    pub route_refresh: bool,
    /// And gets begin and end of the answer (RFC 7313).
    pub enhanced_route_refresh: bool,
    /// A Cease is sent as a hard reset, or the peer would keep our routes (RFC 8538).
    pub hard_reset: bool,
    /// Both have said that they know graceful restarts (RFC 4724): the peer keeps our routes when the session ends without a word.
    pub graceful_restart: bool,
    /// All that the peer's OPEN says.
    pub peer_capabilities: Vec<Capability>,
}
