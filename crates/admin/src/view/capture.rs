//! What a capture was.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A capture that was ended, as far as it had come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CaptureEnd {
    /// Packets that matched, before sampling.
    pub matched: u64,
    /// Packets recorded.
    pub captured: u64,
    /// Packets that should have been, and found the ring full.
    pub lost: u64,
}
