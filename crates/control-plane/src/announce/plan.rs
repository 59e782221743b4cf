//! Computes the routes, announcement rules and BGP peers of a machine from the configuration.
//!
//! Several VIPs can share a route, for example an aggregate or the prefix of a group. A shared
//! route is announced while at least one of its VIPs qualifies. Withdrawing a shared route when its
//! first VIP fails would make the other VIPs unreachable. Invariant: all VIPs that share a route
//! have the same BGP attributes. The crate `config` checks this invariant.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bgp::bfd::BfdConfig;
use bgp::{Attributes, Connect, Desired, GracefulRestart, PeerConfig, Prefix, Routes};

use super::decision::{Rules, Stage, Times, VipStatus};
use compile::{Views, by_family};
use config::{Announce, Bgp, BgpPeer, Config, Machine, Vip};
use packet::Family;

/// The routes, announcement rules and BGP peers of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The routes, by prefix.
    pub routes: BTreeMap<Prefix, Route>,
    /// The announcement rules of every VIP that the machine serves. The key is the name of the VIP,
    /// or name and address family (`www IPv6`) if backends are checked through the VIP.
    pub rules: BTreeMap<Arc<str>, Rules>,
    /// The times of hold-downs and stalls.
    pub times: Times,
    /// The time for which routes carry the graceful-shutdown community during a drain.
    pub graceful_shutdown: Duration,
    pub(crate) peers: Vec<PeerConfig>,
    /// The BFD settings by peer address. The address is the key because a peer can be renamed while
    /// its sessions continue.
    pub(crate) bfd: BTreeMap<IpAddr, BfdConfig>,
    /// The addresses on which this machine listens for connections from peers.
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) identity: Option<Identity>,
}

/// The AS number and the router ID, which change only at a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) asn: u32,
    pub(crate) router_id: Ipv4Addr,
}

impl Identity {
    /// Returns the changed keys with old and new value, such as `bgp.asn: 65101 -> 65102`.
    pub(crate) fn differing(&self, new: &Self) -> Vec<String> {
        let rows = [
            ("bgp.asn", self.asn.to_string(), new.asn.to_string()),
            ("router_id", self.router_id.to_string(), new.router_id.to_string()),
        ];
        let differ = rows.into_iter().filter(|(_, old, new)| old != new);
        differ.map(|(key, old, new)| format!("{key}: {old} -> {new}")).collect()
    }
}

/// A route with the VIPs that use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The VIPs that use the route. The route is announced while at least one of these VIPs
    /// qualifies.
    pub vips: Vec<Arc<str>>,
    /// The names of the peers that receive the route.
    pub peers: Vec<String>,
    /// The BGP attributes of the route.
    pub attributes: Arc<Attributes>,
    /// The BGP attributes with the graceful-shutdown community.
    pub marked: Arc<Attributes>,
}

impl Plan {
    /// Computes the plan for `machine`.
    #[must_use]
    pub fn new(config: &Config, machine: &Machine) -> Self {
        let Some(bgp) = config.bgp() else { return Self::default() };
        let peers: Vec<&BgpPeer> = bgp.peers_of(machine.name()).collect();
        let here = |address: &&SocketAddr| config.listens(machine, **address);
        let listen: Vec<SocketAddr> = bgp.listen.iter().filter(here).copied().collect();
        let identity = machine.router_id().filter(|_| !peers.is_empty());
        let mut plan = Self {
            times: times(bgp),
            graceful_shutdown: bgp.graceful_shutdown,
            identity: identity.map(|router_id| Identity { asn: bgp.asn, router_id }),
            bfd: peers.iter().filter_map(|peer| Some((peer.address, watched(peer)?))).collect(),
            peers: peers.iter().map(|peer| session(peer, bgp, !listen.is_empty())).collect(),
            listen,
            ..Self::default()
        };
        let views = Views::new(config, machine);
        for vip in config.vips_of(machine) {
            let backup = vip.announce.as_ref().is_some_and(|says| is_backup(says, machine));
            let apart = vip.services.iter().any(|service| by_family(&views, vip, service).len() > 1);
            let families = if apart { vec![Some(Family::V4), Some(Family::V6)] } else { vec![None] };
            for family in families {
                plan.enter(vip, family, backup, bgp);
            }
        }
        plan.forget_the_unheard();
        plan
    }

    /// Adds the rules and routes of a VIP, or of one address family of the VIP.
    fn enter(&mut self, vip: &Vip, family: Option<Family>, backup: bool, bgp: &Bgp) {
        let name = label(&vip.name, family);
        let mut rules = Rules { vip: Arc::clone(&vip.name), family, ..Rules::default() };
        let Some(says) = &vip.announce else {
            self.rules.insert(name, rules);
            return;
        };
        (rules.announced, rules.backup, rules.remotes) = (true, backup, says.remotes);
        (rules.min_serving, rules.return_serving) = (says.min_serving as usize, says.return_serving as usize);
        let attributes = Arc::new(attributes(says, backup, bgp));
        let marked = Arc::new(Attributes::clone(&attributes).graceful_shutdown());
        let is_meant = |prefix: &config::Prefix| family.is_none_or(|own| Family::of(prefix.address()) == own);
        for prefix in vip.routes().into_iter().filter(is_meant) {
            // `config` has checked the prefix length in the same way, so `new` does not fail.
            let Ok(prefix) = Prefix::new(prefix.address(), prefix.length()) else { continue };
            let route = self.routes.entry(prefix).or_default();
            route.vips.push(Arc::clone(&name));
            let receivers = self.peers.iter().filter(|peer| peer.families.contains(&prefix.family()));
            route.peers = receivers.map(|peer| peer.name.clone()).filter(|name| says.is_for(name)).collect();
            rules.heard |= !route.peers.is_empty();
            (route.attributes, route.marked) = (Arc::clone(&attributes), Arc::clone(&marked));
        }
        self.rules.insert(name, rules);
    }

