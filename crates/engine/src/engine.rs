//! One packet thread's loop body: frames in, verdicts, frames out.
//!
//! In: a [`Device`], the thread's mailboxes, a forwarder. Out: every frame in exactly one place.
//! Not here: the thread, the clock, sleeping (`thread`), what a packet means (`forwarder`).
//! Invariant: fill + transmit + free + held + strays + own mailboxes, summed over threads, is the number of frames; see
//! [`Engine::census`]. Nothing is allocated after `new`.

mod steering;

use std::sync::Arc;

use arrayvec::ArrayVec;
use forwarder::{
    DropReason, Forward, HandoffReason, HoldSlot, InterfaceId, NotSent, Now, Origin, Outlet, Packet, Piece,
    ThreadCounters, ThreadId, Verdict,
};

use crate::device::{Device, Received, TxOwner};
use crate::mailbox::{Crossing, Mailboxes, Purpose};

use self::steering::Turns;

/// Where a thread's frames are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// With the receive side of the device.
    pub receiving: usize,
    /// With the transmit side.
    pub sending: usize,
    /// In the pool.
    pub free: usize,
    /// Held for the forwarder.
    pub held: usize,
    /// Another thread's, waiting for room in its mailbox.
    pub strays: usize,
    /// In this thread's mailboxes.
    pub mailboxes: usize,
}

impl Census {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> usize {
        self.receiving + self.sending + self.free + self.held + self.strays + self.mailboxes
    }
}

/// One packet thread's state.
#[derive(Debug)]
pub struct Engine<D: Device, F: Forward> {
    forward: F,
    port: Port<D>,
    batch: Vec<Arrival<D::Frame>>,
    /// What other threads decided, and this one sends.
    outbound: Vec<(Received<D::Frame>, bool)>,
    arrived: Vec<Received<D::Frame>>,
    verdicts: Box<[Verdict]>,
    /// The most frames that a turn takes out of mailboxes, and of the device.
    most_mail: usize,
    most_received: usize,
}

#[derive(Debug)]
struct Arrival<F> {
    received: Received<F>,
    origin: Origin,
}

/// All but the forwarder, so that the forwarder's `poll` may use it.
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
    notify: Notify,
    /// Of an I/O thread.
    steering: Option<Turns>,
}

/// Which threads got something since they were last woken.
#[derive(Debug, Default)]
pub struct Notify(Vec<bool>);

/// The frames of a thread.
#[derive(Debug)]
pub struct Pool<T> {
    /// Its own.
    pub frames: Vec<T>,
    /// Those of all threads: the most that can ever gather at one.
    pub in_all: usize,
}

impl Notify {
    /// Calls `wake` for each thread that got something, and forgets them.
    pub fn drain(&mut self, mut wake: impl FnMut(ThreadId)) {
        for (thread, marked) in (0u16..).zip(self.0.iter_mut()) {
            if std::mem::take(marked) {
                wake(ThreadId(thread));
            }
        }
    }
}

