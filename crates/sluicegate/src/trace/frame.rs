//! Builds the IP packets of a trace, either unfragmented or as two fragments. The submodule `link`
//! adds the Ethernet header.
//!
//! References: RFC 791, RFC 768, RFC 3828, RFC 4820, RFC 8200 section 4.5, RFC 9260 section 3,
//! RFC 9293 section 3.1.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail};
use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv6FragmentHeader, Ipv6Header, PacketBuilder, TcpHeader,
};
use forwarder::MARK_BYTES;
use packet::checksum::Sum;
use packet::{protocol, sctp_checksum};

use super::Protocol;

pub(super) struct Probe {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) protocol: Protocol,
    /// The TCP flags, which are not used for other protocols.
    pub(super) tcp_flags: u8,
    /// The TCP sequence number or the SCTP initiate tag, which is also the identification of
    /// fragments.
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
        // multiple of eight bytes, and the headers of the other protocols have a suitable length.
        let whole = self.whole(&[self.mark, self.later_mark].concat(), &[TCP_NOP; 4])?;
        let segment = whole.get(self.ip()?.header_len()..).unwrap_or_default();
        let offset = segment.len().saturating_sub(MARK_BYTES);
        let (first, later) = segment.split_at(offset);
        Ok(vec![self.piece(first, 0, true)?, self.piece(later, offset, false)?])
    }

    fn protocol(&self) -> IpNumber {
        IpNumber(self.protocol.number())
    }

    /// Builds a packet that is not fragmented. `marks` contains one or two marks.
    fn whole(&self, marks: &[u8], tcp_options: &[u8]) -> anyhow::Result<Vec<u8>> {
        let (ip, mut packet) = (PacketBuilder::ip(self.ip()?), Vec::new());
        let (from, to) = (self.source.port(), self.destination.port());
        match self.protocol {
            Protocol::Tcp => {
                let mut tcp = TcpHeader::new(from, to, self.id, WINDOW);
                let flags = self.tcp_flags;
                (tcp.syn, tcp.ack) = (flags & protocol::TCP_SYN != 0, flags & protocol::TCP_ACK != 0);
                tcp.set_options_raw(tcp_options)?;
                ip.tcp_header(tcp).write(&mut packet, marks)?;
            }
            Protocol::Udp => ip.udp(from, to).write(&mut packet, marks)?,
            Protocol::Sctp => ip.write(&mut packet, self.protocol(), &self.sctp_init(marks)?)?,
            Protocol::UdpLite => ip.write(&mut packet, self.protocol(), &self.udp_lite(marks)?)?,
        }
        Ok(packet)
    }

    /// Builds an SCTP packet that consists of an INIT chunk. Each mark is in a padding parameter,
    /// which the backend ignores.
    fn sctp_init(&self, marks: &[u8]) -> anyhow::Result<Vec<u8>> {
        let parameter = u16::try_from(4 + MARK_BYTES)?.to_be_bytes();
        let parameters = marks.chunks(MARK_BYTES).map(|mark| [&SCTP_PADDING, &parameter, mark].concat());
        let parameters: Vec<u8> = parameters.flatten().collect();
        let length = u16::try_from(20 + parameters.len())?.to_be_bytes();
        let tag = self.id.max(1).to_be_bytes();
        // The verification tag of an INIT is 0. The fields behind the initiate tag are the receive
        // window, the numbers of outbound and inbound streams, and the initial sequence number.
        let fields = [tag, [0, 1, 0, 0], [0, 1, 0, 1], tag].concat();
        let header = [self.ports(), [0; 4], [0; 4]].concat();
        let mut packet = [&header[..], &[SCTP_INIT, 0], &length, &fields, &parameters].concat();
        let sum = sctp_checksum(&packet).context("the packet has no header")?;
        packet.iter_mut().skip(8).zip(sum).for_each(|(slot, byte)| *slot = byte);
        Ok(packet)
    }

    /// Builds a UDP-Lite packet whose checksum covers the whole packet.
    fn udp_lite(&self, marks: &[u8]) -> anyhow::Result<Vec<u8>> {
        let mut packet = [&self.ports()[..], &UDP_LITE_COVERS_ALL, &[0; 2], marks].concat();
        let length = u16::try_from(packet.len())?;
        let sum = Sum::new().add_bytes(&packet);
        let sum = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => sum.add_pseudo_v4(from, to, protocol::UDP_LITE, length),
            (IpAddr::V6(from), IpAddr::V6(to)) => sum.add_pseudo_v6(from, to, protocol::UDP_LITE, length),
            (from, to) => bail!("{from} and {to} have different address families"),
        };
        // The checksum 0 is sent as all ones.
        let sum = if sum.finish() == 0 { u16::MAX } else { sum.finish() };
        packet.iter_mut().skip(6).zip(sum.to_be_bytes()).for_each(|(slot, byte)| *slot = byte);
        Ok(packet)
    }

    fn ports(&self) -> [u8; 4] {
        let ([s0, s1], [d0, d1]) = (self.source.port().to_be_bytes(), self.destination.port().to_be_bytes());
        [s0, s1, d0, d1]
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
const SCTP_INIT: u8 = 1;
/// The type of the padding parameter (RFC 4820).
const SCTP_PADDING: [u8; 2] = [0x80, 0x05];
/// The checksum coverage for a checksum over the whole packet (RFC 3828 section 3.1).
const UDP_LITE_COVERS_ALL: [u8; 2] = [0, 0];
const HOPS: u8 = 64;

#[cfg(test)]
mod tests {
    use packet::{Fragment, Ipv4, parse};

    use super::*;

    /// All protocols with the length of their headers, up to the mark in the packet.
    const PROTOCOLS: [(Protocol, usize); 4] =
        [(Protocol::Tcp, 20), (Protocol::Udp, 8), (Protocol::Sctp, 12 + 20 + 4), (Protocol::UdpLite, 8)];

    fn probe(v4: bool, protocol: Protocol, tcp_flags: u8) -> Probe {
        let [source, destination] = match v4 {
            true => ["192.0.2.7:40000", "203.0.113.10:80"],
            false => ["[2001:db8::7]:40000", "[2001:db8:f::10]:80"],
        };
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        let (mark, later_mark) = ([7; 64], [9; 64]);
        Probe { source, destination, protocol, tcp_flags, id: 0x0102_0304, mark, later_mark }
    }

    /// Adds an Ethernet header.
    fn framed(packet: &[u8]) -> Vec<u8> {
        let kind = if packet[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
        [&[0; 12], &kind[..], packet].concat()
    }

    /// Computes the CRC32c bit by bit.
    fn crc32c(bytes: &[u8]) -> u32 {
        let bits = bytes.iter().flat_map(|byte| (0..8).map(move |bit| u32::from(byte >> bit & 1)));
        !bits.fold(u32::MAX, |crc, bit| crc >> 1 ^ if (crc ^ bit) & 1 == 1 { 0x82f6_3b78 } else { 0 })
    }

    /// Verifies the transport checksum as a receiver does. The CRC of SCTP is computed over the
    /// packet with an empty checksum field. The one's complement sum over all words of the other
    /// protocols must be all ones.
    fn transport_is_right(probe: &Probe, segment: &[u8]) -> bool {
        if probe.protocol == Protocol::Sctp {
            let crc = crc32c(&[&segment[..8], &[0; 4], &segment[12..]].concat());
            return segment[8..12] == crc.to_le_bytes();
        }
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
            let flags = [0, protocol::TCP_ACK, protocol::TCP_SYN];
            let cases = PROTOCOLS.iter().flat_map(|case| flags.map(|flags| (*case, flags)));
            for ((protocol, header), flags) in cases {
                let probe = probe(v4, protocol, flags);
                let [packet] = &probe.packets(false).unwrap()[..] else { panic!("one") };
                let frame = framed(packet);
                let parsed = parse(&frame).unwrap();
                assert_eq!((parsed.src_port, parsed.dst_port, parsed.fragment), (40_000, 80, Fragment::None));
                let flags = if protocol == Protocol::Tcp { flags } else { 0 };
                assert_eq!((parsed.protocol, parsed.tcp_flags), (probe.protocol().0, flags));
                assert_eq!(usize::from(parsed.end), frame.len());
                assert!(parsed.dont_fragment && frame.ends_with(&[7; 64]));
                assert_eq!(usize::from(parsed.l4) + header + 64, frame.len());
                assert!(transport_is_right(&probe, &frame[usize::from(parsed.l4)..]));
                assert!(!v4 || Ipv4::parse(packet).unwrap().checksum_ok());
            }
        }
    }

    /// Checks the fields of an INIT chunk by hand (RFC 9260 section 3.3.2, RFC 4820 section 3).
    #[test]
    fn sctp_packet_is_an_init_with_a_padding_parameter() {
        let [packet] = &probe(true, Protocol::Sctp, 0).packets(false).unwrap()[..] else { panic!("one") };
        let segment = &packet[20..];
        assert_eq!(segment[..8], [0x9c, 0x40, 0, 80, 0, 0, 0, 0]);
        assert_eq!(segment[12..32], [1, 0, 0, 88, 1, 2, 3, 4, 0, 1, 0, 0, 0, 1, 0, 1, 1, 2, 3, 4]);
        assert_eq!((&segment[32..36], &segment[36..]), (&[0x80, 0x05, 0, 68][..], &[7; 64][..]));
    }

    #[test]
    fn fragments_reassemble_and_carry_marks() {
        for v4 in [true, false] {
            for (protocol, _) in PROTOCOLS {
                let probe = probe(v4, protocol, protocol::TCP_ACK);
                let packets = probe.packets(true).unwrap();
                let frames: Vec<_> = packets.iter().map(|packet| framed(packet)).collect();
                let parsed: Vec<_> = frames.iter().map(|frame| parse(frame).unwrap()).collect();
                let id = if v4 { 0x0304 } else { 0x0102_0304 };
                assert_eq!(parsed[0].fragment, Fragment::First { id });
                let content = |n: usize| &frames[n][usize::from(parsed[n].l4)..];
                let offset = u16::try_from(content(0).len()).unwrap();
                assert_eq!(parsed[1].fragment, Fragment::Later { id, offset, more: false });
                // The header of the second padding parameter follows the mark of an INIT.
                let header: &[u8] = if protocol == Protocol::Sctp { &[0x80, 0x05, 0, 68] } else { &[] };
                assert!(content(0).ends_with(&[&[7; 64], header].concat()) && content(1) == [9; 64]);
                assert!(transport_is_right(&probe, &[content(0), content(1)].concat()));
            }
        }
    }
}
