//! `[trace]`: whether a machine tells of marked packets, and whom.
//!
//! In: the section. Out: [`Trace`]; without the section nobody is told.
//! Not here: marks and their key, which comes of the cluster's (`forwarder`).

use serde::Serialize;

use forwarder::Prefix;

use super::address::{PrefixFlaw, source};
use super::canonical;
use super::reader::{Node, Section};
use crate::words::quote;

/// Who is told of marked packets, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trace {
    #[serde(serialize_with = "canonical::set")]
    receivers: Vec<Prefix>,
    max_per_second: u32,
}

impl Trace {
    /// Where reports may go, at least one prefix.
    pub fn receivers(&self) -> &[Prefix] {
        &self.receivers
    }

    /// Reports a second of each packet thread, bursts of as many: 1 to 200. Default 100.
    pub fn max_per_second(&self) -> u32 {
        self.max_per_second
    }

    pub(super) fn read(mut section: Section<'_>) -> Option<Self> {
        let receivers = section.required("receivers", RECEIVERS).and_then(|node| node.items(RECEIVERS));
        let max_per_second = section.or("max_per_second", 100, |node| node.number(1..=MOST));
        section.finish(&[]);
        let receivers = receivers?.iter().map(receiver).collect::<Vec<_>>();
        Some(Self { receivers: receivers.into_iter().collect::<Option<_>>()?, max_per_second })
    }
}

fn receiver(node: &Node<'_>) -> Option<Prefix> {
    let text = node.as_str().or_else(|| node.wrong(RECEIVERS))?;
    let flaw = match source(text) {
        Ok(prefix) => return Some(prefix),
        Err(flaw) => flaw,
    };
    let (found, allowed) = match flaw {
        PrefixFlaw::NoAddress => (quote(text), RECEIVERS.to_owned()),
        PrefixFlaw::Words { found, allowed } => (found, allowed),
    };
    node.report.error(&node.place, found, allowed);
    None
}

/// A second's worth must fit into the ring between a packet thread and the control loop.
const MOST: u32 = 200;
const RECEIVERS: &str = "a list of prefixes or addresses such as [\"198.51.100.9\", \"2001:db8:9::/64\"]";
