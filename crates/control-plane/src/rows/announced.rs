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
    /// `true` if routers still have the routes of the previous process of an upgrade, because the
    /// new process has not sent its routes yet.
    is_kept: bool,
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
                state.announcement = Some(announcement(&entries, &status));
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
            let is_sent = !matches!(state, AnnouncementState::NoSession | AnnouncementState::Sending);
            let is_kept = !is_sent && self.keeps(name);
            let (state, why) = if is_kept { (AnnouncementState::Announced, None) } else { (state, why) };
            Entry { name, rules, family, routes, state, why, is_kept }
        })
    }

    fn vip_row(&self, entry: &Entry<'_>, status: &Status) -> AnnouncedVip {
        let Entry { name, rules, family, routes, state, why, is_kept } = entry;
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
            routes: routes
                .iter()
                .map(|(prefix, route)| {
                    route_row(*prefix, route, peers_of(*prefix, route, status, *is_kept), status)
                })
                .collect(),
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
            VipStatus::Withdrawn(why @ (Why::NotWanted | Why::NoPeer)) => {
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

/// Combines the address families of a VIP. If the families have different reasons, each reason
/// contains the name of its family.
fn announcement(entries: &[Entry<'_>], status: &Status) -> Announcement {
    let has_routes =
        |entry: &Entry<'_>| matches!(entry.state, AnnouncementState::Announced | AnnouncementState::Marked);
    let peers = entries.iter().flat_map(|entry| {
        let routes = entry.routes.iter();
        routes.flat_map(|(prefix, route)| peers_of(*prefix, route, status, entry.is_kept))
    });
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

/// Returns the names of the peers that have a route. If `is_kept` is `true`, the peers still have
/// the routes from the previous process of an upgrade.
fn peers_of(prefix: Prefix, route: &Route, status: &Status, is_kept: bool) -> Vec<String> {
    if is_kept {
        return route.peers.clone();
    }
    holders(prefix, status).map(|(peer, _)| peer.name.clone()).collect()
}

fn route_row(prefix: Prefix, route: &Route, peers: Vec<String>, status: &Status) -> RouteRow {
    let sent = holders(prefix, status).next();
    let attributes = sent.map_or(&route.attributes, |(_, attributes)| attributes);
    let standard = attributes.communities.iter().map(|one| format!("{}:{}", one.0, one.1));
    let large = attributes.large_communities.iter().map(|one| format!("{}:{}:{}", one.0, one.1, one.2));
    RouteRow {
        prefix: prefix.to_string(),
        peers,
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use config::Config;

    use super::*;
    use crate::announce::{Plan, Seen, ServiceSeen};

    /// A machine with one peer and two VIPs.
    const FILE: &str = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n[machine.lb1]\n\
        addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n[bgp]\nasn = 65101\n\
        peers = [{ name = \"tor1\", address = \"192.0.2.254\", asn = 65000}]\n\
        [pool.p]\nbackends = [{ name = \"a\", address = \"198.18.0.1\" }]\n\
        [vip.www]\naddresses = [\"203.0.113.1\"]\nannounce = {}\n\
        services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n\
        [vip.inner]\naddresses = [\"203.0.113.2\"]\nannounce = {}\n\
        services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";

    /// Returns an announcer whose peer accepts the routes of `www`, but not those of `inner`.
    fn announcer() -> Announcer {
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        let (config, _): (Config, _) = config::parse(FILE, Path::new("a.toml"), &secret).unwrap();
        let mut announcer = Announcer::default();
        announcer.plan = Plan::new(&config, config.machine("lb1").unwrap());
        announcer.plan.rules.get_mut("inner").unwrap().heard = false;
        let routes = announcer.plan.routes.values_mut().filter(|route| route.vips == ["inner".into()]);
        routes.for_each(|route| route.peers.clear());
        announcer
    }

    fn seen(serving: usize) -> Seen {
        let service = |vip: &str| {
            let service = ServiceSeen { name: format!("{vip} tcp 80"), serving, ..ServiceSeen::default() };
            (vip.to_owned(), vec![service])
        };
        Seen { fault: None, set_up: true, services: ["www", "inner"].map(service).into() }
    }

    /// Returns the state of a VIP, and the announcement from which readiness is computed.
    fn state(announcer: &Announcer, vip: &str) -> (AnnouncementState, Option<Announcement>) {
        let rows = announcer.announced_vips();
        let row = VipRow {
            name: vip.to_owned(),
            addresses: Vec::new(),
            ready: false,
            not_ready: Vec::new(),
            serving: true,
            announced_to: None,
            services: Vec::new(),
        };
        let states = announcer.vip_states(&[row]);
        (rows.iter().find(|row| row.vip == vip).unwrap().state, states[vip].announcement.clone())
    }

    #[test]
    fn vip_that_no_peer_accepts_does_not_count_as_missing() {
        let mut announcer = announcer();
        announcer.look(&seen(1), Duration::from_secs(1));
        assert_eq!(state(&announcer, "inner"), (AnnouncementState::NotConfigured, None));
        let (www, announcement) = state(&announcer, "www");
        assert_eq!((www, announcement.unwrap().is_announced), (AnnouncementState::NoSession, false));
    }

    #[test]
    fn routes_of_the_previous_process_are_kept_until_a_withdrawal() {
        let (mut old, at) = (announcer(), Duration::from_secs);
        old.look(&seen(1), at(1));
        let mut new = announcer();
        new.take(&old.handed());
        new.kept = at(10)..at(100);
        new.look(&seen(1), at(10));
        let (www, announcement) = state(&new, "www");
        let announcement = announcement.unwrap();
        assert_eq!((www, announcement.is_announced), (AnnouncementState::Announced, true));
        assert_eq!(announcement.peers, ["tor1"]);
        new.look(&seen(1), at(100));
        assert_eq!(state(&new, "www").0, AnnouncementState::NoSession);

        // A VIP that only the new process announces has no routes that routers could keep.
        let mut new = announcer();
        new.kept = at(10)..at(100);
        new.look(&seen(1), at(10));
        assert_eq!(state(&new, "www").0, AnnouncementState::NoSession);
    }
}
