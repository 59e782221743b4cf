//! One flow in 16 bytes, and how a packet changes it.
//!
//! In: tag, slot, VIP, tick, state, and the [`Signal`] of a packet. Out: the packed entry, or [`Entry`] to read.
//! Not here: where an entry stands (`layout`), when it gives way (`room`).
//! Invariant: an entry that is not empty has a tag other than 0 and a state byte other than 0.

use core::time::Duration;

use crate::config::Timeouts;
use crate::tick::{Tick, span_of, ticks_covering};

/// Slots and VIPs are below this: they have 24 bits, and all ones is reserved.
pub const ID_LIMIT: u32 = (1 << 24) - 1;

/// Where a flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The backend's slot.
    pub slot: u32,
    /// The VIP.
    pub vip: u32,
}

/// What a packet says about its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Signal {
    /// TCP with SYN and without ACK: a new connection.
    Syn = 0,
    /// Any other TCP packet.
    Data = 1,
    /// TCP with FIN or RST.
    FinOrRst = 2,
    /// Anything that is not TCP.
    Datagram = 3,
}

/// How far a flow has come. Probation is beside it: every new entry is on probation, whatever its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// TCP, and nothing but SYNs after its first tick.
    New = 1,
    /// TCP in use, and proven by data in eight ticks.
    Established = 2,
    /// TCP after FIN or RST.
    Closing = 3,
    /// Any other protocol.
    Udp = 4,
    /// TCP whose first packet was no SYN, until two more packets have come, each at least one tick after the last: a
    /// sender that guesses a source can send such packets.
    Midstream = 5,
    /// TCP in use, and not yet proven: a sender of a SYN and an ACK under a forged source is this far, as no answer passes here. It
    /// differs from [`State::Established`] in one bit, so that the busiest test masks it.
    Opened = 6,
    /// TCP that goes on after FIN or RST, at least one tick later; one more packet a tick later, and it is in use again: a FIN may be
    /// forged.
    Reopened = 7,
}

/// Ticks with data that prove a TCP flow. Until then it is [`State::Opened`], and is kept for a `PROOF`th of `established`.
///
/// No handshake is seen, so what proves a flow is what it costs to forge. In `established` a place costs a forger `PROOF` packets,
/// whether each buys a `PROOF`th of that time or all of them the whole: with fewer ticks, proof would be the cheaper way; with more, it
/// would take real clients longer for nothing. By default 500,000 places, above which time-outs shrink, cost 8,900 packets a second by
/// pairs of SYN and ACK, 4,400 by packets that keep them, and 1,100 before there was a proof. A forger whose flow is proven keeps it by one
/// packet each time, as any client does.
///
/// Eight: a client that sends is proven in two seconds. One that says little keeps its entry if no more than 112 s lie between its
/// packets (MQTT, WebSocket, SSH keep alive at 15 to 60 s), and is proven by the eighth; one that falls silent before that loses its
/// entry, and goes on to the same backend by its Maglev table until its pool changes. At 15 ticks the time would be 60 s, too near to
/// those intervals.
pub(crate) const PROOF: u8 = 8;

/// One live flow, as listings and `peek` show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The lower 48 bits of the flow's hash (0 is kept as 1).
    pub tag: u64,
    /// The backend's slot.
    pub slot: u32,
    /// The VIP.
    pub vip: u32,
    /// How far the flow has come.
    pub state: State,
    /// Not yet a second packet at least one tick after the first.
    pub on_probation: bool,
    /// Since the last packet, in whole ticks.
    pub idle: Duration,
}

/// An entry as it stands in memory; `layout` names the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Packed(u128);

impl Packed {
    pub(crate) const EMPTY: Self = Self(0);

