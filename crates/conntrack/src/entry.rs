//! The 16-byte entry of one flow, and the state transitions that its packets cause.
//!
//! Invariant: a non-empty entry has a nonzero tag and a nonzero state byte. The module `layout`
//! describes the bytes and buckets, and the module `room` evicts entries.

use core::time::Duration;

use crate::config::Timeouts;
use crate::id::{Id, MASK_24, Target};
use crate::tick::{Tick, span_of, ticks_covering};

/// The type of a packet, which determines the next state of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Signal {
    /// A TCP packet with SYN and without ACK, which opens a connection.
    Syn = 0,
    /// Any other TCP packet.
    Data = 1,
    /// A TCP packet with FIN or RST.
    FinOrRst = 2,
    /// A packet of any protocol other than TCP.
    Datagram = 3,
}

/// The state of a flow. Every new entry is on probation, regardless of its state, until its flow
/// sends a packet in a later tick. The probation flag is stored separately from the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// A TCP flow that began with a SYN, and has sent no other packets after its first tick.
    New = 1,
    /// A TCP flow that has sent data in at least eight ticks.
    Established = 2,
    /// A TCP flow after FIN or RST.
    Closing = 3,
    /// A flow of any protocol other than TCP.
    Udp = 4,
    /// A TCP flow that did not begin with a SYN and has not yet sent two more packets in two later
    /// ticks. An attacker can create such flows with forged source addresses.
    Midstream = 5,
    /// A TCP flow that has sent data, but not yet in eight ticks. An attacker reaches this state
    /// with a SYN and an ACK from a forged source address, because the table does not see replies
    /// from the backend.
    ///
    /// `Opened` differs from [`State::Established`] in one bit. The check for the most common case
    /// ignores this bit, so it handles both states.
    Opened = 6,
    /// A TCP flow that continues at least one tick after FIN or RST. The FIN may have been forged,
    /// so the next packet in a later tick changes the state to [`State::Opened`] again.
    Reopened = 7,
}

/// The number of ticks with data after which a TCP flow is considered proven. An unproven flow has
/// the state [`State::Opened`] and the timeout `established / PROOF`.
///
/// The table cannot observe handshakes, so it requires a flow to send packets over some time. An
/// attacker needs `PROOF` packets to keep a forged entry for the time `established`, because
/// proving a flow takes `PROOF` packets, and each packet extends an unproven flow only by
/// `established / PROOF`. With a lower value, an attacker could prove a flow with fewer packets.
/// With a higher value, real clients would have to wait longer without a benefit.
///
/// By default, timeouts shrink when flows that are not on probation use more than 500,000 entries.
/// To keep that many entries with pairs of SYN and ACK, an attacker must send 8,900 packets per
/// second. Extending existing flows requires 4,400 packets per second. Without the proof, 1,100
/// packets per second would be enough. After that, a client or an attacker keeps the flow with one
/// packet per timeout.
///
/// With a value of 8, a client that sends continuously is proven after two seconds. A client that
/// rarely sends keeps its entry if its packets are at most 112 s apart, and its eighth packet
/// proves the flow. MQTT, WebSocket and SSH send keep-alives every 15 to 60 s. A client that is
/// silent for longer loses its entry, but the Maglev table still selects the same backend for the
/// client until the pool changes. With a value of 15, packets could be only 60 s apart, which is
/// too close to the usual keep-alive intervals.
pub(crate) const PROOF: u8 = 8;

/// A live flow, as returned by [`crate::FlowTable::list`] and [`crate::FlowTable::peek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The lower 48 bits of the flow hash. A value of 0 is stored as 1.
    pub tag: u64,
    /// The slot of the backend.
    pub slot: u32,
    /// The index of the VIP.
    pub vip: u32,
    /// The state of the flow.
    pub state: State,
    /// `true` until the flow sends a packet at least one tick after its first packet.
    pub on_probation: bool,
    /// The time since the last packet, in whole ticks.
    pub idle: Duration,
}

