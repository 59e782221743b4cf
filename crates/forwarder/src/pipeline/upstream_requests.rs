//! The upstream requests of a packet thread and their replies. Each thread owns a share of the
//! source port pool. Stage 1 (classification) recognizes a reply by its destination port and passes
//! the reply to the module that sent the request. These modules are `gather` (keys on several
//! backends), `proxied` (proxied requests), `cache` (fetches of values) and `replicas` (writes to
//! all backends of a key). Upstream requests are sent between batches.
//!
//! All upstream requests of a thread share one table, so that a request ID is not reused while a
//! late reply may still arrive.

use std::net::Ipv6Addr;

use kv_switch::{
    ExchangeError, ExchangeFor, ExchangeId, Expired, GatherConfig, GatherTable, MAX_REPLICAS, Progress,
    Shares, Writes,
};
use packet::protocol;

use super::Core;
use super::keyed::datagram;
use super::return_path::ReturnPath;
use super::state::{Batch, PacketState};
use super::upstream_exchange::{Fetch, PartOf, Passing, UpstreamExchange};
use crate::keyed::GATHER_TIMEOUTS_MS;
use crate::{
    DropReason, Flow, HandoffReason, Now, Origin, Outlet, Packet, SourcePorts, ThreadId, ValueCache, Verdict,
};

/// The configuration of upstream requests on one packet thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamRequests {
    /// The source port pool, which all threads share.
    pub ports: SourcePorts,
    /// The maximum number of pending client requests per service for keys on several backends. All
    /// services together may have 1.5 times as many pending requests. The factor of 1.5 also
    /// applies to `passing` and `writes`.
    pub requests: usize,
    /// The maximum number of pending proxied requests per service.
    pub passing: usize,
    /// The maximum number of pending fetches for the cache.
    pub fetches: usize,
    /// The maximum number of pending client writes to replicated keys, per service.
    pub writes: usize,
    /// A secret that differs between threads and between starts of the process.
    pub seed: [u64; 2],
}

/// The pending upstream requests of one packet thread.
#[derive(Debug)]
pub(super) struct UpstreamTable {
    ports: SourcePorts,
    pub(super) table: GatherTable<ReturnPath, UpstreamExchange>,
    /// The proxied requests of each service.
    passing: Shares,
    /// The split client requests that began in this iteration. The upstream requests for these
    /// client requests are sent before the iteration ends.
    pub(super) begun: Vec<u32>,
    /// The split client requests that are complete. Clients receive the replies to these requests
    /// before the iteration ends.
    pub(super) whole: Vec<u32>,
    pub(super) writes: Writes<ReturnPath>,
    /// The writes that began in this iteration. These writes are sent to backends before the
    /// iteration ends.
    pub(super) begun_writes: Vec<u32>,
    /// The writes whose outcome is known. Clients receive the replies to these writes before the
    /// iteration ends.
    pub(super) decided: Vec<u32>,
    /// The number of frames that are available for new requests. The value is the number of free
    /// frames at the end of the last iteration, minus the frames that are needed by requests that
    /// began since then.
    pub(super) frames: usize,
}

impl UpstreamTable {
    /// Creates the table of one packet thread. Returns `None` if upstream requests are disabled.
    pub(super) fn new(
        own: Option<&UpstreamRequests>,
        thread: ThreadId,
    ) -> Result<Option<Box<Self>>, ExchangeError> {
        let Some(UpstreamRequests { ports, requests, passing, fetches, writes, seed }) = own.copied() else {
            return Ok(None);
        };
        let (passing, [first, second]) = (Shares::new(passing), seed);
        // Writes use their own sequence of nonces, which differs from the sequence of `table`.
        let writes = Writes::new(writes, [first, !second]);
        let timeouts = GATHER_TIMEOUTS_MS.map(|millis| u64::from(millis) * 1_000_000);
        let config = GatherConfig {
            ports: ports.of(thread),
            requests,
            others: passing.total() + fetches + writes.total() * MAX_REPLICAS,
            timeouts: &timeouts,
            seed,
        };
        let table = GatherTable::new(&config)?;
        let requests = Shares::new(requests).total();
        Ok(Some(Box::new(Self {
            ports,
            table,
            passing,
            begun: Vec::with_capacity(requests),
            whole: Vec::with_capacity(requests),
            begun_writes: Vec::with_capacity(writes.total()),
            decided: Vec::with_capacity(writes.total()),
            writes,
            frames: usize::MAX,
        })))
    }

    /// Begins a proxied request. Returns `None` if the table or the share of the service is full.
    pub(super) fn begin_passing(&mut self, now: Now, timeout: usize, passing: Passing) -> Option<ExchangeId> {
        if !self.passing.take(passing.service, 1) {
            return None;
        }
        let begun = self.table.begin_other(now.nanos(), timeout, UpstreamExchange::Passing(passing));
        begun.inspect_err(|_| self.passing.give(passing.service, 1)).ok()
    }

