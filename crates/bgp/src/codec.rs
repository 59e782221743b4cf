//! Converts BGP messages between bytes and the types of this crate. Only this file uses
//! `rustbgpd-wire`.
//!
//! Module `session` decides when a message is sent, and module `machine` decides how a received
//! message changes the session state. The last section of this file converts OPEN and NOTIFICATION
//! messages for `machine`.
//!
//! Bytes from a peer never cause a panic. Decoding uses at most the memory that one frame of 65,535
//! bytes needs.
//!
//! See RFC 4271 §4 and §6, and RFC 4760, 6793, 7606, 8654 and 8950.

use std::fmt;
use std::net::IpAddr;

use bytes::Bytes;
use rustbgpd_wire as wire;

use crate::message::{Capability, Message, Notification, Open, Refresh, RefreshKind, Update};
use crate::prefix::{Family, Prefix};
use crate::route::Attributes;

/// The error for a received message that cannot be decoded, with the NOTIFICATION to send to the
/// peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) notification: Notification,
    pub(crate) what: String,
}

impl From<wire::DecodeError> for Malformed {
    fn from(error: wire::DecodeError) -> Self {
        let (code, subcode, data) = error.to_notification();
        // The data sent back to the peer is limited in length, because some peers do not accept
        // long messages.
        let data = data.get(..data.len().min(MAX_RETURNED_BYTES)).unwrap_or_default().to_vec();
        let notification = Notification { code: code.as_u8(), subcode, data };
        Self { notification, what: error.to_string() }
    }
}

/// The properties of a session that change how routes are encoded and decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub(crate) local_asn: u32,
    pub(crate) external: bool,
    /// `true` if AS numbers are four bytes long.
    pub(crate) four_byte: bool,
}

/// The error for an outgoing message that cannot be encoded. The limits on configuration values
/// should make this error impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot encode a BGP message: {0}")]
pub(crate) struct Unencodable(#[from] wire::EncodeError);

/// Returns the length of the BGP message at the start of `bytes`, or `None` while the message
/// header is incomplete.
///
/// # Errors
/// Returns an error if the bytes are not a BGP header, or if the length is invalid for the message
/// type.
pub(crate) fn frame_bytes(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    // This speaker offers extended messages in its OPEN, so it must accept such messages.
    Ok(wire::peek_message_length(bytes, wire::EXTENDED_MAX_MESSAGE_LEN)?.map(usize::from))
}

/// Decodes one complete BGP message.
///
/// # Errors
/// Returns an error if the message has an error that must end the session (RFC 4271 §6, or RFC 7606
/// for UPDATE messages).
pub(crate) fn decode(frame: &[u8], dialect: Dialect) -> Result<Message, Malformed> {
    let mut bytes = Bytes::copy_from_slice(frame);
    Ok(match wire::decode_message(&mut bytes, wire::EXTENDED_MAX_MESSAGE_LEN)? {
        wire::Message::Open(open) => Message::Open(own_open(&open)),
        wire::Message::Update(update) => Message::Update(own_update(&update, dialect)?),
        wire::Message::Notification(notification) => Message::Notification(own_notification(&notification)),
        wire::Message::Keepalive => Message::Keepalive,
        wire::Message::RouteRefresh(refresh) => Message::Refresh(own_refresh(&refresh)),
        other => {
            let what = format!("unknown message type {}", other.message_type());
            return Err(Malformed { notification: Notification::new(1, 3), what });
        }
    })
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (code, subcode, data) = self.inner();
        write!(f, "{} ({code}/{subcode}", describe(code, subcode))?;
        if (self.code, self.subcode) != (code, subcode) {
            f.write_str(", as a hard reset")?;
        }
        match (self.shutdown_text(), self.refused_asn()) {
            (Some(text), _) => write!(f, ": {text:?})"),
            (None, Some(asn)) => write!(f, ": AS {asn})"),
            (None, None) if data.is_empty() => f.write_str(")"),
            (None, None) => {
                f.write_str(", data")?;
                data.iter().take(SHOWN_BYTES).try_for_each(|byte| write!(f, " {byte:02x}"))?;
                f.write_str(if data.len() > SHOWN_BYTES { "…)" } else { ")" })
            }
        }
    }
}

