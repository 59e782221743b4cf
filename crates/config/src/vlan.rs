//! `[machine.NAME.vlan.INTERFACE]`: the VLAN tags of frames that leave by an interface.
//!
//! In: the sections. Out: a [`Vlan`] by interface.
//! Not here: writing tags (`forwarder`); a route over a VLAN device, whose tags go before what is said here (`next_hop`).
//! Invariant: every rule can be the first that fits.
//! Source: IEEE 802.1Q-2022 §6.9, §9.6.

use std::collections::BTreeMap;
use std::fmt;

use config_text::{Node, Section};

/// What becomes of the VLAN tags of frames that leave by an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vlan {
    /// They leave with the tags that they came with.
    #[default]
    Keep,
    /// They leave untagged.
    Strip,
    /// The first rule that fits says with which tags; where none fits, the frame is dropped.
    Translate(Vec<VlanRule>),
}

/// One rule of [`Vlan::Translate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanRule {
    /// The VLANs that it is for, outermost first, none for untagged frames; `None`: whatever they are.
    pub from: Option<Vec<u16>>,
    /// The VLANs that frames leave in, outermost first, at most two.
    pub to: Vec<u16>,
    /// Whether the outer tag is a service tag (IEEE 802.1ad, 0x88a8). Default: of two tags it is, a lone one is not.
    pub is_service: bool,
}

impl fmt::Display for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => f.write_str("keep"),
            Self::Strip => f.write_str("strip"),
            Self::Translate(rules) => {
                let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
                write!(f, "translate ({})", rules.join(", "))
            }
        }
    }
}

impl fmt::Display for VlanRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.from.as_deref().map_or_else(|| "any".to_owned(), path);
        let kind = if self.is_service { " by 802.1ad" } else { "" };
        write!(f, "{from} to {}{kind}", path(&self.to))
    }
}

/// `100.20`: outermost first.
fn path(vlans: &[u16]) -> String {
    if vlans.is_empty() {
        return "untagged".to_owned();
    }
    vlans.iter().map(ToString::to_string).collect::<Vec<_>>().join(".")
}

/// Those of a machine, which has `interfaces`.
pub(super) fn read_all(section: &mut Section<'_>, interfaces: &[String]) -> BTreeMap<String, Vlan> {
    let entries = section.optional("vlan").and_then(|node| node.section()).map(Section::entries);
    let mut vlans = BTreeMap::new();
    for (interface, node) in entries.unwrap_or_default() {
        if !interfaces.iter().any(|known| known == interface) {
            let known = interfaces.join(", ");
            node.report.error(
                &node.place,
                "no interface of the machine",
                format!("one of interfaces: {known}"),
            );
        }
        if let Some(vlan) = read(&node) {
            vlans.insert(interface.to_owned(), vlan);
        }
    }
    vlans
}

fn read(node: &Node<'_>) -> Option<Vlan> {
    let mut section = node.section()?;
    let policies = [("keep", Policy::Keep), ("translate", Policy::Translate), ("strip", Policy::Strip)];
    let policy = section.or("policy", Policy::Keep, |node| node.choice(&policies));
    let vlan = if policy == Policy::Translate {
        section.required("translate", RULES).and_then(|node| read_rules(&node)).map(Vlan::Translate)
    } else {
        if let Some(node) = section.optional("translate") {
            node.refuse("nothing here unless policy = \"translate\"");
        }
        Some(if policy == Policy::Strip { Vlan::Strip } else { Vlan::Keep })
    };
    section.finish();
    vlan
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    Keep,
    Translate,
    Strip,
}

fn read_rules(node: &Node<'_>) -> Option<Vec<VlanRule>> {
    let items = node.items(RULES)?;
    if items.len() > MOST_RULES {
        return node.wrong(RULES);
    }
    let mut rules: Vec<VlanRule> = Vec::with_capacity(items.len());
    for item in &items {
        let Some(rule) = read_rule(item) else { continue };
        // The first that fits is taken.
        if rules.iter().any(|before| before.from.is_none()) {
            item.refuse("no rule behind one without from, which fits every frame");
        } else if rules.iter().any(|before| before.from == rule.from) {
            item.refuse("one rule for the same VLANs");
        }
        rules.push(rule);
    }
    Some(rules)
}

fn read_rule(node: &Node<'_>) -> Option<VlanRule> {
    let mut section = node.section()?;
    let from = section.optional("from").map(|node| read_vlans(&node));
    let to = section.required("to", VLANS).and_then(|node| read_vlans(&node));
    let outer = section.optional("outer");
    section.finish();
    let to = to?;
    let kind = outer.as_ref().and_then(|node| match to.len() {
        0 => node.wrong("nothing here where frames leave untagged"),
        _ => node.choice(&[("802.1q", false), ("802.1ad", true)]),
    });
    let from = match from {
        None => None,
        Some(vlans) => Some(vlans?),
    };
    Some(VlanRule { from, is_service: kind.unwrap_or(to.len() == 2), to })
}

fn read_vlans(node: &Node<'_>) -> Option<Vec<u16>> {
    let items = node.list(VLANS)?;
    if items.len() > 2 {
        return node.wrong(VLANS);
    }
    items.iter().map(|node| node.number(1..=4094)).collect()
}

const MOST_RULES: usize = 64;
const RULES: &str = "a list of 1 to 64 rules such as { from = [100], to = [200] }";
const VLANS: &str = "a list of at most two VLANs, outermost first";
