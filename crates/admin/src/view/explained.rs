//! What becomes of a packet, in names: what `where` and the tracer show.
//!
//! Not here: where the names come from; the control plane knows the packet threads' numbers.

use std::fmt;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What becomes of a packet, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Explained {
    /// What becomes of it.
    pub verdict: Verdict,
    /// What found the backend.
    pub step: Option<Step>,
    /// The service that it matches.
    pub service: Option<String>,
    /// The pool that serves it.
    pub pool: Option<String>,
    /// What of it is hashed.
    pub hashed: Option<Hashed>,
    /// Its hash, in hex.
    pub hash: Option<String>,
    /// The Maglev table's entry, when that was asked, or the ring's point.
    pub table_entry: Option<u64>,
    /// Entries of that table, or points of that ring.
    pub table_size: Option<u64>,
    /// The first entry's backend does not serve.
    pub rehashed: Option<bool>,
    /// The connection table knows the flow, but its backend is gone, down, or no longer the service's.
    pub reselected: Option<bool>,
    /// Where it goes.
    pub backend: Option<WhereBackend>,
    /// The backends that have its key, in the order of choices, where keys have replicas: writes go to all of them.
    #[serde(default)]
    pub replicas: Vec<WhereBackend>,
}

/// What becomes of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It goes to a backend.
    #[default]
    Forward,
    /// Its sender is answered.
    Reply,
    /// It is dropped for this reason, such as `no_vip`.
    #[serde(untagged)]
    Drop(String),
}

/// What found a packet's backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The connection table.
    FlowTable,
    /// The Maglev table.
    Maglev,
    /// The ring by which clients place keys: `table_entry` is its point.
    Ring,
    /// No backend here serves: `backend` is another cluster.
    Remote,
    /// The fragment table.
    FragmentTable,
    /// Another machine of the cluster gathers the pieces of its datagram, and `backend` is that.
    Redirect,
}

/// What of a packet is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Hashed {
    /// Addresses, ports and protocol.
    #[serde(rename = "5-tuple")]
    FiveTuple,
    /// Both addresses.
    Addresses,
    /// The source address.
    Source,
    /// The key of a request.
    Key,
}

/// A backend that was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhereBackend {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// How packets travel to it.
    pub encapsulation: Encapsulation,
}

/// How packets travel to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the protocols' names")]
pub enum Encapsulation {
    Gre,
    Ipip,
    Gue,
    /// None: the link header names the backend.
    L2,
}

impl fmt::Display for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gre => "gre",
            Self::Ipip => "ipip",
            Self::Gue => "gue",
            Self::L2 => "l2",
        })
    }
}

impl Explained {
    /// Whether a packet reaches somebody: a backend, or its sender with an answer.
    #[must_use]
    pub fn is_served(&self) -> bool {
        matches!(self.verdict, Verdict::Forward | Verdict::Reply)
    }

    /// The step and where it leads, in words.
    #[must_use]
    pub fn sentence(&self) -> String {
        let step = match (self.step, self.table_entry, self.table_size) {
            (Some(Step::FlowTable), ..) => "flow table".to_owned(),
            (Some(Step::FragmentTable), ..) => "fragment table".to_owned(),
            (Some(Step::Redirect), ..) => "redirected".to_owned(),
            (Some(Step::Remote), ..) => "no backend here serves".to_owned(),
            (Some(Step::Ring), Some(point), Some(size)) => {
                let next = if self.rehashed == Some(true) { ", its own backend does not serve" } else { "" };
                format!("ring point {point} of {size}{next}")
            }
            (Some(Step::Maglev), Some(entry), Some(size)) => {
                let again = if self.rehashed == Some(true) { ", hashed again" } else { "" };
                let anew = if self.reselected == Some(true) { ", its backend was gone" } else { "" };
                format!("Maglev entry {entry} of {size}{again}{anew}")
            }
            _ => String::new(),
        };
        let backend = self.backend.as_ref().map(|found| {
            let WhereBackend { name, address, encapsulation } = found;
            let what = match self.step {
                Some(Step::Redirect) => "machine",
                Some(Step::Remote) => "cluster",
                _ => "backend",
            };
            format!("{what} {name} at {address} by {encapsulation}")
        });
        let end = match &self.verdict {
            Verdict::Forward => String::new(),
            Verdict::Reply => "answered to its sender".to_owned(),
            Verdict::Drop(reason) => format!("dropped as {reason}"),
        };
        let parts = [step, backend.unwrap_or_default(), end];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" -> ")
    }
}