/// Returns the name of a NOTIFICATION code and subcode from the IANA registry.
pub(crate) fn describe(code: u8, subcode: u8) -> &'static str {
    // bird sends subcode 0 when BFD reports the loss of the session, and so do routers that predate
    // RFC 4486.
    if (code, subcode) == (6, 0) {
        return "Cease, no reason given";
    }
    wire::notification::description(wire::NotificationCode::from_u8(code), subcode)
}

pub(crate) fn encode_open(open: &Open) -> Result<Vec<u8>, Unencodable> {
    encode(&wire::Message::Open(foreign_open(open)))
}

pub(crate) fn encode_notification(notification: &Notification) -> Result<Vec<u8>, Unencodable> {
    encode(&wire::Message::Notification(foreign_notification(notification)))
}

pub(crate) fn encode_keepalive() -> Result<Vec<u8>, Unencodable> {
    encode(&wire::Message::Keepalive)
}

pub(crate) fn encode_refresh(family: Family, kind: RefreshKind) -> Result<Vec<u8>, Unencodable> {
    let kind = match kind {
        RefreshKind::Begin => wire::RouteRefreshSubtype::BoRR,
        RefreshKind::End => wire::RouteRefreshSubtype::EoRR,
        RefreshKind::Request | RefreshKind::Unknown => wire::RouteRefreshSubtype::Normal,
    };
    let (afi, safi) = foreign_family(family);
    encode(&wire::Message::RouteRefresh(wire::RouteRefreshMessage::new_with_subtype(afi, safi, kind)))
}

/// Encodes an UPDATE that announces `prefixes`. All prefixes must belong to `family`.
pub(crate) fn encode_announce(
    dialect: Dialect,
    attributes: &Attributes,
    family: Family,
    next_hop: IpAddr,
    prefixes: &[Prefix],
) -> Result<Vec<u8>, Unencodable> {
    let mut list = path_attributes(dialect, attributes);
    let (entries, mode) = match (family, next_hop) {
        (Family::Ipv4, IpAddr::V4(next_hop)) => {
            list.push(wire::PathAttribute::NextHop(next_hop));
            (body_entries(prefixes), wire::Ipv4UnicastMode::Body)
        }
        _ => {
            list.push(reach(family, next_hop, prefixes));
            (Vec::new(), wire::Ipv4UnicastMode::MpReach)
        }
    };
    let update = wire::UpdateMessage::try_build(&entries, &[], &list, dialect.four_byte, false, mode)?;
    encode(&wire::Message::Update(update))
}

/// Encodes an UPDATE that withdraws `prefixes`. All prefixes must belong to `family`. An empty list
/// produces the End-of-RIB marker (RFC 4724 §2).
///
/// If `by_body` is `true`, IPv4 prefixes are encoded in the Withdrawn Routes field (RFC 4271), and
/// otherwise in the MP_UNREACH_NLRI attribute (RFC 4760).
pub(crate) fn encode_withdraw(
    family: Family,
    prefixes: &[Prefix],
    by_body: bool,
) -> Result<Vec<u8>, Unencodable> {
    let update = if family == Family::Ipv4 && by_body {
        let entries = body_entries(prefixes);
        wire::UpdateMessage::try_build(&[], &entries, &[], true, false, wire::Ipv4UnicastMode::Body)?
    } else {
        let list = [unreach(family, prefixes)];
        wire::UpdateMessage::try_build(&[], &[], &list, true, false, wire::Ipv4UnicastMode::MpReach)?
    };
    encode(&wire::Message::Update(update))
}

/// Returns the number of bytes that remain for prefixes in an UPDATE with these attributes.
pub(crate) fn room(dialect: Dialect, attributes: &Attributes, family: Family, next_hop: IpAddr) -> usize {
    let used = encode_announce(dialect, attributes, family, next_hop, &[]).map_or(0, |bytes| bytes.len());
    // The length field of an attribute takes two bytes if the attribute is longer than 255 bytes.
    usize::from(wire::MAX_MESSAGE_LEN).saturating_sub(used + 1)
}

