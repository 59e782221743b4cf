//! Tracked flows, and the decision for a flow.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::explained::{Explained, WhereBackend};

/// A list of tracked flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowPage {
    /// The number of the generation from which the names of backends, pools and services are taken.
    pub generation: u64,
    /// The flows, up to the requested limit.
    pub flows: Vec<FlowRow>,
    /// `true` if more flows match.
    pub more: bool,
}

/// A tracked flow. The connection table stores hashes only, so addresses and ports are unknown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowRow {
    /// The index of the packet thread that tracks the flow.
    pub thread: usize,
    /// The lower 48 bits of the flow hash, in hex.
    pub tag: String,
    /// The name of the service, or null if the service was removed.
    pub service: Option<String>,
    /// The name of the backend, or null if the backend was removed.
    pub backend: Option<String>,
    /// The name of the leaf pool, or null if the pool was removed.
    pub pool: Option<String>,
    /// The state of the flow.
    pub state: FlowState,
    /// `true` until the flow sends a packet at least a quarter of a second after its first packet.
    pub on_probation: bool,
    /// The time since the last packet, in seconds.
    pub idle_seconds: f64,
}

/// The state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// A TCP flow that began with a SYN packet and has sent only SYN packets after its first
    /// quarter of a second.
    New,
    /// A TCP flow that has sent data in at least eight different quarter seconds.
    Established,
    /// A TCP flow after FIN or RST.
    Closing,
    /// A flow of a protocol other than TCP.
    Udp,
    /// A TCP flow whose first packet was not a SYN, and which has sent few packets since then.
    Midstream,
    /// A TCP flow that has sent data, but in fewer than eight different quarter seconds. The
    /// timeout of such a flow is one eighth of the timeout of an established flow.
    Opened,
    /// A TCP flow with further packets after FIN or RST.
    Reopened,
}

/// The result of a purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Purged {
    /// The number of removed flows, over all threads.
    pub flows: u64,
}

/// The decisions of all packet threads for a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhereView {
    /// The address and port of the client.
    pub source: SocketAddr,
    /// The address and port of the VIP.
    pub destination: SocketAddr,
    /// The IP protocol number.
    pub protocol: u8,
    /// The decision of each packet thread.
    pub threads: Vec<WhereRow>,
}

/// The decision of one packet thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhereRow {
    /// The index of the packet thread.
    pub thread: usize,
    /// The generation that the packet thread used.
    pub generation: u64,
    /// The entry of the flow in the connection table, or null if the flow is not tracked. The entry
    /// takes precedence over the Maglev table while its backend serves or drains.
    pub tracked: Option<FlowRow>,
    /// The backend that the Maglev table selects for a flow without an entry in the connection
    /// table.
    pub chosen: Option<WhereBackend>,
    /// The decision for a packet of the flow. An echo request to a VIP has the result `reply`. All
    /// other ICMP packets are dropped with the reason `icmp`.
    #[serde(flatten)]
    pub explained: Explained,
}
