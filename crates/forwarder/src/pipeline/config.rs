//! What a pipeline is made of.

use std::ops::Range;

use super::own_requests::OwnRequests;
use crate::{ThreadId, Timeouts};
use sip_lanes::LaneHashers;

/// What one packet thread's pipeline is made of.
#[derive(Clone, Debug)]
pub struct PipelineConfig {
    /// This thread.
    pub thread: ThreadId,
    /// How many packet threads there are.
    pub threads: u16,
    /// Flows in the connection table, 16 bytes each.
    pub flows: usize,
    /// When flows are forgotten.
    pub timeouts: Timeouts,
    /// The most packets in a batch.
    pub max_batch: usize,
    /// How much ICMP is handled.
    pub icmp: IcmpRates,
    /// Source prefixes whose rates are known at once, 16 bytes each; 0: no source is limited.
    pub limit_sources: usize,
    /// The table of fragmented datagrams.
    pub fragments: fragment_table::Config,
    /// The most frames of one thread's pool that this thread may hold.
    pub held_of_a_pool: usize,
    /// How flows are hashed.
    pub hashers: LaneHashers,
    /// What it asks backends with itself; `None`: requests that want this are refused.
    pub own_requests: Option<OwnRequests>,
    /// Packets were given to this thread by their flows ([`crate::SoftwareSteering`]): what it takes out of a tunnel stays here.
    pub is_steered: bool,
    /// Called with the addresses of large tables before these are touched, so that the kernel may give them in large pages.
    pub advise: fn(Range<usize>),
}

/// How much ICMP a thread handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpRates {
    /// Answers a second: echo replies and spent hops together, and as many packet-too-big errors, which these do not silence.
    pub replies: u32,
    /// Likewise to one source.
    pub replies_to_source: u32,
    /// Errors a second that are sent on or taken in.
    pub errors: u32,
    /// Errors a second from one source.
    pub errors_of_source: u32,
}
