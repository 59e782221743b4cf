//! What an I/O thread decides in software steering: by which packet thread a packet is to be processed.
//!
//! In: a batch off the wire. Out: a verdict each, always [`Verdict::ToThread`]; no byte changes.
//! Not here: what happens when that thread's ring is full (`datapath`), and all else of a packet: nothing is dropped here, so that
//! captures at packet threads have everything.
//! Invariant: packets of a flow are for one thread, whatever carries them and however they are read; those that are pieces of a
//! datagram, for the one that gathers it.
//! Source: paper §3.2.

use std::sync::Arc;

use classifier::Ends;
use packet::{Family, Fragment, Parsed, Plain, icmp_error, parse, parse_ip, protocol};

use super::ask_for_headers;
use super::decapsulation::{may_carry, opened_here};
use super::fragments::datagram_protocol;
use super::messages::Messages;
use super::threads::{gatherer, thread_of_flow};
use crate::{
    DropReason, Flow, Forward, HandoffReason, HashPolicy, Live, Now, Outlet, OwnPorts, Packet, Reader,
    Snapshot, ThreadCounters, ThreadId, Verdict,
};
use sip_lanes::LaneHashers;

/// What an I/O thread's steering is made of.
#[derive(Clone, Copy, Debug)]
pub struct SteeringConfig {
    /// How many packet threads there are, counted from 0.
    pub threads: u16,
    /// The most packets in a batch.
    pub max_batch: usize,
    /// How flows are hashed.
    pub hashers: LaneHashers,
    /// The ports that packet threads ask backends from.
    pub own_ports: Option<OwnPorts>,
}

/// The forwarder of an I/O thread.
#[derive(Debug)]
pub struct SoftwareSteering {
    config: SteeringConfig,
    reader: Reader,
    counters: Arc<ThreadCounters>,
    v4: Messages<2>,
    v6: Messages<5>,
    /// The thread for the next packet that has no flow.
    next: u16,
}

impl SoftwareSteering {
    /// Takes a batch of scratch space. Keys and tunnels are those of `live`'s snapshot.
    #[must_use]
    pub fn new(config: SteeringConfig, live: &Live, counters: Arc<ThreadCounters>) -> Self {
        let (v4, v6) = (Messages::new(config.max_batch), Messages::new(config.max_batch));
        Self { config, reader: live.reader(), counters, v4, v6, next: 0 }
    }
}

impl Forward for SoftwareSteering {
    fn process(&mut self, _: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]) {
        assert_eq!(packets.len(), verdicts.len(), "one verdict a packet");
        ask_for_headers(packets);
        let Self { config, reader, v4, v6, next, .. } = self;
        let config = &*config;
        let SteeringConfig { threads, hashers, .. } = config;
        let snapshot = reader.load();
        v4.clear();
        v6.clear();
        for (place, (packet, verdict)) in packets.iter().zip(verdicts.iter_mut()).enumerate() {
            let plain = Plain::read(packet.frame())
                .filter(|plain| !may_be_gue(snapshot, plain) && !may_be_answer(config, snapshot, plain));
            let Some(plain) = plain else {
                let steered = steer(snapshot, packet.frame(), config);
                *verdict = steered.unwrap_or_else(|| in_turn(next, *threads));
                continue;
            };
            let ends = Ends { source: plain.source, destination: plain.destination, ports: plain.ports };
            match plain.family {
                Family::V4 => v4.push(place, ends.message_v4(HashPolicy::FiveTuple, plain.protocol)),
                Family::V6 => v6.push(place, ends.message_v6(HashPolicy::FiveTuple, plain.protocol)),
            }
        }
        let key = snapshot.hasher.key();
        for hashed in [v4.hash(key, hashers.two), v6.hash(key, hashers.five)] {
            for (place, hash) in hashed.places.iter().zip(hashed.hashes) {
                if let Some(verdict) = verdicts.get_mut(usize::from(*place)) {
                    *verdict = to_flow(thread_of_flow(*hash, *threads));
                }
            }
        }
    }

    /// Moves on to the current snapshot, so that a replaced one can be freed though no packet comes.
    fn poll(&mut self, _: Now, _: &mut dyn Outlet) {
        self.reader.load();
    }

    fn failed(&mut self, reason: DropReason) {
        self.counters.dropped(reason);
    }

    fn max_batch(&self) -> usize {
        self.config.max_batch
    }

    fn hold_slots(&self) -> usize {
        0
    }
}

