//! `[trace]`: the receivers of trace reports, which describe what happens to marked packets.
//!
//! Without this section, no reports are sent. The crate `forwarder` reads the marks, and
//! authenticates them with a key that is derived from the cluster's hash key.

use config_text::{Expected, Section};
use serde::Serialize;

use forwarder::Prefix;

use super::address::AddressNode;
use super::canonical;

/// The receivers of trace reports about marked packets, and the maximum rate of reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trace {
    /// One or more prefixes to which reports may be sent.
    #[serde(serialize_with = "canonical::set")]
    pub receivers: Vec<Prefix>,
    /// The maximum number of reports per second from each packet thread, which is also the maximum
    /// burst: 1 to 200. Default: 100.
    pub max_per_second: u32,
}

impl Trace {
    pub(super) fn read(mut section: Section<'_>) -> Option<Self> {
        let receivers = section.required("receivers", RECEIVERS).and_then(|node| node.items(RECEIVERS));
        let max_per_second = section.or("max_per_second", 100, |node| node.number(1..=MOST));
        section.finish();
        let receivers = receivers?.iter().map(|node| node.source(RECEIVER)).collect::<Vec<_>>();
        Some(Self { receivers: receivers.into_iter().collect::<Option<_>>()?, max_per_second })
    }
}

/// The maximum report rate. The reports of one second must fit into the notice ring between a
/// packet thread and the control loop.
const MOST: u32 = 200;
const RECEIVERS: Expected =
    Expected::new("a list of prefixes or addresses").example("[\"198.51.100.9\", \"2001:db8:9::/64\"]");
const RECEIVER: Expected = Expected::new("an IP prefix or address").example("\"198.51.100.9\"");
