//! Implements the loop body of a packet thread. The engine receives frames from a [`Device`] and
//! from mailboxes, calls the forwarder for the verdicts, and executes the verdicts. The crate
//! `datapath` contains the thread itself, the clock and the sleep logic.
//!
//! At any time, a frame is in exactly one of six places: the receive side of the device, the
//! transmit side of the device, the free pool, the forwarder's held frames, the list of frames that
//! belong to other threads (strays), or a mailbox. [`Engine::census`] counts the frames in each
//! place. The counts of all threads add up to the total number of frames. `Engine::new` allocates
//! all memory.

mod outlet;
mod steering;

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use forwarder::{
    DropReason, Forward, HandoffReason, HoldSlot, InterfaceId, Now, Origin, Packet, ThreadCounters, ThreadId,
    Verdict,
};

use crate::device::{Device, Received, TxOwner};
use crate::mailbox::{Crossing, Mailboxes, Purpose};

use self::steering::Turns;

/// The counts of one thread's frames, by the six places where a frame can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Frames on the receive side of the device.
    pub receiving: usize,
    /// Frames on the transmit side of the device.
    pub sending: usize,
    /// Frames in the pool of the thread.
    pub free: usize,
    /// Frames that the forwarder holds.
    pub held: usize,
    /// Frames that belong to other threads' pools and are waiting for room in the mailbox of their
    /// owner.
    pub strays: usize,
    /// Frames that are waiting for this thread in its mailboxes.
    pub mailboxes: usize,
}

impl Census {
    /// Returns the sum of all counts.
    #[must_use]
    pub fn total(&self) -> usize {
        self.receiving + self.sending + self.free + self.held + self.strays + self.mailboxes
    }
}

/// The state of one packet thread.
#[derive(Debug)]
pub struct Engine<D: Device, F: Forward> {
    forward: F,
    port: Port<D>,
    /// The frames of a batch. Frames from other threads precede frames from the device.
    batch: Vec<Received<D::Frame>>,
    /// The origins of the frames that came from other threads.
    origins: Vec<Origin>,
    /// Frames that another thread processed and that this thread must send.
    outbound: Vec<(Received<D::Frame>, bool)>,
    verdicts: Box<[Verdict]>,
    /// The maximum number of frames per iteration from the mailboxes.
    most_mail: usize,
    most_received: usize,
}

/// A frame that the forwarder holds.
#[derive(Debug)]
struct Arrival<F> {
    received: Received<F>,
    origin: Origin,
}

/// The bounds and the interface of a packet after the verdict.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    start: usize,
    end: usize,
    interface: InterfaceId,
}

/// The outcomes of a batch.
type Outcomes = ArrayVec<Outcome, MAX_BATCH>;

/// The state of the engine except the forwarder. This state is separate from the forwarder, so that
/// `Forward::poll` can borrow this state.
#[derive(Debug)]
struct Port<D: Device> {
    device: D,
    mailboxes: Mailboxes<D::Frame>,
    free: Vec<D::Frame>,
    strays: Vec<D::Frame>,
    held: Box<[Option<Arrival<D::Frame>>]>,
    holding: usize,
    counters: Arc<ThreadCounters>,
    queued: usize,
    /// `true` if frames of other threads may be in the transmit ring of the device.
    borrows: bool,
    notify: Notify,
    /// The round-robin state for software steering. Only I/O threads have this state.
    steering: Option<Turns>,
}

/// The threads that have received frames from this thread since the last wake-up and may be asleep.
#[derive(Debug, Default)]
pub struct Notify(Vec<bool>);

/// The frames that a thread starts with.
#[derive(Debug)]
pub struct Pool<T> {
    /// The frames that this thread owns.
    pub frames: Vec<T>,
    /// The total number of frames in all pools, which is the maximum number of frames that one
    /// thread can have at a time.
    pub in_all: usize,
}

impl Notify {
    /// Calls `wake` for each thread in the list, and clears the list.
    pub fn drain(&mut self, mut wake: impl FnMut(ThreadId)) {
        for (thread, marked) in (0u16..).zip(self.0.iter_mut()) {
            if std::mem::take(marked) {
                wake(ThreadId(thread));
            }
        }
    }
}

