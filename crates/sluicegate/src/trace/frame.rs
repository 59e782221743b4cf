//! Builds the IP packets of a trace, either unfragmented or as two fragments. The submodule `link`
//! adds the Ethernet header.
//!
//! References: RFC 791, RFC 768, RFC 8200 section 4.5, RFC 9293 section 3.1.

use std::net::{IpAddr, SocketAddr};

use anyhow::bail;
use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv6FragmentHeader, Ipv6Header, PacketBuilder, TcpHeader,
};
use forwarder::MARK_BYTES;
use packet::protocol;

pub(super) struct Probe {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// The TCP flags, or `None` for UDP.
    pub(super) tcp_flags: Option<u8>,
    /// The TCP sequence number, which is also the identification of fragments.
    pub(super) id: u32,
    pub(super) mark: [u8; MARK_BYTES],
    /// The mark in the second fragment. The signature of this mark covers a flow without ports,
    /// because later fragments contain no ports.
    pub(super) later_mark: [u8; MARK_BYTES],
}

impl Probe {
    /// Builds one whole IP packet, or its two fragments if `in_pieces` is `true`.
    pub(super) fn packets(&self, in_pieces: bool) -> anyhow::Result<Vec<Vec<u8>>> {
        if !in_pieces {
            return Ok(vec![self.whole(&self.mark, &[])?]);
        }
        // A fragment offset is a multiple of eight bytes. TCP options pad the TCP header to a
        // multiple of eight bytes.
        let whole = self.whole(&[self.mark, self.later_mark].concat(), &[TCP_NOP; 4])?;
        let segment = whole.get(self.ip()?.header_len()..).unwrap_or_default();
        let offset = segment.len().saturating_sub(MARK_BYTES);
        let (first, later) = segment.split_at(offset);
        Ok(vec![self.piece(first, 0, true)?, self.piece(later, offset, false)?])
    }

    fn protocol(&self) -> IpNumber {
        if self.tcp_flags.is_some() { IpNumber::TCP } else { IpNumber::UDP }
    }

    fn whole(&self, payload: &[u8], tcp_options: &[u8]) -> anyhow::Result<Vec<u8>> {
        let (ip, mut packet) = (PacketBuilder::ip(self.ip()?), Vec::new());
        let (from, to) = (self.source.port(), self.destination.port());
        match self.tcp_flags {
            Some(flags) => {
                let mut tcp = TcpHeader::new(from, to, self.id, WINDOW);
                (tcp.syn, tcp.ack) = (flags & protocol::TCP_SYN != 0, flags & protocol::TCP_ACK != 0);
                tcp.set_options_raw(tcp_options)?;
                ip.tcp_header(tcp).write(&mut packet, payload)?;
            }
            None => ip.udp(from, to).write(&mut packet, payload)?,
        }
        Ok(packet)
    }

    /// Builds the fragment whose payload begins at byte `offset` of the original payload.
    fn piece(&self, content: &[u8], offset: usize, more: bool) -> anyhow::Result<Vec<u8>> {
        let (mut ip, mut packet) = (self.ip()?, Vec::new());
        let offset = IpFragOffset::try_from(u16::try_from(offset / 8)?)?;
        match &mut ip {
            IpHeaders::Ipv4(header, _) => {
                let [.., high, low] = self.id.to_be_bytes();
                header.identification = u16::from_be_bytes([high, low]);
                (header.dont_fragment, header.more_fragments) = (false, more);
                header.fragment_offset = offset;
            }
            IpHeaders::Ipv6(_, extensions) => {
                extensions.fragment = Some(Ipv6FragmentHeader::new(self.protocol(), offset, more, self.id));
            }
        }
        ip.set_next_headers(self.protocol());
        ip.set_payload_len(content.len())?;
        ip.write(&mut packet)?;
        packet.extend(content);
        Ok(packet)
    }

    /// Builds the IP header of a whole packet. The length and the checksum are not set.
    fn ip(&self) -> anyhow::Result<IpHeaders> {
        Ok(match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let header = Ipv4Header::new(0, HOPS, self.protocol(), from.octets(), to.octets())?;
                IpHeaders::Ipv4(header, Default::default())
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let (source, destination) = (from.octets(), to.octets());
                let header = Ipv6Header { source, destination, hop_limit: HOPS, ..Default::default() };
                IpHeaders::Ipv6(header, Default::default())
            }
            (from, to) => bail!("{from} and {to} have different address families"),
        })
    }
}

const TCP_NOP: u8 = 1;
const WINDOW: u16 = 1024;
const HOPS: u8 = 64;

#[cfg(test)]
mod tests {
    use packet::checksum::Sum;
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

    /// Adds an Ethernet header.
    fn framed(packet: &[u8]) -> Vec<u8> {
        let kind = if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
        [&[0; 12], &kind[..], packet].concat()
    }

    /// Verifies the transport checksum as a receiver does. The one's complement sum over all words
    /// must be all ones.
    fn transport_is_right(probe: &Probe, segment: &[u8]) -> bool {
        let sum = Sum::new().add_bytes(segment);
        let (bytes, protocol) = (u16::try_from(segment.len()).unwrap(), probe.protocol().0);
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
                let [packet] = &probe.packets(false).unwrap()[..] else { panic!("one") };
                let frame = framed(packet);
                let parsed = parse(&frame).unwrap();
                assert_eq!((parsed.src_port, parsed.dst_port, parsed.fragment), (40_000, 80, Fragment::None));
                assert_eq!((parsed.protocol, parsed.tcp_flags), (probe.protocol().0, flags.unwrap_or(0)));
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
    fn fragments_reassemble_and_carry_marks() {
        for v4 in [true, false] {
            for flags in [None, Some(protocol::TCP_ACK)] {
                let probe = probe(v4, flags);
                let packets = probe.packets(true).unwrap();
                let frames: Vec<_> = packets.iter().map(|packet| framed(packet)).collect();
                let parsed: Vec<_> = frames.iter().map(|frame| parse(frame).unwrap()).collect();
                let id = if v4 { 0x0304 } else { 0x0102_0304 };
                assert_eq!(parsed[0].fragment, Fragment::First { id });
                let content = |n: usize| &frames[n][usize::from(parsed[n].l4)..];
                let offset = u16::try_from(content(0).len()).unwrap();
                assert_eq!(parsed[1].fragment, Fragment::Later { id, offset, more: false });
                assert!(content(0).ends_with(&[7; 64]) && content(1) == [9; 64]);
                assert!(transport_is_right(&probe, &[content(0), content(1)].concat()));
            }
        }
    }
}
