//! The meta commands: `mg`, `ms`, `md`, `ma`, `me`, `mn`.
//!
//! In: the words behind the verb. Out: an [`Ask`], or why it is refused.
//! A verb has the flags that memcached's document gives it. Each stands once; its token is a number, a mode, an opaque or nothing.

use crate::{Ask, Datagram, Effect, Encoding, Item, KeyRoom, Refusal};

use super::words::{Words, alone, flags, key, no_more, seconds, unsigned, value};
use super::{CACHEABLE, UNCACHED, Verb, decode};

pub(super) fn read(kind: u8, mut words: Words<'_>, datagram: Datagram<'_>) -> Result<Ask, Refusal> {
    match kind {
        b's' => return set(words, datagram),
        b'n' => return no_more(words, datagram).map(|()| Ask::keyless(Verb::Noop.number())),
        _ => {}
    }
    if !b"gdae".contains(&kind) {
        return Err(Refusal::UnknownVerb);
    }
    alone(&words, datagram)?;
    let key = key(words.next())?;
    let (verb, allowed) = match kind {
        b'g' => (Verb::MetaGet, GET),
        b'd' => (Verb::MetaDelete, DELETE),
        b'a' => (Verb::MetaArithmetic, ARITHMETIC),
        _ => (Verb::MetaDebug, DEBUG),
    };
    finish(verb, key, Flags::read(&mut words, allowed)?, datagram)
}

/// `ms KEY BYTES FLAG*`, then the value.
fn set(mut words: Words<'_>, datagram: Datagram<'_>) -> Result<Ask, Refusal> {
    let key = key(words.next())?;
    let bytes = unsigned(words.want()?.text)?;
    let flags = Flags::read(&mut words, SET)?;
    value(&words, bytes, datagram)?;
    finish(Verb::MetaSet, key, flags, datagram)
}

fn finish(verb: Verb, mut key: Item, flags: Flags, datagram: Datagram<'_>) -> Result<Ask, Refusal> {
    if flags.has(b'b') {
        key.encoding = Encoding::Base64;
        decode(key.bytes(datagram.payload()), &mut KeyRoom::default())?;
    }
    Ok(Ask::one(verb.number(), flags.effect(verb), key))
}

/// The flags of a command: which, and the mode that `M` gives.
#[derive(Clone, Copy, Debug)]
struct Flags {
    seen: u64,
    mode: u8,
}

impl Flags {
    fn read(words: &mut Words<'_>, allowed: &[u8]) -> Result<Self, Refusal> {
        let mut read = Self { seen: 0, mode: 0 };
        for word in words.by_ref() {
            let (&flag, token) = word.text.split_first().ok_or(Refusal::BadFlag)?;
            if !allowed.contains(&flag) || read.has(flag) {
                return Err(Refusal::BadFlag);
            }
            read.seen |= bit(flag);
            read.token(flag, token).map_err(|_| Refusal::BadFlag)?;
        }
        Ok(read)
    }

    fn token(&mut self, flag: u8, token: &[u8]) -> Result<(), Refusal> {
        match flag {
            b'N' | b'R' | b'T' => seconds(token),
            b'C' | b'D' | b'E' | b'J' => unsigned(token).map(drop),
            b'F' => flags(token),
            b'O' if token.len() <= OPAQUE => Ok(()),
            b'L' | b'P' => Ok(()), // hints for proxies
            b'M' => match token {
                [mode] => {
                    self.mode = mode.to_ascii_uppercase();
                    Ok(())
                }
                _ => Err(Refusal::BadFlag),
            },
            _ if token.is_empty() => Ok(()),
            _ => Err(Refusal::BadFlag),
        }
    }

    const fn has(self, flag: u8) -> bool {
        self.seen & bit(flag) != 0
    }

    fn effect(self, verb: Verb) -> Effect {
        let any = |flags: &[u8]| flags.iter().any(|&flag| self.has(flag));
        match verb {
            // A new item where there was none (N, E), or a turn that one client gets (R).
            Verb::MetaGet if any(b"NRE") => Effect::Conditional,
            Verb::MetaGet if self.has(b'T') => Effect::Write,
            Verb::MetaGet if !any(b"hluPL") => CACHEABLE,
            Verb::MetaGet | Verb::MetaDebug => UNCACHED,
            Verb::MetaSet if self.has(b'C') || !matches!(self.mode, 0 | b'S') => Effect::Conditional,
            Verb::MetaDelete if self.has(b'C') => Effect::Conditional,
            Verb::MetaArithmetic => Effect::Conditional,
            _ => Effect::Write,
        }
    }
}

/// A letter's bit: letters are 65 to 122, and no two of them are 64 apart.
const fn bit(letter: u8) -> u64 {
    1 << (letter & 63)
}

const GET: &[u8] = b"bcfhklOqstuvENRTPL";
const SET: &[u8] = b"bcCEFIkOqsTMNPL";
const DELETE: &[u8] = b"bCEIkOqTxPL";
const ARITHMETIC: &[u8] = b"bCENJDTMqtcvkOPL";
/// `me` takes a `b` right behind the key, and ignores everything else.
const DEBUG: &[u8] = b"b";

/// Bytes of the longest opaque: memcached counts 32 with its letter.
const OPAQUE: usize = 31;
