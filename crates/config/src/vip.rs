//! `[vip.NAME]`: addresses that clients connect to, and the pools that receive the traffic.
//!
//! This module reads the sections and defines [`Vip`]. The module `announce` reads the BGP settings
//! of a VIP, `consistency` detects conflicts between VIPs, and `groups` checks suffixes against
//! their group.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, Expected, Node, Place, Root, Section, distinct, values};
use serde::{Serialize, Serializer};

use forwarder::{HashPolicy, Prefix, Suffix};

use super::address::{self, AddressNode, SUFFIX};
use super::announce::{Announce, AnnounceDraft};
use super::canonical;
use super::guard::Guard;
use super::lists::Lists;
use super::pool::{Pool, read_checks};
use super::ports::{ANY_PORTS, PORTS, Ports, Protocol};
use super::prefix_group::PrefixGroup;
use super::remote_pool::RemotePool;

/// A virtual IP: addresses that clients connect to, and the pools that receive the traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vip {
    /// The name of the VIP.
    pub name: Arc<str>,
    shard: Option<Arc<str>>,
    /// The VIP's own addresses, without duplicates. Empty if the VIP only has addresses in a prefix
    /// group.
    #[serde(serialize_with = "canonical::set")]
    pub addresses: Vec<IpAddr>,
    /// The prefix group of the suffixes.
    #[serde(serialize_with = "group_name")]
    pub group: Option<Arc<PrefixGroup>>,
    /// The last bits of the VIP's addresses in the group, without duplicates. There is at least one
    /// suffix if `group` is `Some`.
    #[serde(serialize_with = "canonical::set")]
    pub suffixes: Vec<Suffix>,
    /// One or more services, in the order of the file.
    #[serde(serialize_with = "by_ports")]
    pub services: Vec<Service>,
    /// The access lists and rate limits. Default: all clients, without limits.
    #[serde(flatten)]
    pub guard: Guard,
    /// The remote clusters that serve the VIP. New flows are redirected to these clusters while no
    /// backend in this cluster is serving. Default: none.
    pub remote_pools: Vec<RemotePool>,
    /// `true` if the VIP accepts fragments. Default: `true`.
    pub fragments: bool,
    /// The action for packets to a service without a serving backend. Default: [`Unserved::Drop`].
    #[serde(serialize_with = "canonical_unserved")]
    pub on_no_backend: Unserved,
    /// The action for packets to a protocol or port without a service. Default:
    /// [`Unserved::Drop`].
    #[serde(serialize_with = "canonical_unserved")]
    pub on_unserved_port: Unserved,
    /// The settings of the BGP announcement. Default: not announced.
    pub announce: Option<Announce>,
}

/// The action for packets to a VIP that no backend receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unserved {
    /// Drop the packet without a reply.
    #[default]
    Drop,
    /// Reply with a TCP reset or an ICMP error.
    Reject,
}

fn canonical_unserved<S: Serializer>(value: &Unserved, to: S) -> Result<S::Ok, S::Error> {
    canonical::word(&UNSERVED, value, to)
}

impl Vip {
    /// Returns the shard whose machines serve the VIP. If `None`, all machines serve the VIP.
    pub fn shard(&self) -> Option<&str> {
        self.shard.as_deref()
    }

    /// Returns all addresses as text, such as `203.0.113.10`, or `edge ::20/72` for a suffix in the
    /// group `edge`.
    pub fn shown_addresses(&self) -> impl Iterator<Item = String> {
        let own = self.addresses.iter().map(ToString::to_string);
        let group = self.group.iter();
        let grouped = group
            .flat_map(|group| self.suffixes.iter().map(move |suffix| format!("{} {suffix}", group.name)));
        own.chain(grouped)
    }

    /// Returns the addresses at which health checks can probe the VIP. The result contains the
    /// VIP's own addresses, and one address per suffix: the group's first prefix of the family,
    /// zeros, and the suffix. By convention, the first prefix belongs to this cluster.
    pub fn reachable_at(&self) -> Vec<IpAddr> {
        let in_group = |suffix: &Suffix| {
            let prefix = self.group.as_ref()?.first(suffix.address().is_ipv4())?;
            prefix.with(suffix)
        };
        let mut addresses = self.addresses.clone();
        addresses.extend(self.suffixes.iter().filter_map(in_group));
        addresses
    }

    /// Returns the announced routes: all aggregates, and the host routes and first prefixes of the
    /// group that are not inside an aggregate. The result is empty if the VIP is not announced.
    pub fn routes(&self) -> BTreeSet<Prefix> {
        let prefixes = self.group.as_ref().map_or(&[][..], |group| &group.prefixes);
        self.announce
            .as_ref()
            .map(|announce| routes(&self.addresses, prefixes, &announce.aggregates))
            .unwrap_or_default()
    }
}

fn group_name<S: Serializer>(group: &Option<Arc<PrefixGroup>>, to: S) -> Result<S::Ok, S::Error> {
    group.as_ref().map(|group| &group.name).serialize(to)
}

fn pool_name<S: Serializer>(pool: &Pool, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&pool.name)
}

