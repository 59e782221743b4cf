//! Wire formats: one-pass parsing, checked views, checksums, outer headers.
//!
//! In: the bytes of a frame. Out: [`Parsed`], borrowed views, headers written in place.
//! Not here: what a packet means (`forwarder`), where it goes (`maglev-hash`, `conntrack`), any clock or socket.
//! Invariant: bytes from the network never panic and are never read out of bounds; every offset that [`parse`]
//! reports lies inside the frame it was given.
//! Source: RFC 791, 8200, 9293, 768, 792, 4443, 2784, 2890, 1701, 2003, 2473, 4213; draft-ietf-intarea-gue-09.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod checksum;
mod echo;
mod encapsulation;
mod ethernet;
mod family;
mod gre;
mod gue;
mod icmp;
mod icmpv6;
mod ipv4;
mod ipv6;
mod link;
mod malformed;
#[cfg(test)]
mod oracle;
mod parse;
pub mod protocol;
mod source_prefix;
mod tcp;
mod template;
#[cfg(test)]
mod test_frames;
mod ttl;
mod tunnel;
mod udp;
mod vlan;

pub use crate::echo::echo_reply;
pub use crate::encapsulation::{Encapsulation, Outer, growth};
pub use crate::ethernet::Ethernet;
pub use crate::family::Family;
pub use crate::gre::Gre;
pub use crate::gue::Gue;
pub use crate::icmp::Icmp;
pub use crate::icmpv6::Icmpv6;
pub use crate::ipv4::Ipv4;
pub use crate::ipv6::{Extension, Extensions, Ipv6, Upper};
pub use crate::link::{Mac, MacError, rewrite_link};
pub use crate::malformed::{Malformed, ParseError};
pub use crate::parse::{Addresses, Fragment, Parsed, parse};
pub use crate::source_prefix::{PrefixError, SourcePrefix};
pub use crate::tcp::Tcp;
pub use crate::template::{Template, WriteError};
pub use crate::ttl::decrement_ttl;
pub use crate::tunnel::{Tunnelled, decapsulate};
pub use crate::udp::Udp;
pub use crate::vlan::Vlan;
