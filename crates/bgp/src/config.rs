//! Who we are, who our peers are, and how to speak with them.
//!
//! Invariant: a configuration that [`PeerConfig::check`] and [`SpeakerConfig::check`] let through can be run.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use zeroize::Zeroizing;

use crate::prefix::Family;

/// A speaker: ourselves, and the peers to begin with. [`SpeakerConfig::new`], and what else is wanted set.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SpeakerConfig {
    /// Our AS number.
    pub asn: u32,
    /// Our BGP identifier: any number that no other speaker of the AS has, written as an address.
    pub router_id: Ipv4Addr,
    /// Where peers reach us. Empty: we dial, and nobody can.
    pub listen: Vec<SocketAddr>,
    /// Peers from the start on.
    pub peers: Vec<PeerConfig>,
    /// It comes in the place of one that was abandoned: until they have a session, OPENs to those peers say that we have restarted, where
    /// there is a [`PeerConfig::graceful_restart`], and that packets were forwarded on.
    pub resumes: bool,
}

impl SpeakerConfig {
    /// A speaker that listens nowhere and has no peer yet.
    #[must_use]
    pub fn new(asn: u32, router_id: Ipv4Addr) -> Self {
        Self { asn, router_id, listen: Vec::new(), peers: Vec::new(), resumes: false }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.asn == 0 || self.asn == AS_TRANS {
            let what = format!("{} stands for nobody (RFC 7607, 6793)", self.asn);
            return Err(ConfigError::new("", "asn", what));
        }
        if self.router_id.is_unspecified() {
            return Err(ConfigError::new("", "router_id", "0.0.0.0 is no identifier (RFC 6286)"));
        }
        self.peers.iter().try_for_each(PeerConfig::check)
    }
}

/// A peer. [`PeerConfig::new`] fills in what is seldom changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerConfig {
    /// What the operator calls it; unique.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// The interface of a link-local address, by its index; else 0.
    pub scope: u32,
    /// Its TCP port: 179.
    pub port: u16,
    /// Its AS number. Ours: an internal peer.
    pub asn: u32,
    /// The address that we dial from; `None`: what the kernel chooses.
    pub local_address: Option<IpAddr>,
    /// Who dials.
    pub connect: Connect,
    /// Families to exchange: at least one.
    pub families: Vec<Family>,
    /// Next hops of our routes.
    pub next_hops: NextHops,
    /// The key of TCP MD5 (RFC 2385).
    pub md5: Option<Md5Key>,
    /// How many hops away the peer may be; packets from further are dropped by the kernel (RFC 5082). 1: a neighbour.
    pub gtsm_hops: Option<u8>,
    /// Time limits.
    pub times: Times,
    /// More different prefixes than this from the peer end the session (Cease, RFC 4486); `None`: any number, as none is kept.
    pub max_prefixes: Option<u32>,
    /// Off, unless the program can restart while forwarding goes on: routers go on sending to one that has died.
    pub graceful_restart: Option<GracefulRestart>,
}

/// What routes say of where to send packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NextHops {
    /// Of IPv4 routes; `None`: our address in the session.
    pub v4: Option<Ipv4Addr>,
    /// Of IPv6 routes; `None`: our address in the session.
    pub v6: Option<Ipv6Addr>,
    /// Announce IPv4 routes with an IPv6 next hop, if the peer can (RFC 8950).
    pub extended: bool,
}

/// Time limits of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// Silence that ends the session, as proposed: zero (never), or at least 3 s, in whole seconds. The lower side wins.
    pub hold: Duration,
    /// From the connection to the established session at most.
    pub open: Duration,
    /// A peer that takes no byte of ours for so long is lost (RFC 9687). More than `hold`.
    pub send_hold: Duration,
    /// A connection attempt without an answer ends after this.
    pub dial: Duration,
    /// The wait after the first failure; it doubles with each, up to `longest_retry`, less up to a quarter by chance.
    pub first_retry: Duration,
    /// The longest wait after a failure.
    pub longest_retry: Duration,
    /// So long are routes announced as about to go (RFC 8326) before a change that the session can't take restarts it.
    pub notice: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            hold: Duration::from_secs(90),
            open: Duration::from_secs(30),
            send_hold: Duration::from_secs(8 * 60),
            dial: Duration::from_secs(10),
            first_retry: Duration::from_secs(1),
            longest_retry: Duration::from_secs(60),
            notice: Duration::ZERO,
        }
    }
}

