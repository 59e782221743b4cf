//! Recent events.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The events that match the query. The load balancer stores the last 1,000 events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventsView {
    /// The ID of this process, which changes at each start. After a restart, event numbers start at
    /// 1 again.
    pub boot_id: String,
    /// The number of the most recent event, or 0 if there are no events.
    pub newest: u64,
    /// The number of requested events that are no longer stored.
    pub forgotten: u64,
    /// The events, oldest first.
    pub events: Vec<EventRow>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventRow {
    /// The number of the event. Events are numbered from 1 in the order in which they occur.
    pub number: u64,
    /// The time of the event in seconds since 1970, with millisecond precision.
    pub unix_seconds: f64,
    /// The kind of the event.
    pub kind: EventKind,
    /// The severity of the event.
    pub severity: EventSeverity,
    /// The text of the event, which is the message of the log line.
    pub what: String,
    /// The affected objects, such as `backend` and `pool`, taken from the other fields of the log
    /// line.
    pub about: BTreeMap<String, String>,
    /// The cause of the event, or null if the text already contains it.
    pub cause: Option<String>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The state of a backend changed because of its checks or its next hop.
    Backend,
    /// A VIP became available or unavailable, or was announced or withdrawn.
    Vip,
    /// A BGP or BFD session changed its state.
    Router,
    /// An operator ran a command, or an override ended.
    Override,
    /// A reload was accepted or rejected.
    Reload,
    /// The state of an interface changed.
    Link,
    /// The state of this machine changed, for example because a drain started or a packet thread is
    /// stuck.
    Machine,
}

impl EventKind {
    /// All kinds of events.
    pub const ALL: [Self; 7] =
        [Self::Backend, Self::Vip, Self::Router, Self::Override, Self::Reload, Self::Link, Self::Machine];

    /// Returns the name of the kind in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Backend => "backend",
            Self::Vip => "vip",
            Self::Router => "router",
            Self::Override => "override",
            Self::Reload => "reload",
            Self::Link => "link",
            Self::Machine => "machine",
        }
    }

    /// Returns the kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The severity of an event, which is the level of its log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventSeverity {
    /// Part of the load balancer does not work.
    Error,
    /// An operator should act.
    Warning,
    /// No action is needed.
    Info,
}
