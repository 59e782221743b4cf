//! The sections of a file that refer to one another, and what several checks ask of them.
//!
//! Not here: the checks (`consistency` and those that it calls).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use forwarder::Prefix;

use super::announce::AnnounceDraft;
use super::check::CheckDraft;
use super::encapsulation::EncapsulationDraft;
use super::io::Io;
use super::machine::MachineDraft;
use super::near_miss::hint;
use super::pool::PoolDraft;
use super::prefix_group::GroupDraft;
use super::remote::RemoteDraft;
use super::report::{At, Place, Report};
use super::vip::VipDraft;
use crate::words::few;

/// All sections that refer to one another.
pub(super) struct Sections<'d> {
    pub(super) report: &'d Report,
    pub(super) io: &'d Io,
    pub(super) machines: &'d [MachineDraft],
    pub(super) encapsulations: &'d BTreeMap<Arc<str>, EncapsulationDraft>,
    pub(super) pools: &'d BTreeMap<Arc<str>, PoolDraft>,
    pub(super) groups: &'d BTreeMap<Arc<str>, GroupDraft>,
    pub(super) remotes: &'d BTreeMap<Arc<str>, RemoteDraft>,
    pub(super) vips: &'d [VipDraft],
    pub(super) checks: &'d BTreeMap<Arc<str>, CheckDraft>,
    pub(super) cluster_name: Option<&'d str>,
}

/// Whether this is an impossible name in quotes, which was reported already and can't be referred to.
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

pub(super) fn announced<'s>(
    sections: &'s Sections<'_>,
) -> impl Iterator<Item = (&'s VipDraft, &'s AnnounceDraft)> {
    sections.vips.iter().filter_map(|vip| Some((vip, vip.announce.as_ref()?)))
}

pub(super) fn machine_names<'s>(sections: &'s Sections<'_>) -> BTreeSet<&'s str> {
    sections.machines.iter().map(|machine| &*machine.name).collect()
}

pub(super) fn known(sections: &Sections<'_>, names: &[At<Arc<str>>], known: &BTreeSet<&str>, allowed: &str) {
    for name in names.iter().filter(|name| !known.contains(&*name.value)) {
        let (there, hint) = (few(known), hint(&name.value, known.iter().copied()));
        let allowed = format!("{allowed}: {there}{hint}");
        sections.report.absent(&name.place, format!("\"{}\"", name.value), allowed);
    }
}

pub(super) fn routes(sections: &Sections<'_>, vip: &VipDraft, announce: &AnnounceDraft) -> BTreeSet<Prefix> {
    let group = vip.group.as_ref().and_then(|named| sections.groups.get(&named.value));
    let prefixes: Vec<Prefix> =
        group.into_iter().flat_map(|group| &group.prefixes).map(|at| at.value).collect();
    let addresses: Vec<IpAddr> = vip.addresses.iter().map(|at| at.value).collect();
    super::vip::routes(&addresses, &prefixes, announce.announce.aggregates())
}
