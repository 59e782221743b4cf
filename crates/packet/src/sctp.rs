//! Verifies the checksum of SCTP packets, and turns a packet into the reply of a host that has no
//! association for it.
//!
//! The checksum is CRC32c. The rules for the reply are in RFC 9260 §8.4, and the rules for the
//! verification tag in §8.5.1. The caller must limit the rate of replies.

use crate::tcp_reset::write_reply;
use crate::{Fragment, Parsed, may_answer, protocol};

/// Replaces the SCTP packet in `frame` with an ABORT to its sender, and returns the length of the
/// new frame. A SHUTDOWN ACK gets a SHUTDOWN COMPLETE instead. MAC addresses, IP addresses and
/// ports are swapped, and VLAN tags are kept. `parsed` is the result of [`crate::parse`] for
/// `frame`.
///
/// Returns `None` and leaves `frame` unchanged if RFC 9260 §8.4 or [`may_answer`] forbids a reply,
/// or if the packet is not SCTP, is a fragment, has a malformed chunk or a wrong checksum.
///
/// # Cost
/// One pass over the chunk headers, and one pass over the packet for the checksum.
#[must_use]
pub fn write_sctp_abort(frame: &mut [u8], parsed: &Parsed) -> Option<usize> {
    let packet = frame.get(usize::from(parsed.l4)..usize::from(parsed.end))?;
    // A fragment contains only a part of the packet, so its checksum is not known.
    let is_whole_packet = parsed.protocol == protocol::SCTP && parsed.fragment == Fragment::None;
    if !is_whole_packet || !may_answer(frame, parsed) {
        return None;
    }
    let reply = reply(packet)?;
    // A packet with a wrong checksum is discarded silently (RFC 9260 §6.8).
    if packet.get(CHECKSUM..HEADER) != Some(&sctp_checksum(packet)?) {
        return None;
    }
    write_reply(frame, parsed, &reply)
}

/// Returns the checksum field for an SCTP packet, or `None` if `packet` is shorter than the common
/// header. The checksum field in `packet` can have any value.
#[must_use]
pub fn sctp_checksum(packet: &[u8]) -> Option<[u8; 4]> {
    let (header, chunks) = packet.split_first_chunk::<HEADER>()?;
    let &[a, b, c, d, e, f, g, h, ..] = header;
    let crc = crc32c(u32::MAX, &[a, b, c, d, e, f, g, h, 0, 0, 0, 0]);
    Some((!crc32c(crc, chunks)).to_le_bytes())
}

/// Returns the common header and the chunk of the reply to a packet.
fn reply(packet: &[u8]) -> Option<[u8; HEADER + CHUNK]> {
    let (header, chunks) = packet.split_first_chunk::<HEADER>()?;
    let &[s0, s1, d0, d1, v0, v1, v2, v3, ..] = header;
    let (kind, flags, [v0, v1, v2, v3]) = match [v0, v1, v2, v3] {
        [0, 0, 0, 0] => (ABORT, 0, initiate_tag(chunks)?),
        reflected => (answer(chunks)?, TAG_REFLECTED, reflected),
    };
    let mut reply = [d0, d1, s0, s1, v0, v1, v2, v3, 0, 0, 0, 0, kind, flags, 0, 4];
    let sum = sctp_checksum(&reply)?;
    reply.get_mut(CHECKSUM..HEADER)?.copy_from_slice(&sum);
    Some(reply)
}

/// Returns the initiate tag of a packet whose verification tag is 0.
fn initiate_tag(chunks: &[u8]) -> Option<[u8; 4]> {
    // A packet with the verification tag 0 must consist of an INIT chunk (RFC 9260 §8.5.1). A
    // packet whose initiate tag is 0 is discarded (RFC 9260 §3.3.2).
    let mut chunks = Chunks(chunks);
    let (INIT, init) = chunks.next()?.ok()? else { return None };
    let tag = init.first_chunk::<4>().filter(|tag| **tag != [0; 4])?;
    (init.len() >= INIT_VALUE && chunks.next().is_none()).then_some(*tag)
}

