//! `[pool.NAME]`: backends with weights, and pools inside pools.
//!
//! In: the sections. Out: drafts with the places of their parts, and the [`Pool`] that they become.
//! Not here: what nested pools add up to (`flatten`), health checks (a later version).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::encapsulation::Encapsulation;
use super::reader::{Node, Section};
use super::report::{At, Place};

/// A host that serves. It is its name, which is unique in the cluster and is its Maglev key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    pub(super) name: Arc<str>,
    pub(super) address: IpAddr,
}

impl Backend {
    /// The name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The address to which packets travel.
    pub fn address(&self) -> IpAddr {
        self.address
    }
}

/// A backend within a flattened pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub(super) backend: Arc<Backend>,
    pub(super) leaf: Arc<str>,
    pub(super) encapsulation: Arc<Encapsulation>,
    pub(super) weight: u32,
}

impl Member {
    /// The backend.
    pub fn backend(&self) -> &Backend {
        &self.backend
    }

    /// The pool that lists it; the first by name when several do.
    pub fn leaf(&self) -> &Arc<str> {
        &self.leaf
    }

    /// How packets travel to it: that of the pool that lists it.
    pub fn encapsulation(&self) -> &Encapsulation {
        &self.encapsulation
    }

    /// Weights multiplied along each path to the backend and added over the paths. 0: no new flows.
    pub fn weight(&self) -> u32 {
        self.weight
    }
}

/// A pool with all pools inside it flattened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub(super) name: Arc<str>,
    pub(super) members: Vec<Member>,
}

impl Pool {
    /// The name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its backends, each once, in the order of their names; at least one.
    pub fn members(&self) -> &[Member] {
        &self.members
    }
}

/// A pool as written.
pub(super) struct PoolDraft {
    pub(super) place: Place,
    /// `None`: the built-in `gre`.
    pub(super) encapsulation: Option<At<Arc<str>>>,
    pub(super) backends: Vec<BackendDraft>,
    pub(super) pools: Vec<PoolReference>,
}

/// A backend as written.
pub(super) struct BackendDraft {
    pub(super) name: At<Arc<str>>,
    pub(super) address: At<IpAddr>,
    pub(super) weight: u32,
}

/// A pool inside a pool.
pub(super) struct PoolReference {
    pub(super) pool: At<Arc<str>>,
    pub(super) weight: u32,
}

impl PoolDraft {
    /// All pools of the file by name; one with errors keeps its name, so that references to it hold.
    pub(super) fn read_all(root: &mut Section<'_>) -> BTreeMap<Arc<str>, Self> {
        let section = root.optional("pool").and_then(|node| node.section());
        let entries = section.map(Section::named).unwrap_or_default();
        entries.into_iter().map(|(name, node)| (name, Self::read(&node))).collect()
    }

    fn read(node: &Node<'_>) -> Self {
        let mut draft =
            Self { place: node.place.clone(), encapsulation: None, backends: Vec::new(), pools: Vec::new() };
        let Some(mut section) = node.section() else { return draft };
        let encapsulation = section.optional("encapsulation");
        let backends = section.optional("backends");
        let pools = section.optional("pools");
        section.finish(&["checks", "fallback", "kv"]);
        if backends.is_none() && pools.is_none() {
            node.report.absent(&node.place, "neither backends nor pools", "at least one backend or pool");
        }
        if let Some(node) = encapsulation {
            if backends.is_none() {
                node.refuse("nothing here: it is for a pool with backends of its own");
            }
            draft.encapsulation = node.name().map(|name| node.at(name));
        }
        for node in backends.and_then(|node| node.items(BACKENDS)).unwrap_or_default() {
            draft.backends.extend(read_backend(&node));
        }
        for node in pools.and_then(|node| node.items(POOLS)).unwrap_or_default() {
            draft.pools.extend(read_reference(&node));
        }
        draft
    }
}

fn read_backend(node: &Node<'_>) -> Option<BackendDraft> {
    let mut section = node.section()?;
    let name = section.required("name", "the backend's name, unique in the cluster");
    let name = name.and_then(|node| Some(node.at(node.name()?)));
    let address = section.required("address", super::address::UNICAST);
    let address = address.and_then(|node| Some(node.at(node.unicast()?)));
    let weight = read_weight(&mut section);
    section.finish(&[]);
    Some(BackendDraft { name: name?, address: address?, weight })
}

fn read_reference(node: &Node<'_>) -> Option<PoolReference> {
    let mut section = node.section()?;
    let pool = section.required("pool", "the name of a pool");
    let pool = pool.and_then(|node| Some(node.at(node.name()?)));
    let weight = read_weight(&mut section);
    section.finish(&[]);
    Some(PoolReference { pool: pool?, weight })
}

/// 0 to 65,535, default 1.
fn read_weight(section: &mut Section<'_>) -> u32 {
    section.or("weight", 1, |node| node.number(0..=65_535))
}

const BACKENDS: &str = "a list of { name = \"b1\", address = \"198.18.1.1\", weight = 1 }";
const POOLS: &str = "a list of { pool = \"NAME\", weight = 1 }";
