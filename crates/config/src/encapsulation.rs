//! `[encapsulation.NAME]`: how packets are sent to a backend.
//!
//! Pools refer to an [`Encapsulation`] by its name. Four encapsulations are built in, named `gre`,
//! `ipip`, `gue` and `l2`. A section that redefines a built-in encapsulation must have the same
//! kind. The crate `packet` writes the headers, and `forwarder` chooses a source address for each
//! flow.

use std::collections::BTreeMap;
use std::sync::Arc;

use config_text::{Expected, Node, Place, Root};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use forwarder::{Prefix, TooBig};

use super::address::AddressNode;
use super::canonical;

/// The encapsulation of packets that are sent to a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Encapsulation {
    /// The name that pools use to refer to the encapsulation.
    #[serde(skip)]
    pub name: Arc<str>,
    /// The kind of outer header.
    #[serde(flatten, serialize_with = "canonical_kind")]
    pub kind: packet::Encapsulation,
    /// The prefixes from which the outer source address of each flow is chosen, at most one per
    /// address family. Without a prefix, the outer source address is the address of the machine.
    #[serde(serialize_with = "canonical::set")]
    pub source_prefixes: Vec<Prefix>,
    /// `true` if outer IPv4 headers have the DF flag. Default: `true`.
    pub dont_fragment: bool,
    /// The action for packets that exceed the MTU. Default: [`TooBig::FragmentInner`].
    #[serde(serialize_with = "canonical_too_big")]
    pub too_big: TooBig,
}

/// Serializes the key `kind`, and for GUE the key `udp_checksum`.
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
    /// Returns `true` if outer headers in an address family need a machine address as their source.
    pub(super) fn needs_machine_address(&self, ipv4: bool) -> bool {
        let given = self.source_prefixes.iter().any(|p| p.address().is_ipv4() == ipv4);
        self.kind != packet::Encapsulation::L2 && !given
    }

    /// Returns the encapsulation for packets between peers, which is GRE with the machine's address
    /// as source. Packets that are too long are fragmented before encapsulation.
    pub(super) fn for_peers() -> Self {
        Self::built_in("gre", packet::Encapsulation::Gre)
    }

    fn built_in(name: &str, kind: packet::Encapsulation) -> Self {
        let name = name.into();
        Self { name, kind, source_prefixes: Vec::new(), dont_fragment: true, too_big: TooBig::FragmentInner }
    }
}

/// An encapsulation that pools can refer to by name. `None` if the section of the encapsulation has
/// an error.
pub(super) struct EncapsulationDraft {
    /// The position of the section. `None` for a built-in encapsulation.
    pub(super) place: Option<Place>,
    pub(super) value: Option<Arc<Encapsulation>>,
}

/// Returns all configured and built-in encapsulations by name.
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
    let kind = section.required("kind", KIND);
    let kind = kind.and_then(|node| {
        let kind = node.choice(&KINDS)?;
        let own = KINDS.iter().find(|(word, _)| **word == **name).is_none_or(|(_, own)| *own == kind);
        if own {
            return Some(kind);
        }
        let message = format!("encapsulation \"{name}\" must have kind = \"{name}\", got {}", node.shown());
        node.wrong((message, "use another name for an encapsulation of this kind"))
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
        (Some(other), Some((_, node))) => {
            node.needs("kind = \"gue\"");
            Some(other)
        }
        (kind, _) => kind,
    };
    if kind == Some(packet::Encapsulation::L2) {
        for node in outer.into_iter().flatten() {
            let help = "kind = \"l2\" adds no outer header";
            node.refuse((format!("{} cannot be combined with kind = \"l2\"", node.label()), help));
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
    for node in node.items(PREFIXES).unwrap_or_default() {
        let Some(prefix) = node.prefix() else { continue };
        let family = prefix.address().is_ipv4();
        match prefixes.iter().find(|other| other.address().is_ipv4() == family) {
            Some(first) => {
                let message = format!("{} has the same address family as an earlier prefix", node.label());
                node.refuse((message, format!("the first prefix is {first}")));
            }
            None => prefixes.push(prefix),
        }
    }
    // The list has at most one prefix per family, and its order has no effect.
    prefixes.sort_unstable();
    prefixes
}

const KIND: Expected = Expected::new("the kind of outer header").example("\"gre\"");
const PREFIXES: Expected =
    Expected::new("a list of prefixes, at most one per address family").example("[\"198.51.100.0/28\"]");
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
