//! Runs batches of frames through the forwarder and measures the time of `process`.

use std::time::{Duration, Instant};

use forwarder::{Forward, MAX_ENCAP_OVERHEAD, Now, Origin, Packet, Pipeline, Verdict};

use crate::{DEFAULT_BATCH, FRAME_ROOM};

/// The frame buffers of a batch, with the settings that all its packets share. As in production,
/// each frame has [`MAX_ENCAP_OVERHEAD`] bytes of headroom.
#[derive(Debug)]
pub struct Batch {
    memory: Vec<[u8; FRAME_ROOM]>,
    /// The expected verdict of every packet.
    pub verdict: Verdict,
    /// A different verdict that is also permitted.
    pub other: Option<Verdict>,
}

impl Default for Batch {
    /// Creates a batch whose packets are forwarded with GRE over IPv4.
    fn default() -> Self {
        Self { memory: vec![[0; FRAME_ROOM]; DEFAULT_BATCH], verdict: Verdict::Tx, other: None }
    }
}

impl Batch {
    /// Copies new frames into the buffers, as a NIC would, and returns the duration of `process`.
    ///
    /// # Panics
    /// Panics if the verdict of a packet differs from [`Self::verdict`].
    pub fn run<const N: usize>(
        &mut self,
        pipeline: &mut Pipeline,
        now: Now,
        mut next: impl FnMut() -> [u8; N],
    ) -> Duration {
        let start = MAX_ENCAP_OVERHEAD;
        for buffer in &mut self.memory {
            buffer[start..start + N].copy_from_slice(&next());
        }
        let mut buffers = self.memory.iter_mut();
        let mut packets: [Packet<'_>; DEFAULT_BATCH] = std::array::from_fn(|_| {
            let buffer = buffers.next().expect("the batch has enough buffers");
            Packet::new(buffer, start, start + N, Origin::Wire)
        });
        let mut verdicts = [Verdict::Reply; DEFAULT_BATCH];
        let begun = Instant::now();
        pipeline.process(now, &mut packets, &mut verdicts);
        let took = begun.elapsed();
        assert!(
            verdicts.iter().all(|verdict| *verdict == self.verdict || Some(*verdict) == self.other),
            "expected only verdicts {:?}, found {verdicts:?}",
            self.verdict
        );
        took
    }
}
