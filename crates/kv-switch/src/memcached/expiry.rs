//! Limits the times to live in requests that store values.
//!
//! All other bytes of a request stay unchanged. A time to live is never increased. The time 0,
//! which means no expiry, is replaced by the limit. Times within the limit are copied unchanged.
//!
//! References: memcached 1.6 `doc/protocol.txt` ("Expiration times") and `realtime` of
//! `memcached.c`. Times up to 30 days are relative, larger times are seconds since 1970, and
//! negative times have already expired.

use std::io::Write as _;
use std::ops::Range;

use memchr::memchr;

use crate::{Request, ShortLife, Shortened};

use super::binary::{self, Header};
use super::frame;
use super::words::{Word, Words, unsigned};

pub(super) fn shorten(request: &Request<'_>, life: ShortLife, out: &mut [u8]) -> Shortened {
    let payload = request.payload;
    let shortened = match payload.get(frame::LENGTH) {
        Some(&binary::REQUEST) => in_extras(payload, life, out),
        _ => in_line(request, life, out),
    };
    shortened.unwrap_or(Shortened::NoRoom)
}

/// Limits the four-byte time to live in the extras of a binary command.
fn in_extras(payload: &[u8], life: ShortLife, out: &mut [u8]) -> Option<Shortened> {
    let Some(header) = Header::at(payload, frame::LENGTH) else { return Some(Shortened::Unchanged) };
    let behind = match header.opcode {
        SET | ADD | REPLACE | SETQ | ADDQ | REPLACEQ => 4,
        INCREMENT | DECREMENT | INCREMENTQ | DECREMENTQ => 16,
        TOUCH | GAT | GATQ | GATK | GATKQ => 0,
        _ => return Some(Shortened::Unchanged),
    };
    let start = frame::LENGTH + binary::LENGTH + behind;
    let Some(time) = payload.get(start..).and_then(|rest| rest.first_chunk::<4>()) else {
        return Some(Shortened::Unchanged);
    };
    let time = u32::from_be_bytes(*time);
    let creates_nothing = behind == 16 && time == u32::MAX;
    let Some(shorter) = life.shorter(time.into()).filter(|_| !creates_nothing) else {
        return Some(Shortened::Unchanged);
    };
    let out = out.get_mut(..payload.len())?;
    out.copy_from_slice(payload);
    out.get_mut(start..start + 4)?.copy_from_slice(&shorter.to_be_bytes());
    Some(Shortened::To(payload.len()))
}

/// The positions of times to live in a command line.
enum Times {
    /// The word with this index is a time. The verb has index 0.
    Word(usize),
    /// Each word with an index of at least `from` contains a time if it begins with one of
    /// `letters`. If `must_be` is `true` and the line has no time, a flag with the first letter is
    /// added.
    Flags { from: usize, letters: &'static [u8], must_be: bool },
}

impl Times {
    /// Returns where the command line of a verb contains times, or `None` if the verb has no time.
    #[inline]
    fn of(verb: &[u8]) -> Option<Self> {
        Some(match verb {
            b"set" | b"add" | b"replace" | b"cas" => Self::Word(3),
            b"touch" => Self::Word(2),
            b"gat" | b"gats" => Self::Word(1),
            b"ms" => Self::Flags { from: 3, letters: b"T", must_be: true },
            b"mg" | b"ma" => Self::Flags { from: 2, letters: b"TN", must_be: false },
            _ => return None,
        })
    }

    /// Returns the offset of the time within a word, or `None` if the word contains no time.
    #[inline]
    fn start_in(&self, number: usize, word: &Word<'_>) -> Option<usize> {
        match self {
            Self::Word(wanted) => (number == *wanted).then_some(word.start),
            Self::Flags { from, letters, .. } => {
                let is_time =
                    number >= *from && word.text.first().is_some_and(|letter| letters.contains(letter));
                is_time.then_some(word.start + 1)
            }
        }
    }
}

fn in_line(request: &Request<'_>, life: ShortLife, out: &mut [u8]) -> Option<Shortened> {
    let payload = request.payload;
    // The line ends with the CR directly before the LF. Keys and opaques may contain other CRs.
    let end = frame::LENGTH + memchr(b'\n', payload.get(frame::LENGTH..)?)?.checked_sub(1)?;
    let mut words = Words::between(payload, frame::LENGTH, end);
    let Some(times) = Times::of(words.next()?.text) else { return Some(Shortened::Unchanged) };
    let mut copy = Copy { payload, copied: 0, out, written: 0 };
    let mut has_time = false;
    for (number, word) in (1..).zip(words) {
        let Some(start) = times.start_in(number, &word) else { continue };
        has_time = true;
        let end = word.start + word.text.len();
        // A negative time has already expired.
        let time = unsigned(payload.get(start..end)?).ok();
        if let Some(shorter) = time.and_then(|time| life.shorter(time)) {
            copy.replace(start..end, "", shorter)?;
        }
    }
    if let Times::Flags { must_be: true, .. } = times
        && !has_time
    {
        copy.replace(end..end, " T", life.seconds)?;
    }
    if copy.copied == 0 {
        return Some(Shortened::Unchanged);
    }
    copy.up_to(payload.len())?;
    Some(Shortened::To(copy.written))
}

/// Copies a payload to `out` and replaces some words.
struct Copy<'a, 'o> {
    payload: &'a [u8],
    copied: usize,
    out: &'o mut [u8],
    written: usize,
}

impl Copy<'_, '_> {
    /// Copies the bytes before `end`.
    fn up_to(&mut self, end: usize) -> Option<()> {
        let from = self.payload.get(self.copied..end)?;
        self.out.get_mut(self.written..self.written + from.len())?.copy_from_slice(from);
        (self.copied, self.written) = (end, self.written + from.len());
        Some(())
    }

    /// Replaces the bytes in `place` with `letter`, which may be empty, followed by a time.
    fn replace(&mut self, place: Range<usize>, letter: &str, time: u32) -> Option<()> {
        self.up_to(place.start)?;
        let mut room = self.out.get_mut(self.written..)?;
        let before = room.len();
        write!(room, "{letter}{time}").ok()?;
        self.written += before - room.len();
        self.copied = place.end;
        Some(())
    }
}

const SET: u8 = 0x01;
const ADD: u8 = 0x02;
const REPLACE: u8 = 0x03;
const INCREMENT: u8 = 0x05;
const DECREMENT: u8 = 0x06;
const SETQ: u8 = 0x11;
const ADDQ: u8 = 0x12;
const REPLACEQ: u8 = 0x13;
const INCREMENTQ: u8 = 0x15;
const DECREMENTQ: u8 = 0x16;
const TOUCH: u8 = 0x1c;
const GAT: u8 = 0x1d;
const GATQ: u8 = 0x1e;
const GATK: u8 = 0x23;
const GATKQ: u8 = 0x24;
