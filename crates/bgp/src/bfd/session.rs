//! One session, without socket and clock.
//!
//! In: packets that passed [`Control::parse`], the time, chance. Out: packets to send, changes of the state.
//! Source: RFC 5880 §6.8; the sections stand at the rules.

mod carried;

use std::time::{Duration, Instant};

use super::packet::{Control, Diagnostic, SessionState};

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) discriminator: u32,
    interval: u32,
    multiplier: u8,
    pub(crate) state: SessionState,
    pub(crate) diagnostic: Diagnostic,
    polling: bool,
    /// What our intervals were, until the peer has confirmed the new ones.
    before: Option<Before>,
    remote: Remote,
    sent_at: Instant,
    wait: Duration,
    detect_at: Option<Instant>,
}

/// In microseconds.
#[derive(Clone, Copy, Debug)]
struct Before {
    shortest: u32,
    longest: u32,
}

/// What the peer last said.
#[derive(Clone, Copy, Debug)]
struct Remote {
    discriminator: u32,
    state: SessionState,
    required_rx: u32,
    desired_tx: u32,
    multiplier: u8,
    demand: bool,
}

/// Nothing heard yet (RFC 5880 §6.8.1).
const UNHEARD: Remote = Remote {
    discriminator: 0,
    state: SessionState::Down,
    required_rx: 1,
    desired_tx: 0,
    multiplier: 0,
    demand: false,
};

impl Session {
    /// A session that begins to call. `interval` is in microseconds, and wanted in both directions.
    pub(crate) fn new(discriminator: u32, interval: u32, multiplier: u8, now: Instant) -> Self {
        Self {
            discriminator,
            interval,
            multiplier,
            state: SessionState::Down,
            diagnostic: Diagnostic::None,
            polling: false,
            before: None,
            remote: UNHEARD,
            sent_at: now,
            wait: Duration::ZERO,
            detect_at: None,
        }
    }

    /// A packet of the peer; what is to be sent at once, if anything. A changed state is said at once too.
    pub(crate) fn received(&mut self, packet: &Control, now: Instant) -> Option<Control> {
        self.remote = Remote {
            discriminator: packet.my_discriminator,
            state: packet.state,
            required_rx: packet.required_rx,
            desired_tx: packet.desired_tx,
            multiplier: packet.multiplier,
            demand: packet.demand,
        };
        if packet.is_final {
            (self.polling, self.before) = (false, None);
        }
        let before = self.state;
        self.follow(packet.state);
        self.detect_at = Some(now + self.detection_time());
        // §6.8.3: a shorter interval holds at once, not after the long one under way, or the peer counts us out.
        self.wait = self.wait.min(self.transmit_interval().unwrap_or(self.wait));
        if packet.poll {
            return Some(self.packet(true));
        }
        (self.state != before).then(|| self.sent(now, 0))
    }

    /// What time brings: a packet that is due. `chance` is any number. Look at `state` after it.
    pub(crate) fn tick(&mut self, now: Instant, chance: u32) -> Option<Control> {
        if self.detect_at.is_some_and(|at| at <= now) {
            self.detect_at = None;
            // §6.8.1: a peer that was silent for so long is forgotten.
            self.remote = UNHEARD;
            if matches!(self.state, SessionState::Init | SessionState::Up) {
                self.turn(SessionState::Down, Diagnostic::DetectionTimeExpired);
                return Some(self.sent(now, chance));
            }
        }
        (self.transmit_at().is_some_and(|at| at <= now)).then(|| self.sent(now, chance))
    }

    /// Other times from now on; what is to be sent at once, if anything. The session goes on.
    pub(crate) fn change(&mut self, interval: u32, multiplier: u8, now: Instant) -> Option<Control> {
        let was = std::mem::replace(&mut self.interval, interval);
        self.multiplier = multiplier;
        if self.state != SessionState::Up || was == interval {
            return None;
        }
        //= RFC 5880 §6.8.3
        //# If either bfd.DesiredMinTxInterval is changed or bfd.RequiredMinRxInterval is changed, a Poll Sequence MUST be
        //# initiated
        self.polling = true;
        let before = self.before.unwrap_or(Before { shortest: was, longest: was });
        self.before = Some(Before { shortest: before.shortest.min(was), longest: before.longest.max(was) });
        Some(self.sent(now, 0))
    }

