//! The packets of a trace, from their IP header on.
//!
//! In: tuple, flags, marks. Out: one whole packet, or its two pieces. Not here: Ethernet (`link`).
//! Source: RFC 791, 768, 8200 §4.5, 9293 §3.1.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use forwarder::MARK_BYTES;
use packet::checksum::{Sum, checksum};
use packet::protocol;

/// One packet of a trace.
pub(super) struct Probe {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// `None`: UDP.
    pub(super) tcp_flags: Option<u8>,
    /// Sequence number, and identification of pieces.
    pub(super) id: u32,
    pub(super) mark: [u8; MARK_BYTES],
    /// That of a later piece, whose tuple has no ports.
    pub(super) later_mark: [u8; MARK_BYTES],
}

/// Where a piece lies in its datagram.
#[derive(Clone, Copy)]
struct Cut {
    offset: usize,
    more: bool,
}

impl Probe {
    /// One IP packet, or two that are pieces of one.
    pub(super) fn packets(&self, in_pieces: bool) -> Vec<Vec<u8>> {
        if !in_pieces {
            let segment = self.segment(&self.mark, 0);
            return vec![self.ip(&segment, None)];
        }
        // Options bring TCP's header to a multiple of eight, where a piece may end.
        let segment = self.segment(&[self.mark, self.later_mark].concat(), TCP_PADDING);
        let offset = segment.len() - MARK_BYTES;
        let (first, later) = segment.split_at(offset);
        vec![
            self.ip(first, Some(Cut { offset: 0, more: true })),
            self.ip(later, Some(Cut { offset, more: false })),
        ]
    }

    fn protocol(&self) -> u8 {
        if self.tcp_flags.is_some() { protocol::TCP } else { protocol::UDP }
    }

    /// The transport header and the payload, with a right checksum.
    fn segment(&self, payload: &[u8], tcp_padding: usize) -> Vec<u8> {
        let mut segment = [self.source.port().to_be_bytes(), self.destination.port().to_be_bytes()].concat();
        let checksum_at = match self.tcp_flags {
            Some(flags) => {
                segment.extend(self.id.to_be_bytes());
                segment.extend([0; 4]);
                let words = u8::try_from((TCP_HEADER + tcp_padding) / 4).unwrap_or(0);
                segment.extend([words << 4, flags]);
                segment.extend(WINDOW.to_be_bytes());
                segment.extend([0; 4]);
                segment.extend(std::iter::repeat_n(TCP_NOP, tcp_padding));
                16
            }
            None => {
                segment.extend(length(UDP_HEADER + payload.len()).to_be_bytes());
                segment.extend([0; 2]);
                6
            }
        };
        segment.extend(payload);
        //= RFC 768
        //# If the computed checksum is zero, it is transmitted as all ones
        let sum = match self.checksum(&segment) {
            0 if self.tcp_flags.is_none() => 0xffff,
            sum => sum,
        };
        put(&mut segment, checksum_at, &sum.to_be_bytes());
        segment
    }

    /// Of a segment under the pseudo header: what its field has to hold, or 0 when it holds that.
    fn checksum(&self, segment: &[u8]) -> u16 {
        let sum = Sum::new().add_bytes(segment);
        let (protocol, bytes) = (self.protocol(), length(segment.len()));
        let sum = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => sum.add_pseudo_v4(from, to, protocol, bytes),
            (IpAddr::V6(from), IpAddr::V6(to)) => sum.add_pseudo_v6(from, to, protocol, bytes),
            _ => sum,
        };
        sum.finish()
    }

    fn ip(&self, content: &[u8], cut: Option<Cut>) -> Vec<u8> {
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.ipv4(from, to, content, cut),
            (IpAddr::V6(from), IpAddr::V6(to)) => self.ipv6(from, to, content, cut),
            // Refused before.
            _ => Vec::new(),
        }
    }

    fn ipv4(&self, from: Ipv4Addr, to: Ipv4Addr, content: &[u8], cut: Option<Cut>) -> Vec<u8> {
        let [.., high, low] = self.id.to_be_bytes();
        let (id, fragment) = match cut {
            None => ([0, 0], DONT_FRAGMENT),
            Some(Cut { offset, more }) => ([high, low], length(offset / 8) | (u16::from(more) << 13)),
        };
        let mut packet = vec![0x45, 0];
        packet.extend(length(IPV4_HEADER + content.len()).to_be_bytes());
        packet.extend(id);
        packet.extend(fragment.to_be_bytes());
        packet.extend([HOPS, self.protocol(), 0, 0]);
        packet.extend(from.octets());
        packet.extend(to.octets());
        let sum = checksum(&packet);
        put(&mut packet, 10, &sum.to_be_bytes());
        packet.extend(content);
        packet
    }

    fn ipv6(&self, from: Ipv6Addr, to: Ipv6Addr, content: &[u8], cut: Option<Cut>) -> Vec<u8> {
        let mut extension = Vec::new();
        if let Some(Cut { offset, more }) = cut {
            extension.extend([self.protocol(), 0]);
            extension.extend((length(offset) | u16::from(more)).to_be_bytes());
            extension.extend(self.id.to_be_bytes());
        }
        let next = if cut.is_some() { protocol::FRAGMENT } else { self.protocol() };
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(length(extension.len() + content.len()).to_be_bytes());
        packet.extend([next, HOPS]);
        packet.extend(from.octets());
        packet.extend(to.octets());
        packet.extend(extension);
        packet.extend(content);
        packet
    }
}

