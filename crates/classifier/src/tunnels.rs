//! The machines that may send tunneled packets to this machine, and their roles.
//!
//! The crate `packet` parses and removes the outer headers, and the crate `forwarder` handles the
//! inner packet. The Maglev paper describes these tunnels in §2.1 (encapsulation by upstream
//! routers), §4.2 (fallback to other clusters) and §4.3 (fragments that are redirected between
//! machines).

use packet::{Encapsulation, Tunnelled};

use crate::Prefix;

/// A set of tunnel protocols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TunnelProtocols(u8);

impl TunnelProtocols {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// Generic Routing Encapsulation (GRE).
    pub const GRE: Self = Self(1);
    /// IP in IP, for all combinations of IPv4 and IPv6.
    pub const IPIP: Self = Self(2);
    /// Generic UDP Encapsulation (GUE).
    pub const GUE: Self = Self(4);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the set as a bit mask, in the format of the XDP program.
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

/// The role of a machine that sends tunneled packets to this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelSourceKind {
    /// The sender is an upstream router that sends client packets through a tunnel. The inner
    /// packet is handled as if it had arrived without a tunnel.
    UpstreamTunnel,
    /// The sender is another machine of this cluster, which redirects fragments to this machine.
    /// This machine does not redirect such fragments again.
    Peer,
    /// The sender is a machine of another cluster, in which no backend was serving. This machine
    /// forwards the packet to a local backend or drops it.
    Cluster,
}

impl TunnelSourceKind {
    /// Returns `true` if packets from this sender may be redirected to a peer.
    #[must_use]
    #[inline]
    pub fn may_go_on(self) -> bool {
        self == Self::UpstreamTunnel
    }
}

/// A permitted sender of tunneled packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSource {
    /// The prefix that contains the permitted outer source addresses.
    pub prefix: Prefix,
    /// The tunnel protocols that the sender may use.
    pub carriers: TunnelProtocols,
    /// The role of the sender.
    pub kind: TunnelSourceKind,
}

/// Returns the role of a tunneled packet's sender, or `None` if the sender is not permitted.
///
/// If several entries contain the sender address, the recursion-control mark of the packet selects
/// the role. Peers and other clusters set the mark, and upstream tunnels do not. If no upstream
/// tunnel matches, an unmarked packet can still be assigned the role of another cluster.
///
/// # Cost
/// Linear in the number of `sources`.
#[must_use]
#[inline]
pub fn source_kind(sources: &[TunnelSource], tunnelled: &Tunnelled) -> Option<TunnelSourceKind> {
    let from = |source: &&TunnelSource| {
        source.prefix.contains(tunnelled.source) && source.carriers.holds(tunnelled.kind)
    };
    let marked = tunnelled.recursion > 0;
    let mut senders = sources.iter().filter(from).map(|source| source.kind);
    let meant = senders.clone().find(|sender| match sender {
        TunnelSourceKind::UpstreamTunnel => !marked,
        TunnelSourceKind::Peer | TunnelSourceKind::Cluster => marked,
    });
    meant.or_else(|| senders.find(|sender| *sender == TunnelSourceKind::Cluster))
}
