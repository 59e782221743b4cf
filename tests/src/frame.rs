//! Frames made by hand, for what the kernel's own stack would not send.
//!
//! In: addresses, ports, a payload. Out: the bytes of an Ethernet frame with right lengths and checksums.
//! It shares no function with the product: it is the other side of its tests.
//! Source: RFC 791, 768, 792, 4443, 9293, 8200; IEEE 802.1Q.

use std::net::{IpAddr, SocketAddr};

use crate::decode::{checksum, pseudo_header};

/// A UDP datagram, TCP segment or ICMP message in an Ethernet frame.
#[derive(Clone, Debug)]
pub struct FrameSpec {
    /// Destination MAC.
    pub to: [u8; 6],
    /// Source MAC.
    pub from: [u8; 6],
    /// VLAN ids, outer first: one is 802.1Q, two are QinQ.
    pub vlans: Vec<u16>,
    /// Source address and port.
    pub source: SocketAddr,
    /// Destination address and port, of the same family.
    pub destination: SocketAddr,
    /// TCP flags; `None` is UDP.
    pub tcp_flags: Option<u8>,
    /// ICMP of the family instead, of this type and code; its second word is zero, and the ports don't matter.
    pub icmp: Option<[u8; 2]>,
    /// TTL or hop limit.
    pub ttl: u8,
    /// What it carries.
    pub payload: Vec<u8>,
}

impl FrameSpec {
    /// A UDP datagram without payload.
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

    /// As [`Self::udp`], of the least size: 64 bytes with the FCS over IPv4, or what its headers need.
    #[must_use]
    pub fn smallest_udp(from: [u8; 6], to: [u8; 6], source: SocketAddr, destination: SocketAddr) -> Self {
        let payload = if source.is_ipv4() { vec![0x5a; 18] } else { vec![] };
        Self { payload, ..Self::udp(from, to, source, destination) }
    }

    /// `count` frames that differ in their source port, from this one's upwards: one flow each.
    ///
    /// # Panics
    /// When the ports don't suffice.
    #[must_use]
    pub fn flows(&self, count: u16) -> Vec<Vec<u8>> {
        let first = self.source.port();
        assert!(first.checked_add(count).is_some(), "no {count} ports from {first}");
        let flow = |port| Self { source: SocketAddr::new(self.source.ip(), port), ..self.clone() }.bytes();
        (first..first + count).map(flow).collect()
    }

    /// The frame, without FCS.
    ///
    /// # Panics
    /// When the families differ, or the payload has no room in an IP packet.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let transport = self.transport();
        let length = |bytes: usize| u16::try_from(bytes).expect("fits an IP packet").to_be_bytes();
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
            _ => panic!("{} and {} are of different families", self.source, self.destination),
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
            // Sequence 1, acknowledgement 0 or 1, five words of header, window 65,535.
            let ack = u8::from(flags & 0x10 != 0);
            bytes.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, ack, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
            16
        } else {
            let length = u16::try_from(8 + self.payload.len()).expect("fits an IP packet");
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(&[0, 0]);
            6
        };
        bytes.extend_from_slice(&self.payload);
        let pseudo = match self.protocol() {
            1 => vec![], // RFC 792: of itself alone
            protocol => pseudo_header(self.source.ip(), self.destination.ip(), protocol, bytes.len()),
        };
        let sum = match checksum(&[&pseudo, &bytes]) {
            0 if sum_at == 6 => 0xffff, // RFC 768: zero would say that there is none
            sum => sum,
        };
        bytes[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }
}
