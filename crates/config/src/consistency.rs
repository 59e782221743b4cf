//! Checks names, addresses and ports across sections.
//!
//! The checks use the flattened pools, and the values from the files with their positions. If two
//! values conflict, the problem is reported at the later value, and the message or its help line
//! contains the line number of the earlier value. The modules `flatten` and `groups` check nested
//! pools and prefix groups.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use config_text::Place;
use config_text::words::{count_of, quote};
use forwarder::Suffix;

use super::pool::{BackendDraft, Pool, PoolDraft};
use super::ports::{Ports, show};
use super::sections::{Sections, each_once, in_order, is_flawed};
use super::vip::{ServiceDraft, UNSERVED, VipDraft};

impl Sections<'_> {
    /// Runs every check.
    pub(super) fn check(&self, flattened: &[Arc<Pool>]) {
        let addresses = self.machines.iter().flat_map(|machine| &machine.addresses);
        each_once(self, addresses, "address");
        self.backends();
        self.backends_on_machines();
        self.vip_addresses();
        self.services();
        super::groups::check(self);
        super::shards::check(self);
        super::remotes::check(self);
        super::keyed::check(self, flattened);
        super::proxied::check(self, flattened);
        super::replicas::check(self, flattened);
        super::strict::check(self);
        // A later fragment has no ports.
        self.of_addresses("fragments", |vip| vip.fragments, |value| value.to_string());
        let word = |value| UNSERVED.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| word);
        self.of_addresses("on_unserved_port", |vip| vip.on_unserved_port, |value| quote(word(value)));
        self.outer_families();
        self.references();
        self.fallbacks(flattened);
        self.unused();
        super::idle_keys::check(self);
        super::unchecked::check(self);
        if self.vips.is_empty() {
            let help = "add a section [vip.NAME] for each VIP";
            self.report
                .warning(&Place::top("vip"), ("no VIP is configured, so no packets are forwarded", help));
        }
        self.sizes(flattened);
    }

    /// Reports a backend name that has two addresses. A backend is identified by its name.
    fn backends(&self) {
        let mut by_name: HashMap<&str, &BackendDraft> = HashMap::new();
        let mut by_address: HashMap<IpAddr, &BackendDraft> = HashMap::new();
        for backend in self.all_backends() {
            let address = backend.address.value;
            let first = *by_name.entry(&backend.name.value).or_insert(backend);
            if first.address.value != address {
                let elsewhere = self.report.name(&first.address.place, &backend.address.place);
                let name = quote(&backend.name.value);
                let message =
                    format!("backend {name} has two addresses, {} and {address}", first.address.value);
                let help =
                    format!("the first address is {elsewhere}; use the same address or another backend name");
                self.report.error(&backend.address.place, (message, help));
                continue;
            }
            let first = *by_address.entry(address).or_insert(backend);
            if first.name.value != backend.name.value {
                let message = format!("{address} is also the address of backend \"{}\"", first.name.value);
                self.report
                    .warning(&backend.address.place, (message, "use one backend name for each address"));
            }
        }
    }

    /// Reports a backend that has the address of a machine. The machine cannot send packets to
    /// itself, because its XDP program only handles packets that arrive on an interface.
    fn backends_on_machines(&self) {
        let machines: HashMap<IpAddr, &Arc<str>> = self
            .machines
            .iter()
            .flat_map(|machine| machine.addresses.iter().map(|own| (own.value, &machine.name)))
            .collect();
        for backend in self.all_backends() {
            let Some(machine) = machines.get(&backend.address.value) else { continue };
            let name = quote(&backend.name.value);
            let message = format!("backend {name} has the address of machine \"{machine}\"");
            let help =
                "a load balancer cannot send packets to itself; run the backend on a different machine";
            self.report.error(&backend.address.place, (message, help));
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
            taken.entry(address.value).or_insert(("a backend", &address.place));
        }
        for address in machines {
            taken.insert(address.value, ("a machine", &address.place));
        }
        for address in self.vips.iter().flat_map(|vip| &vip.addresses) {
            if let Some((whose, place)) = taken.get(&address.value) {
                let first = self.report.name(place, &address.place);
                let message = format!("VIP address {} is also the address of {whose}", address.value);
                self.report.error(&address.place, (message, format!("the other address is {first}")));
            }
        }
    }

    /// Reports ports that two services of the same address list. The value `any` means all ports
    /// that no other service lists.
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

    /// Reports VIPs that share an address but have different values of a key that applies to the
    /// address. A packet without a service belongs to any of these VIPs.
    fn of_addresses<T: PartialEq>(
        &self,
        key: &str,
        of: impl Fn(&VipDraft) -> T,
        shown: impl Fn(T) -> String,
    ) {
        let mut first: BTreeMap<Address<'_>, &VipDraft> = BTreeMap::new();
        for vip in in_order(self.vips.iter(), |vip| &vip.place) {
            for address in addresses(vip) {
                let other = *first.entry(address).or_insert(vip);
                if of(other) != of(vip) {
                    let message = format!(
                        "VIPs \"{}\" and \"{}\" share {address}, but differ in \"{key}\"",
                        other.name, vip.name
                    );
                    let elsewhere = self.report.name(&other.place, &vip.place);
                    let help = format!("set {key} = {} as in {elsewhere}", shown(of(other)));
                    self.report.error(&vip.place, (message, help));
                    break;
                }
            }
        }
    }

    fn clash(&self, address: Address<'_>, any: bool, one: &Claim<'_>, other: &Claim<'_>) {
        let first_is_later = one.service.place.offset > other.service.place.offset;
        let (first, second) = if first_is_later { (other, one) } else { (one, other) };
        let ports = if any { ", all ports,".to_owned() } else { format!(" port {}", show(&second.ports)) };
        let message =
            format!("{address} {}{ports} already belongs to another service", second.service.protocol);
        let first = self.report.name(&first.service.place, &second.service.place);
        self.report.error(&second.service.place, (message, format!("the other service is {first}")));
    }

    /// Reports machines that lack a source address for an address family of their outer headers.
    fn outer_families(&self) {
        for pool in self.pools.values() {
            let Some(encapsulation) = self.encapsulation(pool.encapsulation.as_ref()) else { continue };
            let lacking = [false, true].map(|ipv4| self.without_source(pool.shard(), encapsulation, ipv4));
            for backend in &pool.backends {
                let address = backend.address.value;
                let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
                let Some(machine) = lacking[usize::from(address.is_ipv4())] else { continue };
                let message = format!(
                    "machine \"{}\" has no {family} source address for packets to {address}",
                    machine.name
                );
                let help = format!(
                    "add an {family} address to the machine, or an {family} prefix to source_prefixes of \
                     encapsulation \"{}\"",
                    encapsulation.name
                );
                self.report.absent(&backend.address.place, (message, help));
            }
        }
    }

    fn references(&self) {
        let fallbacks = self.pools.values().filter_map(PoolDraft::fallback_pool);
        let routed = self.pools.values().flat_map(PoolDraft::kv_pools).cloned();
        let named = self.vips.iter().flat_map(|vip| vip.pools.iter().cloned()).chain(fallbacks).chain(routed);
        for name in named.filter(|name| !self.pools.contains_key(&name.value)) {
            self.report.unknown(&name, self.pools.keys(), "pool");
        }
    }

    fn unused(&self) {
        let used = self.reached(|pool| {
            let inner = pool.pools.iter().map(|reference| &*reference.pool.value);
            let routed = pool.kv_pools().map(|name| &*name.value);
            inner.chain(pool.fallback.iter().map(|fallback| &*fallback.value.pool)).chain(routed)
        });
        for (name, pool) in &self.pools {
            self.warn_unless(&used, name, &pool.place, ("pool", "any VIP"));
        }
        let of_pools = self.pools.values().filter_map(|pool| pool.encapsulation.as_ref());
        let of_remotes = self.remotes.values().filter_map(|remote| remote.encapsulation.as_ref());
        let mut used: BTreeSet<&str> = of_pools.chain(of_remotes).map(|name| &*name.value).collect();
        if self.pools.values().any(|pool| pool.encapsulation.is_none() && !pool.backends.is_empty()) {
            used.insert("gre");
        }
        for (name, draft) in &self.encapsulations {
            let Some(place) = &draft.place else { continue };
            self.warn_unless(&used, name, place, ("encapsulation", "any pool"));
        }
        let of_pools = self.pools.values().flat_map(|pool| &pool.checks);
        let of_vips = self.vips.iter().flat_map(|vip| &vip.remote_checks);
        let of_all = of_pools.chain(of_vips).chain(&self.cluster.peer_checks);
        let used: BTreeSet<&str> = of_all.map(|name| &*name.value).collect();
        for (name, draft) in &self.checks {
            self.warn_unless(&used, name, &draft.place, ("check", "any pool"));
        }
    }

    fn warn_unless(&self, used: &BTreeSet<&str>, name: &str, place: &Place, (kind, user): (&str, &str)) {
        if !used.contains(name) && !is_flawed(name) {
            self.report.warning(place, format!("{kind} \"{name}\" is not used by {user}"));
        }
    }

    /// Reports fallback pools that can never take over, and fallback pools that form a cycle.
    fn fallbacks(&self, flattened: &[Arc<Pool>]) {
        for (name, pool) in &self.pools {
            let Some(fallback) = &pool.fallback else { continue };
            let own = flattened.binary_search_by(|pool| pool.name.cmp(name)).ok();
            let count = own.map_or(0, |at| flattened[at].members.len());
            if count > 0 && usize::try_from(fallback.value.below).is_ok_and(|below| below > count) {
                let backends = count_of(count, "backend");
                let below = fallback.value.below;
                let message = format!(
                    "pool \"{name}\" is never used, because it has {backends} and its fallback has below = {below}"
                );
                let help = format!("set below to {count} or less");
                self.report.warning(&fallback.place, (message, help));
            }
        }
        self.fallback_rings();
    }

    /// Reports each cycle of fallbacks once, at the alphabetically first pool of the cycle.
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
        let message = match ring.len() {
            1 => format!("pool \"{least}\" is its own fallback"),
            2..=32 => {
                format!("fallbacks form a cycle, {}", turned.copied().collect::<Vec<_>>().join(" -> "))
            }
            length => format!("{length} fallbacks form a cycle through pool \"{least}\""),
        };
        self.report.error(&fallback.place, (message, "remove one fallback to break the cycle"));
    }

    /// Reports a `table_size` that is too small for a pool, and pools in which all weights are 0.
    fn sizes(&self, flattened: &[Arc<Pool>]) {
        let slots = self.cluster.value.as_ref().map(|cluster| cluster.table_size as usize);
        for pool in flattened {
            let Some(draft) = self.pools.get(&pool.name) else { continue };
            let count = pool.members.len();
            let backends = count_of(count, "backend");
            match slots {
                Some(slots) if count > slots => {
                    let message = format!("pool \"{}\" has {backends}, but table_size is {slots}", pool.name);
                    self.report.error(&draft.place, (message, "raise cluster.table_size"));
                }
                Some(slots) if slots / 100 < count => {
                    let message = format!(
                        "pool \"{}\" has {backends}, too many for traffic shares accurate to 1 %",
                        pool.name
                    );
                    let help = format!(
                        "raise cluster.table_size; {slots} entries are enough for {} backends",
                        slots / 100
                    );
                    self.report.warning(&draft.place, (message, help));
                }
                _ => {}
            }
            if count > 0 && pool.members.iter().all(|member| member.weight == 0) {
                let message = format!(
                    "all backends of pool \"{}\" have weight 0, so none of them gets packets",
                    pool.name
                );
                self.report.warning(&draft.place, (message, "set a weight above 0"));
            }
        }
    }

    /// Returns the backends of all pools, in the order in which the files define them.
    fn all_backends(&self) -> Vec<&BackendDraft> {
        in_order(self.pools.values().flat_map(|pool| &pool.backends), |backend| &backend.name.place)
    }
}

/// A VIP's address or suffix.
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

/// The ports of one service for one address and protocol.
struct Claim<'d> {
    ports: RangeInclusive<u16>,
    service: &'d ServiceDraft,
}
