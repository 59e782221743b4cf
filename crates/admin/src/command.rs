//! The commands that the API server sends to the run loop of the process.
//!
//! The API server creates a [`Command`] for each request. Each command contains the sender for its
//! single reply. If the run loop drops the sender without a reply, for example during shutdown, the
//! client receives status 503.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::view::{
    BackendChange, BackendRow, BgpView, CaptureEnd, ConfigView, Confirmed, EventKind, EventsView, FlowPage,
    GenerationView, HealthView, HistoryView, HotKeysView, LogChange, LogLevel, LogView, MachineDrain, Purged,
    Refusal, ReloadReport, Status, Upgraded, VipAction, VipChange, VipRow, WhereView,
};
use crate::stats::Stats;

/// The sender for the reply to a command. The send fails if the client has disconnected, and the
/// run loop ignores that error.
pub type Answer<T> = oneshot::Sender<T>;

/// A command for the run loop, created from a client request.
///
/// The server waits up to [`ANSWER_WITHIN_SECONDS`] seconds for the reply, and then responds with
/// status 503.
#[derive(Debug)]
#[non_exhaustive]
pub enum Command {
    /// Returns the status of the load balancer.
    Status(Answer<Status>),
    /// Lists all VIPs.
    Vips(Answer<Vec<VipRow>>),
    /// Lists all backends, with one row for each leaf pool that contains the backend.
    Backends(Answer<Vec<BackendRow>>),
    /// Lists all health check targets.
    Health(Answer<HealthView>),
    /// Lists the BGP peers and their announced routes.
    Bgp(Answer<BgpView>),
    /// Drains or undrains this machine.
    Machine {
        /// The requested action: a drain or its cancellation.
        action: MachineAction,
        /// The state of the drain, or a conflict error if the action is not possible.
        answer: Answer<Result<MachineDrain, Refusal>>,
    },
    /// Starts a new process, which takes over from this process.
    Upgrade {
        /// The path of the new program. If `None`, the file from which this process was started is
        /// used.
        binary: Option<String>,
        /// The result of the upgrade. After a failed upgrade the old process continues unchanged.
        answer: Answer<Result<Upgraded, Refusal>>,
    },
    /// Lists recent events.
    Events {
        /// Selects the events to return.
        query: EventQuery,
        /// The matching events, oldest first.
        answer: Answer<EventsView>,
    },
    /// Returns the current log level.
    Log(Answer<LogView>),
    /// Changes the log level for a limited time.
    OverrideLog {
        /// The new level. `None` restores the configured level.
        command: Option<LogLevelOverride>,
        /// The levels before and after the change.
        answer: Answer<LogChange>,
    },
    /// Returns all counters.
    Stats(Answer<Stats>),
    /// Changes the override of a backend.
    Backend {
        /// The name of the backend.
        name: String,
        /// The leaf pool. If `None`, the override applies to the backend in all its pools.
        pool: Option<String>,
        /// The override to set or to remove.
        action: BackendAction,
        /// The requester, the reason, and the duration of the override.
        note: OverrideNote,
        /// The affected backend in each of its pools, or a "not found" error if there is no such
        /// backend.
        answer: Answer<Result<BackendChange, Refusal>>,
    },
    /// Withdraws or announces VIPs.
    Vip {
        /// The name of the VIP, or `None` for all VIPs that this machine announces.
        name: Option<String>,
        /// The override to set.
        action: VipAction,
        /// The requester, the reason, and the duration of the override.
        note: OverrideNote,
        /// The announcements of the VIPs. The error is "conflict" if this machine does not announce
        /// the VIP.
        answer: Answer<Result<VipChange, Refusal>>,
    },
    /// Reads the configuration file again.
    Reload {
        /// The requester and the conditions of the reload.
        terms: ReloadTerms,
        /// The new generation, or all problems in the rejected configuration.
        answer: Answer<Result<ReloadReport, Refusal>>,
    },
    /// Replaces the configuration with the given text. The server has already checked that
    /// `admin.put` allows uploads.
    PutConfig {
        /// The configuration in TOML, up to [`CONFIG_BYTES`] bytes.
        text: String,
        /// The entity tag of the configuration that the operator edited, without quotes. `None`
        /// represents the header `If-Match: *`, which matches every configuration. If the tag
        /// differs from the current tag, the command fails with
        /// [`RefusalKind::Stale`](super::RefusalKind::Stale).
        if_match: Option<String>,
        /// The requester and the conditions of the reload.
        terms: ReloadTerms,
        /// The new generation, or all problems in the rejected configuration.
        answer: Answer<Result<ReloadReport, Refusal>>,
    },
    /// Makes the current trial generation permanent. A trial generation is a generation that was
    /// loaded with [`ReloadTerms::confirm`].
    Confirm(Answer<Result<Confirmed, Refusal>>),
    /// Restores an earlier generation.
    Rollback {
        /// The generation number. `None` means the last confirmed generation while a trial
        /// generation is active, and otherwise the generation before the current generation.
        generation: Option<u64>,
        /// The requester and the conditions of the reload.
        terms: ReloadTerms,
        /// The new generation, or a "not found" error if the requested generation is no longer
        /// stored.
        answer: Answer<Result<ReloadReport, Refusal>>,
    },
    /// Returns the current configuration as text.
    Config(Answer<ConfigView>),
    /// Lists the stored generations.
    History(Answer<HistoryView>),
    /// Returns one stored generation with its configuration files.
    Generation {
        /// The generation number.
        generation: u64,
        /// The generation, or a "not found" error if it is no longer stored.
        answer: Answer<Result<GenerationView, Refusal>>,
    },
    /// Lists tracked flows.
    Flows {
        /// Selects the flows to list.
        filter: FlowQuery,
        /// The maximum number of flows in the reply, 1 to [`FLOWS_AT_MOST`].
        limit: usize,
        /// The flows, or a "not found" error if the VIP or backend does not exist.
        answer: Answer<Result<FlowPage, Refusal>>,
    },
    /// Removes flows from the connection tables. The next packet of a removed flow starts a new
    /// flow.
    PurgeFlows {
        /// Selects the flows to remove.
        filter: FlowQuery,
        /// The number of removed flows, or a "not found" error if the VIP or backend does not
        /// exist.
        answer: Answer<Result<Purged, Refusal>>,
    },
    /// Returns the decision that each packet thread would make for a packet of a flow. The server
    /// has checked that both addresses have the same family.
    Where {
        /// The address and port of the client.
        source: SocketAddr,
        /// The address and port of the VIP.
        destination: SocketAddr,
        /// The IP protocol number of the flow.
        protocol: u8,
        /// The key in a request to a keyed service. `None` means that the packet contains no key.
        key: Option<String>,
        /// One row for each packet thread.
        answer: Answer<Result<WhereView, Refusal>>,
    },
    /// Captures packets until a limit is reached, the stream is dropped, or `EndCapture` is
    /// received.
    Capture {
        /// The filter and the limits of the capture.
        command: CaptureCommand,
        /// The stream of the capture. The error is "not found" if the VIP or backend does not
        /// exist, and "conflict" if another capture is active.
        answer: Answer<Result<CaptureStream, Refusal>>,
    },
    /// Ends the active capture and completes its stream.
    EndCapture(Answer<Result<CaptureEnd, Refusal>>),
    /// Counts the requests for each key for a limited time. The count ends early if the receiver of
    /// the reply is dropped.
    HotKeys {
        /// The filter and the duration.
        command: HotKeysCommand,
        /// The most requested keys. The error is "not found" if the VIP does not exist or has no
        /// keyed service, and "conflict" if another count is active.
        answer: Answer<Result<HotKeysView, Refusal>>,
    },
}

