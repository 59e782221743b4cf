//! Handles writes to replicated keys. The packet thread sends a write to all backends that store
//! the key, and sends the client one reply. Upstream requests and replies are sent between batches.
//! A request whose result depends on the stored value is not supported with replicas, and the
//! client immediately receives an error reply. The protocol formats and acknowledgment rules are in
//! `kv-switch`, and backends are chosen in `key_choice`.
//!
//! A write is sent either to all backends of its key or to none of these backends. The client
//! receives a success reply only after the required number of backends has acknowledged the write.
//! A value on a failover backend expires after `failover.ttl` at the latest.

use std::net::SocketAddr;

use kv_switch::{
    Answered, CopyId, Datagram, MAX_REPLICAS, NewWrite, NotWritten, Outcome, Replica, Request, Requester,
    ShortLife, Target, Written,
};
use packet::{Parsed, udp_checksum_ok, udp_headers_len, write_udp};

use super::Core;
use super::gather::{Question, not_taken, server, target_of};
use super::keyed::datagram;
use super::return_path::{ReturnPath, socket};
use super::state::{Batch, PacketState, Stage};
use super::upstream_exchange::UpstreamExchange;
use super::upstream_requests::UpstreamTable;
use crate::keyed::refused;
use crate::{DropReason, Flow, Keyed, Outlet, Packet, ReplicaRules, Service, SlotId, Verdict};

/// A write that has passed all checks and can be sent to the backends.
struct Wanted<'a> {
    service: &'a Service,
    keyed: &'a Keyed,
    payload: &'a [u8],
    /// The maximum lifetime of the value on failover backends.
    life: Option<ShortLife>,
    way: ReturnPath,
}

impl UpstreamTable {
    /// Begins a write to all backends of its key. After an error, the tables are unchanged.
    fn begin_write(&mut self, batch: &Batch<'_>, wanted: &Wanted<'_>) -> Result<(), DropReason> {
        let &Wanted { service, keyed, payload, life, way } = wanted;
        let rules = keyed.rules.replicas.ok_or(DropReason::NoBackend)?;
        let application = &*keyed.rules.application;
        let ask = application.read(Datagram::whole(payload)).map_err(refused)?;
        let place = keyed.rules.place(application.key(payload, &ask.first, &mut Default::default()));
        let holders = batch.snapshot.holders(service, keyed, place);
        let nobody = Replica { target: Target { server: u32::MAX, room: 0 }, life: None };
        let mut replicas = [nobody; MAX_REPLICAS];
        for (replica, holder) in replicas.iter_mut().zip(holders.each()) {
            let target = target_of(batch, keyed, holder.selection.slot, &way).ok_or(DropReason::NoBackend)?;
            *replica = Replica { target, life: life.filter(|_| !holder.is_own) };
        }
        let count = holders.each().len();
        let left = self.frames.checked_sub(count).ok_or(DropReason::KvReplicaNoFrame)?;
        let request = Request { payload, ask: &ask };
        let replicas = replicas.get(..count).unwrap_or_default();
        let ReplicaRules { ack, timeout, .. } = rules;
        let new = NewWrite { request, replicas, ack, timeout, pool: service.id.0, context: way };
        let mut requester = Requester { table: &mut self.table, now: batch.now.nanos() };
        let write = self.writes.begin(&mut requester, application, new, UpstreamExchange::Copy);
        self.begun_writes.push(write.map_err(not_written)?);
        self.frames = left;
        Ok(())
    }
}

impl Core {
    /// Runs stage 2 (backend selection) for a write to a replicated key.
    #[cold]
    pub(super) fn begin_write(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        state: &PacketState,
    ) -> Result<Verdict, DropReason> {
        self.admit_request(batch, packet, state)?;
        let payload = judged(packet, &state.parsed)?;
        let way = ReturnPath::of(batch, packet, state)?;
        let service = batch.snapshot.service(state.service);
        let keyed = service.keyed.as_deref().ok_or(DropReason::NoBackend)?;
        let life = self.keyed.short_lived.life(&keyed.rules);
        let own = self.keyed.own.as_deref_mut().ok_or(DropReason::KvReplicaFull)?;
        own.begin_write(batch, &Wanted { service, keyed, payload, life, way })?;
        self.counters.replicas_begun.add(1);
        Ok(Verdict::Taken)
    }

