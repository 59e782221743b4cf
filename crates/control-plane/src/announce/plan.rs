//! What the file says of a machine's routes.
//!
//! In: a configuration, a machine. Out: each route with the VIPs that hold it up, the rules of each VIP, the peers.
//! A route that several VIPs share (an address, an aggregate, a group's prefix) is announced while one of them qualifies: to
//! take the others away with the first that fails would make a small fault a large one.
//! Invariant: two VIPs that share a route say the same of it (`config` sees to that).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bgp::bfd::BfdConfig;
use bgp::{Attributes, Connect, Desired, GracefulRestart, PeerConfig, Prefix, Routes};

use super::decision::{Rules, Stage, Times};
use compile::{Views, by_family};
use config::{Announce, Bgp, BgpPeer, Config, Machine, Vip};
use packet::Family;

/// Everything that is to be announced by a machine, if all is well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// By prefix.
    pub routes: BTreeMap<Prefix, Route>,
    /// By VIP, or by VIP and family (`www IPv6`) where backends are checked through its addresses of both: every VIP that the
    /// machine serves.
    pub rules: BTreeMap<Arc<str>, Rules>,
    /// How long a VIP stays away.
    pub times: Times,
    /// How long a machine that drains announces its routes as about to go.
    pub graceful_shutdown: Duration,
    pub(crate) peers: Vec<PeerConfig>,
    /// By the peer's address: its name may change while both sessions go on.
    pub(crate) bfd: BTreeMap<IpAddr, BfdConfig>,
    /// Where peers may dial us.
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) identity: Option<Identity>,
}

/// Who we are; it is the same until the next start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) asn: u32,
    pub(crate) router_id: Ipv4Addr,
}

impl Identity {
    /// What is different, such as `bgp.asn: 65101 -> 65102`.
    pub(crate) fn differing(&self, new: &Self) -> Vec<String> {
        let rows = [
            ("bgp.asn", self.asn.to_string(), new.asn.to_string()),
            ("router_id", self.router_id.to_string(), new.router_id.to_string()),
        ];
        let differ = rows.into_iter().filter(|(_, old, new)| old != new);
        differ.map(|(key, old, new)| format!("{key}: {old} -> {new}")).collect()
    }
}

/// A route, and who holds it up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// One of them is enough.
    pub vips: Vec<Arc<str>>,
    /// The names of the peers that get it.
    pub peers: Vec<String>,
    /// What it says.
    pub attributes: Arc<Attributes>,
}

impl Plan {
    /// Of a configuration, for one machine.
    #[must_use]
    pub fn new(config: &Config, machine: &Machine) -> Self {
        let Some(bgp) = config.bgp() else { return Self::default() };
        let peers: Vec<&BgpPeer> = bgp.peers_of(machine.name()).collect();
        let here = |address: &&SocketAddr| config.listens(machine, **address);
        let listen: Vec<SocketAddr> = bgp.listen.iter().filter(here).copied().collect();
        let identity = machine.router_id().filter(|_| !peers.is_empty());
        let mut plan = Self {
            times: Times { hold_down: bgp.hold_down, longest: bgp.longest_hold_down },
            graceful_shutdown: bgp.graceful_shutdown,
            identity: identity.map(|router_id| Identity { asn: bgp.asn, router_id }),
            bfd: peers.iter().filter_map(|peer| Some((peer.address, watched(peer)?))).collect(),
            peers: peers.iter().map(|peer| session(peer, bgp, !listen.is_empty())).collect(),
            listen,
            ..Self::default()
        };
        let views = Views::new(config, machine);
        for vip in config.vips_of(machine) {
            let anchor = vip.announce.as_ref().is_some_and(|says| is_anchor(says, machine));
            let apart = vip.services.iter().any(|service| by_family(&views, vip, service).len() > 1);
            let families = if apart { vec![Some(Family::V4), Some(Family::V6)] } else { vec![None] };
            for family in families {
                plan.enter(vip, family, anchor, bgp.anchor_med);
            }
        }
        plan.forget_the_unheard();
        plan
    }

