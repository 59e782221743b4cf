//! Writes the upstream requests for replicated writes and parses the answers. The commands are
//! `set`, `delete`, `touch`, and the meta and binary commands with the same effect.
//!
//! The client's text commands are not forwarded, because the answer `STORED` contains no nonce.
//! Instead, text commands are converted to `ms`, `md` or `mg KEY T` with a nonce. These meta
//! commands need memcached 1.6. Older servers would parse the value of `ms` as commands. Success
//! answers contain the nonce, but text errors do not. Binary answers contain an opaque.
//!
//! Writes that depend on the stored value are not replicated. Examples of such writes are reads
//! that set a time to live, and writes with a version (`C`, `c`, the cas field), with the flag `I`,
//! or with a mode other than `S`. References: memcached 1.6 `doc/protocol.txt`, `proto_text.c`,
//! `proto_bin.c`. The behavior was checked with memcached 1.6.18 (`tests/servers.rs`).

use std::fmt::Write;

use memchr::memchr;

use crate::{Ask, Effect, Encoding, NoAnswer, Outcome, OwnId, Plan, Replicated, Request, ShortLife};

use super::answers::{Datagram, Flags};
use super::frame::{self, Frame};
use super::parts::opaque;
use super::window::Window;
use super::words::{Word, Words, unsigned};
use super::{Verb, binary};

/// The operation that a write performs, regardless of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Set,
    Delete,
    Touch,
}

/// A write that can be replicated.
#[derive(Clone, Copy, Debug)]
struct Kind<'a> {
    deed: Deed,
    form: Form<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Form<'a> {
    /// A classic text command. The field contains the words after the key.
    Classic(Words<'a>),
    /// A meta command. The field contains the flags of the command.
    Meta(Words<'a>),
    Binary(binary::Header),
}

impl<'a> Kind<'a> {
    fn of(request: &Request<'a>) -> Option<Self> {
        let &Request { payload, ask } = request;
        if ask.effect != Effect::Write || ask.plan != Plan::One {
            return None;
        }
        if payload.get(frame::LENGTH) == Some(&binary::REQUEST) {
            return Self::of_binary(binary::Header::at(payload, frame::LENGTH)?);
        }
        let mut words = behind_the_key(payload, ask)?;
        let is = |verb: Verb| ask.verb == verb.number();
        let (deed, allowed) = if is(Verb::Set) {
            (Deed::Set, None)
        } else if is(Verb::Delete) {
            (Deed::Delete, None)
        } else if is(Verb::Touch) {
            (Deed::Touch, None)
        } else if is(Verb::MetaSet) {
            words.next()?; // skips the length of the value
            (Deed::Set, Some(&b"bEFkOqTMNPL"[..]))
        } else if is(Verb::MetaDelete) {
            (Deed::Delete, Some(&b"bEkOqxPL"[..]))
        } else if is(Verb::MetaGet) {
            (Deed::Touch, Some(&b"bkOqTPL"[..]))
        } else {
            return None;
        };
        let Some(allowed) = allowed else { return Some(Self { deed, form: Form::Classic(words) }) };
        let is_allowed = |word: Word<'_>| word.text.first().is_some_and(|flag| allowed.contains(flag));
        words.clone().all(is_allowed).then_some(Self { deed, form: Form::Meta(words) })
    }

    #[inline]
    fn of_binary(header: binary::Header) -> Option<Self> {
        let deed = match header.opcode {
            SET | SETQ => Deed::Set,
            DELETE | DELETEQ => Deed::Delete,
            TOUCH => Deed::Touch,
            _ => return None,
        };
        Some(Self { deed, form: Form::Binary(header) })
    }

    fn wants_answer(self) -> bool {
        match self.form {
            Form::Classic(mut words) => !words.any(|word| word.text == b"noreply"),
            Form::Meta(mut flags) => !flags.any(|flag| flag.text == b"q"),
            Form::Binary(header) => !matches!(header.opcode, SETQ | DELETEQ),
        }
    }
}

/// Returns the words of a command line after the first key.
pub(super) fn behind_the_key<'a>(payload: &'a [u8], ask: &Ask) -> Option<Words<'a>> {
    let from = usize::from(ask.first.start) + usize::from(ask.first.len);
    let behind = payload.get(from..)?;
    let end = memchr(b'\n', behind)?.checked_sub(1)?; // opaques may contain a CR
    Some(Words::between(payload, from, from + end))
}

