//! `[vip.NAME]`: the addresses that clients use, and what serves them.
//!
//! In: the sections. Out: drafts with the places of their parts, and the [`Vip`] that they become.
//! Not here: how it is announced (`announce`), clashes between VIPs (`consistency`), suffixes against their group (`groups`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, Node, Place, Root, Section, distinct, values};
use serde::{Serialize, Serializer};

use forwarder::{HashPolicy, Prefix, Suffix};

use super::address::{self, AddressNode, SUFFIX};
use super::announce::{Announce, AnnounceDraft};
use super::canonical;
use super::guard::Guard;
use super::lists::Lists;
use super::pool::{Pool, read_checks};
use super::ports::{Ports, Protocol};
use super::prefix_group::PrefixGroup;
use super::remote_pool::RemotePool;

/// A virtual service: addresses, and what answers on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vip {
    /// The name.
    pub name: Arc<str>,
    shard: Option<Arc<str>>,
    /// The addresses that are its own, each once; none when it has a group alone.
    #[serde(serialize_with = "canonical::set")]
    pub addresses: Vec<IpAddr>,
    /// The group in whose prefixes its suffixes stand.
    #[serde(serialize_with = "group_name")]
    pub group: Option<Arc<PrefixGroup>>,
    /// The last bits of its addresses in the group, each once; at least one when there is a group.
    #[serde(serialize_with = "canonical::set")]
    pub suffixes: Vec<Suffix>,
    /// Its services, at least one, in the order of the file.
    #[serde(serialize_with = "by_ports")]
    pub services: Vec<Service>,
    /// Who may use it, and how fast. Default: everyone.
    #[serde(flatten)]
    pub guard: Guard,
    /// Where other clusters serve it: new flows go there while no backend here serves. Default: nowhere.
    pub remote_pools: Vec<RemotePool>,
    /// Whether it takes fragments. Default `true`.
    pub fragments: bool,
    /// How it is announced by BGP. Default: it is not.
    pub announce: Option<Announce>,
}

impl Vip {
    /// The shard whose machines serve it; `None`: every machine does.
    pub fn shard(&self) -> Option<&str> {
        self.shard.as_deref()
    }

    /// All its addresses in words: `203.0.113.10`, and `edge ::20/72` for those of a suffix in a group.
    pub fn shown_addresses(&self) -> impl Iterator<Item = String> {
        let own = self.addresses.iter().map(ToString::to_string);
        let group = self.group.iter();
        let grouped = group
            .flat_map(|group| self.suffixes.iter().map(move |suffix| format!("{} {suffix}", group.name)));
        own.chain(grouped)
    }

    /// Where it can be asked: its addresses, and for each suffix the address in the group's first prefix of that family, which is
    /// by convention the cluster's own; what lies between prefix and suffix is zero.
    pub fn reachable_at(&self) -> Vec<IpAddr> {
        let in_group = |suffix: &Suffix| {
            let prefix = self.group.as_ref()?.first(suffix.address().is_ipv4())?;
            prefix.with(suffix)
        };
        let mut addresses = self.addresses.clone();
        addresses.extend(self.suffixes.iter().filter_map(in_group));
        addresses
    }

    /// The routes by which it is announced: its aggregates; host routes, and the group's own prefixes (the first of each family),
    /// that lie in none of them. None when it is not announced.
    pub fn routes(&self) -> BTreeSet<Prefix> {
        let prefixes = self.group.as_ref().map_or(&[][..], |group| &group.prefixes);
        self.announce
            .as_ref()
            .map(|says| routes(&self.addresses, prefixes, &says.aggregates))
            .unwrap_or_default()
    }
}

fn group_name<S: Serializer>(group: &Option<Arc<PrefixGroup>>, to: S) -> Result<S::Ok, S::Error> {
    group.as_ref().map(|group| &group.name).serialize(to)
}

fn pool_name<S: Serializer>(pool: &Pool, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&pool.name)
}

/// By protocol and ports, which no two of a VIP share.
fn by_ports<S: Serializer>(services: &[Service], to: S) -> Result<S::Ok, S::Error> {
    let name = |service: &Service| format!("{} {}", service.protocol, service.ports);
    to.collect_map(services.iter().map(|service| (name(service), service)).collect::<BTreeMap<_, _>>())
}

/// As [`Vip::routes`]: of a VIP's addresses, its group's prefixes, and its aggregates.
pub(super) fn routes(addresses: &[IpAddr], prefixes: &[Prefix], aggregates: &[Prefix]) -> BTreeSet<Prefix> {
    let host = |address: &IpAddr| Prefix::new(*address, if address.is_ipv4() { 32 } else { 128 });
    let own = |ipv4: bool| prefixes.iter().find(move |prefix| prefix.address().is_ipv4() == ipv4).copied();
    let single = addresses.iter().filter_map(host).chain(own(true)).chain(own(false));
    let outside = single.filter(|route| !aggregates.iter().any(|aggregate| aggregate.covers(route)));
    outside.chain(aggregates.iter().copied()).collect()
}

