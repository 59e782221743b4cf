//! `[machine.NAME.vlan.INTERFACE]`: the VLAN tags of frames that are sent on an interface.
//!
//! The crate `forwarder` writes the tags. If the route of a packet leads to a VLAN device, the tags
//! of that device take precedence (`next_hop`). Invariant: every rule can be reached, because no
//! earlier rule matches all of its frames. Reference: IEEE 802.1Q-2022 §6.9, §9.6.

use std::collections::BTreeMap;
use std::fmt;

use config_text::words::quote;
use config_text::{Expected, Node, Section, hint};

/// The policy for VLAN tags of frames that are sent on an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vlan {
    /// Frames are sent with the tags that they had when received.
    #[default]
    Keep,
    /// Frames are sent without tags.
    Strip,
    /// The first matching rule determines the tags. Frames that match no rule are dropped.
    Translate(Vec<VlanRule>),
}

/// A rule of [`Vlan::Translate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanRule {
    /// The VLAN IDs that a frame must have to match the rule, outermost first. An empty list
    /// matches untagged frames, and `None` matches all frames.
    pub from: Option<Vec<u16>>,
    /// The VLAN IDs with which the frame is sent, outermost first, at most two.
    pub to: Vec<u16>,
    /// `true` if the outer tag is a service tag (IEEE 802.1ad, EtherType 0x88a8). Default: `true`
    /// for two tags, `false` for one tag.
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

/// Formats VLANs as `100.20`, outermost first.
fn path(vlans: &[u16]) -> String {
    if vlans.is_empty() {
        return "untagged".to_owned();
    }
    vlans.iter().map(ToString::to_string).collect::<Vec<_>>().join(".")
}

/// Reads the VLAN policies of a machine. Each key must be in `interfaces`.
pub(super) fn read_all(section: &mut Section<'_>, interfaces: &[String]) -> BTreeMap<String, Vlan> {
    let entries = section.optional("vlan").and_then(|node| node.section()).map(Section::entries);
    let mut vlans = BTreeMap::new();
    for (interface, node) in entries.unwrap_or_default() {
        if !interfaces.iter().any(|known| known == interface) {
            let message = format!("machine has no interface {}", quote(interface));
            let help = hint(interface, interfaces.iter().map(String::as_str))
                .unwrap_or_else(|| format!("its interfaces are {}", interfaces.join(", ")));
            node.refuse((message, help));
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
            node.needs("policy = \"translate\"");
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
        return node.wrong(format!("\"translate\" has {} rules, and the limit is {MOST_RULES}", items.len()));
    }
    let mut rules: Vec<VlanRule> = Vec::with_capacity(items.len());
    for item in &items {
        let Some(rule) = read_rule(item) else { continue };
        // Only the first matching rule is used, so later rules with the same match have no effect.
        if rules.iter().any(|before| before.from.is_none()) {
            item.refuse(("this rule is never used", "an earlier rule without \"from\" matches every frame"));
        } else if rules.iter().any(|before| before.from == rule.from) {
            item.refuse(("this rule is never used", "an earlier rule has the same \"from\""));
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
        0 => {
            node.needs("a tag in to");
            None
        }
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
        let message = format!("{} has {} VLANs, and the limit is 2", node.label(), items.len());
        return node.wrong((message, "list the outermost VLAN first"));
    }
    items.iter().map(|node| node.number(1..=4094)).collect()
}

const MOST_RULES: usize = 64;
const RULES: Expected = Expected::new("a list of rules").example("[{ from = [100], to = [200] }]");
const VLANS: Expected = Expected::new("a list of VLANs, outermost first").example("[100]");
