//! Stage 3 (rewriting) of the fast path: writes prepared headers with wide stores. Packets that
//! must be dropped, and packets that cannot use prepared headers, go to the slow path unchanged.

use packet::{Inner, Prepared, decrement_ttl, parse};

use super::{Disposition, FastPacket};
use crate::pipeline::Core;
use crate::pipeline::state::{Batch, PacketState};
use crate::{DropReason, InterfaceId, Packet, Verdict};

impl Core {
    /// Runs stage 3 (rewriting) for one packet of a batch. Writes the verdict in place, because a
    /// verdict that is returned takes more instructions.
    #[inline(always)]
    pub(in crate::pipeline) fn write_one(
        &mut self,
        batch: &Batch<'_>,
        (packet, verdict): (&mut Packet<'_>, &mut Verdict),
        place: &FastPacket,
        state: &mut PacketState,
    ) {
        if self.write_fast(batch, packet, place).is_some() {
            *verdict = Verdict::Tx;
            return;
        }
        if let Some(reason) = place.refusal() {
            *verdict = self.drop_or_reject(batch, packet, reason);
            return;
        }
        *verdict = if place.is_fast() {
            self.write_otherwise(batch, packet, place, state)
        } else {
            match state.verdict {
                Some(verdict) => verdict,
                None => self.write(batch, packet, state),
            }
        };
        if let Verdict::Drop(reason) = *verdict {
            *verdict = self.drop_or_reject(batch, packet, reason);
        }
    }

    /// Writes the outer headers of a fast-path packet. Returns `None` and changes no byte if the
    /// packet must be dropped or cannot use prepared headers.
    #[inline(always)]
    pub(in crate::pipeline) fn write_fast(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        place: &FastPacket,
    ) -> Option<()> {
        if place.marks.disposition < Disposition::Flow {
            return None;
        }
        let headers = batch.snapshot.headers(place.choice.slot, place.marks.family)?;
        // The prepared headers of slots with several next hops are stored elsewhere, so that this
        // lookup costs no more for slots with one next hop.
        match headers.overhead(place.ip_len) {
            Some(overhead) => self.write_prepared(packet, place, headers, overhead),
            None if batch.snapshot.has_spread_slots() => self.write_by_flow(batch, packet, place),
            None => None,
        }
    }

    /// Writes the outer headers like `write_fast`, but for a slot with several next hops. This is a
    /// separate function, because a choice between two headers in `write_fast` would cost each
    /// packet four instructions.
    #[cold]
    #[inline(never)]
    fn write_by_flow(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        place: &FastPacket,
    ) -> Option<()> {
        let (slot, hash) = (place.choice.slot, place.hash);
        let (headers, overhead) =
            batch.snapshot.headers_of_flow(slot, place.marks.family, hash, place.ip_len)?;
        self.write_prepared(packet, place, headers, overhead)
    }

    #[inline(always)]
    fn write_prepared(
        &mut self,
        packet: &mut Packet<'_>,
        place: &FastPacket,
        headers: &Prepared<InterfaceId>,
        overhead: usize,
    ) -> Option<()> {
        let (ip_len, l3) = (place.ip_len, place.marks.l3);
        packet.cut_front(packet.start().checked_sub(overhead)?);
        let ip_at = overhead + usize::from(l3);
        if !decrement_ttl(packet.buffer_mut().get_mut(ip_at..)?, place.marks.family) {
            return None;
        }
        // The counters are updated first, because fewer registers are then in use while the headers
        // are written.
        let bytes = packet.frame_len();
        self.count_for(place.choice.slot, place.counted, |pair| {
            pair.packets.add(1);
            pair.bytes.add(bytes as u64);
        });
        packet.set_bounds(0, ip_at + usize::from(ip_len));
        packet.set_interface(headers.beside);
        let identification = if headers.is_identified() { self.identifications.next_v4() } else { 0 };
        let inner = || Inner { len: ip_len, tos: place.tos, flow_hash: place.hash, identification };
        // Each call gets a separate `Inner`, because the compiler would keep a shared value in
        // memory instead of registers.
        let written = match l3 {
            14 => headers.write(packet.buffer_mut(), &inner()),
            _ => headers.write_tagged(packet.buffer_mut(), overhead, l3, &inner()),
        };
        // The subtraction from `packet.start()` above guarantees the headroom.
        debug_assert!(written, "a fast-path packet has room for its headers");
        Some(())
    }

    /// Writes a packet that `write_fast` did not write.
    #[cold]
    #[inline(never)]
    pub(in crate::pipeline) fn write_otherwise(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        place: &FastPacket,
        state: &mut PacketState,
    ) -> Verdict {
        let Ok(parsed) = parse(packet.frame()) else { return Verdict::Drop(DropReason::Malformed) };
        *state = PacketState { parsed, ..place.chosen(state.place) };
        self.write(batch, packet, state)
    }
}
