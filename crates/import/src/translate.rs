//! Translates IPVS services to VIPs and pools.
//!
//! A [`Translation`] has one VIP per address, and one pool per set of servers and checked TCP port.
//! A failed check takes the server out of its pool, so a check of one service must not affect other
//! services on the same server. Each server becomes a backend that is named after its address. The
//! port of a server is ignored, because packets keep their destination port. Names, addresses and
//! services are unique, and no backend has the address of a VIP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::Note;
use crate::differences::{self, MAX_WEIGHT, UNWEIGHTED};
use crate::rules::{Checksum, Destination, Method, Protocol, Server, Service, is_unicast};

/// The translation of all rules.
#[derive(Debug, Default)]
pub(crate) struct Translation {
    /// The VIPs, in the order of the first rule of each VIP.
    pub(crate) vips: Vec<Vip>,
    /// The pools. Each pool comes after the pools to which it refers.
    pub(crate) pools: Vec<Pool>,
    /// All notes, ordered by line.
    pub(crate) notes: Vec<Note>,
    /// The notes about services that are left out, and about their servers.
    pub(crate) left_out: Vec<Note>,
    /// The pool that was created for each list of tiers and checked TCP port.
    by_tiers: BTreeMap<(Vec<Tier>, Option<u16>), String>,
    /// The addresses of all services. The index of the VIP is `None` until the VIP is created.
    addresses: BTreeMap<IpAddr, Option<usize>>,
}

/// A VIP with its services.
#[derive(Debug)]
pub(crate) struct Vip {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) services: Vec<Entry>,
}

/// A translated service.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) protocol: Protocol,
    /// The port, or 0 for all ports.
    pub(crate) port: u16,
    pub(crate) pool: String,
    /// `true` if only the source address is hashed.
    pub(crate) by_source: bool,
    /// The notes about the service and its servers.
    pub(crate) notes: Vec<Note>,
}

/// A pool that contains backends or other pools.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) name: String,
    /// The number of backends, including the backends of pools in this pool.
    pub(crate) size: usize,
    pub(crate) encapsulation: Encapsulation,
    pub(crate) backends: Vec<Backend>,
    pub(crate) pools: Vec<String>,
    pub(crate) fallback: Option<String>,
    /// The TCP port that a check of the pool tests. A pool that is part of another pool has the
    /// checks of that pool.
    pub(crate) check: Option<u16>,
}

/// A backend with its weight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Backend {
    pub(crate) address: IpAddr,
    pub(crate) weight: u32,
    pub(crate) encapsulation: Encapsulation,
}

impl Backend {
    /// Returns the name of the backend, which is its address without colons.
    pub(crate) fn name(&self) -> String {
        name_of(&self.address.to_string().replace(':', "-"))
    }
}

/// The backends of one failover tier, which receive traffic together.
type Tier = Vec<Backend>;

/// The encapsulation of packets to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Encapsulation {
    L2,
    Ipip,
    Gre,
    Gue,
    /// GUE with a UDP checksum.
    Checksum,
}

impl Encapsulation {
    /// Returns the name that pools use for the encapsulation.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::Ipip => "ipip",
            Self::Gre => "gre",
            Self::Gue => "gue",
            Self::Checksum => "csum",
        }
    }
}

pub(crate) fn translate(services: Vec<Service>) -> Translation {
    let mut all = Translation::default();
    let addresses = services.iter().filter_map(|service| match service.destination {
        Destination::Address(_, address) => Some((address.ip(), None)),
        Destination::Mark { .. } => None,
    });
    all.addresses = addresses.collect();
    services.iter().for_each(|service| all.add(service));
    let kept = all.vips.iter().flat_map(|vip| &vip.services).flat_map(|entry| &entry.notes);
    all.notes = kept.chain(&all.left_out).cloned().collect();
    all.notes.sort_by_key(|note| note.line);
    all.left_out.sort_by_key(|note| note.line);
    all
}