/// The maximum size of the withdrawn prefixes in one UPDATE, in bytes.
pub(crate) const WITHDRAW_ROOM: usize = 4000;

fn encode(message: &wire::Message) -> Result<Vec<u8>, Unencodable> {
    Ok(wire::encode_message(message)?.to_vec())
}

/// Returns all path attributes except the next hop, sorted by type.
fn path_attributes(dialect: Dialect, attributes: &Attributes) -> Vec<wire::PathAttribute> {
    use wire::PathAttribute as A;
    let mut list = vec![A::Origin(wire::Origin::Igp)];
    let path =
        vec![dialect.local_asn; if dialect.external { 1 + usize::from(attributes.prepend) } else { 0 }];
    let segments = if path.is_empty() { vec![] } else { vec![wire::AsPathSegment::AsSequence(path.clone())] };
    // If the peer supports only two-byte AS numbers, the encoder writes 23456 (AS_TRANS) instead of
    // a four-byte number.
    list.push(A::AsPath(wire::AsPath { segments }));
    list.extend(attributes.med.map(A::Med));
    if !dialect.external {
        list.push(A::LocalPref(attributes.local_pref.unwrap_or(DEFAULT_LOCAL_PREF)));
    }
    if !attributes.communities.is_empty() {
        list.push(A::Communities(attributes.communities.iter().map(|community| community.bits()).collect()));
    }
    if dialect.local_asn > u32::from(u16::MAX) && !dialect.four_byte && !path.is_empty() {
        list.push(as4_path(&path));
    }
    if !attributes.large_communities.is_empty() {
        let large = attributes.large_communities.iter().map(|c| wire::LargeCommunity::new(c.0, c.1, c.2));
        list.push(A::LargeCommunities(large.collect()));
    }
    list
}

/// Returns the attribute AS4_PATH, which carries four-byte AS numbers through a peer that supports
/// only two-byte AS numbers (RFC 6793 §4.2.2).
fn as4_path(path: &[u32]) -> wire::PathAttribute {
    let mut data = Vec::new();
    for part in path.chunks(MAX_SEGMENT) {
        data.extend_from_slice(&[2, u8::try_from(part.len()).unwrap_or(u8::MAX)]);
        data.extend(part.iter().flat_map(|asn| asn.to_be_bytes()));
    }
    let flags = if data.len() > 255 { 0xd0 } else { 0xc0 };
    wire::PathAttribute::Unknown(wire::RawAttribute { flags, type_code: 17, data: Bytes::from(data) })
}

fn reach(family: Family, next_hop: IpAddr, prefixes: &[Prefix]) -> wire::PathAttribute {
    let (afi, safi) = foreign_family(family);
    wire::PathAttribute::MpReachNlri(Box::new(wire::MpReachNlri {
        afi,
        safi,
        next_hop,
        link_local_next_hop: None,
        announced: entries(prefixes),
        flowspec_announced: Vec::new(),
        evpn_announced: Vec::new(),
        bgpls_announced: Vec::new(),
        vpn_announced: Vec::new(),
        labeled_announced: Vec::new(),
        rtc_announced: Vec::new(),
    }))
}

fn unreach(family: Family, prefixes: &[Prefix]) -> wire::PathAttribute {
    let (afi, safi) = foreign_family(family);
    wire::PathAttribute::MpUnreachNlri(Box::new(wire::MpUnreachNlri {
        afi,
        safi,
        withdrawn: entries(prefixes),
        flowspec_withdrawn: Vec::new(),
        evpn_withdrawn: Vec::new(),
        bgpls_withdrawn: Vec::new(),
        vpn_withdrawn: Vec::new(),
        labeled_withdrawn: Vec::new(),
        rtc_withdrawn: Vec::new(),
    }))
}

