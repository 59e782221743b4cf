//! Splits the line of a text command into words.
//!
//! As in memcached, only spaces separate words, and a run of spaces is treated as one space. A line
//! may end with spaces, because libmemcached sends such lines.

use std::str;

use memchr::{memchr, memchr2};

use crate::{Datagram, Item, Refusal};

use super::{frame, item};

/// An iterator over the words of a command line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    payload: &'a [u8],
    at: usize,
    end: usize,
}

/// A word and its offset in the payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    pub(super) start: usize,
    pub(super) text: &'a [u8],
}

impl<'a> Words<'a> {
    /// Returns the words of the line after the frame. The line must end with CR LF. A line is
    /// refused if memcached would find the end of the line at a different position.
    #[inline]
    pub(super) fn line(datagram: Datagram<'a>) -> Result<Self, Refusal> {
        let payload = datagram.payload();
        let text = payload.get(frame::LENGTH..).unwrap_or_default();
        let Some(stop) = memchr2(b'\n', 0, text) else {
            return Err(if datagram.is_whole() { Refusal::LineEnd } else { Refusal::FirstFragmentTooShort });
        };
        match (text.get(stop), stop.checked_sub(1).and_then(|last| text.get(last))) {
            (Some(0), _) => Err(Refusal::ZeroByte),
            (_, Some(b'\r')) => Ok(Self { payload, at: frame::LENGTH, end: frame::LENGTH + stop - 1 }),
            _ => Err(Refusal::LineEnd),
        }
    }

    /// Returns the words between two offsets.
    pub(super) fn between(payload: &'a [u8], at: usize, end: usize) -> Self {
        Self { payload, at, end }
    }

    /// Returns the offset of the CR that ends the line.
    #[inline]
    pub(super) const fn end(&self) -> usize {
        self.end
    }

    /// Returns the offset of the first byte after CR LF.
    #[inline]
    pub(super) const fn behind(&self) -> usize {
        self.end + 2
    }

    /// Returns the next word, or an error if the line has no further word.
    #[inline]
    pub(super) fn want(&mut self) -> Result<Word<'a>, Refusal> {
        self.next().ok_or(Refusal::WrongArguments)
    }

    /// Checks that at most the word `noreply` follows.
    pub(super) fn finish(&mut self) -> Result<(), Refusal> {
        match (self.next().map(|word| word.text), self.next()) {
            (None | Some(b"noreply"), None) => Ok(()),
            _ => Err(Refusal::WrongArguments),
        }
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    #[inline]
    fn next(&mut self) -> Option<Word<'a>> {
        let mut rest = self.payload.get(self.at..self.end)?;
        while let [b' ', behind @ ..] = rest {
            rest = behind;
        }
        if rest.is_empty() {
            return None;
        }
        let start = self.end - rest.len();
        let text = memchr(b' ', rest).and_then(|len| rest.get(..len)).unwrap_or(rest);
        self.at = start + text.len();
        Some(Word { start, text })
    }
}

/// Returns a word as a key, or an error if there is no word.
#[inline]
pub(super) fn key(word: Option<Word<'_>>) -> Result<Item, Refusal> {
    let word = word.ok_or(Refusal::KeyEmpty)?;
    item(word.start, word.text.len())
}

/// Checks that the datagram contains only this line.
#[inline]
pub(super) fn alone(words: &Words<'_>, datagram: Datagram<'_>) -> Result<(), Refusal> {
    if words.behind() == datagram.length() { Ok(()) } else { Err(Refusal::SeveralCommands) }
}

/// Checks that the datagram contains only this line, and that the line has no further word.
pub(super) fn no_more(mut words: Words<'_>, datagram: Datagram<'_>) -> Result<(), Refusal> {
    alone(&words, datagram)?;
    words.next().map_or(Ok(()), |_| Err(Refusal::WrongArguments))
}

/// Checks that the rest of the datagram is a value of `bytes` bytes followed by CR LF.
pub(super) fn value(words: &Words<'_>, bytes: u64, datagram: Datagram<'_>) -> Result<(), Refusal> {
    let left = datagram.length().checked_sub(words.behind() + 2).ok_or(Refusal::WrongLength)?;
    if usize::try_from(bytes) != Ok(left) {
        return Err(Refusal::WrongLength);
    }
    if datagram.is_whole() && !datagram.payload().ends_with(b"\r\n") {
        return Err(Refusal::LineEnd);
    }
    Ok(())
}

/// Parses decimal digits as memcached does. Signs, spaces and prefixes such as `0x` are errors.
pub(super) fn unsigned(text: &[u8]) -> Result<u64, Refusal> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(Refusal::BadNumber);
    }
    str::from_utf8(text).ok().and_then(|digits| digits.parse().ok()).ok_or(Refusal::BadNumber)
}

/// Checks that a word is a valid number for client flags.
pub(super) fn flags(text: &[u8]) -> Result<(), Refusal> {
    u32::try_from(unsigned(text)?).map(drop).map_err(|_| Refusal::BadNumber)
}

/// Checks that a word is a valid time to live, which consists of digits and an optional minus sign.
pub(super) fn seconds(text: &[u8]) -> Result<(), Refusal> {
    let magnitude = unsigned(text.strip_prefix(b"-").unwrap_or(text))?;
    i32::try_from(magnitude).map(drop).map_err(|_| Refusal::BadNumber)
}