impl Translation {
    fn add(&mut self, service: &Service) {
        let Destination::Address(_, address) = service.destination else {
            let destination = service.destination;
            return self.leave_out(
                service,
                format!(
                    "{destination} has no counterpart; define a service per address and port with the same pool"
                ),
            );
        };
        if !is_unicast(address.ip()) {
            return self
                .leave_out(service, format!("{} does not have a unicast address", service.destination));
        }
        let at = self.addresses.get(&address.ip()).copied().flatten();
        let mut notes = Vec::new();
        let servers = self.kept(service, &mut notes);
        if servers.is_empty() {
            self.left_out.extend(notes);
            let words = format!("{} has no server that can be a backend", service.destination);
            return self.left_out.push(Note { line: service.line, is_left_out: true, words });
        }
        let differences = differences::of_service(service, &servers).into_iter();
        let differs = |words| Note { line: service.line, is_left_out: false, words };
        notes.splice(0..0, differences.map(differs));
        let entry = self.entry(service, &servers, notes);
        self.vip(address.ip(), at).services.extend(entry);
    }

    /// Returns the VIP with this address. If `at` is `None`, creates the VIP.
    fn vip(&mut self, address: IpAddr, at: Option<usize>) -> &mut Vip {
        let at = at.unwrap_or(self.vips.len());
        self.addresses.insert(address, Some(at));
        if at == self.vips.len() {
            self.vips.push(Vip { name: key_of(address), address, services: Vec::new() });
        }
        &mut self.vips[at]
    }

    /// Translates the service. Returns `None` for a firewall mark.
    fn entry(&mut self, service: &Service, servers: &[&Server], notes: Vec<Note>) -> Option<Entry> {
        let Destination::Address(protocol, address) = service.destination else { return None };
        let port = address.port();
        let end = if port == 0 { "any".to_owned() } else { port.to_string() };
        let name = format!("{}-{}-{end}", key_of(address.ip()), protocol.word());
        let check = (protocol == Protocol::Tcp && port != 0).then_some(port);
        let pool = self.pool_of(tiers(service, servers), check, name);
        let is_hashed = matches!(service.scheduler, "sh" | "mh");
        let by_source = service.persistence.is_some() || (is_hashed && !service.with_port);
        Some(Entry { protocol, port, pool, by_source, notes })
    }

    /// Records that the configuration does not contain a service and its servers.
    fn leave_out(&mut self, service: &Service, words: String) {
        let note = |line, words| Note { line, is_left_out: true, words };
        let destination = &service.destination;
        self.left_out.push(note(service.line, words));
        let servers = service.servers.iter();
        self.left_out.extend(servers.map(|server| note(server.line, format!("server of {destination}"))));
    }