impl<D: Device, F: Forward> Engine<D, F> {
    /// Takes the thread's frames and fills the fill ring, so that packets may come before the first turn.
    ///
    /// # Panics
    /// When the forwarder's batch is larger than [`MAX_BATCH`].
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
        assert!((1..=MAX_BATCH).contains(&max_batch), "a batch holds 1 to {MAX_BATCH} packets");
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
            notify,
            steering: None,
        };
        let verdicts = vec![Verdict::Tx; max_batch].into_boxed_slice();
        let (batch, arrived) = (Vec::with_capacity(max_batch), Vec::with_capacity(max_batch));
        let outbound = Vec::with_capacity(max_batch);
        // Mail takes up to half a batch, so that neither side starves the other.
        let (most_mail, most_received) = (max_batch.div_ceil(2), max_batch);
        Self { forward, port, batch, outbound, arrived, verdicts, most_mail, most_received }
    }

    /// Makes it that of a packet thread that has no queue: all that it gets is mail.
    #[must_use]
    pub fn with_mail_alone(mut self) -> Self {
        (self.most_mail, self.most_received) = (self.verdicts.len(), 0);
        self
    }

    /// Makes it that of an I/O thread: what its forwarder hands on goes, as it came, to one of the first `threads` threads: another
    /// than the verdict says where that one's mailbox is full and it is [`HandoffReason::Steered`].
    ///
    /// A turn takes twice as much mail as it receives, so that what was decided leaves before more comes in.
    #[must_use]
    pub fn steering_to(mut self, threads: u16) -> Self {
        (self.most_mail, self.most_received) = (self.verdicts.len(), self.verdicts.len().div_ceil(2));
        self.port.steering = Some(Turns::over(threads));
        self
    }

    /// One turn: reap, refill, one batch, send. Gives how many packets there were.
    ///
    /// # Cost
    /// One wake-up of the kernel where packets were sent and it asks for one; no other system call.
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
        // What the kernel left in the ring at the last turn is not forgotten, though nothing new came.
        if self.port.queued > 0 || self.port.device.is_unsent() {
            self.port.device.flush();
            self.port.queued = 0;
        }
        count + sent
    }

    /// Whether frames wait in the mailboxes, or questions for the forwarder.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.port.mailboxes.waiting() > 0 || self.forward.is_asked()
    }

    /// When the forwarder has something to do though nothing comes.
    #[must_use]
    pub fn next_due(&self) -> Option<Now> {
        self.forward.next_due()
    }

    /// The threads that got something and may be asleep.
    pub fn notify(&mut self) -> &mut Notify {
        &mut self.port.notify
    }

    /// The device, for what the loop around needs of it.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.port.device
    }

    /// The device and the forwarder, when all is done; frames that the thread has are lost with it.
    #[must_use]
    pub fn into_parts(self) -> (D, F) {
        (self.port.device, self.forward)
    }

    /// The forwarder.
    #[must_use]
    pub fn forwarder(&self) -> &F {
        &self.forward
    }

    /// Counts this thread's frames.
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

    /// Mail first.
    fn gather(&mut self) {
        let limit = self.verdicts.len();
        let Self { port, batch, outbound, arrived, most_mail, most_received, .. } = self;
        let Port { mailboxes, free, device, counters, .. } = port;
        mailboxes.take(*most_mail, |from, Crossing { frame, purpose }| match purpose {
            Purpose::Home => free.push(frame),
            Purpose::Process { reason, interface, start, end } => {
                counters.from_threads.add(1);
                let received = Received { frame, interface, start, end };
                batch.push(Arrival { received, origin: Origin::Thread(from, reason) });
            }
            Purpose::Steered { interface, start, end } => {
                counters.from_threads.add(1);
                let received = Received { frame, interface, start, end };
                batch.push(Arrival { received, origin: Origin::Wire });
            }
            Purpose::Send { interface, end, is_reply } => {
                counters.from_threads.add(1);
                outbound.push((Received { frame, interface, start: 0, end }, is_reply));
            }
        });
        device.receive(arrived, (limit - batch.len()).min(*most_received));
        counters.rx.add(arrived.len() as u64);
        counters.rx_bytes.add(arrived.iter().map(|r| (r.end - r.start) as u64).sum());
        batch.extend(arrived.drain(..).map(|received| Arrival { received, origin: Origin::Wire }));
    }

    /// Sends what other threads decided; how many there were.
    fn send_outbound(&mut self) -> usize {
        let count = self.outbound.len();
        for (received, is_reply) in self.outbound.drain(..) {
            if let Err(reason) = self.port.leave(received, is_reply) {
                self.forward.failed(reason);
            }
        }
        count
    }

    fn process(&mut self, now: Now) {
        let Self { forward, port, batch, verdicts, .. } = self;
        let verdicts = &mut verdicts[..batch.len()];
        let mut bounds = ArrayVec::<(usize, usize, InterfaceId), MAX_BATCH>::new();
        {
            let mut packets = ArrayVec::<Packet<'_>, MAX_BATCH>::new();
            for Arrival { received, origin } in batch.iter_mut() {
                let Received { frame, interface, start, end } = received;
                packets.push(Packet::new(port.device.bytes(frame), *start, *end, *origin).on(*interface));
            }
            forward.process(now, &mut packets, verdicts);
            bounds.extend(packets.iter().map(|packet| (packet.start(), packet.end(), packet.interface())));
        }
        for ((mut arrival, verdict), bounds) in batch.drain(..).zip(verdicts.iter()).zip(bounds) {
            let received = &mut arrival.received;
            (received.start, received.end, received.interface) = bounds;
            if let Err(reason) = port.carry_out(*verdict, arrival) {
                forward.failed(reason);
            }
        }
    }
}

/// How a frame left.
#[derive(PartialEq, Eq)]
enum Left {
    Sent,
    ToThread,
}

impl<D: Device> Port<D> {
    /// Moves a frame where its verdict says. On an error it is free again, and not counted yet.
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

    /// Sends a frame, or hands it to the thread that can.
    #[inline]
    fn leave(&mut self, received: Received<D::Frame>, is_reply: bool) -> Result<(), DropReason> {
        let Received { frame, interface, start, end } = received;
        debug_assert_eq!(start, 0, "what is sent starts at the front of its buffer");
        if let Err(frame) = self.device.send(frame, end, interface)
            && self.leave_otherwise(frame, interface, end, is_reply)? == Left::ToThread
        {
            return Ok(());
        }
        self.queued += 1;
        if is_reply {
            self.counters.replies.add(1);
        } else {
            self.counters.tx.add(1);
            self.counters.tx_bytes.add(end as u64);
        }
        Ok(())
    }

