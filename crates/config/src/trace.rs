//! `[trace]`: whether a machine reports marked packets, and to which receivers.
//!
//! In: the section. Out: [`Trace`]; without the section nothing is reported.
//! Not here: marks and their key, which comes of the cluster's (`forwarder`).

use config_text::Section;
use serde::Serialize;

use forwarder::Prefix;

use super::address::AddressNode;
use super::canonical;

/// Where reports of marked packets go, and how many a second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trace {
    /// Where reports may go, at least one prefix.
    #[serde(serialize_with = "canonical::set")]
    pub receivers: Vec<Prefix>,
    /// Reports a second of each packet thread, bursts of as many: 1 to 200. Default 100.
    pub max_per_second: u32,
}

impl Trace {
    pub(super) fn read(mut section: Section<'_>) -> Option<Self> {
        let receivers = section.required("receivers", RECEIVERS).and_then(|node| node.items(RECEIVERS));
        let max_per_second = section.or("max_per_second", 100, |node| node.number(1..=MOST));
        section.finish();
        let receivers = receivers?.iter().map(|node| node.source(RECEIVERS)).collect::<Vec<_>>();
        Some(Self { receivers: receivers.into_iter().collect::<Option<_>>()?, max_per_second })
    }
}

/// A second's worth must fit into the ring between a packet thread and the control loop.
const MOST: u32 = 200;
const RECEIVERS: &str = "a list of prefixes or addresses such as [\"198.51.100.9\", \"2001:db8:9::/64\"]";
