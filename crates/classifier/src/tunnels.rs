//! Who may send tunnelled packets to this machine, and what each sender is to it.
//!
//! In: the outer headers of a tunnelled packet, the table of senders. Out: what its sender is, or that nobody sent it who may.
//! Not here: reading and taking off outer headers (`packet`), what becomes of the inner packet (`forwarder`).
//! Source: paper §2.1 (an encapsulator in front), §4.3 (fragments between machines), §4.2 (clusters stand in for each other).

use packet::{Encapsulation, Tunnelled};

use crate::Prefix;

/// Ways to carry a packet in another; a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TunnelProtocols(u8);

impl TunnelProtocols {
    /// None.
    pub const NONE: Self = Self(0);
    /// GRE.
    pub const GRE: Self = Self(1);
    /// IP in IP, in every mix of families.
    pub const IPIP: Self = Self(2);
    /// GUE over UDP.
    pub const GUE: Self = Self(4);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// As the XDP program has them.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    #[inline]
    fn holds(self, kind: Encapsulation) -> bool {
        let wanted = match kind {
            Encapsulation::Gre => Self::GRE,
            Encapsulation::Ipip => Self::IPIP,
            Encapsulation::Gue { .. } => Self::GUE,
            Encapsulation::L2 => return false,
        };
        self.0 & wanted.0 != 0
    }
}

/// What a sender of tunnelled packets is to this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelSourceKind {
    /// An encapsulator between the router and the balancers: the inner packet is as if it had come plain.
    Encapsulator,
    /// Another machine of the cluster, which sends fragments: they are not redirected again.
    Peer,
    /// A machine of another cluster, where no backend served: the packet is served here or dropped.
    Cluster,
}

impl TunnelSourceKind {
    /// Whether what it sends may be sent on to a peer: not what came marked.
    #[must_use]
    #[inline]
    pub fn may_go_on(self) -> bool {
        self == Self::Encapsulator
    }
}

/// A sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSource {
    /// Outer source addresses.
    pub prefix: Prefix,
    /// How it may carry packets.
    pub carriers: TunnelProtocols,
    /// What it is.
    pub kind: TunnelSourceKind,
}

/// What a tunnelled packet is by its sender; `None`: nobody who may send one.
///
/// The mark of recursion control decides between what one address may be: a peer or another cluster marks, an encapsulator
/// does not. What another cluster has not marked is still its own.
///
/// # Cost
/// A pass over `sources`.
#[must_use]
#[inline]
pub fn source_kind(sources: &[TunnelSource], tunnelled: &Tunnelled) -> Option<TunnelSourceKind> {
    let from = |source: &&TunnelSource| {
        source.prefix.contains(tunnelled.source) && source.carriers.holds(tunnelled.kind)
    };
    let marked = tunnelled.recursion > 0;
    let mut senders = sources.iter().filter(from).map(|source| source.kind);
    let meant = senders.clone().find(|sender| match sender {
        TunnelSourceKind::Encapsulator => !marked,
        TunnelSourceKind::Peer | TunnelSourceKind::Cluster => marked,
    });
    meant.or_else(|| senders.find(|sender| *sender == TunnelSourceKind::Cluster))
}
