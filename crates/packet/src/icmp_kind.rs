//! What an ICMP error reports, for both families: one type for the errors read and the errors written.
//!
//! Source: RFC 792, RFC 1191, RFC 4443 §3.

use crate::Family;

/// What an ICMP error reports. Codes are those of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpErrorKind {
    /// The destination cannot be reached. IPv4: type 3 with any code but 4; IPv6: type 1.
    Unreachable {
        /// IPv4: 0 net, 1 host, 2 protocol, 3 port, 13 administratively prohibited. IPv6: 0 no route,
        /// 1 administratively prohibited, 3 address, 4 port.
        code: u8,
    },
    /// The packet exceeds the MTU of the next link. IPv4: type 3 code 4; IPv6: type 2.
    TooBig {
        /// Bytes of the largest IP packet that fits; 0 from a router older than RFC 1191. Written into IPv4 with
        /// 65,535 at most.
        mtu: u32,
    },
    /// IPv4: type 11; IPv6: type 3.
    TimeExceeded {
        /// 0: no hop left; 1: fragments did not arrive in time.
        code: u8,
    },
    /// A field is wrong. IPv4: type 12; IPv6: type 4.
    ParameterProblem {
        /// IPv4: 0 the pointer shows where. IPv6: 0 a field, 1 the next header, 2 an option.
        code: u8,
        /// Offset in bytes of the field in the quoted packet; 255 at most in IPv4.
        pointer: u32,
    },
}

impl IcmpErrorKind {
    /// From the first 8 bytes of a message. `None`: no error, or one that nobody acts on (source quench, redirect).
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

    /// The first 8 bytes of a message, checksum 0. `None`: the family cannot say this.
    pub(crate) fn header(self, family: Family) -> Option<[u8; 8]> {
        let message = |kind, code, [a, b, c, d]: [u8; 4]| Some([kind, code, 0, 0, a, b, c, d]);
        match (family, self) {
            (Family::V4, Self::Unreachable { code: FRAGMENTATION_NEEDED }) => None, // has no MTU to give
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
