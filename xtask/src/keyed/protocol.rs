//! memcached's ASCII commands as the generator writes them, and its answers.
//!
//! In: keys by number, versions of their values. Out: commands; answers taken apart. A value says of itself which key and version it
//! is, in all its bytes, so that what comes back can be judged.
//! Not here: frames of UDP (`udp`), what a right answer is (`ledger`).
//! Source: memcached `doc/protocol.txt`.

use std::io::Write as _;

/// An answer taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// A value was stored.
    Stored,
    /// There is no such key.
    Missing,
    /// One value.
    Value { name: &'a [u8], value: &'a [u8] },
    /// Anything else: its first line.
    Other(&'a [u8]),
}

/// A key as it is written: 12 bytes.
pub(crate) fn name(key: u32) -> [u8; NAME] {
    let (mut name, mut rest) = (*b"key:00000000", key);
    for digit in name[4..].iter_mut().rev() {
        *digit += (rest % 10).to_le_bytes()[0];
        rest /= 10;
    }
    name
}

/// Writes a `get`.
pub(crate) fn write_get(key: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"get ");
    out.extend_from_slice(&name(key));
    out.extend_from_slice(b"\r\n");
}

/// Writes a `set` of a version of a key's value, of so many bytes: 8 at least.
pub(crate) fn write_set(key: u32, version: u32, value_bytes: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"set ");
    out.extend_from_slice(&name(key));
    write!(out, " 0 0 {value_bytes}\r\n").expect("memory takes it");
    let end = out.len() + value_bytes;
    out.extend_from_slice(&key.to_le_bytes());
    out.extend_from_slice(&version.to_le_bytes());
    out.resize(end, filling(key, version));
    out.extend_from_slice(b"\r\n");
}

/// The version that a key's value says; `None`: it is no value of this key, or not whole.
pub(crate) fn version_of(key: u32, value: &[u8]) -> Option<u32> {
    let (of, rest) = value.split_first_chunk()?;
    let (version, rest) = rest.split_first_chunk()?;
    let version = u32::from_le_bytes(*version);
    let is_filled = rest.iter().all(|&byte| byte == filling(key, version));
    (u32::from_le_bytes(*of) == key && is_filled).then_some(version)
}

/// Takes the first answer of some bytes apart, and says how many it has; `None`: its end is still to come.
pub(crate) fn parse(bytes: &[u8]) -> Option<(Answer<'_>, usize)> {
    let start = bytes.iter().position(|&byte| byte == b'\n')? + 1;
    let line = bytes[..start - 1].strip_suffix(b"\r").unwrap_or(&bytes[..start - 1]);
    let answer = match line {
        b"STORED" => Answer::Stored,
        b"END" => Answer::Missing,
        _ => match value_line(line) {
            Some((name, length)) => return value(name, bytes, start, length),
            None => Answer::Other(line),
        },
    };
    Some((answer, start))
}

/// Name and bytes of the value that follows a line.
fn value_line(line: &[u8]) -> Option<(&[u8], usize)> {
    let mut words = line.strip_prefix(b"VALUE ")?.split(|&byte| byte == b' ');
    let (name, _flags, length) = (words.next()?, words.next()?, words.next()?);
    let length = std::str::from_utf8(length).ok()?.parse().ok()?;
    words.next().is_none().then_some((name, length))
}

/// A value of so many bytes from `start` on, which is all of its answer.
fn value<'a>(name: &'a [u8], bytes: &'a [u8], start: usize, length: usize) -> Option<(Answer<'a>, usize)> {
    let end = start.checked_add(length)?;
    let value = bytes.get(start..end)?;
    let after = bytes.get(end..end + END.len())?;
    let answer = if after == END { Answer::Value { name, value } } else { Answer::Other(name) };
    Some((answer, end + END.len()))
}

/// Of all bytes of a value behind key and version.
fn filling(key: u32, version: u32) -> u8 {
    (key ^ version).to_le_bytes()[0]
}

const NAME: usize = 12;
const END: &[u8] = b"\r\nEND\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server says of a value.
    fn answer(key: u32, version: u32, value_bytes: usize) -> Vec<u8> {
        let mut command = Vec::new();
        write_set(key, version, value_bytes, &mut command);
        let line = command.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        let head = format!("VALUE {} 0 {value_bytes}\r\n", String::from_utf8_lossy(&name(key)));
        [head.as_bytes(), &command[line..], b"END\r\n"].concat()
    }

    #[test]
    fn commands_are_those_of_the_protocol() {
        let (mut get, mut set) = (Vec::new(), Vec::new());
        write_get(1_234, &mut get);
        write_set(0x0201, 3, 10, &mut set);
        assert_eq!(get, b"get key:00001234\r\n");
        assert_eq!(set, b"set key:00000513 0 0 10\r\n\x01\x02\0\0\x03\0\0\0\x02\x02\r\n");
    }

    #[test]
    fn a_value_is_read_again_once_it_is_whole_and_every_false_byte_shows() {
        for value_bytes in [8, 9, 64, 3_000] {
            let (key, version) = (0x0d0a_0d0a, 0x0a0d);
            let whole = answer(key, version, value_bytes);
            for cut in 0..whole.len() {
                assert_eq!(parse(&whole[..cut]), None, "{cut} of {}", whole.len());
            }
            let two = [&whole[..], b"STORED\r\n"].concat();
            let (Answer::Value { name: found, value }, used) = parse(&two).unwrap() else { panic!() };
            assert_eq!((found, used), (&name(key)[..], whole.len()));
            assert_eq!(version_of(key, value), Some(version));
            assert_eq!(parse(&two[used..]), Some((Answer::Stored, 8)));
            for at in (0..value.len()).filter(|at| !(4..8).contains(at)) {
                let mut bad = value.to_vec();
                bad[at] ^= 1;
                assert_eq!(version_of(key, &bad), None, "byte {at}");
            }
            assert_eq!(version_of(key + 1, value), None);
            assert_eq!(version_of(key, &value[..7]), None);
        }
    }

    #[test]
    fn answers_are_told_apart() {
        assert_eq!(parse(b"END\r\nEND\r\n"), Some((Answer::Missing, 5)));
        assert_eq!(parse(b"SERVER_ERROR x\r\n"), Some((Answer::Other(b"SERVER_ERROR x"), 16)));
        assert_eq!(parse(b"STORE"), None);
        // A value without its end, and lines that only look like one.
        assert_eq!(parse(b"VALUE k 0 1\r\nxSTORED!"), Some((Answer::Other(b"k"), 21)));
        for line in ["VALUE k 0\r\n", "VALUE k 0 x\r\n", "VALUE k 0 1 9\r\n", "VALUES\r\n"] {
            assert!(matches!(parse(line.as_bytes()), Some((Answer::Other(_), _))), "{line}");
        }
    }
}
