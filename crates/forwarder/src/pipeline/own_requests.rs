//! What a packet thread asks backends itself, and what they say to that.
//!
//! In: what comes to this thread's share of the ports that requests of the machine's own leave from; the time. Out: whose answer it
//! is; between batches, what is due.
//! Not here: requests for keys of several backends (`gather`), those that pass both ways (`through`), values for the cache (`cache`),
//! writes for all backends of a key (`replicas`), which are all that is asked.
//! Invariant: one table of exchanges for all of it, so that no id is used twice within the time that a late answer needs.

use std::net::Ipv6Addr;

use kv_switch::{
    ExchangeError, ExchangeFor, ExchangeId, Expired, GatherConfig, GatherTable, MAX_REPLICAS, Progress,
    Writes,
};
use packet::protocol;

use super::Core;
use super::keyed::datagram;
use super::own_exchange::{Fetch, OwnExchange, PartOf};
use super::state::{Batch, PacketState};
use super::way_back::WayBack;
use crate::keyed::GATHER_TIMEOUTS_MS;
use crate::{
    DropReason, Flow, HandoffReason, Origin, Outlet, OwnPorts, Packet, ThreadId, ValueCache, Verdict,
};

/// What a packet thread asks backends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRequests {
    /// The ports of all threads.
    pub ports: OwnPorts,
    /// Clients' requests that are gathered at once.
    pub requests: usize,
    /// Clients' requests that wait at once for an answer that passes through.
    pub passing: usize,
    /// Values for the cache that are asked for at once.
    pub fetches: usize,
    /// Clients' writes that all backends of a key carry out at once.
    pub writes: usize,
    /// A secret of this thread and this start of the process alone.
    pub seed: [u64; 2],
}

/// One thread's requests of its own.
#[derive(Debug)]
pub(super) struct OwnTable {
    ports: OwnPorts,
    pub(super) table: GatherTable<WayBack, OwnExchange>,
    /// Begun in this turn: backends are asked before it ends.
    pub(super) begun: Vec<u32>,
    /// All is there: the reply is sent before this turn ends.
    pub(super) whole: Vec<u32>,
    pub(super) writes: Writes<WayBack>,
    /// As `begun`, of writes.
    pub(super) begun_writes: Vec<u32>,
    /// As `whole`, of writes whose clients wait for a reply.
    pub(super) decided: Vec<u32>,
    /// Free frames when the last turn ended, less those that requests begun since will take.
    pub(super) frames: usize,
}

impl OwnTable {
    /// A thread's; `None`: it asks nothing.
    pub(super) fn new(
        own: Option<&OwnRequests>,
        thread: ThreadId,
    ) -> Result<Option<Box<Self>>, ExchangeError> {
        let Some(OwnRequests { ports, requests, passing, fetches, writes, seed }) = own.copied() else {
            return Ok(None);
        };
        let timeouts = GATHER_TIMEOUTS_MS.map(|millis| u64::from(millis) * 1_000_000);
        let config = GatherConfig {
            ports: ports.of(thread),
            requests,
            others: passing + fetches + writes * MAX_REPLICAS,
            timeouts: &timeouts,
            seed,
        };
        let (begun, whole) = (Vec::with_capacity(requests), Vec::with_capacity(requests));
        let table = GatherTable::new(&config)?;
        let [first, second] = seed;
        Ok(Some(Box::new(Self {
            ports,
            table,
            begun,
            whole,
            // Nonces of another row than the table's own.
            writes: Writes::new(writes, [first, !second]),
            begun_writes: Vec::with_capacity(writes),
            decided: Vec::with_capacity(writes),
            frames: usize::MAX,
        })))
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        self.table.next_due()
    }
}

impl Core {
    /// Stage 1 for a datagram to a port that a thread of this machine asks from; `None`: it is for none.
    #[inline]
    pub(super) fn classify_answer(
        &mut self,
        batch: &Batch<'_>,
        packet: &mut Packet<'_>,
        flow: &Flow,
        state: &PacketState,
    ) -> Option<Verdict> {
        let own = self.keyed.own.as_deref().filter(|_| flow.protocol == protocol::UDP)?;
        let asker = own.ports.thread_of(flow.destination_port)?;
        let address = Ipv6Addr::from(flow.destination).to_canonical();
        if state.decapsulated_from.is_some() || !batch.snapshot.is_own(address) {
            return None;
        }
        if asker != self.config.thread {
            return Some(match packet.origin() {
                Origin::Wire => Verdict::ToThread(asker, HandoffReason::Answer),
                // Nobody hands it on twice.
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
        // Whatever the protocol: those that ask have their id there.
        let request =
            payload.and_then(|payload| payload.first_chunk()).ok_or(DropReason::KvAnswerMalformed)?;
        let id = ExchangeId { port: flow.destination_port, request: u16::from_be_bytes(*request) };
        let own = self.keyed.own.as_deref_mut().ok_or(DropReason::KvAnswerLate)?;
        match own.table.find(id).ok_or(DropReason::KvAnswerLate)? {
            ExchangeFor::Other(OwnExchange::Passing(_)) => self.pass_answer(batch, packet, &state.parsed, id),
            ExchangeFor::Other(&OwnExchange::Fetch(number)) => {
                self.take_value(batch, packet, &state.parsed, Fetch { id, number })
            }
            ExchangeFor::Other(&OwnExchange::Copy(copy)) => {
                self.take_outcome(batch, packet, &state.parsed, copy)
            }
            ExchangeFor::Part(number) => self.take_part(batch, packet, &state.parsed, PartOf { id, number }),
        }
    }

    /// Asks backends for what was begun, ends what has waited too long, and replies where all is there.
    #[inline]
    pub(super) fn run_own_requests(&mut self, batch: &Batch<'_>, outlet: &mut dyn Outlet) {
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

    fn expire(&mut self, own: &mut OwnTable, batch: &Batch<'_>) {
        while let Some(expired) = own.table.expire(batch.now.nanos()) {
            match expired {
                Expired::Gather(number, Progress::Complete) => own.whole.push(number),
                Expired::Gather(number, Progress::Failed) => {
                    own.table.end(batch.now.nanos(), number);
                    self.counters.gathers_timed_out.add(1);
                }
                Expired::Gather(_, Progress::Waiting | Progress::Unchanged) => {}
                Expired::Other(OwnExchange::Passing(passing)) => {
                    self.counters.through_unanswered.add(u64::from(passing.is_unanswered()));
                }
                Expired::Other(OwnExchange::Fetch(number)) => self.give_up_value(number),
                Expired::Other(OwnExchange::Copy(copy)) => {
                    let answered = own.writes.expire(copy);
                    self.note(own, copy.write, answered);
                }
            }
        }
    }
}
