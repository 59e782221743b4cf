//! The health checks: verdicts, and how they came about.

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A check's verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// It passes.
    Up,
    /// It fails.
    Down,
    /// No result yet.
    Unknown,
}

/// Where a check asks a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// At its own address.
    Backend,
    /// At the VIP's, through the encapsulation.
    Vip,
}

/// The health checks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HealthView {
    /// As in [`Status`](super::Status).
    pub own_fault: Option<String>,
    /// What is checked, each once however many pools want it.
    pub targets: Vec<TargetRow>,
}

/// One target of one check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TargetRow {
    /// The backends behind it: more than one when they share an address.
    pub backends: Vec<String>,
    /// Address and port.
    pub address: SocketAddr,
    /// The check's name.
    pub check: String,
    /// Where it is asked.
    pub via: Via,
    /// The VIP's address when `via` is `vip`, else null.
    pub vip: Option<IpAddr>,
    /// The verdict.
    pub state: CheckState,
    /// Since the verdict last changed.
    pub since_seconds: f64,
    /// Passes in a row.
    pub passes: u64,
    /// Failures in a row.
    pub failures: u64,
    /// The last failure's words; null: none yet.
    pub last_error: Option<String>,
    /// How long ago that was.
    pub last_error_seconds: Option<f64>,
    /// How long the last pass took; null: none yet.
    pub latency_us: Option<u64>,
    /// Whether the last attempts passed, oldest first.
    pub history: Vec<bool>,
}