impl<D: Device, F: Forward> Engine<D, F> {
    /// Creates the engine with the thread's frames. The fill ring is filled immediately, so that
    /// the device can receive packets before the first iteration.
    ///
    /// # Panics
    /// Panics if the forwarder's batch is larger than [`MAX_BATCH`].
    #[must_use]
    pub fn new(
        mut device: D,
        forward: F,
        mailboxes: Mailboxes<D::Frame>,
        pool: Pool<D::Frame>,
        counters: Arc<ThreadCounters>,
    ) -> Self {
        let Pool { frames, in_all } = pool;
        let max_batch = forward.max_batch();
        assert!((1..=MAX_BATCH).contains(&max_batch), "the batch size must be 1 to {MAX_BATCH} packets");
        let mut free = Vec::with_capacity(in_all);
        free.extend(frames);
        device.refill(&mut free);
        let held = std::iter::repeat_with(|| None).take(forward.hold_slots()).collect();
        let notify = Notify(vec![false; mailboxes.threads()]);
        let strays = Vec::with_capacity(in_all);
        let port = Port {
            device,
            mailboxes,
            free,
            strays,
            held,
            holding: 0,
            counters,
            queued: 0,
            borrows: false,
            notify,
            steering: None,
        };
        let verdicts = vec![Verdict::Tx; max_batch].into_boxed_slice();
        let (batch, origins) = (Vec::with_capacity(max_batch), Vec::with_capacity(max_batch));
        let outbound = Vec::with_capacity(max_batch);
        // The mailboxes can use up to half of a batch, so that neither the mailboxes nor the device
        // are starved.
        let (most_mail, most_received) = (max_batch.div_ceil(2), max_batch);
        Self { forward, port, batch, origins, outbound, verdicts, most_mail, most_received }
    }

    /// Configures the engine for a packet thread without a device queue. The thread then receives
    /// all its frames through mailboxes.
    #[must_use]
    pub fn with_mail_alone(mut self) -> Self {
        (self.most_mail, self.most_received) = (self.verdicts.len(), 0);
        self
    }

    /// Configures the engine for an I/O thread, which passes received frames unchanged to the first
    /// `threads` packet threads. If the mailbox of the selected thread is full, a frame with reason
    /// [`HandoffReason::Steered`] goes to another thread.
    ///
    /// Each iteration takes up to twice as many frames from the mailboxes as from the device, so
    /// that processed frames leave before new frames arrive.
    #[must_use]
    pub fn steering_to(mut self, threads: u16) -> Self {
        (self.most_mail, self.most_received) = (self.verdicts.len(), self.verdicts.len().div_ceil(2));
        self.port.steering = Some(Turns::over(threads));
        self
    }

    /// Runs one iteration: reclaims transmitted frames, refills the fill ring, processes one batch
    /// and sends. Returns the number of packets that were processed, or sent on behalf of other
    /// threads.
    ///
    /// # Cost
    /// At most one system call: a wake-up of the kernel, if packets were sent and the kernel
    /// requires it.
    pub fn step(&mut self, now: Now) -> usize {
        self.port.reap();
        self.port.device.refill(&mut self.port.free);
        self.gather();
        let (sent, count) = (self.send_outbound(), self.batch.len());
        if count > 0 {
            self.process(now);
            self.port.counters.batch(count);
        }
        self.forward.poll(now, &mut self.port);
        // Flush even if this iteration sends no frames. Frames from an earlier iteration may still
        // be in the transmit ring.
        if self.port.queued > 0 || self.port.device.is_unsent() {
            self.port.device.flush();
            self.port.queued = 0;
        }
        count + sent
    }

