//! Decides whether a dropped packet is rejected, and with which reply. The packet path and the
//! `where` command share this code, so that `where` predicts the reply that the sender gets.

use packet::protocol;

use crate::{Decision, DropReason, Flow, Snapshot};

/// The reply to a rejected packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// A TCP reset.
    Reset,
    /// An SCTP packet with an ABORT chunk.
    Abort,
    /// The ICMP error "port unreachable".
    Port,
    /// The ICMP error "protocol unreachable" over IPv4, or "unrecognized next header" over IPv6.
    Protocol,
    /// The ICMP error "host unreachable" over IPv4, or "address unreachable" over IPv6.
    Host,
}

impl Rejection {
    fn of(protocol: u8, reason: DropReason) -> Self {
        match protocol {
            protocol::TCP => Self::Reset,
            protocol::SCTP => Self::Abort,
            protocol::UDP | protocol::UDP_LITE | protocol::DCCP => Self::Port,
            _ if reason == DropReason::NoBackend => Self::Host,
            _ => Self::Protocol,
        }
    }
}

impl Snapshot {
    /// Returns the reply to packets of `flow` that are dropped for `reason`, or `None` if their VIP
    /// does not reject them. The source must be a host that may use the VIP.
    ///
    /// The pool may serve although a packet is dropped with [`DropReason::NoBackend`], for example
    /// if the packet came from another cluster. Such a packet is not rejected. Keyed services can
    /// select backends from several pools, so their packets are always rejected.
    #[must_use]
    pub fn rejection(&self, flow: &Flow, reason: DropReason) -> Option<Rejection> {
        let is_icmp = matches!(flow.protocol, protocol::ICMP | protocol::ICMPV6);
        //= RFC 8200 §4.7
        //# The value 59 in the Next Header field of an IPv6 header or any extension header indicates
        //# that there is nothing following that header.
        let is_empty = flow.protocol == protocol::NO_NEXT_HEADER && !flow.is_v4();
        if !self.has_rejects
            || is_icmp
            || is_empty
            || flow.is_unroutable()
            || self.vips.contains(&flow.source)
        {
            return None;
        }
        let found = match reason {
            DropReason::NoBackend => self.vips.find(&flow.destination, flow.protocol, flow.destination_port),
            DropReason::NoVip => self.vips.first(&flow.destination),
            _ => None,
        };
        let service = self.services.get(found? as usize)?;
        let is_wanted = match reason {
            DropReason::NoBackend => {
                service.rejects.no_backend
                    && (service.keyed.is_some() || matches!(self.decide(flow), Decision::NoBackend { .. }))
            }
            _ => service.rejects.unserved_port,
        };
        let may_use = service.guard.as_ref().is_none_or(|guard| guard.refusal(flow).is_none());
        (is_wanted && may_use).then(|| Rejection::of(flow.protocol, reason))
    }
}
