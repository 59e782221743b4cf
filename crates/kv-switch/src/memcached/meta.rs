//! Parses the meta commands `mg`, `ms`, `md`, `ma`, `me` and `mn`.
//!
//! Each command accepts the flags that the memcached documentation lists for it. A flag may appear
//! only once. The token after the flag letter must be empty, a number, a mode or an opaque,
//! depending on the flag.

use crate::{Ask, Datagram, Effect, Encoding, Item, KeyRoom, Refusal};

use super::replicas::behind_the_key;
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

/// Returns `true` if an accepted request is a meta command with the flag `E`.
#[inline]
pub(super) fn sets_version(payload: &[u8], ask: &Ask) -> bool {
    let may_write = matches!(ask.effect, Effect::Write | Effect::Conditional);
    may_write
        && META.iter().any(|verb| verb.number() == ask.verb)
        && behind_the_key(payload, ask).is_some_and(|mut words| words.any(|word| word.text.starts_with(b"E")))
}

/// Parses `ms KEY BYTES FLAG*` and the value.
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

/// The flags of a command as a bit set, together with the mode given by the flag `M`.
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
            // The flags N and E create an item if the key is missing. The flag R can give one
            // client the right to refill the item.
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

/// Returns the bit of a letter. Letter codes are between 65 and 122, and no two of them differ by
/// 64, so their lower 6 bits are unique.
const fn bit(letter: u8) -> u64 {
    1 << (letter & 63)
}

/// The meta commands that accept the flag `E`.
const META: [Verb; 4] = [Verb::MetaGet, Verb::MetaSet, Verb::MetaDelete, Verb::MetaArithmetic];
const GET: &[u8] = b"bcfhklOqstuvENRTPL";
const SET: &[u8] = b"bcCEFIkOqsTMNPL";
const DELETE: &[u8] = b"bCEIkOqTxPL";
const ARITHMETIC: &[u8] = b"bCENJDTMqtcvkOPL";
/// The only flag of `me`, which must follow the key directly. Memcached ignores all other flags.
const DEBUG: &[u8] = b"b";

/// The maximum length of an opaque. Memcached allows 32 bytes including the flag letter.
const OPAQUE: usize = 31;
