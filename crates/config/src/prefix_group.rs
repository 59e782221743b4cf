//! `[prefix_group.NAME]`: prefixes of clusters that serve the same VIPs.
//!
//! In: the sections. Out: [`PrefixGroup`]s in the order of their names.
//! Not here: what VIPs say of their groups (`vip`), prefixes of one group against those of another (`groups`).
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.2.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use config_text::{At, Node, Place, Root, values};
use serde::{Serialize, Serializer};

use forwarder::Prefix;

use super::address::AddressNode;

/// Prefixes that are alike: an address in one of them has the VIP that its last bits say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PrefixGroup {
    /// The name.
    pub name: Arc<str>,
    /// Its prefixes, at least one, in the order of the file; no other group has one of them.
    #[serde(serialize_with = "in_group")]
    pub prefixes: Vec<Prefix>,
}

/// In any order behind the first of each family, where a VIP of the group is asked.
fn in_group<S: Serializer>(prefixes: &[Prefix], to: S) -> Result<S::Ok, S::Error> {
    let first = |ipv4: bool| prefixes.iter().find(move |prefix| prefix.address().is_ipv4() == ipv4);
    let all: BTreeSet<&Prefix> = prefixes.iter().collect();
    to.collect_seq(first(true).into_iter().chain(first(false)).chain(all).map(ToString::to_string))
}

impl PrefixGroup {
    /// The first prefix of a family: by convention that of the cluster itself.
    pub fn first(&self, ipv4: bool) -> Option<Prefix> {
        self.prefixes.iter().copied().find(|prefix| prefix.address().is_ipv4() == ipv4)
    }
}

/// A group as written.
pub(super) struct GroupDraft {
    pub(super) place: Place,
    pub(super) name: Arc<str>,
    pub(super) prefixes: Vec<At<Prefix>>,
    /// Whether every prefix could be read.
    pub(super) is_whole: bool,
    /// Places of the longest prefix of IPv4 and of IPv6.
    longest: [Option<usize>; 2],
}

impl GroupDraft {
    pub(super) fn read_all(root: &mut Root<'_>) -> BTreeMap<Arc<str>, Self> {
        let groups = root.named("prefix_group").into_iter();
        groups.filter_map(|(name, node)| Some((Arc::clone(&name), Self::read(name, &node)?))).collect()
    }

    pub(super) fn build(&self) -> Arc<PrefixGroup> {
        Arc::new(PrefixGroup { name: Arc::clone(&self.name), prefixes: values(&self.prefixes) })
    }

    /// The longest prefix of a family.
    pub(super) fn longest(&self, of: IpAddr) -> Option<&At<Prefix>> {
        self.prefixes.get(self.longest[usize::from(of.is_ipv6())]?)
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
        Some(Self { place: node.place.clone(), name, prefixes, is_whole, longest })
    }
}

const PREFIXES: &str = "a list of prefixes, at least one";
