//! Parses the classic text commands.
//!
//! A command must end exactly at the last byte of the datagram. If a storage command were too
//! short, the server would read the rest of the value from datagrams that other clients sent to the
//! same socket. If the server refused a command line, it would parse the following value as
//! commands.

use std::ops::ControlFlow;

use crate::{Ask, Datagram, Effect, Item, Plan, Refusal};

use super::words::{Words, alone, flags, key, no_more, seconds, unsigned, value};
use super::{CACHEABLE, UNCACHED, Verb, frame, item, meta};

#[inline]
pub(super) fn read(datagram: Datagram<'_>, max_keys: u16) -> Result<Ask, Refusal> {
    if let Some(ask) = plain_get(datagram) {
        return Ok(ask);
    }
    let mut words = Words::line(datagram)?;
    let verb = words.next().ok_or(Refusal::UnknownVerb)?;
    if verb.start != frame::LENGTH {
        // memcached 1.6.18 accepts leading spaces, but later versions do not
        return Err(Refusal::UnknownVerb);
    }
    match verb.text {
        b"get" => retrieval(Verb::Get, CACHEABLE, words, datagram, max_keys),
        b"gets" => retrieval(Verb::Gets, UNCACHED, words, datagram, max_keys),
        [b'm', kind] => meta::read(*kind, words, datagram),
        _ => rare(verb.text, words, datagram, max_keys),
    }
}

/// Parses `get KEY`, which is the most common request, in one pass over the key. All other
/// commands, and keys with control characters, are parsed word by word.
#[inline]
fn plain_get(datagram: Datagram<'_>) -> Option<Ask> {
    let line =
        datagram.payload().get(frame::LENGTH..)?.strip_suffix(b"\r\n").filter(|_| datagram.is_whole())?;
    let key = line.strip_prefix(b"get ").filter(|key| is_printed(key))?;
    Some(Ask::one(Verb::Get.number(), CACHEABLE, item(frame::LENGTH + GET, key.len()).ok()?))
}

/// Returns `true` if all bytes are greater than the space character, which is true for most keys.
/// The function compares 16 bytes at a time, and the last 16 bytes may overlap the previous ones.
#[inline]
fn is_printed(key: &[u8]) -> bool {
    fn within(bytes: &[u8]) -> bool {
        bytes.iter().fold(true, |all, &byte| all & (byte > b' '))
    }
    match key.last_chunk::<SIXTEEN>() {
        Some(last) => key.as_chunks::<SIXTEEN>().0.iter().all(|chunk| within(chunk)) && within(last),
        None => within(key),
    }
}

fn rare(verb: &[u8], words: Words<'_>, datagram: Datagram<'_>, max_keys: u16) -> Result<Ask, Refusal> {
    match verb {
        b"set" => storage(Verb::Set, Effect::Write, words, datagram),
        b"add" => storage(Verb::Add, Effect::Conditional, words, datagram),
        b"replace" => storage(Verb::Replace, Effect::Conditional, words, datagram),
        b"append" => storage(Verb::Append, Effect::Conditional, words, datagram),
        b"prepend" => storage(Verb::Prepend, Effect::Conditional, words, datagram),
        b"cas" => storage(Verb::Cas, Effect::Conditional, words, datagram),
        b"gat" => touching(Verb::Gat, words, datagram, max_keys),
        b"gats" => touching(Verb::Gats, words, datagram, max_keys),
        b"delete" => delete(words, datagram),
        b"incr" => number(Verb::Incr, Effect::Conditional, words, datagram),
        b"decr" => number(Verb::Decr, Effect::Conditional, words, datagram),
        b"touch" => number(Verb::Touch, Effect::Write, words, datagram),
        b"version" => no_more(words, datagram).map(|()| Ask::keyless(Verb::Version.number())),
        _ if ADMINISTRATIVE.contains(&verb) => Err(Refusal::Administrative),
        _ => Err(Refusal::UnknownVerb),
    }
}

