//! Overrides of announcements.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bgp::AnnouncedVip;

/// An override of a VIP's announcements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VipAction {
    /// Flap damping is suspended: the VIP is announced while it meets the conditions, without a
    /// hold-down.
    Announce,
    /// The routes of the VIP are withdrawn on this machine. The machine keeps forwarding packets.
    Withdraw,
}

/// An override of a VIP's announcements. The override survives a reload and an upgrade, but not a
/// restart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VipOverrideRow {
    /// The name of the VIP.
    pub vip: String,
    /// The override.
    pub action: VipAction,
    /// The time since the override was set, in seconds.
    pub since_seconds: f64,
    /// The client that set the override, such as `uid 0` for a client on the socket, or the
    /// certificate name and address of a TCP client.
    pub by: String,
    /// The reason given by the operator, or null.
    pub reason: Option<String>,
    /// The time until the override ends, in seconds.
    pub ends_in_seconds: f64,
}

/// The result of a command that announces or withdraws VIPs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VipChange {
    /// The announcements of the VIPs after the command, with one row for each address family.
    pub vips: Vec<AnnouncedVip>,
    /// The overrides of these VIPs.
    pub overrides: Vec<VipOverrideRow>,
    /// Notes for the operator. Each note is one sentence.
    pub notes: Vec<String>,
}
