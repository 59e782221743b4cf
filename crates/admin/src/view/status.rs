//! The status of the load balancer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::generation::ConfirmationRow;
use super::log::LogLevelOverrideRow;
use super::serving::Override;
use super::vip_overrides::VipOverrideRow;

/// The status of the load balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The version of the program.
    pub version: String,
    /// The name of the machine in the configuration.
    pub machine: String,
    /// The name of the cluster.
    pub cluster: String,
    /// The ID of this process, which changes at each start. The boot ID and the generation number
    /// together identify a configuration.
    pub boot_id: String,
    /// The number of the current generation.
    pub generation: u64,
    /// The SHA-256 digest of the configuration files, the hash key and the CA certificates, in hex.
    pub generation_sha256: String,
    /// The digests that show whether this machine agrees with the other machines of the cluster.
    pub digests: DigestView,
    /// The path of the configuration file.
    pub config_file: String,
    /// The difference between the current configuration and the file.
    pub drift: Drift,
    /// The start time of the process in seconds since 1970.
    pub started_unix_seconds: u64,
    /// The time since the start of the process, in seconds.
    pub uptime_seconds: f64,
    /// `true` if `/readyz` returns status 200.
    pub ready: bool,
    /// The reasons why the load balancer is not ready. Each reason is one sentence. The list is
    /// empty if the load balancer is ready. A VIP that is not ready is not a reason.
    pub not_ready: Vec<String>,
    /// The reasons why VIPs are not ready, one sentence each, such as `not announced: www, flap
    /// damping, 8 s left`. At most ten VIPs are listed.
    pub vip_faults: Vec<String>,
    /// `true` if the process is draining and will exit.
    pub stopping: bool,
    /// The state of the packet threads, their sockets and the XDP program.
    pub forwarder: ForwarderView,
    /// The names of the interfaces, separated by commas.
    pub interface: String,
    /// The state of each interface, at most one second old.
    pub interfaces: Vec<InterfaceRow>,
    /// The mode of the sockets (`zero-copy` or `copy`), or `af-packet` for packet sockets.
    pub mode: String,
    /// The attach mode of the XDP program (`driver` or `generic`), or `ingress` with packet
    /// sockets.
    pub xdp_mode: String,
    /// The number of packet threads.
    pub threads: usize,
    /// The number of I/O threads, which receive and send packets for the packet threads. The number
    /// is 0 without software steering.
    #[serde(default)]
    pub io_threads: usize,
    /// The number of VIPs.
    pub vips: VipTotals,
    /// The number of pool members in each state.
    pub backends: StateTotals,
    /// The totals of BGP sessions and announced VIPs, or null if this machine has no peers.
    pub bgp: Option<BgpTotals>,
    /// The names of unavailable objects, at most ten of each kind. Other fields contain the total
    /// numbers of these objects.
    pub down: DownView,
    /// The active overrides of backends.
    pub overrides: Vec<OverrideRow>,
    /// The active overrides of announcements.
    pub vip_overrides: Vec<VipOverrideRow>,
    /// The log level override of an operator, or null if the level of the configuration applies.
    pub log_level_override: Option<LogLevelOverrideRow>,
    /// The last configuration change, or null if no change was requested since the start of the
    /// process.
    pub last_reload: Option<LastReload>,
    /// The pending confirmation of a trial generation, or null if the current generation is
    /// permanent.
    pub confirmation: Option<ConfirmationRow>,
    /// The local failure of this machine that froze the health states, or null if there is no local
    /// failure.
    pub own_fault: Option<String>,
    /// The changed settings that need a restart, such as `io.batch: 64 -> 32`. In this example, the
    /// value 64 is in use, and the value 32 is configured.
    pub needs_restart: Vec<String>,
    /// The number of check targets that could not be checked several times in a row because of an
    /// error on this machine. The health states of these targets are frozen.
    pub checks_unable: usize,
    /// Warnings for the operator. Each warning is one sentence.
    pub warnings: Vec<String>,
}

/// The digests that show whether machines of a cluster agree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DigestView {
    /// The version of the Maglev table algorithm.
    pub table_algorithm: u32,
    /// The SHA-256 digest of all settings that must be the same on all machines of the cluster, in
    /// hex. The digest covers the hash key without revealing it.
    pub configuration: String,
    /// The SHA-256 digest of the current tables and their unavailable backends, in hex. All
    /// machines of a shard have the same value within a few check intervals after a change. Null if
    /// the digests were computed from a configuration file.
    pub tables: Option<String>,
    /// The shard of the machine, or null if the machine belongs to no shard.
    pub shard: Option<String>,
}