fn put(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes.iter_mut().skip(at).zip(what).for_each(|(to, from)| *to = *from);
}

/// Nothing here is longer than 200 bytes.
fn length(bytes: usize) -> u16 {
    u16::try_from(bytes).unwrap_or(u16::MAX)
}

const IPV4_HEADER: usize = 20;
const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const TCP_PADDING: usize = 4;
const TCP_NOP: u8 = 1;
const WINDOW: u16 = 1024;
const HOPS: u8 = 64;
const DONT_FRAGMENT: u16 = 0x4000;

#[cfg(test)]
mod tests {
    use packet::{Fragment, Ipv4, parse};

    use super::*;

    fn probe(v4: bool, tcp_flags: Option<u8>) -> Probe {
        let [source, destination] = match v4 {
            true => ["192.0.2.7:40000", "203.0.113.10:80"],
            false => ["[2001:db8::7]:40000", "[2001:db8:f::10]:80"],
        };
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        Probe { source, destination, tcp_flags, id: 0x0102_0304, mark: [7; 64], later_mark: [9; 64] }
    }

    /// The packet behind an Ethernet header.
    fn framed(packet: &[u8]) -> Vec<u8> {
        let kind = if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
        [&[0; 12], &kind[..], packet].concat()
    }

    /// Adds up all words as a receiver does: a right checksum makes ones.
    fn transport_is_right(probe: &Probe, segment: &[u8]) -> bool {
        let sum = Sum::new().add_bytes(segment);
        let (bytes, protocol) = (length(segment.len()), probe.protocol());
        let sum = match (probe.source.ip(), probe.destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => sum.add_pseudo_v4(from, to, protocol, bytes),
            (IpAddr::V6(from), IpAddr::V6(to)) => sum.add_pseudo_v6(from, to, protocol, bytes),
            _ => panic!("one family"),
        };
        sum.finish() == 0
    }

    #[test]
    fn a_whole_packet_is_read_back_with_its_tuple_flags_and_mark() {
        for v4 in [true, false] {
            for flags in [None, Some(0), Some(protocol::TCP_ACK), Some(protocol::TCP_SYN)] {
                let probe = probe(v4, flags);
                let [packet] = &probe.packets(false)[..] else { panic!("one") };
                let frame = framed(packet);
                let parsed = parse(&frame).unwrap();
                assert_eq!((parsed.src_port, parsed.dst_port, parsed.fragment), (40_000, 80, Fragment::None));
                assert_eq!((parsed.protocol, parsed.tcp_flags), (probe.protocol(), flags.unwrap_or(0)));
                assert_eq!(usize::from(parsed.end), frame.len());
                assert!(parsed.dont_fragment && frame.ends_with(&[7; 64]));
                let header = if flags.is_some() { 20 } else { 8 };
                assert_eq!(usize::from(parsed.l4) + header + 64, frame.len());
                assert!(transport_is_right(&probe, &frame[usize::from(parsed.l4)..]));
                assert!(!v4 || Ipv4::parse(packet).unwrap().checksum_ok());
            }
        }
    }

    #[test]
    fn two_pieces_put_together_are_the_whole_and_each_begins_with_its_mark() {
        for v4 in [true, false] {
            for flags in [None, Some(protocol::TCP_ACK)] {
                let probe = probe(v4, flags);
                let packets = probe.packets(true);
                let frames: Vec<_> = packets.iter().map(|packet| framed(packet)).collect();
                let parsed: Vec<_> = frames.iter().map(|frame| parse(frame).unwrap()).collect();
                let id = if v4 { 0x0304 } else { 0x0102_0304 };
                assert_eq!(parsed[0].fragment, Fragment::First { id });
                let content = |n: usize| &frames[n][usize::from(parsed[n].l4)..];
                let offset = length(content(0).len());
                assert_eq!(parsed[1].fragment, Fragment::Later { id, offset, more: false });
                assert!(content(0).ends_with(&[7; 64]) && content(1) == [9; 64]);
                assert!(transport_is_right(&probe, &[content(0), content(1)].concat()));
            }
        }
    }
}