/// What one protocol and some ports of a VIP lead to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Service {
    /// The ports; [`Ports::Any`] for protocols without ports.
    #[serde(skip)]
    pub ports: Ports,
    /// The protocol.
    #[serde(skip)]
    pub protocol: Protocol,
    /// The pool that serves; services of one pool share it.
    #[serde(serialize_with = "pool_name")]
    pub pool: Arc<Pool>,
    /// What of a packet chooses the backend. Default [`HashPolicy::FiveTuple`], and [`HashPolicy::Key`] where UDP leads to a pool
    /// with `kv`.
    #[serde(serialize_with = "canonical_hash")]
    pub hash: HashPolicy,
}

impl Vip {
    pub(super) fn renamed(&self, name: impl Fn(&Arc<str>) -> Arc<str>) -> Self {
        Self { announce: self.announce.as_ref().map(|announce| announce.renamed(name)), ..self.clone() }
    }
}

fn canonical_hash<S: Serializer>(value: &HashPolicy, to: S) -> Result<S::Ok, S::Error> {
    match value {
        HashPolicy::Key => to.serialize_str("key"),
        _ => canonical::word(&HASHES, value, to),
    }
}

/// A VIP as written.
pub(super) struct VipDraft {
    pub(super) place: Place,
    pub(super) name: Arc<str>,
    pub(super) shard: Option<At<Arc<str>>>,
    pub(super) addresses: Vec<At<IpAddr>>,
    pub(super) group: Option<At<Arc<str>>>,
    pub(super) suffixes: Vec<At<Suffix>>,
    pub(super) services: Vec<ServiceDraft>,
    guard: Guard,
    pub(super) remotes: Vec<At<Arc<str>>>,
    /// The checks of it in the other clusters.
    pub(super) remote_checks: Vec<At<Arc<str>>>,
    pub(super) fragments: bool,
    pub(super) announce: Option<AnnounceDraft>,
    /// `announce` is there, whether or not it could be read.
    pub(super) is_announced: bool,
    /// The pools that its services name, those of services with errors too.
    pub(super) pools: Vec<At<Arc<str>>>,
}

/// A service as written.
pub(super) struct ServiceDraft {
    pub(super) place: Place,
    pub(super) ports: Ports,
    pub(super) protocol: Protocol,
    pub(super) pool: At<Arc<str>>,
    /// `None`: the default.
    pub(super) hash: Option<At<HashPolicy>>,
}

impl ServiceDraft {
    /// What chooses the backend among those of `pool`.
    fn policy(&self, pool: &Pool) -> HashPolicy {
        if self.protocol == Protocol::Udp && pool.kv.is_some() {
            return HashPolicy::Key;
        }
        self.hash.as_ref().map_or(HashPolicy::FiveTuple, |hash| hash.value)
    }
}

impl VipDraft {
    /// The shard's name.
    pub(super) fn shard(&self) -> Option<&Arc<str>> {
        self.shard.as_ref().map(|shard| &shard.value)
    }

    pub(super) fn read_all(root: &mut Root<'_>, lists: &Lists<'_>) -> Vec<Self> {
        root.named("vip").into_iter().filter_map(|(name, node)| Self::read(name, &node, lists)).collect()
    }

    /// The VIP with its pools and its group in place of their names; `None` when one is not among `pools` or `groups`.
    pub(super) fn build(
        &self,
        pools: &[Arc<Pool>],
        groups: &[Arc<PrefixGroup>],
        remote_pools: Vec<RemotePool>,
    ) -> Option<Vip> {
        let service = |draft: &ServiceDraft| {
            let at = pools.binary_search_by(|pool| pool.name.cmp(&draft.pool.value)).ok()?;
            let pool = Arc::clone(pools.get(at)?);
            let hash = draft.policy(&pool);
            Some(Service { ports: draft.ports.clone(), protocol: draft.protocol, pool, hash })
        };
        let group = |named: &At<Arc<str>>| {
            let at = groups.binary_search_by(|group| group.name.cmp(&named.value)).ok()?;
            groups.get(at).map(Arc::clone)
        };
        Some(Vip {
            name: Arc::clone(&self.name),
            shard: self.shard().cloned(),
            addresses: values(&self.addresses),
            group: match &self.group {
                None => None,
                Some(named) => Some(group(named)?),
            },
            suffixes: values(&self.suffixes),
            services: self.services.iter().map(service).collect::<Option<_>>()?,
            guard: self.guard.clone(),
            remote_pools,
            fragments: self.fragments,
            announce: self.announce.as_ref().map(|draft| draft.announce.clone()),
        })
    }

