//! Entry points for the fuzz targets in `tests/fuzz`, which cannot use the private types of this
//! crate.
//!
//! Some functions take arbitrary bytes and panic if a session does not have a required property.
//! Other functions return realistic messages as seeds for the fuzzer. This module is compiled only
//! with the feature `fuzzing`. The message parsers of this module share no code with `codec`, so
//! that they can detect errors in `codec`.
//!
//! See RFC 4271 §4 and §6.

mod bfd;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::codec::{self, Dialect};
use crate::config::{GracefulRestart, PeerConfig};
use crate::message::{Identity, Message};
use crate::prefix::Prefix;
use crate::route::{Attributes, Community, LargeCommunity, Routes};
use crate::session::{Session, Stop};
use crate::status::{Counts, State};

pub use bfd::{bfd, datagrams, handed_bfd, handed_sessions};

/// Runs a session with bytes from a router. The first byte selects the configuration, and
/// determines whether the session is established before the remaining bytes arrive.
///
/// The function checks these properties:
///
/// - The result does not depend on how the bytes are split.
/// - The output consists of complete messages. The first message is an OPEN, and only the last
///   message can be a NOTIFICATION.
/// - A session that has ended ignores input.
/// - The number of counted prefixes is at most the number of bytes.
/// - The reason for the end contains no control characters.
/// - An independent parser reads the same prefixes from the UPDATE fields of RFC 4271.
///
/// # Panics
/// Panics if one of these properties does not hold.
pub fn session(bytes: &[u8]) {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let now = Instant::now();
    let outcome = Outcome::of(how, &[bytes], now);
    let one_by_one: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(outcome, Outcome::of(how, &one_by_one, now));
    let most = bytes.len() + routes(&Attributes::default()).len();
    assert!(outcome.counts.ignored_prefixes <= most as u64, "{}", outcome.counts.ignored_prefixes);
    assert!(outcome.end.is_none_or(|why| !why.contains(char::is_control)));
    let kinds: Vec<u8> = frames(&outcome.said).map(|(kind, _)| kind).collect();
    assert_eq!(kinds.first(), Some(&OPEN));
    let notification = kinds.iter().position(|kind| *kind == NOTIFICATION);
    assert!(notification.is_none_or(|at| at + 1 == kinds.len()), "{kinds:?}");
    frames(bytes).filter(|(kind, _)| *kind == UPDATE).for_each(|(_, frame)| updates_are_read_alike(frame));
}

/// The result of a session.
#[derive(Debug, PartialEq)]
struct Outcome {
    end: Option<String>,
    counts: Counts,
    said: Vec<u8>,
}

impl Outcome {
    fn of(how: u8, parts: &[&[u8]], now: Instant) -> Self {
        let mut session = configured(how, now);
        let mut said = taken(&mut session, now);
        if how & ESTABLISHED != 0 {
            session.received(hello(how), now);
            assert_eq!(session.state(), State::Established, "{:?}", session.end());
            said.extend(taken(&mut session, now));
        }
        parts.iter().for_each(|part| session.received(part, now));
        let end = session.end().map(str::to_owned);
        let counts = session.counts();
        if end.is_some() {
            session.received(&[0; 64], now);
            assert_eq!((session.state(), session.counts()), (State::Idle, counts));
        }
        said.extend(taken(&mut session, now));
        Self { end, counts, said }
    }
}

/// Returns the messages of a router in the configuration selected by `how`. The messages are
/// cached, because creating them takes longer than testing one input.
fn hello(how: u8) -> &'static [u8] {
    static MADE: [OnceLock<Vec<u8>>; 1 << u8::BITS] = [const { OnceLock::new() }; 1 << u8::BITS];
    let made = MADE.get(usize::from(how)).expect("the table has an entry for each byte value");
    made.get_or_init(|| conversation(how, Attributes::default()))
}

/// Takes all output of a session, as a connection does.
fn taken(session: &mut Session, now: Instant) -> Vec<u8> {
    let mut said = Vec::new();
    loop {
        let bytes = session.output(now).to_vec();
        session.written(bytes.len(), now);
        if bytes.is_empty() {
            return said;
        }
        said.extend(bytes);
    }
}

/// Splits bytes into complete messages by their headers. An incomplete message at the end is
/// ignored.
fn frames(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (marker, behind) = rest.split_at_checked(16)?;
        let &[high, low, kind, ..] = behind else { return None };
        let (frame, next) = rest.split_at_checked(usize::from(high) << 8 | usize::from(low))?;
        rest = next;
        (marker == [0xff; 16] && frame.len() >= 19).then_some((kind, frame))
    })
}

fn updates_are_read_alike(frame: &[u8]) {
    for (external, four_byte) in [(false, true), (true, true), (true, false)] {
        let dialect = Dialect { local_asn: US.asn, external, four_byte };
        let Ok(Message::Update(update)) = codec::decode(frame, dialect) else { continue };
        if update.tolerated.is_none() {
            let (withdrawn, announced) = prefixes(frame).expect("a decoded UPDATE has these fields");
            let starts = |ours: &[Prefix], theirs: &[(u32, u8)]| {
                let ours = ours.iter().map_while(|prefix| match prefix.address() {
                    IpAddr::V4(address) => Some((u32::from(address), prefix.len())),
                    IpAddr::V6(_) => None,
                });
                ours.take(theirs.len()).eq(theirs.iter().copied())
            };
            assert!(starts(&update.withdrawn, &withdrawn), "{withdrawn:?}, read as {:?}", update.withdrawn);
            assert!(starts(&update.announced, &announced), "{announced:?}, read as {:?}", update.announced);
        }
    }
}

/// IPv4 networks. Each entry contains an address and a prefix length.
type Networks = Vec<(u32, u8)>;