pub(super) fn replicated(request: &Request<'_>) -> Option<Replicated> {
    let kind = Kind::of(request)?;
    Some(Replicated { wants_answer: kind.wants_answer(), is_removal: kind.deed == Deed::Delete })
}

pub(super) fn write(
    request: &Request<'_>,
    life: Option<ShortLife>,
    own: OwnId,
    out: &mut [u8],
) -> Option<usize> {
    let kind = Kind::of(request)?;
    let mut window = Window::new(out, 0);
    window.put(&Frame { id: own.request, sequence: 0, total: 1 }.bytes());
    match kind.form {
        Form::Binary(_) => in_binary(request, kind.deed, life, own, &mut window)?,
        Form::Classic(_) | Form::Meta(_) => in_meta(request, kind, life, own, &mut window)?,
    }
    window.whole()
}

/// Writes `ms KEY BYTES FLAG*` and the value, `md KEY FLAG*`, or `mg KEY FLAG*`.
fn in_meta(
    request: &Request<'_>,
    Kind { deed, form }: Kind<'_>,
    life: Option<ShortLife>,
    own: OwnId,
    window: &mut Window<'_>,
) -> Option<()> {
    let &Request { payload, ask } = request;
    let mut words = behind_the_key(payload, ask)?;
    window.put(match deed {
        Deed::Set => b"ms ",
        Deed::Delete => b"md ",
        Deed::Touch => b"mg ",
    });
    window.put(ask.first.bytes(payload));
    match (form, deed) {
        (Form::Classic(_), Deed::Set) => put_classic_set(words, life, window)?,
        (Form::Classic(_), Deed::Touch) => put_time(words.next()?.text, life, window)?,
        (Form::Classic(_), Deed::Delete) => {}
        (_, Deed::Set) => put_meta_set(words, life, window)?,
        (_, Deed::Delete | Deed::Touch) => put_flags(words, life, window)?,
    }
    write!(window, " O{:016x}\r\n", own.nonce).ok()?;
    if deed == Deed::Set {
        window.put(payload.get(words.behind()..)?);
    }
    Some(())
}

/// Converts the arguments that follow the key in a `set` command to arguments of `ms`, and writes
/// them.
#[inline]
fn put_classic_set(mut words: Words<'_>, life: Option<ShortLife>, window: &mut Window<'_>) -> Option<()> {
    let (flags, time, bytes) = (words.next()?, words.next()?, words.next()?);
    for part in [&b" "[..], bytes.text, b" F", flags.text] {
        window.put(part);
    }
    put_time(time.text, life, window)
}

/// Writes the arguments of `ms` after the key. If `life` is set, the command contains a time to
/// live even if the client sent none.
#[inline]
fn put_meta_set(mut words: Words<'_>, life: Option<ShortLife>, window: &mut Window<'_>) -> Option<()> {
    window.put(b" ");
    window.put(words.next()?.text);
    put_flags(words, life, window)?;
    match life.filter(|_| !words.any(|word| word.text.starts_with(b"T"))) {
        Some(life) => write!(window, " T{}", life.seconds).ok(),
        None => Some(()),
    }
}

/// Writes the flags that the server needs. Flags that select the content of the reply, and hints
/// for proxies, are left out.
fn put_flags(words: Words<'_>, life: Option<ShortLife>, window: &mut Window<'_>) -> Option<()> {
    for Word { text, .. } in words {
        match text.split_first()? {
            (b'O' | b'k' | b'q' | b'P' | b'L', _) => {}
            (b'T', time) => put_time(time, life, window)?,
            _ => {
                window.put(b" ");
                window.put(text);
            }
        }
    }
    Some(())
}

/// Writes a time to live, limited to `life`. A negative time, which has already expired, is copied
/// unchanged.
fn put_time(text: &[u8], life: Option<ShortLife>, window: &mut Window<'_>) -> Option<()> {
    window.put(b" T");
    match life.and_then(|life| life.shorter(unsigned(text).ok()?)) {
        Some(shorter) => write!(window, "{shorter}").ok(),
        None => {
            window.put(text);
            Some(())
        }
    }
}

