//! The snapshots of the benchmark rows. The module `traffic` generates their packets.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::Arc;

use forwarder::{
    Binding, CacheRules, Forwarding, Guard, HashKey, HashPolicy, KeyFailover, KeyPath, KeyRules, Keyed,
    NextHopMode, Parts, Placement, Prefix, PrefixGroup, PrefixSet, Snapshot, SourceLimit, Suffix, Trace,
    TraceKey, TunnelProtocols, TunnelSource, TunnelSourceKind, VipAddress,
};
use kv_switch::{Memcached, Routes};
use packet::{Encapsulation, Family, Mac, Outer, Template};

use crate::{VIP, VIP6, binding, copies, parts};

/// The way in which the snapshot of a row differs from the default snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum With {
    Nothing,
    V6,
    /// The VIP also serves UDP port 443, in addition to its TCP ports.
    Udp,
    DenyList(u32),
    Limits,
    Tracing,
    Policy(HashPolicy),
    Encapsulation(Headers),
    /// The VIP is matched by prefix and suffix instead of by its full address.
    Prefixes,
    Reflect,
    /// Packets arrive from an upstream tunnel over GRE.
    Tunnelled,
    /// The service is UDP port 11211, and the key of a memcached request chooses the backend.
    Keyed,
    /// Like `Keyed`, but all requested values are cached. The variant contains the length of a
    /// cached value in bytes.
    Copied(usize),
}

/// The encapsulation of packets to backends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    pub(crate) kind: Encapsulation,
    pub(crate) outer_v6: bool,
    pub(crate) dont_fragment: bool,
    pub(crate) source_prefix: bool,
}

impl Headers {
    pub(crate) const fn of(kind: Encapsulation) -> Self {
        Self { kind, outer_v6: false, dont_fragment: true, source_prefix: false }
    }

    fn template(self, number: u8, inner: Family) -> Template {
        let destination = Ipv4Addr::new(198, 18, 1, number);
        let outer = if self.outer_v6 {
            let destination = Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, number.into());
            Outer::V6 { source: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), destination }
        } else {
            Outer::V4 { source: Ipv4Addr::new(192, 0, 2, 1), destination }
        };
        let template = Template::new(self.kind, outer, inner, self.dont_fragment);
        if !self.source_prefix {
            return template;
        }
        template
            .with_source(Ipv4Addr::new(198, 51, 100, 0).into(), 28)
            .expect("the source prefix is valid for IPv4")
    }
}

impl With {
    /// # Panics
    /// Does not panic, because all parts of the snapshot are valid.
    pub(crate) fn snapshot(self) -> Snapshot {
        let mut parts = parts();
        let guard = match self {
            Self::DenyList(prefixes) => Some(deny(prefixes)),
            Self::Limits => Some(limits()),
            _ => None,
        };
        for service in &mut parts.services {
            service.guard = guard.clone().map(Arc::new);
            if let Self::Policy(policy) = self {
                service.policy = policy;
            }
        }
        self.change(&mut parts);
        let snapshot = Snapshot::new(parts).expect("the parts are valid");
        snapshot.with_trace(matches!(self, Self::Tracing).then(trace))
    }

    fn change(self, parts: &mut Parts) {
        match self {
            Self::V6 => parts.bindings = [80, 443].map(|port| binding(VIP6.into(), port)).into(),
            Self::Udp => parts.bindings.push(Binding { protocol: 17, ..binding(VIP.into(), 443) }),
            Self::Encapsulation(headers) => {
                for (number, slot) in (0..).zip(&mut parts.slots) {
                    let template = |inner| headers.template(number, inner);
                    slot.forwarding = match headers.kind {
                        Encapsulation::L2 => Forwarding::L2,
                        _ => Forwarding::Tunnel { v4: template(Family::V4), v6: template(Family::V6) },
                    };
                }
            }
            Self::Prefixes => by_prefix(parts),
            Self::Reflect => {
                parts.next_hop = NextHopMode::Reflect {
                    gateways: [Mac([2, 0, 0, 0, 0, 9])].into(),
                    tagging: Box::default(),
                };
            }
            Self::Tunnelled => parts.tunnels = vec![encapsulator()],
            Self::Keyed => by_key(parts, None),
            Self::Copied(_) => by_key(parts, Some(copies::rules(&parts.hash_key))),
            _ => {}
        }
    }
}