    /// What a VIP's addresses say, or those of one family.
    fn enter(&mut self, vip: &Vip, family: Option<Family>, anchor: bool, anchor_med: u32) {
        let name = label(&vip.name, family);
        let mut rules = Rules { vip: Arc::clone(&vip.name), family, ..Rules::default() };
        let Some(says) = &vip.announce else {
            self.rules.insert(name, rules);
            return;
        };
        (rules.announced, rules.anchor, rules.remotes) = (true, anchor, says.remotes);
        (rules.min_serving, rules.return_serving) = (says.min_serving as usize, says.return_serving as usize);
        let attributes = Arc::new(attributes(says, anchor, anchor_med));
        let is_meant = |prefix: &config::Prefix| family.is_none_or(|own| Family::of(prefix.address()) == own);
        for prefix in vip.routes().into_iter().filter(is_meant) {
            // Both crates check the length by the family.
            let Ok(prefix) = Prefix::new(prefix.address(), prefix.length()) else { continue };
            let route = self.routes.entry(prefix).or_default();
            route.vips.push(Arc::clone(&name));
            let receivers = self.peers.iter().filter(|peer| peer.families.contains(&prefix.family()));
            route.peers = receivers.map(|peer| peer.name.clone()).filter(|name| says.is_for(name)).collect();
            rules.heard |= !route.peers.is_empty();
            route.attributes = Arc::clone(&attributes);
        }
        self.rules.insert(name, rules);
    }

    /// A family whose routes no peer takes is of no matter where one takes the other's.
    fn forget_the_unheard(&mut self) {
        let heard: BTreeSet<Arc<str>> =
            self.rules.values().filter(|rules| rules.heard).map(|rules| Arc::clone(&rules.vip)).collect();
        self.rules.retain(|_, rules| rules.heard || rules.family.is_none() || !heard.contains(&rules.vip));
    }

    /// The table of each peer while these VIPs are announced; `without` is left out.
    ///
    /// # Cost
    /// Linear in routes times peers.
    #[must_use]
    pub fn desired(&self, shown: &BTreeSet<Arc<str>>, stage: Stage, without: &BTreeSet<Prefix>) -> Desired {
        let mut tables: BTreeMap<&str, Routes> =
            self.peers.iter().map(|peer| (peer.name.as_str(), Routes::new())).collect();
        let up = |route: &Route| route.vips.iter().any(|vip| shown.contains(vip));
        let routes = self.routes.iter().filter(|(prefix, route)| up(route) && !without.contains(prefix));
        for (prefix, route) in routes.filter(|_| stage != Stage::Left) {
            for peer in &route.peers {
                let table = tables.entry(peer).or_default();
                // `config` allows as many communities as fit.
                _ = table.insert(*prefix, Arc::clone(&route.attributes));
            }
        }
        let tables = tables.into_iter().map(|(name, table)| (name.to_owned(), Arc::new(table)));
        let desired = Desired { everyone: Arc::default(), peers: tables.collect() };
        if stage == Stage::Leaving { desired.graceful_shutdown() } else { desired }
    }
}

fn is_anchor(says: &Announce, machine: &Machine) -> bool {
    says.anchors.iter().any(|name| **name == *machine.name())
}

/// Where there are anchors the others say a MED too: routers differ in what they make of none.
fn attributes(says: &Announce, anchor: bool, anchor_med: u32) -> Attributes {
    let own = &says.attributes;
    let med = own.med.or_else(|| (!says.anchors.is_empty()).then_some(0));
    let med = if anchor { med.map(|med| med.saturating_add(anchor_med)) } else { med };
    Attributes { med, ..own.clone() }
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
    // RFC 9687 §4.4: longer than the hold time.
    config.times.send_hold = config.times.send_hold.max(config.times.hold * 2);
    config.times.longest_retry = peer.longest_retry;
    config.times.notice = bgp.graceful_shutdown;
    config.max_prefixes = peer.max_prefixes;
    let seconds = u16::try_from(bgp.graceful_restart.as_secs()).unwrap_or(u16::MAX);
    // The speaker says by itself that it has come in another's place, which forwarded on.
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

/// What a VIP's rules stand under. A VIP's name has no space.
fn label(vip: &Arc<str>, family: Option<Family>) -> Arc<str> {
    family.map_or_else(|| Arc::clone(vip), |family| format!("{vip} {family}").into())
}

#[cfg(test)]
mod tests;
