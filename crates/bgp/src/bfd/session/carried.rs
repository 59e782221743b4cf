//! Encodes and decodes a BFD session for the handover to another process.
//!
//! The encoding contains the state of the session but no times, because an `Instant` is valid only
//! in the process that created it. After decoding, the session sends a packet immediately, and
//! restarts the detection time. The interval and the multiplier are encoded with the configuration,
//! not here.
//!
//! `Session::read` accepts only states that the state machine can reach.

use std::time::{Duration, Instant};

use super::{Before, Remote, Session, UNHEARD};
use crate::bfd::bytes::Reader;
use crate::bfd::packet::{Diagnostic, SessionState};

impl Session {
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        let Self { discriminator, state, diagnostic, polling, before, remote, .. } = self;
        let before = before.unwrap_or(Before { shortest: 0, longest: 0 });
        let words = [*discriminator, before.shortest, before.longest];
        to.extend(words.into_iter().flat_map(u32::to_be_bytes));
        to.extend([*state as u8, *diagnostic as u8, u8::from(*polling)]);
        let words = [remote.discriminator, remote.required_rx, remote.desired_tx];
        to.extend(words.into_iter().flat_map(u32::to_be_bytes));
        to.extend([remote.state as u8, remote.multiplier, u8::from(remote.demand)]);
    }

    /// Decodes a session. `interval` is in microseconds. Returns `None` if the data is truncated or
    /// is not a reachable state.
    pub(crate) fn read(from: &mut Reader<'_>, interval: u32, multiplier: u8, now: Instant) -> Option<Self> {
        let discriminator = from.word()?;
        let before = Before { shortest: from.word()?, longest: from.word()? };
        let (state, diagnostic, polling) = (from.state()?, Diagnostic::new(from.byte()?)?, from.flag()?);
        let remote = Remote {
            discriminator: from.word()?,
            required_rx: from.word()?,
            desired_tx: from.word()?,
            state: from.state()?,
            multiplier: from.byte()?,
            demand: from.flag()?,
        };
        let is_heard = remote.discriminator != 0;
        let is_before = before.shortest != 0;
        let is_one = discriminator != 0
            && state != SessionState::AdminDown
            && is_heard == (remote.multiplier != 0)
            && (is_heard || state == SessionState::Down)
            && before.shortest <= before.longest
            && is_before == (before.longest != 0)
            && (state == SessionState::Up || !(polling || is_before));
        let session = Self {
            diagnostic,
            state,
            polling,
            before: is_before.then_some(before),
            remote: if is_heard { remote } else { UNHEARD },
            ..Self::new(discriminator, interval, multiplier, now)
        };
        is_one.then_some(session)
    }

    /// Resumes the session in the new process. A packet is due immediately, because no packet was
    /// sent during the handover. The detection time starts again.
    pub(crate) fn resume(&mut self, now: Instant) {
        (self.sent_at, self.wait) = (now, Duration::ZERO);
        self.detect_at = (self.remote.discriminator != 0).then(|| now + self.detection_time());
    }
}
