//! `announce` of a VIP: under which conditions its routes are announced, to which peers, and with which attributes.
//!
//! In: the table. Out: [`Announce`], or problems.
//! Not here: whether they are announced now (`crate::announce`), names of peers and machines (`announcements`).

use std::collections::BTreeSet;
use std::sync::Arc;

use config_text::words::quote;
use config_text::{At, Node, Place, Section, distinct, values};
use serde::{Serialize, Serializer};

use ::bgp::{Attributes, Community, LargeCommunity};
use forwarder::Prefix;

use super::address::AddressNode;
use super::canonical;

/// How a VIP is announced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Announce {
    /// So many backends must serve each of its services. Default 1.
    pub min_serving: u32,
    /// So many once it was withdrawn, no fewer than [`min_serving`](Self::min_serving), which is the default.
    pub return_serving: u32,
    /// What its routes say, where the machine is no anchor.
    #[serde(flatten, serialize_with = "written")]
    pub attributes: Attributes,
    /// The peers that receive its routes; empty: all.
    #[serde(serialize_with = "canonical::set")]
    pub peers: Vec<Arc<str>>,
    /// Machines that stand behind the others for it: they announce it with a higher MED. Default: none.
    #[serde(serialize_with = "canonical::set")]
    pub anchors: Vec<Arc<str>>,
    /// What is announced in place of the routes inside. Default: nothing.
    #[serde(serialize_with = "canonical::set")]
    pub aggregates: Vec<Prefix>,
    /// Whether another cluster that serves it while no backend here does is enough. Default: when one backend is.
    pub remotes: bool,
}

impl Announce {
    /// Whether a peer receives its routes. Default: each does.
    pub fn is_for(&self, peer: &str) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|name| &**name == peer)
    }

    pub(super) fn renamed(&self, name: impl Fn(&Arc<str>) -> Arc<str>) -> Self {
        let anchors: BTreeSet<Arc<str>> = self.anchors.iter().map(name).collect();
        Self { anchors: anchors.into_iter().collect(), ..self.clone() }
    }

    /// Whether two say the same of a route that they share.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        let said = |one: &Self| (one.attributes.clone(), one.peers.clone(), one.anchors.clone());
        said(self) == said(other)
    }
}

/// The attributes as the file has them.
fn written<S: Serializer>(attributes: &Attributes, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Written {
        med: Option<u32>,
        local_pref: Option<u32>,
        prepend: u8,
        communities: Vec<String>,
        large_communities: Vec<String>,
    }
    let Attributes { med, local_pref, prepend, communities, large_communities } = attributes;
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

/// The table as written.
pub(super) struct AnnounceDraft {
    pub(super) place: Place,
    pub(super) announce: Announce,
    pub(super) min_serving: At<u32>,
    pub(super) peers: Vec<At<Arc<str>>>,
    pub(super) anchors: Vec<At<Arc<str>>>,
    pub(super) aggregates: Vec<At<Prefix>>,
    /// Where it stands.
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
        let anchors = section.optional("anchors").and_then(|node| names(&node)).unwrap_or_default();
        let aggregates = section.optional("aggregates").and_then(|node| node.list(AGGREGATES));
        let again = |node: &Node<'_>| node.refuse("each prefix once");
        let aggregates = distinct(&aggregates.unwrap_or_default(), |node| node.prefix(), again);
        let remotes = section.or("remotes", min_serving == 1, |node| read_remotes(&node, min_serving));
        section.finish();
        // Their order says nothing.
        let sorted = |names: &[At<Arc<str>>]| Vec::from_iter(BTreeSet::from_iter(values(names)));
        let announce = Announce {
            min_serving,
            return_serving,
            attributes,
            peers: sorted(&peers),
            anchors: sorted(&anchors),
            aggregates: values(&aggregates),
            remotes,
        };
        let min_serving = At { value: return_serving, place };
        let place = node.place.clone();
        Some(Self { place, announce, min_serving, peers, anchors, aggregates, local_pref })
    }
}

/// With a higher mark, losing the last backend would bring back what losing the one before took away.
fn read_remotes(node: &Node<'_>, min_serving: u32) -> Option<bool> {
    let wanted = node.boolean()?;
    if wanted && min_serving > 1 { node.wrong("false, as min_serving is more than 1") } else { Some(wanted) }
}

/// The attributes, and where `local_pref` stands.
fn read_attributes(section: &mut Section<'_>) -> (Attributes, Option<Place>) {
    let communities = section.optional("communities").and_then(|node| list(&node, COMMUNITY, community));
    let large = section.optional("large_communities").and_then(|node| list(&node, LARGE, large_community));
    let local_pref = section.optional("local_pref");
    let attributes = Attributes {
        med: section.optional("med").and_then(|node| node.number(0..=u32::MAX)),
        local_pref: local_pref.as_ref().and_then(|node| node.number(0..=u32::MAX)),
        prepend: section.or("prepend", 0, |node| node.number(0..=16)),
        communities: communities.unwrap_or_default(),
        large_communities: large.unwrap_or_default(),
    };
    (attributes, local_pref.map(|node| node.place))
}

/// Sorted, each once: their order says nothing.
fn list<T: Ord + Clone>(node: &Node<'_>, allowed: &str, read: fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let nodes = node.list(allowed)?;
    if nodes.len() > Attributes::MAX_COMMUNITIES {
        return node.wrong(format!("at most {}", Attributes::MAX_COMMUNITIES));
    }
    let mut found = values(&each_once(&nodes, |node| node.parse(allowed, read)));
    found.sort_unstable();
    Some(found)
}

fn names(node: &Node<'_>) -> Option<Vec<At<Arc<str>>>> {
    let nodes = node.items("a list of names, at least one")?;
    // A peer without a name of its own goes by its address.
    let read = |node: &Node<'_>| match node.as_str().and_then(|text| text.parse::<std::net::IpAddr>().ok()) {
        Some(address) => Some(address.to_string().into()),
        None => node.name(),
    };
    Some(each_once(&nodes, read))
}

/// What `read` makes of each element; of one that comes again, a warning.
pub(super) fn each_once<T: Ord + Clone>(
    nodes: &[Node<'_>],
    read: impl Fn(&Node<'_>) -> Option<T>,
) -> Vec<At<T>> {
    distinct(nodes, read, |node| {
        let again = format!("{} a second time", quote(node.as_str().unwrap_or_default()));
        node.report.warning(&node.place, again, "each once");
    })
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

/// `parse` alone would take a plus sign.
fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

const COMMUNITY: &str = "a list of communities such as \"65101:10\", both numbers up to 65535";
const LARGE: &str = "a list of large communities such as \"65101:1:2\", each number up to 4294967295";
const AGGREGATES: &str = "a list of prefixes such as [\"203.0.113.0/24\"]";

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
