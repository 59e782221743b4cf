//! The balancer on one page.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::generation::ConfirmationRow;
use super::log::LogOrderRow;
use super::serving::Override;

/// How the balancer is, on one page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Of the program.
    pub version: String,
    /// Its name in the file.
    pub machine: String,
    /// The cluster's name.
    pub cluster: String,
    /// Made at start; with the generation's number it names a configuration.
    pub boot_id: String,
    /// Number of the generation in force.
    pub generation: u64,
    /// Which texts it was read from, in hex: SHA-256 over its files, the hash key and the CAs that they name.
    pub generation_sha256: String,
    /// By what this machine is compared with the others of its cluster.
    pub digests: DigestView,
    /// The file that was read at start.
    pub config_file: String,
    /// Whether the file still says what is in force.
    pub drift: Drift,
    /// Time of the start.
    pub started_unix_seconds: u64,
    /// Since the start.
    pub uptime_seconds: f64,
    /// Whether `/readyz` says yes.
    pub ready: bool,
    /// Why not, one sentence each; empty when ready.
    pub not_ready: Vec<String>,
    /// Whether it drains to its end.
    pub stopping: bool,
    /// The packet threads, their sockets and the XDP program.
    pub forwarder: ForwarderView,
    /// The interfaces' names, with commas between.
    pub interface: String,
    /// Each of them, as it was within the last second.
    pub interfaces: Vec<InterfaceRow>,
    /// The sockets' mode: `zero-copy` or `copy`; `af-packet`: packet sockets.
    pub mode: String,
    /// How the program is attached: `driver` or `generic`; `ingress` behind packet sockets.
    pub xdp_mode: String,
    /// Packet threads.
    pub threads: usize,
    /// I/O threads, which receive and send for them; 0 without software steering.
    #[serde(default)]
    pub io_threads: usize,
    /// VIPs.
    pub vips: VipTotals,
    /// Memberships by state.
    pub backends: StateTotals,
    /// Announcements to routers; null: this machine has no peers.
    pub bgp: Option<BgpTotals>,
    /// Names of what is down; how many there are is in the totals.
    pub down: DownView,
    /// Operators' overrides in force.
    pub overrides: Vec<OverrideRow>,
    /// An operator's order of another log level; null: the log has the file's.
    pub log_order: Option<LogOrderRow>,
    /// The last reload, or `PUT`; none since the start: null.
    pub last_reload: Option<LastReload>,
    /// When what is in force is taken back; null: it stays.
    pub confirmation: Option<ConfirmationRow>,
    /// Why the health checks' verdicts are held for a local failure, a fault of this machine; null: they are not.
    pub own_fault: Option<String>,
    /// What is configured and only a restart brings, such as `io.batch: 64 -> 32`: from what runs to what is configured.
    pub needs_restart: Vec<String>,
    /// Targets of checks that this machine has not been able to ask several times in a row: their last verdicts stay.
    pub checks_unable: usize,
    /// What an operator should know, one sentence each.
    pub warnings: Vec<String>,
}

/// What machines of a cluster compare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DigestView {
    /// Version of the table algorithm.
    pub table_algorithm: u32,
    /// SHA-256 over what machines must agree on, in hex, the hash key included (which it does not reveal): equal on all
    /// machines of a cluster, at once.
    pub configuration: String,
    /// SHA-256 over the tables in force and who in them does not serve, in hex: equal on all machines of a shard, a few check
    /// intervals after a change. Null: computed from a file, which has none.
    pub tables: Option<String>,
    /// The machine's shard; null: none.
    pub shard: Option<String>,
}

/// The configuration in force against the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Drift {
    /// The same.
    #[default]
    InSync,
    /// The file has changed since it was read.
    FileChanged,
    /// What is in force came by the API; the next reload of the file wins.
    Api,
    /// What is in force was in force before, and the file says something else; the next reload of the file, or a start, wins.
    TakenBack,
}

/// Whether packets are carried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ForwarderView {
    /// All is well.
    pub healthy: bool,
    /// What is not, one sentence each.
    pub why: Vec<String>,
}

/// An interface that packets for VIPs come and go by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceRow {
    /// Its name.
    pub name: String,
    /// It is switched on, and the other end is there; else no packet comes in or goes out.
    pub link: bool,
    /// The longest IP packet that it carries.
    pub mtu_bytes: u32,
    /// The longest IP packet that packet threads take from it, as their frames were sized at the start.
    pub largest_packet_bytes: u32,
}

impl InterfaceRow {
    /// Whether all packets that it may carry reach the packet threads.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.link && self.mtu_fits()
    }

    /// Whether packets as long as its MTU are taken.
    #[must_use]
    pub fn mtu_fits(&self) -> bool {
        self.mtu_bytes <= self.largest_packet_bytes
    }
}

/// How many VIPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VipTotals {
    /// All.
    pub total: usize,
    /// Those whose every service has enough backends.
    pub ready: usize,
}

/// Sessions with routers, and VIPs that are announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BgpTotals {
    /// Peers of this machine.
    pub peers: usize,
    /// Those with a session.
    pub established: usize,
    /// VIPs that the file announces.
    pub vips: usize,
    /// Those that are announced now.
    pub announced: usize,
}

/// What is down, at most ten names of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DownView {
    /// Memberships that get no packet, such as `b1 in web`.
    pub backends: Vec<String>,
    /// VIPs that are not ready.
    pub vips: Vec<String>,
    /// Routers without a session.
    pub routers: Vec<String>,
}

impl DownView {
    /// Names of each.
    pub const MOST: usize = 10;
}

/// How many memberships.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateTotals {
    /// In the table.
    pub serving: usize,
    /// Out of it, its flows go on.
    pub draining: usize,
    /// Gets no packet.
    pub down: usize,
    /// Not checked yet, and in no table.
    pub unknown: usize,
    /// Out of it until they are empty: they were away from a keyed pool.
    pub flushing: usize,
}

/// An operator's override.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OverrideRow {
    /// The backend.
    pub backend: String,
    /// The leaf pool; null: all its memberships.
    pub pool: Option<String>,
    /// What it says.
    #[serde(flatten)]
    pub says: Override,
    /// Since it was given.
    pub since_seconds: f64,
    /// Who gave it: `uid 0` at the socket, the certificate's name and address on TCP.
    pub by: String,
    /// Why; null: nobody has said.
    pub reason: Option<String>,
    /// When it ends by itself; null: when it is taken back.
    pub ends_in_seconds: Option<f64>,
}

/// How the last reload ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LastReload {
    /// Time of day when it ended.
    pub unix_seconds: u64,
    /// How it ended.
    pub outcome: ReloadOutcome,
    /// From its start to the store, or to the refusal.
    pub took_ms: f64,
    /// One sentence; the reasons when refused.
    pub message: String,
}

/// See [`LastReload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReloadOutcome {
    /// A new generation is in force.
    Published,
    /// Nothing was different: the generation keeps its number.
    Unchanged,
    /// The old one went on.
    Refused,
}
