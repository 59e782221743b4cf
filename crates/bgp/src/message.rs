//! Types for BGP messages. The module `codec` converts BGP messages to bytes and back.
//!
//! See RFC 4271 §4, and RFC 2918, 4486, 4760, 6793, 7313, 8538, 8950 and 9003.

use std::fmt;
use std::net::Ipv4Addr;

use crate::prefix::{Family, Prefix};

/// The AS number and the router ID of a speaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) asn: u32,
    pub(crate) router_id: Ipv4Addr,
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Open(Open),
    Update(Update),
    Notification(Notification),
    Keepalive,
    Refresh(Refresh),
}

/// An OPEN message, which is the first message that each side sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    /// The two-byte AS number field, which is 23456 if the AS number needs four bytes.
    pub(crate) short_asn: u16,
    pub(crate) hold_seconds: u16,
    pub(crate) router_id: Ipv4Addr,
    pub(crate) capabilities: Vec<Capability>,
}

impl Open {
    /// Returns the AS number of the sender, from the four-byte capability if present.
    pub(crate) fn asn(&self) -> u32 {
        let long = self.capabilities.iter().find_map(|capability| match capability {
            Capability::FourByteAsn(asn) => Some(*asn),
            _ => None,
        });
        long.unwrap_or(self.short_asn.into())
    }
}

/// A capability that an OPEN message announces.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capability {
    /// Support for a family of routes (RFC 4760).
    Multiprotocol(Family),
    /// Support for IPv4 routes with IPv6 next hops (RFC 8950).
    ExtendedNextHop,
    /// Support for route refresh (RFC 2918).
    RouteRefresh,
    /// Support for route refresh with begin and end markers (RFC 7313).
    EnhancedRouteRefresh,
    /// Support for messages of up to 65,535 bytes (RFC 8654).
    ExtendedMessage,
    /// Support for four-byte AS numbers, with the AS number of the sender (RFC 6793).
    FourByteAsn(u32),
    /// Support for graceful restart (RFC 4724, RFC 8538).
    GracefulRestart {
        /// The R bit: the sender has just restarted.
        restarting: bool,
        /// The N bit: routes are also kept after a NOTIFICATION, unless the NOTIFICATION is a hard
        /// reset.
        notification: bool,
        /// The restart time in seconds. Routes from the sender may be kept for this time while the
        /// sender restarts.
        seconds: u16,
        /// The families, each with its F bit, which is `true` if forwarding continued during the
        /// restart.
        families: Vec<(Family, bool)>,
    },
    /// A capability that this crate does not know, with its code.
    Other(u8),
}

/// The routes in a received UPDATE message. Routes are only counted, not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Update {
    pub(crate) announced: Vec<Prefix>,
    pub(crate) withdrawn: Vec<Prefix>,
    /// An error in the UPDATE that does not end the session (RFC 7606).
    pub(crate) tolerated: Option<String>,
}

/// A NOTIFICATION message, with the reason why its sender ends the session.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Notification {
    pub(crate) code: u8,
    pub(crate) subcode: u8,
    pub(crate) data: Vec<u8>,
}

impl Notification {
    pub(crate) const CEASE: u8 = 6;
    pub(crate) const FSM_ERROR: u8 = 5;

    pub(crate) fn new(code: u8, subcode: u8) -> Self {
        Self { code, subcode, data: Vec::new() }
    }

    pub(crate) fn cease(subcode: Cease) -> Self {
        Self::new(Self::CEASE, subcode as u8)
    }

    /// Wraps a Cease in a hard reset, so that a peer with the N bit drops the routes immediately
    /// (RFC 8538 §3).
    pub(crate) fn into_hard_reset(self) -> Self {
        let hard = Cease::HardReset as u8;
        if self.code != Self::CEASE || self.subcode == hard {
            return self;
        }
        let data = [&[self.code, self.subcode], self.data.as_slice()].concat();
        Self { code: Self::CEASE, subcode: hard, data }
    }

    /// Returns the code, subcode and data. For a hard reset, these are the values of the
    /// NOTIFICATION inside the hard reset.
    pub(crate) fn inner(&self) -> (u8, u8, &[u8]) {
        match (self.code, self.subcode, self.data.as_slice()) {
            (Self::CEASE, 9, [code, subcode, data @ ..]) => (*code, *subcode, data),
            (code, subcode, data) => (code, subcode, data),
        }
    }

