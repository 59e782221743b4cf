//! BGP peers and announced routes.

use std::net::{IpAddr, Ipv4Addr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::serving::Family;

/// The state of all BGP announcements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BgpView {
    /// The AS number of this machine, or null if the machine has no peers and announces no routes.
    pub asn: Option<u32>,
    /// The BGP identifier of this machine.
    pub router_id: Option<Ipv4Addr>,
    /// The stage of a machine drain.
    pub stage: DrainStage,
    /// All BGP peers of this machine.
    pub peers: Vec<BgpPeerRow>,
    /// All VIPs of this machine, with one row for each address family.
    pub vips: Vec<AnnouncedVip>,
    /// Warnings for the operator. Each warning is one sentence.
    pub warnings: Vec<String>,
}

/// The stage of a machine drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DrainStage {
    /// The machine is not draining.
    #[default]
    Serving,
    /// Routes are announced with the graceful-shutdown community and will be withdrawn.
    Leaving,
    /// Routes are withdrawn. Packets that still arrive are forwarded.
    Left,
}

/// The state of a BGP session (RFC 4271 §8.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names are defined in the RFC")]
pub enum SessionState {
    Idle,
    Connect,
    Active,
    OpenSent,
    OpenConfirm,
    Established,
}

/// The state of a BFD session (RFC 5880 §6.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BfdState {
    /// The session is administratively down.
    AdminDown,
    /// The session is down.
    Down,
    /// This machine receives packets from the peer, but the peer has not confirmed that it receives
    /// packets from this machine.
    Init,
    /// This machine and the peer receive packets from each other.
    Up,
    /// The BFD session has not started, because the BGP session is not up.
    Waiting,
}

/// A BGP peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BgpPeerRow {
    /// The name of the peer.
    pub name: String,
    /// The address of the peer.
    pub address: IpAddr,
    /// The configured AS number of the peer.
    pub asn: u32,
    /// The state of the BGP session, which is `Idle`, `Connect`, `Active`, `OpenSent`,
    /// `OpenConfirm` or `Established` (RFC 4271).
    pub state: SessionState,
    /// The time since the state last changed, in seconds.
    pub since_seconds: f64,
    /// The number of sessions established since the start of the process.
    pub established: u64,
    /// The number of consecutive failed attempts to establish the session.
    pub failures: u32,
    /// The reason why there is no session. The value is null if the session is established or no
    /// attempt has failed.
    pub last_error: Option<String>,
    /// The time since the failure in `last_error`, in seconds.
    pub last_error_seconds: Option<f64>,
    /// The reason for the end of the previous session, or null if no session has ended.
    pub last_end: Option<String>,
    /// The time since the end of the previous session, in seconds.
    pub last_end_seconds: Option<f64>,
    /// The capabilities that this machine offered and the peer did not: `ipv4 unicast`, `ipv6
    /// unicast`, `extended next hop` or `graceful restart`. Routes of a refused address family are
    /// not sent to the peer. The list is empty if there is no session.
    pub refused: Vec<String>,
    /// The negotiated hold time in seconds. The session ends if no message arrives for this time.
    /// The value is 0 if the hold timer is disabled, and null if there is no session.
    pub hold_seconds: Option<f64>,
    /// The number of IPv4 routes currently announced to the peer.
    pub announced_v4: usize,
    /// The number of IPv6 routes currently announced to the peer.
    pub announced_v6: usize,
    /// The number of routes that cannot be announced to the peer, because the session has no next
    /// hop for them or did not negotiate their address family.
    pub unannounceable: usize,
    /// The number of announcements and withdrawals that have not been sent to the peer yet.
    pub pending: usize,
    /// The number of prefixes that the peer announced. The load balancer ignores these prefixes.
    pub ignored_prefixes: u64,
    /// The BFD session with the peer, or null if BFD is not configured.
    pub bfd: Option<BfdView>,
}

