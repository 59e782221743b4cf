//! What comes: established flows, floods, what is malformed.
//!
//! In: the state of a generator. Out: which packet is next, and its frame.
//! Not here: whom it meets (`rows`).

use forwarder::{DropReason, Verdict};
use packet::protocol;

use crate::{VIP6, frame, frame_v6};

/// Which packets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Established flows, in an order without pattern.
    Flows(u32),
    /// Every packet opens a flow.
    SynFlood,
    /// Packets of as many established flows, one of a flood behind each.
    Beside(u32, Flood),
    /// A flood alone, after as many flows were established.
    After(u32, Flood),
    /// Nothing but packets that are dropped.
    Dropped(Flaw),
    /// Requests of memcached for as many keys, in an order without pattern.
    Gets(u32),
    /// The same, which are answered from copies.
    Hits(u32),
}

/// A flood from random sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// TCP that begins.
    Syn,
    /// TCP that goes on, and is not known.
    Ack,
    /// UDP.
    Udp,
}

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The frame ends before its packet says that it does.
    Truncated,
    /// The IP header says that it is shorter than one.
    HeaderLength,
    /// The TCP header says that it is longer than its packet.
    DataOffset,
    /// Neither IPv4 nor IPv6.
    Version,
    /// For a port that no service has.
    Port,
}

/// A packet to come.
#[derive(Clone, Copy, Debug)]
pub enum Next {
    /// TCP of a flow with these flags.
    Tcp(u32, u8),
    /// UDP of a flow.
    Udp(u32),
    /// TCP of a flow, with something wrong.
    Flawed(u32, Flaw),
    /// `get` of a key.
    Get(u32),
}

impl Traffic {
    /// Flows to be established before.
    pub(crate) const fn flows(self) -> u32 {
        match self {
            Self::Flows(flows) | Self::Beside(flows, _) | Self::After(flows, _) => flows,
            Self::SynFlood | Self::Dropped(_) | Self::Gets(_) | Self::Hits(_) => 0,
        }
    }

    /// What becomes of all of it.
    pub(crate) const fn verdict(self) -> Verdict {
        match self {
            Self::Dropped(Flaw::Port) => Verdict::Drop(DropReason::NoVip),
            Self::Dropped(_) => Verdict::Drop(DropReason::Malformed),
            Self::Hits(_) => Verdict::Reply,
            _ => Verdict::Tx,
        }
    }

    /// A full-period generator: each flow comes once a period, scattered.
    pub fn next(self, state: &mut u32) -> Next {
        *state = state.wrapping_add(0x9e37_79b1);
        match self {
            Self::Flows(flows) => Next::Tcp(scaled(*state, flows), ACK),
            Self::SynFlood => Next::Tcp(*state & 0x00ff_ffff, SYN),
            // The lowest bit changes each time.
            Self::Beside(flows, _) if *state & 1 == 0 => Next::Tcp(scaled(*state, flows), ACK),
            Self::Beside(_, flood) | Self::After(_, flood) => flood.packet(forged(*state)),
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
    /// The frame over IPv4, 64 bytes with its checksum.
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
            Self::Get(_) => unreachable!("requests have a length of their own"),
        }
    }

    /// The frame of a request over IPv4: a key of 32 bytes, a thousand clients.
    pub(crate) fn request(self) -> [u8; 88] {
        let Self::Get(key) = self else { unreachable!("a row of requests has these alone") };
        let mut out = [b'0'; 88];
        out[..42].copy_from_slice(&frame(key % 1_000, 0)[..42]);
        out[16..18].copy_from_slice(&74u16.to_be_bytes());
        out[23] = protocol::UDP;
        // The server's port; the datagram's length; no checksum.
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

    /// The frame of a TCP packet over IPv6, to [`VIP6`].
    pub(crate) fn v6(self) -> [u8; 74] {
        let Self::Tcp(flow, flags) = self else { unreachable!("rows over IPv6 have TCP alone") };
        let mut frame = frame_v6(flow, &VIP6.octets());
        frame[56..58].copy_from_slice(&(if flow & 1 == 0 { 80u16 } else { 443 }).to_be_bytes());
        frame[67] = flags;
        frame
    }
}

fn scaled(state: u32, flows: u32) -> u32 {
    u32::try_from((u64::from(state) * u64::from(flows)) >> 32).unwrap_or(0)
}

/// No flow that is established has its highest bit.
const fn forged(state: u32) -> u32 {
    state.rotate_right(1) | 0x8000_0000
}

pub(crate) const ACK: u8 = 0x10;
pub(crate) const SYN: u8 = 0x02;
