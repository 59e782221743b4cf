//! What becomes of a packet, in names: what `where` and the tracer show.
//!
//! Not here: where the names come from; the control plane knows the packet threads' numbers.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What becomes of a packet, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Explained {
    /// `forward`; `reply` (its sender is answered); or why it is dropped, such as `no_vip`.
    pub verdict: String,
    /// What found the backend: `flow_table`, `maglev`, `fragment_table` or `remote` (no backend here serves: `backend` is another cluster); `redirect`: another machine of the cluster gathers the pieces
    /// of its datagram, and `backend` is that.
    #[schemars(extend("enum" = ["flow_table", "maglev", "remote", "fragment_table", "redirect", null]))]
    pub step: Option<String>,
    /// The service that it matches.
    pub service: Option<String>,
    /// The pool that serves it.
    pub pool: Option<String>,
    /// `5-tuple`, `addresses` or `source`.
    #[schemars(extend("enum" = ["5-tuple", "addresses", "source", null]))]
    pub hashed: Option<String>,
    /// Its hash, in hex.
    pub hash: Option<String>,
    /// The Maglev table's entry, when that was asked.
    pub table_entry: Option<u64>,
    /// Entries of that table.
    pub table_size: Option<u64>,
    /// The first entry's backend does not serve.
    pub rehashed: Option<bool>,
    /// The connection table knows the flow, but its backend is gone, down, or no longer the service's.
    pub reselected: Option<bool>,
    /// Where it goes.
    pub backend: Option<WhereBackend>,
}

/// A backend that was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhereBackend {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// How packets travel to it: `gre`, `ipip`, `gue` or `l2`.
    #[schemars(extend("enum" = ["gre", "ipip", "gue", "l2"]))]
    pub encapsulation: String,
}

impl Explained {
    /// Whether a packet reaches somebody: a backend, or its sender with an answer.
    #[must_use]
    pub fn is_served(&self) -> bool {
        matches!(self.verdict.as_str(), "forward" | "reply")
    }

    /// The step and where it leads, in words.
    #[must_use]
    pub fn sentence(&self) -> String {
        let step = match (self.step.as_deref(), self.table_entry, self.table_size) {
            (Some("flow_table"), ..) => "flow table".to_owned(),
            (Some("fragment_table"), ..) => "fragment table".to_owned(),
            (Some("redirect"), ..) => "redirected".to_owned(),
            (Some("remote"), ..) => "no backend here serves".to_owned(),
            (Some(_), Some(entry), Some(size)) => {
                let again = if self.rehashed == Some(true) { ", hashed again" } else { "" };
                let anew = if self.reselected == Some(true) { ", its backend was gone" } else { "" };
                format!("Maglev entry {entry} of {size}{again}{anew}")
            }
            _ => String::new(),
        };
        let backend = self.backend.as_ref().map(|found| {
            let WhereBackend { name, address, encapsulation } = found;
            let what = match self.step.as_deref() {
                Some("redirect") => "machine",
                Some("remote") => "cluster",
                _ => "backend",
            };
            format!("{what} {name} at {address} by {encapsulation}")
        });
        let end = match self.verdict.as_str() {
            "forward" => String::new(),
            "reply" => "answered to its sender".to_owned(),
            reason => format!("dropped as {reason}"),
        };
        let parts = [step, backend.unwrap_or_default(), end];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" -> ")
    }
}