    /// When [`Self::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.transmit_at(), self.detect_at].into_iter().flatten().min()
    }

    /// The operator ends it: the last packet, which keeps the peer from taking it for a loss.
    pub(crate) fn admin_down(&mut self) -> Control {
        self.turn(SessionState::AdminDown, Diagnostic::AdministrativelyDown);
        self.packet(false)
    }

    /// §6.8.6: the state machine.
    fn follow(&mut self, remote: SessionState) {
        use SessionState::{AdminDown, Down, Init, Up};
        match (self.state, remote) {
            (Init | Up, AdminDown) | (Up, Down) => self.turn(Down, Diagnostic::NeighborSaysDown),
            (Down, Down) => self.turn(Init, Diagnostic::None),
            (Down, Init) | (Init, Init | Up) => self.turn(Up, Diagnostic::None),
            _ => {}
        }
    }

    fn turn(&mut self, state: SessionState, diagnostic: Diagnostic) {
        // §6.8.3: our interval has just changed, so the peer is asked to confirm it.
        (self.polling, self.before) = (state == SessionState::Up, None);
        (self.state, self.diagnostic) = (state, diagnostic);
    }

    /// §6.8.3: a session that is not up must not call more often than once a second.
    fn desired_tx(&self) -> u32 {
        if self.state == SessionState::Up { self.interval } else { self.interval.max(ONE_SECOND) }
    }

    /// `None`: the peer wants no packets (§6.8.7).
    fn transmit_interval(&self) -> Option<Duration> {
        let both_up = (self.state, self.remote.state) == (SessionState::Up, SessionState::Up);
        let silent = self.remote.demand && both_up && !self.polling;
        let wanted = self.remote.required_rx != 0 && !silent && self.state != SessionState::AdminDown;
        //= RFC 5880 §6.8.3
        //# the actual transmission interval used MUST NOT change until the Poll Sequence described above has terminated
        let ours = self.before.map_or(u32::MAX, |before| before.shortest).min(self.desired_tx());
        wanted.then(|| micros(ours.max(self.remote.required_rx)))
    }

    fn transmit_at(&self) -> Option<Instant> {
        self.transmit_interval().map(|_| self.sent_at + self.wait)
    }

    /// §6.8.4; by the longest of our intervals until the peer has confirmed a shorter one (§6.8.3).
    fn detection_time(&self) -> Duration {
        let ours = self.before.map_or(0, |before| before.longest).max(self.interval);
        micros(ours.max(self.remote.desired_tx)) * u32::from(self.remote.multiplier)
    }

    /// How long the peer may hear nothing beyond the longest wait for the next packet until it takes us for lost (§6.8.4); `None`: it
    /// does not count on us now.
    pub(crate) fn spare(&self) -> Option<Duration> {
        let interval = self.transmit_interval().filter(|_| self.state == SessionState::Up)?;
        Some(interval * self.multiplier.into() - interval * (SHORTEST_WAIT + self.jitter()) / 100)
    }

    /// §6.8.7: a wait is 75 to 100 % of the interval, or 90 % where one loss is enough.
    fn jitter(&self) -> u32 {
        if self.multiplier == 1 { 15 } else { 25 }
    }

    /// The packet to send now; the next one waits a jittered interval.
    fn sent(&mut self, now: Instant, chance: u32) -> Control {
        let percent = SHORTEST_WAIT + chance % (self.jitter() + 1);
        let interval = self.transmit_interval().unwrap_or_else(|| micros(self.desired_tx()));
        (self.sent_at, self.wait) = (now, interval * percent / 100);
        self.packet(false)
    }

    fn packet(&self, is_final: bool) -> Control {
        Control {
            diagnostic: self.diagnostic as u8,
            state: self.state,
            poll: self.polling && !is_final,
            is_final,
            demand: false,
            multiplier: self.multiplier,
            my_discriminator: self.discriminator,
            your_discriminator: self.remote.discriminator,
            desired_tx: self.desired_tx(),
            required_rx: self.interval,
        }
    }
}

fn micros(count: u32) -> Duration {
    Duration::from_micros(count.into())
}

/// Of a discriminator: the session's place among those of its thread.
pub(crate) const SLOT: u32 = 0xffff;
const ONE_SECOND: u32 = 1_000_000;
/// In per cent of the interval.
const SHORTEST_WAIT: u32 = 75;

#[cfg(test)]
mod tests;
