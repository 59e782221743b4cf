//! `[prefix_group.NAME]`: the prefixes of several clusters that serve the same VIPs.
//!
//! The module `vip` reads the suffixes of VIPs, and `groups` compares the prefixes of several
//! groups. Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.2.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, Expected, Node, Place, Root, values};
use serde::{Serialize, Serializer};

use forwarder::Prefix;

use super::address::AddressNode;

/// A group of prefixes that contain the same VIPs. The last bits of an address select the VIP, and
/// they select the same VIP in every prefix of the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PrefixGroup {
    /// The name of the group.
    pub name: Arc<str>,
    /// One or more prefixes, in the order of the file. A prefix belongs to at most one group.
    #[serde(serialize_with = "in_group")]
    pub prefixes: Vec<Prefix>,
}

/// Serializes the first prefix of each family, which is used for health checks, and then all
/// prefixes in sorted order.
fn in_group<S: Serializer>(prefixes: &[Prefix], to: S) -> Result<S::Ok, S::Error> {
    let first = |ipv4: bool| prefixes.iter().find(move |prefix| prefix.address().is_ipv4() == ipv4);
    let all: BTreeSet<&Prefix> = prefixes.iter().collect();
    to.collect_seq(first(true).into_iter().chain(first(false)).chain(all).map(ToString::to_string))
}

impl PrefixGroup {
    /// Returns the first prefix of an address family. By convention, the first prefix belongs to
    /// this cluster.
    pub fn first(&self, ipv4: bool) -> Option<Prefix> {
        self.prefixes.iter().copied().find(|prefix| prefix.address().is_ipv4() == ipv4)
    }
}

/// The section of a group, with the positions of its values.
pub(super) struct GroupDraft {
    pub(super) place: Place,
    pub(super) name: Arc<str>,
    pub(super) prefixes: Vec<At<Prefix>>,
    /// `true` if every prefix could be read.
    pub(super) is_whole: bool,
    /// The indexes of the longest IPv4 prefix and the longest IPv6 prefix.
    longest: [Option<usize>; 2],
    /// The indexes of the first IPv4 prefix and the first IPv6 prefix.
    firsts: [Option<usize>; 2],
    sorted: BTreeSet<Prefix>,
}

impl GroupDraft {
    pub(super) fn read_all(root: &mut Root<'_>) -> BTreeMap<Arc<str>, Self> {
        let groups = root.named("prefix_group").into_iter();
        groups.filter_map(|(name, node)| Some((Arc::clone(&name), Self::read(name, &node)?))).collect()
    }

    pub(super) fn build(&self) -> Arc<PrefixGroup> {
        Arc::new(PrefixGroup { name: Arc::clone(&self.name), prefixes: values(&self.prefixes) })
    }

    /// Returns the longest prefix that has the same address family as `of`.
    pub(super) fn longest(&self, of: IpAddr) -> Option<&At<Prefix>> {
        self.prefixes.get(self.longest[usize::from(of.is_ipv6())]?)
    }

    /// Returns `true` if a prefix of the group is inside `outer`.
    pub(super) fn has_inside(&self, outer: &Prefix) -> bool {
        self.sorted.range(outer..).next().is_some_and(|first| outer.covers(first))
    }

    /// Returns `true` if a prefix of the group covers `inner`.
    pub(super) fn has_around(&self, inner: &Prefix) -> bool {
        (0..=inner.length()).any(|length| self.sorted.contains(&Prefix::of(inner.address(), length)))
    }

    /// Returns the first prefix of each family, which belong to this cluster.
    pub(super) fn firsts(&self) -> impl Iterator<Item = Prefix> {
        self.firsts.iter().flatten().filter_map(|place| Some(self.prefixes.get(*place)?.value))
    }

    fn read(name: Arc<str>, node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let prefixes = section.required("prefixes", PREFIXES).and_then(|node| node.items(PREFIXES));
        section.finish();
        let nodes = prefixes.unwrap_or_default();
        let read = |node: &Node<'_>| Some(node.at(node.prefix()?));
        let prefixes: Vec<At<Prefix>> = nodes.iter().filter_map(read).collect();
        let is_whole = !nodes.is_empty() && prefixes.len() == nodes.len();
        let longest = [false, true].map(|ipv6| {
            let family = (0..).zip(&prefixes).filter(|(_, at)| at.value.address().is_ipv6() == ipv6);
            family.max_by_key(|(_, at)| at.value.length()).map(|(place, _)| place)
        });
        let firsts =
            [false, true].map(|ipv6| prefixes.iter().position(|at| at.value.address().is_ipv6() == ipv6));
        let sorted = values(&prefixes).into_iter().collect();
        Some(Self { place: node.place.clone(), name, prefixes, is_whole, longest, firsts, sorted })
    }
}

const PREFIXES: Expected = Expected::new("a list of prefixes").example("[\"198.51.100.128/25\"]");