/// Returns the type of the chunk to send in reply to a packet whose verification tag is not 0.
fn answer(chunks: &[u8]) -> Option<u8> {
    let mut answer = None;
    for chunk in Chunks(chunks) {
        let (kind, value) = chunk.ok()?;
        match kind {
            ABORT | SHUTDOWN_COMPLETE | COOKIE_ACK => return None,
            ERROR if has_stale_cookie(value) => return None,
            SHUTDOWN_ACK => answer = Some(SHUTDOWN_COMPLETE),
            _ => answer = answer.or(Some(ABORT)),
        }
    }
    answer
}

fn has_stale_cookie(mut causes: &[u8]) -> bool {
    while let Some((&[code_hi, code_lo, hi, lo], _)) = causes.split_first_chunk::<4>() {
        if u16::from_be_bytes([code_hi, code_lo]) == STALE_COOKIE {
            return true;
        }
        let length = usize::from(u16::from_be_bytes([hi, lo])).max(4);
        causes = causes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

/// Iterates over the chunks of a packet. Each item is the type and the value of a chunk. The
/// iterator returns an error and ends at a malformed chunk.
struct Chunks<'a>(&'a [u8]);

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<(u8, &'a [u8]), ()>;

    fn next(&mut self) -> Option<Self::Item> {
        let &[kind, _, hi, lo] = self.0.first_chunk::<CHUNK>()?;
        let length = usize::from(u16::from_be_bytes([hi, lo]));
        let value = self.0.get(CHUNK..length);
        // The padding of the last chunk may be missing.
        let rest = value.and_then(|_| self.0.get(length.next_multiple_of(4)..));
        self.0 = rest.unwrap_or_default();
        Some(value.map(|value| (kind, value)).ok_or(()))
    }
}

/// Continues the CRC32c `crc` with `bytes`, eight bytes at a time. The CRC starts with all ones,
/// and the final value must be inverted.
fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    let entry = |table: &[u32; 256], byte: u8| table.get(usize::from(byte)).copied().unwrap_or(0);
    let (blocks, rest) = bytes.as_chunks::<8>();
    let crc = blocks.iter().fold(crc, |crc, block| {
        let block = (u64::from_le_bytes(*block) ^ u64::from(crc)).to_le_bytes();
        TABLES.iter().rev().zip(block).fold(0, |crc, (table, byte)| crc ^ entry(table, byte))
    });
    let [first, ..] = &TABLES;
    rest.iter().fold(crc, |crc, byte| {
        let [low, ..] = crc.to_le_bytes();
        crc >> 8 ^ entry(first, low ^ byte)
    })
}

/// Table *n* contains the CRC32c of each byte followed by *n* zero bytes.
static TABLES: [[u32; 256]; 8] = tables();

#[expect(clippy::indexing_slicing, reason = "the function runs at compile time")]
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let (mut byte, mut number) = (0, 0_u32);
    while byte < 256 {
        let (mut crc, mut bit) = (number, 0);
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 0 { 0 } else { POLYNOMIAL };
            bit += 1;
        }
        tables[0][byte] = crc;
        (byte, number) = (byte + 1, number + 1);
    }
    let mut at = 256;
    while at < 8 * 256 {
        let before = tables[at / 256 - 1][at % 256];
        tables[at / 256][at % 256] = before >> 8 ^ tables[0][(before & 0xff) as usize];
        at += 1;
    }
    tables
}

/// The Castagnoli polynomial with reversed bits.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The length of the common header.
const HEADER: usize = 12;
/// The offset of the checksum in the common header.
const CHECKSUM: usize = 8;
/// The length of a chunk header, and of a chunk without a value.
const CHUNK: usize = 4;
/// The length of the fixed fields in the value of an INIT chunk.
const INIT_VALUE: usize = 16;
const INIT: u8 = 1;
const ABORT: u8 = 6;
const SHUTDOWN_ACK: u8 = 8;
const ERROR: u8 = 9;
const COOKIE_ACK: u8 = 11;
const SHUTDOWN_COMPLETE: u8 = 14;
/// The T bit of ABORT and SHUTDOWN COMPLETE.
const TAG_REFLECTED: u8 = 1;
const STALE_COOKIE: u16 = 3;

#[cfg(test)]
mod tests;
