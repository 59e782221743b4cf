//! Questions and orders of an operator, as messages to the balancer's run loop.
//!
//! In: the API server makes them. Out: each carries the sender for its one answer.
//! Invariant: a sender that is dropped unanswered is an answer too: it is refused, as by a balancer that is stopping.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::view::{
    BackendChange, BackendRow, BgpView, CaptureEnd, ConfigView, Confirmed, EventKind, EventsView, FlowPage,
    GenerationView, HealthView, HistoryView, HotKeysView, LogChange, LogLevel, LogView, MachineDrain, Purged,
    Refusal, ReloadReport, Status, Upgraded, VipRow, WhereView,
};
use crate::stats::Stats;

/// Where the answer goes. A client that has gone needs none.
pub type Answer<T> = oneshot::Sender<T>;

/// One question or order.
///
/// Each waits for its answer for at most [`ANSWER_WITHIN_SECONDS`]; what takes longer is refused as unavailable.
#[derive(Debug)]
#[non_exhaustive]
pub enum Command {
    /// How is it?
    Status(Answer<Status>),
    /// Every VIP.
    Vips(Answer<Vec<VipRow>>),
    /// Every membership: a backend in a leaf pool.
    Backends(Answer<Vec<BackendRow>>),
    /// Every check target.
    Health(Answer<HealthView>),
    /// Routers, and what is announced to them.
    Bgp(Answer<BgpView>),
    /// An order to this machine.
    Machine {
        /// What to do.
        action: MachineAction,
        /// What began; a conflict when it can't.
        answer: Answer<Result<MachineDrain, Refusal>>,
    },
    /// Hand over to a new process.
    Upgrade {
        /// The program; `None`: the file that this process was started from.
        binary: Option<String>,
        /// What came of it; when it is refused, everything is as it was.
        answer: Answer<Result<Upgraded, Refusal>>,
    },
    /// The last changes of state.
    Events {
        /// Which.
        query: EventQuery,
        /// Oldest first.
        answer: Answer<EventsView>,
    },
    /// Which lines of the log are written.
    Log(Answer<LogView>),
    /// Write others for a while.
    OrderLog {
        /// Which; `None`: those of the file again.
        order: Option<LogOrder>,
        /// What has changed.
        answer: Answer<LogChange>,
    },
    /// Everything that is counted.
    Stats(Answer<Stats>),
    /// An operator's override.
    Backend {
        /// The backend.
        name: String,
        /// The leaf pool; `None`: all its memberships.
        pool: Option<String>,
        /// What to do.
        action: BackendAction,
        /// Who gives it, why, for how long.
        note: OrderNote,
        /// The memberships touched; not found when there is none.
        answer: Answer<Result<BackendChange, Refusal>>,
    },
    /// Read the file again.
    Reload {
        /// Who asks for it, and on what terms.
        terms: ReloadTerms,
        /// What is in force; every reason when it was refused.
        answer: Answer<Result<ReloadReport, Refusal>>,
    },
    /// Take this configuration in the file's place. The server has looked at `admin.put` before.
    PutConfig {
        /// TOML, at most [`CONFIG_BYTES`].
        text: String,
        /// The entity tag that the operator started from, without quotes; `None`: `If-Match: *`, whatever is there.
        /// Another than the one in force: [`RefusalKind::Stale`](super::RefusalKind::Stale).
        if_match: Option<String>,
        /// As for `Reload`.
        terms: ReloadTerms,
        /// As for `Reload`.
        answer: Answer<Result<ReloadReport, Refusal>>,
    },
    /// What is in force stays, though it came with [`ReloadTerms::confirm`].
    Confirm(Answer<Result<Confirmed, Refusal>>),
    /// Go back to what was in force before.
    Rollback {
        /// Its number; `None`: the last that was confirmed while one waits for it, else the one before that in force.
        generation: Option<u64>,
        /// As for `Reload`.
        terms: ReloadTerms,
        /// As for `Reload`; not found when it is not kept.
        answer: Answer<Result<ReloadReport, Refusal>>,
    },
    /// The configuration in force, as text.
    Config(Answer<ConfigView>),
    /// The last generations.
    History(Answer<HistoryView>),
    /// One of them, with its texts.
    Generation {
        /// Its number.
        generation: u64,
        /// Not found when it is not kept.
        answer: Answer<Result<GenerationView, Refusal>>,
    },
    /// Tracked flows.
    Flows {
        /// Which.
        filter: FlowQuery,
        /// At most so many, from 1 to [`FLOWS_AT_MOST`].
        limit: usize,
        /// Not found when there is no such VIP or backend.
        answer: Answer<Result<FlowPage, Refusal>>,
    },
    /// Forget flows: their next packet is a new flow's.
    PurgeFlows {
        /// Which.
        filter: FlowQuery,
        /// As for `Flows`.
        answer: Answer<Result<Purged, Refusal>>,
    },
    /// What would each packet thread do with this flow? Both ends are of one family: the server has looked.
    Where {
        /// The client.
        source: SocketAddr,
        /// The VIP.
        destination: SocketAddr,
        /// IP protocol number.
        protocol: u8,
        /// Of a request for this key; `None`: of the flow.
        key: Option<String>,
        /// One row a thread.
        answer: Answer<Result<WhereView, Refusal>>,
    },
    /// Capture packets. It ends at its bounds, when the stream is dropped, or by `EndCapture`.
    Capture {
        /// Which.
        order: CaptureOrder,
        /// Not found when there is no such VIP or backend; a conflict while another capture runs.
        answer: Answer<Result<CaptureStream, Refusal>>,
    },
    /// End the capture that runs: its stream comes to its end.
    EndCapture(Answer<Result<CaptureEnd, Refusal>>),
    /// Count keys of requests for a while. It ends at once when the answer is dropped.
    HotKeys {
        /// Whose, and how long.
        order: HotKeysOrder,
        /// Not found when there is no such VIP, or no service that chooses by key; a conflict while others are counted.
        answer: Answer<Result<HotKeysView, Refusal>>,
    },
}

