//! A batch of frames through the forwarder, and the time that `process` alone takes.

use std::time::{Duration, Instant};

use forwarder::{Forward, Now, Origin, Packet, Pipeline, Verdict};

use crate::{DEFAULT_BATCH, FRAME_ROOM, GRE_V4};

/// Memory for a batch, and what its packets have in common.
#[derive(Debug)]
pub struct Batch {
    memory: Vec<[u8; FRAME_ROOM]>,
    /// Bytes of room in front of each frame, as XDP opens it.
    pub head_room: usize,
    /// What becomes of every packet.
    pub verdict: Verdict,
}

impl Default for Batch {
    /// Of packets that are sent on by GRE over IPv4.
    fn default() -> Self {
        Self { memory: vec![[0; FRAME_ROOM]; DEFAULT_BATCH], head_room: GRE_V4, verdict: Verdict::Tx }
    }
}

impl Batch {
    /// Puts fresh frames in place, as a NIC would, and times `process` alone.
    ///
    /// # Panics
    /// When something else becomes of a packet.
    pub fn run<const N: usize>(
        &mut self,
        pipeline: &mut Pipeline,
        now: Now,
        mut next: impl FnMut() -> [u8; N],
    ) -> Duration {
        let start = self.head_room;
        for buffer in &mut self.memory {
            buffer[start..start + N].copy_from_slice(&next());
        }
        let mut buffers = self.memory.iter_mut();
        let mut packets: [Packet<'_>; DEFAULT_BATCH] = std::array::from_fn(|_| {
            let buffer = buffers.next().expect("one buffer each");
            Packet::new(buffer, start, start + N, Origin::Wire)
        });
        let mut verdicts = [Verdict::Reply; DEFAULT_BATCH];
        let start = Instant::now();
        pipeline.process(now, &mut packets, &mut verdicts);
        let took = start.elapsed();
        assert!(
            verdicts.iter().all(|verdict| *verdict == self.verdict),
            "every packet is {:?}: {verdicts:?}",
            self.verdict
        );
        took
    }
}
