//! Assigned numbers: IP protocols, Ethernet types and TCP flags.

/// ICMP (RFC 792).
pub const ICMP: u8 = 1;
/// IPv4 in IP (RFC 2003).
pub const IPIP: u8 = 4;
/// TCP (RFC 9293).
pub const TCP: u8 = 6;
/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// DCCP (RFC 4340).
pub const DCCP: u8 = 33;
/// IPv6 in IP (RFC 4213, RFC 2473).
pub const IPV6: u8 = 41;
/// GRE (RFC 2784).
pub const GRE: u8 = 47;
/// ICMPv6 (RFC 4443).
pub const ICMPV6: u8 = 58;
/// SCTP (RFC 9260).
pub const SCTP: u8 = 132;
/// UDP-Lite (RFC 3828).
pub const UDP_LITE: u8 = 136;

/// IPv6 hop-by-hop options (RFC 8200 §4.3).
pub const HOP_BY_HOP: u8 = 0;
/// IPv6 routing header (RFC 8200 §4.4).
pub const ROUTING: u8 = 43;
/// IPv6 fragment header (RFC 8200 §4.5).
pub const FRAGMENT: u8 = 44;
/// Authentication header (RFC 4302).
pub const AH: u8 = 51;
/// IPv6 without a next header (RFC 8200 §4.7).
pub const NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options (RFC 8200 §4.6).
pub const DESTINATION_OPTIONS: u8 = 60;

/// The Ethernet type of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// The Ethernet type of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// The Ethernet type of an 802.1Q VLAN tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// The Ethernet type of an 802.1ad service tag, the outer tag of QinQ.
pub const ETHERTYPE_QINQ: u16 = 0x88a8;

/// The UDP port of GUE.
pub const GUE_PORT: u16 = 6080;

/// The TCP flag FIN.
pub const TCP_FIN: u8 = 0x01;
/// The TCP flag SYN.
pub const TCP_SYN: u8 = 0x02;
/// The TCP flag RST.
pub const TCP_RST: u8 = 0x04;
/// The TCP flag ACK.
pub const TCP_ACK: u8 = 0x10;
