//! The 8-byte frame of memcached datagrams. The frame contains the request id, the index of the
//! datagram, the number of datagrams and a reserved field, each of which is 16 bits wide and in
//! big-endian order.

use crate::{Datagram, Refusal};

pub(super) const LENGTH: usize = 8;

/// Checks the frame of a request, and returns the first byte of the command.
///
/// Servers echo the request id, and ignore the datagram index and the reserved field. The client
/// memcaslap sends 0x0100 in the reserved field. Servers drop a request if the number of datagrams
/// in its frame is not 1, because a request must fit into one datagram.
#[inline]
pub(super) fn first_byte(datagram: Datagram<'_>) -> Result<u8, Refusal> {
    let (frame, command) = datagram.payload().split_first_chunk::<LENGTH>().ok_or(Refusal::ShortFrame)?;
    let &[_, _, _, _, high, low, _, _] = frame;
    if u16::from_be_bytes([high, low]) != 1 {
        return Err(Refusal::TotalNotOne);
    }
    command.first().copied().ok_or(Refusal::ShortFrame)
}

/// The frame of a datagram from a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) id: u16,
    /// The index of the datagram in the answer.
    pub(super) sequence: u16,
    /// The number of datagrams in the answer.
    pub(super) total: u16,
}

/// Splits the payload of an answer into the frame and the rest.
pub(super) fn answer(payload: &[u8]) -> Option<(Frame, &[u8])> {
    let (&[i0, i1, s0, s1, t0, t1, _, _], behind) = payload.split_first_chunk::<LENGTH>()?;
    let [id, sequence, total] = [[i0, i1], [s0, s1], [t0, t1]].map(u16::from_be_bytes);
    Some((Frame { id, sequence, total }, behind))
}

impl Frame {
    pub(super) fn bytes(self) -> [u8; LENGTH] {
        let [i0, i1] = self.id.to_be_bytes();
        let [s0, s1] = self.sequence.to_be_bytes();
        let [t0, t1] = self.total.to_be_bytes();
        [i0, i1, s0, s1, t0, t1, 0, 0]
    }
}
