//! Encodes and decodes the BFD control packet, which is 24 bytes long.
//!
//! `Control::parse` performs every check of RFC 5880 §6.8.6 that does not depend on the session.

use std::fmt;

/// A state of a BFD session (RFC 5880 §6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SessionState {
    /// An operator has disabled the session.
    AdminDown = 0,
    /// No packets arrive from the peer, or the peer reports that the session is down.
    Down = 1,
    /// Packets from the peer arrive, but the peer has not yet received packets from this side.
    Init = 2,
    /// Both sides receive packets from each other.
    Up = 3,
}

impl SessionState {
    pub(crate) fn new(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::AdminDown,
            1 => Self::Down,
            2 => Self::Init,
            _ => Self::Up,
        }
    }
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The diagnostic code of a session, which is the reason for its last state change (RFC 5880 §4.1).
/// Only the codes that this side sends are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Diagnostic {
    /// There was no fault, or no packet from the peer has arrived yet.
    #[default]
    None = 0,
    /// No packet arrived within the detection time.
    DetectionTimeExpired = 1,
    /// The peer reports that the session is down.
    NeighborSaysDown = 3,
    /// An operator on this side took the session down.
    AdministrativelyDown = 7,
}

impl Diagnostic {
    pub(crate) fn new(number: u8) -> Option<Self> {
        let all =
            [Self::None, Self::DetectionTimeExpired, Self::NeighborSaysDown, Self::AdministrativelyDown];
        all.into_iter().find(|one| *one as u8 == number)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "no diagnostic",
            Self::DetectionTimeExpired => "detection time expired",
            Self::NeighborSaysDown => "neighbor signaled session down",
            Self::AdministrativelyDown => "administratively down",
        })
    }
}

/// A BFD control packet without authentication. Intervals are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) diagnostic: u8,
    pub(crate) state: SessionState,
    pub(crate) poll: bool,
    pub(crate) is_final: bool,
    pub(crate) demand: bool,
    pub(crate) multiplier: u8,
    pub(crate) my_discriminator: u32,
    pub(crate) your_discriminator: u32,
    pub(crate) desired_tx: u32,
    pub(crate) required_rx: u32,
}

impl Control {
    /// Parses a UDP payload. Returns `None` if the packet must be discarded.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, _) = bytes.split_first_chunk::<BYTES>()?;
        let [first, flags, multiplier, length, words @ ..] = *head;
        let mut words =
            words.chunks_exact(4).map(|word| u32::from_be_bytes(word.try_into().unwrap_or_default()));
        let mut word = || words.next().unwrap_or_default();
        let control = Self {
            diagnostic: first & 0x1f,
            state: SessionState::new(flags >> 6),
            poll: flags & POLL != 0,
            is_final: flags & FINAL != 0,
            demand: flags & DEMAND != 0,
            multiplier,
            my_discriminator: word(),
            your_discriminator: word(),
            desired_tx: word(),
            required_rx: word(),
        };
        let is_ours = first >> 5 == VERSION;
        let length = usize::from(length);
        let fits = (BYTES..=bytes.len()).contains(&length);
        let plain = flags & (AUTHENTICATED | MULTIPOINT) == 0 && !(control.poll && control.is_final);
        let numbered = multiplier != 0 && control.my_discriminator != 0;
        //= RFC 5880 §6.8.6
        //# If the Your Discriminator field is zero and the State field is not Down or AdminDown, the packet MUST be discarded.
        let may_begin = matches!(control.state, SessionState::Down | SessionState::AdminDown);
        let addressed = control.your_discriminator != 0 || may_begin;
        (is_ours && fits && plain && numbered && addressed).then_some(control)
    }

    /// Encodes the packet. The C bit (control plane independent) is clear, because BFD stops
    /// together with the process that runs BGP. A router that loses the BFD session during a
    /// graceful restart should therefore keep the routes (RFC 5882 §4.3.2.2).
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = bit(self.poll, POLL) | bit(self.is_final, FINAL) | bit(self.demand, DEMAND);
        let head =
            [VERSION << 5 | self.diagnostic & 0x1f, (self.state as u8) << 6 | flags, self.multiplier, 24];
        let words = [self.my_discriminator, self.your_discriminator, self.desired_tx, self.required_rx, 0];
        let all = head.into_iter().chain(words.into_iter().flat_map(u32::to_be_bytes));
        bytes.iter_mut().zip(all).for_each(|(to, byte)| *to = byte);
        bytes
    }
}

/// The UDP port of single-hop BFD (RFC 5881 §4).
pub(crate) const PORT: u16 = 3784;
pub(crate) const BYTES: usize = 24;
const VERSION: u8 = 1;
const POLL: u8 = 0x20;
const FINAL: u8 = 0x10;
const AUTHENTICATED: u8 = 0x04;
const DEMAND: u8 = 0x02;
const MULTIPOINT: u8 = 0x01;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A packet in state Up with an interval of 100 ms and a multiplier of 3, encoded by hand
    /// according to RFC 5880 §4.1.
    const GOOD: [u8; 24] =
        [0x20, 0xc0, 3, 24, 0, 0, 0, 7, 0, 0, 0, 9, 0, 1, 0x86, 0xa0, 0, 1, 0x86, 0xa0, 0, 0, 0, 0];

    fn with(at: usize, byte: u8) -> [u8; 24] {
        let mut bytes = GOOD;
        bytes[at] = byte;
        bytes
    }

    #[test]
    fn a_packet_written_by_hand_is_read_and_written_the_same() {
        let control = Control::parse(&GOOD).unwrap();
        assert_eq!(control.state, SessionState::Up);
        assert_eq!((control.my_discriminator, control.your_discriminator), (7, 9));
        assert_eq!((control.desired_tx, control.required_rx, control.multiplier), (100_000, 100_000, 3));
        assert_eq!(control.encode(), GOOD);
    }

    #[test]
    fn what_the_rfc_discards_is_discarded() {
        for (bytes, why) in [
            (with(0, 0x00), "version 0"),
            (with(0, 0x40), "version 2"),
            (with(1, 0xc4), "unexpected authentication"),
            (with(1, 0xc1), "multipoint"),
            (with(1, 0xf0), "poll and final at once"),
            (with(2, 0), "multiplier 0"),
            (with(3, 23), "length field is less than the header length"),
            (with(3, 25), "length field exceeds the payload length"),
            (with(7, 0), "no discriminator"),
            (with(11, 0), "state Up without the local discriminator"),
        ] {
            assert_eq!(Control::parse(&bytes), None, "{why}");
        }
        assert_eq!(Control::parse(&GOOD[..23]), None);
        let mut first = with(11, 0);
        for (bits, may) in [(0x00, true), (0x40, true), (0x80, false), (0xc0, false)] {
            first[1] = bits;
            assert_eq!(
                Control::parse(&first).is_some(),
                may,
                "packet in state {bits:02x} without the local discriminator"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_come_back_the_same(bytes: Vec<u8>, head in any::<[u8; 24]>(), glued: bool) {
            let bytes = if glued { [&head[..], &bytes].concat() } else { bytes };
            if let Some(control) = Control::parse(&bytes) {
                let written = control.encode();
                prop_assert_eq!(Control::parse(&written), Some(control));
                prop_assert_eq!(&written[4..20], &bytes[4..20]);
            }
        }
    }
}
