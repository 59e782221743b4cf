//! The table `announce` of a VIP, which determines when the VIP's routes are announced, which peers
//! receive them, and which attributes they have.
//!
//! This module reads the table. The module `announcements` checks the names of peers and machines.
//! The crate `control-plane` decides when a VIP is announced.

use std::collections::BTreeSet;
use std::sync::Arc;

use config_text::{At, Expected, Node, Place, Section, distinct, values};
use serde::{Serialize, Serializer};

use ::bgp::{Attributes, Community, LargeCommunity};
use forwarder::Prefix;

use super::address::AddressNode;
use super::canonical;

/// The settings for the announcement of a VIP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Announce {
    /// The number of serving backends that each service of the VIP needs before the VIP is
    /// announced. Default: 1.
    pub min_serving: u32,
    /// The number of serving backends that each service needs before a withdrawn VIP is announced
    /// again. The value must be at least [`min_serving`](Self::min_serving), which is the default.
    pub return_serving: u32,
    /// The attributes of the routes, except on backup machines.
    #[serde(flatten, serialize_with = "written")]
    pub attributes: Attributes,
    /// The peers that receive the routes. An empty list means all peers.
    #[serde(serialize_with = "canonical::set")]
    pub peers: Vec<Arc<str>>,
    /// The backup machines of the VIP, which announce it with a higher MED. Default: none.
    #[serde(serialize_with = "canonical::set")]
    pub backups: Vec<Arc<str>>,
    /// Prefixes that are announced instead of the VIP routes inside them. Default: none.
    #[serde(serialize_with = "canonical::set")]
    pub aggregates: Vec<Prefix>,
    /// `true` if the VIP stays announced while it can be served only by remote clusters. Default:
    /// `true` if `min_serving` is 1.
    pub remotes: bool,
}

impl Announce {
    /// Returns `true` if `peer` receives the routes.
    pub fn is_for(&self, peer: &str) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|name| &**name == peer)
    }

    pub(super) fn renamed(&self, name: impl Fn(&Arc<str>) -> Arc<str>) -> Self {
        let backups: BTreeSet<Arc<str>> = self.backups.iter().map(name).collect();
        Self { backups: backups.into_iter().collect(), ..self.clone() }
    }

    /// Returns the settings that must be the same for VIPs that share a route: the attributes, the
    /// peers and the backups.
    pub(super) fn of_routes(&self) -> (&Attributes, &[Arc<str>], &[Arc<str>]) {
        (&self.attributes, &self.peers, &self.backups)
    }
}

/// Serializes the attributes under their configuration keys.
fn written<S: Serializer>(attributes: &Attributes, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Written {
        med: Option<u32>,
        local_pref: Option<u32>,
        prepend: u8,
        communities: Vec<String>,
        large_communities: Vec<String>,
    }
    let Attributes { med, local_pref, prepend, communities, large_communities, .. } = attributes;
    Written {
        med: *med,
        local_pref: *local_pref,
        prepend: *prepend,
        communities: communities.iter().map(|one| format!("{}:{}", one.0, one.1)).collect(),
        large_communities: large_communities
            .iter()
            .map(|one| format!("{}:{}:{}", one.0, one.1, one.2))
            .collect(),
    }
    .serialize(to)
}

/// The `announce` table, with the positions of its values.
pub(super) struct AnnounceDraft {
    pub(super) place: Place,
    pub(super) announce: Announce,
    pub(super) min_serving: At<u32>,
    pub(super) peers: Vec<At<Arc<str>>>,
    pub(super) backups: Vec<At<Arc<str>>>,
    pub(super) aggregates: Vec<At<Prefix>>,
    /// The position of the key `local_pref`.
    pub(super) local_pref: Option<Place>,
}

impl AnnounceDraft {
    pub(super) fn read(node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let serving = section.optional("min_serving");
        let min_serving = serving.as_ref().and_then(|node| node.number(1..=65_535)).unwrap_or(1);
        let place = serving.map_or_else(|| node.place.clone(), |node| node.place);
        let returning = section.optional("return_serving");
        let return_serving =
            returning.as_ref().and_then(|node| node.number(min_serving..=65_535)).unwrap_or(min_serving);
        let place = returning.map_or(place, |node| node.place);
        let (attributes, local_pref) = read_attributes(&mut section);
        let peers = section.optional("peers").and_then(|node| names(&node)).unwrap_or_default();
        let backups = section.optional("backups").and_then(|node| names(&node)).unwrap_or_default();
        let aggregates = section.optional("aggregates").and_then(|node| node.list(AGGREGATES));
        let aggregates = distinct(&aggregates.unwrap_or_default(), |node| node.prefix(), Node::again);
        let remotes = section.or("remotes", min_serving == 1, |node| read_remotes(&node, min_serving));
        section.finish();
        // The names are sorted, because their order has no effect.
        let sorted = |names: &[At<Arc<str>>]| Vec::from_iter(BTreeSet::from_iter(values(names)));
        let announce = Announce {
            min_serving,
            return_serving,
            attributes,
            peers: sorted(&peers),
            backups: sorted(&backups),
            aggregates: values(&aggregates),
            remotes,
        };
        let min_serving = At { value: return_serving, place };
        let place = node.place.clone();
        Some(Self { place, announce, min_serving, peers, backups, aggregates, local_pref })
    }
}

