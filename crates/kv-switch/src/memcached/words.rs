//! One line of text, as words between spaces.
//!
//! Memcached's tokenizer splits at SP alone, takes runs of them for one, and lets a line end in some (libmemcached sends those).

use std::str;

use memchr::{memchr, memchr2};

use crate::{Datagram, Item, Refusal};

use super::{frame, item};

/// A command line: its words, and where it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    payload: &'a [u8],
    at: usize,
    end: usize,
}

/// A word, and its offset in the payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    pub(super) start: usize,
    pub(super) text: &'a [u8],
}

impl<'a> Words<'a> {
    /// The line behind the frame. Its end is CR LF: a line that memcached ends elsewhere is refused.
    #[inline]
    pub(super) fn line(datagram: Datagram<'a>) -> Result<Self, Refusal> {
        let payload = datagram.payload();
        let text = payload.get(frame::LENGTH..).unwrap_or_default();
        let Some(stop) = memchr2(b'\n', 0, text) else {
            return Err(if datagram.is_whole() { Refusal::LineEnd } else { Refusal::FirstPieceTooShort });
        };
        match (text.get(stop), stop.checked_sub(1).and_then(|last| text.get(last))) {
            (Some(0), _) => Err(Refusal::ZeroByte),
            (_, Some(b'\r')) => Ok(Self { payload, at: frame::LENGTH, end: frame::LENGTH + stop - 1 }),
            _ => Err(Refusal::LineEnd),
        }
    }

    /// The words between two offsets.
    pub(super) fn between(payload: &'a [u8], at: usize, end: usize) -> Self {
        Self { payload, at, end }
    }

    /// Offset of the line's CR.
    #[inline]
    pub(super) const fn end(&self) -> usize {
        self.end
    }

    /// Offset of the first byte behind the line's CR LF.
    #[inline]
    pub(super) const fn behind(&self) -> usize {
        self.end + 2
    }

    /// The word that the line must have here.
    #[inline]
    pub(super) fn want(&mut self) -> Result<Word<'a>, Refusal> {
        self.next().ok_or(Refusal::WrongArguments)
    }

    /// Nothing, or `noreply`, may be left.
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

/// The key that must stand here.
#[inline]
pub(super) fn key(word: Option<Word<'_>>) -> Result<Item, Refusal> {
    let word = word.ok_or(Refusal::KeyEmpty)?;
    item(word.start, word.text.len())
}

/// The line must be all of the datagram.
#[inline]
pub(super) fn alone(words: &Words<'_>, datagram: Datagram<'_>) -> Result<(), Refusal> {
    if words.behind() == datagram.length() { Ok(()) } else { Err(Refusal::SeveralCommands) }
}

/// The line must be all of the datagram, and have no further word.
pub(super) fn no_more(mut words: Words<'_>, datagram: Datagram<'_>) -> Result<(), Refusal> {
    alone(&words, datagram)?;
    words.next().map_or(Ok(()), |_| Err(Refusal::WrongArguments))
}

/// A value of `bytes` and CR LF must be what is left of the datagram.
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

/// Digits, as memcached reads them too: no sign, no space, no other base.
pub(super) fn unsigned(text: &[u8]) -> Result<u64, Refusal> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(Refusal::BadNumber);
    }
    str::from_utf8(text).ok().and_then(|digits| digits.parse().ok()).ok_or(Refusal::BadNumber)
}

/// Client flags.
pub(super) fn flags(text: &[u8]) -> Result<(), Refusal> {
    u32::try_from(unsigned(text)?).map(drop).map_err(|_| Refusal::BadNumber)
}

/// A time to live: digits, or a minus and digits.
pub(super) fn seconds(text: &[u8]) -> Result<(), Refusal> {
    let magnitude = unsigned(text.strip_prefix(b"-").unwrap_or(text))?;
    i32::try_from(magnitude).map(drop).map_err(|_| Refusal::BadNumber)
}
