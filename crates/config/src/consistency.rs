//! What no section can see alone: names, addresses and ports against each other.
//!
//! In: the drafts of all sections, and the flattened pools. Out: problems, nothing else.
//! Not here: references to pools inside pools and to encapsulations (`flatten`), prefix groups (`groups`).
//! Of two places that clash, the later one is reported, and its message names the line of the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use config_text::Place;
use config_text::words::count_of;
use forwarder::Suffix;

use super::pool::{BackendDraft, Pool, PoolDraft};
use super::ports::{Ports, show};
use super::sections::{Sections, each_once, in_order, is_flawed};
use super::vip::{ServiceDraft, VipDraft};

impl Sections<'_> {
    /// Runs every check.
    pub(super) fn check(&self, flattened: &[Arc<Pool>]) {
        let addresses = self.machines.iter().flat_map(|machine| &machine.addresses);
        each_once(self, addresses, "also", "each address once among the machines");
        self.backends();
        self.vip_addresses();
        self.services();
        super::groups::check(self);
        super::shards::check(self);
        super::remotes::check(self);
        super::keyed::check(self);
        super::through::check(self, flattened);
        super::replicas::check(self, flattened);
        super::strict::check(self);
        self.fragments();
        self.outer_families();
        self.references();
        self.fallbacks(flattened);
        self.unused();
        super::idle_keys::check(self);
        if self.vips.is_empty() {
            let place = Place::top("vip");
            self.report.warning(&place, "no VIP: nothing is served", "a section [vip.NAME] for each VIP");
        }
        self.sizes(flattened);
    }

    /// A backend is its name: one name, one address.
    fn backends(&self) {
        let mut by_name: HashMap<&str, &BackendDraft> = HashMap::new();
        let mut by_address: HashMap<IpAddr, &BackendDraft> = HashMap::new();
        for backend in self.all_backends() {
            let address = backend.address.value;
            let first = *by_name.entry(&backend.name.value).or_insert(backend);
            if first.address.value != address {
                let elsewhere = self.report.name(&first.address.place, &backend.address.place);
                let found = format!("{address} for backend \"{}\"", backend.name.value);
                let allowed = format!("{}, as {elsewhere} has it", first.address.value);
                self.report.error(&backend.address.place, found, allowed);
                continue;
            }
            let first = *by_address.entry(address).or_insert(backend);
            if first.name.value != backend.name.value {
                let found = format!("{address}, which is also that of backend \"{}\"", first.name.value);
                self.report.warning(&backend.address.place, found, "one name for one host");
            }
        }
    }

    fn vip_addresses(&self) {
        let machines = self.machines.iter().flat_map(|m| &m.addresses);
        let vips: BTreeSet<IpAddr> =
            self.vips.iter().flat_map(|vip| &vip.addresses).map(|address| address.value).collect();
        let backends = self.pools.values().flat_map(|pool| &pool.backends).map(|backend| &backend.address);
        let backends = backends.filter(|address| vips.contains(&address.value));
        let mut taken: BTreeMap<IpAddr, (&str, &Place)> = BTreeMap::new();
        for address in in_order(backends, |address| &address.place) {
            taken.entry(address.value).or_insert(("a backend's", &address.place));
        }
        for address in machines {
            taken.insert(address.value, ("a machine's own", &address.place));
        }
        for address in self.vips.iter().flat_map(|vip| &vip.addresses) {
            if let Some((whose, place)) = taken.get(&address.value) {
                let found = format!(
                    "{whose} address {} ({})",
                    address.value,
                    self.report.name(place, &address.place)
                );
                self.report.error(&address.place, found, "an address that is a VIP alone");
            }
        }
    }

    /// No two services hold one port of one address; `any` gives way to all others.
    fn services(&self) {
        let mut claims: BTreeMap<(Address<'_>, u8, bool), Vec<Claim<'_>>> = BTreeMap::new();
        for vip in &self.vips {
            for (address, service) in
                addresses(vip).flat_map(|address| vip.services.iter().map(move |s| (address, s)))
            {
                let any = service.ports == Ports::Any;
                let claims = claims.entry((address, service.protocol.number(), any)).or_default();
                match &service.ports {
                    Ports::Any => claims.push(Claim { ports: 0..=u16::MAX, service }),
                    Ports::Listed(ranges) => {
                        claims.extend(ranges.iter().map(|ports| Claim { ports: ports.clone(), service }));
                    }
                }
            }
        }
        for ((address, _, any), mut claims) in claims {
            claims.sort_by_key(|claim| (*claim.ports.start(), claim.service.place.offset));
            let mut widest: Option<&Claim<'_>> = None;
            for claim in &claims {
                match widest {
                    Some(other) if claim.ports.start() <= other.ports.end() => {
                        self.clash(address, any, other, claim);
                        if claim.ports.end() > other.ports.end() {
                            widest = Some(claim);
                        }
                    }
                    _ => widest = Some(claim),
                }
            }
        }
    }

    /// A fragment without ports does not say which of an address's VIPs it is for.
    fn fragments(&self) {
        let mut first: BTreeMap<Address<'_>, &VipDraft> = BTreeMap::new();
        for vip in in_order(self.vips.iter(), |vip| &vip.place) {
            for address in addresses(vip) {
                let other = *first.entry(address).or_insert(vip);
                if other.fragments != vip.fragments {
                    let found = format!(
                        "fragments = {} for {address}, which is also {}",
                        vip.fragments,
                        self.report.name(&other.place, &vip.place)
                    );
                    let allowed = format!("{}, as that VIP of the address has it", other.fragments);
                    self.report.error(&vip.place, found, allowed);
                    break;
                }
            }
        }
    }

    fn clash(&self, address: Address<'_>, any: bool, one: &Claim<'_>, other: &Claim<'_>) {
        let first_is_later = one.service.place.offset > other.service.place.offset;
        let (first, second) = if first_is_later { (other, one) } else { (one, other) };
        let ports = if any { "any".to_owned() } else { show(&second.ports) };
        let found = format!(
            "{address} {} port {ports}, which is already in {}",
            second.service.protocol,
            self.report.name(&first.service.place, &second.service.place)
        );
        let allowed = "each address, protocol and port in one service";
        self.report.error(&second.service.place, found, allowed);
    }

    /// Where an outer header is written, its family needs a source address on every machine.
    fn outer_families(&self) {
        for pool in self.pools.values() {
            let Some(encapsulation) = self.encapsulation(pool.encapsulation.as_ref()) else { continue };
            for backend in &pool.backends {
                let address = backend.address.value;
                let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
                let lacking = self.without_source(pool.shard(), encapsulation, address.is_ipv4());
                let Some(machine) = lacking else { continue };
                let allowed = format!(
                    "{family} backends where each machine has an {family} address (\"{}\" has none) \
                     or encapsulation \"{}\" an {family} source prefix",
                    machine.name, encapsulation.name
                );
                self.report.absent(&backend.address.place, address.to_string(), allowed);
            }
        }
    }

    fn references(&self) {
        let fallbacks = self.pools.values().filter_map(PoolDraft::fallback_pool);
        let routed = self.pools.values().flat_map(PoolDraft::kv_pools).cloned();
        let named = self.vips.iter().flat_map(|vip| vip.pools.iter().cloned()).chain(fallbacks).chain(routed);
        for name in named.filter(|name| !self.pools.contains_key(&name.value)) {
            self.report.unknown(&name, self.pools.keys(), "a section [pool.NAME]");
        }
    }

    fn unused(&self) {
        let used = self.reached(|pool| {
            let inner = pool.pools.iter().map(|reference| &*reference.pool.value);
            let routed = pool.kv_pools().map(|name| &*name.value);
            inner.chain(pool.fallback.iter().map(|fallback| &*fallback.value.pool)).chain(routed)
        });
        for (name, pool) in &self.pools {
            self.warn_unless(&used, name, &pool.place, "a pool that no VIP uses");
        }
        let of_pools = self.pools.values().filter_map(|pool| pool.encapsulation.as_ref());
        let of_remotes = self.remotes.values().filter_map(|remote| remote.encapsulation.as_ref());
        let mut used: BTreeSet<&str> = of_pools.chain(of_remotes).map(|name| &*name.value).collect();
        if self.pools.values().any(|pool| pool.encapsulation.is_none() && !pool.backends.is_empty()) {
            used.insert("gre");
        }
        for (name, draft) in &self.encapsulations {
            let Some(place) = &draft.place else { continue };
            self.warn_unless(&used, name, place, "an encapsulation that no pool uses");
        }
        let of_pools = self.pools.values().flat_map(|pool| &pool.checks);
        let of_vips = self.vips.iter().flat_map(|vip| &vip.remote_checks);
        let of_all = of_pools.chain(of_vips).chain(&self.cluster.peer_checks);
        let used: BTreeSet<&str> = of_all.map(|name| &*name.value).collect();
        for (name, draft) in &self.checks {
            self.warn_unless(&used, name, &draft.place, "a check that no pool uses");
        }
    }

    fn warn_unless(&self, used: &BTreeSet<&str>, name: &str, place: &Place, found: &str) {
        if !used.contains(name) && !is_flawed(name) {
            self.report.warning(place, found, "a use, or no such section");
        }
    }

    /// Fallbacks that can take over, and that form no cycle.
    fn fallbacks(&self, flattened: &[Arc<Pool>]) {
        for (name, pool) in &self.pools {
            let Some(fallback) = &pool.fallback else { continue };
            let own = flattened.binary_search_by(|pool| pool.name.cmp(name)).ok();
            let count = own.map_or(0, |at| flattened[at].members.len());
            if count > 0 && usize::try_from(fallback.value.below).is_ok_and(|below| below > count) {
                let backends = count_of(count, "backend");
                let found = format!("below = {} in a pool of {backends}", fallback.value.below);
                self.report.warning(
                    &fallback.place,
                    found,
                    "at most as many as it has, or the pool never serves",
                );
            }
        }
        self.fallback_rings();
    }

    /// Each ring is reported once, where its first pool by name says so.
    fn fallback_rings(&self) {
        let mut done: BTreeSet<&str> = BTreeSet::new();
        for start in self.pools.keys() {
            let mut path: Vec<&str> = Vec::new();
            let mut on_path: BTreeSet<&str> = BTreeSet::new();
            let mut next = Some(&**start);
            while let Some(name) = next.filter(|name| !done.contains(name) && on_path.insert(name)) {
                path.push(name);
                let fallback = self.pools.get(name).and_then(|pool| pool.fallback.as_ref());
                next = fallback.map(|fallback| &*fallback.value.pool);
            }
            if let Some(first) = next.filter(|name| on_path.contains(name)) {
                let ring: Vec<&str> = path.iter().copied().skip_while(|name| *name != first).collect();
                self.ring(&ring);
            }
            done.extend(path);
        }
    }

    fn ring(&self, ring: &[&str]) {
        let Some(least) = ring.iter().min() else { return };
        let Some(fallback) = self.pools.get(*least).and_then(|pool| pool.fallback.as_ref()) else { return };
        let turned = ring.iter().cycle().skip_while(|name| *name != least).take(ring.len() + 1);
        let found = match ring.len() {
            1 => format!("pool \"{least}\" as a fallback of itself"),
            2..=32 => {
                format!("the cycle of fallbacks {}", turned.copied().collect::<Vec<_>>().join(" -> "))
            }
            length => format!("a cycle of {length} fallbacks through {least}"),
        };
        self.report.error(&fallback.place, found, "fallbacks that come to an end");
    }

    /// Tables that are too small for their pools, and pools that serve nothing.
    fn sizes(&self, flattened: &[Arc<Pool>]) {
        let slots = self.cluster.value.as_ref().map(|cluster| cluster.table_size as usize);
        for pool in flattened {
            let Some(draft) = self.pools.get(&pool.name) else { continue };
            let count = pool.members.len();
            let found = count_of(count, "backend");
            match slots {
                Some(slots) if count > slots => {
                    self.report.error(&draft.place, found, format!("at most table_size = {slots}"));
                }
                Some(slots) if slots / 100 < count => {
                    let most = slots / 100;
                    let allowed = format!("at most {most} for shares within 1 %: raise cluster.table_size");
                    self.report.warning(&draft.place, found, allowed);
                }
                _ => {}
            }
            if count > 0 && pool.members.iter().all(|member| member.weight == 0) {
                let found = "weight 0 for every backend: all its packets are dropped";
                self.report.warning(&draft.place, found, "a weight above 0");
            }
        }
    }

    /// Backends of all pools in the order of the file.
    fn all_backends(&self) -> Vec<&BackendDraft> {
        in_order(self.pools.values().flat_map(|pool| &pool.backends), |backend| &backend.name.place)
    }
}

/// What a VIP is matched by, as the file has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Address<'d> {
    Exact(IpAddr),
    Suffix(&'d str, Suffix),
}

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(address) => write!(f, "{address}"),
            Self::Suffix(group, suffix) => write!(f, "{group} {suffix}"),
        }
    }
}

fn addresses(vip: &VipDraft) -> impl Iterator<Item = Address<'_>> {
    let exact = vip.addresses.iter().map(|address| Address::Exact(address.value));
    let suffixes = vip
        .group
        .iter()
        .flat_map(|group| vip.suffixes.iter().map(move |suffix| Address::Suffix(&group.value, suffix.value)));
    exact.chain(suffixes)
}

/// Ports of one address and protocol that a service holds.
struct Claim<'d> {
    ports: RangeInclusive<u16>,
    service: &'d ServiceDraft,
}
