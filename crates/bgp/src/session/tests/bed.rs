//! Test fixtures with simulated time: two sessions, or one session that receives messages from the
//! test.

use std::collections::BTreeSet;

use super::super::*;
use crate::message::Open;
use crate::route::Attributes;

/// A session, and the route table of a peer that has read all its messages.
pub(super) struct Side {
    pub(super) session: Session,
    pub(super) said: Vec<Message>,
    pub(super) bytes: Vec<u8>,
    pub(super) mirror: BTreeSet<Prefix>,
    inbox: Inbox,
}

pub(super) const US: Identity = Identity { asn: 65_101, router_id: Ipv4Addr::new(192, 0, 2, 1) };
pub(super) const PEER: Identity = Identity { asn: 65_000, router_id: Ipv4Addr::new(192, 0, 2, 0) };

pub(super) fn config(peer: Identity) -> PeerConfig {
    let mut config = PeerConfig::new("peer", peer.router_id.into(), peer.asn);
    config.next_hops.v6 = Some("2001:db8::1".parse().unwrap());
    config
}

impl Side {
    pub(super) fn new(local: Identity, config: PeerConfig, routes: &[&str], now: Instant) -> Self {
        let want = Arc::new(table(routes));
        let session = Session::new(local, Arc::new(config), local.router_id.into(), want, now);
        Self { session, said: vec![], bytes: vec![], mirror: BTreeSet::new(), inbox: Inbox::default() }
    }

    /// Takes up to `most` bytes of output, as a connection would.
    pub(super) fn take(&mut self, most: usize, now: Instant) -> Vec<u8> {
        let output = self.session.output(now);
        let taken = output[..output.len().min(most)].to_vec();
        self.session.written(taken.len(), now);
        self.bytes.extend_from_slice(&taken);
        self.inbox.push(&taken);
        let dialect = Dialect { local_asn: 1, external: true, four_byte: true };
        while let Some(message) = self.inbox.next(dialect).expect("the output is valid") {
            if let Message::Update(update) = &message {
                assert_eq!(update.tolerated, None);
                update.withdrawn.iter().for_each(|prefix| _ = self.mirror.remove(prefix));
                self.mirror.extend(&update.announced);
            }
            self.said.push(message);
        }
        taken
    }

    pub(super) fn take_all(&mut self, now: Instant) {
        while !self.take(usize::MAX, now).is_empty() {}
    }

    pub(super) fn notification(&self) -> Option<&Notification> {
        self.said.iter().find_map(|message| match message {
            Message::Notification(notification) => Some(notification),
            _ => None,
        })
    }

    pub(super) fn codes(&self) -> Option<(u8, u8)> {
        self.notification().map(|notification| (notification.code, notification.subcode))
    }
}

/// Passes bytes between both sides until there is no more output.
pub(super) fn exchange(a: &mut Side, b: &mut Side, now: Instant) {
    loop {
        let there = a.take(usize::MAX, now);
        b.session.received(&there, now);
        let back = b.take(usize::MAX, now);
        a.session.received(&back, now);
        if there.is_empty() && back.is_empty() {
            return;
        }
    }
}

/// Returns two sides with an established session. Side `a` announces `routes`.
pub(super) fn established(a: PeerConfig, b: PeerConfig, routes: &[&str]) -> (Side, Side, Instant) {
    let now = Instant::now();
    let (mut a, mut b) = (Side::new(US, a, routes, now), Side::new(PEER, b, &[], now));
    exchange(&mut a, &mut b, now);
    let (here, there) = (a.session.state(), b.session.state());
    assert_eq!((here, there), (State::Established, State::Established), "{:?}", a.session.end());
    (a, b, now)
}

pub(super) fn table(routes: &[&str]) -> Routes {
    let mut table = Routes::new();
    for route in routes {
        table.insert(route.parse().unwrap(), Attributes::default()).unwrap();
    }
    table
}

pub(super) fn prefixes(routes: &[&str]) -> BTreeSet<Prefix> {
    routes.iter().map(|route| route.parse().unwrap()).collect()
}

/// Encodes a message without the codec.
pub(super) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xff; 16];
    frame.extend_from_slice(&u16::try_from(19 + body.len()).unwrap().to_be_bytes());
    frame.push(kind);
    frame.extend_from_slice(body);
    frame
}

/// Encodes an OPEN of [`PEER`] with these capabilities (code and value).
pub(super) fn open(asn: u16, hold: u16, capabilities: &[(u8, &[u8])]) -> Vec<u8> {
    let list: Vec<u8> = capabilities
        .iter()
        .flat_map(|(code, value)| [&[*code, u8::try_from(value.len()).unwrap()], *value].concat())
        .collect();
    let len = u8::try_from(list.len()).unwrap();
    let mut body = vec![4];
    body.extend_from_slice(&asn.to_be_bytes());
    body.extend_from_slice(&hold.to_be_bytes());
    body.extend_from_slice(&PEER.router_id.octets());
    if len == 0 {
        body.push(0);
    } else {
        body.extend_from_slice(&[len + 2, 2, len]);
    }
    body.extend_from_slice(&list);
    frame(1, &body)
}

pub(super) const KEEPALIVE: u8 = 4;
pub(super) const MP_V4: (u8, &[u8]) = (1, &[0, 1, 0, 1]);
pub(super) const MP_V6: (u8, &[u8]) = (1, &[0, 2, 0, 1]);

/// Returns a side with an established session. The test itself writes the peer's messages.
pub(super) fn against_hand(config: PeerConfig, hold: u16, capabilities: &[(u8, &[u8])]) -> (Side, Instant) {
    let now = Instant::now();
    let mut side = Side::new(US, config, &[], now);
    side.take_all(now);
    side.session.received(&open(65_000, hold, capabilities), now);
    side.session.received(&frame(KEEPALIVE, &[]), now);
    side.take_all(now);
    assert_eq!(side.session.state(), State::Established, "{:?}", side.session.end());
    (side, now)
}

/// Returns the OPEN that a side has sent.
pub(super) fn own_open(side: &Side) -> &Open {
    match &side.said[0] {
        Message::Open(open) => open,
        other => panic!("the first message is {other:?}"),
    }
}

pub(super) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
