//! VIPs and memberships: who serves what, with what share, and by whose word.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::health::{CheckState, Via};

/// What an override says of a membership; at least one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Override {
    /// `draining` or `down`; null: as health says.
    pub state: Option<BackendState>,
    /// The weight; null: the file's.
    pub weight: Option<u32>,
}

/// A VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VipRow {
    /// Its name.
    pub name: String,
    /// Its addresses, prefixes or suffixes, as text.
    pub addresses: Vec<String>,
    /// Whether every service is.
    pub ready: bool,
    /// What it serves.
    pub services: Vec<ServiceRow>,
}

/// A service of a VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceRow {
    /// Its name among the counters, such as `www tcp 80,443`.
    pub name: String,
    /// `tcp`, `udp`, or a protocol number.
    pub protocol: String,
    /// Such as `80,443` or `8000-8099`.
    pub ports: String,
    /// The pool that the file names.
    pub pool: String,
    /// The pool that serves now: another one when it has fallen back.
    pub serving_pool: String,
    /// Backends of that pool that serve.
    pub serving: usize,
    /// Its backends.
    pub total: usize,
    /// Whether it has enough backends, or its flows go to another cluster.
    pub ready: bool,
    /// Other clusters that its new flows go to now; none while a backend here serves.
    pub redirected_to: Vec<String>,
    /// Each family of its addresses, where backends are checked through them; what is said above is then of the one with fewer
    /// backends. Empty: both are the same.
    pub families: Vec<FamilyRow>,
    /// Flows that connection tables of all packet threads have, at most two seconds old; null: not counted in time.
    pub flows: Option<u64>,
    /// Packets since the start.
    pub packets: u64,
    /// Bytes of those as received.
    pub bytes: u64,
}

/// A service at the addresses of one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FamilyRow {
    /// Which; null: both.
    pub family: Option<Family>,
    /// The pool that serves them now.
    pub serving_pool: String,
    /// Backends of that pool that serve them.
    pub serving: usize,
    /// Its backends.
    pub total: usize,
    /// Whether it has enough backends, or its flows go to another cluster.
    pub ready: bool,
}

/// A family of addresses.
// Not `packet`'s: this crate knows no domain type. `control-plane` converts (`rows`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// What the addresses of a VIP get of a membership, by checks through them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SeenByVip {
    /// The VIP.
    pub vip: String,
    /// The family of its addresses.
    pub family: Family,
    /// What they get.
    pub state: BackendState,
}

/// A membership: a backend in a leaf pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BackendRow {
    /// The backend.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// The leaf pool.
    pub pool: String,
    /// What it gets; where VIPs differ by checks through them, the most that one of them gives it.
    pub state: BackendState,
    /// VIPs that give it less, by checks through them.
    pub less_for: Vec<SeenByVip>,
    /// Why it is not serving with the file's weight; null when it is.
    pub why: Option<Why>,
    /// The operator's override; null: none.
    #[serde(rename = "override")]
    pub overridden: Option<Override>,
    /// The weight in the file.
    pub weight_configured: u32,
    /// The weight in its leaf pool now.
    pub weight_effective: u32,
    /// Its share of the table, by the pool that a service names.
    #[schemars(extend("additionalProperties" = { "type": "number", "minimum": 0, "maximum": 1 }))]
    pub shares: BTreeMap<String, f64>,
    /// Flows that connection tables of all packet threads have, at most two seconds old; null: not counted in time.
    pub flows: Option<u64>,
    /// Of those how many by VIP; VIPs without one are left out.
    pub flows_by_vip: BTreeMap<String, u64>,
    /// Packets of this membership since the start.
    pub packets: u64,
    /// Bytes of those as received.
    pub bytes: u64,
    /// Its checks' verdicts.
    pub checks: Vec<CheckRow>,
    /// Of one that is `flushing`: why the last attempt to empty it failed; null: none did.
    pub flush_error: Option<String>,
}

/// What a membership gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackendState {
    /// New flows and old.
    Serving,
    /// Its old flows.
    Draining,
    /// Nothing.
    Down,
    /// Nothing: no check has ended yet.
    Unknown,
    /// No key and no new flow before its server is empty: it was away, and may hold what was changed elsewhere.
    Flushing,
}

/// Who decided a membership's state or weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// Its checks.
    Health,
    /// An operator's override.
    Operator,
    /// It is no longer in the file.
    Removed,
    /// It came up and takes its share in steps.
    SlowStart,
    /// The file gives it no weight.
    NoWeight,
    /// `kv.rejoin` of its keyed pool: its server is emptied first.
    Rejoin,
}

/// A check's verdict on a backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CheckRow {
    /// The check's name.
    pub check: String,
    /// Where it is asked.
    pub via: Via,
    /// Through which VIP's address; null: straight.
    pub vip: Option<IpAddr>,
    /// The verdict.
    pub state: CheckState,
    /// Since the verdict last changed.
    pub since_seconds: f64,
    /// The last failure's words; null: none yet.
    pub last_error: Option<String>,
    /// How long ago that was.
    pub last_error_seconds: Option<f64>,
}

/// What an order to a backend did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BackendChange {
    /// The backend.
    pub backend: String,
    /// The generation that carries it.
    pub generation: u64,
    /// Whether the order changed anything.
    pub changed: bool,
    /// Each membership meant, changed or not.
    pub memberships: Vec<MembershipChange>,
    /// What an operator should know, such as that the file now gives another weight; one sentence each.
    pub notes: Vec<String>,
}

/// Before and after an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MembershipChange {
    /// The leaf pool.
    pub pool: String,
    /// State before.
    pub before: BackendState,
    /// State now.
    pub after: BackendState,
    /// Weight before.
    pub weight_before: u32,
    /// Weight now.
    pub weight_after: u32,
    /// The override now in force; null: none.
    #[serde(rename = "override")]
    pub overridden: Option<Override>,
}