/// Reads the key `remotes`. Rejects `true` if `min_serving` is above 1, because the VIP would flap:
/// it would be withdrawn when fewer than `min_serving` backends are serving, and announced again
/// when the last backend fails.
fn read_remotes(node: &Node<'_>, min_serving: u32) -> Option<bool> {
    let wanted = node.boolean()?;
    if wanted && min_serving > 1 {
        return node.wrong(("`remotes = true` needs min_serving = 1", "set remotes = false"));
    }
    Some(wanted)
}

/// Reads the attributes. Also returns the position of `local_pref`.
fn read_attributes(section: &mut Section<'_>) -> (Attributes, Option<Place>) {
    let communities = section.optional("communities").and_then(|node| list(&node, COMMUNITY, community));
    let large = section.optional("large_communities").and_then(|node| list(&node, LARGE, large_community));
    let local_pref = section.optional("local_pref");
    let attributes = Attributes {
        med: section.optional("med").and_then(|node| node.number(0..=u32::MAX)),
        local_pref: local_pref.as_ref().and_then(|node| node.number(0..=u32::MAX)),
        prepend: section.or("prepend", 0, |node| node.number(0..=16)),
        shutdown_prepend: 0,
        communities: communities.unwrap_or_default(),
        large_communities: large.unwrap_or_default(),
    };
    (attributes, local_pref.map(|node| node.place))
}

/// Reads a list whose order has no effect, and returns it sorted and without duplicates.
fn list<T: Ord + Clone>(
    node: &Node<'_>,
    expected: [Expected; 2],
    read: fn(&str) -> Option<T>,
) -> Option<Vec<T>> {
    let [list, one] = expected;
    let nodes = node.list(list)?;
    let most = Attributes::MAX_COMMUNITIES;
    if nodes.len() > most {
        return node.wrong(format!("{} has {} entries, and the limit is {most}", node.label(), nodes.len()));
    }
    let mut found = values(&each_once(&nodes, |node| node.parse(one, read)));
    found.sort_unstable();
    Some(found)
}

fn names(node: &Node<'_>) -> Option<Vec<At<Arc<str>>>> {
    let nodes = node.items("a list of names")?;
    // The name of a peer defaults to its address, so addresses are accepted too.
    let read = |node: &Node<'_>| match node.as_str().and_then(|text| text.parse::<std::net::IpAddr>().ok()) {
        Some(address) => Some(address.to_string().into()),
        None => node.name(),
    };
    Some(each_once(&nodes, read))
}

/// Reads the elements of a list without duplicates. A duplicate gives a warning.
pub(super) fn each_once<T: Ord + Clone>(
    nodes: &[Node<'_>],
    read: impl Fn(&Node<'_>) -> Option<T>,
) -> Vec<At<T>> {
    distinct(nodes, read, |node| node.report.warning(&node.place, node.twice()))
}

fn community(text: &str) -> Option<Community> {
    let (high, low) = text.split_once(':')?;
    Some(Community(digits(high)?, digits(low)?))
}

fn large_community(text: &str) -> Option<LargeCommunity> {
    let mut parts = text.split(':');
    let large = LargeCommunity(digits(parts.next()?)?, digits(parts.next()?)?, digits(parts.next()?)?);
    parts.next().is_none().then_some(large)
}

/// Unlike `parse`, this function does not accept a plus sign.
fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

const COMMUNITY: [Expected; 2] = [
    Expected::new("a list of communities").example("[\"65101:10\"]"),
    Expected::new("a community of two numbers up to 65535").example("\"65101:10\""),
];
const LARGE: [Expected; 2] = [
    Expected::new("a list of large communities").example("[\"65101:1:2\"]"),
    Expected::new("a large community of three numbers up to 4294967295").example("\"65101:1:2\""),
];
const AGGREGATES: Expected = Expected::new("a list of prefixes").example("[\"203.0.113.0/24\"]");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communities_are_digits_between_colons() {
        assert_eq!(community("65101:10"), Some(Community(65_101, 10)));
        assert_eq!(large_community("4294967295:0:7"), Some(LargeCommunity(u32::MAX, 0, 7)));
        for wrong in ["", ":", "1", "1:2:3", "+1:2", "65536:1", "1: 2", "a:b"] {
            assert_eq!(community(wrong), None, "{wrong:?}");
        }
        for wrong in ["1:2", "1:2:3:4", "1::3", "4294967296:1:1"] {
            assert_eq!(large_community(wrong), None, "{wrong:?}");
        }
    }
}