    /// A new entry, on probation. Slots and VIPs at or above [`ID_LIMIT`] are cut to 24 bits.
    #[inline]
    pub(crate) fn new(tag: u64, Target { slot, vip }: Target, signal: Signal, now: Tick) -> Self {
        debug_assert!(tag != 0 && tag <= TAG_MASK && slot < ID_LIMIT && vip < ID_LIMIT);
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

    /// The same flow on another slot.
    pub(crate) fn with_slot(self, slot: u32) -> Self {
        debug_assert!(slot < ID_LIMIT);
        let others = self.bits() & !(u128::from(MASK_24) << SLOT_SHIFT);
        Self::from_bits(others | field(slot, SLOT_SHIFT))
    }

    /// Tick and state: all that a packet of a known flow changes.
    #[inline]
    pub(crate) const fn clock(self) -> Clock {
        Clock((self.bits() >> TICK_SHIFT) as u32)
    }

    /// The same flow with another tick and state.
    #[inline]
    pub(crate) fn with_clock(self, clock: Clock) -> Self {
        let kept = self.bits() & ((1 << TICK_SHIFT) - 1);
        Self::from_bits(kept | u128::from(clock.0) << TICK_SHIFT)
    }

    /// For listings; `None` when empty, or when the state is none that this version writes.
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

/// The last four bytes of an entry: tick of the last packet, state, probation, and of an opened flow the ticks that its proof lacks.
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

    /// State and probation as a number below [`STATES`]; 0 is that of an empty place.
    #[inline(always)]
    pub(crate) const fn index(self) -> usize {
        index_of(self.state_byte())
    }

    /// The packet of a busy flow: established or opened, seen in this tick, and now data again. Most packets are that.
    #[inline]
    pub(crate) fn unmoved_by(self, signal: Signal, now: Tick) -> bool {
        const ESTABLISHED: u8 = State::Established as u8;
        const COMPARED: Clock =
            Clock::new(Tick::new(u32::MAX), !(LACKING | ESTABLISHED ^ State::Opened as u8));
        matches!(signal, Signal::Data) && (self.0 ^ Self::new(now, ESTABLISHED).0) & COMPARED.0 == 0
    }

    /// A SYN after FIN or RST: a new connection with the same 5-tuple.
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

    /// After a packet. The tick never goes back.
    #[inline]
    pub(crate) fn after(self, signal: Signal, now: Tick) -> Self {
        let later = now.since(self.tick()) > 0;
        let tick = if later { now } else { self.tick() };
        Self::new(tick, AFTER[signal as usize][usize::from(later)][usize::from(self.state_byte())])
    }
}

/// Idle timeouts in ticks, by state and probation; shorter while the table is full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TickLimits {
    /// As they are at `step`.
    now: [u32; STATES],
    whole: [u32; STATES],
    /// 0 to [`LAST_STEP`].
    step: usize,
    /// The numbers of places taken by flows off probation at which `step` begins and ends.
    span: [usize; 2],
    capacity: usize,
}

impl TickLimits {
    /// For a table of `capacity` places, with none taken.
    pub(crate) fn new(timeouts: &Timeouts, capacity: usize) -> Self {
        let (new, closing) = (ticks_covering(timeouts.new), ticks_covering(timeouts.closing));
        let (established, udp) = (ticks_covering(timeouts.established), ticks_covering(timeouts.udp));
        let mut whole = [0; STATES];
        // Of an empty place: however short time-outs get, it never expires.
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

    /// Whether the flow has been silent for longer than its state allows. An empty entry: meaningless.
    #[inline]
    pub(crate) fn expired(&self, clock: Clock, now: Tick) -> bool {
        now.since(clock.tick()) > self.now[index_of(clock.state_byte())]
    }

    /// The ticks that a flow of this age in this state has left, below 0 when it has expired; of an empty place, many. `age` is
    /// [`Tick::since_with_grace`], `state` as of [`Clock::index`].
    #[inline(always)]
    pub(crate) fn left(&self, age: u32, state: usize) -> i32 {
        self.now[state % STATES].wrapping_add(Tick::GRACE).wrapping_sub(age).cast_signed()
    }

    /// The time-outs that go with `kept` places taken by flows off probation.
    ///
    /// Up to half of the places they are whole. Above, with each sixteenth of the places, 5/32 of them go, until at 7/8 a sixteenth is
    /// left; none falls below that of a new flow, unless it is shorter by itself.
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

    /// Whether the time-outs are as short as they get.
    pub(crate) const fn are_shortest(&self) -> bool {
        self.step == LAST_STEP
    }

    /// Whether they are whole.
    pub(crate) const fn are_whole(&self) -> bool {
        self.step == 0
    }
}

/// The state byte after a packet: `[signal][at least one tick after the last packet][state byte]`.
///
/// A table, because the branches of it would be mispredicted in traffic of mixed flows.
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

/// The rules. A protocol that does not fit the entry (only a collision of hashes does that) counts as a packet
/// like any other.
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
        (CLOSING | REOPENED, Signal::Syn) => NEW | PROBATION, // a new connection with the same 5-tuple
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

/// State and probation as a number below [`STATES`].
#[inline]
const fn index_of(state_byte: u8) -> usize {
    state_byte as usize % STATES
}

#[inline]
const fn field(value: u32, shift: u32) -> u128 {
    ((value & MASK_24) as u128) << shift
}

/// The bits of the hash that an entry keeps.
pub(crate) const TAG_MASK: u64 = (1 << 48) - 1;
/// States, with probation and without.
pub(crate) const STATES: usize = 16;
/// Of the state byte.
const BYTES: usize = 256;
/// Of the time-outs: 14/16 of the places.
const LAST_STEP: usize = 6;
/// The bits of the state byte that say the state.
const STATE: u8 = 7;
pub(crate) const PROBATION: u8 = 8; // beside the states, so that both are an index below 16
/// Those that say how many ticks with data an opened flow lacks, and one tick there.
const LACKING: u8 = 0xf0;
const ONE_LACKING: u8 = 0x10;
const MASK_24: u32 = (1 << 24) - 1;
const SLOT_SHIFT: u32 = 48;
const VIP_SHIFT: u32 = 72;
const TICK_SHIFT: u32 = 96;