/// Serializes services as a map. The keys are protocol and ports, which are unique within a VIP.
fn by_ports<S: Serializer>(services: &[Service], to: S) -> Result<S::Ok, S::Error> {
    let name = |service: &Service| format!("{} {}", service.protocol, service.ports);
    to.collect_map(services.iter().map(|service| (name(service), service)).collect::<BTreeMap<_, _>>())
}

/// Returns the announced routes. See [`Vip::routes`].
pub(super) fn routes(addresses: &[IpAddr], prefixes: &[Prefix], aggregates: &[Prefix]) -> BTreeSet<Prefix> {
    let host = |address: &IpAddr| Prefix::new(*address, if address.is_ipv4() { 32 } else { 128 });
    let own = |ipv4: bool| prefixes.iter().find(move |prefix| prefix.address().is_ipv4() == ipv4).copied();
    let single = addresses.iter().filter_map(host).chain(own(true)).chain(own(false));
    let wider: HashSet<&Prefix> = aggregates.iter().collect();
    let is_inside = |route: &Prefix| {
        let mut around = (0..=route.length()).map(|length| Prefix::of(route.address(), length));
        !wider.is_empty() && around.any(|prefix| wider.contains(&prefix))
    };
    let outside = single.filter(|route| !is_inside(route));
    outside.chain(aggregates.iter().copied()).collect()
}

/// A service of a VIP: a protocol, its ports, and the pool that receives the packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Service {
    /// The ports. [`Ports::Any`] for protocols without ports.
    #[serde(skip)]
    pub ports: Ports,
    /// The protocol.
    #[serde(skip)]
    pub protocol: Protocol,
    /// The pool that the service uses. Services with the same pool share the `Arc`.
    #[serde(serialize_with = "pool_name")]
    pub pool: Arc<Pool>,
    /// The part of a packet that selects the backend. Default: [`HashPolicy::FiveTuple`], or
    /// [`HashPolicy::Key`] for UDP services of a pool with `kv`.
    #[serde(serialize_with = "canonical_hash")]
    pub hash: HashPolicy,
    /// What happens to the flows of a backend that drains.
    pub on_drain: OnDrain,
}

/// What happens to the existing flows of a backend that drains or was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDrain {
    /// The flows stay on the backend.
    #[default]
    Keep,
    /// The next packet of each flow chooses another backend. Only for UDP services.
    Move,
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

/// The section of a VIP, with the positions of its values.
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
    /// The names of the checks for the VIP in other clusters.
    pub(super) remote_checks: Vec<At<Arc<str>>>,
    pub(super) fragments: bool,
    on_no_backend: Unserved,
    pub(super) on_unserved_port: Unserved,
    pub(super) announce: Option<AnnounceDraft>,
    /// `true` if the key `announce` is present, even if its value is wrong.
    pub(super) is_announced: bool,
    /// The names of pools in all services, including services with errors.
    pub(super) pools: Vec<At<Arc<str>>>,
}

/// A service, with the positions of its values.
pub(super) struct ServiceDraft {
    pub(super) place: Place,
    pub(super) ports: Ports,
    pub(super) protocol: Protocol,
    pub(super) pool: At<Arc<str>>,
    /// The hash policy. `None` for the default.
    pub(super) hash: Option<At<HashPolicy>>,
    /// The key `tcp = "by-flow"`, if the service has it.
    pub(super) by_flow: Option<At<()>>,
    /// The key `on_drain`, if the service has it.
    pub(super) on_drain: Option<At<OnDrain>>,
}

impl ServiceDraft {
    /// Returns the part of a packet that selects the backend within `pool`.
    fn policy(&self, pool: &Pool) -> HashPolicy {
        if self.protocol == Protocol::Udp && pool.kv.is_some() {
            return HashPolicy::Key;
        }
        self.hash.as_ref().map_or(HashPolicy::FiveTuple, |hash| hash.value)
    }
}

impl VipDraft {
    pub(super) fn shard(&self) -> Option<&Arc<str>> {
        self.shard.as_ref().map(|shard| &shard.value)
    }

    pub(super) fn read_all(root: &mut Root<'_>, lists: &Lists<'_>) -> Vec<Self> {
        root.named("vip").into_iter().filter_map(|(name, node)| Self::read(name, &node, lists)).collect()
    }

    /// Builds the VIP, and replaces the names of its pools and its group with their values. Returns
    /// `None` if a pool is not in `pools`, or the group is not in `groups`.
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
            let on_drain = draft.on_drain.as_ref().map_or(OnDrain::default(), |at| at.value);
            Some(Service { ports: draft.ports.clone(), protocol: draft.protocol, pool, hash, on_drain })
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
            on_no_backend: self.on_no_backend,
            on_unserved_port: self.on_unserved_port,
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
            on_no_backend: section.or("on_no_backend", Unserved::Drop, |node| node.choice(&UNSERVED)),
            on_unserved_port: section.or("on_unserved_port", Unserved::Drop, |node| node.choice(&UNSERVED)),
            is_announced: announce.is_some(),
            announce: announce.and_then(|node| AnnounceDraft::read(&node)),
            pools,
        };
        section.finish();
        Some(draft)
    }
}