fn entries(prefixes: &[Prefix]) -> Vec<wire::NlriEntry> {
    let foreign = |prefix: &Prefix| match prefix.address() {
        IpAddr::V4(address) => wire::Prefix::V4(wire::Ipv4Prefix::new(address, prefix.len())),
        IpAddr::V6(address) => wire::Prefix::V6(wire::Ipv6Prefix::new(address, prefix.len())),
    };
    prefixes.iter().map(|prefix| wire::NlriEntry { path_id: 0, prefix: foreign(prefix) }).collect()
}

fn body_entries(prefixes: &[Prefix]) -> Vec<wire::Ipv4NlriEntry> {
    let v4 = entries(prefixes).into_iter().filter_map(|entry| match entry.prefix {
        wire::Prefix::V4(prefix) => Some(wire::Ipv4NlriEntry { path_id: 0, prefix }),
        wire::Prefix::V6(_) => None,
    });
    v4.collect()
}

fn own_update(update: &wire::UpdateMessage, dialect: Dialect) -> Result<Update, Malformed> {
    let revised = update.parse_revised(dialect.four_byte, !dialect.external, false, &[])?;
    let parsed = revised.update;
    let mut own = Update {
        announced: parsed.announced.iter().filter_map(|e| own_v4(e.prefix)).collect(),
        withdrawn: parsed.withdrawn.iter().filter_map(|e| own_v4(e.prefix)).collect(),
        tolerated: None,
    };
    for attribute in &parsed.attributes {
        match attribute {
            wire::PathAttribute::MpReachNlri(reach) => own.announced.extend(own_prefixes(&reach.announced)),
            wire::PathAttribute::MpUnreachNlri(gone) => own.withdrawn.extend(own_prefixes(&gone.withdrawn)),
            _ => {}
        }
    }
    for malformed in revised.malformed {
        //= RFC 7606 §3 (h)
        //# Otherwise, the approach with the strongest action MUST be used.
        if malformed.disposition == wire::ErrorDisposition::SessionReset {
            return Err(malformed.error.into());
        }
        own.tolerated.get_or_insert_with(|| {
            let disposition = malformed.disposition.as_str();
            format!("attribute {}: {} ({disposition})", malformed.type_code, malformed.error)
        });
    }
    Ok(own)
}

fn own_v4(prefix: wire::Ipv4Prefix) -> Option<Prefix> {
    Prefix::new(prefix.addr.into(), prefix.len).ok()
}

fn own_prefixes(entries: &[wire::NlriEntry]) -> impl Iterator<Item = Prefix> {
    entries.iter().filter_map(|entry| match entry.prefix {
        wire::Prefix::V4(prefix) => own_v4(prefix),
        wire::Prefix::V6(prefix) => Prefix::new(prefix.addr.into(), prefix.len).ok(),
    })
}

fn own_refresh(refresh: &wire::RouteRefreshMessage) -> Refresh {
    let family = refresh.afi().zip(refresh.safi()).and_then(|(afi, safi)| own_family(afi, safi));
    let kind = match refresh.subtype() {
        wire::RouteRefreshSubtype::Normal => RefreshKind::Request,
        wire::RouteRefreshSubtype::BoRR => RefreshKind::Begin,
        wire::RouteRefreshSubtype::EoRR => RefreshKind::End,
        _ => RefreshKind::Unknown,
    };
    Refresh { family, kind }
}

// Conversions for the module `machine`.

pub(crate) fn foreign_family(family: Family) -> (wire::Afi, wire::Safi) {
    let afi = if family == Family::Ipv4 { wire::Afi::Ipv4 } else { wire::Afi::Ipv6 };
    (afi, wire::Safi::Unicast)
}

pub(crate) fn own_family(afi: wire::Afi, safi: wire::Safi) -> Option<Family> {
    Family::ALL.into_iter().find(|&own| foreign_family(own) == (afi, safi))
}

pub(crate) fn foreign_notification(notification: &Notification) -> wire::NotificationMessage {
    let code = wire::NotificationCode::from_u8(notification.code);
    wire::NotificationMessage::new(code, notification.subcode, Bytes::from(notification.data.clone()))
}