    /// Returns the refused AS number from the data of a Bad Peer AS error. RFC 4271 does not define
    /// such data, but some routers send it.
    pub(crate) fn refused_asn(&self) -> Option<u32> {
        match (self.code, self.subcode, self.data.as_slice()) {
            (2, 2, &[high, low]) => Some(u16::from_be_bytes([high, low]).into()),
            (2, 2, &[a, b, c, d]) => Some(u32::from_be_bytes([a, b, c, d])),
            _ => None,
        }
    }

    /// Returns the text of an administrative shutdown or reset, with control characters replaced.
    /// Returns `None` if there is no message or it is not valid UTF-8.
    pub(crate) fn shutdown_text(&self) -> Option<String> {
        let (Self::CEASE, 2 | 4, [len, text @ ..]) = self.inner() else { return None };
        let text = text.get(..usize::from(*len)).filter(|text| !text.is_empty())?;
        let text = std::str::from_utf8(text).ok()?;
        Some(text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect())
    }
}

impl fmt::Debug for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The subcodes of Cease (RFC 4486, 8538, 9384).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cease {
    MaximumPrefixes = 1,
    PeerDeconfigured = 3,
    ConnectionRejected = 5,
    OtherConfigurationChange = 6,
    Collision = 7,
    HardReset = 9,
}

/// A ROUTE-REFRESH message: a request to resend all routes of a family, or a begin or end marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refresh {
    /// The address family in the message. `None` if this crate does not support the family.
    pub(crate) family: Option<Family>,
    pub(crate) kind: RefreshKind,
}

/// The subtypes of ROUTE-REFRESH (RFC 7313 §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefreshKind {
    Request,
    Begin,
    End,
    Unknown,
}

/// Encodes the data of an administrative shutdown, which is a length byte and the text (RFC 9003
/// §2). Truncates a long text at a character boundary.
pub(crate) fn shutdown_data(text: &str) -> Vec<u8> {
    let text = text.get(..text.floor_char_boundary(MAX_SHUTDOWN_BYTES)).unwrap_or_default();
    let mut data = vec![u8::try_from(text.len()).unwrap_or(0)];
    data.extend_from_slice(text.as_bytes());
    data
}

/// The maximum length of a shutdown text. Receivers that implement RFC 8203 accept 128 bytes, while
/// RFC 9003 allows 255.
const MAX_SHUTDOWN_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn shutdown(text: &str) -> Notification {
        Notification { code: 6, subcode: 2, data: shutdown_data(text) }
    }

    #[test]
    fn a_shutdown_text_is_cut_at_a_character_and_read_back() {
        let long = "ä".repeat(100);
        let notification = shutdown(&long);
        assert_eq!(notification.data.len(), 1 + 128);
        assert_eq!(notification.shutdown_text().unwrap(), "ä".repeat(64));
        assert_eq!(shutdown("").shutdown_text(), None);
    }

    #[test]
    fn a_hard_reset_carries_the_whole_cease_and_shows_it() {
        let hard = shutdown("rack 7 moves").into_hard_reset();
        assert_eq!((hard.code, hard.subcode), (6, 9));
        assert_eq!(hard.data.get(..3), Some([6, 2, 12].as_slice()));
        assert_eq!(hard.shutdown_text().as_deref(), Some("rack 7 moves"));
        assert_eq!(hard.to_string(), "Administrative Shutdown (6/2, as a hard reset: \"rack 7 moves\")");
        assert_eq!(hard.clone().into_hard_reset(), hard, "a hard reset is not wrapped again");
        let hold = Notification::new(4, 0);
        assert_eq!(hold.clone().into_hard_reset(), hold, "only a Cease is wrapped");
    }

    #[test]
    fn a_refused_as_is_shown_as_a_number() {
        let refused = |data: &[u8]| Notification { data: data.to_vec(), ..Notification::new(2, 2) };
        assert_eq!(refused(b"\xfe\x4d").to_string(), "Bad Peer AS (2/2: AS 65101)");
        assert_eq!(refused(b"\xfa\x56\xea\x01").refused_asn(), Some(4_200_000_001));
        assert_eq!(refused(b"\x01").to_string(), "Bad Peer AS (2/2, data 01)");
    }

    #[test]
    fn text_of_a_peer_cannot_break_a_log_line() {
        let notification = Notification { data: b"\x09bye\nERROR".to_vec(), ..shutdown("") };
        let shown = notification.to_string();
        assert!(shown.contains("bye\u{fffd}ERROR"), "{shown}");
        let lying = Notification { data: vec![200, b'x'], ..shutdown("") };
        assert_eq!(lying.to_string(), "Administrative Shutdown (6/2, data c8 78)");
        let garbage = Notification { data: vec![2, 0xff, 0xfe], ..shutdown("") };
        assert_eq!(garbage.shutdown_text(), None);
    }
}
