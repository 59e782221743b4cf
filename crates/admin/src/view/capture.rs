//! The result of a capture.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of a request to end a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaptureEnd {
    /// The number of packets that matched the filter, before sampling.
    pub matched: u64,
    /// The number of captured packets.
    pub captured: u64,
    /// The number of packets that were lost because the capture ring was full.
    pub lost: u64,
}
