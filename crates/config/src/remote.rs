//! `[remote.NAME]`: another cluster that also serves VIPs of this cluster.
//!
//! For each VIP with remotes, this module determines the addresses of the VIP in the other
//! clusters. The module `remotes` compares remotes with groups, VIPs and machines. The crate
//! `forwarder` redirects packets. Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.2.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, Expected, Node, Place, Root, Section, values};
use serde::Serialize;

use forwarder::{Prefix, Suffix};

use super::address::AddressNode;
use super::canonical;
use super::check::Check;
use super::encapsulation::{Encapsulation, EncapsulationDraft};
use super::pool::{Backend, Member, Pool};
use super::remote_pool::RemotePool;
use super::upstream_tunnels::read_sources;
use super::vip::VipDraft;

/// A remote cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remote {
    /// The name of the remote cluster.
    pub name: Arc<str>,
    /// The source addresses that the machines of the remote cluster use for tunnel packets. Only
    /// packets from these addresses are decapsulated.
    #[serde(serialize_with = "canonical::set")]
    pub sources: Vec<Prefix>,
}

/// Lists of values for each group or VIP, by its name.
type ByName<T> = BTreeMap<Arc<str>, (At<Arc<str>>, Vec<At<T>>)>;

/// The section of a remote, with the positions of its values. A remote with errors keeps its name,
/// so that references to it are valid.
#[derive(Default)]
pub(super) struct RemoteDraft {
    pub(super) place: Place,
    pub(super) sources: Vec<At<Prefix>>,
    /// The name of the encapsulation. `None` for the built-in `gre`.
    pub(super) encapsulation: Option<At<Arc<str>>>,
    /// The prefixes of each group in the other cluster, at most one per address family.
    pub(super) prefixes: ByName<Prefix>,
    /// The addresses of each VIP in the other cluster, at most one per address family.
    pub(super) addresses: ByName<IpAddr>,
}

impl RemoteDraft {
    /// Reads all remotes. Returns a map from name to remote.
    pub(super) fn read_all(root: &mut Root<'_>) -> BTreeMap<Arc<str>, Self> {
        root.named("remote").into_iter().map(|(name, node)| (name, Self::read(&node))).collect()
    }

    pub(super) fn build(&self, name: &Arc<str>) -> Arc<Remote> {
        Arc::new(Remote { name: Arc::clone(name), sources: values(&self.sources) })
    }

    /// Returns the prefix of a group in the other cluster, for one address family.
    pub(super) fn prefix(&self, group: &str, ipv4: bool) -> Option<&At<Prefix>> {
        let of_group = self.prefixes.get(group);
        of_group.into_iter().flat_map(|(_, list)| list).find(|at| at.value.address().is_ipv4() == ipv4)
    }

    /// Returns the address of a VIP in the other cluster, for one address family.
    pub(super) fn address(&self, vip: &str, ipv4: bool) -> Option<IpAddr> {
        let of_vip = self.addresses.get(vip);
        of_vip
            .into_iter()
            .flat_map(|(_, list)| list)
            .map(|at| at.value)
            .find(|address| address.is_ipv4() == ipv4)
    }

    fn read(node: &Node<'_>) -> Self {
        let mut draft = Self { place: node.place.clone(), ..Self::default() };
        let Some(mut section) = node.section() else { return draft };
        let sources = section.required("sources", SOURCES);
        draft.sources = sources.and_then(|node| read_sources(&node)).unwrap_or_default();
        draft.encapsulation = section.optional("encapsulation").and_then(|node| node.reference());
        draft.prefixes = by_name(&mut section, "prefixes", PREFIXES, |node| node.prefix(), Prefix::address);
        let address = |node: &Node<'_>| node.unicast("VIP address");
        draft.addresses = by_name(&mut section, "addresses", ADDRESSES, address, |address| *address);
        section.finish();
        draft
    }
}

/// Reads a table of lists. The keys are names of groups or VIPs, and each list has at most one
/// entry per address family.
fn by_name<T>(
    section: &mut Section<'_>,
    key: &'static str,
    expected: Expected,
    read: impl Fn(&Node<'_>) -> Option<T>,
    address: impl Fn(&T) -> IpAddr,
) -> ByName<T> {
    let entries = section.optional(key).and_then(|node| node.section()).map(Section::entries);
    let mut lists = ByName::new();
    for (name, node) in entries.unwrap_or_default() {
        let mut list: Vec<At<T>> = Vec::new();
        for node in node.items(expected).unwrap_or_default() {
            let Some(value) = read(&node) else { continue };
            let same = |other: &At<T>| address(&other.value).is_ipv4() == address(&value).is_ipv4();
            if list.iter().any(same) {
                let message = format!("{} has the same address family as an earlier entry", node.label());
                node.refuse((message, "list at most one IPv4 and one IPv6 entry"));
            } else {
                list.push(node.at(value));
            }
        }
        let name: Arc<str> = name.into();
        lists.insert(Arc::clone(&name), (node.at(name), list));
    }
    lists
}

/// The sections from which the remote pools of a VIP are built.
pub(super) struct Parts<'s> {
    pub(super) remotes: &'s BTreeMap<Arc<str>, RemoteDraft>,
    pub(super) encapsulations: &'s BTreeMap<Arc<str>, EncapsulationDraft>,
    /// The prefixes of the group that the VIP uses.
    pub(super) prefixes: &'s [Prefix],
    pub(super) checks: Arc<[Arc<Check>]>,
}

