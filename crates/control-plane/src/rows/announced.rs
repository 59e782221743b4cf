//! The announcement state of each VIP and address family, based on the routes that peers have
//! received.
//!
//! A decision to announce a VIP is not enough: the state of the VIP is `announced` only if each of
//! its routes was sent in an established session that negotiated the address family.

use std::collections::BTreeMap;
use std::sync::Arc;

use bgp::{Attributes, Blocked, PeerStatus, Prefix, State, Status};

use super::announcer::packet_family;
use crate::announce::{Announcer, Route, Rules, Stage, VipStatus, Why};
use admin::view::{AnnouncedVip, AnnouncementState, Family, RouteRow};

impl Announcer {
    /// Returns the announcement state of each VIP and address family. A VIP without routes has one
    /// row without a family.
    ///
    /// # Cost
    /// `O(n log n)` for `n` routes and VIPs.
    #[must_use]
    pub fn announced_vips(&self) -> Vec<AnnouncedVip> {
        let status = self.running.as_ref().map(|running| running.speaker.status()).unwrap_or_default();
        let mut routes = BTreeMap::<(&str, bool), Vec<(Prefix, &Route)>>::new();
        for (prefix, route) in &self.plan.routes {
            for vip in &route.vips {
                routes.entry((&**vip, prefix.address().is_ipv6())).or_default().push((*prefix, route));
            }
        }
        let rows = self.plan.rules.iter().flat_map(|(name, rules)| {
            let found = Family::ALL.map(|family| (family, routes.remove(&(&**name, family == Family::Ipv6))));
            let found = found.into_iter().filter_map(|(family, routes)| Some((Some(family), routes?)));
            let mut found: Vec<_> = found.collect();
            if found.is_empty() {
                found.push((rules.family.map(shown_family), Vec::new()));
            }
            found.into_iter().map(move |(family, routes)| (name, rules, family, routes))
        });
        rows.map(|(name, rules, family, routes)| self.vip_row(name, rules, family, &routes, &status))
            .collect()
    }

    fn vip_row(
        &self,
        name: &Arc<str>,
        rules: &Rules,
        family: Option<Family>,
        routes: &[(Prefix, &Route)],
        status: &Status,
    ) -> AnnouncedVip {
        let unknown = VipStatus::Withdrawn(Why::Unknown);
        let decision = self.statuses.get(name).unwrap_or(&unknown);
        let (state, why) = self.state_of(decision, family, routes, status);
        let since = self.decider.since(name);
        let left = match decision {
            VipStatus::HeldDown(left) => Some(left.as_secs_f64()),
            _ => None,
        };
        AnnouncedVip {
            vip: rules.vip.to_string(),
            family,
            state,
            why,
            returns_in_seconds: left,
            since_seconds: (!since.is_zero()).then(|| self.now.saturating_sub(since).as_secs_f64()),
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
        match decision {
            VipStatus::Withdrawn(why @ Why::NotWanted) => {
                text(AnnouncementState::NotConfigured, why.to_string())
            }
            VipStatus::Withdrawn(why) => text(AnnouncementState::Withdrawn, why.to_string()),
            VipStatus::HeldDown(left) => {
                let left = left.as_secs_f64().ceil();
                text(AnnouncementState::HeldDown, format!("flap damping, announced again in {left:.0} s"))
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

/// Returns `announced` if each of the routes was sent to at least one peer. Otherwise, returns the
/// reason why a route was not sent.
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