    /// The ring is full, or another thread's.
    #[cold]
    fn leave_otherwise(
        &mut self,
        frame: D::Frame,
        interface: InterfaceId,
        end: usize,
        is_reply: bool,
    ) -> Result<Left, DropReason> {
        match self.device.tx_owner(interface) {
            TxOwner::Nobody => {
                self.release_frame(frame);
                return Err(DropReason::NoNextHop);
            }
            TxOwner::Other(other) => {
                self.cross(other, frame, Purpose::Send { interface, end, is_reply })?;
                return Ok(Left::ToThread);
            }
            TxOwner::Own => {}
        }
        self.device.flush();
        self.reap();
        self.device.send(frame, end, interface).map(|()| Left::Sent).map_err(|frame| {
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

    /// Takes a frame out of its hold.
    fn take_held(&mut self, slot: HoldSlot) -> Option<Arrival<D::Frame>> {
        let arrival = self.held.get_mut(slot.0 as usize).and_then(Option::take)?;
        self.holding -= 1;
        Some(arrival)
    }

    /// Sends what `carve` cuts off a held packet; the number of frames sent or handed on, and why it was not all of it.
    fn carve(
        &mut self,
        arrival: &mut Arrival<D::Frame>,
        carve: &mut dyn FnMut(&Packet<'_>, &mut [u8]) -> Piece,
    ) -> (u64, Result<(), DropReason>) {
        let mut sent = 0;
        loop {
            let Some(frame) = self.free.pop() else { return (sent, Err(DropReason::NoFrame)) };
            let mut frame = self.device.lengthen(frame);
            let Received { frame: whole, interface, start, end } = &mut arrival.received;
            let interface = *interface;
            let packet = Packet::new(self.device.bytes(whole), *start, *end, arrival.origin).on(interface);
            let end = match carve(&packet, self.device.bytes(&mut frame)) {
                Piece::Of(length) => length,
                last @ (Piece::End | Piece::Failed(_)) => {
                    self.free.push(frame);
                    let failed = if let Piece::Failed(reason) = last { Err(reason) } else { Ok(()) };
                    return (sent, failed);
                }
            };
            if let Err(reason) = self.leave(Received { frame, interface, start: 0, end }, false) {
                return (sent, Err(reason));
            }
            sent += 1;
        }
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

    /// To the pool that the frame belongs to.
    fn release_frame(&mut self, frame: D::Frame) {
        if self.device.home(&frame) == self.mailboxes.me() {
            self.free.push(frame);
        } else {
            self.strays.push(frame);
        }
    }

    /// Takes completions back, and sends home what is not ours.
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

impl<D: Device> Outlet for Port<D> {
    fn originate(&mut self, build: &mut dyn FnMut(&mut Packet<'_>) -> bool) -> Result<(), NotSent> {
        let mut frame = self.free.pop().ok_or(NotSent::NoFrame)?;
        let bytes = self.device.bytes(&mut frame);
        let whole = bytes.len();
        let mut packet = Packet::new(bytes, 0, whole, Origin::Wire);
        let is_built = build(&mut packet);
        let (interface, end) = (packet.interface(), packet.end());
        if !is_built {
            self.free.push(frame);
            return Err(NotSent::NotBuilt);
        }
        // Counted as come in at the same time as sent, so that the sum holds at any moment.
        if self.leave(Received { frame, interface, start: 0, end }, false).is_err() {
            return Err(NotSent::NoRoom);
        }
        self.counters.originated.add(1);
        Ok(())
    }

    fn free_frames(&self) -> usize {
        self.free.len()
    }

    fn release(&mut self, slot: HoldSlot, decide: &mut dyn FnMut(&mut Packet<'_>) -> Verdict) {
        let Some(mut arrival) = self.take_held(slot) else { return };
        let Received { frame, interface, start, end } = &mut arrival.received;
        let mut packet = Packet::new(self.device.bytes(frame), *start, *end, arrival.origin).on(*interface);
        let verdict = decide(&mut packet);
        (*start, *end, *interface) = (packet.start(), packet.end(), packet.interface());
        if let Err(reason) = self.carry_out(verdict, arrival) {
            self.counters.dropped(reason);
        }
        self.counters.held.set(self.holding as u64);
    }

    fn split(&mut self, slot: HoldSlot, carve: &mut dyn FnMut(&Packet<'_>, &mut [u8]) -> Piece) {
        let Some(mut arrival) = self.take_held(slot) else { return };
        let (sent, outcome) = self.carve(&mut arrival, carve);
        self.release_frame(arrival.received.frame);
        // The held packet is one of those sent, or else the one dropped: of nothing nothing can be sent.
        let outcome = if sent == 0 { outcome.and(Err(DropReason::Malformed)) } else { outcome };
        self.counters.originated.add(sent - u64::from(outcome.is_ok()));
        if let Err(reason) = outcome {
            self.counters.dropped(reason);
        }
        self.counters.held.set(self.holding as u64);
    }
}

/// The largest batch.
pub const MAX_BATCH: usize = 256;
