//! Tracked flows, and what would become of one.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::explained::{Explained, WhereBackend};

/// Tracked flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowPage {
    /// The generation that slots were named by.
    pub generation: u64,
    /// At most as many as were asked for.
    pub flows: Vec<FlowRow>,
    /// Whether there are more.
    pub more: bool,
}

/// A tracked flow. The table stores hashes, so addresses and ports are not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowRow {
    /// The packet thread that tracks it.
    pub thread: usize,
    /// The lower 48 bits of the flow's hash, in hex.
    pub tag: String,
    /// The service's name; null: it has gone.
    pub service: Option<String>,
    /// The backend; null: it has gone.
    pub backend: Option<String>,
    /// The leaf pool; null: it has gone.
    pub pool: Option<String>,
    /// How far it has come.
    pub state: FlowState,
    /// No second packet yet, at least one tick after the first.
    pub on_probation: bool,
    /// Since its last packet.
    pub idle_seconds: f64,
}

/// How far a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FlowState {
    /// TCP, and nothing but SYNs after its first tick.
    New,
    /// TCP in use, with data in eight quarter seconds at least.
    Established,
    /// TCP after FIN or RST.
    Closing,
    /// Any other protocol.
    Udp,
    /// TCP whose first packet was no SYN, and that has shown few since.
    Midstream,
    /// TCP in use, with data in fewer: kept for an eighth of the time.
    Opened,
    /// TCP that goes on after FIN or RST.
    Reopened,
}

/// What a purge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Purged {
    /// Flows forgotten, over all threads.
    pub flows: u64,
}

/// What would become of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhereView {
    /// The client.
    pub source: SocketAddr,
    /// The VIP.
    pub destination: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// What each packet thread says.
    pub threads: Vec<WhereRow>,
}

/// One thread's word.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WhereRow {
    /// The thread.
    pub thread: usize,
    /// The generation that it answered under.
    pub generation: u64,
    /// The flow in its connection table, which goes before the choice while its backend serves or drains.
    pub tracked: Option<FlowRow>,
    /// The backend that the Maglev table would choose if no connection table knew the flow.
    pub chosen: Option<WhereBackend>,
    /// What becomes of a packet of it now. An echo request to a VIP is answered in place: `reply`; all else of ICMP is dropped
    /// as `icmp`.
    #[serde(flatten)]
    pub explained: Explained,
}
