//! From services of IPVS to VIPs and pools.
//!
//! In: services, checked. Out: a [`Translation`]: VIPs by their addresses, a pool for each set of servers, and what is different.
//! A server is a backend under its address, whatever its port: packets reach it with the VIP's own port.
//! Not here: TOML (`toml`), what a configuration needs besides.
//! Invariant: no name, address, or place among services stands twice, and no backend is a VIP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::Note;
use crate::differences::{self, MAX_WEIGHT, UNWEIGHTED};
use crate::rules::{Checksum, Destination, Method, Protocol, Server, Service, is_unicast};

/// What becomes of all rules.
#[derive(Debug, Default)]
pub(crate) struct Translation {
    /// In the order of their first rules.
    pub(crate) vips: Vec<Vip>,
    /// What others name comes first.
    pub(crate) pools: Vec<Pool>,
    /// All of them, in the order of the lines.
    pub(crate) notes: Vec<Note>,
    /// Of services that are left out, and of their servers.
    pub(crate) left_out: Vec<Note>,
    /// The pool of each list of tiers.
    by_tiers: BTreeMap<Vec<Tier>, String>,
    /// Addresses of services, and where in `vips` each is.
    addresses: BTreeMap<IpAddr, Option<usize>>,
}

/// An address and its services.
#[derive(Debug)]
pub(crate) struct Vip {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) services: Vec<Entry>,
}

/// A service that is kept.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) protocol: Protocol,
    /// 0: any.
    pub(crate) port: u16,
    pub(crate) pool: String,
    /// The source's address alone chooses the backend.
    pub(crate) by_source: bool,
    /// Of it and its servers.
    pub(crate) notes: Vec<Note>,
}

/// A pool of backends, or of pools.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) name: String,
    /// Its backends, and those of pools inside.
    pub(crate) size: usize,
    pub(crate) encapsulation: Encapsulation,
    pub(crate) backends: Vec<Backend>,
    pub(crate) pools: Vec<String>,
    pub(crate) fallback: Option<String>,
}

/// A server with its share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Backend {
    pub(crate) address: IpAddr,
    pub(crate) weight: u32,
    pub(crate) encapsulation: Encapsulation,
}

impl Backend {
    /// Its name: the address, without colons.
    pub(crate) fn name(&self) -> String {
        name_of(&self.address.to_string().replace(':', "-"))
    }
}

/// Those that serve together.
type Tier = Vec<Backend>;

/// How packets travel to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Encapsulation {
    L2,
    Ipip,
    Gre,
    Gue,
    /// GUE with a checksum in its UDP header.
    Checksum,
}