/// The parameters of [`Command::HotKeys`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotKeysCommand {
    /// The VIP whose requests are counted. `None` means all VIPs.
    pub vip: Option<String>,
    /// The maximum number of keys in the reply, 1 to [`HOT_KEYS_AT_MOST`].
    pub limit: usize,
    /// The time for which requests are counted, up to [`HOT_KEYS_SECONDS_AT_MOST`] seconds.
    pub within: Duration,
}

/// The filter and the limits of a capture. A packet must match all conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureCommand {
    /// If set, only packets to this VIP are captured.
    pub vip: Option<String>,
    /// If set, only packets to this backend are captured.
    pub backend: Option<String>,
    /// If set, only packets that were dropped for one of these reasons are captured. The reasons
    /// are names from [`counters::PIPELINE_DROPS`].
    pub drops: Option<Vec<&'static str>>,
    /// `true` if only packets whose flow was not in the connection table are captured.
    pub new_flows: bool,
    /// The sampling rate N. Each packet thread captures one in N matching packets.
    pub sample: NonZeroU32,
    /// The number of bytes to capture from each packet, in the range [`SNAP_BYTES`].
    pub snap: usize,
    /// The maximum number of captured packets.
    pub count: Option<NonZeroU64>,
    /// The maximum duration of the capture.
    pub within: Duration,
}

