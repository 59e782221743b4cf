//! VIPs and pool members: the state, the share of traffic, and the reason for the state.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::health::{CheckState, Via};

/// An override of a pool member, which sets `state`, `weight` or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Override {
    /// The state set by the operator (`draining` or `down`), or null if the health state applies.
    pub state: Option<BackendState>,
    /// The weight, or null if the weight of the configuration applies.
    pub weight: Option<u32>,
}

/// A VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VipRow {
    /// The name of the VIP.
    pub name: String,
    /// The addresses, prefixes or suffixes of the VIP.
    pub addresses: Vec<String>,
    /// `true` if `/readyz/vip/NAME` returns status 200: the machine can forward packets, all
    /// services have a backend, and the routes of the VIP are announced.
    pub ready: bool,
    /// The reasons why the VIP is not ready. Each reason is one sentence. The list is empty if the
    /// VIP is ready.
    pub not_ready: Vec<String>,
    /// `true` if all services of the VIP have a backend.
    pub serving: bool,
    /// The BGP peers that have a route of the VIP, or null if this machine does not announce it.
    pub announced_to: Option<Vec<String>>,
    /// The services of the VIP.
    pub services: Vec<ServiceRow>,
}

/// A service of a VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceRow {
    /// The name of the service in counters, such as `www tcp 80,443`.
    pub name: String,
    /// The protocol, which is `tcp`, `udp` or a protocol number.
    pub protocol: String,
    /// The ports, such as `80,443` or `8000-8099`.
    pub ports: String,
    /// The configured pool.
    pub pool: String,
    /// The pool that currently receives the packets of the service. After a failover, this pool
    /// differs from the configured pool.
    pub serving_pool: String,
    /// The number of backends in service in `serving_pool`.
    pub serving: usize,
    /// The total number of backends in `serving_pool`.
    pub total: usize,
    /// `true` if enough backends serve, or if new flows go to another cluster.
    pub ready: bool,
    /// The clusters that receive the new flows of the service. The list is empty while a local
    /// backend serves.
    pub redirected_to: Vec<String>,
    /// The state for each address family, if backends are checked through the VIP and the families
    /// differ. In that case, the other fields of the service describe the family with fewer serving
    /// backends. The list is empty if both families have the same state.
    pub families: Vec<FamilyRow>,
    /// The number of flows in the connection tables of all packet threads, counted at most two
    /// seconds ago. Null if counting took too long.
    pub flows: Option<u64>,
    /// The number of forwarded packets since the start of the process.
    pub packets: u64,
    /// The total length of the forwarded packets as received, in bytes, since the start of the
    /// process.
    pub bytes: u64,
}

/// The state of a service in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FamilyRow {
    /// The address family, or null for both.
    pub family: Option<Family>,
    /// The pool that currently serves the addresses of this family.
    pub serving_pool: String,
    /// The number of backends in service in `serving_pool`.
    pub serving: usize,
    /// The total number of backends in `serving_pool`.
    pub total: usize,
    /// `true` if enough backends serve, or if new flows go to another cluster.
    pub ready: bool,
}

/// An address family.
// This crate does not depend on crates with domain types, so it defines its own type for address
// families. The crate `control-plane` converts the type (`rows`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IP version 4.
    Ipv4,
    /// IP version 6.
    Ipv6,
}

impl Family {
    /// Both address families.
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// The state of a pool member for the addresses of a VIP, from checks through the VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SeenByVip {
    /// The name of the VIP.
    pub vip: String,
    /// The address family of the VIP.
    pub family: Family,
    /// The state of the pool member for these addresses.
    pub state: BackendState,
}