/// An entry as it is stored in memory. The module `layout` documents the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Packed(u128);

impl Packed {
    pub(crate) const EMPTY: Self = Self(0);

    /// Returns a new entry on probation.
    #[inline]
    pub(crate) fn new(tag: u64, Target { slot, vip }: Target, signal: Signal, now: Tick) -> Self {
        debug_assert!(tag != 0 && tag <= TAG_MASK);
        let ids = field(slot, SLOT_SHIFT) | field(vip, VIP_SHIFT);
        let clock = Clock::new(now, first_state(signal) as u8 | PROBATION);
        Self::from_bits(u128::from(tag) | ids).with_clock(clock)
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u128) -> Self {
        Self(bits.to_le())
    }

    #[inline]
    pub(crate) const fn bits(self) -> u128 {
        u128::from_le(self.0)
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) const fn tag(self) -> u64 {
        self.low() & TAG_MASK
    }

    #[inline]
    pub(crate) const fn slot(self) -> u32 {
        self.three_bytes(SLOT_SHIFT)
    }

    #[inline]
    pub(crate) const fn vip(self) -> u32 {
        self.three_bytes(VIP_SHIFT)
    }

    #[inline]
    pub(crate) const fn tick(self) -> Tick {
        self.clock().tick()
    }

    #[inline]
    pub(crate) const fn on_probation(self) -> bool {
        self.clock().on_probation()
    }

    /// Returns this entry with its slot replaced.
    pub(crate) fn with_slot(self, slot: Id) -> Self {
        let others = self.bits() & !(u128::from(MASK_24) << SLOT_SHIFT);
        Self::from_bits(others | field(slot, SLOT_SHIFT))
    }

    /// Returns the tick and state. A packet of a known flow changes only these two fields.
    #[inline]
    pub(crate) const fn clock(self) -> Clock {
        Clock((self.bits() >> TICK_SHIFT) as u32)
    }

    /// Returns this entry with its tick and state replaced.
    #[inline]
    pub(crate) fn with_clock(self, clock: Clock) -> Self {
        let kept = self.bits() & ((1 << TICK_SHIFT) - 1);
        Self::from_bits(kept | u128::from(clock.0) << TICK_SHIFT)
    }

    /// Decodes the entry for listings. Returns `None` if the entry is empty or has a state that
    /// this version does not know.
    pub(crate) fn read(self, now: Tick) -> Option<Entry> {
        let state = match self.clock().state_byte() & STATE {
            1 => State::New,
            2 => State::Established,
            3 => State::Closing,
            4 => State::Udp,
            5 => State::Midstream,
            6 => State::Opened,
            7 => State::Reopened,
            _ => return None,
        };
        Some(Entry {
            tag: self.tag(),
            slot: self.slot(),
            vip: self.vip(),
            state,
            on_probation: self.on_probation(),
            idle: span_of(now.since(self.tick())),
        })
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
    const fn low(self) -> u64 {
        self.bits() as u64
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "masked to 24 bits")]
    const fn three_bytes(self, shift: u32) -> u32 {
        (self.bits() >> shift) as u32 & MASK_24
    }
}

/// The last four bytes of an entry: the tick of the last packet, the state and the probation flag.
/// In the state `Opened`, these bytes also contain how many more ticks with data the flow needs
/// before it is proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock(u32);

impl Clock {
    #[inline]
    const fn new(tick: Tick, state_byte: u8) -> Self {
        Self(tick.number() | (state_byte as u32) << 24)
    }

    #[inline]
    pub(crate) const fn tick(self) -> Tick {
        Tick::new(self.0)
    }