    /// Runs stage 3 (rewriting) for a packet without a chosen backend. An unsupported request to a
    /// replicated key receives an error reply. All other packets are dropped.
    #[cold]
    pub(super) fn write_without_slot(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        state: &PacketState,
    ) -> Verdict {
        match state.stage {
            Stage::Refuse => self.refuse_write(batch, packet, state).unwrap_or_else(Verdict::Drop),
            _ => Verdict::Drop(DropReason::NoBackend),
        }
    }

    /// Turns an unsupported request into an error reply of its protocol, which is sent back to the
    /// client.
    fn refuse_write(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        state: &PacketState,
    ) -> Result<Verdict, DropReason> {
        let payload = judged(packet, &state.parsed)?;
        let keyed = batch.snapshot.service(state.service).keyed.as_deref();
        let application = &*keyed.ok_or(DropReason::NoBackend)?.rules.application;
        let ask = application.read(Datagram::whole(payload)).map_err(refused)?;
        let mut answer = [0; LONGEST_ERROR];
        let length = application.write_unsupported(&Request { payload, ask: &ask }, &mut answer);
        let answer = length.and_then(|length| answer.get(..length)).ok_or(DropReason::KvReplicaRefused)?;
        let way = ReturnPath::of(batch, packet, state)?;
        build_answer(packet, &way, &|out| {
            out.get_mut(..answer.len())?.copy_from_slice(answer);
            Some(answer.len())
        })
        .ok_or(DropReason::NoHeadRoom)?;
        self.counters.replicas_refused.add(1);
        Ok(Verdict::Reply)
    }

    /// Processes a backend's reply to a write.
    pub(super) fn take_outcome(
        &mut self,
        batch: &Batch<'_>,
        packet: &Packet<'_>,
        parsed: &Parsed,
        copy: CopyId,
    ) -> Result<Verdict, DropReason> {
        let mut own = self.keyed.own.take().ok_or(DropReason::KvAnswerLate)?;
        let answered = answered(&mut own, batch, packet, parsed, copy);
        if let Ok(answered) = answered {
            self.note(&mut own, copy.write, answered);
        }
        self.keyed.own = Some(own);
        answered.map(|_| Verdict::Taken)
    }

    /// Updates the counters and queues after a backend has replied to a write or timed out.
    pub(super) fn note(&self, own: &mut UpstreamTable, write: u32, answered: Answered) {
        self.counters.replicas_disagreed.add(u64::from(answered.differs));
        match answered.written {
            Written::Decided(_) => own.decided.push(write),
            Written::Lost => self.counters.replicas_unanswered.add(1),
            Written::Waiting => {}
        }
    }

    /// Sends the writes that began in this iteration to their backends.
    pub(super) fn send_copies(
        &mut self,
        own: &mut UpstreamTable,
        batch: &Batch<'_>,
        outlet: &mut dyn Outlet,
    ) {
        for at in 0..own.begun_writes.len() {
            let Some(write) = own.begun_writes.get(at).copied() else { break };
            for part in 0..own.writes.parts(write) {
                let copy = CopyId { write, part };
                let build =
                    &mut |packet: &mut Packet<'_>| self.build_copy(batch, packet, own, copy).is_some();
                if outlet.originate(build).is_err() {
                    let mut requester = Requester { table: &mut own.table, now: batch.now.nanos() };
                    let answered = own.writes.give_up(&mut requester, copy);
                    self.note(own, write, answered);
                }
            }
        }
        own.begun_writes.clear();
    }

    fn build_copy(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        own: &UpstreamTable,
        copy: CopyId,
    ) -> Option<()> {
        let way = own.writes.context(copy.write)?;
        let (service, keyed) = way.keyed(batch.snapshot)?;
        let slot = SlotId(own.writes.server(copy)?);
        let question = Question { service, keyed, slot, own: way.own, vip: way.vip() };
        self.build_question(batch, packet, &question, &|out| {
            own.writes.write_copy(&*keyed.rules.application, copy, out)
        })
    }

