//! Computes and encodes the route changes for one peer.
//!
//! The module encodes one UPDATE or ROUTE-REFRESH at a time, when the connection can accept it.
//! Even a slow peer therefore needs memory only for the route tables, not for a queue of messages.
//!
//! Invariant: The field `sent` contains the routes that the peer will have after reading all
//! messages encoded so far.
//!
//! See RFC 4271 §9.2, RFC 4724 §2, RFC 7313 §4 and RFC 8950.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use crate::codec::{self, Dialect, Unencodable};
use crate::config::PeerConfig;
use crate::message::RefreshKind;
use crate::prefix::{Family, Prefix};
use crate::route::{Attributes, Routes};
use crate::status::Negotiated;

/// The next hops of a session, indexed by [`Family::index`]. An entry is `None` if routes of the
/// family cannot be announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NextHops([Option<IpAddr>; 2]);

impl NextHops {
    /// Returns the configured next hops, or the local address of the session where none is
    /// configured.
    pub(crate) fn new(config: &PeerConfig, negotiated: &Negotiated, local: IpAddr) -> Self {
        let own_v4 = Some(local).filter(IpAddr::is_ipv4);
        let own_v6 =
            Some(local).filter(|local| matches!(local, IpAddr::V6(v6) if !v6.is_unicast_link_local()));
        let v6 = config.next_hops.v6.map(IpAddr::V6).or(own_v6);
        let mut v4 = config.next_hops.v4.map(IpAddr::V4).or(own_v4);
        if negotiated.extended_next_hop {
            v4 = v4.or(v6);
        }
        let of = |family, hop: Option<IpAddr>| hop.filter(|_| negotiated.families.contains(&family));
        Self([of(Family::Ipv4, v4), of(Family::Ipv6, v6)])
    }

    pub(crate) fn of(&self, family: Family) -> Option<IpAddr> {
        self.0.get(family.index()).copied().flatten()
    }
}

/// The current routes of the peer, and the queued changes that are still needed to reach the
/// desired routes.
#[derive(Debug)]
pub(crate) struct Outbound {
    dialect: Dialect,
    pub(crate) next_hops: NextHops,
    enhanced: bool,
    want: Arc<Routes>,
    /// The table is shared with the status of the peer. The first change after the table was
    /// published in the status therefore copies the table.
    pub(crate) sent: Arc<Routes>,
    counts: [usize; 2],
    /// The number of desired routes that have no next hop in this session or do not fit into a
    /// message.
    pub(crate) unannounceable: usize,
    work: VecDeque<Work>,
    /// The number of routes and withdrawals that are not encoded yet.
    pub(crate) pending: usize,
    ends_of_rib: VecDeque<Family>,
    refresh_wanted: [bool; 2],
    refreshing: Option<Family>,
}

/// A queued route change. The prefixes of one change are encoded in as few messages as possible.
#[derive(Debug)]
enum Work {
    Withdraw(Family, Vec<Prefix>),
    Announce(Family, Arc<Attributes>, Vec<Prefix>),
}

impl Outbound {
    /// Creates the state for a peer that has no routes yet. After the initial routes, the peer
    /// receives an End-of-RIB marker for each family.
    pub(crate) fn new(
        dialect: Dialect,
        next_hops: NextHops,
        negotiated: &Negotiated,
        want: Arc<Routes>,
    ) -> Self {
        let mut outbound = Self {
            dialect,
            next_hops,
            enhanced: negotiated.enhanced_route_refresh,
            want,
            sent: Arc::default(),
            counts: [0; 2],
            unannounceable: 0,
            work: VecDeque::new(),
            pending: 0,
            ends_of_rib: negotiated.families.iter().copied().collect(),
            refresh_wanted: [false; 2],
            refreshing: None,
        };
        outbound.plan();
        outbound
    }

    pub(crate) fn desire(&mut self, want: Arc<Routes>) {
        if !Arc::ptr_eq(&want, &self.want) {
            self.want = want;
            self.plan();
        }
    }

    /// Sets the next hops. If a next hop has changed, all routes are announced again.
    pub(crate) fn use_next_hops(&mut self, next_hops: NextHops) {
        if next_hops != self.next_hops {
            self.next_hops = next_hops;
            Family::ALL.into_iter().for_each(|family| self.forget(family));
            self.plan();
        }
    }

    /// Schedules a refresh of a family. Repeated requests are merged until the refresh starts.
    pub(crate) fn refresh(&mut self, family: Family) {
        if let Some(wanted) = self.refresh_wanted.get_mut(family.index()) {
            *wanted = true;
        }
    }

    /// Returns the number of routes that the peer has for an address family.
    pub(crate) fn announced(&self, family: Family) -> usize {
        self.counts.get(family.index()).copied().unwrap_or(0)
    }