/// Which keys are to be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotKeysOrder {
    /// Of this VIP's requests; `None`: of all.
    pub vip: Option<String>,
    /// At most so many, from 1 to [`HOT_KEYS_AT_MOST`].
    pub limit: usize,
    /// For so long, up to [`HOT_KEYS_SECONDS_AT_MOST`].
    pub within: Duration,
}

/// Which packets are to be captured, and how many. All conditions must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureOrder {
    /// Of this VIP.
    pub vip: Option<String>,
    /// For this backend.
    pub backend: Option<String>,
    /// Dropped for one of these reasons, by names of [`counters::PIPELINE_DROPS`].
    pub drops: Option<Vec<&'static str>>,
    /// Of a flow that the connection table did not know.
    pub new_flows: bool,
    /// One of so many, on each thread.
    pub sample: NonZeroU32,
    /// Bytes of each packet, within [`SNAP_BYTES`].
    pub snap: usize,
    /// No more packets than this.
    pub count: Option<NonZeroU64>,
    /// No longer than this.
    pub within: Duration,
}

/// A capture file as it is made, in whole blocks.
#[derive(Debug)]
pub struct CaptureStream(pub mpsc::Receiver<Bytes>);

/// What an operator may do to a backend. The last one wins; it outlives a reload, not a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendAction {
    /// Out of the table; its flows go on to their end.
    Drain,
    /// Takes back `Drain`; nothing else.
    Undrain,
    /// Out of the table, and its flows are reselected at their next packet.
    Down,
    /// Takes back every override of it, weight included: health and file decide again.
    Up,
    /// Another weight; `None`: the file's again.
    Weight(Option<u32>),
}

/// Who asks for another configuration, and on what terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadTerms {
    /// Who wants it, as the log names clients.
    pub by: String,
    /// It is taken back unless [`Command::Confirm`] comes within this time. `None`: it stays.
    pub confirm: Option<Duration>,
    /// However many slots move.
    pub force: bool,
}

/// What an operator says beside an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderNote {
    /// Who gives it, as the log names clients.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
    /// After how long it ends by itself. `None`: when it is taken back.
    pub lasts: Option<Duration>,
}

/// Another level of the log, for a while. The last order wins; it outlives a reload, not a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOrder {
    /// The least important lines that are written.
    pub level: LogLevel,
    /// After how long it ends by itself.
    pub lasts: Duration,
    /// Who gives it, as the log names clients.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
}

/// What an operator may do to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineAction {
    /// Routes are announced as about to go, then withdrawn; when traffic has gone, the process ends.
    Drain,
    /// Takes back `Drain`, as long as the process has not ended.
    Undrain,
}

/// Which events are meant. All conditions must hold; of those that do, the last ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventQuery {
    /// Of one of these kinds; empty: of any.
    pub kinds: Vec<EventKind>,
    /// With a number above this.
    pub after: u64,
    /// No older than this.
    pub since: Option<Duration>,
    /// At most so many, from 1 to [`EVENTS_AT_MOST`].
    pub limit: usize,
}

impl Default for EventQuery {
    /// All that are kept.
    fn default() -> Self {
        Self { kinds: Vec::new(), after: 0, since: None, limit: EVENTS_AT_MOST }
    }
}

/// Which flows are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowQuery {
    /// All.
    All,
    /// Those of one VIP, over all its services.
    Vip(String),
    /// Those of one backend, over all its memberships.
    Backend(String),
}

/// How long the server waits for an answer.
pub const ANSWER_WITHIN_SECONDS: u64 = 30;
/// The largest configuration taken by `PUT`.
pub const CONFIG_BYTES: usize = 16 << 20;
/// How much of each packet a capture may keep.
pub const SNAP_BYTES: RangeInclusive<usize> = 64..=2_048;
/// Changes of state that are kept, and the longest list of them.
pub const EVENTS_AT_MOST: usize = 1_000;
/// The longest list of keys.
pub const HOT_KEYS_AT_MOST: usize = 1_000;
/// The longest that keys are counted for one answer: it must come within [`ANSWER_WITHIN_SECONDS`].
pub const HOT_KEYS_SECONDS_AT_MOST: u64 = 20;
/// The longest list of flows in one answer.
pub const FLOWS_AT_MOST: usize = 10_000;
