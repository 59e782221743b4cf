//! Contains the sections that refer to each other, and helper functions for checks across sections.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, MAX_KNOWN, Place, Report, Root, values};
use forwarder::Prefix;

use super::announce::AnnounceDraft;
use super::check::{self, CheckDraft};
use super::cluster::ClusterDraft;
use super::encapsulation::{self, Encapsulation, EncapsulationDraft};
use super::health::Health;
use super::index::Index;
use super::io::Io;
use super::lists::Lists;
use super::machine::MachineDraft;
use super::pem::Outside;
use super::pool::PoolDraft;
use super::prefix_group::GroupDraft;
use super::remote::RemoteDraft;
use super::vip::VipDraft;

/// All sections that refer to each other.
pub(super) struct Sections<'r> {
    pub(super) report: &'r Report,
    pub(super) cluster: ClusterDraft,
    pub(super) io: Io,
    pub(super) health: Health,
    pub(super) machines: Vec<MachineDraft>,
    pub(super) encapsulations: BTreeMap<Arc<str>, EncapsulationDraft>,
    pub(super) pools: BTreeMap<Arc<str>, PoolDraft>,
    pub(super) groups: BTreeMap<Arc<str>, GroupDraft>,
    pub(super) remotes: BTreeMap<Arc<str>, RemoteDraft>,
    pub(super) vips: Vec<VipDraft>,
    pub(super) checks: BTreeMap<Arc<str>, CheckDraft>,
    pub(super) index: Index,
}

impl<'r> Sections<'r> {
    pub(super) fn read(
        report: &'r Report,
        root: &mut Root<'_>,
        outside: &Outside<'_>,
        lists: &Lists<'_>,
    ) -> Self {
        let health =
            root.once("health").and_then(|node| node.section()).map(Health::read).unwrap_or_default();
        let (machines, pools) = (MachineDraft::read_all(root), PoolDraft::read_all(root));
        let vips = VipDraft::read_all(root, lists);
        Self {
            report,
            cluster: ClusterDraft::read(root, outside),
            io: root.once("io").and_then(|node| node.section()).map(Io::read).unwrap_or_default(),
            encapsulations: encapsulation::read_all(root),
            checks: check::read_all(root, outside, health.exec_socket.as_ref()),
            health,
            groups: GroupDraft::read_all(root),
            remotes: RemoteDraft::read_all(root),
            index: Index::new(&machines, &vips, &pools),
            machines,
            pools,
            vips,
        }
    }
}

impl Sections<'_> {
    /// Returns the encapsulation with this name, or the built-in `gre` if `name` is `None`. Returns
    /// `None` if the section is missing or has an error.
    pub(super) fn encapsulation(&self, name: Option<&At<Arc<str>>>) -> Option<&Arc<Encapsulation>> {
        self.encapsulations.get(name.map_or("gre", |name| &*name.value))?.value.as_ref()
    }

    /// Returns the first machine in a shard that has no source address for outer headers of an
    /// address family.
    pub(super) fn without_source(
        &self,
        shard: Option<&Arc<str>>,
        encapsulation: &Encapsulation,
        ipv4: bool,
    ) -> Option<&MachineDraft> {
        self.machine_without(shard, ipv4).filter(|_| encapsulation.needs_machine_address(ipv4))
    }

    /// Returns the pools that VIPs use directly, and all pools that can be reached from these pools
    /// through `next`.
    pub(super) fn reached<'s, I: IntoIterator<Item = &'s str>>(
        &'s self,
        next: impl Fn(&'s PoolDraft) -> I,
    ) -> BTreeSet<&'s str> {
        let mut reached = BTreeSet::new();
        let named = self.vips.iter().flat_map(|vip| &vip.pools);
        let mut open: Vec<&str> = named.map(|name| &*name.value).collect();
        while let Some(name) = open.pop() {
            if let Some(pool) = self.pools.get(name).filter(|_| reached.insert(name)) {
                open.extend(next(pool));
            }
        }
        reached
    }
}

