//! A slow model of how memcached parses a datagram. The model shares no code with the parsers of
//! the crate. Like the server, the model parses one command after another, and is tolerant of
//! unusual numbers, spaces, zero bytes and base64.

use std::ops::ControlFlow;

use kv_switch::{Application, Datagram, KeyRoom, Memcached, Verb};

/// The commands that a server would find in a datagram: the keys of each command, the verb of the
/// last one, and the offset at which the server would stop.
struct Commands {
    keys: Vec<Vec<Vec<u8>>>,
    verb: &'static str,
    end: usize,
}

/// Checks that a request is accepted only if the server parses it in the same way. The first two
/// bytes of `input` are the number of bytes in later fragments, and the rest is the payload.
///
/// # Panics
/// Panics if an accepted request is not a single command that ends with the datagram, or if the
/// server would find other keys.
pub(crate) fn check(input: &[u8]) {
    let Some((&[high, low], payload)) = input.split_first_chunk::<2>() else { return };
    let missing = usize::from(u16::from_be_bytes([high, low]));
    let Ok(length) = u16::try_from(payload.len() + missing) else { return };
    let (memcached, datagram) = (Memcached::new(32), Datagram::first_piece(payload, length));
    let Ok(ask) = memcached.read(datagram) else { return };
    let mut keys = Vec::new();
    memcached.items(payload, &ask, &mut |item| {
        assert!(usize::from(item.start) + usize::from(item.len) <= payload.len());
        assert!(!keys.is_empty() || item == ask.first);
        keys.push(memcached.key(payload, &item, &mut KeyRoom::default()).to_vec());
        ControlFlow::Continue(())
    });
    assert_eq!(keys.len(), usize::from(ask.keys));
    assert!(keys.len() <= 32 && keys.iter().all(|key| (1..=250).contains(&key.len())));
    assert_eq!(&payload[4..6], [0, 1]);
    let commands = if payload[8] == 0x80 { binary(payload, usize::from(length)) } else { text(payload) };
    assert_eq!(commands.keys, [keys], "{}", payload.escape_ascii());
    assert_eq!(commands.end, usize::from(length), "{}", payload.escape_ascii());
    assert_eq!(Verb::NAMES[usize::from(ask.verb)], commands.verb, "{}", payload.escape_ascii());
}

fn text(payload: &[u8]) -> Commands {
    let mut found = Commands { keys: Vec::new(), verb: "", end: 8 };
    while found.end < payload.len() {
        let rest = &payload[found.end..];
        let Some(stop) = rest.iter().position(|&byte| byte == b'\n') else { break };
        found.end += stop + 1;
        let line = rest[..stop].strip_suffix(b"\r").unwrap_or(&rest[..stop]);
        let line = line.split(|&byte| byte == 0).next().unwrap();
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
        found.end += value(&words).map_or(0, |bytes| bytes + 2);
        found.keys.push(text_keys(&words));
        let verb = if words[0] == b"mn" { b"noop" } else { words[0] };
        found.verb = TEXT.iter().find(|name| name.as_bytes() == verb).expect("the verb is supported");
    }
    found
}

/// Returns the length of the value that the server reads after a line. If the server refuses the
/// line, it parses the value as further commands, so the length is `None`.
fn value(words: &[&[u8]]) -> Option<usize> {
    let has = |count: usize| words.len() == count || (words.len() == count + 1 && words[count] == b"noreply");
    let numbers = match words[0] {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" if has(5) => &words[2..5],
        b"cas" if has(6) => &words[2..6],
        b"ms" => &words[2..3],
        _ => return None,
    };
    let numbers: Vec<i128> = numbers.iter().map(|word| number(word)).collect::<Option<_>>()?;
    match numbers[..] {
        [bytes] => usize::try_from(bytes).ok(),
        [flags, seconds, bytes, ..] => {
            u32::try_from(flags).ok()?;
            i32::try_from(seconds).ok()?;
            usize::try_from(bytes).ok()
        }
        _ => None,
    }
}