    #[inline]
    const fn state_byte(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// Returns state and probation as an index below [`STATES`]. An empty entry has index 0.
    #[inline(always)]
    pub(crate) const fn index(self) -> usize {
        index_of(self.state_byte())
    }

    /// Returns `true` if the packet leaves the entry unchanged. See [`BusyClocks`].
    #[inline]
    pub(crate) fn unmoved_by(self, signal: Signal, now: Tick) -> bool {
        Unmoved::by(signal, now).includes(self)
    }

    /// Returns `true` if the packet is a SYN after FIN or RST. Such a SYN opens a new connection
    /// with the same 5-tuple.
    #[inline]
    pub(crate) fn renewed_by(self, signal: Signal) -> bool {
        const CLOSING: u8 = State::Closing as u8;
        const REOPENED: u8 = State::Reopened as u8;
        matches!(signal, Signal::Syn) && matches!(self.state_byte() & STATE, CLOSING | REOPENED)
    }

    #[inline]
    pub(crate) const fn on_probation(self) -> bool {
        self.state_byte() & PROBATION != 0
    }

    /// Returns the tick and state after a packet. The tick never decreases.
    #[inline]
    pub(crate) fn after(self, signal: Signal, now: Tick) -> Self {
        let later = now.since(self.tick()) > 0;
        let tick = if later { now } else { self.tick() };
        Self::new(tick, AFTER[signal as usize][usize::from(later)][usize::from(self.state_byte())])
    }
}

/// The entries that a packet leaves unchanged, for each packet type. Computed once per batch.
///
/// A data packet leaves an entry unchanged if its flow is established or opened and has sent a
/// packet in the same tick. A datagram leaves an entry unchanged if its flow is not a TCP flow, is
/// not on probation, and has sent a packet in the same tick. Most packets of a busy flow pass this
/// test.
#[derive(Clone, Copy, Debug)]
pub struct BusyClocks([Unmoved; 4]);

impl BusyClocks {
    /// Computes the new entry contents for packets that arrive in this tick.
    #[inline]
    #[must_use]
    pub fn at(now: Tick) -> Self {
        let signals = [Signal::Syn, Signal::Data, Signal::FinOrRst, Signal::Datagram];
        Self(signals.map(|signal| Unmoved::by(signal, now)))
    }

    #[inline(always)]
    pub(crate) fn include(&self, clock: Clock, signal: Signal) -> bool {
        self.0[signal as usize].includes(clock)
    }

    /// Returns the clock after the packet if the packet changes only the tick: the entry is
    /// established or not a TCP flow, is not on probation, and its flow has sent no packet in this
    /// tick.
    #[inline]
    pub(crate) fn refreshed(&self, clock: Clock, signal: Signal) -> Option<Clock> {
        let next = Clock(self.0[signal as usize].clock);
        let is_later = next.tick().since(clock.tick()) > 0;
        (is_later && clock.state_byte() == next.state_byte()).then_some(next)
    }
}

/// The clocks that a packet leaves unchanged. An entry is unchanged if its last four bytes equal
/// `clock` in the bits `compared`.
#[derive(Clone, Copy, Debug)]
struct Unmoved {
    compared: u32,
    clock: u32,
}

impl Unmoved {
    /// No clock agrees with this value.
    const NONE: Self = Self { compared: 0, clock: 1 };

    #[inline(always)]
    const fn by(signal: Signal, now: Tick) -> Self {
        const ESTABLISHED: u8 = State::Established as u8;
        const COMPARED: u32 =
            Clock::new(Tick::new(u32::MAX), !(LACKING | ESTABLISHED ^ State::Opened as u8)).0;
        match signal {
            Signal::Data => Self { compared: COMPARED, clock: Clock::new(now, ESTABLISHED).0 & COMPARED },
            Signal::Datagram => Self { compared: u32::MAX, clock: Clock::new(now, State::Udp as u8).0 },
            Signal::Syn | Signal::FinOrRst => Self::NONE,
        }
    }

