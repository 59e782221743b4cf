//! Writes commands of memcached's text protocol for the load generator, and parses the responses.
//!
//! Every byte of a value depends on the key and the version, so that any wrong byte is detected.
//! The module `udp` handles the UDP frame header, and `ledger` decides which values are correct.
//!
//! Reference: memcached `doc/protocol.txt`.

use std::io::Write as _;

/// A parsed response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    Stored,
    /// The key does not exist.
    Missing,
    Value {
        name: &'a [u8],
        value: &'a [u8],
    },
    /// Any other response. The variant contains the first line of the response.
    Other(&'a [u8]),
}

/// Returns the name of a key, which is 12 bytes long.
pub(crate) fn name(key: u32) -> [u8; NAME] {
    let (mut name, mut rest) = (*b"key:00000000", key);
    for digit in name[4..].iter_mut().rev() {
        *digit += (rest % 10).to_le_bytes()[0];
        rest /= 10;
    }
    name
}

pub(crate) fn write_get(key: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"get ");
    out.extend_from_slice(&name(key));
    out.extend_from_slice(b"\r\n");
}

/// Writes a `set` command. The value contains the key and the version, and is `value_bytes` bytes
/// long (at least 8).
pub(crate) fn write_set(key: u32, version: u32, value_bytes: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"set ");
    out.extend_from_slice(&name(key));
    write!(out, " 0 0 {value_bytes}\r\n").expect("writing to a Vec cannot fail");
    let end = out.len() + value_bytes;
    out.extend_from_slice(&key.to_le_bytes());
    out.extend_from_slice(&version.to_le_bytes());
    out.resize(end, filling(key, version));
    out.extend_from_slice(b"\r\n");
}

/// Returns the version that a value contains. Returns `None` if the value is incomplete or belongs
/// to a different key.
pub(crate) fn version_of(key: u32, value: &[u8]) -> Option<u32> {
    let (of, rest) = value.split_first_chunk()?;
    let (version, rest) = rest.split_first_chunk()?;
    let version = u32::from_le_bytes(*version);
    let is_filled = rest.iter().all(|&byte| byte == filling(key, version));
    (u32::from_le_bytes(*of) == key && is_filled).then_some(version)
}

/// Parses the first response in `bytes`. Returns the response and its length in bytes, or `None` if
/// the response is incomplete.
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

/// Parses the line that precedes a value. Returns the name of the key and the length of the value.
fn value_line(line: &[u8]) -> Option<(&[u8], usize)> {
    let mut words = line.strip_prefix(b"VALUE ")?.split(|&byte| byte == b' ');
    let (name, _flags, length) = (words.next()?, words.next()?, words.next()?);
    let length = std::str::from_utf8(length).ok()?.parse().ok()?;
    words.next().is_none().then_some((name, length))
}

/// Returns the value with `length` bytes that begins at `start`, and the length of the whole
/// response.
fn value<'a>(name: &'a [u8], bytes: &'a [u8], start: usize, length: usize) -> Option<(Answer<'a>, usize)> {
    let end = start.checked_add(length)?;
    let value = bytes.get(start..end)?;
    let after = bytes.get(end..end + END.len())?;
    let answer = if after == END { Answer::Value { name, value } } else { Answer::Other(name) };
    Some((answer, end + END.len()))
}

/// Returns the byte that fills the rest of a value after its key and version.
fn filling(key: u32, version: u32) -> u8 {
    (key ^ version).to_le_bytes()[0]
}

const NAME: usize = 12;
const END: &[u8] = b"\r\nEND\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a memcached response that contains a value.
    fn answer(key: u32, version: u32, value_bytes: usize) -> Vec<u8> {
        let mut command = Vec::new();
        write_set(key, version, value_bytes, &mut command);
        let line = command.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        let head = format!("VALUE {} 0 {value_bytes}\r\n", String::from_utf8_lossy(&name(key)));
        [head.as_bytes(), &command[line..], b"END\r\n"].concat()
    }

    #[test]
    fn commands_match_the_protocol() {
        let (mut get, mut set) = (Vec::new(), Vec::new());
        write_get(1_234, &mut get);
        write_set(0x0201, 3, 10, &mut set);
        assert_eq!(get, b"get key:00001234\r\n");
        assert_eq!(set, b"set key:00000513 0 0 10\r\n\x01\x02\0\0\x03\0\0\0\x02\x02\r\n");
    }

    #[test]
    fn whole_value_is_parsed_and_each_wrong_byte_is_found() {
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
    fn response_kinds_are_distinguished() {
        assert_eq!(parse(b"END\r\nEND\r\n"), Some((Answer::Missing, 5)));
        assert_eq!(parse(b"SERVER_ERROR x\r\n"), Some((Answer::Other(b"SERVER_ERROR x"), 16)));
        assert_eq!(parse(b"STORE"), None);
        // The tested inputs are a value without its end line, and lines that resemble the line
        // before a value.
        assert_eq!(parse(b"VALUE k 0 1\r\nxSTORED!"), Some((Answer::Other(b"k"), 21)));
        for line in ["VALUE k 0\r\n", "VALUE k 0 x\r\n", "VALUE k 0 1 9\r\n", "VALUES\r\n"] {
            assert!(matches!(parse(line.as_bytes()), Some((Answer::Other(_), _))), "{line}");
        }
    }
}
