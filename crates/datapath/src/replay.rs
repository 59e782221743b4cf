//! Runs a packet thread without sockets. The thread uses the normal engine and pipeline, but its
//! frames are in memory, and the caller provides the time.
//!
//! Invariant: after every iteration, the packet counters satisfy received + originated = sent +
//! replied + taken + dropped + held.

use std::sync::Arc;

use engine::{Engine, MemoryDevice, MemoryFrame, Pool, TxOwner, mesh};
use forwarder::{
    InterfaceId, Live, Notice, Notices, Now, Pipeline, PipelineConfig, PipelineError, ThreadCounters,
    ThreadId, UpstreamRequests, notice_ring,
};

use crate::dataplane::{NOTICES, Settings, pipeline_config};
use crate::steer::{Filter, TunnelEndpoints, takes};
use crate::umem::{HEAD_ROOM, RING};

/// A packet thread without sockets.
#[derive(Debug)]
pub struct Replay {
    engine: Engine<MemoryDevice, Pipeline>,
    counters: Arc<ThreadCounters>,
    notices: Notices,
    filter: Filter,
    ends: TunnelEndpoints,
}

/// The result of offering a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// The frame was received. The next iteration of the thread processes the frame.
    Received,
    /// The thread ignored the frame, because the steering program would pass it to the kernel.
    Passed,
    /// The frame is too long for the frame memory of the replay.
    TooLong,
}

impl Replay {
    /// Creates a simulated machine with the given number of interfaces and a single packet thread.
    /// The thread ignores all frames until [`Replay::set_filter`] is called.
    ///
    /// # Errors
    /// [`PipelineError`] if the settings are invalid.
    pub fn new(interfaces: usize, settings: &Settings, live: &Live) -> Result<Self, PipelineError> {
        let me = ThreadId(0);
        let counters = Arc::new(ThreadCounters::new(settings.max_slots, settings.max_slots));
        let (sink, notices) = notice_ring(NOTICES);
        let config = pipeline_config(settings, me, 1);
        // A fixed seed makes all replays of the same capture identical.
        let upstream_requests = config.upstream_requests.map(|own| UpstreamRequests { seed: [0; 2], ..own });
        let config = PipelineConfig { upstream_requests, ..config };
        let pipeline = Pipeline::new(config, live, Arc::clone(&counters), None)?.with_notices(sink);
        let Some(mailboxes) = mesh(1, 1).pop() else { unreachable!("a mesh for one thread has one entry") };
        // With this many frames, the fill ring stays full and frames for fragments remain free even
        // if many packets are held.
        let in_all = settings.frames_per_queue as usize + 2 * RING as usize;
        let frames = (0..in_all).map(|_| MemoryFrame::new(me, FRAME_BYTES)).collect();
        let device = MemoryDevice::with_tx_owners(RING as usize, vec![TxOwner::Own; interfaces]);
        let pool = Pool { frames, in_all };
        let engine = Engine::new(device, pipeline, mailboxes, pool, Arc::clone(&counters));
        Ok(Self { engine, counters, notices, filter: Filter::default(), ends: TunnelEndpoints::default() })
    }

    /// Sets the filter and the tunnel endpoints. From now on, the filter and the endpoints
    /// determine which of the offered frames the thread receives.
    pub fn set_filter(&mut self, filter: Filter, ends: TunnelEndpoints) {
        (self.filter, self.ends) = (filter, ends);
    }

    /// Offers a frame to the thread, as if it had arrived on `interface`.
    pub fn offer(&mut self, interface: InterfaceId, frame: &[u8]) -> Offered {
        if !takes(frame, &self.filter, &self.ends) {
            return Offered::Passed;
        }
        if self.engine.device_mut().inject_by(interface, frame, HEAD_ROOM) {
            Offered::Received
        } else {
            Offered::TooLong
        }
    }

    /// Runs one iteration of the packet thread, which processes offered frames and timers. `now`
    /// must not decrease between calls.
    pub fn turn(&mut self, now: Now) {
        self.engine.step(now);
    }

    /// Calls `each` with every frame that was sent since the last call, in order.
    pub fn sent(&mut self, each: impl FnMut(&[u8])) {
        self.engine.device_mut().transmitted(usize::MAX, each);
    }

    /// Returns the notices that the thread has sent since the last call.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> {
        &mut self.notices
    }

    /// Returns the counters of the thread.
    #[must_use]
    pub fn counters(&self) -> &ThreadCounters {
        &self.counters
    }
}

/// The size of a frame in bytes. This size is sufficient for a jumbo frame with its outer headers.
const FRAME_BYTES: usize = 16 * 1024;
