//! The decision for a packet, with the names of service, pool and backend. The route `/v1/where`
//! and the packet tracer return this decision.
//!
//! Packet threads identify these objects by IDs, which the control plane translates to names.

use std::fmt;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The decision for a packet, with its reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Explained {
    /// The result for the packet.
    pub verdict: Verdict,
    /// The reply to the sender, if the packet is rejected.
    #[serde(default)]
    pub rejection: Option<Rejection>,
    /// The step that selected the backend.
    pub step: Option<Step>,
    /// The service that the packet matches.
    pub service: Option<String>,
    /// The pool that serves the packet.
    pub pool: Option<String>,
    /// The fields of the packet that are hashed.
    pub hashed: Option<Hashed>,
    /// The hash of the packet, in hex.
    pub hash: Option<String>,
    /// The entry of the Maglev table, or the point of the hash ring, that selected the backend.
    pub table_entry: Option<u64>,
    /// The number of entries in the Maglev table, or of points on the hash ring.
    pub table_size: Option<u64>,
    /// `true` if the backend that was selected first is unavailable and the packet was hashed
    /// again.
    pub rehashed: Option<bool>,
    /// `true` if the connection table contains the flow, but the backend in that entry is
    /// unavailable or no longer in the service.
    pub reselected: Option<bool>,
    /// The selected backend.
    pub backend: Option<WhereBackend>,
    /// The backends that store the key, in order of preference, if the pool has replicas. Writes go
    /// to all of these backends.
    #[serde(default)]
    pub replicas: Vec<WhereBackend>,
}

/// The result for a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The packet is forwarded to a backend.
    #[default]
    Forward,
    /// A reply is sent to the sender.
    Reply,
    /// No backend receives the packet, and the sender gets the reply in the field `rejection`.
    Reject,
    /// The packet is dropped for this reason, such as `no_vip`.
    #[serde(untagged)]
    Drop(String),
}

/// The reply to a rejected packet. The packet is dropped without a reply if it exceeds the rate
/// limits of `io.icmp`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rejection {
    /// The kind of the reply.
    pub reply: RejectionReply,
    /// The reason for which the packet would be dropped otherwise: `no_backend` or `no_vip`.
    pub reason: String,
}

/// The kind of the reply to a rejected packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RejectionReply {
    /// A TCP reset.
    TcpReset,
    /// An SCTP packet with an ABORT chunk.
    SctpAbort,
    /// The ICMP error "port unreachable".
    PortUnreachable,
    /// The ICMP error "protocol unreachable" over IPv4, or "unrecognized next header" over IPv6.
    ProtocolUnreachable,
    /// The ICMP error "host unreachable" over IPv4, or "address unreachable" over IPv6.
    HostUnreachable,
}

impl fmt::Display for RejectionReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TcpReset => "a TCP reset",
            Self::SctpAbort => "an SCTP ABORT",
            Self::PortUnreachable => "the ICMP error \"port unreachable\"",
            Self::ProtocolUnreachable => "the ICMP error \"protocol unreachable\"",
            Self::HostUnreachable => "the ICMP error \"host unreachable\"",
        })
    }
}

/// The step that selected the backend of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The connection table.
    FlowTable,
    /// The Maglev table.
    Maglev,
    /// The hash ring of a keyed pool. The field `table_entry` contains the index of the point on
    /// the ring.
    Ring,
    /// All local backends are unavailable, and `backend` is another cluster.
    Remote,
    /// The fragment table.
    FragmentTable,
    /// The fragment is sent to another machine of the cluster, which collects the fragments of the
    /// datagram. The field `backend` contains the collecting machine.
    Redirect,
}

/// The hashed fields of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Hashed {
    /// Addresses, ports and protocol.
    #[serde(rename = "5-tuple")]
    FiveTuple,
    /// The source and destination addresses.
    Addresses,
    /// The source address.
    Source,
    /// The key of a request.
    Key,
}

/// A selected backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhereBackend {
    /// The name of the backend.
    pub name: String,
    /// The address of the backend.
    pub address: IpAddr,
    /// The encapsulation of packets to the backend.
    pub encapsulation: Encapsulation,
}

/// The encapsulation of packets to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names of the protocols")]
pub enum Encapsulation {
    Gre,
    Ipip,
    Gue,
    /// No outer headers. The frame is addressed to the MAC address of the backend.
    L2,
}

impl fmt::Display for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gre => "gre",
            Self::Ipip => "ipip",
            Self::Gue => "gue",
            Self::L2 => "l2",
        })
    }
}

impl Explained {
    /// Returns `true` if the packet is forwarded to a backend or receives a reply.
    #[must_use]
    pub fn is_served(&self) -> bool {
        matches!(self.verdict, Verdict::Forward | Verdict::Reply)
    }

    /// Describes the decision in one line.
    #[must_use]
    pub fn sentence(&self) -> String {
        let step = match (self.step, self.table_entry, self.table_size) {
            (Some(Step::FlowTable), ..) => "flow table".to_owned(),
            (Some(Step::FragmentTable), ..) => "fragment table".to_owned(),
            (Some(Step::Redirect), ..) => "redirected".to_owned(),
            (Some(Step::Remote), ..) => "no local backend available".to_owned(),
            (Some(Step::Ring), Some(point), Some(size)) => {
                let next = if self.rehashed == Some(true) { " (first choice unavailable)" } else { "" };
                format!("ring point {point} of {size}{next}")
            }
            (Some(Step::Maglev), Some(entry), Some(size)) => {
                let again = if self.rehashed == Some(true) { " (hashed again)" } else { "" };
                let moved =
                    if self.reselected == Some(true) { " (previous backend unavailable)" } else { "" };
                format!("Maglev entry {entry} of {size}{again}{moved}")
            }
            _ => String::new(),
        };
        let backend = self.backend.as_ref().map(|found| {
            let WhereBackend { name, address, encapsulation } = found;
            let what = match self.step {
                Some(Step::Redirect) => "machine",
                Some(Step::Remote) => "cluster",
                _ => "backend",
            };
            format!("{what} {name} at {address} by {encapsulation}")
        });
        let end = match &self.verdict {
            Verdict::Forward => String::new(),
            Verdict::Reply => "replied to the sender".to_owned(),
            Verdict::Reject => self.rejection.as_ref().map_or_else(
                || "rejected".to_owned(),
                |rejection| format!("rejected as {} with {}", rejection.reason, rejection.reply),
            ),
            Verdict::Drop(reason) => format!("dropped as {reason}"),
        };
        let parts = [step, backend.unwrap_or_default(), end];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" -> ")
    }
}
