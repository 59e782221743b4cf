//! Software steering on an I/O thread. The I/O thread chooses a packet thread for each packet from
//! the wire, so the verdict is always [`Verdict::ToThread`]. Packets are neither changed nor
//! dropped here, so captures on packet threads include every packet. The `engine` crate handles
//! full mailboxes of packet threads.
//!
//! All packets of a flow go to the same thread, whether they are tunneled or not. All fragments of
//! a datagram go to the thread that collects the datagram's fragments.
//!
//! See the Maglev paper, §3.2.

use std::sync::Arc;

use classifier::Ends;
use packet::{Addresses, Family, FastHeaders, Fragment, Parsed, icmp_error, parse, parse_ip, protocol};

use super::ask_for_headers;
use super::decapsulation::{decapsulated_here, may_carry};
use super::fragments::datagram_protocol;
use super::messages::Messages;
use super::threads::{gatherer, thread_of_flow};
use crate::{
    DropReason, Flow, Forward, HandoffReason, HashPolicy, Live, Now, Outlet, Packet, Reader, Snapshot,
    SourcePorts, ThreadCounters, ThreadId, Verdict,
};
use sip_lanes::LaneHashers;

/// The configuration of software steering on an I/O thread.
#[derive(Clone, Copy, Debug)]
pub struct SteeringConfig {
    /// The number of packet threads.
    pub threads: u16,
    /// The maximum number of packets in a batch.
    pub max_batch: usize,
    /// The hash functions that compute the flow hashes of several flows at a time.
    pub hashers: LaneHashers,
    /// The source port pool for upstream requests, or `None` if upstream requests are disabled.
    pub source_ports: Option<SourcePorts>,
}

/// The forwarder of an I/O thread.
#[derive(Debug)]
pub struct SoftwareSteering {
    config: SteeringConfig,
    reader: Reader,
    counters: Arc<ThreadCounters>,
    v4: Messages<2>,
    v6: Messages<5>,
    /// The packet thread that receives the next unparsable packet.
    next: u16,
}

impl SoftwareSteering {
    /// Creates the forwarder and allocates the memory for one batch. `live` provides the snapshots,
    /// which contain the hash key and the tunnel sources.
    #[must_use]
    pub fn new(config: SteeringConfig, live: &Live, counters: Arc<ThreadCounters>) -> Self {
        let (v4, v6) = (Messages::new(config.max_batch), Messages::new(config.max_batch));
        Self { config, reader: live.reader(), counters, v4, v6, next: 0 }
    }
}

impl Forward for SoftwareSteering {
    fn process(&mut self, _: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]) {
        assert_eq!(packets.len(), verdicts.len(), "a batch needs one verdict per packet");
        ask_for_headers(packets);
        let Self { config, reader, v4, v6, next, .. } = self;
        let config = &*config;
        let SteeringConfig { threads, hashers, .. } = config;
        let snapshot = reader.load();
        v4.clear();
        v6.clear();
        for (place, (packet, verdict)) in packets.iter().zip(verdicts.iter_mut()).enumerate() {
            let headers = FastHeaders::read(packet.frame()).filter(|headers| {
                !may_be_gue(snapshot, headers) && !may_be_answer(config, snapshot, headers)
            });
            let Some(headers) = headers else {
                let steered = steer(snapshot, packet.frame(), config);
                *verdict = steered.unwrap_or_else(|| in_turn(next, *threads));
                continue;
            };
            let ends =
                Ends { source: headers.source, destination: headers.destination, ports: headers.ports };
            match headers.family {
                Family::V4 => v4.push(place, ends.message_v4(HashPolicy::FiveTuple, headers.protocol)),
                Family::V6 => v6.push(place, ends.message_v6(HashPolicy::FiveTuple, headers.protocol)),
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

    /// Loads the current snapshot, so that a replaced snapshot can be freed even if no packets
    /// arrive.
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

/// Returns `true` if a fast-path packet may be a GUE packet. GUE packets are the only tunnel
/// packets with ports.
#[inline(always)]
fn may_be_gue(snapshot: &Snapshot, headers: &FastHeaders) -> bool {
    snapshot.opens
        && headers.protocol == protocol::UDP
        && headers.ports & 0xffff == u32::from(protocol::GUE_PORT)
}

/// Returns `true` if a fast-path packet may be a reply to an upstream request.
#[inline(always)]
fn may_be_answer(config: &SteeringConfig, snapshot: &Snapshot, headers: &FastHeaders) -> bool {
    #[expect(clippy::cast_possible_truncation, reason = "the low 16 bits are the destination port")]
    let port = headers.ports as u16;
    let owner = || config.source_ports.and_then(|ports| ports.thread_of(port));
    snapshot.has_upstream_requests() && headers.protocol == protocol::UDP && owner().is_some()
}

/// Distributes packets that cannot be parsed to the packet threads in round-robin order. The packet
/// threads drop and count these packets.
#[cold]
fn in_turn(next: &mut u16, threads: u16) -> Verdict {
    *next = if *next + 1 < threads { *next + 1 } else { 0 };
    to_flow(ThreadId(*next))
}

/// Steers a packet by its flow. If this machine decapsulates the packet, the flow of the inner
/// packet is used. Returns `None` if the packet cannot be parsed.
#[inline(never)]
fn steer(snapshot: &Snapshot, frame: &[u8], config: &SteeringConfig) -> Option<Verdict> {
    let (parsed, threads) = (parse(frame).ok()?, config.threads);
    if let Some(requester) = requester(snapshot, frame, &parsed, config) {
        return Some(Verdict::ToThread(requester, HandoffReason::Answer));
    }
    if snapshot.opens
        && may_carry(&parsed)
        && let Some((tunnelled, _)) = decapsulated_here(snapshot, frame, &parsed)
    {
        let outer = frame.get(usize::from(parsed.l3)..usize::from(parsed.end))?;
        let inner = outer.get(tunnelled.inner..tunnelled.end)?;
        return Some(steer_parsed(snapshot, inner, &parse_ip(inner).ok()?, threads));
    }
    Some(steer_parsed(snapshot, frame, &parsed, threads))
}

/// Returns the thread that uses the destination port of this packet as a source port for upstream
/// requests. Returns `None` if no backend sends replies from the source of this packet. The packet
/// is then steered by its flow, and the packet thread drops it.
fn requester(
    snapshot: &Snapshot,
    frame: &[u8],
    parsed: &Parsed,
    config: &SteeringConfig,
) -> Option<ThreadId> {
    let is_datagram = parsed.protocol == protocol::UDP && parsed.fragment == Fragment::None;
    let thread = config.source_ports.filter(|_| is_datagram)?.thread_of(parsed.dst_port)?;
    let Addresses { src, dst } = parsed.addresses(frame);
    let is_own = snapshot.is_own(std::net::Ipv6Addr::from(dst).to_canonical());
    (is_own && snapshot.may_answer(&src, parsed.src_port)).then_some(thread)
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

/// Returns the client flow that an ICMP error refers to. Its 5-tuple is the quoted packet's 5-tuple
/// with source and destination swapped.
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
