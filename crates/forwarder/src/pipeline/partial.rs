//! Packets whose checksum their sender left to hardware that there is not: one packet a second is looked at.
//!
//! In: a batch after stage 1, unchanged. Out: [`Notice::PartialChecksum`], when [`IN_A_ROW`] are so without one that is not:
//! a whole checksum has this value once in 65,536 packets.
//! Not here: anything that changes a packet's way. Between two looks a batch pays for one comparison.
//! Source: Linux `include/linux/skbuff.h`, `CHECKSUM_PARTIAL`: the field holds the sum of the pseudo header, not complemented.

use packet::checksum::Sum;
use packet::{Family, Fragment, parse, protocol};

use super::state::Batch;
use super::{Core, Scratch};
use crate::{Notice, Origin, Packet};

/// When the next look is, and what those before have found.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// In nanoseconds.
    next: u64,
    in_a_row: u8,
}

impl Core {
    /// Looks at a packet, if it is time.
    #[inline]
    pub(super) fn look_for_partial(&mut self, batch: &Batch<'_>, packets: &[Packet<'_>], scratch: &Scratch) {
        if batch.now.nanos() >= self.looks.next {
            self.look_at_one(batch, packets, scratch);
        }
    }

    #[cold]
    fn look_at_one(&mut self, batch: &Batch<'_>, packets: &[Packet<'_>], scratch: &Scratch) {
        self.looks.next = batch.now.nanos().saturating_add(EVERY_NANOS);
        let looked = (0..)
            .zip(packets)
            .filter(|(place, packet)| packet.origin() == Origin::Wire && !scratch.was_tunnelled(*place));
        let found = looked.filter_map(|(_, packet)| Some((packet.interface(), is_partial(packet.frame())?)));
        let Some((interface, is_partial)) = { found }.next() else { return };
        self.looks.in_a_row = if is_partial { self.looks.in_a_row + 1 } else { 0 };
        if self.looks.in_a_row == IN_A_ROW {
            self.looks.in_a_row = 0;
            // What finds no room is found again.
            let _ = self.notices.as_mut().map(|notices| notices.send(Notice::PartialChecksum { interface }));
        }
    }
}

/// `None`: it has no such checksum, or not all of what that is about.
fn is_partial(frame: &[u8]) -> Option<bool> {
    let parsed = parse(frame).ok()?;
    let at = usize::from(parsed.l4)
        + match parsed.protocol {
            protocol::TCP => 16,
            protocol::UDP => 6,
            _ => return None,
        };
    if parsed.fragment != Fragment::None {
        return None;
    }
    let field = u16::from_be_bytes(*frame.get(at..usize::from(parsed.end))?.first_chunk()?);
    let source = usize::from(parsed.l3) + if parsed.family == Family::V4 { 12 } else { 8 };
    let bytes = if parsed.family == Family::V4 { 8 } else { 32 };
    let addresses = Sum::new().add_bytes(frame.get(source..source + bytes)?);
    let pseudo = addresses.add_word(parsed.protocol.into()).add_word(parsed.end.checked_sub(parsed.l4)?);
    (field != 0).then(|| field == pseudo.fold())
}

const EVERY_NANOS: u64 = 1_000_000_000;
const IN_A_ROW: u8 = 3;