    /// Sends clients the replies to their completed writes.
    pub(super) fn send_outcomes(
        &mut self,
        own: &mut UpstreamTable,
        batch: &Batch<'_>,
        outlet: &mut dyn Outlet,
    ) {
        for at in 0..own.decided.len() {
            let Some(write) = own.decided.get(at).copied() else { break };
            let is_answered =
                !own.writes.wants_answer(write) || send_outcome(own, batch, outlet, write).is_some();
            let counter = match own.writes.outcome(write) {
                _ if !is_answered => &self.counters.replicas_unanswered,
                Some(Outcome::Refused(_)) => &self.counters.replicas_failed,
                _ => &self.counters.replicas_acknowledged,
            };
            counter.add(1);
            own.writes.answered(write);
        }
        own.decided.clear();
    }
}

/// Processes a backend's reply and returns the new state of the write.
fn answered(
    own: &mut UpstreamTable,
    batch: &Batch<'_>,
    packet: &Packet<'_>,
    parsed: &Parsed,
    copy: CopyId,
) -> Result<Answered, DropReason> {
    let way = own.writes.context(copy.write).ok_or(DropReason::KvAnswerLate)?;
    let (_, keyed) = way.keyed(batch.snapshot).ok_or(DropReason::KvAnswerLate)?;
    let flow = Flow::of(packet.frame(), parsed);
    let from = socket(flow.source, flow.source_port);
    let asked = own.writes.server(copy).and_then(|slot| batch.snapshot.slots().get(slot as usize));
    let asked = asked.and_then(|slot| server(keyed, slot, way.vip()));
    if asked != Some(from) || socket(flow.destination, 0).ip() != way.own {
        return Err(DropReason::KvAnswerSource);
    }
    let payload = judged(packet, parsed).map_err(|_| DropReason::KvAnswerMalformed)?;
    let (now, application) = (batch.now.nanos(), &*keyed.rules.application);
    let answered =
        own.writes.answer(&mut Requester { table: &mut own.table, now }, application, copy, payload);
    answered.map_err(not_taken)
}

fn send_outcome(own: &UpstreamTable, batch: &Batch<'_>, outlet: &mut dyn Outlet, write: u32) -> Option<()> {
    let way = own.writes.context(write)?;
    let (_, keyed) = way.keyed(batch.snapshot)?;
    let outcome = |out: &mut [u8]| own.writes.write_outcome(&*keyed.rules.application, write, out);
    outlet.originate(&mut |packet| build_answer(packet, way, &outcome).is_some()).ok()
}

/// Builds the reply to a client at the front of the packet buffer.
fn build_answer(
    packet: &mut Packet<'_>,
    way: &ReturnPath,
    write: &dyn Fn(&mut [u8]) -> Option<usize>,
) -> Option<()> {
    let link = way.link();
    let payload = link.len() + udp_headers_len(way.family);
    let length = write(packet.buffer_mut().get_mut(payload..)?)?;
    packet.buffer_mut().get_mut(..link.len())?.copy_from_slice(link);
    packet.set_bounds(0, payload + length);
    packet.set_interface(way.interface);
    let ends: [SocketAddr; 2] = [way.vip(), way.client()];
    write_udp(packet.frame_mut().get_mut(link.len()..)?, ends[0], ends[1]).then_some(())
}

/// Returns the payload of a datagram whose checksum is correct. The checksum is verified here,
/// because this machine generates the reply itself.
fn judged<'a>(packet: &'a Packet<'_>, parsed: &Parsed) -> Result<&'a [u8], DropReason> {
    let payload = datagram(packet, parsed).map(|datagram| datagram.payload());
    payload.filter(|_| udp_checksum_ok(packet.frame(), parsed)).ok_or(DropReason::Malformed)
}

fn not_written(why: NotWritten) -> DropReason {
    match why {
        NotWritten::Unsupported => DropReason::KvReplicaRefused,
        NotWritten::NoServer => DropReason::NoBackend,
        NotWritten::TooLong => DropReason::KvReplicaTooLong,
        NotWritten::Full => DropReason::KvReplicaFull,
    }
}

/// The maximum length of an error reply, including the protocol header, in bytes.
const LONGEST_ERROR: usize = 128;