impl Parts<'_> {
    /// Returns the remote pools of the VIP. Skips invalid references, which were already reported.
    pub(super) fn of(&self, vip: &VipDraft) -> Vec<RemotePool> {
        let mut all = Vec::new();
        if vip.remotes.is_empty() {
            return all;
        }
        for ipv4 in [true, false] {
            let (family, bits) = if ipv4 { ("ipv4", 32) } else { ("ipv6", 128) };
            let own = vip.addresses.iter().map(|at| at.value).filter(|address| address.is_ipv4() == ipv4);
            let ours = own.filter_map(|address| Prefix::new(address, bits)).collect();
            // The name contains `@`, which is not allowed in configured names.
            let name = format!("remotes@{}/{family}", vip.name);
            all.extend(self.over(vip, &name, ours, |remote| {
                let address = remote.address(&vip.name, ipv4)?;
                Some((address, Prefix::new(address, bits)?))
            }));
            let (Some(group), Some(suffix)) = (&vip.group, first_suffix(vip, ipv4)) else { continue };
            let ours = self.prefixes.iter().filter(|prefix| prefix.address().is_ipv4() == ipv4);
            let name = format!("remotes@{}/{}/{family}", vip.name, group.value);
            all.extend(self.over(vip, &name, ours.copied().collect(), |remote| {
                let prefix = remote.prefix(&group.value, ipv4)?.value;
                Some((prefix.with(&suffix)?, prefix))
            }));
        }
        all
    }

    /// Builds a pool of the remotes for which `find` returns an address. Returns `None` if there
    /// are no such remotes, or if `ours` is empty.
    fn over(
        &self,
        vip: &VipDraft,
        name: &str,
        ours: Vec<Prefix>,
        find: impl Fn(&RemoteDraft) -> Option<(IpAddr, Prefix)>,
    ) -> Option<RemotePool> {
        let leaf: Arc<str> = name.into();
        let mut named: Vec<&Arc<str>> = vip.remotes.iter().map(|remote| &remote.value).collect();
        named.sort_unstable();
        let (mut members, mut theirs) = (Vec::new(), Vec::new());
        for name in named {
            let Some(remote) = self.remotes.get(name) else { continue };
            let Some((address, prefix)) = find(remote) else { continue };
            theirs.push(prefix);
            members.push(Member {
                backend: Arc::new(Backend { name: Arc::clone(name), address }),
                leaf: Arc::clone(&leaf),
                encapsulation: self.encapsulation(remote)?,
                ring_name: None,
                weight: 1,
                checks: Arc::clone(&self.checks),
            });
        }
        let shard = vip.shard().cloned();
        let pool =
            Pool { name: leaf, shard, members, fallback: None, slow_start: None, max_down: None, kv: None };
        let found = !ours.is_empty() && !theirs.is_empty();
        found.then(|| RemotePool { ours, pool: Arc::new(pool), theirs })
    }

    fn encapsulation(&self, remote: &RemoteDraft) -> Option<Arc<Encapsulation>> {
        let name = remote.encapsulation.as_ref().map_or("gre", |name| &*name.value);
        self.encapsulations.get(name)?.value.clone()
    }
}

/// Returns the suffix of the address that health checks probe in another cluster.
pub(super) fn first_suffix(vip: &VipDraft, ipv4: bool) -> Option<Suffix> {
    vip.suffixes.iter().map(|at| at.value).find(|suffix| suffix.address().is_ipv4() == ipv4)
}

const SOURCES: Expected = Expected::new("the outer source addresses of the other cluster's machines")
    .example("[\"198.51.100.96/28\"]");
const PREFIXES: Expected =
    Expected::new("a list of prefixes, at most one per address family").example("[\"198.51.100.64/26\"]");
const ADDRESSES: Expected =
    Expected::new("a list of addresses, at most one per address family").example("[\"203.0.113.74\"]");
