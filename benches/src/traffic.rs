//! The packets of the benchmark rows: established flows, floods and malformed packets.

use forwarder::{DropReason, Verdict};
use packet::protocol;

use crate::{VIP6, frame, frame_v6};

/// The traffic type of a benchmark row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Packets of established flows in random order. The value is the number of flows.
    Flows(u32),
    /// UDP packets of established flows, in the same order. The value is the number of flows.
    Datagrams(u32),
    /// SYN packets. Each packet opens a new flow.
    SynFlood,
    /// Packets of established flows, mixed with flood packets. The fields are the number of flows,
    /// the kind of flood, and the number of flood packets per packet of an established flow.
    Beside(u32, Flood, u32),
    /// Flood packets that arrive after this number of flows was established.
    After(u32, Flood),
    /// Packets that the forwarder drops. The value is the reason.
    Dropped(Flaw),
    /// Memcached requests for random keys. The value is the number of different keys.
    Gets(u32),
    /// Memcached requests for keys whose values are all in the cache. The value is the number of
    /// keys.
    Hits(u32),
}

/// A flood of packets from random source addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// TCP SYN packets.
    Syn,
    /// TCP ACK packets that belong to no known flow.
    Ack,
    /// UDP packets.
    Udp,
}

/// The reason why the forwarder drops a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The frame is shorter than the length in the IP header.
    Truncated,
    /// The IP header length field is below the minimum of 20 bytes.
    HeaderLength,
    /// The TCP data offset points past the end of the packet.
    DataOffset,
    /// The version field of the IP header is neither 4 nor 6.
    Version,
    /// The VIP has no service on the destination port.
    Port,
}

/// The next packet of the traffic.
#[derive(Clone, Copy, Debug)]
pub enum Next {
    /// A TCP packet of this flow with these flags.
    Tcp(u32, u8),
    /// A UDP packet of this flow.
    Udp(u32),
    /// A malformed TCP packet of this flow.
    Flawed(u32, Flaw),
    /// A memcached `get` request for this key.
    Get(u32),
}

impl Traffic {
    /// Returns the number of flows that must be established before the measurement.
    pub(crate) const fn flows(self) -> u32 {
        match self {
            Self::Flows(flows) | Self::Datagrams(flows) | Self::Beside(flows, ..) | Self::After(flows, _) => {
                flows
            }
            Self::SynFlood | Self::Dropped(_) | Self::Gets(_) | Self::Hits(_) => 0,
        }
    }

    /// Returns the verdict that every packet must get.
    pub(crate) const fn verdict(self) -> Verdict {
        match self {
            Self::Dropped(Flaw::Port) => Verdict::Drop(DropReason::NoVip),
            Self::Dropped(_) => Verdict::Drop(DropReason::Malformed),
            Self::Hits(_) => Verdict::Reply,
            _ => Verdict::Tx,
        }
    }

    /// Returns the verdict that some packets may get instead: SYNs of a flood above the budget for
    /// new flows while the thread is overloaded.
    pub(crate) fn other_verdict(self) -> Option<Verdict> {
        matches!(self, Self::Beside(_, Flood::Syn, _)).then_some(Verdict::Drop(DropReason::Overload))
    }

    /// Returns the next packet. The generator returns each flow once per period, in a scattered
    /// order.
    pub fn next(self, state: &mut u32) -> Next {
        *state = state.wrapping_add(0x9e37_79b1);
        match self {
            Self::Flows(flows) => Next::Tcp(scaled(*state, flows), ACK),
            Self::Datagrams(flows) => Next::Udp(scaled(*state, flows)),
            Self::SynFlood => Next::Tcp(*state & 0x00ff_ffff, SYN),
            // With a ratio of 1, the lowest bit of the state decides. This bit alternates.
            Self::Beside(flows, _, ratio) if state.is_multiple_of(ratio + 1) => {
                Next::Tcp(scaled(*state, flows), ACK)
            }
            Self::Beside(_, flood, _) | Self::After(_, flood) => flood.packet(forged(*state)),
            Self::Dropped(flaw) => Next::Flawed(scaled(*state, 1_000), flaw),
            Self::Gets(keys) | Self::Hits(keys) => Next::Get(scaled(*state, keys)),
        }
    }
}

impl Flood {
    pub(crate) const fn packet(self, flow: u32) -> Next {
        match self {
            Self::Syn => Next::Tcp(flow, SYN),
            Self::Ack => Next::Tcp(flow, ACK),
            Self::Udp => Next::Udp(flow),
        }
    }
}

impl Next {
    /// Returns the packet as an IPv4 frame of 64 bytes including FCS.
    #[must_use]
    pub fn v4(self) -> [u8; 60] {
        match self {
            Self::Tcp(flow, flags) => frame(flow, flags),
            Self::Udp(flow) => {
                let mut frame = frame(flow, 0);
                frame[23] = protocol::UDP;
                frame[36..40].copy_from_slice(&[1, 187, 0, 26]);
                frame
            }
            Self::Flawed(flow, flaw) => {
                let mut frame = frame(flow, ACK);
                let (at, byte) = match flaw {
                    Flaw::Truncated => (16, 5),
                    Flaw::HeaderLength => (14, 0x44),
                    Flaw::Version => (14, 0x55),
                    Flaw::DataOffset => (46, 0xf0),
                    Flaw::Port => (36, 0x7f),
                };
                frame[at] = byte;
                frame
            }
            Self::Get(_) => unreachable!("requests have a different length"),
        }
    }

    /// Returns a memcached request as an IPv4 frame. The key is 32 bytes long, and the request
    /// comes from one of a thousand clients.
    pub(crate) fn request(self) -> [u8; 88] {
        let Self::Get(key) = self else { unreachable!("the traffic consists of requests only") };
        let mut out = [b'0'; 88];
        out[..42].copy_from_slice(&frame(key % 1_000, 0)[..42]);
        out[16..18].copy_from_slice(&74u16.to_be_bytes());
        out[23] = protocol::UDP;
        // These bytes are the destination port, the UDP length and an empty checksum.
        out[36..42].copy_from_slice(&[0x2b, 0xcb, 0, 54, 0, 0]);
        out[42..54].copy_from_slice(b"\x12\x34\0\0\0\x01\0\0get ");
        let mut left = key;
        for digit in out[54..86].iter_mut().rev() {
            *digit = b'0' + (left % 10) as u8;
            left /= 10;
        }
        out[86..].copy_from_slice(b"\r\n");
        out
    }

    /// Returns a TCP packet as an IPv6 frame to [`VIP6`].
    pub(crate) fn v6(self) -> [u8; 74] {
        let Self::Tcp(flow, flags) = self else { unreachable!("rows over IPv6 have only TCP") };
        let mut frame = frame_v6(flow, &VIP6.octets());
        frame[56..58].copy_from_slice(&(if flow & 1 == 0 { 80u16 } else { 443 }).to_be_bytes());
        frame[67] = flags;
        frame
    }
}

fn scaled(state: u32, flows: u32) -> u32 {
    u32::try_from((u64::from(state) * u64::from(flows)) >> 32).unwrap_or(0)
}

/// Returns a flow number with the highest bit set. Established flows have lower numbers.
const fn forged(state: u32) -> u32 {
    state.rotate_right(1) | 0x8000_0000
}

pub(crate) const ACK: u8 = 0x10;
pub(crate) const SYN: u8 = 0x02;