/// A BFD session with a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BfdView {
    /// The state of the BFD session, which is `AdminDown`, `Down`, `Init` or `Up` (RFC 5880), or
    /// `Waiting` if the BGP session is not up.
    pub state: BfdState,
    /// The time since the state last changed, in seconds.
    pub since_seconds: f64,
    /// The number of times that the BFD session was lost since the BGP session came up.
    pub losses: u64,
}

/// The announcement state of a VIP in one address family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AnnouncedVip {
    /// The name of the VIP.
    pub vip: String,
    /// The address family of the routes, or null if the VIP has no routes.
    pub family: Option<Family>,
    /// The announcement state.
    pub state: AnnouncementState,
    /// The reason why the VIP is not announced, or why its routes have the graceful-shutdown
    /// community, in one sentence. The value is null if the VIP is announced normally.
    pub why: Option<String>,
    /// The remaining hold-down time in seconds, or null if the VIP is not held down.
    pub returns_in_seconds: Option<f64>,
    /// The time since the VIP was last announced or withdrawn, in seconds, or null if it was never
    /// announced.
    pub since_seconds: Option<f64>,
    /// `true` if the address families are decided separately, because backends are checked through
    /// the VIP. Otherwise all families have the same withdrawals and times.
    pub by_family: bool,
    /// The number of withdrawals since the start of the process, not counting withdrawals for
    /// drains and by operators.
    pub withdrawals: u64,
    /// The time for which the VIP was not announced since the start of the process, in seconds.
    pub not_announced_seconds: f64,
    /// `true` if this machine is a backup machine for the VIP.
    pub backup: bool,
    /// The routes of the VIP in this address family. A route shared by several VIPs is announced
    /// while at least one of these VIPs qualifies.
    pub routes: Vec<RouteRow>,
}

/// The announcement state of a VIP in one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnnouncementState {
    /// Each route was sent to at least one peer, in an established session that negotiated the
    /// address family.
    Announced,
    /// The routes are announced with the graceful-shutdown community, because the forwarder is
    /// stalled. The routes are withdrawn if the stall lasts for `bgp.max_stall`.
    Marked,
    /// The conditions for an announcement are met, but no session with a peer is established.
    NoSession,
    /// The conditions for an announcement are met, but no established session can carry routes of
    /// the address family, because the peer did not negotiate the family or this machine has no
    /// next hop.
    NotCarried,
    /// The conditions for an announcement are met, and the routes are not sent yet.
    Sending,
    /// The conditions for an announcement are met again, but the hold-down time has not ended.
    HeldDown,
    /// The conditions for an announcement are not met, for example because too few backends serve.
    Withdrawn,
    /// The machine is draining.
    Draining,
    /// The configuration does not announce the VIP, or no peer of this machine accepts routes of
    /// the address family.
    NotConfigured,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RouteRow {
    /// The prefix.
    pub prefix: String,
    /// The peers to which the route was sent.
    pub peers: Vec<String>,
    /// The MED of the route, or null if it has none.
    pub med: Option<u32>,
    /// The communities of the route, such as `65101:10`, or `65101:1:2` for a large community.
    pub communities: Vec<String>,
}

/// The result of an upgrade to a new process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Upgraded {
    /// The name of the machine.
    pub machine: String,
    /// The version of the new process.
    pub version: String,
    /// The process ID of the new process.
    pub pid: u32,
    /// The time from the request until the new process had taken over completely, in milliseconds.
    pub took_ms: f64,
    /// The downtime of each group of queues, from the release by the old process to the takeover by
    /// the new process, in milliseconds.
    pub handed_over_ms: Vec<f64>,
    /// The number of connection table buckets with flows that were transferred to the new process.
    pub flow_records: u64,
}

/// The result of a request to drain or undrain the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineDrain {
    /// The name of the machine.
    pub machine: String,
    /// The stage of the drain.
    pub stage: DrainStage,
    /// The time in seconds between the announcement of routes with the graceful-shutdown community
    /// and their withdrawal.
    pub notice_seconds: f64,
    /// The maximum time in seconds for which packets are still forwarded after the withdrawal. The
    /// process exits after this time.
    pub drain_seconds: f64,
    /// Notes for the operator. Each note is one sentence.
    pub notes: Vec<String>,
}