type Name = At<Arc<str>>;

/// Reads the VIP's own addresses, a group with suffixes, or both.
fn read_addresses(section: &mut Section<'_>) -> (Vec<At<IpAddr>>, Option<Name>, Vec<At<Suffix>>) {
    let addresses = section.optional("addresses");
    let (group, suffixes) = (section.optional("group"), section.optional("suffixes"));
    match (&addresses, &group, &suffixes) {
        (None, None, None) => {
            section.lacks("addresses", "list addresses = [\"203.0.113.10\"], or set group and suffixes");
        }
        (_, Some(_), None) => section.lacks("suffixes", "a group needs suffixes such as [\"0.0.0.20/7\"]"),
        (_, None, Some(_)) => section.lacks("group", "suffixes need the name of a prefix group"),
        _ => {}
    }
    let addresses = addresses.and_then(|node| node.items(ADDRESSES)).unwrap_or_default();
    let addresses = distinct(&addresses, |node| node.unicast("VIP address"), Node::again);
    let suffixes = suffixes.and_then(|node| node.items(SUFFIXES)).unwrap_or_default();
    let suffixes = distinct(&suffixes, |node| node.read(SUFFIX, address::suffix), Node::again);
    (addresses, group.and_then(|node| node.reference()), suffixes)
}

/// Reads the names of the remote clusters that serve the VIP, and of the checks that probe the VIP
/// in these clusters.
fn read_remotes(section: &mut Section<'_>) -> (Vec<Name>, Vec<Name>) {
    let (remotes, checks) = (section.optional("remotes"), section.optional("remote_checks"));
    if let Some(node) = checks.as_ref().filter(|_| remotes.is_none()) {
        node.needs("remotes in the same VIP");
    }
    let named = remotes.and_then(|node| node.items(REMOTES)).unwrap_or_default();
    (distinct(&named, Node::name, Node::again), read_checks(checks))
}

fn read_service(node: &Node<'_>, pools: &mut Vec<At<Arc<str>>>) -> Option<ServiceDraft> {
    let mut section = node.section()?;
    let protocol = section.required("protocol", PROTOCOL);
    let protocol = protocol.and_then(|node| Protocol::read(&node));
    let ports = match protocol {
        Some(protocol) if !protocol.has_ports() => section.or("ports", Some(Ports::Any), |node| {
            if node.as_str() == Some("any") {
                return Some(Some(Ports::Any));
            }
            let message =
                format!("{protocol} has no ports, so \"ports\" must be \"any\", got {}", node.shown());
            Some(node.wrong((message, "remove ports")))
        }),
        Some(Protocol::Sctp | Protocol::UdpLite) => {
            section.required("ports", ANY_PORTS).and_then(|node| Ports::read(&node))
        }
        Some(_) => section.required("ports", PORTS).and_then(|node| Ports::read(&node)),
        // If the protocol is invalid, it is not known whether the service needs ports.
        None => section.optional("ports").and_then(|node| Ports::read(&node)),
    };
    let pool = section.required("pool", "the name of a pool").and_then(|node| node.reference());
    pools.extend(pool.clone());
    let hash = section.optional("hash").and_then(|node| Some(node.at(node.choice(&HASHES)?)));
    let by_flow = section.optional("tcp").and_then(|node| {
        let read = node.at(node.choice(&[("by-flow", ())])?);
        if protocol.is_some_and(|protocol| protocol != Protocol::Tcp) {
            node.needs("protocol = \"tcp\"");
            return None;
        }
        Some(read)
    });
    let on_drain = section.optional("on_drain").and_then(|node| {
        let read = node.at(node.choice(&[("keep", OnDrain::Keep), ("move", OnDrain::Move)])?);
        if protocol.is_some_and(|protocol| !matches!(protocol, Protocol::Udp | Protocol::UdpLite)) {
            node.needs("protocol = \"udp\" or \"udp-lite\"");
            return None;
        }
        Some(read)
    });
    section.finish();
    let place = node.place.clone();
    Some(ServiceDraft { place, ports: ports?, protocol: protocol?, pool: pool?, hash, by_flow, on_drain })
}

/// The words for [`Unserved`].
pub(super) const UNSERVED: [(&str, Unserved); 2] = [("drop", Unserved::Drop), ("reject", Unserved::Reject)];
const HASHES: [(&str, HashPolicy); 3] = [
    ("5-tuple", HashPolicy::FiveTuple),
    ("addresses", HashPolicy::Addresses),
    ("source", HashPolicy::Source),
];
const ADDRESSES: Expected = Expected::new("a list of addresses").example("[\"203.0.113.10\"]");
const SUFFIXES: Expected = Expected::new("a list of suffixes").example("[\"0.0.0.20/7\", \"::20/72\"]");
const REMOTES: Expected = Expected::new("a list of names of remotes").example("[\"fra2\"]");
const SERVICES: Expected =
    Expected::new("a list of services").example("[{ ports = [80], protocol = \"tcp\", pool = \"NAME\" }]");
const PROTOCOL: Expected = Expected::new("the name of a protocol, or its number").example("\"tcp\"");
