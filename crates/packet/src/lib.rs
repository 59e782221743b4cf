//! Wire formats for programs that forward packets.
//!
//! The crate parses frames in one pass and provides a checked view of each header. The crate also
//! computes checksums, writes and removes outer headers, reads and writes ICMP errors, and
//! fragments packets. The crate does not use clocks or sockets, and keeps no state. The caller
//! decides where packets are forwarded.
//!
//! Bytes from the network never cause a panic or an out-of-bounds read. Every offset that [`parse`]
//! returns is inside the frame.
//!
//! The formats are defined in RFC 791, 8200, 9293, 768, 3828, 9260, 792, 1191, 1812, 4443, 6040,
//! 2784, 2890, 1701, 2003, 2473 and 4213, and in draft-ietf-intarea-gue-09.
//!
//! ```
//! // UDP from 192.0.2.9, port 12345, to 203.0.113.10, port 53.
//! let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
//! frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 9, 203, 0, 113, 10]);
//! frame.extend([0x30, 0x39, 0, 53, 0, 8, 0, 0]);
//! let parsed = packet::parse(&frame)?;
//! assert_eq!((parsed.src_port, parsed.dst_port), (12_345, 53));
//! assert_eq!(parsed.addresses(&frame).destination().to_string(), "203.0.113.10");
//! # Ok::<(), packet::ParseError>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

// The fuzzer also compiles some test files of this crate, so paths in these files start with
// `packet::`.
#[cfg(test)]
extern crate self as packet;

pub mod checksum;
mod datagram;
mod decapsulate;
mod echo;
mod ecn;
mod encapsulation;
mod family;
mod fast_headers;
mod fragment;
mod fragmenter;
mod gre;
mod gue;
mod icmp_error;
mod icmp_kind;
mod identifications;
mod ipv4;
mod ipv6;
mod link;
mod malformed;
#[cfg(test)]
mod oracle;
mod parse;
mod prepared;
pub mod protocol;
mod quote;
mod readdress;
mod sctp;
mod source;
mod source_prefix;
mod tagging;
mod tags;
mod tcp_reset;
mod template;
#[cfg(test)]
mod test_frames;
mod ttl;
mod tunnel;
mod udp;

pub use crate::datagram::{
    refit_udp, udp_checksum_ok, udp_headers_len, udp_lite_checksum_ok, write_udp, write_udp_over,
};
pub use crate::decapsulate::{DecapsulateError, decapsulate_in_place};
pub use crate::echo::echo_reply;
pub use crate::ecn::merge_ecn;
pub use crate::encapsulation::{Encapsulation, MixedFamilies, Outer, encap_overhead};
pub use crate::family::Family;
pub use crate::fast_headers::FastHeaders;
pub use crate::fragment::Fragment;
pub use crate::fragmenter::{
    FragmentError, FragmentIter, FragmentParts, allow_cutting, pieces_v4, pieces_v6,
};
pub use crate::gre::Gre;
pub use crate::gue::Gue;
pub use crate::icmp_error::{ErrorSpec, ip_checksum_ok, may_answer, write_icmp_error};
pub use crate::icmp_kind::IcmpErrorKind;
pub use crate::identifications::Identifications;
pub use crate::ipv4::Ipv4;
pub use crate::ipv6::{Extension, Extensions, Ipv6, Upper};
pub use crate::link::{LinkHeader, Mac, MacError, rewrite_link, write_link};
pub use crate::malformed::{Malformed, ParseError};
pub use crate::parse::{Addresses, Parsed, network, parse, parse_ip};
pub use crate::prepared::Prepared;
pub use crate::quote::{IcmpError, Quoted, QuotedTunnel, icmp_checksum_ok, icmp_error, quoted_tunnel};
pub use crate::readdress::readdress_udp;
pub use crate::sctp::{sctp_checksum, write_sctp_abort};
pub use crate::source::{is_link_local, is_martian, is_unroutable};
pub use crate::tagging::{Tagging, Translation};
pub use crate::tags::{Tag, Tags};
pub use crate::tcp_reset::write_tcp_reset;
pub use crate::template::{Inner, Template, WriteError};
pub use crate::ttl::decrement_ttl;
pub use crate::tunnel::{Tunnelled, decapsulate};
pub use crate::udp::Udp;

/// Compiles and runs the example in the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
