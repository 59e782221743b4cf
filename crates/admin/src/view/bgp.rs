//! Routers, and what is announced to them.

use std::net::{IpAddr, Ipv4Addr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Everything that has to do with announcements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BgpView {
    /// Our AS number; null: this machine has no peers, and nothing is announced.
    pub asn: Option<u32>,
    /// Our identifier.
    pub router_id: Option<Ipv4Addr>,
    /// How far a drain of the machine is.
    pub stage: DrainStage,
    /// Every peer of this machine.
    pub peers: Vec<BgpPeerRow>,
    /// Every VIP of this machine.
    pub vips: Vec<AnnouncedVip>,
    /// What an operator should know, one sentence each.
    pub warnings: Vec<String>,
}

/// How far a drain of the machine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DrainStage {
    /// There is none.
    #[default]
    Serving,
    /// Routes are announced as about to go.
    Leaving,
    /// They are withdrawn; what still comes is forwarded.
    Left,
}

/// A BGP session's state (RFC 4271 §8.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the RFC's names")]
pub enum SessionState {
    Idle,
    Connect,
    Active,
    OpenSent,
    OpenConfirm,
    Established,
}

/// A BFD session's state (RFC 5880 §6.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BfdState {
    /// Taken down on purpose.
    AdminDown,
    /// Not up.
    Down,
    /// The peer is heard.
    Init,
    /// Both hear each other.
    Up,
    /// Not begun: the BGP session is not up.
    Waiting,
}

/// A router.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BgpPeerRow {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Its AS number, as configured.
    pub asn: u32,
    /// Of RFC 4271: `Idle`, `Connect`, `Active`, `OpenSent`, `OpenConfirm`, `Established`.
    pub state: SessionState,
    /// Since when.
    pub since_seconds: f64,
    /// Sessions established since the start.
    pub established: u64,
    /// Failures in a row.
    pub failures: u32,
    /// Why there is no session; null: there is one, or nothing has failed yet.
    pub last_error: Option<String>,
    /// How long ago that was last seen.
    pub last_error_seconds: Option<f64>,
    /// Why the last session ended, kept while another one is up; null: none did.
    pub last_end: Option<String>,
    /// How long ago it ended.
    pub last_end_seconds: Option<f64>,
    /// Silence that ends the session, as agreed; 0: none does; null: there is no session.
    pub hold_seconds: Option<f64>,
    /// IPv4 routes that it has from us now.
    pub announced_v4: usize,
    /// IPv6 routes that it has from us now.
    pub announced_v6: usize,
    /// Routes for it that have no next hop in the session, or are of a family that it does not speak.
    pub unannounceable: usize,
    /// Routes and withdrawals that it has not been sent yet.
    pub pending: usize,
    /// Prefixes that it announced; none was kept.
    pub ignored_prefixes: u64,
    /// BFD beside the session; null: not configured.
    pub bfd: Option<BfdView>,
}

/// BFD with a router.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BfdView {
    /// Of RFC 5880: `AdminDown`, `Down`, `Init`, `Up`; `Waiting`: for the BGP session, after which it begins.
    pub state: BfdState,
    /// Since when.
    pub since_seconds: f64,
    /// How often it was lost since its BGP session came up.
    pub losses: u64,
}

/// A VIP, and whether it is announced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AnnouncedVip {
    /// The VIP.
    pub vip: String,
    /// Whether it is.
    pub state: AnnouncementState,
    /// Why it is not, in a sentence; null: it is.
    pub why: Option<String>,
    /// What is left of the hold-down; null: none holds it.
    pub returns_in_seconds: Option<f64>,
    /// Since it was last announced or withdrawn; null: it never was.
    pub since_seconds: Option<f64>,
    /// Withdrawals since the start, without those of drains.
    pub withdrawals: u64,
    /// Whether the machine stands behind others for it.
    pub anchor: bool,
    /// Its routes; one that it shares with a VIP that qualifies is announced although it does not.
    pub routes: Vec<RouteRow>,
}

/// See [`AnnouncedVip`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnnouncementState {
    /// It qualifies, and its routes are announced to a router at least.
    Announced,
    /// It qualifies, and no router that it is announced to has a session.
    NoSession,
    /// It qualifies again, and waits out the hold-down.
    HeldDown,
    /// It does not qualify.
    Away,
    /// The machine drains.
    Draining,
    /// The file does not announce it.
    NotConfigured,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RouteRow {
    /// The prefix.
    pub prefix: String,
    /// The peers with a session that are to have it now.
    pub peers: Vec<String>,
    /// Its MED; null: none.
    pub med: Option<u32>,
    /// Its communities now, as `65101:10`, large ones as `65101:1:2`.
    pub communities: Vec<String>,
}

/// What came of handing over to a new process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Upgraded {
    /// The machine.
    pub machine: String,
    /// The version of the new process.
    pub version: String,
    /// Its number.
    pub pid: u32,
    /// From the order until it had everything, in milliseconds.
    pub took_ms: f64,
    /// For each group of queues that went together, in milliseconds: from its release until the new process had it.
    pub handed_over_ms: Vec<f64>,
    /// Tracked flows that went along: buckets of connection tables that held some.
    pub flow_records: u64,
}

/// What an order to drain the machine, or to take that back, began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineDrain {
    /// The machine.
    pub machine: String,
    /// How far it is.
    pub stage: DrainStage,
    /// How long routes are still announced as about to go.
    pub notice_seconds: f64,
    /// How long packets are still forwarded after that at most; then the process ends.
    pub drain_seconds: f64,
    /// What an operator should know, one sentence each.
    pub notes: Vec<String>,
}
