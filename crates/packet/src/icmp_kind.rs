//! The kinds of ICMP errors for IPv4 and IPv6. The parser and the writer of ICMP errors use the
//! same type.
//!
//! The message types are defined in RFC 792, RFC 1191 and RFC 4443 §3.

use crate::Family;

/// The kind of an ICMP error. ICMP and ICMPv6 use different code numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpErrorKind {
    /// The destination is unreachable (IPv4 type 3 with any code except 4, IPv6 type 1).
    Unreachable {
        /// The ICMP code.
        /// - IPv4: 0 network, 1 host, 2 protocol, 3 port, 13 administratively prohibited.
        /// - IPv6: 0 no route, 1 administratively prohibited, 3 address, 4 port.
        code: u8,
    },
    /// The packet exceeds the MTU of the next link (IPv4 type 3 code 4, IPv6 type 2).
    TooBig {
        /// The largest IP packet that fits, in bytes. Routers that predate RFC 1191 send 0. An MTU
        /// above 65,535 is written as 65,535 in IPv4.
        mtu: u32,
    },
    /// The TTL expired or reassembly timed out (IPv4 type 11, IPv6 type 3).
    TimeExceeded {
        /// The ICMP code: 0 if the TTL or hop limit expired, 1 if reassembly timed out.
        code: u8,
    },
    /// A header field is invalid (IPv4 type 12, IPv6 type 4).
    ParameterProblem {
        /// The ICMP code. IPv4 uses 0. IPv6 uses 0 (header field), 1 (next header) or 2 (option).
        code: u8,
        /// The offset of the invalid field in the quoted packet, in bytes. IPv4 allows at most 255.
        pointer: u32,
    },
}

impl IcmpErrorKind {
    /// Reads the kind from the first 8 bytes of an ICMP message. Returns `None` if the message is
    /// not an error, or is a source quench or a redirect.
    pub(crate) fn read(family: Family, [kind, code, _, _, a, b, c, d]: [u8; 8]) -> Option<Self> {
        match (family, kind) {
            (Family::V4, 3) if code == FRAGMENTATION_NEEDED => {
                Some(Self::TooBig { mtu: u32::from(u16::from_be_bytes([c, d])) })
            }
            (Family::V4, 3) | (Family::V6, 1) => Some(Self::Unreachable { code }),
            //= RFC 4443 §3.2
            //# Code           Set to 0 (zero) by the originator and ignored by the receiver
            (Family::V6, 2) => Some(Self::TooBig { mtu: u32::from_be_bytes([a, b, c, d]) }),
            (Family::V4, 11) | (Family::V6, 3) => Some(Self::TimeExceeded { code }),
            (Family::V4, 12) => Some(Self::ParameterProblem { code, pointer: u32::from(a) }),
            (Family::V6, 4) => {
                Some(Self::ParameterProblem { code, pointer: u32::from_be_bytes([a, b, c, d]) })
            }
            _ => None,
        }
    }

    /// Returns the first 8 bytes of the ICMP message, with checksum 0. Returns `None` if the family
    /// has no error of this kind.
    pub(crate) fn header(self, family: Family) -> Option<[u8; 8]> {
        let message = |kind, code, [a, b, c, d]: [u8; 4]| Some([kind, code, 0, 0, a, b, c, d]);
        match (family, self) {
            // Code 4 (fragmentation needed) contains an MTU, so only the variant `TooBig` writes
            // this code.
            (Family::V4, Self::Unreachable { code: FRAGMENTATION_NEEDED }) => None,
            (Family::V4, Self::Unreachable { code }) => message(3, code, [0; 4]),
            (Family::V4, Self::TooBig { mtu }) => {
                message(3, FRAGMENTATION_NEEDED, mtu.min(u32::from(u16::MAX)).to_be_bytes())
            }
            (Family::V4, Self::TimeExceeded { code }) => message(11, code, [0; 4]),
            (Family::V4, Self::ParameterProblem { code, pointer }) => {
                message(12, code, [u8::try_from(pointer).ok()?, 0, 0, 0])
            }
            (Family::V6, Self::Unreachable { code }) => message(1, code, [0; 4]),
            (Family::V6, Self::TooBig { mtu }) => message(2, 0, mtu.to_be_bytes()),
            (Family::V6, Self::TimeExceeded { code }) => message(3, code, [0; 4]),
            (Family::V6, Self::ParameterProblem { code, pointer }) => message(4, code, pointer.to_be_bytes()),
        }
    }
}

const FRAGMENTATION_NEEDED: u8 = 4;
