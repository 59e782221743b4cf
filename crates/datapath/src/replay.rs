//! A packet thread without a kernel: the same engine and pipeline over memory, by the caller's clock.
//!
//! In: frames, the interface that each comes by, the time. Out: frames as they leave, counters, notices.
//! Not here: capture files (`pcap`), the control plane, other threads.
//! Invariant: received + originated = sent + replied + taken in + dropped + held, after every turn.

use std::sync::Arc;

use engine::{Engine, MemoryDevice, MemoryFrame, Pool, TxOwner, mesh};
use forwarder::{
    InterfaceId, Live, Notice, Notices, Now, OwnRequests, Pipeline, PipelineConfig, PipelineError,
    ThreadCounters, ThreadId, notice_ring,
};

use crate::dataplane::{NOTICES, Settings, pipeline_config};
use crate::steer::{Ends, Filter, takes};
use crate::umem::RING;

/// See the module's header.
#[derive(Debug)]
pub struct Replay {
    engine: Engine<MemoryDevice, Pipeline>,
    counters: Arc<ThreadCounters>,
    notices: Notices,
    filter: Filter,
    ends: Ends,
}

/// What became of a frame that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// The next turn has it.
    Received,
    /// The kernel would have it.
    Passed,
    /// It is longer than this program holds.
    TooLong,
}

impl Replay {
    /// The only thread of a machine with so many interfaces. Nothing is taken before [`Replay::set_filter`].
    ///
    /// # Errors
    /// [`PipelineError`].
    pub fn new(interfaces: usize, settings: &Settings, live: &Live) -> Result<Self, PipelineError> {
        let me = ThreadId(0);
        let counters = Arc::new(ThreadCounters::new(settings.max_slots, settings.max_slots));
        let (sink, notices) = notice_ring(NOTICES);
        let config = pipeline_config(settings, me, 1);
        // The same at every replay.
        let own_requests = config.own_requests.map(|own| OwnRequests { seed: [0; 2], ..own });
        let config = PipelineConfig { own_requests, ..config };
        let pipeline = Pipeline::new(config, live, Arc::clone(&counters), None)?.with_notices(sink);
        let Some(mailboxes) = mesh(1, 1).pop() else { unreachable!("a mesh of one has one end") };
        // However many are held, the fill ring is full, and pieces find frames.
        let in_all = settings.frames_per_queue as usize + 2 * RING as usize;
        let frames = (0..in_all).map(|_| MemoryFrame::new(me, FRAME_BYTES)).collect();
        let device = MemoryDevice::with_tx_owners(RING as usize, vec![TxOwner::Own; interfaces]);
        let pool = Pool { frames, in_all };
        let engine = Engine::new(device, pipeline, mailboxes, pool, Arc::clone(&counters));
        Ok(Self { engine, counters, notices, filter: Filter::default(), ends: Ends::default() })
    }

    /// What is taken from the kernel from now on.
    pub fn set_filter(&mut self, filter: Filter, ends: Ends) {
        (self.filter, self.ends) = (filter, ends);
    }

    /// A frame comes by an interface.
    pub fn offer(&mut self, interface: InterfaceId, frame: &[u8]) -> Offered {
        let Some(head_room) = takes(frame, &self.filter, &self.ends) else { return Offered::Passed };
        if self.engine.device_mut().inject_by(interface, frame, head_room.into()) {
            Offered::Received
        } else {
            Offered::TooLong
        }
    }

    /// One turn of the loop: what was offered, and what the time brings. The time does not go back.
    pub fn turn(&mut self, now: Now) {
        self.engine.step(now);
    }

    /// Takes what was sent since the last call, in order.
    pub fn sent(&mut self, each: impl FnMut(&[u8])) {
        self.engine.device_mut().transmitted(usize::MAX, each);
    }

    /// What the thread has noticed since the last call.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> {
        &mut self.notices
    }

    /// What the thread has counted.
    #[must_use]
    pub fn counters(&self) -> &ThreadCounters {
        &self.counters
    }
}

/// A jumbo frame and its outer headers.
const FRAME_BYTES: usize = 16 * 1024;
