//! The state machine of one BFD session, which does not use sockets or read the clock.
//!
//! The caller passes the time, random numbers and the packets that [`Control::parse`] accepted. The
//! session returns the packets to send.
//!
//! See RFC 5880 §6.8. Section numbers in this file refer to RFC 5880.

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
    /// The range of previous local intervals, which remain in effect until the peer confirms the
    /// new interval.
    before: Option<Before>,
    remote: Remote,
    sent_at: Instant,
    wait: Duration,
    detect_at: Option<Instant>,
}

/// A range of intervals, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Before {
    shortest: u32,
    longest: u32,
}

/// The values in the last packet from the peer.
#[derive(Clone, Copy, Debug)]
struct Remote {
    discriminator: u32,
    state: SessionState,
    required_rx: u32,
    desired_tx: u32,
    multiplier: u8,
    demand: bool,
}

/// The values before the first packet from the peer (RFC 5880 §6.8.1).
const UNHEARD: Remote = Remote {
    discriminator: 0,
    state: SessionState::Down,
    required_rx: 1,
    desired_tx: 0,
    multiplier: 0,
    demand: false,
};

impl Session {
    /// Creates a session in state Down whose first packet is due immediately. `interval` is in
    /// microseconds and applies to both directions.
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

    /// Handles a packet from the peer. Returns a packet to send immediately if the peer polls or
    /// the state has changed.
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
        // §6.8.3: a shorter interval applies immediately, because the peer would otherwise detect a
        // loss during the current long wait.
        self.wait = self.wait.min(self.transmit_interval().unwrap_or(self.wait));
        if packet.poll {
            return Some(self.packet(true));
        }
        (self.state != before).then(|| self.sent(now, 0))
    }

    /// Handles the timers that have expired at `now`. Returns a packet if one is due. `chance` is a
    /// random number for the jitter. The call may change `state`.
    pub(crate) fn tick(&mut self, now: Instant, chance: u32) -> Option<Control> {
        if self.detect_at.is_some_and(|at| at <= now) {
            self.detect_at = None;
            // §6.8.1: after a detection time without packets, the stored values from the peer are
            // reset.
            self.remote = UNHEARD;
            if matches!(self.state, SessionState::Init | SessionState::Up) {
                self.turn(SessionState::Down, Diagnostic::DetectionTimeExpired);
                return Some(self.sent(now, chance));
            }
        }
        (self.transmit_at().is_some_and(|at| at <= now)).then(|| self.sent(now, chance))
    }

    /// Changes the interval (in microseconds) and the multiplier of the running session. Returns a
    /// packet if one must be sent immediately.
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

    /// Returns the time at which [`Self::tick`] must be called next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.transmit_at(), self.detect_at].into_iter().flatten().min()
    }

    /// Changes the state to AdminDown. Returns the last packet to send, which informs the peer that
    /// the session ends without a failure.
    pub(crate) fn admin_down(&mut self) -> Control {
        self.turn(SessionState::AdminDown, Diagnostic::AdministrativelyDown);
        self.packet(false)
    }

    /// Applies the state machine of §6.8.6.
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
        // §6.8.3: the local transmit interval changes when the session comes up, so the peer must
        // confirm it.
        (self.polling, self.before) = (state == SessionState::Up, None);
        (self.state, self.diagnostic) = (state, diagnostic);
    }

    /// Returns the local transmit interval in microseconds. A session that is not up must send at
    /// most one packet per second (§6.8.3).
    fn desired_tx(&self) -> u32 {
        if self.state == SessionState::Up { self.interval } else { self.interval.max(ONE_SECOND) }
    }

    /// Returns the interval between packets to the peer, or `None` if the peer requests no packets
    /// (§6.8.7).
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

    /// Returns the detection time (§6.8.4). Until the peer has confirmed a shorter local interval,
    /// the longest earlier interval is used (§6.8.3).
    fn detection_time(&self) -> Duration {
        let ours = self.before.map_or(0, |before| before.longest).max(self.interval);
        micros(ours.max(self.remote.desired_tx)) * u32::from(self.remote.multiplier)
    }

    /// Returns how long this side may stop sending, beyond the longest regular wait, before the
    /// peer considers it down (§6.8.4). Returns `None` if the peer does not expect packets now.
    pub(crate) fn spare(&self) -> Option<Duration> {
        let interval = self.transmit_interval().filter(|_| self.state == SessionState::Up)?;
        Some(interval * self.multiplier.into() - interval * (SHORTEST_WAIT + self.jitter()) / 100)
    }

    /// Returns the jitter as a percentage of the interval. A wait is 75 to 100 % of the interval.
    /// With a multiplier of 1, the wait is 75 to 90 % of the interval (§6.8.7).
    fn jitter(&self) -> u32 {
        if self.multiplier == 1 { 15 } else { 25 }
    }

    /// Returns the packet to send now, and starts the jittered wait for the next packet.
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

/// The bits of a discriminator that contain the slot number of the session.
pub(crate) const SLOT: u32 = 0xffff;
const ONE_SECOND: u32 = 1_000_000;
/// The shortest wait, as a percentage of the interval.
const SHORTEST_WAIT: u32 = 75;

#[cfg(test)]
mod tests;
