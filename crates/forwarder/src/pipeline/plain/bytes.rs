//! Stage 3 of plain packets: headers that were laid out before, by wide stores.
//!
//! Not here: what takes more of a packet, or refuses it: the general path gets it unchanged.

use packet::{Inner, decrement_ttl, parse};

use super::{Disposition, PlainPacket};
use crate::pipeline::Core;
use crate::pipeline::state::{Batch, PacketState};
use crate::{DropReason, Packet, Verdict};

impl Core {
    /// Writes what a plain packet is sent with. `None`, with nothing changed: it is refused, or takes more than laid out headers.
    #[inline(always)]
    pub(in crate::pipeline) fn write_plain(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        place: &PlainPacket,
    ) -> Option<()> {
        if place.disposition != Disposition::Flow {
            return None;
        }
        let (slot, ip_len, l3) = (place.choice.slot, place.ip_len, place.l3);
        let headers = batch.snapshot.headers(slot, place.family)?;
        let overhead = headers.overhead(ip_len)?;
        if packet.start() != overhead {
            return None;
        }
        let ip_at = overhead + usize::from(l3);
        if !decrement_ttl(packet.buffer_mut().get_mut(ip_at..)?, place.family) {
            return None;
        }
        // Before the headers, so that what is only of this need not be kept over them.
        let bytes = packet.frame_len();
        self.count_for(slot, place.counted, |pair| {
            pair.packets.add(1);
            pair.bytes.add(bytes as u64);
        });
        packet.set_bounds(0, ip_at + usize::from(ip_len));
        packet.set_interface(headers.beside);
        let identification = self.identifications.next_v4();
        let inner = || Inner { len: ip_len, tos: place.tos, flow_hash: place.hash, identification };
        // Each its own: what is lent to a call stands in memory.
        let written = match l3 {
            14 => headers.write(packet.buffer_mut(), &inner()),
            _ => headers.write_tagged(packet.buffer_mut(), overhead, l3, &inner()),
        };
        // Of what was read as plain behind as much head room.
        debug_assert!(written, "a plain packet has room for its headers");
        Some(())
    }

    /// The same for all others.
    #[cold]
    #[inline(never)]
    pub(in crate::pipeline) fn write_otherwise(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        place: &PlainPacket,
        state: &mut PacketState,
    ) -> Verdict {
        if let Disposition::Dropped(reason) = place.disposition {
            return Verdict::Drop(reason);
        }
        let Ok(parsed) = parse(packet.frame()) else { return Verdict::Drop(DropReason::Malformed) };
        *state = PacketState { parsed, ..place.chosen(state.place) };
        self.write(batch, packet, state)
    }
}