const TEXT: [&str; 21] = [
    "get", "gets", "gat", "gats", "set", "add", "replace", "append", "prepend", "cas", "delete", "incr",
    "decr", "touch", "mg", "ms", "md", "ma", "me", "noop", "version",
];

fn text_keys(words: &[&[u8]]) -> Vec<Vec<u8>> {
    let is_meta = words[0].len() == 2;
    match words[0] {
        b"mn" | b"version" => Vec::new(),
        b"get" | b"gets" => words[1..].iter().map(|key| key.to_vec()).collect(),
        b"gat" | b"gats" => words[2..].iter().map(|key| key.to_vec()).collect(),
        b"me" if words.get(2) == Some(&b"b".as_slice()) => vec![decoded(words[1])],
        b"me" => vec![words[1].to_vec()],
        _ if is_meta && words[2..].iter().any(|flag| flag[0] == b'b') => vec![decoded(words[1])],
        _ => vec![words[1].to_vec()],
    }
}

/// Parses a number as strtol does, which allows leading spaces and a sign. Bytes after the digits
/// are an error.
fn number(text: &[u8]) -> Option<i128> {
    String::from_utf8_lossy(text).trim().parse().ok()
}

/// Decodes base64 as memcached does, which skips invalid letters and surplus bits.
fn decoded(text: &[u8]) -> Vec<u8> {
    let letters: Vec<u8> = (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(*b"+/").collect();
    let values = text.iter().filter_map(|letter| letters.iter().position(|known| known == letter));
    let bits: Vec<bool> =
        values.flat_map(|value| (0..6).rev().map(move |bit| value >> bit & 1 == 1)).collect();
    bits.chunks_exact(8).map(|byte| byte.iter().fold(0, |sum, &bit| sum << 1 | u8::from(bit))).collect()
}

/// Parses binary commands. Quiet reads and the NOOP after them are treated as one command.
fn binary(payload: &[u8], length: usize) -> Commands {
    let big_endian =
        |from: usize, to: usize| payload[from..to].iter().fold(0, |sum, &byte| sum * 256 + usize::from(byte));
    let mut found = Commands { keys: Vec::new(), verb: "", end: 8 };
    let mut is_open = false; // after a quiet read, the reply is not complete until the NOOP
    while found.end < length {
        let at = found.end;
        assert_eq!(payload[at], 0x80);
        let key = at + 24 + usize::from(payload[at + 4]);
        let keys = vec![payload[key..key + big_endian(at + 2, at + 4)].to_vec()];
        match payload[at + 1] {
            0x0a if is_open => is_open = false,
            opcode @ (0x0a | 0x0b) => {
                assert_eq!(big_endian(at + 8, at + 12), 0, "a NOOP must have no body");
                found.keys.push(Vec::new());
                found.verb = if opcode == 0x0a { "noop" } else { "version" };
            }
            _ if is_open => found.keys.last_mut().unwrap().extend(keys),
            opcode => {
                found.keys.push(keys);
                found.verb = binary_verb(opcode);
                is_open = matches!(opcode, 0x09 | 0x0d);
            }
        }
        found.end += 24 + big_endian(at + 8, at + 12);
    }
    found
}

/// Returns the verb of an opcode. The table is from the memcached documentation of the binary
/// protocol.
fn binary_verb(opcode: u8) -> &'static str {
    match opcode {
        0x00 | 0x09 | 0x0c | 0x0d => "get",
        0x01 | 0x11 => "set",
        0x02 | 0x12 => "add",
        0x03 | 0x13 => "replace",
        0x04 | 0x14 => "delete",
        0x05 | 0x15 => "incr",
        0x06 | 0x16 => "decr",
        0x0e | 0x19 => "append",
        0x0f | 0x1a => "prepend",
        0x1c => "touch",
        0x1d | 0x1e | 0x23 | 0x24 => "gat",
        other => panic!("{other:#x} is not a client command"),
    }
}