    #[inline(always)]
    const fn includes(self, clock: Clock) -> bool {
        clock.0 & self.compared == self.clock
    }
}

/// The idle timeouts in ticks, indexed by state and probation. The timeouts shrink as the table
/// fills.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickLimits {
    /// The timeouts at the current `step`.
    now: [u32; STATES],
    whole: [u32; STATES],
    /// The current step, 0 to [`LAST_STEP`].
    step: usize,
    /// The current `step` applies while the number of entries off probation is in this range.
    span: [usize; 2],
    capacity: usize,
}

impl TickLimits {
    /// Returns the timeouts for an empty table of `capacity` entries.
    pub(crate) fn new(timeouts: &Timeouts, capacity: usize) -> Self {
        let (new, closing) = (ticks_covering(timeouts.new), ticks_covering(timeouts.closing));
        let (established, udp) = (ticks_covering(timeouts.established), ticks_covering(timeouts.udp));
        let mut whole = [0; STATES];
        // Index 0 represents an empty entry, which must never expire, even if timeouts shrink.
        whole[0] = 1 << 30;
        for (state, ticks) in [
            (State::New, new),
            (State::Established, established),
            (State::Closing, closing),
            (State::Udp, udp),
            (State::Midstream, established.min(udp)),
            (State::Opened, (established / u32::from(PROOF)).max(new).min(established)),
            (State::Reopened, established.min(udp)),
        ] {
            whole[index_of(state as u8)] = ticks;
            whole[index_of(state as u8 | PROBATION)] = new;
        }
        whole[index_of(State::Closing as u8 | PROBATION)] = new.min(closing);
        let mut limits = Self { now: whole, whole, step: 0, span: [0; 2], capacity };
        limits.take_step(0);
        limits
    }

    /// Returns `true` if the flow has been idle for longer than the timeout of its state. The
    /// result is undefined for an empty entry.
    #[inline]
    pub(crate) fn expired(&self, clock: Clock, now: Tick) -> bool {
        now.since(clock.tick()) > self.now[index_of(clock.state_byte())]
    }

    /// Returns the number of ticks until the flow expires. The number is negative if the flow has
    /// expired, and large for an empty entry.
    ///
    /// `age` is the result of [`Tick::since_with_grace`], and `state` is the result of
    /// [`Clock::index`].
    #[inline(always)]
    pub(crate) fn left(&self, age: u32, state: usize) -> i32 {
        self.now[state % STATES].wrapping_add(Tick::GRACE).wrapping_sub(age).cast_signed()
    }

    /// Adapts the timeouts to `kept`, the number of entries that are not on probation. The
    /// documentation of [`Timeouts`] contains the rule.
    #[inline]
    pub(crate) fn follow(&mut self, kept: usize) {
        if kept < self.span[0] || kept >= self.span[1] {
            self.take_step(kept);
        }
    }

    #[cold]
    fn take_step(&mut self, kept: usize) {
        let start = |step: usize| ((8 + step) * self.capacity).div_ceil(16);
        self.step = (1..=LAST_STEP).rev().find(|&step| kept >= start(step)).unwrap_or(0);
        self.span = match self.step {
            0 => [0, start(1)],
            LAST_STEP => [start(LAST_STEP), usize::MAX],
            step => [start(step), start(step + 1)],
        };
        let (new, left) = (self.whole[index_of(State::New as u8)], 32 - 5 * self.step as u64);
        for (now, whole) in self.now.iter_mut().zip(self.whole) {
            let shorter = u32::try_from(u64::from(whole) * left / 32).unwrap_or(whole);
            *now = shorter.max(whole.min(new));
        }
    }

    /// Returns `true` if the timeouts have reached their minimum.
    pub(crate) const fn are_shortest(&self) -> bool {
        self.step == LAST_STEP
    }

    /// Returns `true` if the timeouts have their configured values.
    pub(crate) const fn are_whole(&self) -> bool {
        self.step == 0
    }
}