/// The stream of a capture, which consists of complete pcapng blocks.
#[derive(Debug)]
pub struct CaptureStream(pub mpsc::Receiver<Bytes>);

/// A change to the override of a backend. A later change replaces an earlier change. An override
/// survives a reload, but not a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendAction {
    /// Stops new flows. Existing flows continue.
    Drain,
    /// Ends `Drain`, but keeps an overridden weight.
    Undrain,
    /// Stops all traffic. Each existing flow moves to another backend when its next packet arrives.
    Down,
    /// Removes all overrides of the backend, including the weight.
    Up,
    /// Sets the weight. `None` restores the configured weight.
    Weight(Option<u32>),
}

/// The requester and the conditions of a configuration change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadTerms {
    /// The client that sent the command, in the form that appears in the log.
    pub by: String,
    /// The time limit for the [`Command::Confirm`] that must follow. If no confirmation arrives in
    /// time, the change is rolled back. `None` makes the change permanent.
    pub confirm: Option<Duration>,
    /// `true` if the change is accepted even if it moves more table slots to other backends than
    /// `cluster.max_moved` allows, or if it changes the hash key.
    pub force: bool,
}

/// The requester, the reason and the duration of an override.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverrideNote {
    /// The client that sent the command, in the form that appears in the log.
    pub by: String,
    /// The reason given by the operator.
    pub reason: Option<String>,
    /// The time after which the override ends, or `None` if it does not expire.
    pub lasts: Option<Duration>,
    /// Only for [`BackendAction::Drain`]: the time after which the backend goes down, so that its
    /// remaining flows move to other backends.
    pub then_down: Option<ThenDown>,
}

/// When a drained backend goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThenDown {
    /// After `cluster.drain_time`.
    AfterDrainTime,
    /// After this time.
    After(Duration),
}

/// A temporary log level. A later temporary level replaces an earlier temporary level. The level
/// survives a reload, but not a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevelOverride {
    /// The least severe level at which log lines are written.
    pub level: LogLevel,
    /// The time after which the configured level applies again.
    pub lasts: Duration,
    /// The client that sent the command, in the form that appears in the log.
    pub by: String,
    /// The reason given by the operator.
    pub reason: Option<String>,
}

/// An action on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineAction {
    /// Announces all routes with the graceful-shutdown community, then withdraws them, and ends the
    /// process after traffic has stopped.
    Drain,
    /// Cancels `Drain` while the process is still running.
    Undrain,
}

/// The filter for events. An event must match all conditions. If too many events match, the most
/// recent events are returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventQuery {
    /// The kinds of events. An empty list means all kinds.
    pub kinds: Vec<EventKind>,
    /// Only events with a number greater than this are returned.
    pub after: u64,
    /// If set, only events that are at most this old are returned.
    pub since: Option<Duration>,
    /// The maximum number of events, 1 to [`EVENTS_AT_MOST`].
    pub limit: usize,
}

impl Default for EventQuery {
    /// Returns a filter that matches all stored events.
    fn default() -> Self {
        Self { kinds: Vec::new(), after: 0, since: None, limit: EVENTS_AT_MOST }
    }
}

/// The filter for flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowQuery {
    /// All flows.
    All,
    /// Selects flows to any service of this VIP.
    Vip(String),
    /// Selects flows to this backend in any of its pools.
    Backend(String),
}

/// The maximum time that the server waits for the reply to a command, in seconds.
pub const ANSWER_WITHIN_SECONDS: u64 = 30;
/// The maximum size of a configuration that is uploaded with `PUT`, in bytes.
pub const CONFIG_BYTES: usize = 16 << 20;
/// The allowed number of captured bytes per packet.
pub const SNAP_BYTES: RangeInclusive<usize> = 64..=2_048;
/// The number of stored events, which is also the maximum number of events in one reply.
pub const EVENTS_AT_MOST: usize = 1_000;
/// The maximum number of keys in one reply.
pub const HOT_KEYS_AT_MOST: usize = 1_000;
/// The maximum time for which hot keys are counted, in seconds. The reply is sent when the counting
/// ends, so this time must be shorter than [`ANSWER_WITHIN_SECONDS`].
pub const HOT_KEYS_SECONDS_AT_MOST: u64 = 20;
/// The maximum number of flows in one reply.
pub const FLOWS_AT_MOST: usize = 10_000;