/// Parses the withdrawn and the announced prefixes in the fields of an UPDATE (RFC 4271 §4.3).
fn prefixes(frame: &[u8]) -> Option<(Networks, Networks)> {
    let field = |rest: &'_ [u8]| {
        let &[high, low, ..] = rest else { return None };
        Some(2 + (usize::from(high) << 8 | usize::from(low)))
    };
    let body = frame.get(19..)?;
    let (withdrawn, rest) = body.split_at_checked(field(body)?)?;
    let (_, announced) = rest.split_at_checked(field(rest)?)?;
    Some((networks(withdrawn.get(2..)?)?, networks(announced)?))
}

fn networks(mut list: &[u8]) -> Option<Networks> {
    let mut found = Vec::new();
    while let Some((&bits, rest)) = list.split_first() {
        let (bytes, behind) = rest.split_at_checked(usize::from(bits.div_ceil(8)))?;
        let mut address = bytes.iter().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
        address <<= 8 * 4u32.checked_sub(u32::try_from(bytes.len()).ok()?)?;
        let host_bits = (1u64 << 32u8.checked_sub(bits)?) - 1;
        found.push((u32::try_from(address & !host_bits).ok()?, bits));
        list = behind;
    }
    Some(found)
}

fn configured(how: u8, now: Instant) -> Session {
    let them = peer(how);
    let mut config = PeerConfig::new("router", them.router_id.into(), them.asn);
    config.next_hops.v6 = "2001:db8::1".parse().ok();
    config.next_hops.extended = how & EXTENDED_NEXT_HOP != 0;
    config.max_prefixes = (how & FEW_PREFIXES != 0).then_some(3);
    let restart = GracefulRestart { seconds: 120, restarting: false, forwarding: false };
    config.graceful_restart = (how & GRACEFUL_RESTART != 0).then_some(restart);
    Session::new(US, Arc::new(config), US.router_id.into(), Arc::new(routes(&Attributes::default())), now)
}

fn routes(attributes: &Attributes) -> Routes {
    let mut routes = Routes::new();
    for route in ["203.0.113.10/32", "198.51.100.0/25", "2001:db8:f::10/128"] {
        let inserted = route.parse().map(|route| routes.insert(route, attributes.clone()));
        assert!(matches!(inserted, Ok(Ok(_))), "{route}");
    }
    routes
}

/// Returns the AS number and router ID of the simulated router. `how` selects an internal or an
/// external peer.
fn peer(how: u8) -> Identity {
    let router_id = std::net::Ipv4Addr::new(192, 0, 2, 0);
    Identity { asn: if how & INTERNAL == 0 { 65_000 } else { US.asn }, router_id }
}

/// Runs a session in which a router announces routes with these attributes and then withdraws them.
/// Returns all messages that the router sent.
fn conversation(how: u8, attributes: Attributes) -> Vec<u8> {
    let (mut all, now) = (Vec::new(), Instant::now());
    let mut config = PeerConfig::new("balancer", US.router_id.into(), US.asn);
    config.next_hops.v6 = "2001:db8::2".parse().ok();
    let them = peer(how);
    let want = Arc::new(routes(&attributes));
    let mut router = Session::new(them, Arc::new(config), them.router_id.into(), want, now);
    let mut balancer = configured(how & !ESTABLISHED, now);
    let mut withdrawn = false;
    loop {
        let there = taken(&mut router, now);
        balancer.received(&there, now);
        let back = taken(&mut balancer, now);
        router.received(&back, now);
        all.extend_from_slice(&there);
        if there.is_empty() && back.is_empty() {
            if withdrawn {
                return all;
            }
            router.desire(Arc::default());
            withdrawn = true;
        }
    }
}

/// Returns seeds for the fuzzer. Each seed has all messages of a router's session, or only a single
/// message.
pub fn conversations() -> Vec<Vec<u8>> {
    let attributes = Attributes {
        med: Some(9),
        local_pref: Some(200),
        prepend: 2,
        shutdown_prepend: 0,
        communities: vec![Community::GRACEFUL_SHUTDOWN, Community(65_000, 1)],
        large_communities: vec![LargeCommunity(65_000, 1, 2)],
    };
    let mut all = Vec::new();
    for how in [0, INTERNAL, EXTENDED_NEXT_HOP | GRACEFUL_RESTART, FEW_PREFIXES] {
        let whole = conversation(how, attributes.clone());
        all.extend(frames(&whole).map(|(_, frame)| [&[how | ESTABLISHED], frame].concat()));
        all.push([&[how], &whole[..]].concat());
        all.push([&[how | ESTABLISHED], &whole[..]].concat());
    }
    all.push([&[ESTABLISHED], &farewell()[..]].concat());
    all
}

/// Returns a NOTIFICATION for an administrative shutdown that contains a shutdown message.
fn farewell() -> Vec<u8> {
    let now = Instant::now();
    let mut router = configured(0, now);
    router.received(&conversation(0, Attributes::default()), now);
    taken(&mut router, now);
    router.stop(&Stop::Shutdown("rack 7 moves".into()), now);
    taken(&mut router, now)
}

const US: Identity = Identity { asn: 65_101, router_id: std::net::Ipv4Addr::new(192, 0, 2, 1) };
const OPEN: u8 = 1;
const UPDATE: u8 = 2;
const NOTIFICATION: u8 = 3;
/// The bits of the first input byte, by which the configuration is selected.
const ESTABLISHED: u8 = 1;
const INTERNAL: u8 = 2;
const FEW_PREFIXES: u8 = 4;
const GRACEFUL_RESTART: u8 = 8;
const EXTENDED_NEXT_HOP: u8 = 16;