    fn read(name: Arc<str>, node: &Node<'_>, lists: &Lists<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let (addresses, group, suffixes) = read_addresses(&mut section);
        let services = section.required("services", SERVICES).and_then(|node| node.items(SERVICES));
        let mut pools = Vec::new();
        let services = services.unwrap_or_default();
        let services = services.iter().filter_map(|node| read_service(node, &mut pools)).collect();
        let (remotes, remote_checks) = read_remotes(&mut section);
        let announce = section.optional("announce");
        let draft = Self {
            place: node.place.clone(),
            name,
            shard: section.optional("shard").and_then(|node| node.reference()),
            addresses,
            group,
            suffixes,
            services,
            guard: Guard::read(&mut section, lists),
            remotes,
            remote_checks,
            fragments: section.or("fragments", true, |node| node.boolean()),
            is_announced: announce.is_some(),
            announce: announce.and_then(|node| AnnounceDraft::read(&node)),
            pools,
        };
        section.finish();
        Some(draft)
    }
}

type Name = At<Arc<str>>;

/// Its own addresses, or a group and the suffixes there, or both.
fn read_addresses(section: &mut Section<'_>) -> (Vec<At<IpAddr>>, Option<Name>, Vec<At<Suffix>>) {
    let addresses = section.optional("addresses");
    let (group, suffixes) = (section.optional("group"), section.optional("suffixes"));
    let absent = |key, allowed: &str| section.report.absent(&section.place().key(key), "nothing", allowed);
    match (&addresses, &group, &suffixes) {
        (None, None, None) => absent("addresses", ADDRESSES_OR_GROUP),
        (_, Some(_), None) => absent("suffixes", SUFFIXES),
        (_, None, Some(_)) => absent("group", "the name of a prefix group"),
        _ => {}
    }
    let addresses = addresses.and_then(|node| node.items(ADDRESSES)).unwrap_or_default();
    let again = |node: &Node<'_>| node.refuse("each address once in a VIP");
    let addresses = distinct(&addresses, |node| node.unicast(), again);
    let suffixes = suffixes.and_then(|node| node.items(SUFFIXES)).unwrap_or_default();
    let again = |node: &Node<'_>| node.refuse("each suffix once in a VIP");
    let suffixes = distinct(&suffixes, |node| node.read(SUFFIX, address::suffix), again);
    (addresses, group.and_then(|node| node.reference()), suffixes)
}

/// The other clusters that serve it, and its checks there.
fn read_remotes(section: &mut Section<'_>) -> (Vec<Name>, Vec<Name>) {
    let (remotes, checks) = (section.optional("remotes"), section.optional("remote_checks"));
    if let Some(node) = checks.as_ref().filter(|_| remotes.is_none()) {
        node.refuse("nothing here: the VIP names no remotes");
    }
    let named = remotes.and_then(|node| node.items(REMOTES)).unwrap_or_default();
    let again = |node: &Node<'_>| node.refuse("each remote once in a VIP");
    (distinct(&named, |node| node.name(), again), read_checks(checks))
}

fn read_service(node: &Node<'_>, pools: &mut Vec<At<Arc<str>>>) -> Option<ServiceDraft> {
    let mut section = node.section()?;
    let protocol = section.required("protocol", "\"tcp\", \"udp\", another name or a number");
    let protocol = protocol.and_then(|node| Protocol::read(&node));
    let ports = match protocol {
        Some(protocol) if !protocol.has_ports() => section.or("ports", Some(Ports::Any), |node| {
            let any = node.as_str() == Some("any");
            Some(if any { Some(Ports::Any) } else { node.wrong("\"any\": this protocol has no ports") })
        }),
        _ => section.required("ports", "a list of ports, or \"any\"").and_then(|node| Ports::read(&node)),
    };
    let pool = section.required("pool", "the name of a pool").and_then(|node| node.reference());
    pools.extend(pool.clone());
    let hash = section.optional("hash").and_then(|node| Some(node.at(node.choice(&HASHES)?)));
    section.finish();
    let place = node.place.clone();
    Some(ServiceDraft { place, ports: ports?, protocol: protocol?, pool: pool?, hash })
}

const HASHES: [(&str, HashPolicy); 3] = [
    ("5-tuple", HashPolicy::FiveTuple),
    ("addresses", HashPolicy::Addresses),
    ("source", HashPolicy::Source),
];
const ADDRESSES: &str = "a list of addresses, at least one";
const ADDRESSES_OR_GROUP: &str = "a list of addresses, at least one, or a group and suffixes";
const SUFFIXES: &str = "a list of suffixes such as [\"0.0.0.20/7\", \"::20/72\"], at least one";
const REMOTES: &str = "a list of names of remotes, at least one";
const SERVICES: &str = "a list of { ports = [80], protocol = \"tcp\", pool = \"NAME\" }";
