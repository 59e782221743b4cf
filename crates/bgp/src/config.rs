//! The configuration of the speaker and its peers.
//!
//! The speaker can run with every configuration that passes [`PeerConfig::check`] and
//! [`SpeakerConfig::check`].

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use zeroize::Zeroizing;

use crate::prefix::Family;

/// The configuration of a speaker and its initial peers. Create the configuration with
/// [`SpeakerConfig::new`], then set the other fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SpeakerConfig {
    /// The local AS number.
    pub asn: u32,
    /// The local router ID (BGP identifier). The ID can be any number that is unique in the AS, and
    /// is written as an IPv4 address.
    pub router_id: Ipv4Addr,
    /// The addresses on which the speaker accepts connections. If the list is empty, the speaker
    /// accepts no connections and only opens connections to peers.
    pub listen: Vec<SocketAddr>,
    /// The peers that the speaker starts with.
    pub peers: Vec<PeerConfig>,
    /// `true` if this speaker replaces a speaker that called
    /// [`Speaker::abandon`](crate::Speaker::abandon). OPEN messages to peers with
    /// [`PeerConfig::graceful_restart`] then report a restart with preserved forwarding, until the
    /// first session with the peer is up.
    pub resumes: bool,
}

impl SpeakerConfig {
    /// Creates a configuration without listening addresses and without peers.
    #[must_use]
    pub fn new(asn: u32, router_id: Ipv4Addr) -> Self {
        Self { asn, router_id, listen: Vec::new(), peers: Vec::new(), resumes: false }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.asn == 0 || self.asn == AS_TRANS {
            let what = format!("must not be {}, which is reserved (RFC 7607, 6793)", self.asn);
            return Err(ConfigError::new("", "asn", what));
        }
        if self.router_id.is_unspecified() {
            return Err(ConfigError::new("", "router_id", "must not be 0.0.0.0 (RFC 6286)"));
        }
        self.peers.iter().try_for_each(PeerConfig::check)
    }
}

/// The configuration of a peer. [`PeerConfig::new`] sets the optional fields to common values.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerConfig {
    /// The unique name of the peer, chosen by the operator.
    pub name: String,
    /// The address of the peer.
    pub address: IpAddr,
    /// The index of the interface if `address` is a link-local address, or 0 for other addresses.
    pub scope: u32,
    /// The TCP port of the peer. The default is 179.
    pub port: u16,
    /// The AS number of the peer. A peer with the local AS number is an internal (iBGP) peer.
    pub asn: u32,
    /// The source address for outgoing connections. With `None`, the kernel chooses the address.
    pub local_address: Option<IpAddr>,
    /// The side that opens the connection.
    pub connect: Connect,
    /// The address families whose routes are exchanged. At least one is required.
    pub families: Vec<Family>,
    /// The next hops of announced routes.
    pub next_hops: NextHops,
    /// The key for TCP MD5 signatures (RFC 2385).
    pub md5: Option<Md5Key>,
    /// The maximum distance of the peer in hops, for GTSM (RFC 5082). The kernel drops packets from
    /// a greater distance. Use 1 for a directly connected neighbor.
    pub gtsm_hops: Option<u8>,
    /// The timers and timeouts for the peer.
    pub times: Times,
    /// The maximum number of distinct prefixes that the peer may announce. If the peer announces
    /// more prefixes, the session ends (Cease, RFC 4486). With `None`, there is no limit, and
    /// received prefixes are not stored.
    pub max_prefixes: Option<u32>,
    /// The graceful restart settings. Set this field only if this machine continues to forward
    /// packets while the program restarts, because routers keep sending packets to a failed speaker
    /// for the restart time.
    pub graceful_restart: Option<GracefulRestart>,
}

/// The next hops of announced routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NextHops {
    /// The next hop of IPv4 routes. With `None`, the next hop is the local address of the session.
    pub v4: Option<Ipv4Addr>,
    /// The next hop of IPv6 routes. With `None`, the next hop is the local address of the session.
    pub v6: Option<Ipv6Addr>,
    /// `true` to announce IPv4 routes with an IPv6 next hop if the peer supports it (RFC 8950).
    pub extended: bool,
}

/// The timers and timeouts for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// The hold time that this speaker proposes. If no message arrives for the hold time, the
    /// session ends. The lower of the two proposed values is used. The value must be in whole
    /// seconds and at least 3 s, or zero for no limit.
    pub hold: Duration,
    /// The maximum time from opening the TCP connection to establishing the session.
    pub open: Duration,
    /// The send hold time (RFC 9687). If the peer reads no data for this time, the session ends.
    /// The value must be longer than `hold`.
    pub send_hold: Duration,
    /// The timeout of a connection attempt.
    pub dial: Duration,
    /// The wait after the first failure. The wait doubles with each further failure, up to
    /// `max_retry`, and is randomly reduced by up to a quarter.
    pub first_retry: Duration,
    /// The longest wait after a failure.
    pub max_retry: Duration,
    /// The delay between a configuration change that needs a new session and the restart of the
    /// session. During this time, routes carry the graceful-shutdown community (RFC 8326).
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
            max_retry: Duration::from_secs(60),
            notice: Duration::ZERO,
        }
    }
}