/// Whether a plain packet may be a tunnel's: of those with ports only GUE is.
#[inline(always)]
fn may_be_gue(snapshot: &Snapshot, plain: &Plain) -> bool {
    snapshot.opens && plain.protocol == protocol::UDP && plain.ports & 0xffff == u32::from(protocol::GUE_PORT)
}

/// Whether a plain packet may be for a port that a packet thread asks backends from.
#[inline(always)]
fn may_be_answer(config: &SteeringConfig, snapshot: &Snapshot, plain: &Plain) -> bool {
    #[expect(clippy::cast_possible_truncation, reason = "the destination port is the lower half")]
    let port = plain.ports as u16;
    let owner = || config.own_ports.and_then(|ports| ports.thread_of(port));
    snapshot.has_own_requests() && plain.protocol == protocol::UDP && owner().is_some()
}

/// What cannot be read: each thread in its turn drops some.
#[cold]
fn in_turn(next: &mut u16, threads: u16) -> Verdict {
    *next = if *next + 1 < threads { *next + 1 } else { 0 };
    to_flow(ThreadId(*next))
}

/// Of any packet, or of what is in it if this machine opens it. `None`: it can't be read.
#[inline(never)]
fn steer(snapshot: &Snapshot, frame: &[u8], config: &SteeringConfig) -> Option<Verdict> {
    let (parsed, threads) = (parse(frame).ok()?, config.threads);
    if let Some(asker) = asker(snapshot, frame, &parsed, config) {
        return Some(Verdict::ToThread(asker, HandoffReason::Answer));
    }
    if snapshot.opens
        && may_carry(&parsed)
        && let Some((tunnelled, _)) = opened_here(snapshot, frame, &parsed)
    {
        let outer = frame.get(usize::from(parsed.l3)..usize::from(parsed.end))?;
        let inner = outer.get(tunnelled.inner..tunnelled.end)?;
        return Some(steer_parsed(snapshot, inner, &parse_ip(inner).ok()?, threads));
    }
    Some(steer_parsed(snapshot, frame, &parsed, threads))
}

/// The thread that has asked from the port that a packet is for.
fn asker(snapshot: &Snapshot, frame: &[u8], parsed: &Parsed, config: &SteeringConfig) -> Option<ThreadId> {
    let is_datagram = parsed.protocol == protocol::UDP && parsed.fragment == Fragment::None;
    let thread = config.own_ports.filter(|_| is_datagram)?.thread_of(parsed.dst_port)?;
    let own = std::net::Ipv6Addr::from(parsed.addresses(frame).dst).to_canonical();
    snapshot.is_own(own).then_some(thread)
}

fn steer_parsed(snapshot: &Snapshot, frame: &[u8], parsed: &Parsed, threads: u16) -> Verdict {
    if parsed.fragment != Fragment::None {
        let protocol = datagram_protocol(frame, parsed);
        let three = snapshot.hasher.three_tuple(&parsed.addresses(frame), protocol);
        let reason = HandoffReason::Fragment { decapsulated_from: None };
        return Verdict::ToThread(gatherer(three, threads), reason);
    }
    let flow = quoted_flow(frame, parsed).unwrap_or_else(|| Flow::of(frame, parsed));
    to_flow(thread_of_flow(snapshot.hasher.hash(HashPolicy::FiveTuple, &flow), threads))
}

/// The flow whose packet an ICMP error quotes: the client's, so the quoted tuple reversed.
fn quoted_flow(frame: &[u8], parsed: &Parsed) -> Option<Flow> {
    let quoted = icmp_error(frame, parsed)?.ok()?.quoted;
    let (vip_port, client_port) = quoted.ports?;
    Some(Flow {
        source: quoted.addresses.dst,
        destination: quoted.addresses.src,
        source_port: client_port,
        destination_port: vip_port,
        protocol: quoted.protocol,
    })
}

#[inline]
const fn to_flow(thread: ThreadId) -> Verdict {
    Verdict::ToThread(thread, HandoffReason::Steered { decapsulated_from: None })
}
