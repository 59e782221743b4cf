//! A batch of frames through the forwarder, and the time that `process` alone takes.

use std::time::{Duration, Instant};

use forwarder::{Forward, Now, Origin, Packet, Pipeline, Verdict};

use crate::{DEFAULT_BATCH, FRAME_ROOM, GRE_V4};

/// Memory for a batch.
#[derive(Debug)]
pub struct Batch(Vec<[u8; FRAME_ROOM]>);

impl Default for Batch {
    fn default() -> Self {
        Self(vec![[0; FRAME_ROOM]; DEFAULT_BATCH])
    }
}

impl Batch {
    /// Puts fresh frames in place, as a NIC would, and times `process` alone.
    ///
    /// # Panics
    /// When a packet is not sent on.
    pub fn run<const N: usize>(
        &mut self,
        pipeline: &mut Pipeline,
        now: Now,
        mut next: impl FnMut() -> [u8; N],
    ) -> Duration {
        for buffer in &mut self.0 {
            buffer[GRE_V4..GRE_V4 + N].copy_from_slice(&next());
        }
        let mut buffers = self.0.iter_mut();
        let mut packets: [Packet<'_>; DEFAULT_BATCH] = std::array::from_fn(|_| {
            let buffer = buffers.next().expect("one buffer each");
            Packet::new(buffer, GRE_V4, GRE_V4 + N, Origin::Wire)
        });
        let mut verdicts = [Verdict::Reply; DEFAULT_BATCH];
        let start = Instant::now();
        pipeline.process(now, &mut packets, &mut verdicts);
        let took = start.elapsed();
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Tx), "every packet is sent on");
        took
    }
}