/// Writes the non-quiet form of a binary command, with the opaque of the upstream request.
fn in_binary(
    request: &Request<'_>,
    deed: Deed,
    life: Option<ShortLife>,
    own: OwnId,
    window: &mut Window<'_>,
) -> Option<()> {
    let (header, body) = request.payload.get(frame::LENGTH..)?.split_at_checked(binary::LENGTH)?;
    let &[magic, _, ref lengths @ ..] = header.first_chunk::<12>()?;
    window.put(&[magic, loud(deed)]);
    window.put(lengths);
    window.put(&opaque(own));
    // the version is 0, because any other value would make the write conditional
    window.put(header.get(16..)?);
    let at = match deed {
        Deed::Set => 4,
        Deed::Touch => 0,
        Deed::Delete => {
            window.put(body);
            return Some(());
        }
    };
    let (before, rest) = body.split_at_checked(at)?;
    let (time, behind) = rest.split_first_chunk::<4>()?;
    let shorter = life.and_then(|life| life.shorter(u32::from_be_bytes(*time).into()));
    window.put(before);
    window.put(&shorter.map_or(*time, u32::to_be_bytes));
    window.put(behind);
    Some(())
}

const fn loud(deed: Deed) -> u8 {
    match deed {
        Deed::Set => SET,
        Deed::Delete => DELETE,
        Deed::Touch => TOUCH,
    }
}

pub(super) fn read(request: &Request<'_>, own: OwnId, payload: &[u8]) -> Result<Outcome, NoAnswer> {
    let Kind { deed, form } = Kind::of(request).ok_or(NoAnswer::NeverAsked)?;
    let Datagram { payload, goes_on } = Datagram::first(own, payload)?;
    let answer = payload.get(frame::LENGTH..).unwrap_or_default();
    if goes_on {
        return Err(NoAnswer::Malformed);
    }
    match form {
        Form::Binary(_) => binary_outcome(answer, deed, own),
        Form::Classic(_) | Form::Meta(_) => text_outcome(answer, deed, own),
    }
}

fn text_outcome(answer: &[u8], deed: Deed, own: OwnId) -> Result<Outcome, NoAnswer> {
    let line = answer.strip_suffix(b"\r\n").filter(|line| !line.contains(&b'\n'));
    let line = line.ok_or(NoAnswer::Malformed)?;
    let mut words = line.split(|&byte| byte == b' ');
    let outcome = match (words.next().unwrap_or_default(), deed) {
        (b"HD", _) => Outcome::Done,
        (b"NF", Deed::Delete) | (b"EN", Deed::Touch) => Outcome::NotFound,
        (b"NS", Deed::Set) => Outcome::Refused(NOT_STORED),
        (b"SERVER_ERROR" | b"CLIENT_ERROR" | b"ERROR", _) => return Ok(Outcome::Refused(number_of(line))),
        _ => return Err(NoAnswer::OtherNonce),
    };
    Flags::read(words, own).map(|_| outcome)
}

/// Returns the binary status code that corresponds to a text error.
fn number_of(line: &[u8]) -> u16 {
    let says = |words: &[u8]| line.windows(words.len()).any(|part| part == words);
    if says(b"too large") {
        TOO_LARGE
    } else if says(b"out of memory") {
        NO_MEMORY
    } else {
        INTERNAL
    }
}

fn binary_outcome(answer: &[u8], deed: Deed, own: OwnId) -> Result<Outcome, NoAnswer> {
    let (header, body) = answer.split_first_chunk::<{ binary::LENGTH }>().ok_or(NoAnswer::Malformed)?;
    let &[magic, opcode, _, _, _, _, s0, s1, b0, b1, b2, b3, o0, o1, o2, o3, ..] = header;
    if (magic, opcode, [o0, o1, o2, o3]) != (binary::RESPONSE, loud(deed), opaque(own)) {
        return Err(NoAnswer::OtherNonce);
    }
    if u32::from_be_bytes([b0, b1, b2, b3]) as usize != body.len() {
        return Err(NoAnswer::Malformed);
    }
    Ok(match u16::from_be_bytes([s0, s1]) {
        0 => Outcome::Done,
        NOT_FOUND if deed != Deed::Set => Outcome::NotFound,
        status => Outcome::Refused(status),
    })
}

pub(super) fn write_outcome(request: &Request<'_>, outcome: Outcome, out: &mut [u8]) -> Option<usize> {
    let Kind { deed, form } = Kind::of(request)?;
    let (asked, _) = frame::answer(request.payload)?;
    let mut window = Window::new(out, 0);
    window.put(&Frame { id: asked.id, sequence: 0, total: 1 }.bytes());
    match form {
        Form::Binary(header) => response(header, outcome, &mut window)?,
        Form::Classic(_) => {
            window.put(classic_words(outcome, deed));
            window.put(b"\r\n");
        }
        Form::Meta(flags) => {
            window.put(meta_words(outcome, deed));
            let is_error = matches!(outcome, Outcome::Refused(status) if status != NOT_STORED);
            if !is_error {
                put_answered_flags(request, flags, &mut window);
            }
            window.put(b"\r\n");
        }
    }
    window.whole()
}

