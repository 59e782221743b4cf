//! Stage 3 of plain packets: headers that were laid out before, by wide stores.
//!
//! Not here: what takes more of a packet, or refuses it: the general path gets it unchanged.

use packet::{Inner, decrement_ttl, parse};

use super::{PlainPacket, Way};
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
        if place.way != Way::Flow {
            return None;
        }
        let headers = batch.snapshot.headers(place.choice.slot, place.family)?;
        let overhead = headers.overhead(place.ip_len)?;
        if packet.start() != overhead {
            return None;
        }
        let (bytes, end) = (packet.frame_len(), overhead + usize::from(place.l3 + place.ip_len));
        let buffer = packet.buffer_mut();
        let ip = buffer.get_mut(overhead + usize::from(place.l3)..)?;
        if !decrement_ttl(ip, place.family) {
            return None;
        }
        let identification = self.identifications.next();
        let inner = || Inner { len: place.ip_len, tos: place.tos, flow_hash: place.hash, identification };
        // Each its own: what is lent to a call stands in memory.
        let written = match place.l3 {
            14 => headers.write(buffer, &inner()),
            _ => headers.write_tagged(buffer, overhead, place.l3, &inner()),
        };
        // Of what was read as plain behind as much head room.
        debug_assert!(written, "a plain packet has room for its headers");
        packet.set_bounds(0, end);
        packet.set_interface(headers.beside);
        self.count_for(place.choice.slot, place.counted, |pair| {
            pair.packets.add(1);
            pair.bytes.add(bytes as u64);
        });
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
        if let Way::Dropped(reason) = place.way {
            return Verdict::Drop(reason);
        }
        let Ok(parsed) = parse(packet.frame()) else { return Verdict::Drop(DropReason::Malformed) };
        *state = PacketState { parsed, ..place.chosen(state.place) };
        self.write(batch, packet, state)
    }
}