    /// Returns the next message, or `None` if the peer is up to date.
    pub(crate) fn next(&mut self) -> Option<Result<Vec<u8>, Unencodable>> {
        if let Some(work) = self.work.pop_front() {
            return Some(self.write(work));
        }
        if let Some(family) = self.refreshing.take() {
            return Some(codec::encode_refresh(family, RefreshKind::End));
        }
        if let Some(family) = self.ends_of_rib.pop_front() {
            return Some(codec::encode_withdraw(family, &[], family == Family::Ipv4));
        }
        let family =
            Family::ALL.into_iter().find(|family| self.refresh_wanted.get(family.index()) == Some(&true))?;
        if let Some(wanted) = self.refresh_wanted.get_mut(family.index()) {
            *wanted = false;
        }
        self.forget(family);
        self.plan();
        if self.enhanced {
            self.refreshing = Some(family);
            return Some(codec::encode_refresh(family, RefreshKind::Begin));
        }
        self.next()
    }

    /// Computes which routes must be announced or withdrawn.
    fn plan(&mut self) {
        self.unannounceable = 0;
        let mut groups = BTreeMap::<(Family, &Arc<Attributes>), Vec<Prefix>>::new();
        for (prefix, attributes) in self.want.iter() {
            if self.next_hops.of(prefix.family()).is_none() {
                self.unannounceable += 1;
            } else if self.sent.get(prefix).is_none_or(|sent| sent != attributes) {
                groups.entry((prefix.family(), attributes)).or_default().push(prefix);
            }
        }
        let mut gone: [Vec<Prefix>; 2] = [Vec::new(), Vec::new()];
        for &prefix in self.sent.0.keys().filter(|&&prefix| self.want.get(prefix).is_none()) {
            if let Some(list) = gone.get_mut(prefix.family().index()) {
                list.push(prefix);
            }
        }
        let gone = Family::ALL.into_iter().zip(gone).filter(|(_, list)| !list.is_empty());
        let gone = gone.map(|(family, list)| Work::Withdraw(family, list));
        let new = groups.into_iter();
        let new =
            new.map(|((family, attributes), list)| Work::Announce(family, Arc::clone(attributes), list));
        self.work = gone.chain(new).collect();
        let count = |work: &Work| match work {
            Work::Withdraw(_, list) | Work::Announce(_, _, list) => list.len(),
        };
        self.pending = self.work.iter().map(count).sum();
    }

    /// Encodes one message for the change `work`. The remaining prefixes are put back at the front
    /// of the queue.
    fn write(&mut self, work: Work) -> Result<Vec<u8>, Unencodable> {
        match work {
            Work::Withdraw(family, mut list) => {
                let part = take_fitting(&mut list, codec::WITHDRAW_ROOM);
                self.put_back(part.len(), list, |list| Work::Withdraw(family, list));
                part.iter().for_each(|prefix| self.note(*prefix, None));
                let by_body = self.next_hops.of(family).is_none_or(|hop| hop.is_ipv4());
                codec::encode_withdraw(family, &part, by_body)
            }
            Work::Announce(family, attributes, mut list) => {
                let Some(next_hop) = self.next_hops.of(family) else { return Ok(Vec::new()) };
                let part = take_fitting(&mut list, codec::room(self.dialect, &attributes, family, next_hop));
                self.put_back(part.len(), list, |list| Work::Announce(family, Arc::clone(&attributes), list));
                let message = codec::encode_announce(self.dialect, &attributes, family, next_hop, &part);
                match &message {
                    Ok(_) => part.iter().for_each(|prefix| self.note(*prefix, Some(&attributes))),
                    Err(_) => self.unannounceable += part.len(),
                }
                message
            }
        }
    }

    fn put_back(&mut self, taken: usize, rest: Vec<Prefix>, work: impl FnOnce(Vec<Prefix>) -> Work) {
        self.pending = self.pending.saturating_sub(taken);
        if !rest.is_empty() {
            self.work.push_front(work(rest));
        }
    }

    fn note(&mut self, prefix: Prefix, attributes: Option<&Arc<Attributes>>) {
        let Some(count) = self.counts.get_mut(prefix.family().index()) else { return };
        let sent = &mut Arc::make_mut(&mut self.sent).0;
        match attributes {
            Some(attributes) => *count += usize::from(sent.insert(prefix, Arc::clone(attributes)).is_none()),
            None => *count -= usize::from(sent.remove(&prefix).is_some()),
        }
    }

    /// Removes the desired routes of a family from `sent`, so that they are announced again. Routes
    /// that must still be withdrawn stay in `sent`.
    fn forget(&mut self, family: Family) {
        let want = Arc::clone(&self.want);
        let sent = &mut Arc::make_mut(&mut self.sent).0;
        sent.retain(|&prefix, _| prefix.family() != family || want.get(prefix).is_none());
        if let Some(count) = self.counts.get_mut(family.index()) {
            *count = sent.keys().filter(|prefix| prefix.family() == family).count();
        }
    }
}

/// Removes and returns as many prefixes from the end of `list` as fit into `room` bytes, but at
/// least one.
fn take_fitting(list: &mut Vec<Prefix>, room: usize) -> Vec<Prefix> {
    let mut used = 0;
    let fitting = list.iter().rev().take_while(|prefix| {
        used += prefix.encoded_bytes();
        used <= room
    });
    let count = fitting.count().max(1).min(list.len());
    list.split_off(list.len() - count)
}
