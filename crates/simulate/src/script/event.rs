//! Reads one `[[event]]` of a script. An event that cannot happen at the given time is reported as
//! a problem. For example, a machine cannot leave the cluster twice in a row.

use std::sync::Arc;
use std::time::Duration;

use config_text::{At, Expected, Node, Section};

use super::{HOUR, millis};
use crate::plan::{Plan, Takeover, in_words};
use crate::scenario::{Change, MAX_MACHINES};

/// Adds all events to the plan, in the order of the script. `is_reload` is `true` if the versions
/// come from a change to the configuration.
pub(super) fn read_all(nodes: &[Node<'_>], plan: &mut Plan, duration_ms: u32, is_reload: bool) {
    let mut before = Duration::ZERO;
    let end = Duration::from_millis(u64::from(duration_ms));
    for node in nodes {
        let Some(mut section) = node.section() else { continue };
        let at = section.required("at", Expected::new("a time from the start").example("\"60s\""));
        let at = at.and_then(|node| millis(&node, before..=end));
        before = at.map_or(before, |at| Duration::from_millis(u64::from(at)));
        let mut reader = Reader { plan, is_reload, at_ms: at.unwrap_or_default() };
        reader.read(&mut section, node);
        section.finish();
    }
}

struct Reader<'a> {
    plan: &'a mut Plan,
    is_reload: bool,
    at_ms: u32,
}

impl Reader<'_> {
    fn read(&mut self, section: &mut Section<'_>, node: &Node<'_>) {
        let found: Vec<(&str, Node<'_>)> =
            KINDS.into_iter().filter_map(|kind| Some((kind, section.optional(kind)?))).collect();
        let (skew, span) = (section.optional("skew"), section.optional("for"));
        let [(kind, what)] = &found[..] else {
            let (event, kinds) = (node.label(), KINDS.join(", "));
            if found.is_empty() {
                let help = format!("add one of {kinds}");
                node.report.absent(&node.place, (format!("{event} has no change"), help));
            } else {
                let help = format!("write one [[event]] for each of {kinds}");
                node.refuse((format!("{event} has {} changes", found.len()), help));
            }
            return;
        };
        let is_taken_over = !matches!(*kind, LEAVES | JOINS | FULL);
        let skew = only_if(skew, is_taken_over, "a change of a backend or of the hash key");
        let span = only_if(span, *kind == FULL, FULL);
        if is_taken_over && self.is_reload {
            let message = format!("{} is not allowed with --to", what.label());
            return what.refuse((message, "use machine_leaves, machine_joins or table_full"));
        }
        let takeover = Takeover { at_ms: self.at_ms, skew_ms: skew.unwrap_or_default() };
        match *kind {
            LEAVES | JOINS => self.machine(what, *kind == JOINS),
            FULL => self.full(what, span),
            HASH_KEY => {
                if what.choice(&[("new", ())]).is_some() {
                    self.plan.rekey(takeover);
                }
            }
            WEIGHT => self.weight(what, takeover),
            kind => self.backend(kind, what, takeover),
        }
    }

    fn machine(&mut self, node: &Node<'_>, joins: bool) {
        let Some(name) = node.name() else { return };
        let known = self.plan.machines.iter().position(|machine| *machine.name == *name);
        match known {
            Some(machine) if self.plan.is_there(machine) != joins => {
                self.plan.route(self.at_ms, machine, joins)
            }
            Some(_) if joins => {
                node.refuse(format!("machine \"{name}\" is already in the cluster at that time"))
            }
            Some(_) => node.refuse(format!("machine \"{name}\" is not in the cluster at that time")),
            None if joins && self.plan.machines.len() < MAX_MACHINES => {
                let machine = self.plan.add_machine(&name);
                self.plan.route(self.at_ms, machine, true);
            }
            None if joins => node.refuse(format!("the script has more than {MAX_MACHINES} machines")),
            None => unknown(node, &name, self.plan.machines.iter().map(|one| &*one.name), "machine"),
        }
    }

    fn full(&mut self, node: &Node<'_>, for_ms: Option<u32>) {
        let for_ms = for_ms.unwrap_or(60_000);
        let name = node.as_str().or_else(|| node.unexpected("the name of a machine or \"all\""));
        let Some(name) = name else { return };
        let machine = self.plan.machines.iter().position(|machine| machine.name == name);
        if machine.is_none() && name != "all" {
            let names = self.plan.machines.iter().map(|one| &*one.name);
            return unknown(node, name, names, "machine");
        }
        let whose = if machine.is_some() {
            format!("the flow table of {name} is")
        } else {
            "all flow tables are".into()
        };
        let label = format!("{whose} full for {}", in_words(for_ms));
        self.plan.push(self.at_ms, label, Change::Full { machine, for_ms });
    }

    fn weight(&mut self, node: &Node<'_>, takeover: Takeover) {
        let Some(mut section) = node.section() else { return };
        let backend = section.required("backend", "the name of a backend");
        let backend = backend.and_then(|node| self.find(&node));
        let weight =
            section.required("to", "a weight from 0 to 65535").and_then(|node| node.number(0..=65_535));
        section.finish();
        if let (Some(backend), Some(weight)) = (backend, weight) {
            self.plan.weigh(takeover, backend, weight);
        }
    }

    fn backend(&mut self, kind: &str, node: &Node<'_>, takeover: Takeover) {
        let Some(backend) = self.find(node) else { return };
        match (kind, self.plan.is_dead(backend)) {
            (UP, _) => self.plan.up(takeover, backend),
            (_, true) => node.refuse(format!("backend {} is down at that time", node.shown())),
            (DOWN, false) => self.plan.down(takeover, backend),
            (_, false) => self.plan.drain(takeover, backend),
        }
    }

    fn find(&self, node: &Node<'_>) -> Option<usize> {
        let name = node.name()?;
        let found = self.plan.backends.iter().position(|backend| *backend.name == *name);
        if found.is_none() {
            unknown(node, &name, self.plan.backends.iter().map(|one| &*one.name), "backend");
        }
        found
    }
}

/// Reads a duration that is allowed only for certain changes.
fn only_if(node: Option<Node<'_>>, is_wanted: bool, change: &str) -> Option<u32> {
    let node = node?;
    if !is_wanted {
        node.needs(change);
        return None;
    }
    millis(&node, Duration::ZERO..=HOUR)
}

/// Reports an unknown name. The help text contains the most similar known name.
fn unknown<'k>(node: &Node<'_>, name: &str, known: impl Iterator<Item = &'k str>, kind: &str) {
    let known: Vec<Arc<str>> = known.map(Arc::from).collect();
    let name: At<Arc<str>> = node.at(name.into());
    node.report.unknown(&name, &known, kind);
}

const LEAVES: &str = "machine_leaves";
const JOINS: &str = "machine_joins";
const DOWN: &str = "backend_down";
const UP: &str = "backend_up";
const DRAINS: &str = "backend_drains";
const WEIGHT: &str = "weight";
const FULL: &str = "table_full";
const HASH_KEY: &str = "hash_key";
const KINDS: [&str; 8] = [LEAVES, JOINS, DOWN, UP, DRAINS, WEIGHT, FULL, HASH_KEY];
