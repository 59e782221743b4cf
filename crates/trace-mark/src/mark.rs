//! The mark at the start of a traced packet's payload, 64 bytes in network order:
//!
//! ```text
//!  0  magic "\x8d\xf1SLUICE"          28  time, seconds since 1970 (u64)
//!  8  version, 1                      36  trace (u64)
//!  9  zero                            44  probe (u32)
//! 10  the receiver's UDP port (u16)   48  MAC, 16 bytes
//! 12  the receiver's address, 16 bytes, IPv4 as v4-mapped
//! ```
//!
//! The MAC is SipHash-2-4 with 128 bits of output, over bytes 0 to 47 and the packet's tuple (source, destination, ports,
//! protocol): a mark that is cut out of one packet is worth nothing in another. The first byte of the magic is no ASCII and no
//! UTF-8, so that no text begins like a mark.
//! Invariant: parsing is total, and what is written is read back.

use std::net::{Ipv6Addr, SocketAddr};

use packet::{Fragment, Parsed, protocol};

use classifier::{Flow, mapped};

use crate::TraceKey;
use crate::key::{MAC_BYTES, is_equal};

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Where reports go, by UDP.
    pub receiver: SocketAddr,
    /// When it was signed.
    pub unix_seconds: u64,
    /// Which trace it is of; random, so that reports of two are not mixed up.
    pub trace: u64,
    /// Which packet of the trace.
    pub probe: u32,
}

/// A mark's bytes as they came.
#[derive(Clone, Copy)]
pub(crate) struct Signed<'a> {
    said: &'a [u8; SAID],
    mac: &'a [u8; MAC_BYTES],
}

impl Mark {
    /// The mark's bytes for a packet of `flow`. In a later piece of a datagram the flow has no ports.
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

    /// Reads a payload that begins with a mark; the MAC is not yet asked.
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
    /// Whether it was signed under `key` for a packet of `flow`.
    pub(crate) fn is_of(&self, key: &TraceKey, flow: &Flow) -> bool {
        is_equal(&mac(key, self.said, flow), self.mac)
    }
}

/// Where the payload of a packet begins that may carry a mark: behind the transport header, in a later piece of a datagram
/// behind the IP header.
#[inline]
pub fn payload_at(frame: &[u8], parsed: &Parsed) -> Option<usize> {
    let l4 = usize::from(parsed.l4);
    match parsed.protocol {
        protocol::TCP | protocol::UDP if matches!(parsed.fragment, Fragment::Later { .. }) => Some(l4),
        protocol::TCP => Some(l4 + usize::from(frame.get(l4 + TCP_DATA_OFFSET)? >> 4) * 4),
        protocol::UDP => Some(l4 + UDP_HEADER),
        _ => None,
    }
}

/// Whether the eight bytes at `at` are those that a mark begins with.
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

/// Puts `parts` one behind the other into `whole`.
fn fill(whole: &mut [u8], parts: &[&[u8]]) {
    let bytes = parts.iter().flat_map(|part| part.iter());
    whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}

/// Bytes of a mark.
pub const MARK_BYTES: usize = SAID + MAC_BYTES;
const MAGIC: u64 = u64::from_be_bytes(*b"\x8d\xf1SLUICE");
const VERSION: u8 = 1;
/// What is signed of the mark itself.
const SAID: usize = 48;
/// Two addresses, two ports, a protocol.
const TUPLE: usize = 37;
const TCP_DATA_OFFSET: usize = 12;
const UDP_HEADER: usize = 8;

#[cfg(test)]
mod tests;
