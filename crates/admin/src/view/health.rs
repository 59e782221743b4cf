//! Health checks and their results.

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The health state of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// The check passes.
    Up,
    /// The check fails.
    Down,
    /// The check has no result yet.
    Unknown,
}

/// The destination of check packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// The address of the backend.
    Backend,
    /// The address of the VIP, with the same encapsulation as client packets.
    Vip,
}

/// All health checks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HealthView {
    /// The local failure that froze all health states, or null if there is no local failure.
    pub own_fault: Option<String>,
    /// The check targets. A target that several pools use is listed once.
    pub targets: Vec<TargetRow>,
}

/// One target of one check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetRow {
    /// The backends of the target. Backends with the same address share a target.
    pub backends: Vec<String>,
    /// The checked address and port. The port is 0 for an exec check without `port`.
    pub address: SocketAddr,
    /// The name of the check.
    pub check: String,
    /// The destination of the check packets.
    pub via: Via,
    /// The address of the VIP if `via` is `vip`, otherwise null.
    pub vip: Option<IpAddr>,
    /// The name of the VIP if `via` is `vip`, otherwise null. The address of a VIP in a prefix
    /// group does not show its name.
    #[serde(default)]
    pub vip_name: Option<String>,
    /// The health state.
    pub state: CheckState,
    /// The time since the health state last changed, in seconds.
    pub since_seconds: f64,
    /// The number of consecutive attempts that passed.
    pub passes: u64,
    /// The number of consecutive attempts that failed.
    pub failures: u64,
    /// The message of the last failure, or null if no attempt has failed.
    pub last_error: Option<String>,
    /// The time since the last failure, in seconds.
    pub last_error_seconds: Option<f64>,
    /// The duration of the last successful attempt in microseconds, or null if no attempt has
    /// succeeded.
    pub latency_us: Option<u64>,
    /// The results of the last attempts, oldest first. The value `true` means that the attempt
    /// passed.
    pub history: Vec<bool>,
}
