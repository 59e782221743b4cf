//! A frame: the one handle on a chunk of the UMEM.
//!
//! Not here: its bytes (`umem`), and those of a packet that lies in several (`slots`, `long`).

use xsk_rs::FrameDesc;

/// One UMEM chunk, owned. Neither `Clone` nor `Copy`: two owners of one chunk is the bug it removes.
#[must_use = "a frame goes to a ring or to a pool; dropping it loses the chunk"]
#[derive(Debug)]
pub struct Frame(pub(crate) FrameDesc);

impl Frame {
    /// Whether its packet is longer than its chunk, and lies in a slot.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.0.has_more_frames()
    }
}