/// Configures the snapshot like `kv = { protocol = "memcached", clients = ["198.18.0.0/15"] }`.
fn by_key(parts: &mut Parts, cache: Option<CacheRules>) {
    let rules = KeyRules {
        application: Box::new(Memcached::new(32)),
        clients: PrefixSet::new([(Ipv4Addr::new(198, 18, 0, 0).into(), 15)]),
        hash: KeyRules::maglev_hash(&parts.hash_key),
        routes: Routes::build(&[], &[]).expect("an empty list is valid"),
        failover: KeyFailover::Next,
        failover_ttl: Some(10),
        path: KeyPath::Direct,
        gather: None,
        cache,
        replicas: None,
    };
    let placements = [Placement::Maglev { all: None }].into();
    let keyed = Arc::new(Keyed { rules: Arc::new(rules), pools: [].into(), placements });
    for service in &mut parts.services {
        (service.policy, service.keyed) = (HashPolicy::Key, Some(Arc::clone(&keyed)));
    }
    parts.bindings = vec![Binding { protocol: 17, ..binding(VIP.into(), 11_211) }];
}

fn by_prefix(parts: &mut Parts) {
    let prefix = Prefix::new(Ipv4Addr::new(203, 0, 113, 0).into(), 24)
        .expect("the prefix has no bits after its length");
    parts.groups = vec![PrefixGroup { name: "edge".into(), prefixes: vec![prefix] }];
    let suffix = Suffix::new(Ipv4Addr::new(0, 0, 0, 10).into(), 8).expect("the suffix length is valid");
    for binding in &mut parts.bindings {
        binding.address = VipAddress::Suffix { group: 0, suffix };
    }
}

fn encapsulator() -> TunnelSource {
    TunnelSource {
        prefix: Prefix::new(Ipv4Addr::from(ENCAPSULATOR).into(), 32).expect("an address is a valid prefix"),
        carriers: TunnelProtocols::GRE,
        kind: TunnelSourceKind::UpstreamTunnel,
    }
}

/// Returns the frame with the GRE header of an upstream tunnel.
pub(crate) fn tunnelled(frame: [u8; 60]) -> [u8; 84] {
    let mut out = [0; 84];
    out[..14].copy_from_slice(&frame[..14]);
    out[14..24].copy_from_slice(&[0x45, 0, 0, 70, 0, 0, 0x40, 0, 64, 47]);
    out[26..30].copy_from_slice(&ENCAPSULATOR);
    out[30..34].copy_from_slice(&[192, 0, 2, 1]);
    out[34..38].copy_from_slice(&[0, 0, 8, 0]);
    out[38..].copy_from_slice(&frame[14..]);
    out
}

/// Returns a deny list with this number of prefixes. The prefixes are scattered over the IPv4
/// address space but do not cover the clients.
fn deny(prefixes: u32) -> Guard {
    let scattered = (0..prefixes).map(|n| Ipv4Addr::from_bits(n.wrapping_mul(0x9e37_79b1)));
    let others = scattered.filter(|address| address.octets()[0] != 198);
    Guard {
        deny: Some(Arc::new(PrefixSet::new(others.map(|address| (address.into(), 28))))),
        ..Guard::default()
    }
}

/// Returns rate limits that the benchmark never reaches. A batch of 64 packets in 10 us is a rate
/// of 6,400,000 packets per second.
fn limits() -> Guard {
    let rate = NonZeroU32::new(10_000_000);
    let each = |new_flows_per_second| SourceLimit { new_flows_per_second, v4_prefix: 24, v6_prefix: 64 };
    Guard { new_flows_per_second: rate, per_source: rate.map(each), ..Guard::default() }
}

fn trace() -> Trace {
    Trace {
        key: TraceKey::derive(&HashKey::new([5; 16])),
        receivers: PrefixSet::new([(Ipv4Addr::new(198, 51, 100, 9).into(), 32)]),
        per_second: 100,
    }
}

const ENCAPSULATOR: [u8; 4] = [192, 0, 2, 77];
