//! Splits IP packets into fragments, and reassembles captured fragments.
//!
//! This module is independent of the balancer's code, so that tests can use it to verify the
//! balancer's fragments.
//!
//! References: RFC 791 §3.2, RFC 8200 §4.5.

use crate::Ip;
use crate::decode::checksum;

/// Splits the packet of an untagged frame into fragments with `room` payload bytes each. The last
/// fragment contains the rest. IPv4 fragments have DF cleared. The packet must not have IP options
/// or extension headers.
///
/// # Panics
/// Panics if `room` is not a multiple of 8, or if the frame does not contain such a packet.
#[must_use]
pub fn cut(frame: &[u8], id: u32, room: usize) -> Vec<Vec<u8>> {
    assert!(room >= 8 && room.is_multiple_of(8), "a fragment size of {room} bytes is not a multiple of 8");
    let ipv4 = frame[12..14] == [0x08, 0x00];
    let (head, payload) = frame.split_at(if ipv4 { 34 } else { 54 });
    let starts = (0..payload.len()).step_by(room);
    starts
        .map(|from| {
            let part = &payload[from..payload.len().min(from + room)];
            let more = from + part.len() < payload.len();
            if ipv4 { piece_v4(head, id, from, more, part) } else { piece_v6(head, id, from, more, part) }
        })
        .collect()
}

/// Reassembles the payload of a packet from its fragments. Returns `None` if a fragment is missing.
#[must_use]
pub fn join(pieces: &[Ip]) -> Option<Vec<u8>> {
    let mut sorted: Vec<(u16, bool, &[u8])> = Vec::new();
    for piece in pieces {
        let (offset, more) = piece.fragment?;
        sorted.push((offset, more, piece.payload()));
    }
    sorted.sort_unstable();
    let mut whole = Vec::new();
    for (offset, _, part) in &sorted {
        if usize::from(*offset) != whole.len() {
            return None;
        }
        whole.extend_from_slice(part);
    }
    let ends: Vec<bool> = sorted.iter().map(|&(_, more, _)| !more).collect();
    (ends.iter().rposition(|end| *end) == ends.len().checked_sub(1)
        && ends.iter().filter(|e| **e).count() == 1)
        .then_some(whole)
}

/// Returns the frame with its DF flag cleared, so that it may be fragmented.
///
/// # Panics
/// Panics if the frame is not an untagged IPv4 frame.
#[must_use]
pub fn may_be_cut(mut frame: Vec<u8>) -> Vec<u8> {
    assert_eq!(frame[12..14], [0x08, 0x00], "the frame is not IPv4");
    frame[20] &= !0x40;
    sum_header(&mut frame);
    frame
}

fn piece_v4(head: &[u8], id: u32, from: usize, more: bool, part: &[u8]) -> Vec<u8> {
    let half = |n: usize| u16::try_from(n).expect("the length exceeds an IP packet");
    let mut frame = head.to_vec();
    frame[16..18].copy_from_slice(&half(20 + part.len()).to_be_bytes());
    frame[18..20].copy_from_slice(&half((id & 0xffff) as usize).to_be_bytes());
    let word = half(from / 8) | (u16::from(more) << 13);
    frame[20..22].copy_from_slice(&word.to_be_bytes());
    sum_header(&mut frame);
    frame.extend_from_slice(part);
    frame
}

fn piece_v6(head: &[u8], id: u32, from: usize, more: bool, part: &[u8]) -> Vec<u8> {
    let half = |n: usize| u16::try_from(n).expect("the length exceeds an IP packet");
    let mut frame = head.to_vec();
    frame[18..20].copy_from_slice(&half(8 + part.len()).to_be_bytes());
    let carried = std::mem::replace(&mut frame[20], 44);
    frame.extend_from_slice(&[carried, 0]);
    frame.extend_from_slice(&(half(from) | u16::from(more)).to_be_bytes());
    frame.extend_from_slice(&id.to_be_bytes());
    frame.extend_from_slice(part);
    frame
}

fn sum_header(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = checksum(&[&frame[14..34]]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Frame, FrameSpec};

    fn packet(ipv4: bool) -> Vec<u8> {
        let [from, to] = if ipv4 {
            ["198.51.100.7:9", "203.0.113.10:80"]
        } else {
            ["[2001:db8::7]:9", "[2001:db8:f::10]:80"]
        };
        let payload = (0u8..=255).cycle().take(3001).collect();
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        FrameSpec { payload, ..FrameSpec::udp([2; 6], [4; 6], from, to) }.bytes()
    }

    #[test]
    fn pieces_in_any_order_are_the_packet_again() {
        for ipv4 in [true, false] {
            let whole = packet(ipv4);
            let mut pieces: Vec<Ip> =
                cut(&whole, 0x1_0007, 1000).iter().map(|piece| Frame::parse(piece).unwrap().ip).collect();
            assert_eq!(pieces.len(), 4);
            assert!(pieces.iter().all(|piece| piece.checksum_ok && piece.protocol == 17));
            pieces.reverse();
            assert_eq!(join(&pieces).unwrap(), Frame::parse(&whole).unwrap().ip.payload());
            for missing in 0..4 {
                let mut fewer = pieces.clone();
                fewer.remove(missing);
                assert_eq!(join(&fewer), None);
            }
        }
    }

    #[test]
    fn df_is_cleared_and_the_header_summed_anew() {
        let frame = Frame::parse(&may_be_cut(packet(true))).unwrap();
        assert!(frame.ip.checksum_ok && !frame.ip.dont_fragment);
    }
}
