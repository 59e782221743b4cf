//! Builds frames that the kernel's network stack would not send.
//!
//! The frames have correct lengths and checksums. This module is independent of the balancer's
//! code, so that tests can use it to verify the balancer's parsers.
//!
//! References: RFC 791, 768, 792, 4443, 9293, 8200; IEEE 802.1Q.

use std::net::{IpAddr, SocketAddr};

use crate::decode::{checksum, pseudo_header};

/// The fields of a frame that contains a UDP datagram, a TCP segment or an ICMP message.
#[derive(Clone, Debug)]
pub struct FrameSpec {
    /// The destination MAC address.
    pub to: [u8; 6],
    /// The source MAC address.
    pub from: [u8; 6],
    /// The VLAN IDs, outermost first. A frame with one ID gets an 802.1Q tag, and a frame with two
    /// gets QinQ tags.
    pub vlans: Vec<u16>,
    /// The source address and port.
    pub source: SocketAddr,
    /// The destination address and port. The address family must be the same as for the source.
    pub destination: SocketAddr,
    /// The TCP flags, or `None` for a UDP datagram.
    pub tcp_flags: Option<u8>,
    /// The type and code of an ICMP message. If the field is set, the frame contains an ICMP
    /// message instead of TCP or UDP. The second 32-bit word of the message is zero, and the ports
    /// are ignored.
    pub icmp: Option<[u8; 2]>,
    /// The TTL or hop limit.
    pub ttl: u8,
    /// The payload.
    pub payload: Vec<u8>,
}

impl FrameSpec {
    /// Returns a UDP datagram without payload.
    #[must_use]
    pub fn udp(from: [u8; 6], to: [u8; 6], source: SocketAddr, destination: SocketAddr) -> Self {
        Self {
            to,
            from,
            vlans: vec![],
            source,
            destination,
            tcp_flags: None,
            icmp: None,
            ttl: 64,
            payload: vec![],
        }
    }

    /// Returns the smallest UDP datagram. Over IPv4, the frame is 64 bytes long including the FCS.
    /// Over IPv6, the datagram has no payload.
    #[must_use]
    pub fn smallest_udp(from: [u8; 6], to: [u8; 6], source: SocketAddr, destination: SocketAddr) -> Self {
        let payload = if source.is_ipv4() { vec![0x5a; 18] } else { vec![] };
        Self { payload, ..Self::udp(from, to, source, destination) }
    }

    /// Returns `count` frames that differ in their source port, so that each frame belongs to a
    /// separate flow. The first frame has the source port of this frame, and the others have the
    /// following ports.
    ///
    /// # Panics
    /// Panics if a port number would exceed 65,535.
    #[must_use]
    pub fn flows(&self, count: u16) -> Vec<Vec<u8>> {
        let first = self.source.port();
        assert!(first.checked_add(count).is_some(), "{count} ports from {first} exceed the port range");
        let flow = |port| Self { source: SocketAddr::new(self.source.ip(), port), ..self.clone() }.bytes();
        (first..first + count).map(flow).collect()
    }

    /// Returns the bytes of the frame, without the FCS.
    ///
    /// # Panics
    /// Panics if the address families differ, or if the payload does not fit into an IP packet.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let transport = self.transport();
        let length =
            |bytes: usize| u16::try_from(bytes).expect("the length exceeds an IP packet").to_be_bytes();
        let mut frame = [self.to, self.from].concat();
        for (depth, id) in self.vlans.iter().enumerate() {
            let outer = depth == 0 && self.vlans.len() > 1;
            frame.extend_from_slice(if outer { &[0x88, 0xa8] } else { &[0x81, 0x00] });
            frame.extend_from_slice(&id.to_be_bytes());
        }
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let [high, low] = length(20 + transport.len());
                let mut ip = vec![0x45, 0, high, low, 0, 1, 0x40, 0, self.ttl, self.protocol(), 0, 0];
                ip.extend(source.octets().into_iter().chain(destination.octets()));
                let sum = checksum(&[&ip]).to_be_bytes();
                ip[10..12].copy_from_slice(&sum);
                frame.extend_from_slice(&[0x08, 0x00]);
                frame.extend(ip);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let [high, low] = length(transport.len());
                frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, high, low, self.protocol(), self.ttl]);
                frame.extend(source.octets().into_iter().chain(destination.octets()));
            }
            _ => panic!("{} and {} have different address families", self.source, self.destination),
        }
        frame.extend(transport);
        frame
    }

    fn protocol(&self) -> u8 {
        match (self.icmp, self.tcp_flags) {
            (Some(_), _) => {
                if self.source.is_ipv4() {
                    1
                } else {
                    58
                }
            }
            (None, Some(_)) => 6,
            (None, None) => 17,
        }
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes = [self.source.port().to_be_bytes(), self.destination.port().to_be_bytes()].concat();
        let sum_at = if let Some([kind, code]) = self.icmp {
            bytes = vec![kind, code, 0, 0, 0, 0, 0, 0];
            2
        } else if let Some(flags) = self.tcp_flags {
            // The sequence number is 1. The acknowledgment number is 1 if the ACK flag is set,
            // otherwise 0. The header consists of five 32-bit words, and the window is 65,535.
            let ack = u8::from(flags & 0x10 != 0);
            bytes.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, ack, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
            16
        } else {
            let length = u16::try_from(8 + self.payload.len()).expect("the length exceeds an IP packet");
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(&[0, 0]);
            6
        };
        bytes.extend_from_slice(&self.payload);
        let pseudo = match self.protocol() {
            1 => vec![], // The ICMPv4 checksum has no pseudo-header (RFC 792).
            protocol => pseudo_header(self.source.ip(), self.destination.ip(), protocol, bytes.len()),
        };
        let sum = match checksum(&[&pseudo, &bytes]) {
            0 if sum_at == 6 => 0xffff, // RFC 768: zero means that the datagram has no checksum
            sum => sum,
        };
        bytes[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }
}
