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
