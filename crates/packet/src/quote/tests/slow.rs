//! A slow reference parser of quoted packets, and checks that apply to every quoted packet.
//!
//! The fuzzer (`tests/fuzz`) also compiles this file, so paths start with `packet::`.

use packet::{
    Family, Fragment, IcmpError, Malformed, Quoted, icmp_checksum_ok, icmp_error, parse, quoted_tunnel,
};

/// Checks that the quote and the inner packet of a quoted tunnel are inside the frame, and that the
/// reference parser returns the same fields.
pub(super) fn check(frame: &[u8]) {
    let Ok(parsed) = parse(frame) else { return };
    let _ = icmp_checksum_ok(frame, &parsed);
    let bytes = frame.get(usize::from(parsed.l4) + 8..usize::from(parsed.end)).unwrap_or_default();
    match icmp_error(frame, &parsed) {
        Some(Ok(IcmpError { quoted, .. })) => agree(frame, bytes, &quoted),
        Some(Err(Malformed::Truncated)) => assert!(bytes.len() < parsed.family.header_len().into()),
        Some(Err(Malformed::ExtensionChain)) => assert_eq!(Slow::read(bytes), None),
        Some(Err(_)) | None => {}
    }
}

/// Compares `quoted` with the reference parser. `bytes` are the quoted bytes of `frame`.
fn agree(frame: &[u8], bytes: &[u8], quoted: &Quoted) {
    assert!(quoted.at < quoted.l4 && quoted.l4 <= quoted.end && usize::from(quoted.end) <= frame.len());
    assert_eq!(Some(slow_view(quoted)), Slow::read(bytes));
    let Some(tunnel) = quoted_tunnel(frame, quoted) else { return };
    if let Some(inner) = tunnel.inner {
        assert!(
            quoted.l4 <= inner.at && inner.at < inner.l4 && inner.l4 <= inner.end && inner.end <= quoted.end
        );
        assert_eq!(tunnel.encap_overhead, Some(inner.at - quoted.at));
        assert_eq!(
            Some(slow_view(&inner)),
            Slow::read(&frame[usize::from(inner.at)..usize::from(quoted.end)])
        );
        assert_eq!(frame[usize::from(inner.at)] >> 4, if inner.family == Family::V4 { 4 } else { 6 });
    }
}

/// The fields that the reference parser reads from the start of an IP packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slow {
    protocol: u8,
    l4: usize,
    len: usize,
    fragment: Option<(u16, bool)>,
    ports: Option<(u16, u16)>,
}

impl Slow {
    pub(super) fn read(ip: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u16::from(*ip.get(at)?) << 8 | u16::from(*ip.get(at + 1)?));
        if ip.len() < if ip[0] >> 4 == 4 { 20 } else { 40 } {
            return None;
        }
        let v4 = ip[0] >> 4 == 4;
        let len = ip.len().min(if v4 { usize::from(word(2)?) } else { 40 + usize::from(word(4)?) });
        let ip = &ip[..len];
        let mut slow = Self { protocol: 0, l4: 0, len, fragment: None, ports: None };
        if v4 {
            let word = word(6)?;
            slow.fragment = (word & 0x3fff != 0).then_some((word % 0x2000 * 8, word & 0x2000 != 0));
            (slow.protocol, slow.l4) = (ip[9], usize::from(ip[0] % 16) * 4);
            slow.l4 = slow.l4.min(len);
        } else {
            (slow.protocol, slow.l4) = (ip[6], 40);
        }
        slow.walk(ip, v4)?;
        if [6, 17, 33, 132, 136].contains(&slow.protocol) && !slow.later() && slow.l4 + 4 <= len {
            let at = slow.l4;
            slow.ports = Some((
                u16::from_be_bytes([ip[at], ip[at + 1]]),
                u16::from_be_bytes([ip[at + 2], ip[at + 3]]),
            ));
        }
        Some(slow)
    }

    fn later(&self) -> bool {
        self.fragment.is_some_and(|(offset, _)| offset != 0)
    }

    fn walk(&mut self, ip: &[u8], v4: bool) -> Option<()> {
        let mut kinds = Vec::new();
        loop {
            let known: &[u8] = if v4 { &[51] } else { &[0, 43, 44, 51, 60] };
            if !known.contains(&self.protocol) || self.later() || v4 && kinds.len() == 1 {
                return Some(());
            }
            if self.protocol == 0 && !kinds.is_empty() {
                return None;
            }
            let rest = &ip[self.l4..];
            if rest.len() < if self.protocol == 44 { 8 } else { 2 } {
                return Some(());
            }
            let size = match self.protocol {
                44 if kinds.contains(&44) => return None,
                44 => 8,
                51 if rest[1] == 0 => return None,
                51 => usize::from(rest[1]) * 4 + 8,
                _ => usize::from(rest[1]) * 8 + 8,
            };
            if kinds.len() == 8 {
                return None;
            }
            if self.protocol == 44 {
                let word = u16::from_be_bytes([rest[2], rest[3]]);
                self.fragment = (word & 0xfff9 != 0).then_some((word / 8 * 8, word % 2 == 1));
            }
            if size > rest.len() {
                return Some(());
            }
            kinds.push(self.protocol);
            (self.protocol, self.l4) = (rest[0], self.l4 + size);
        }
    }
}

pub(super) fn slow_view(quoted: &Quoted) -> Slow {
    Slow {
        protocol: quoted.protocol,
        l4: usize::from(quoted.l4 - quoted.at),
        len: usize::from(quoted.end - quoted.at),
        fragment: match quoted.fragment {
            Fragment::None => None,
            Fragment::First { .. } => Some((0, true)),
            Fragment::Later { offset, more, .. } => Some((offset, more)),
        },
        ports: quoted.ports,
    }
}
