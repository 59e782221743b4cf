//! The announcement state of each VIP and address family, based on the routes that peers have
//! received.
//!
//! A decision to announce a VIP is not enough: the state of the VIP is `announced` only if each of
//! its routes was sent in an established session that negotiated the address family.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bgp::{Attributes, Blocked, PeerStatus, Prefix, State, Status};

use super::announcer::packet_family;
use crate::announce::{Announcer, Route, Rules, Stage, VipStatus, Why};
use admin::view::{AnnouncedVip, AnnouncementState, Family, RouteRow, VipRow};
use admin::{Announcement, VipState};
use config::words::few;

/// The announcement of a VIP in one address family.
struct Entry<'a> {
    name: &'a Arc<str>,
    rules: &'a Rules,
    family: Option<Family>,
    routes: Vec<(Prefix, &'a Route)>,
    state: AnnouncementState,
    why: Option<String>,
}

impl Announcer {
    /// Returns the announcement state of each VIP and address family. A VIP without routes has one
    /// row without a family.
    ///
    /// # Cost
    /// `O(n log n)` for `n` routes and VIPs.
    #[must_use]
    pub fn announced_vips(&self) -> Vec<AnnouncedVip> {
        let status = self.status();
        self.entries(&status).map(|entry| self.vip_row(&entry, &status)).collect()
    }

    /// Returns the state of each VIP, from which [`Readiness`](admin::Readiness) is computed.
    /// `rows` are the rows of all VIPs.
    ///
    /// # Cost
    /// `O(n log n)` for `n` routes and VIPs.
    #[must_use]
    pub fn vip_states(&self, rows: &[VipRow]) -> BTreeMap<String, VipState> {
        let unserved = |row: &VipRow| {
            let services = row.services.iter().filter(|service| !service.ready);
            (!row.serving).then(|| format!("no backend for {}", few(services.map(|service| &service.name))))
        };
        let state = |row: &VipRow| VipState { unserved: unserved(row), announcement: None };
        let mut states: BTreeMap<_, _> = rows.iter().map(|row| (row.name.clone(), state(row))).collect();
        let status = self.status();
        let mut by_vip = BTreeMap::<&str, Vec<Entry<'_>>>::new();
        for entry in self.entries(&status).filter(|entry| entry.state != AnnouncementState::NotConfigured) {
            by_vip.entry(&*entry.rules.vip).or_default().push(entry);
        }
        for (vip, entries) in by_vip {
            if let Some(state) = states.get_mut(vip) {
                // Until the new process of an upgrade has its sessions, routers keep the routes.
                let is_kept = self.now < self.kept_until;
                state.announcement = Some(announcement(&entries, &status, is_kept));
            }
        }
        states
    }

    fn status(&self) -> Status {
        self.running.as_ref().map(|running| running.speaker.status()).unwrap_or_default()
    }

    fn entries<'a>(&'a self, status: &Status) -> impl Iterator<Item = Entry<'a>> {
        let mut routes = BTreeMap::<(&str, bool), Vec<(Prefix, &Route)>>::new();
        for (prefix, route) in &self.plan.routes {
            for vip in &route.vips {
                routes.entry((&**vip, prefix.address().is_ipv6())).or_default().push((*prefix, route));
            }
        }
        let rows = self.plan.rules.iter().flat_map(move |(name, rules)| {
            let found = Family::ALL.map(|family| (family, routes.remove(&(&**name, family == Family::Ipv6))));
            let found = found.into_iter().filter_map(|(family, routes)| Some((Some(family), routes?)));
            let mut found: Vec<_> = found.collect();
            if found.is_empty() {
                found.push((rules.family.map(shown_family), Vec::new()));
            }
            found.into_iter().map(move |(family, routes)| (name, rules, family, routes))
        });
        rows.map(move |(name, rules, family, routes)| {
            let decision = self.statuses.get(name).unwrap_or(&VipStatus::Withdrawn(Why::Unknown));
            let (state, why) = self.state_of(decision, family, &routes, status);
            Entry { name, rules, family, routes, state, why }
        })
    }

    fn vip_row(&self, entry: &Entry<'_>, status: &Status) -> AnnouncedVip {
        let Entry { name, rules, family, routes, state, why } = entry;
        let since = self.decider.since(name);
        let left = match self.statuses.get(*name) {
            Some(VipStatus::HeldDown(left)) => Some(left.as_secs_f64()),
            _ => None,
        };
        AnnouncedVip {
            vip: rules.vip.to_string(),
            family: *family,
            state: *state,
            why: why.clone(),
            returns_in_seconds: left,
            since_seconds: (!since.is_zero()).then(|| self.now.saturating_sub(since).as_secs_f64()),
            by_family: rules.family.is_some(),
            withdrawals: self.decider.withdrawals(name),
            not_announced_seconds: self.decider.not_announced(name).as_secs_f64(),
            backup: rules.backup,
            routes: routes.iter().map(|(prefix, route)| route_row(*prefix, route, status)).collect(),
        }
    }

    /// Returns the announcement state, with the reason if the VIP is not announced.
    fn state_of(
        &self,
        decision: &VipStatus,
        family: Option<Family>,
        routes: &[(Prefix, &Route)],
        status: &Status,
    ) -> (AnnouncementState, Option<String>) {
        let text = |state, why: String| (state, Some(why));
        if self.plan.identity.is_none() {
            return text(AnnouncementState::NotConfigured, "this machine has no BGP peers".to_owned());
        }
        match decision {
            VipStatus::Withdrawn(why @ Why::NotWanted) => {
                text(AnnouncementState::NotConfigured, why.to_string())
            }
            VipStatus::Withdrawn(why) => text(AnnouncementState::Withdrawn, why.to_string()),
            VipStatus::HeldDown(left) => {
                let left = left.as_secs_f64().ceil();
                text(AnnouncementState::HeldDown, format!("flap damping, {left:.0} s left"))
            }
            _ if self.stage == Stage::Left => {
                text(AnnouncementState::Draining, "this machine is draining".to_owned())
            }
            VipStatus::Marked(why) => match reach(family, routes, status) {
                (AnnouncementState::Announced, _) => text(AnnouncementState::Marked, why.to_string()),
                other => other,
            },
            VipStatus::Announced => reach(family, routes, status),
        }
    }
}