    /// Ends a proxied request.
    pub(super) fn end_passing(&mut self, now: Now, id: ExchangeId) {
        if let Some(UpstreamExchange::Passing(passing)) = self.table.end_other(now.nanos(), id) {
            self.passing.give(passing.service, 1);
        }
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.table.next_due()
    }
}

impl Core {
    /// Runs stage 1 (classification) for a datagram to a port of the source port pool. Returns
    /// `None` if the packet is not such a datagram.
    #[inline]
    pub(super) fn classify_answer(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        flow: &Flow,
        state: &PacketState,
    ) -> Option<Verdict> {
        let own = self.keyed.own.as_deref().filter(|_| flow.protocol == protocol::UDP)?;
        let requester = own.ports.thread_of(flow.destination_port)?;
        let address = Ipv6Addr::from(flow.destination).to_canonical();
        if state.decapsulated_from.is_some() || !batch.snapshot.is_own(address) {
            return None;
        }
        if requester != self.config.thread {
            // A forged reply is dropped here, so that no other thread has to process it.
            if !batch.snapshot.may_answer(&flow.source, flow.source_port) {
                return Some(Verdict::Drop(DropReason::KvAnswerSource));
            }
            return Some(match packet.origin() {
                Origin::Wire => Verdict::ToThread(requester, HandoffReason::Answer),
                // A reply is passed on to a different thread at most once.
                Origin::Thread(..) => Verdict::Drop(DropReason::KvAnswerLate),
            });
        }
        Some(self.take_answer(batch, packet, flow, state).unwrap_or_else(Verdict::Drop))
    }

    #[cold]
    fn take_answer(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        flow: &Flow,
        state: &PacketState,
    ) -> Result<Verdict, DropReason> {
        let payload = datagram(packet, &state.parsed).map(|datagram| datagram.payload());
        // In all supported protocols, the request ID is at the start of the payload.
        let request =
            payload.and_then(|payload| payload.first_chunk()).ok_or(DropReason::KvAnswerMalformed)?;
        let id = ExchangeId { port: flow.destination_port, request: u16::from_be_bytes(*request) };
        let own = self.keyed.own.as_deref_mut().ok_or(DropReason::KvAnswerLate)?;
        match own.table.find(id).ok_or(DropReason::KvAnswerLate)? {
            ExchangeFor::Other(UpstreamExchange::Passing(_)) => {
                self.pass_answer(batch, packet, &state.parsed, id)
            }
            ExchangeFor::Other(&UpstreamExchange::Fetch(number)) => {
                self.take_value(batch, packet, &state.parsed, Fetch { id, number })
            }
            ExchangeFor::Other(&UpstreamExchange::Copy(copy)) => {
                self.take_outcome(batch, packet, &state.parsed, copy)
            }
            ExchangeFor::Part(number) => self.take_part(batch, packet, &state.parsed, PartOf { id, number }),
        }
    }

    /// Sends pending upstream requests, ends expired requests, and sends replies to clients whose
    /// requests are complete.
    #[inline]
    pub(super) fn run_upstream_requests(&mut self, batch: &Batch<'_>, outlet: &mut dyn Outlet) {
        let Some(own) = self.keyed.own.as_deref_mut() else { return };
        own.frames = outlet.free_frames();
        let wants = self.keyed.cache.as_deref().is_some_and(ValueCache::has_wanted);
        if (wants || !own.table.is_idle() || !own.writes.is_empty())
            && let Some(mut own) = self.keyed.own.take()
        {
            self.ask_backends(&mut own, batch, outlet);
            if wants {
                self.fetch_values(&mut own, batch, outlet);
            }
            self.send_copies(&mut own, batch, outlet);
            self.expire(&mut own, batch);
            self.send_replies(&mut own, batch, outlet);
            self.send_outcomes(&mut own, batch, outlet);
            own.frames = outlet.free_frames();
            self.keyed.own = Some(own);
        }
    }

    fn expire(&mut self, own: &mut UpstreamTable, batch: &Batch<'_>) {
        while let Some(expired) = own.table.expire(batch.now.nanos()) {
            match expired {
                Expired::Gather(number, Progress::Complete) => own.whole.push(number),
                Expired::Gather(number, Progress::Failed) => {
                    own.table.end(batch.now.nanos(), number);
                    self.counters.gathers_timed_out.add(1);
                }
                Expired::Gather(_, Progress::Waiting | Progress::Unchanged) => {}
                Expired::Other(UpstreamExchange::Passing(passing)) => {
                    own.passing.give(passing.service, 1);
                    self.counters.proxied_unanswered.add(u64::from(passing.is_unanswered()));
                }
                Expired::Other(UpstreamExchange::Fetch(number)) => self.give_up_value(number),
                Expired::Other(UpstreamExchange::Copy(copy)) => {
                    let answered = own.writes.expire(copy);
                    self.note(own, copy.write, answered);
                }
            }
        }
    }
}