impl Times {
    /// Checks the fields. The error contains the name of the first invalid field and the rule that
    /// the field violates.
    fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let whole = self.hold.subsec_nanos() == 0;
        let hold_fits = self.hold.is_zero() || (3..=u64::from(u16::MAX)).contains(&self.hold.as_secs());
        if !(whole && hold_fits) {
            return Err(("hold", "must be 0 or 3 to 65,535 whole seconds"));
        }
        if self.send_hold <= self.hold {
            return Err(("send_hold", "must be longer than the hold time (RFC 9687 §4.4)"));
        }
        if self.open > LONGEST_OPEN {
            return Err(("open", "must be at most 240 s (RFC 4271 §8.2.2)"));
        }
        let times = [self.open, self.dial, self.first_retry];
        if times.iter().any(Duration::is_zero) || self.max_retry < self.first_retry {
            let field = "open, dial, first_retry, max_retry";
            return Err((field, "must be above zero, and max_retry must be at least first_retry"));
        }
        Ok(())
    }
}

impl PeerConfig {
    /// Creates a peer with both address families, the default time limits and no MD5 key.
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

    /// Checks that the values of all fields are allowed.
    ///
    /// # Errors
    /// Returns the first field that is out of range, with the allowed range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |field, what: &str| Err(ConfigError::new(&self.name, field, what));
        if self.name.is_empty() {
            return wrong("name", "must not be empty");
        }
        if self.asn == 0 || self.asn == AS_TRANS {
            return wrong("asn", "must not be 0 or 23456, which are reserved (RFC 7607, 6793)");
        }
        if self.families.is_empty() {
            return wrong("families", "must include at least one of ipv4 and ipv6");
        }
        if self.local_address.is_some_and(|local| local.is_ipv4() != self.address.is_ipv4()) {
            return wrong("local_address", "must have the same address family as the peer");
        }
        if self.gtsm_hops == Some(0) {
            return wrong("gtsm_hops", "must be 1 to 255");
        }
        if matches!(self.graceful_restart, Some(GracefulRestart { seconds: 4096.., .. })) {
            return wrong("graceful_restart", "must be at most 4,095 seconds");
        }
        self.times.check().or_else(|(field, what)| wrong(field, what))
    }

    /// Returns `true` if a session can continue when its configuration changes from `self` to
    /// `next`. The local address is ignored here, because the caller compares it with the local
    /// address of the connection.
    pub(crate) fn keeps_session(&self, next: &Self) -> bool {
        Self { local_address: next.local_address, ..self.until_restart(next) } == *next
    }

    /// Returns the configuration that the running session uses until it restarts. The result is
    /// `next`, except that fields whose change needs a new session keep the values of `self`.
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

    /// Returns `true` if a connection attempt can continue when the configuration changes from
    /// `self` to `next`.
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

    /// Returns the address and the scope, which together identify the peer.
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

/// The side that opens the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connect {
    /// Either side may open the connection.
    #[default]
    Both,
    /// Only this speaker opens the connection. Connections from the peer are refused.
    Dial,
    /// Only the peer opens the connection.
    Listen,
}

/// The graceful restart capability in the OPEN message (RFC 4724, RFC 8538).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GracefulRestart {
    /// The time in seconds for which the peer may keep the routes after the session is lost. The
    /// maximum is 4,095.
    pub seconds: u16,
    /// `true` if this speaker has just restarted (the R bit of the capability).
    pub restarting: bool,
    /// `true` if forwarding continued during the restart (the F bit of every family).
    pub forwarding: bool,
}

/// A TCP MD5 key of 1 to 80 bytes. The `Debug` output does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct Md5Key(Zeroizing<Vec<u8>>);

impl Md5Key {
    /// Creates a key from its bytes.
    ///
    /// # Errors
    /// Returns an error if the key is empty or longer than 80 bytes.
    pub fn new(key: impl Into<Vec<u8>>) -> Result<Self, ConfigError> {
        let key = Zeroizing::new(key.into());
        if (1..=80).contains(&key.len()) {
            return Ok(Self(key));
        }
        Err(ConfigError::new("", "md5", format!("must have 1 to 80 bytes, not {}", key.len())))
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

/// The error for an invalid field of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}{} {what}", if peer.is_empty() { String::new() } else { format!(" of peer {peer}") })]
#[non_exhaustive]
pub struct ConfigError {
    /// The name of the peer, or an empty string for the speaker itself.
    pub peer: String,
    /// The name of the field in [`PeerConfig`] or [`SpeakerConfig`].
    pub field: &'static str,
    /// The rule that the field violates, worded to follow the field name, such as "must not be
    /// empty".
    pub what: String,
}

impl ConfigError {
    pub(crate) fn new(peer: &str, field: &'static str, what: impl Into<String>) -> Self {
        Self { peer: peer.into(), field, what: what.into() }
    }
}

/// AS_TRANS, which replaces AS numbers above 65,535 in two-byte fields (RFC 6793 §9).
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
    fn config_change_of_an_open_field_needs_another_session() {
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
    fn connection_attempt_survives_a_rename_but_not_a_new_key() {
        let mut next = PeerConfig { name: "other".into(), ..peer() };
        assert!(peer().connects_alike(&next));
        next.md5 = Some(Md5Key::new("s3cret").unwrap());
        assert!(!peer().connects_alike(&next));
    }
}