/// A pool member: one backend in one leaf pool, which is a pool that lists the backend directly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BackendRow {
    /// The name of the backend.
    pub name: String,
    /// The address of the backend.
    pub address: IpAddr,
    /// The name of the leaf pool. Empty if the backend is no longer in the configuration.
    pub pool: String,
    /// The pools of services that contain the pool member, directly or through nested pools.
    #[serde(default)]
    pub pools: Vec<String>,
    /// The state of the pool member. If checks through VIPs give different states, this is the best
    /// state.
    pub state: BackendState,
    /// The VIPs for which the pool member has a worse state, according to the checks through these
    /// VIPs.
    pub less_for: Vec<SeenByVip>,
    /// The reason why the pool member does not serve with the configured weight. Null if the pool
    /// member serves with that weight.
    pub why: Option<Why>,
    /// The override of an operator, or null if there is none.
    #[serde(rename = "override")]
    pub overridden: Option<Override>,
    /// The configured weight.
    pub weight_configured: u32,
    /// The current weight in the leaf pool.
    pub weight_effective: u32,
    /// The backend's share of the Maglev table from 0 to 1, for each pool that a service uses.
    #[schemars(extend("additionalProperties" = { "type": "number", "minimum": 0, "maximum": 1 }))]
    pub shares: BTreeMap<String, f64>,
    /// The number of flows in the connection tables of all packet threads, counted at most two
    /// seconds ago. Null if counting took too long.
    pub flows: Option<u64>,
    /// The number of these flows that sent a packet to this machine in the last 60 seconds. The
    /// other flows are idle, have ended without a FIN, or continue through another machine.
    pub active_flows: Option<u64>,
    /// The number of flows of this pool member for each VIP. VIPs without flows are omitted.
    pub flows_by_vip: BTreeMap<String, u64>,
    /// The number of forwarded packets since the start of the process.
    pub packets: u64,
    /// The total length of the forwarded packets as received, in bytes, since the start of the
    /// process.
    pub bytes: u64,
    /// The results of the health checks.
    pub checks: Vec<CheckRow>,
    /// The reason why the last attempt to flush the server failed, for a backend in the state
    /// `flushing`. Null if no attempt has failed.
    pub flush_error: Option<String>,
}

/// The state of a pool member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackendState {
    /// The backend receives new and existing flows.
    Serving,
    /// The backend receives only existing flows.
    Draining,
    /// The backend receives no traffic.
    Down,
    /// The backend receives no traffic, because no check has completed yet.
    Unknown,
    /// The backend receives no keys and no new flows until its server is flushed, because it was
    /// unavailable and may hold outdated values.
    Flushing,
}

/// The origin of a pool member's state or weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// The health checks.
    Health,
    /// An override of an operator.
    Operator,
    /// The pool member is no longer in the configuration.
    Removed,
    /// The backend came up, and its weight increases in steps.
    SlowStart,
    /// The configured weight is 0.
    NoWeight,
    /// The agent check: the agent drains the backend or requests a different weight.
    Agent,
    /// The setting `kv.rejoin` of the keyed pool. The server is flushed before it serves again.
    Rejoin,
}

/// The result of a health check for a backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckRow {
    /// The name of the check.
    pub check: String,
    /// The destination of the check packets.
    pub via: Via,
    /// The address of the VIP if the check goes through a VIP, otherwise null.
    pub vip: Option<IpAddr>,
    /// The health state.
    pub state: CheckState,
    /// The time since the health state last changed, in seconds.
    pub since_seconds: f64,
    /// The message of the last failure, or null if no attempt has failed.
    pub last_error: Option<String>,
    /// The time since the last failure, in seconds.
    pub last_error_seconds: Option<f64>,
}

/// The result of a command for a backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BackendChange {
    /// The name of the backend.
    pub backend: String,
    /// The generation that contains the change.
    pub generation: u64,
    /// `true` if the command changed the state.
    pub changed: bool,
    /// All pool members to which the command applies, including members that the command did not
    /// change.
    pub memberships: Vec<MembershipChange>,
    /// Notes for the operator, one sentence each, such as a different weight in the configuration.
    pub notes: Vec<String>,
}

/// The state of a pool member before and after a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MembershipChange {
    /// The name of the leaf pool.
    pub pool: String,
    /// The state before the command.
    pub before: BackendState,
    /// The state after the command.
    pub after: BackendState,
    /// The weight before the command.
    pub weight_before: u32,
    /// The weight after the command.
    pub weight_after: u32,
    /// The current override, or null if there is none.
    #[serde(rename = "override")]
    pub overridden: Option<Override>,
}
