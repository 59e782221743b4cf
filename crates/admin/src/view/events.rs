//! The last changes of state, oldest first.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Changes of state that were asked for, out of the last 1,000.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventsView {
    /// Made at start: numbers count from there.
    pub boot_id: String,
    /// The number of the last event of all; 0: there was none.
    pub newest: u64,
    /// Events that would have been looked at and are no longer kept.
    pub forgotten: u64,
    /// Oldest first.
    pub events: Vec<EventRow>,
}

/// A change of state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventRow {
    /// From 1, one more for each.
    pub number: u64,
    /// Time of day, to the millisecond.
    pub unix_seconds: f64,
    /// What has changed.
    pub kind: EventKind,
    /// How much it matters.
    pub severity: EventSeverity,
    /// What happened, in the words of the log.
    pub what: String,
    /// To what: the other fields of the log's line, such as `backend` and `pool`.
    pub about: BTreeMap<String, String>,
    /// Why; null: what happened says it.
    pub cause: Option<String>,
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A backend, by its checks or the way to it.
    Backend,
    /// Whether a VIP is served, and announced.
    Vip,
    /// A router's BGP or BFD session.
    Router,
    /// An operator's order, given or over.
    Order,
    /// A reload, taken or refused.
    Reload,
    /// An interface.
    Link,
    /// This machine: ready, draining, its packet threads.
    Machine,
}

impl EventKind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Backend, Self::Vip, Self::Router, Self::Order, Self::Reload, Self::Link, Self::Machine];

    /// As in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Backend => "backend",
            Self::Vip => "vip",
            Self::Router => "router",
            Self::Order => "order",
            Self::Reload => "reload",
            Self::Link => "link",
            Self::Machine => "machine",
        }
    }

    /// That of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// As the log's levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventSeverity {
    /// Something failed.
    Error,
    /// Something should be looked at.
    Warning,
    /// It is as it should be.
    Info,
}