impl Encapsulation {
    /// The name by which pools refer to it.
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

/// Translates all services.
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
        let Destination::Address(protocol, address) = service.destination else {
            let why = "it has no address: a service of each address and port, all with one pool, is near it";
            return self.leave_out(service, why);
        };
        if !is_unicast(address.ip()) {
            return self.leave_out(service, "its address is not that of one host");
        }
        let at = self.addresses.get(&address.ip()).copied().flatten();
        let of_sctp = |vip: &Vip| vip.services.iter().any(|entry| entry.protocol == Protocol::Sctp);
        if protocol == Protocol::Sctp && at.and_then(|at| self.vips.get(at)).is_some_and(of_sctp) {
            let why = "all SCTP of its address is one service, and a line before has it";
            return self.leave_out(service, why);
        }
        let mut notes = Vec::new();
        let servers = self.kept(service, &mut notes);
        if servers.is_empty() {
            self.left_out.extend(notes);
            let words = format!("{}: it has no server that can be a backend", service.destination);
            return self.left_out.push(Note { line: service.line, is_left_out: true, words });
        }
        let differences = differences::of_service(service, &servers).into_iter();
        let differs = |words| Note { line: service.line, is_left_out: false, words };
        notes.splice(0..0, differences.map(differs));
        let entry = self.entry(service, &servers, notes);
        self.vip(address.ip(), at).services.extend(entry);
    }

    /// The VIP of an address, which is new unless it stands somewhere.
    fn vip(&mut self, address: IpAddr, at: Option<usize>) -> &mut Vip {
        let at = at.unwrap_or(self.vips.len());
        self.addresses.insert(address, Some(at));
        if at == self.vips.len() {
            self.vips.push(Vip { name: key_of(address), address, services: Vec::new() });
        }
        &mut self.vips[at]
    }

    /// A service with its pool; `None`: of a firewall mark.
    fn entry(&mut self, service: &Service, servers: &[&Server], notes: Vec<Note>) -> Option<Entry> {
        let Destination::Address(protocol, address) = service.destination else { return None };
        let port = if protocol == Protocol::Sctp { 0 } else { address.port() };
        let end = if port == 0 { "any".to_owned() } else { port.to_string() };
        let name = format!("{}-{}-{end}", key_of(address.ip()), protocol.word());
        let pool = self.pool_of(tiers(service, servers), name);
        let is_hashed = matches!(service.scheduler, "sh" | "mh");
        let by_source = service.persistence.is_some() || (is_hashed && !service.with_port);
        Some(Entry { protocol, port, pool, by_source, notes })
    }

    /// Nothing of a service stays, and nothing of its servers.
    fn leave_out(&mut self, service: &Service, why: &str) {
        let note = |line, words| Note { line, is_left_out: true, words };
        let destination = &service.destination;
        self.left_out.push(note(service.line, format!("{destination}: {why}")));
        let servers = service.servers.iter();
        self.left_out.extend(servers.map(|server| note(server.line, format!("a server of {destination}"))));
    }

    /// The servers that can be backends, and what is different of each.
    fn kept<'s>(&self, service: &'s Service, notes: &mut Vec<Note>) -> Vec<&'s Server> {
        let (mut seen, mut kept) = (BTreeSet::new(), Vec::new());
        for server in &service.servers {
            let address = server.address.ip();
            let why = if !is_unicast(address) || self.addresses.contains_key(&address) {
                Some("the balancer itself, or a VIP, is no backend")
            } else if !seen.insert(address) {
                Some("a second port of a backend: ports are not translated")
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

    /// The name of a pool of these tiers, under `name` when it is new.
    fn pool_of(&mut self, tiers: Vec<Tier>, name: String) -> String {
        if let Some(known) = self.by_tiers.get(&tiers) {
            return known.clone();
        }
        let mut fallback = None;
        for (number, tier) in tiers.iter().enumerate().rev() {
            let name = if number == 0 { name.clone() } else { format!("{name}-{}", number + 1) };
            self.add_pool(name.clone(), tier, fallback.replace(name));
        }
        self.by_tiers.insert(tiers, name.clone());
        name
    }

    /// A pool, with one inside for each encapsulation where there are several.
    fn add_pool(&mut self, name: String, tier: &Tier, fallback: Option<String>) {
        let all: BTreeSet<Encapsulation> = tier.iter().map(|backend| backend.encapsulation).collect();
        let pool = |name, encapsulation, fallback| {
            let backends = tier.iter().filter(|backend| backend.encapsulation == encapsulation).cloned();
            let backends: Vec<Backend> = backends.collect();
            Pool { name, size: backends.len(), encapsulation, backends, pools: Vec::new(), fallback }
        };
        if let (Some(only), 1) = (all.first(), all.len()) {
            return self.pools.push(pool(name, *only, fallback));
        }
        let inner = all.into_iter().map(|one| pool(format!("{name}-{}", one.word()), one, None));
        let first = self.pools.len();
        self.pools.extend(inner);
        let pools = self.pools.iter().skip(first).map(|pool| pool.name.clone()).collect();
        let (size, encapsulation, backends) = (tier.len(), Encapsulation::L2, Vec::new());
        self.pools.push(Pool { name, size, encapsulation, backends, pools, fallback });
    }
}

/// The name of a section, which is written without quotes.
fn key_of(address: IpAddr) -> String {
    name_of(&address.to_string().replace(['.', ':'], "-"))
}

/// A name may not begin with a sign.
fn name_of(text: &str) -> String {
    if text.starts_with('-') { format!("0{text}") } else { text.to_owned() }
}

/// The servers of each step of a failover, the heaviest first; of other schedulers, all together.
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
