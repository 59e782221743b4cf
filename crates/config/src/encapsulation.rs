//! `[encapsulation.NAME]`: how a packet travels to a backend.
//!
//! In: the sections. Out: [`Encapsulation`]s by name, the four built-in ones among them.
//! Not here: header bytes (`packet`), the choice of a source address per flow (`forwarder`).
//! Invariant: a name that is a kind (`gre`, `ipip`, `gue`, `l2`) is always of that kind.

use std::collections::BTreeMap;
use std::sync::Arc;

use config_text::{Node, Place, Root};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use forwarder::{Prefix, TooBig};

use super::address::{self, PREFIX};
use super::canonical;

/// How a packet travels to a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Encapsulation {
    /// The name by which pools refer to it.
    #[serde(skip)]
    pub name: Arc<str>,
    /// The outer header.
    #[serde(flatten, serialize_with = "canonical_kind")]
    pub kind: packet::Encapsulation,
    /// Outer sources are chosen per flow from these, at most one a family; a family without one uses
    /// the machine's address.
    #[serde(serialize_with = "canonical::set")]
    pub source_prefixes: Vec<Prefix>,
    /// Whether an outer IPv4 header has DF set. Default `true`.
    pub dont_fragment: bool,
    /// Default [`TooBig::FragmentInner`].
    #[serde(serialize_with = "canonical_too_big")]
    pub too_big: TooBig,
}

/// The keys `kind` and, of GUE, `udp_checksum`.
fn canonical_kind<S: Serializer>(kind: &packet::Encapsulation, to: S) -> Result<S::Ok, S::Error> {
    let mut keys = to.serialize_map(None)?;
    keys.serialize_entry("kind", kind.name())?;
    if let packet::Encapsulation::Gue { udp_checksum } = kind {
        keys.serialize_entry("udp_checksum", udp_checksum)?;
    }
    keys.end()
}

fn canonical_too_big<S: Serializer>(value: &TooBig, to: S) -> Result<S::Ok, S::Error> {
    canonical::word(&TOO_BIG, value, to)
}

impl Encapsulation {
    /// Whether an outer header of a family needs an address of the machine.
    pub(super) fn needs_machine_address(&self, ipv4: bool) -> bool {
        let given = self.source_prefixes.iter().any(|p| p.address().is_ipv4() == ipv4);
        self.kind != packet::Encapsulation::L2 && !given
    }

    /// What peers send each other: the machine's address outside, and cut inside where a piece does not fit.
    pub(super) fn for_peers() -> Self {
        Self::built_in("gre", packet::Encapsulation::Gre)
    }

    fn built_in(name: &str, kind: packet::Encapsulation) -> Self {
        let name = name.into();
        Self { name, kind, source_prefixes: Vec::new(), dont_fragment: true, too_big: TooBig::FragmentInner }
    }
}

/// A name that a pool may use; without a value when its section has an error.
pub(super) struct EncapsulationDraft {
    /// `None` for a built-in one.
    pub(super) place: Option<Place>,
    pub(super) value: Option<Arc<Encapsulation>>,
}

/// The encapsulations of the file and the built-in ones, by name.
pub(super) fn read_all(root: &mut Root<'_>) -> BTreeMap<Arc<str>, EncapsulationDraft> {
    let mut all = BTreeMap::new();
    for (name, kind) in KINDS {
        let value = Some(Arc::new(Encapsulation::built_in(name, kind)));
        all.insert(Arc::from(name), EncapsulationDraft { place: None, value });
    }
    for (name, node) in root.named("encapsulation") {
        let value = read(&name, &node).map(Arc::new);
        all.insert(name, EncapsulationDraft { place: Some(node.place), value });
    }
    all
}

fn read(name: &Arc<str>, node: &Node<'_>) -> Option<Encapsulation> {
    let mut section = node.section()?;
    let kind = section.required("kind", "\"gre\", \"ipip\", \"gue\", \"l2\"");
    let kind = kind.and_then(|node| {
        let kind = node.choice(&KINDS)?;
        let own = KINDS.iter().find(|(word, _)| **word == **name).is_none_or(|(_, own)| *own == kind);
        if own { Some(kind) } else { node.wrong(format!("\"{name}\": its name is a kind")) }
    });
    let udp_checksum = section.optional("udp_checksum");
    let outer = [section.optional("source_prefixes"), section.optional("dont_fragment")];
    let too_big = section.or("too_big", TooBig::FragmentInner, |node| node.choice(&TOO_BIG));
    section.finish();
    let udp_checksum = udp_checksum.map(|node| (node.boolean(), node));
    let kind = match (kind, udp_checksum) {
        (Some(packet::Encapsulation::Gue { .. }), Some((truth, _))) => {
            Some(packet::Encapsulation::Gue { udp_checksum: truth.unwrap_or(false) })
        }
        (Some(other), Some((_, node))) => node.wrong("nothing here: only gue has UDP").or(Some(other)),
        (kind, _) => kind,
    };
    if kind == Some(packet::Encapsulation::L2) {
        for node in outer.into_iter().flatten() {
            node.refuse("nothing here: l2 writes no outer header");
        }
        return Some(Encapsulation { too_big, ..Encapsulation::built_in(name, packet::Encapsulation::L2) });
    }
    let [source_prefixes, dont_fragment] = outer;
    let source_prefixes = source_prefixes.map(|node| read_prefixes(&node)).unwrap_or_default();
    let dont_fragment = dont_fragment.and_then(|node| node.boolean()).unwrap_or(true);
    Some(Encapsulation { name: Arc::clone(name), kind: kind?, source_prefixes, dont_fragment, too_big })
}

fn read_prefixes(node: &Node<'_>) -> Vec<Prefix> {
    let mut prefixes: Vec<Prefix> = Vec::new();
    for node in node.items(PREFIX).unwrap_or_default() {
        let Some(prefix) = node.read(PREFIX, address::prefix) else { continue };
        let family = prefix.address().is_ipv4();
        match prefixes.iter().find(|other| other.address().is_ipv4() == family) {
            Some(first) => node.refuse(format!("one prefix a family, and {first} is another")),
            None => prefixes.push(prefix),
        }
    }
    // One a family: their order says nothing.
    prefixes.sort_unstable();
    prefixes
}

const KINDS: [(&str, packet::Encapsulation); 4] = [
    ("gre", packet::Encapsulation::Gre),
    ("ipip", packet::Encapsulation::Ipip),
    ("gue", packet::Encapsulation::Gue { udp_checksum: false }),
    ("l2", packet::Encapsulation::L2),
];

const TOO_BIG: [(&str, TooBig); 3] = [
    ("fragment-inner", TooBig::FragmentInner),
    ("fragment-outer", TooBig::FragmentOuter),
    ("drop", TooBig::Drop),
];