const fn classic_words(outcome: Outcome, deed: Deed) -> &'static [u8] {
    match (outcome, deed) {
        (Outcome::Done, Deed::Set) => b"STORED",
        (Outcome::Done, Deed::Delete) => b"DELETED",
        (Outcome::Done, Deed::Touch) => b"TOUCHED",
        (Outcome::NotFound, _) => b"NOT_FOUND",
        (Outcome::Refused(NOT_STORED), _) => b"NOT_STORED",
        (Outcome::Refused(status), _) => server_error(status),
    }
}

const fn meta_words(outcome: Outcome, deed: Deed) -> &'static [u8] {
    match (outcome, deed) {
        (Outcome::Done, _) => b"HD",
        (Outcome::NotFound, Deed::Touch) => b"EN",
        (Outcome::NotFound, _) => b"NF",
        (Outcome::Refused(NOT_STORED), _) => b"NS",
        (Outcome::Refused(status), _) => server_error(status),
    }
}

/// Returns the text error that corresponds to a binary status code.
const fn server_error(status: u16) -> &'static [u8] {
    match status {
        TOO_LARGE => b"SERVER_ERROR object too large for cache",
        NO_MEMORY => b"SERVER_ERROR out of memory storing object",
        _ => b"SERVER_ERROR a replica refused",
    }
}

/// Writes the key and the opaque if the client requested them, as a server does.
fn put_answered_flags(request: &Request<'_>, flags: Words<'_>, window: &mut Window<'_>) {
    let key = request.ask.first;
    for Word { text, .. } in flags {
        match text {
            b"k" => {
                window.put(b" k");
                window.put(key.bytes(request.payload));
                window.put(if key.encoding == Encoding::Base64 { b" b" } else { b"" });
            }
            [b'O', ..] => {
                window.put(b" ");
                window.put(text);
            }
            _ => {}
        }
    }
}

/// Writes the response to a binary command, with an error text if the outcome is an error.
fn response(header: binary::Header, outcome: Outcome, window: &mut Window<'_>) -> Option<()> {
    let (status, words): (u16, &[u8]) = match outcome {
        Outcome::Done => (0, b""),
        Outcome::NotFound => (NOT_FOUND, b"Not found"),
        Outcome::Refused(TOO_LARGE) => (TOO_LARGE, b"Too large."),
        Outcome::Refused(NOT_STORED) => (NOT_STORED, b"Not stored."),
        Outcome::Refused(NO_MEMORY) => (NO_MEMORY, b"Out of memory"),
        Outcome::Refused(NOT_SUPPORTED) => (NOT_SUPPORTED, b"Not supported"),
        Outcome::Refused(status) => (status, b"Refused"),
    };
    let [high, low] = status.to_be_bytes();
    window.put(&[binary::RESPONSE, header.opcode, 0, 0, 0, 0, high, low]);
    window.put(&u32::try_from(words.len()).ok()?.to_be_bytes());
    window.put(&header.opaque);
    window.put(&[0; 8]); // no version, because each replica has its own version
    window.put(words);
    Some(())
}

pub(super) fn write_unsupported(request: &Request<'_>, out: &mut [u8]) -> Option<usize> {
    let (asked, command) = frame::answer(request.payload)?;
    let mut window = Window::new(out, 0);
    window.put(&Frame { id: asked.id, sequence: 0, total: 1 }.bytes());
    if command.first() == Some(&binary::REQUEST) {
        let header = binary::Header::at(request.payload, frame::LENGTH)?;
        response(header, Outcome::Refused(NOT_SUPPORTED), &mut window)?;
        return window.whole();
    }
    let mut words = behind_the_key(request.payload, request.ask)?;
    if words.any(|word| word.text == b"noreply") {
        return None;
    }
    window.put(b"SERVER_ERROR not supported with replicas\r\n");
    window.whole()
}

const SET: u8 = 0x01;
const DELETE: u8 = 0x04;
const SETQ: u8 = 0x11;
const DELETEQ: u8 = 0x14;
const TOUCH: u8 = 0x1c;
const NOT_FOUND: u16 = 0x01;
const TOO_LARGE: u16 = 0x03;
const NOT_STORED: u16 = 0x05;
const NO_MEMORY: u16 = 0x82;
const NOT_SUPPORTED: u16 = 0x83;
const INTERNAL: u16 = 0x84;
