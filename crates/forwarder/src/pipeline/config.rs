//! The configuration of a pipeline.

use std::ops::Range;

use super::upstream_requests::UpstreamRequests;
use crate::{ThreadId, Timeouts};
use sip_lanes::LaneHashers;

/// The configuration of a packet thread's pipeline.
#[derive(Clone, Debug)]
pub struct PipelineConfig {
    /// The packet thread that runs the pipeline.
    pub thread: ThreadId,
    /// The number of packet threads.
    pub threads: u16,
    /// The capacity of the connection table, in flows. Each flow takes 16 bytes.
    pub flows: usize,
    /// The timeouts after which the connection table forgets idle flows.
    pub timeouts: Timeouts,
    /// The maximum number of packets in a batch.
    pub max_batch: usize,
    /// The ICMP rate limits.
    pub icmp: IcmpRates,
    /// The maximum number of source prefixes whose rates are tracked at the same time. Each prefix
    /// takes 16 bytes. The value 0 disables limits per source.
    pub limit_sources: usize,
    /// The configuration of the fragment table.
    pub fragments: fragment_table::Config,
    /// The maximum number of frames from one thread's frame pool that this thread may hold at a
    /// time. The limit applies to each pool separately.
    pub held_of_a_pool: usize,
    /// The hash functions that compute the flow hashes of several flows at a time.
    pub hashers: LaneHashers,
    /// The configuration of upstream requests. If `None`, client requests that need an upstream
    /// request are dropped.
    pub upstream_requests: Option<UpstreamRequests>,
    /// `true` if software steering ([`crate::SoftwareSteering`]) has already distributed the
    /// packets by flow. This thread then processes the packets that it decapsulates itself, instead
    /// of passing them to other threads.
    pub is_steered: bool,
    /// A callback that receives the address range of each large table before the table is first
    /// accessed. For example, the callback can advise the kernel to use huge pages.
    pub advise: fn(Range<usize>),
}

/// The ICMP rate limits of one packet thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpRates {
    /// The maximum number of echo replies and time-exceeded errors sent per second. Packet-too-big
    /// errors have a separate limit of the same size, so floods of pings do not suppress them.
    /// Replies to rejected packets have a third limit of the same size.
    pub replies: u32,
    /// The maximum number of echo replies, resets and ICMP errors sent to one source per second.
    pub replies_per_source: u32,
    /// The maximum number of received ICMP errors that are forwarded or processed per second.
    pub errors: u32,
    /// The maximum number of received ICMP errors from one source that are forwarded or processed
    /// per second.
    pub errors_per_source: u32,
}