pub(crate) fn own_notification(notification: &wire::NotificationMessage) -> Notification {
    Notification {
        code: notification.code.as_u8(),
        subcode: notification.subcode,
        data: notification.data.to_vec(),
    }
}

pub(crate) fn foreign_open(open: &Open) -> wire::OpenMessage {
    wire::OpenMessage {
        version: 4,
        my_as: open.short_asn,
        hold_time: open.hold_seconds,
        bgp_identifier: open.router_id,
        capabilities: open.capabilities.iter().map(foreign_capability).collect(),
    }
}

pub(crate) fn own_open(open: &wire::OpenMessage) -> Open {
    Open {
        short_asn: open.my_as,
        hold_seconds: open.hold_time,
        router_id: open.bgp_identifier,
        capabilities: open.capabilities.iter().flat_map(own_capability).collect(),
    }
}

fn foreign_capability(capability: &Capability) -> wire::Capability {
    match capability {
        Capability::Multiprotocol(family) => {
            let (afi, safi) = foreign_family(*family);
            wire::Capability::MultiProtocol { afi, safi }
        }
        Capability::ExtendedNextHop => {
            let (nlri_afi, nlri_safi) = foreign_family(Family::Ipv4);
            wire::Capability::ExtendedNextHop(vec![wire::ExtendedNextHopFamily {
                nlri_afi,
                nlri_safi,
                next_hop_afi: wire::Afi::Ipv6,
            }])
        }
        Capability::RouteRefresh => wire::Capability::RouteRefresh,
        Capability::EnhancedRouteRefresh => wire::Capability::EnhancedRouteRefresh,
        Capability::ExtendedMessage => wire::Capability::ExtendedMessage,
        Capability::FourByteAsn(asn) => wire::Capability::FourOctetAs { asn: *asn },
        Capability::GracefulRestart { restarting, notification, seconds, families } => {
            let families = families.iter().map(|&(family, forwarding_preserved)| {
                let (afi, safi) = foreign_family(family);
                wire::GracefulRestartFamily { afi, safi, forwarding_preserved }
            });
            wire::Capability::GracefulRestart {
                restart_state: *restarting,
                notification: *notification,
                restart_time: *seconds,
                families: families.collect(),
            }
        }
        Capability::Other(code) => wire::Capability::Unknown { code: *code, data: Bytes::new() },
    }
}

fn own_capability(capability: &wire::Capability) -> Option<Capability> {
    Some(match capability {
        wire::Capability::MultiProtocol { afi, safi } => match own_family(*afi, *safi) {
            Some(family) => Capability::Multiprotocol(family),
            None => Capability::Other(capability.code()),
        },
        wire::Capability::ExtendedNextHop(list) => {
            let ours = list.iter().any(|entry| {
                own_family(entry.nlri_afi, entry.nlri_safi) == Some(Family::Ipv4)
                    && entry.next_hop_afi == wire::Afi::Ipv6
            });
            if ours { Capability::ExtendedNextHop } else { Capability::Other(capability.code()) }
        }
        wire::Capability::RouteRefresh => Capability::RouteRefresh,
        wire::Capability::EnhancedRouteRefresh => Capability::EnhancedRouteRefresh,
        wire::Capability::ExtendedMessage => Capability::ExtendedMessage,
        wire::Capability::FourOctetAs { asn } => Capability::FourByteAsn(*asn),
        wire::Capability::GracefulRestart { restart_state, notification, restart_time, families } => {
            let own = families.iter().filter_map(|family| {
                own_family(family.afi, family.safi).map(|own| (own, family.forwarding_preserved))
            });
            Capability::GracefulRestart {
                restarting: *restart_state,
                notification: *notification,
                seconds: *restart_time,
                families: own.collect(),
            }
        }
        other => Capability::Other(other.code()),
    })
}

const DEFAULT_LOCAL_PREF: u32 = 100;
const MAX_SEGMENT: usize = 255;
/// The maximum size of displayed NOTIFICATION data, in bytes.
const SHOWN_BYTES: usize = 32;
const MAX_RETURNED_BYTES: usize = 1024;