    /// Returns `true` if frames are waiting in the mailboxes, or if requests from the control plane
    /// are waiting for the forwarder.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.port.mailboxes.waiting() > 0 || self.forward.is_asked()
    }

    /// Returns the time at which the forwarder must run next if no packets arrive, or `None` if no
    /// work is scheduled.
    #[must_use]
    pub fn next_due(&self) -> Option<Now> {
        self.forward.next_due()
    }

    /// Returns `true` if the device is sending, and some of the frames may belong to other threads.
    /// The other threads get these frames back only in a later iteration of this thread.
    #[must_use]
    pub fn is_sending_for_others(&self) -> bool {
        self.port.borrows && self.port.device.in_kernel().sending > 0
    }

    /// Returns the list of threads to which this thread has handed over frames. The caller must
    /// wake these threads.
    pub fn notify(&mut self) -> &mut Notify {
        &mut self.port.notify
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &D {
        &self.port.device
    }

    /// Returns the device, for use by the loop that runs the engine.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.port.device
    }

    /// Shuts the engine down and returns the device and the forwarder. Frees all frames that the
    /// thread still has.
    #[must_use]
    pub fn into_parts(self) -> (D, F) {
        (self.port.device, self.forward)
    }

    /// Returns the forwarder.
    #[must_use]
    pub fn forwarder(&self) -> &F {
        &self.forward
    }

    /// Counts this thread's frames in each of the six places.
    #[must_use]
    pub fn census(&self) -> Census {
        let kernel = self.port.device.in_kernel();
        Census {
            receiving: kernel.receiving,
            sending: kernel.sending,
            free: self.port.free.len(),
            held: self.port.held.iter().flatten().count(),
            strays: self.port.strays.len(),
            mailboxes: self.port.mailboxes.waiting(),
        }
    }

    /// Collects a batch, first from the mailboxes and then from the device.
    fn gather(&mut self) {
        let limit = self.verdicts.len();
        let Self { port, batch, origins, outbound, most_mail, most_received, .. } = self;
        let Port { mailboxes, free, device, counters, borrows, .. } = port;
        mailboxes.take(*most_mail, |from, Crossing { frame, purpose }| match purpose {
            Purpose::Home => free.push(frame),
            Purpose::Process { reason, interface, start, end } => {
                counters.from_threads.add(1);
                batch.push(Received { frame, interface, start, end });
                origins.push(Origin::Thread(from, reason));
            }
            Purpose::Steered { interface, start, end } => {
                counters.from_threads.add(1);
                batch.push(Received { frame, interface, start, end });
                origins.push(Origin::Wire);
            }
            Purpose::Send { interface, start, end, is_reply } => {
                counters.from_threads.add(1);
                outbound.push((Received { frame, interface, start, end }, is_reply));
            }
        });
        *borrows |= !origins.is_empty() || !outbound.is_empty();
        device.receive(batch, (limit - batch.len()).min(*most_received));
    }

    /// Sends the frames that other threads processed, and returns the number of these frames.
    fn send_outbound(&mut self) -> usize {
        let count = self.outbound.len();
        for (received, is_reply) in self.outbound.drain(..) {
            if let Err(reason) = self.port.leave(received, is_reply) {
                self.forward.failed(reason);
            }
        }
        count
    }

    /// Processes the batch. Consecutive frames for the same interface are sent together.
    fn process(&mut self, now: Now) {
        let mut outcomes = Outcomes::new();
        self.decide(now, &mut outcomes);
        let Self { forward, port, batch, origins, verdicts, .. } = self;
        let mut frames = batch.drain(..);
        let mut place = 0;
        while place < outcomes.len() {
            let (verdicts, outcomes) = (&verdicts[place..], &outcomes[place..]);
            let alike = sent_alike(verdicts, outcomes);
            let sent = port.leave_all(&outcomes[..alike], &mut frames);
            // The remaining frames of the run do not fit into the transmit ring, or belong to the
            // ring of another thread. A frame with a different verdict is handled separately.
            let end = alike.max(1);
            for at in sent..end {
                let (Some(mut received), outcome) = (frames.next(), outcomes[at]) else { break };
                (received.start, received.end, received.interface) =
                    (outcome.start, outcome.end, outcome.interface);
                let origin = origins.get(place + at).copied().unwrap_or(Origin::Wire);
                if let Err(reason) = port.carry_out(verdicts[at], Arrival { received, origin }) {
                    forward.failed(reason);
                }
            }
            place += end;
        }
        origins.clear();
    }

    /// Passes the packets of the batch to the forwarder, which writes the verdicts.
    fn decide(&mut self, now: Now, outcomes: &mut Outcomes) {
        let Self { forward, port, batch, origins, verdicts, .. } = self;
        let (device, mut bytes) = (&port.device, 0);
        let verdicts = &mut verdicts[..batch.len()];
        let (mail, wire) = batch.split_at_mut(origins.len());
        port.counters.rx.add(wire.len() as u64);
        let mut packets = ArrayVec::<Packet<'_>, MAX_BATCH>::new();
        packets
            .extend(mail.iter_mut().zip(origins).map(|(received, origin)| packet(device, received, *origin)));
        packets.extend(wire.iter_mut().map(|received| {
            bytes += (received.end - received.start) as u64;
            packet(device, received, Origin::Wire)
        }));
        port.counters.rx_bytes.add(bytes);
        forward.process(now, &mut packets, verdicts);
        outcomes.extend(packets.iter().map(|packet| {
            let Range { start, end } = packet.bounds();
            Outcome { start, end, interface: packet.interface() }
        }));
    }
}