    /// If peers accept routes of a VIP for only one address family, removes the rules of the other
    /// family.
    fn forget_the_unheard(&mut self) {
        let heard: BTreeSet<Arc<str>> =
            self.rules.values().filter(|rules| rules.heard).map(|rules| Arc::clone(&rules.vip)).collect();
        self.rules.retain(|_, rules| rules.heard || rules.family.is_none() || !heard.contains(&rules.vip));
    }

    /// Returns the routes to announce to each peer, for these announcement statuses. The routes in
    /// `without` are left out. A route has the graceful-shutdown community during a drain, and
    /// while none of its VIPs is announced without this community.
    ///
    /// # Cost
    /// Linear in the number of routes times the number of peers.
    #[must_use]
    pub fn desired(
        &self,
        statuses: &BTreeMap<Arc<str>, VipStatus>,
        stage: Stage,
        without: &BTreeSet<Prefix>,
    ) -> Desired {
        let mut tables: BTreeMap<&str, Routes> =
            self.peers.iter().map(|peer| (peer.name.as_str(), Routes::new())).collect();
        for (prefix, route) in self.routes.iter().filter(|(prefix, _)| !without.contains(prefix)) {
            let mut vips = route.vips.iter().filter_map(|vip| statuses.get(vip));
            let attributes = if vips.clone().any(|status| *status == VipStatus::Announced) {
                &route.attributes
            } else if vips.any(|status| matches!(status, VipStatus::Marked(_))) {
                &route.marked
            } else {
                continue;
            };
            let attributes = match stage {
                Stage::Serving => attributes,
                Stage::Leaving => &route.marked,
                Stage::Left => continue,
            };
            for peer in &route.peers {
                let table = tables.entry(peer).or_default();
                // The insertion does not fail, because `config` ensures that all communities fit
                // into a BGP update.
                _ = table.insert(*prefix, Arc::clone(attributes));
            }
        }
        let tables = tables.into_iter().map(|(name, table)| (name.to_owned(), Arc::new(table)));
        Desired { everyone: Arc::default(), peers: tables.collect() }
    }
}

fn times(bgp: &Bgp) -> Times {
    Times {
        hold_down: bgp.hold_down,
        longest: bgp.max_hold_down,
        half_life: bgp.hold_down_half_life,
        max_stall: bgp.max_stall,
    }
}

fn is_backup(says: &Announce, machine: &Machine) -> bool {
    says.backups.iter().any(|name| **name == *machine.name())
}

/// Returns the BGP attributes of a VIP's routes. If the VIP has backup machines, all machines set a
/// MED, because routers differ in how they rank routes without a MED.
fn attributes(says: &Announce, backup: bool, bgp: &Bgp) -> Attributes {
    let own = &says.attributes;
    let med = own.med.or_else(|| (!says.backups.is_empty()).then_some(0));
    let med = if backup { med.map(|med| med.saturating_add(bgp.backup_med)) } else { med };
    Attributes { med, shutdown_prepend: bgp.graceful_shutdown_prepend, ..own.clone() }
}

fn session(peer: &BgpPeer, bgp: &Bgp, listens: bool) -> PeerConfig {
    let mut config = PeerConfig::new(&peer.name, peer.address, peer.asn);
    config.port = peer.port;
    config.local_address = peer.source;
    config.connect = match (peer.passive, listens) {
        (true, _) => Connect::Listen,
        (false, true) => Connect::Both,
        (false, false) => Connect::Dial,
    };
    config.families = peer.families.to_vec();
    (config.next_hops.v4, config.next_hops.v6) = (peer.next_hops.v4, peer.next_hops.v6);
    config.next_hops.extended = peer.next_hops.extended;
    config.md5 = peer.md5.clone();
    config.gtsm_hops = peer.hops;
    config.times.hold = peer.hold_time;
    // RFC 9687 §4.4 requires that the send hold time exceeds the hold time.
    config.times.send_hold = config.times.send_hold.max(config.times.hold * 2);
    config.times.max_retry = peer.max_retry;
    config.times.notice = bgp.graceful_shutdown;
    config.max_prefixes = peer.max_prefixes;
    let seconds = u16::try_from(bgp.graceful_restart.as_secs()).unwrap_or(u16::MAX);
    // If the speaker replaces another process, it sets the restart flags itself.
    let restart = GracefulRestart { seconds, restarting: false, forwarding: false };
    config.graceful_restart = (seconds > 0).then_some(restart);
    config
}

fn watched(peer: &BgpPeer) -> Option<BfdConfig> {
    let times = peer.bfd?;
    let mut config = BfdConfig::new(&peer.address.to_string(), peer.address);
    (config.local, config.interval, config.multiplier) = (peer.source, times.interval, times.multiplier);
    Some(config)
}

/// Returns the key of `Plan::rules` for a VIP. The key is unambiguous, because VIP names contain no
/// spaces.
fn label(vip: &Arc<str>, family: Option<Family>) -> Arc<str> {
    family.map_or_else(|| Arc::clone(vip), |family| format!("{vip} {family}").into())
}

#[cfg(test)]
mod tests;