/// The state byte after a packet. The table is indexed by the packet type, by a flag that is 1 if
/// the packet arrived at least one tick after the previous packet, and by the old state byte.
///
/// The lookup table avoids branches, which the CPU would mispredict when packets of different flows
/// are mixed.
static AFTER: [[[u8; BYTES]; 2]; 4] = {
    let mut table = [[[0; BYTES]; 2]; 4];
    let signals = [Signal::Syn, Signal::Data, Signal::FinOrRst, Signal::Datagram];
    let mut i = 0;
    while i < 8 * BYTES {
        let (signal, later, index) = (i / (2 * BYTES), i / BYTES % 2, i % BYTES);
        #[expect(clippy::cast_possible_truncation, reason = "an index below 256")]
        let byte = index as u8;
        table[signal][later][index] = state_after(byte, signals[signal], later == 1);
        i += 1;
    }
    table
};

/// Computes the next state byte.
///
/// The packet type may not match the protocol of the entry if two flows have the same hash. Such a
/// packet is treated like any other packet.
const fn state_after(byte: u8, signal: Signal, later: bool) -> u8 {
    const NEW: u8 = State::New as u8;
    const ESTABLISHED: u8 = State::Established as u8;
    const CLOSING: u8 = State::Closing as u8;
    const UDP: u8 = State::Udp as u8;
    const MIDSTREAM: u8 = State::Midstream as u8;
    const OPENED: u8 = State::Opened as u8;
    const REOPENED: u8 = State::Reopened as u8;
    const FIRST_OPENED: u8 = OPENED | ((PROOF - 1) * ONE_LACKING);
    const LAST_OPENED: u8 = OPENED | ONE_LACKING;
    let probation = if later { 0 } else { byte & PROBATION };
    match (byte & STATE, signal) {
        // The SYN opens a new connection with the same 5-tuple.
        (CLOSING | REOPENED, Signal::Syn) => NEW | PROBATION,
        (UDP, _) => UDP | probation,
        (_, Signal::FinOrRst) => CLOSING | probation,
        (NEW, Signal::Data | Signal::Datagram) if probation == 0 => FIRST_OPENED,
        (MIDSTREAM, Signal::Data | Signal::Datagram) if later && byte & PROBATION == 0 => FIRST_OPENED,
        (OPENED, Signal::Data | Signal::Datagram) if later && byte <= LAST_OPENED => ESTABLISHED,
        (OPENED, Signal::Data | Signal::Datagram) if later => byte - ONE_LACKING,
        (OPENED, _) => byte,
        (CLOSING, Signal::Data | Signal::Datagram) if later => REOPENED,
        (REOPENED, Signal::Data | Signal::Datagram) if later => FIRST_OPENED,
        (state, _) => state | probation,
    }
}

#[inline]
const fn first_state(signal: Signal) -> State {
    match signal {
        Signal::Syn => State::New,
        Signal::Data => State::Midstream,
        Signal::FinOrRst => State::Closing,
        Signal::Datagram => State::Udp,
    }
}

/// Returns state and probation as an index below [`STATES`].
#[inline]
const fn index_of(state_byte: u8) -> usize {
    state_byte as usize % STATES
}

#[inline]
const fn field(id: Id, shift: u32) -> u128 {
    (id.get() as u128) << shift
}

/// The bits of the hash that an entry stores.
pub(crate) const TAG_MASK: u64 = (1 << 48) - 1;
/// The number of states with and without probation.
pub(crate) const STATES: usize = 16;
/// The number of values that a state byte can have.
const BYTES: usize = 256;
/// The last step of the shrinking timeouts, reached when 14/16 of the entries are in use.
const LAST_STEP: usize = 6;
/// The bits of the state byte that contain the state.
const STATE: u8 = 7;
// This bit is directly above the state bits, so that state and probation form an index below 16.
pub(crate) const PROBATION: u8 = 8;
/// The bits that store how many more ticks with data an opened flow needs before it is proven.
const LACKING: u8 = 0xf0;
const ONE_LACKING: u8 = 0x10;
const SLOT_SHIFT: u32 = 48;
const VIP_SHIFT: u32 = 72;
const TICK_SHIFT: u32 = 96;