#[inline]
fn packet<'a, D: Device>(device: &'a D, received: &'a mut Received<D::Frame>, origin: Origin) -> Packet<'a> {
    let Received { frame, interface, start, end } = received;
    Packet::new(device.bytes(frame), *start, *end, origin).on(*interface)
}

/// Returns the number of packets at the front of a batch that are sent by the same interface.
#[inline]
fn sent_alike(verdicts: &[Verdict], outcomes: &[Outcome]) -> usize {
    let Some(first) = outcomes.first() else { return 0 };
    let is_alike = |(verdict, outcome): &(&Verdict, &Outcome)| {
        matches!(verdict, Verdict::Tx) && outcome.interface == first.interface
    };
    verdicts.iter().zip(outcomes).take_while(is_alike).count()
}

#[derive(PartialEq, Eq)]
enum Left {
    Sent,
    ToThread,
}

impl<D: Device> Port<D> {
    /// Executes the verdict for a frame. After an error, the frame has been released, and the
    /// caller must count the drop.
    fn carry_out(&mut self, verdict: Verdict, arrival: Arrival<D::Frame>) -> Result<(), DropReason> {
        match verdict {
            Verdict::Tx => self.leave(arrival.received, false)?,
            Verdict::Reply => self.leave(arrival.received, true)?,
            Verdict::Hold(slot) => self.hold(slot, arrival)?,
            Verdict::ToThread(thread, reason) => self.hand_over(thread, reason, arrival.received)?,
            Verdict::Taken => {
                self.counters.taken.add(1);
                self.release_frame(arrival.received.frame);
            }
            Verdict::Drop(_) => self.release_frame(arrival.received.frame),
        }
        Ok(())
    }

    /// Sends a frame. If another thread owns the transmit ring, the frame is handed over to that
    /// thread.
    #[inline]
    fn leave(&mut self, received: Received<D::Frame>, is_reply: bool) -> Result<(), DropReason> {
        let Received { frame, interface, start, end } = received;
        if let Err(frame) = self.device.send(frame, start..end, interface)
            && self.leave_otherwise(Received { frame, interface, start, end }, is_reply)? == Left::ToThread
        {
            return Ok(());
        }
        self.queued += 1;
        if is_reply {
            self.counters.replies.add(1);
        } else {
            self.counters.tx.add(1);
            self.counters.tx_bytes.add((end - start) as u64);
        }
        Ok(())
    }

    /// Sends consecutive frames for the same interface, one for each outcome. Returns the number of
    /// frames that were taken from `frames` and sent.
    #[inline]
    fn leave_all(
        &mut self,
        outcomes: &[Outcome],
        frames: &mut impl ExactSizeIterator<Item = Received<D::Frame>>,
    ) -> usize {
        let Some(Outcome { interface, .. }) = outcomes.first() else { return 0 };
        let mut bytes = 0;
        // `zip` takes the outcome before the frame. At the end of the run, it therefore takes no
        // frame that follows the run.
        let mut run = outcomes.iter().zip(frames).map(|(outcome, received)| {
            bytes += (outcome.end - outcome.start) as u64;
            (received.frame, outcome.start..outcome.end)
        });
        let sent = self.device.send_all(*interface, &mut run);
        self.queued += sent;
        self.counters.tx.add(sent as u64);
        self.counters.tx_bytes.add(bytes);
        sent
    }