/// Returns `true` if a name is invalid. Invalid names are stored in quotes, so that no reference
/// matches them. The invalid names have already been reported.
pub(super) fn is_flawed(name: &str) -> bool {
    name.starts_with('"')
}

pub(super) fn in_order<'d, T>(
    items: impl Iterator<Item = &'d T>,
    place: impl Fn(&T) -> &Place,
) -> Vec<&'d T> {
    let mut items: Vec<&T> = items.collect();
    items.sort_by_key(|item| place(item).offset);
    items
}

/// Reports duplicate values. The problem is reported at the later value, and its help line contains
/// the position of the first value.
pub(super) fn each_once<'s, T: Ord + Copy + fmt::Display + 's>(
    sections: &Sections<'_>,
    items: impl Iterator<Item = &'s At<T>>,
    what: &str,
) {
    let mut seen: BTreeMap<T, &Place> = BTreeMap::new();
    for At { value, place } in in_order(items, |item| &item.place) {
        if let Some(first) = seen.get(value) {
            let help = format!("the first use is {}", sections.report.name(first, place));
            sections.report.error(place, (format!("{what} {value} is used twice"), help));
        } else {
            seen.insert(*value, place);
        }
    }
}

pub(super) fn announced<'s>(
    sections: &'s Sections<'_>,
) -> impl Iterator<Item = (&'s VipDraft, &'s AnnounceDraft)> {
    sections.vips.iter().filter_map(|vip| Some((vip, vip.announce.as_ref()?)))
}

pub(super) fn machine_names<'s>(sections: &'s Sections<'_>) -> BTreeSet<&'s str> {
    sections.machines.iter().map(|machine| &*machine.name).collect()
}

pub(super) fn known(sections: &Sections<'_>, names: &[At<Arc<str>>], known: &BTreeSet<&str>, kind: &str) {
    let unknown: Vec<_> = names.iter().filter(|name| !known.contains(&*name.value)).collect();
    if !unknown.is_empty() {
        // A message names only a few of the known names.
        let known: Vec<Arc<str>> = known.iter().copied().take(MAX_KNOWN + 1).map(Arc::from).collect();
        unknown.into_iter().for_each(|name| sections.report.unknown(name, &known, kind));
    }
}

pub(super) fn routes(sections: &Sections<'_>, vip: &VipDraft, announce: &AnnounceDraft) -> BTreeSet<Prefix> {
    let group = vip.group.as_ref().and_then(|named| sections.groups.get(&named.value));
    let prefixes: Vec<Prefix> = group.into_iter().flat_map(GroupDraft::firsts).collect();
    super::vip::routes(&values(&vip.addresses), &prefixes, &announce.announce.aggregates)
}

impl Sections<'_> {
    pub(super) fn machine_named(&self, name: &str) -> Option<usize> {
        self.index.machines.get(name).copied()
    }

    pub(super) fn machine_at(&self, address: IpAddr) -> Option<usize> {
        self.index.of_machines.get(&address).copied()
    }

    pub(super) fn vip_named(&self, name: &str) -> Option<&VipDraft> {
        self.vips.get(*self.index.vips.get(name)?)
    }

    pub(super) fn vip_at(&self, address: IpAddr) -> Option<&VipDraft> {
        self.vips.get(*self.index.of_vips.get(&address)?)
    }

    pub(super) fn backend_at(&self, address: IpAddr) -> Option<&Arc<str>> {
        self.index.of_backends.get(&address)
    }

    /// Returns the first machine of the shard, or of all machines, that has no address of the
    /// family.
    pub(super) fn machine_without(&self, shard: Option<&Arc<str>>, ipv4: bool) -> Option<&MachineDraft> {
        self.machines.get(*self.index.lacking.get(&(shard.cloned(), ipv4))?)
    }
}
