//! `[remote.NAME]`: another cluster that serves VIPs of this one, and is served by it.
//!
//! In: the sections. Out: [`Remote`]s, and for a VIP that names some the addresses that each family of it has there.
//! Not here: remotes against groups, VIPs and machines (`remotes`), redirecting (`forwarder`).
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.2.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, Node, Place, Root, Section, values};
use serde::Serialize;

use forwarder::{Prefix, Suffix};

use super::address::AddressNode;
use super::arrivals::read_sources;
use super::canonical;
use super::check::Check;
use super::encapsulation::{Encapsulation, EncapsulationDraft};
use super::pool::{Backend, Member, Pool};
use super::remote_pool::RemotePool;
use super::vip::VipDraft;

/// Another cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remote {
    /// The name.
    pub name: Arc<str>,
    /// Outer source addresses of its machines: from these its packets are taken.
    #[serde(serialize_with = "canonical::set")]
    pub sources: Vec<Prefix>,
}

/// Lists by the names of groups or VIPs, in the order of the file.
type ByName<T> = Vec<(At<Arc<str>>, Vec<At<T>>)>;

/// A remote as written; it keeps its name whatever else is wrong, so that references to it hold.
#[derive(Default)]
pub(super) struct RemoteDraft {
    pub(super) place: Place,
    pub(super) sources: Vec<At<Prefix>>,
    /// `None`: the built-in `gre`.
    pub(super) encapsulation: Option<At<Arc<str>>>,
    /// By group, at most one a family.
    pub(super) prefixes: ByName<Prefix>,
    /// By VIP, at most one a family.
    pub(super) addresses: ByName<IpAddr>,
}

impl RemoteDraft {
    /// All remotes of the file by name.
    pub(super) fn read_all(root: &mut Root<'_>) -> BTreeMap<Arc<str>, Self> {
        root.named("remote").into_iter().map(|(name, node)| (name, Self::read(&node))).collect()
    }

    pub(super) fn build(&self, name: &Arc<str>) -> Arc<Remote> {
        Arc::new(Remote { name: Arc::clone(name), sources: values(&self.sources) })
    }

    /// Its prefix for a group and a family.
    pub(super) fn prefix(&self, group: &str, ipv4: bool) -> Option<&At<Prefix>> {
        let of_group = self.prefixes.iter().filter(|(name, _)| *name.value == *group);
        of_group.flat_map(|(_, list)| list).find(|at| at.value.address().is_ipv4() == ipv4)
    }

    /// The address that a VIP has there.
    pub(super) fn address(&self, vip: &str, ipv4: bool) -> Option<IpAddr> {
        let of_vip = self.addresses.iter().filter(|(name, _)| *name.value == *vip);
        of_vip.flat_map(|(_, list)| list).map(|at| at.value).find(|address| address.is_ipv4() == ipv4)
    }

    fn read(node: &Node<'_>) -> Self {
        let mut draft = Self { place: node.place.clone(), ..Self::default() };
        let Some(mut section) = node.section() else { return draft };
        let sources = section.required("sources", "its machines' outer sources, prefixes or addresses");
        draft.sources = sources.and_then(|node| read_sources(&node)).unwrap_or_default();
        draft.encapsulation = section.optional("encapsulation").and_then(|node| node.reference());
        draft.prefixes = by_name(&mut section, "prefixes", PREFIXES, |node| node.prefix(), Prefix::address);
        draft.addresses =
            by_name(&mut section, "addresses", ADDRESSES, |node| node.unicast(), |address| *address);
        section.finish();
        draft
    }
}

/// The lists of a table by the names of groups or VIPs; each list with at most one entry of a family.
fn by_name<T>(
    section: &mut Section<'_>,
    key: &'static str,
    allowed: &str,
    read: impl Fn(&Node<'_>) -> Option<T>,
    address: impl Fn(&T) -> IpAddr,
) -> ByName<T> {
    let entries = section.optional(key).and_then(|node| node.section()).map(Section::entries);
    let mut lists = Vec::new();
    for (name, node) in entries.unwrap_or_default() {
        let mut list: Vec<At<T>> = Vec::new();
        for node in node.items(allowed).unwrap_or_default() {
            let Some(value) = read(&node) else { continue };
            let same = |other: &At<T>| address(&other.value).is_ipv4() == address(&value).is_ipv4();
            if list.iter().any(same) {
                node.refuse("one of each family");
            } else {
                list.push(node.at(value));
            }
        }
        lists.push((node.at(Arc::from(name)), list));
    }
    lists
}

/// What a VIP that names remotes is made of.
pub(super) struct Parts<'s> {
    pub(super) remotes: &'s BTreeMap<Arc<str>, RemoteDraft>,
    pub(super) encapsulations: &'s BTreeMap<Arc<str>, EncapsulationDraft>,
    /// Of the VIP's group.
    pub(super) prefixes: &'s [Prefix],
    pub(super) checks: &'s [Arc<Check>],
}

impl Parts<'_> {
    /// Where the VIP is served elsewhere. References that lead nowhere were reported.
    pub(super) fn of(&self, vip: &VipDraft) -> Vec<RemotePool> {
        let mut all = Vec::new();
        if vip.remotes.is_empty() {
            return all;
        }
        for ipv4 in [true, false] {
            let (family, bits) = if ipv4 { ("ipv4", 32) } else { ("ipv6", 128) };
            let own = vip.addresses.iter().map(|at| at.value).filter(|address| address.is_ipv4() == ipv4);
            let ours = own.filter_map(|address| Prefix::new(address, bits)).collect();
            // No name of a file has such a sign, so none is taken.
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

    /// The remotes that `find` has an address of; `None`: there is none, or nothing here that it could stand for.
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
                checks: self.checks.into(),
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

/// The suffix at which the VIP is asked elsewhere.
pub(super) fn first_suffix(vip: &VipDraft, ipv4: bool) -> Option<Suffix> {
    vip.suffixes.iter().map(|at| at.value).find(|suffix| suffix.address().is_ipv4() == ipv4)
}

const PREFIXES: &str = "a list of prefixes, one of each family";
const ADDRESSES: &str = "a list of addresses, one of each family";
