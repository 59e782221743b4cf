//! The mark in a traced packet, usually at the start of its payload. A mark consists of 64 bytes in
//! network byte order:
//!
//! ```text
//!  0  magic "\x8d\xf1SLUICE"          28  time, seconds since 1970 (u64)
//!  8  version, 1                      36  trace (u64)
//!  9  zero                            44  probe (u32)
//! 10  UDP port of the receiver (u16)  48  MAC, 16 bytes
//! 12  address of the receiver, 16 bytes, IPv4 as v4-mapped
//! ```
//!
//! The message authentication code (MAC) is SipHash-2-4 with 128 bits of output. The MAC covers
//! bytes 0 to 47 and the 5-tuple of the packet, so a mark is not valid in packets with a different
//! 5-tuple. The first byte of the magic number is neither ASCII nor valid UTF-8, so no text begins
//! with a mark.

use std::net::{Ipv6Addr, SocketAddr};

use packet::{Fragment, Parsed, protocol};

use classifier::{Flow, mapped};

use crate::TraceKey;
use crate::key::{MAC_BYTES, is_equal};

/// The content of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The UDP address of the receiver, to which reports are sent.
    pub receiver: SocketAddr,
    /// The time at which the mark was signed, in seconds since 1970.
    pub unix_seconds: u64,
    /// A random number that identifies the trace and distinguishes its reports from the reports of
    /// other traces.
    pub trace: u64,
    /// The index of the packet within the trace.
    pub probe: u32,
}

/// The signed bytes of a received mark, with its authentication code.
#[derive(Clone, Copy)]
pub(crate) struct Signed<'a> {
    said: &'a [u8; SAID],
    mac: &'a [u8; MAC_BYTES],
}

impl Mark {
    /// Signs the mark for a packet that belongs to `flow` and returns its bytes. For a fragment
    /// without a transport header, `flow` has no ports.
    #[must_use]
    pub fn sign(&self, key: &TraceKey, flow: &Flow) -> [u8; MARK_BYTES] {
        let port = self.receiver.port().to_be_bytes();
        let mut said = [0; SAID];
        let parts: [&[u8]; 7] = [
            &MAGIC.to_be_bytes(),
            &[VERSION, 0],
            &port,
            &mapped(self.receiver.ip()),
            &self.unix_seconds.to_be_bytes(),
            &self.trace.to_be_bytes(),
            &self.probe.to_be_bytes(),
        ];
        fill(&mut said, &parts);
        let mut mark = [0; MARK_BYTES];
        fill(&mut mark, &[&said, &mac(key, &said, flow)]);
        mark
    }

    /// Parses a payload that begins with a mark. The authentication code is not verified here.
    pub(crate) fn parse(payload: &[u8]) -> Option<(Self, Signed<'_>)> {
        let (said, rest) = payload.split_first_chunk::<SAID>()?;
        let mac = rest.first_chunk::<MAC_BYTES>()?;
        let (magic, rest) = said.split_first_chunk::<8>()?;
        let (&[version, zero], rest) = rest.split_first_chunk::<2>()?;
        let (port, rest) = rest.split_first_chunk::<2>()?;
        let (address, rest) = rest.split_first_chunk::<16>()?;
        let (time, rest) = rest.split_first_chunk::<8>()?;
        let (trace, rest) = rest.split_first_chunk::<8>()?;
        let (probe, _) = rest.split_first_chunk::<4>()?;
        let port = u16::from_be_bytes(*port);
        if (u64::from_be_bytes(*magic), version, zero) != (MAGIC, VERSION, 0) || port == 0 {
            return None;
        }
        let mark = Self {
            receiver: SocketAddr::new(Ipv6Addr::from(*address).to_canonical(), port),
            unix_seconds: u64::from_be_bytes(*time),
            trace: u64::from_be_bytes(*trace),
            probe: u32::from_be_bytes(*probe),
        };
        Some((mark, Signed { said, mac }))
    }
}

impl Signed<'_> {
    /// Returns `true` if the mark was signed with `key` for a packet that belongs to `flow`.
    pub(crate) fn is_of(&self, key: &TraceKey, flow: &Flow) -> bool {
        is_equal(&mac(key, self.said, flow), self.mac)
    }
}

/// Returns the offset of the mark in a frame, or `None` if the packet cannot carry a mark. The mark
/// is at the start of the payload, which follows the transport header. An SCTP packet has the mark
/// in the first parameter of an INIT chunk. In a fragment without a transport header, the mark
/// follows the IP header.
#[inline]
pub fn payload_at(frame: &[u8], parsed: &Parsed) -> Option<usize> {
    let l4 = usize::from(parsed.l4);
    let header = match parsed.protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP | protocol::UDP_LITE
            if matches!(parsed.fragment, Fragment::Later { .. }) =>
        {
            0
        }
        protocol::TCP => usize::from(frame.get(l4 + TCP_DATA_OFFSET)? >> 4) * 4,
        protocol::UDP | protocol::UDP_LITE => UDP_HEADER,
        protocol::SCTP => SCTP_HEADERS,
        _ => return None,
    };
    Some(l4 + header)
}

/// Returns `true` if the eight bytes at offset `at` are the magic number of a mark.
#[inline]
pub fn has_magic(frame: &[u8], at: usize) -> bool {
    let first = frame.get(at..).and_then(|payload| payload.first_chunk::<8>());
    first.is_some_and(|first| u64::from_be_bytes(*first) == MAGIC)
}

fn mac(key: &TraceKey, said: &[u8; SAID], flow: &Flow) -> [u8; MAC_BYTES] {
    let Flow { source, destination, source_port, destination_port, protocol } = flow;
    let mut message = [0; SAID + TUPLE];
    let (from, to) = (source_port.to_be_bytes(), destination_port.to_be_bytes());
    fill(&mut message, &[said, source, destination, &from, &to, &[*protocol]]);
    key.sign_mark(&message)
}

/// Copies all `parts` into `whole`, one after another.
fn fill(whole: &mut [u8], parts: &[&[u8]]) {
    let bytes = parts.iter().flat_map(|part| part.iter());
    whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}

/// The size of a mark in bytes.
pub const MARK_BYTES: usize = SAID + MAC_BYTES;
const MAGIC: u64 = u64::from_be_bytes(*b"\x8d\xf1SLUICE");
const VERSION: u8 = 1;
/// The length of a mark without its authentication code, in bytes. The authentication code covers
/// all of these bytes.
const SAID: usize = 48;
/// The size of a 5-tuple in bytes: two addresses, two ports and a protocol.
const TUPLE: usize = 37;
const TCP_DATA_OFFSET: usize = 12;
const UDP_HEADER: usize = 8;
/// The length of the common header of SCTP, the fixed part of an INIT chunk and the header of its
/// first parameter.
const SCTP_HEADERS: usize = 12 + 20 + 4;

#[cfg(test)]
mod tests;