impl Times {
    /// The first fault: the field, and what is allowed.
    fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let whole = self.hold.subsec_nanos() == 0;
        let hold_fits = self.hold.is_zero() || (3..=u64::from(u16::MAX)).contains(&self.hold.as_secs());
        if !(whole && hold_fits) {
            return Err(("hold", "0, or 3 to 65,535 whole seconds are allowed"));
        }
        if self.send_hold <= self.hold {
            return Err(("send_hold", "must be longer than the hold time (RFC 9687 §4.4)"));
        }
        if self.open > LONGEST_OPEN {
            return Err(("open", "at most 240 s are allowed (RFC 4271 §8.2.2)"));
        }
        let times = [self.open, self.dial, self.first_retry];
        if times.iter().any(Duration::is_zero) || self.longest_retry < self.first_retry {
            let field = "open, dial, first_retry, longest_retry";
            return Err((field, "must not be zero; longest_retry is no less"));
        }
        Ok(())
    }
}

impl PeerConfig {
    /// A peer with both families, the usual times, and no key.
    #[must_use]
    pub fn new(name: &str, address: IpAddr, asn: u32) -> Self {
        Self {
            name: name.into(),
            address,
            scope: 0,
            port: 179,
            asn,
            local_address: None,
            connect: Connect::Both,
            families: Family::ALL.to_vec(),
            next_hops: NextHops::default(),
            md5: None,
            gtsm_hops: None,
            times: Times::default(),
            max_prefixes: None,
            graceful_restart: None,
        }
    }

    /// Whether a session can be run by it.
    ///
    /// # Errors
    /// The first field that is out of range, and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |field, what: &str| Err(ConfigError::new(&self.name, field, what));
        if self.name.is_empty() {
            return wrong("name", "must not be empty");
        }
        if self.asn == 0 || self.asn == AS_TRANS {
            return wrong("asn", "0 and 23456 stand for nobody (RFC 7607, 6793)");
        }
        if self.families.is_empty() {
            return wrong("families", "at least one of ipv4 and ipv6 is needed");
        }
        if self.local_address.is_some_and(|local| local.is_ipv4() != self.address.is_ipv4()) {
            return wrong("local_address", "must be of the peer's family");
        }
        if self.gtsm_hops == Some(0) {
            return wrong("gtsm_hops", "1 to 255 are allowed");
        }
        if matches!(self.graceful_restart, Some(GracefulRestart { seconds: 4096.., .. })) {
            return wrong("graceful_restart", "at most 4,095 seconds are allowed");
        }
        self.times.check().or_else(|(field, what)| wrong(field, what))
    }

    /// Whether a session under `self` can go on under `next`. The address that we dial from is the connection's matter.
    pub(crate) fn keeps_session(&self, next: &Self) -> bool {
        Self { local_address: next.local_address, ..self.until_restart(next) } == *next
    }

    /// What is in force of `next` until the session that runs under `self` has ended.
    pub(crate) fn until_restart(&self, next: &Self) -> Self {
        Self {
            asn: self.asn,
            local_address: self.local_address,
            families: self.families.clone(),
            next_hops: NextHops { extended: self.next_hops.extended, ..next.next_hops },
            graceful_restart: self.graceful_restart,
            ..next.clone()
        }
    }

    /// Whether an attempt to connect under `self` is one under `next` as well.
    pub(crate) fn connects_alike(&self, next: &Self) -> bool {
        let like = Self {
            name: next.name.clone(),
            next_hops: NextHops { extended: self.next_hops.extended, ..next.next_hops },
            times: Times {
                hold: self.times.hold,
                open: self.times.open,
                send_hold: self.times.send_hold,
                dial: self.times.dial,
                ..next.times
            },
            max_prefixes: next.max_prefixes,
            ..self.clone()
        };
        like == *next
    }

    /// What it is known by.
    pub(crate) fn place(&self) -> (IpAddr, u32) {
        (self.address, self.scope)
    }

    pub(crate) fn socket_address(&self) -> SocketAddr {
        match self.address {
            IpAddr::V4(address) => SocketAddr::new(address.into(), self.port),
            IpAddr::V6(address) => SocketAddrV6::new(address, self.port, 0, self.scope).into(),
        }
    }
}

/// Who opens the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connect {
    /// Either.
    #[default]
    Both,
    /// We alone; its connections are refused.
    Dial,
    /// The peer alone.
    Listen,
}

/// What the OPEN says of a restart (RFC 4724, RFC 8538).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GracefulRestart {
    /// How long the peer may keep our routes, in seconds: at most 4,095.
    pub seconds: u16,
    /// We have just restarted (the R bit).
    pub restarting: bool,
    /// Forwarding went on meanwhile (the F bit of every family).
    pub forwarding: bool,
}

