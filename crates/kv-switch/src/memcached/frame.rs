//! The eight bytes in front of every datagram of memcached: request id, sequence number, total, reserved, all big-endian.

use crate::{Datagram, Refusal};

/// Bytes of the frame.
pub(super) const LENGTH: usize = 8;

/// The first byte of the command.
///
/// The request id is echoed. Sequence number and reserved field are ignored by servers, and memcaslap sends a reserved field of
/// 0x0100. A total other than 1 is dropped by servers, which take no request in several datagrams.
#[inline]
pub(super) fn first_byte(datagram: Datagram<'_>) -> Result<u8, Refusal> {
    let (frame, command) = datagram.payload().split_first_chunk::<LENGTH>().ok_or(Refusal::ShortFrame)?;
    let &[_, _, _, _, high, low, _, _] = frame;
    if u16::from_be_bytes([high, low]) != 1 {
        return Err(Refusal::TotalNotOne);
    }
    command.first().copied().ok_or(Refusal::ShortFrame)
}

/// What stands in front of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// The request's id.
    pub(super) id: u16,
    /// The datagram's place among those of the answer.
    pub(super) sequence: u16,
    /// How many those are.
    pub(super) total: u16,
}

/// An answer's frame, and what is behind it.
pub(super) fn answer(payload: &[u8]) -> Option<(Frame, &[u8])> {
    let (&[i0, i1, s0, s1, t0, t1, _, _], behind) = payload.split_first_chunk::<LENGTH>()?;
    let [id, sequence, total] = [[i0, i1], [s0, s1], [t0, t1]].map(u16::from_be_bytes);
    Some((Frame { id, sequence, total }, behind))
}

impl Frame {
    /// As it is written.
    pub(super) fn bytes(self) -> [u8; LENGTH] {
        let [i0, i1] = self.id.to_be_bytes();
        let [s0, s1] = self.sequence.to_be_bytes();
        let [t0, t1] = self.total.to_be_bytes();
        [i0, i1, s0, s1, t0, t1, 0, 0]
    }
}
