//! Turns a TCP segment into the reset that a host without a listener sends.
//!
//! The rules are in RFC 9293 §3.5.2 and §3.10.7.1. The caller must limit the rate of resets.

use core::net::Ipv6Addr;

use crate::checksum::{self, Sum};
use crate::echo::swap_halves;
use crate::{Family, Fragment, Parsed, may_answer, protocol};

/// Replaces the TCP segment in `frame` with a reset to its sender, and returns the length of the
/// new frame. MAC addresses, IP addresses and ports are swapped, and VLAN tags are kept. `parsed`
/// is the result of [`crate::parse`] for `frame`.
///
/// Returns `None` and leaves `frame` unchanged if the packet is not a TCP segment, is a reset or a
/// fragment, or has a wrong checksum. Also returns `None` if [`may_answer`] forbids a reply.
///
/// # Cost
/// One pass over the segment for the checksum.
#[must_use]
pub fn write_tcp_reset(frame: &mut [u8], parsed: &Parsed) -> Option<usize> {
    let segment = frame.get(usize::from(parsed.l4)..usize::from(parsed.end))?;
    // A fragment contains only a part of the segment, so neither its length nor its checksum is
    // known.
    let is_whole_segment = parsed.protocol == protocol::TCP && parsed.fragment == Fragment::None;
    if !is_whole_segment || !may_answer(frame, parsed) || !tcp_checksum_ok(frame, segment, parsed) {
        return None;
    }
    let mut tcp = reset(segment)?;
    // The order of the addresses does not change the sum.
    let sum = pseudo(frame, parsed, TCP_HEADER_LEN).add_bytes(&tcp).finish().to_be_bytes();
    tcp.get_mut(16..18)?.copy_from_slice(&sum);
    write_reply(frame, parsed, &tcp)
}

/// Replaces the packet in `frame` with a reply from its destination, whose upper layer is `upper`,
/// and returns the length of the new frame. The reply has the protocol of the packet, and VLAN tags
/// are kept.
pub(crate) fn write_reply(frame: &mut [u8], parsed: &Parsed, upper: &[u8]) -> Option<usize> {
    let (l3, header) = (usize::from(parsed.l3), usize::from(parsed.family.header_len()));
    let length = u16::try_from(upper.len()).ok()?;
    let written = frame.get_mut(..l3 + header + upper.len())?;
    let (link, ip) = written.split_at_mut_checked(l3)?;
    if !swap_halves::<6>(link) {
        return None;
    }
    let (ip, slot) = ip.split_at_mut_checked(header)?;
    match parsed.family {
        Family::V4 => write_v4(ip.first_chunk_mut()?, parsed.protocol, length),
        Family::V6 => write_v6(ip.first_chunk_mut()?, parsed.protocol, length),
    }
    slot.copy_from_slice(upper);
    Some(written.len())
}

/// Returns the TCP header of the reset for a segment, with checksum 0. Returns `None` if the
/// segment is itself a reset.
fn reset(segment: &[u8]) -> Option<[u8; TCP_HEADER]> {
    let &[s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags, ..] =
        segment.first_chunk::<TCP_HEADER>()?;
    if flags & RST != 0 {
        return None;
    }
    //= RFC 9293 §3.10.7.1
    //# If the ACK bit is off, sequence number zero is used,
    //# <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>
    //# If the ACK bit is on,
    //# <SEQ=SEG.ACK><CTL=RST>
    if flags & protocol::TCP_ACK != 0 {
        return Some([d0, d1, s0, s1, a0, a1, a2, a3, 0, 0, 0, 0, 5 << 4, RST, 0, 0, 0, 0, 0, 0]);
    }
    let data = segment.len().checked_sub(usize::from(offset >> 4) * 4)?;
    let control = u32::from(flags & protocol::TCP_SYN != 0) + u32::from(flags & protocol::TCP_FIN != 0);
    let sequence = u32::from_be_bytes([q0, q1, q2, q3]);
    let acknowledged = sequence.wrapping_add(u32::try_from(data).ok()?).wrapping_add(control);
    let [a0, a1, a2, a3] = acknowledged.to_be_bytes();
    let flags = RST | protocol::TCP_ACK;
    Some([d0, d1, s0, s1, 0, 0, 0, 0, a0, a1, a2, a3, 5 << 4, flags, 0, 0, 0, 0, 0, 0])
}

/// Overwrites the packet's header with the IPv4 header of a reply. The reply is so short that it is
/// never fragmented, so it needs no identification (RFC 6864 §4.1).
fn write_v4(header: &mut [u8; 20], protocol: u8, payload: u16) {
    let &mut [.., a, b, c, d, e, f, g, h] = header;
    let [hi, lo] = (payload + 20).to_be_bytes();
    *header = [0x45, 0, hi, lo, 0, 0, 0x40, 0, HOPS, protocol, 0, 0, e, f, g, h, a, b, c, d];
    let sum = checksum::checksum(header).to_be_bytes();
    [header[10], header[11]] = sum;
}

fn write_v6(header: &mut [u8; 40], protocol: u8, payload: u16) {
    let [hi, lo] = payload.to_be_bytes();
    let fixed = [0x60, 0, 0, 0, hi, lo, protocol, HOPS];
    header.iter_mut().zip(fixed).for_each(|(slot, byte)| *slot = byte);
    if let Some(both) = header.last_chunk_mut::<32>() {
        let _ = swap_halves::<16>(both);
    }
}

/// Returns `true` if the TCP checksum is correct, or covers only the pseudo-header. Linux writes
/// such a partial checksum when it expects the NIC to complete it.
fn tcp_checksum_ok(frame: &[u8], segment: &[u8], parsed: &Parsed) -> bool {
    let Ok(len) = u16::try_from(segment.len()) else { return false };
    let Some(&[hi, lo]) = segment.get(16..).and_then(|rest| rest.first_chunk()) else { return false };
    let pseudo = pseudo(frame, parsed, len);
    pseudo.fold() == u16::from_be_bytes([hi, lo]) || pseudo.add_bytes(segment).finish() == 0
}

/// Returns the sum of the pseudo-header for an upper layer of `len` bytes. The IPv6 pseudo-header
/// also gives the correct sum for IPv4, because the prefix of an IPv4-mapped address adds 0xffff,
/// which is zero in ones' complement.
pub(crate) fn pseudo(frame: &[u8], parsed: &Parsed, len: u16) -> Sum {
    let addresses = parsed.addresses(frame);
    let (source, destination) = (Ipv6Addr::from(addresses.src), Ipv6Addr::from(addresses.dst));
    Sum::new().add_pseudo_v6(source, destination, parsed.protocol, len)
}

const TCP_HEADER: usize = 20;
const TCP_HEADER_LEN: u16 = 20;
const RST: u8 = protocol::TCP_RST;
const HOPS: u8 = 64;

#[cfg(test)]
mod tests;