    /// Handles a frame that the device refused to send because the transmit ring is full or belongs
    /// to another thread.
    #[cold]
    fn leave_otherwise(&mut self, received: Received<D::Frame>, is_reply: bool) -> Result<Left, DropReason> {
        let Received { frame, interface, start, end } = received;
        match self.device.tx_owner(interface) {
            TxOwner::Nobody => {
                self.release_frame(frame);
                return Err(DropReason::NoNextHop);
            }
            TxOwner::Other(other) => {
                self.cross(other, frame, Purpose::Send { interface, start, end, is_reply })?;
                return Ok(Left::ToThread);
            }
            TxOwner::Own => {}
        }
        self.device.flush();
        self.reap();
        self.device.send(frame, start..end, interface).map(|()| Left::Sent).map_err(|frame| {
            self.release_frame(frame);
            DropReason::TxFull
        })
    }

    fn hold(&mut self, slot: HoldSlot, arrival: Arrival<D::Frame>) -> Result<(), DropReason> {
        match self.held.get_mut(slot.0 as usize) {
            Some(place @ None) => {
                *place = Some(arrival);
                self.holding += 1;
                self.counters.held.set(self.holding as u64);
                Ok(())
            }
            _ => {
                self.release_frame(arrival.received.frame);
                Err(DropReason::HoldFull)
            }
        }
    }

    /// Removes a frame from its hold slot.
    fn take_held(&mut self, slot: HoldSlot) -> Option<Arrival<D::Frame>> {
        let arrival = self.held.get_mut(slot.0 as usize).and_then(Option::take)?;
        self.holding -= 1;
        Some(arrival)
    }

    fn hand_over(
        &mut self,
        thread: ThreadId,
        reason: HandoffReason,
        received: Received<D::Frame>,
    ) -> Result<(), DropReason> {
        if self.steering.is_some() {
            return self.steer(thread, reason, received);
        }
        let Received { frame, interface, start, end } = received;
        self.cross(thread, frame, Purpose::Process { reason, interface, start, end })
    }

    fn cross(&mut self, thread: ThreadId, frame: D::Frame, purpose: Purpose) -> Result<(), DropReason> {
        match self.mailboxes.put(thread, Crossing { frame, purpose }) {
            Ok(()) => {
                self.has_crossed(thread);
                Ok(())
            }
            Err(crossing) => {
                self.release_frame(crossing.frame);
                Err(DropReason::MailboxFull)
            }
        }
    }

    fn has_crossed(&mut self, thread: ThreadId) {
        self.counters.to_threads.add(1);
        self.mark(thread);
    }

    fn mark(&mut self, thread: ThreadId) {
        if let Some(marked) = self.notify.0.get_mut(usize::from(thread.0)) {
            *marked = true;
        }
    }

    /// Returns a frame to the pool of this thread. A frame that another thread owns is added to the
    /// strays, which are later returned to their owners.
    fn release_frame(&mut self, frame: D::Frame) {
        if self.device.home(&frame) == self.mailboxes.me() {
            self.free.push(frame);
        } else {
            self.strays.push(frame);
        }
    }

    /// Reclaims frames whose transmission is complete, and returns frames that belong to other
    /// threads to their pools.
    fn reap(&mut self) {
        let known = self.free.len();
        self.device.reap(&mut self.free);
        if self.mailboxes.threads() == 1 {
            return;
        }
        let mut place = known;
        while let Some(frame) = self.free.get(place) {
            if self.device.home(frame) == self.mailboxes.me() {
                place += 1;
            } else {
                let stray = self.free.swap_remove(place);
                self.strays.push(stray);
            }
        }
        self.send_home();
        self.borrows &= self.holding + self.strays.len() + self.device.in_kernel().sending > 0;
    }

    fn send_home(&mut self) {
        while let Some(frame) = self.strays.pop() {
            let home = self.device.home(&frame);
            match self.mailboxes.put(home, Crossing { frame, purpose: Purpose::Home }) {
                Ok(()) => self.mark(home),
                Err(crossing) => {
                    self.strays.push(crossing.frame);
                    return;
                }
            }
        }
    }
}

/// The maximum number of packets in a batch.
pub const MAX_BATCH: usize = 256;