/// The difference between the current configuration and the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Drift {
    /// The file is unchanged.
    #[default]
    InSync,
    /// The file has changed since the last reload.
    FileChanged,
    /// The current configuration was uploaded with the API. The next reload of the file replaces
    /// the uploaded configuration.
    Api,
    /// The current configuration was restored by a rollback and differs from the file. The next
    /// reload of the file, or a restart, replaces the restored configuration.
    RolledBack,
}

/// The state of packet forwarding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ForwarderView {
    /// `true` if forwarding works.
    pub healthy: bool,
    /// The problems with packet forwarding. Each problem is one sentence.
    pub why: Vec<String>,
    /// The time for which forwarding had problems since the start of the process, in seconds.
    pub unhealthy_seconds: f64,
}

/// An interface that carries traffic for VIPs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceRow {
    /// The name of the interface.
    pub name: String,
    /// `true` if the interface is up and has carrier.
    pub link: bool,
    /// The MTU of the interface: the maximum size of an IP packet in bytes.
    pub mtu_bytes: u32,
    /// The maximum size of an IP packet that packet threads accept, in bytes. This maximum is fixed
    /// when the process starts.
    pub largest_packet_bytes: u32,
}

impl InterfaceRow {
    /// Returns `true` if the link is up and the MTU fits.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.link && self.mtu_fits()
    }

    /// Returns `true` if packet threads accept packets as large as the MTU.
    #[must_use]
    pub fn mtu_fits(&self) -> bool {
        self.mtu_bytes <= self.largest_packet_bytes
    }
}

/// The total number of VIPs and the number of ready VIPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VipTotals {
    /// The total number of VIPs.
    pub total: usize,
    /// The number of VIPs that are ready, which means that `/readyz/vip/NAME` returns status 200.
    pub ready: usize,
}

/// The totals of BGP sessions and announced VIPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BgpTotals {
    /// The number of BGP peers of this machine.
    pub peers: usize,
    /// The number of peers with an established session.
    pub established: usize,
    /// The number of VIPs that the configuration announces.
    pub vips: usize,
    /// The number of VIPs that are currently announced in all their address families.
    pub announced: usize,
}

/// The names of unavailable objects, at most ten of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DownView {
    /// The pool members that receive no traffic, such as `b1 in web`, and the removed backends that
    /// failed during their drain, such as `b2 (removed)`.
    pub backends: Vec<String>,
    /// The VIPs that are not ready.
    pub vips: Vec<String>,
    /// The BGP peers without a session.
    pub routers: Vec<String>,
}

impl DownView {
    /// The maximum number of names of each kind.
    pub const MOST: usize = 10;
}

/// The number of pool members in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateTotals {
    /// The number of backends that serve, counted once per pool.
    pub serving: usize,
    /// The number of draining pool members, which receive only existing flows.
    pub draining: usize,
    /// The number of pool members that receive no traffic.
    pub down: usize,
    /// The number of pool members without a completed check, which receive no traffic.
    pub unknown: usize,
    /// The number of members of keyed pools that wait until their server is flushed, because it was
    /// unavailable.
    pub flushing: usize,
}

/// An override of an operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OverrideRow {
    /// The name of the backend.
    pub backend: String,
    /// The leaf pool, or null for all leaf pools of the backend.
    pub pool: Option<String>,
    /// The state and weight that the override sets.
    #[serde(flatten)]
    pub says: Override,
    /// The time since the override was set, in seconds.
    pub since_seconds: f64,
    /// The client that set the override, such as `uid 0` for a client on the socket, or the
    /// certificate name and address of a TCP client.
    pub by: String,
    /// The reason given by the operator, or null.
    pub reason: Option<String>,
    /// The time until the override ends, in seconds. Null if the override does not expire.
    pub ends_in_seconds: Option<f64>,
    /// The time until a drained backend goes down and its remaining flows move, in seconds. Null
    /// if the drain was requested without this step.
    pub down_in_seconds: Option<f64>,
}

/// The result of the last configuration change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LastReload {
    /// The time when the change ended, in seconds since 1970.
    pub unix_seconds: u64,
    /// The outcome of the change.
    pub outcome: ReloadOutcome,
    /// The time from the start of the change to its publication or rejection, in milliseconds.
    pub took_ms: f64,
    /// A description in one sentence, or the reasons for a rejection.
    pub message: String,
}

/// The outcome of a configuration change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReloadOutcome {
    /// A new generation is active.
    Published,
    /// The configuration is the same, and the generation keeps its number.
    Unchanged,
    /// The change was rejected, and the previous generation remains active.
    Refused,
}