/// A key of TCP MD5: 1 to 80 bytes, never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Md5Key(Zeroizing<Vec<u8>>);

impl Md5Key {
    /// # Errors
    /// No byte, or more than 80.
    pub fn new(key: impl Into<Vec<u8>>) -> Result<Self, ConfigError> {
        let key = Zeroizing::new(key.into());
        if (1..=80).contains(&key.len()) {
            return Ok(Self(key));
        }
        Err(ConfigError::new("", "md5", format!("{} bytes, 1 to 80 are allowed", key.len())))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Md5Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Md5Key(…)")
    }
}

/// A field that is out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{field}: {what}", if peer.is_empty() { String::new() } else { format!("peer {peer}: ") })]
#[non_exhaustive]
pub struct ConfigError {
    /// The peer's name; empty: the speaker itself.
    pub peer: String,
    /// The field of [`PeerConfig`] or [`SpeakerConfig`].
    pub field: &'static str,
    /// What is wrong, and what is allowed.
    pub what: String,
}

impl ConfigError {
    pub(crate) fn new(peer: &str, field: &'static str, what: impl Into<String>) -> Self {
        Self { peer: peer.into(), field, what: what.into() }
    }
}

/// RFC 6793 §9.
pub(crate) const AS_TRANS: u32 = 23_456;

const LONGEST_OPEN: Duration = Duration::from_secs(240);

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> PeerConfig {
        PeerConfig::new("router", [192, 0, 2, 0].into(), 65_000)
    }

    #[test]
    fn each_field_out_of_range_is_named() {
        assert_eq!(peer().check(), Ok(()));
        type Change = fn(&mut PeerConfig);
        let wrong: [(&str, Change); 9] = [
            ("name", |p| p.name.clear()),
            ("asn", |p| p.asn = 23_456),
            ("families", |p| p.families.clear()),
            ("local_address", |p| p.local_address = Some("2001:db8::1".parse().unwrap())),
            ("hold", |p| p.times.hold = Duration::from_secs(2)),
            ("hold", |p| p.times.hold = Duration::from_millis(3_500)),
            ("send_hold", |p| p.times.send_hold = p.times.hold),
            ("gtsm_hops", |p| p.gtsm_hops = Some(0)),
            ("graceful_restart", |p| {
                p.graceful_restart =
                    Some(GracefulRestart { seconds: 4_096, restarting: false, forwarding: false });
            }),
        ];
        for (field, change) in wrong {
            let mut peer = peer();
            change(&mut peer);
            let error = peer.check().unwrap_err();
            assert_eq!(error.field, field);
        }
        let mut endless = peer();
        endless.times.hold = Duration::ZERO;
        assert_eq!(endless.check(), Ok(()));
    }

    #[test]
    fn a_key_is_never_shown() {
        let key = Md5Key::new("s3cret").unwrap();
        assert_eq!(format!("{key:?}"), "Md5Key(…)");
        assert!(Md5Key::new("").is_err());
        assert!(Md5Key::new(vec![b'x'; 81]).is_err());
    }

    #[test]
    fn what_an_open_says_needs_another_session_and_nothing_else_does() {
        type Change = fn(&mut PeerConfig);
        let lives: [Change; 8] = [
            |p| p.name = "other".into(),
            |p| p.port = 1_790,
            |p| p.connect = Connect::Listen,
            |p| p.next_hops.v4 = Some([192, 0, 2, 9].into()),
            |p| p.md5 = Some(Md5Key::new("s3cret").unwrap()),
            |p| p.gtsm_hops = Some(1),
            |p| p.times.hold = Duration::from_secs(9),
            |p| p.max_prefixes = Some(1),
        ];
        let restarts: [Change; 3] =
            [|p| p.asn = 65_001, |p| p.next_hops.extended = true, |p| p.families.truncate(1)];
        for (changes, keeps) in [(&lives[..], true), (&restarts[..], false)] {
            for change in changes {
                let mut next = peer();
                change(&mut next);
                assert_eq!(peer().keeps_session(&next), keeps, "{next:?}");
                assert!(peer().keeps_session(&peer().until_restart(&next)));
            }
        }
    }

    #[test]
    fn an_attempt_to_connect_lives_on_under_another_name_and_not_under_another_key() {
        let mut next = PeerConfig { name: "other".into(), ..peer() };
        assert!(peer().connects_alike(&next));
        next.md5 = Some(Md5Key::new("s3cret").unwrap());
        assert!(!peer().connects_alike(&next));
    }
}