    /// Returns the servers that can be backends. Adds a note for each difference, and for each
    /// server that cannot be a backend.
    fn kept<'s>(&self, service: &'s Service, notes: &mut Vec<Note>) -> Vec<&'s Server> {
        let (mut seen, mut kept) = (BTreeSet::new(), Vec::new());
        for server in &service.servers {
            let address = server.address.ip();
            let why = if !is_unicast(address) || self.addresses.contains_key(&address) {
                Some("addresses of VIPs and non-unicast addresses cannot be backends")
            } else if !seen.insert(address) {
                Some("a backend cannot have a second port, because ports are not translated")
            } else {
                None
            };
            let mut note = |is_left_out, words| notes.push(Note { line: server.line, is_left_out, words });
            match why {
                Some(why) => note(true, format!("server {}: {why}", server.address)),
                None => {
                    differences::of_server(service, server).into_iter().for_each(|words| note(false, words));
                    kept.push(server);
                }
            }
        }
        kept
    }

    /// Returns the name of the pool with these tiers and this checked TCP port. If there is no such
    /// pool, creates one with the name `name`.
    fn pool_of(&mut self, tiers: Vec<Tier>, check: Option<u16>, name: String) -> String {
        let key = (tiers, check);
        if let Some(known) = self.by_tiers.get(&key) {
            return known.clone();
        }
        let mut fallback = None;
        for (number, tier) in key.0.iter().enumerate().rev() {
            let name = if number == 0 { name.clone() } else { format!("{name}-{}", number + 1) };
            self.add_pool(name.clone(), tier, check, fallback.replace(name));
        }
        self.by_tiers.insert(key, name.clone());
        name
    }

    /// Adds a pool. If its backends need different encapsulations, the pool contains a nested pool
    /// for each encapsulation.
    fn add_pool(&mut self, name: String, tier: &Tier, check: Option<u16>, fallback: Option<String>) {
        let all: BTreeSet<Encapsulation> = tier.iter().map(|backend| backend.encapsulation).collect();
        let pool = |name, encapsulation, check, fallback| {
            let backends = tier.iter().filter(|backend| backend.encapsulation == encapsulation).cloned();
            let backends: Vec<Backend> = backends.collect();
            Pool { name, size: backends.len(), encapsulation, backends, pools: Vec::new(), fallback, check }
        };
        if let (Some(only), 1) = (all.first(), all.len()) {
            return self.pools.push(pool(name, *only, check, fallback));
        }
        let inner = all.into_iter().map(|one| pool(format!("{name}-{}", one.word()), one, None, None));
        let first = self.pools.len();
        self.pools.extend(inner);
        let pools = self.pools.iter().skip(first).map(|pool| pool.name.clone()).collect();
        let (size, encapsulation, backends) = (tier.len(), Encapsulation::L2, Vec::new());
        self.pools.push(Pool { name, size, encapsulation, backends, pools, fallback, check });
    }
}

/// Returns a name for a TOML section that needs no quotes.
fn key_of(address: IpAddr) -> String {
    name_of(&address.to_string().replace(['.', ':'], "-"))
}

/// Converts text to a valid name, which must not begin with a hyphen.
fn name_of(text: &str) -> String {
    if text.starts_with('-') { format!("0{text}") } else { text.to_owned() }
}

/// Returns the failover tiers, beginning with the highest weight. Only services with the scheduler
/// `fo` have more than one tier.
fn tiers(service: &Service, servers: &[&Server]) -> Vec<Tier> {
    let most = servers.iter().map(|server| server.weight).max().unwrap_or(0);
    let divisor = most.div_ceil(MAX_WEIGHT).max(1);
    let is_failover = service.scheduler == "fo";
    let is_weighted = !is_failover && !UNWEIGHTED.contains(&service.scheduler);
    let backend = |server: &&Server| {
        let weight = if is_weighted { server.weight / divisor } else { 1 };
        let weight = if server.weight == 0 { 0 } else { weight.max(1) };
        Backend { address: server.address.ip(), weight, encapsulation: encapsulation(server.method) }
    };
    if !is_failover {
        return vec![servers.iter().map(backend).collect()];
    }
    let mut servers = servers.to_vec();
    servers.sort_by_key(|server| std::cmp::Reverse(server.weight));
    let (serving, idle): (Tier, Tier) = servers.iter().map(backend).partition(|backend| backend.weight > 0);
    let mut tiers: Vec<Tier> = serving.into_iter().map(|backend| vec![backend]).collect();
    match tiers.first_mut() {
        Some(first) => first.extend(idle),
        None => tiers.push(idle),
    }
    tiers
}

fn encapsulation(method: Method) -> Encapsulation {
    match method {
        Method::Gateway => Encapsulation::L2,
        Method::Ipip | Method::Masquerade => Encapsulation::Ipip,
        Method::Gre(_) => Encapsulation::Gre,
        Method::Gue(_, Checksum::Full) => Encapsulation::Checksum,
        Method::Gue(..) => Encapsulation::Gue,
    }
}