/// Parses `get KEY*`. The next word in `words` is the first key.
#[inline]
fn retrieval(
    verb: Verb,
    effect: Effect,
    mut words: Words<'_>,
    datagram: Datagram<'_>,
    max_keys: u16,
) -> Result<Ask, Refusal> {
    alone(&words, datagram)?;
    let first = key(words.next())?;
    let mut ask = Ask::one(verb.number(), effect, first);
    for word in words.by_ref() {
        item(word.start, word.text.len())?;
        if ask.keys >= max_keys {
            return Err(Refusal::TooManyKeys);
        }
        ask.plan = Plan::Join;
        ask.keys += 1;
    }
    if ask.keys > 1 {
        ask.end = u16::try_from(words.end()).map_err(|_| Refusal::WrongLength)?;
    }
    Ok(ask)
}

/// Parses `gat SECONDS KEY*`.
fn touching(verb: Verb, mut words: Words<'_>, datagram: Datagram<'_>, max_keys: u16) -> Result<Ask, Refusal> {
    seconds(words.want()?.text)?;
    retrieval(verb, Effect::Write, words, datagram, max_keys)
}

/// Parses `set KEY FLAGS SECONDS BYTES [noreply]` and the value. In the `cas` command, the version
/// follows the number of bytes.
fn storage(verb: Verb, effect: Effect, mut words: Words<'_>, datagram: Datagram<'_>) -> Result<Ask, Refusal> {
    let item = key(words.next())?;
    flags(words.want()?.text)?;
    seconds(words.want()?.text)?;
    let bytes = unsigned(words.want()?.text)?;
    if verb == Verb::Cas {
        unsigned(words.want()?.text)?;
    }
    words.finish()?;
    value(&words, bytes, datagram)?;
    Ok(Ask::one(verb.number(), effect, item))
}

/// Parses `delete KEY [0] [noreply]`.
fn delete(mut words: Words<'_>, datagram: Datagram<'_>) -> Result<Ask, Refusal> {
    alone(&words, datagram)?;
    let item = key(words.next())?;
    let mut rest = words;
    if rest.next().is_some_and(|word| word.text == b"0") {
        words = rest;
    }
    words.finish()?;
    Ok(Ask::one(Verb::Delete.number(), Effect::Write, item))
}

/// Parses `incr KEY NUMBER [noreply]` and `touch KEY SECONDS [noreply]`.
fn number(verb: Verb, effect: Effect, mut words: Words<'_>, datagram: Datagram<'_>) -> Result<Ask, Refusal> {
    alone(&words, datagram)?;
    let item = key(words.next())?;
    let argument = words.want()?.text;
    match verb {
        Verb::Touch => seconds(argument)?,
        _ => unsigned(argument).map(drop)?,
    }
    words.finish()?;
    Ok(Ask::one(verb.number(), effect, item))
}

pub(super) fn items(payload: &[u8], ask: &Ask, each: &mut dyn FnMut(Item) -> ControlFlow<()>) {
    let words = Words::between(payload, usize::from(ask.first.start), usize::from(ask.end));
    for word in words {
        let Some(item) = Item::raw(word.start, word.text.len()) else { return };
        if each(item).is_break() {
            return;
        }
    }
}

/// The length of `get` and the space after it.
const GET: usize = 4;
/// The vector register size that every x86-64 CPU has, in bytes.
const SIXTEEN: usize = 16;

/// Commands that are reserved for administrators. These commands are refused with
/// [`Refusal::Administrative`].
const ADMINISTRATIVE: &[&[u8]] = &[
    b"cache_memlimit",
    b"debug",
    b"extstore",
    b"flush_all",
    b"lru",
    b"lru_crawler",
    b"misbehave",
    b"quit",
    b"refresh_certs",
    b"shutdown",
    b"slabs",
    b"stats",
    b"verbosity",
    b"watch",
];
