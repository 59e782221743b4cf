//! Detects packets with a partial checksum. The sender of such a packet relied on checksum offload,
//! but no device on the path completed the checksum. One packet per second is examined. One in
//! 65,536 complete checksums looks like a partial checksum, so [`Notice::PartialChecksum`] is sent
//! only after three partial checksums in a row ([`IN_A_ROW`]). Packets are not changed. If no
//! packet of a batch is examined, the cost is one comparison.
//!
//! See `CHECKSUM_PARTIAL` in the Linux header `include/linux/skbuff.h`. The checksum field of such
//! a packet contains the sum of the pseudo header, without the final complement. For SCTP, whose
//! checksum is a CRC, the field is 0.

use packet::checksum::Sum;
use packet::{Family, Fragment, parse, protocol};

use super::admitted::Admitted;
use super::state::Batch;
use super::{Core, Scratch};
use crate::{Notice, Origin};

/// The time of the next examination, and the number of consecutive partial checksums.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// The time of the next examination, in nanoseconds.
    next: u64,
    in_a_row: u8,
}

impl Core {
    /// Examines one packet of the batch if the last examination was at least one second ago.
    #[inline]
    pub(super) fn look_for_partial<'p>(
        &mut self,
        batch: &Batch<'_>,
        packets: &impl Admitted<'p>,
        scratch: &Scratch,
    ) {
        if batch.now.nanos() >= self.looks.next {
            self.look_at_one(batch, packets, scratch);
        }
    }

    #[cold]
    fn look_at_one<'p>(&mut self, batch: &Batch<'_>, packets: &impl Admitted<'p>, scratch: &Scratch) {
        self.looks.next = batch.now.nanos().saturating_add(EVERY_NANOS);
        let looked = (0..)
            .zip(packets.packets())
            .filter(|(place, packet)| packet.origin() == Origin::Wire && !scratch.was_tunnelled(*place));
        let found = looked.filter_map(|(_, packet)| Some((packet.interface(), is_partial(packet.frame())?)));
        let Some((interface, is_partial)) = { found }.next() else { return };
        self.looks.in_a_row = if is_partial { self.looks.in_a_row + 1 } else { 0 };
        if self.looks.in_a_row == IN_A_ROW {
            self.looks.in_a_row = 0;
            // If the notice is lost, further partial checksums cause a new notice.
            let _ = self.notices.as_mut().map(|notices| notices.send(Notice::PartialChecksum { interface }));
        }
    }
}

/// Returns `true` if the checksum of a packet is partial. Returns `None` if the packet is a
/// fragment or has no TCP, UDP or SCTP checksum. A partial checksum of SCTP is 0.
fn is_partial(frame: &[u8]) -> Option<bool> {
    let parsed = parse(frame).ok()?;
    if parsed.fragment != Fragment::None {
        return None;
    }
    let at = usize::from(parsed.l4)
        + match parsed.protocol {
            protocol::TCP => 16,
            protocol::UDP => 6,
            protocol::SCTP => return Some(frame.get(usize::from(parsed.l4) + 8..)?.starts_with(&[0; 4])),
            _ => return None,
        };
    let field = u16::from_be_bytes(*frame.get(at..usize::from(parsed.end))?.first_chunk()?);
    let source = usize::from(parsed.l3) + if parsed.family == Family::V4 { 12 } else { 8 };
    let bytes = if parsed.family == Family::V4 { 8 } else { 32 };
    let addresses = Sum::new().add_bytes(frame.get(source..source + bytes)?);
    let pseudo = addresses.add_word(parsed.protocol.into()).add_word(parsed.end.checked_sub(parsed.l4)?);
    (field != 0).then(|| field == pseudo.fold())
}

const EVERY_NANOS: u64 = 1_000_000_000;
const IN_A_ROW: u8 = 3;