/// Combines the address families of a VIP. If they have different reasons, each reason names its
/// family. If `is_kept` is `true`, routers have the routes although there is no session.
fn announcement(entries: &[Entry<'_>], status: &Status, is_kept: bool) -> Announcement {
    let has_routes = |entry: &Entry<'_>| match entry.state {
        AnnouncementState::Announced | AnnouncementState::Marked => true,
        AnnouncementState::NoSession | AnnouncementState::Sending => is_kept,
        _ => false,
    };
    let prefixes = entries.iter().flat_map(|entry| &entry.routes).map(|(prefix, _)| *prefix);
    let peers = prefixes.flat_map(|prefix| holders(prefix, status).map(|(peer, _)| peer.name.clone()));
    let missing: Vec<&Entry<'_>> = entries.iter().filter(|entry| !has_routes(entry)).collect();
    let why = |entry: &Entry<'_>| entry.why.clone().unwrap_or_default();
    let is_same = missing.len() == entries.len()
        && missing.windows(2).all(|pair| pair.first().map(|one| &one.why) == pair.last().map(|one| &one.why));
    let named = |entry: &&Entry<'_>| match entry.family {
        Some(family) if !is_same => format!("{family}: {}", why(entry)),
        _ => why(entry),
    };
    let shown = missing.iter().take(if is_same { 1 } else { missing.len() });
    Announcement {
        peers: peers.collect::<BTreeSet<_>>().into_iter().collect(),
        is_announced: missing.len() < entries.len(),
        missing: (!missing.is_empty()).then(|| shown.map(named).collect::<Vec<_>>().join("; ")),
    }
}

/// Returns `announced` if at least one peer has each of the routes, otherwise the reason why no
/// peer has them.
fn reach(
    family: Option<Family>,
    routes: &[(Prefix, &Route)],
    status: &Status,
) -> (AnnouncementState, Option<String>) {
    let has = |(prefix, _): &(Prefix, &Route)| holders(*prefix, status).next().is_some();
    let (Some(family), Some((_, missing))) = (family, routes.iter().find(|route| !has(route))) else {
        return (AnnouncementState::Announced, None);
    };
    if missing.peers.is_empty() {
        let why = format!("no BGP peer of this machine accepts its {family} routes");
        return (AnnouncementState::NotConfigured, Some(why));
    }
    let receivers = missing.peers.iter().filter_map(|name| status.get(name));
    let up: Vec<&PeerStatus> = receivers.filter(|peer| peer.state == State::Established).collect();
    if up.is_empty() {
        let why = "no router of this VIP has a BGP session with this machine";
        return (AnnouncementState::NoSession, Some(why.to_owned()));
    }
    let obstacles: Vec<String> = up.iter().filter_map(|peer| obstacle(peer, family)).collect();
    if obstacles.len() < up.len() {
        return (AnnouncementState::Sending, Some("the routes are not sent yet".to_owned()));
    }
    let more = obstacles.len().saturating_sub(OBSTACLES_NAMED);
    let more = (more > 0).then(|| format!("and {more} more"));
    let named: Vec<String> = obstacles.into_iter().take(OBSTACLES_NAMED).chain(more).collect();
    (AnnouncementState::NotCarried, Some(named.join("; ")))
}

/// Returns the reason why the session with a peer cannot carry routes of an address family.
fn obstacle(peer: &PeerStatus, family: Family) -> Option<String> {
    let name = &peer.name;
    let hop = if family == Family::Ipv4 { "next_hop4" } else { "next_hop6" };
    Some(match peer.blocked.get(&bgp_family(family))? {
        Blocked::NoNextHop => format!("peer {name} has no {family} next hop, set {hop}"),
        _ => format!("peer {name} did not negotiate {family}"),
    })
}

/// Returns the peers that have a route, with the attributes that were sent.
fn holders(prefix: Prefix, status: &Status) -> impl Iterator<Item = (&PeerStatus, &Arc<Attributes>)> {
    let up = status.values().filter(|peer| peer.state == State::Established);
    up.filter_map(move |peer| Some((peer, peer.routes.get(prefix)?)))
}

fn route_row(prefix: Prefix, route: &Route, status: &Status) -> RouteRow {
    let sent = holders(prefix, status).next();
    let attributes = sent.map_or(&route.attributes, |(_, attributes)| attributes);
    let standard = attributes.communities.iter().map(|one| format!("{}:{}", one.0, one.1));
    let large = attributes.large_communities.iter().map(|one| format!("{}:{}:{}", one.0, one.1, one.2));
    RouteRow {
        prefix: prefix.to_string(),
        peers: holders(prefix, status).map(|(peer, _)| peer.name.clone()).collect(),
        med: attributes.med,
        communities: standard.chain(large).collect(),
    }
}

fn bgp_family(family: Family) -> bgp::Family {
    match family {
        Family::Ipv4 => bgp::Family::Ipv4,
        Family::Ipv6 => bgp::Family::Ipv6,
    }
}

fn shown_family(family: packet::Family) -> Family {
    if family == packet_family(Family::Ipv4) { Family::Ipv4 } else { Family::Ipv6 }
}

/// The maximum number of peers in the reason why a family is not announced.
const OBSTACLES_NAMED: usize = 3;
