//! Describes changes to checks and encapsulations.
//!
//! A changed check or encapsulation is reported once, even if many backends use it. A single
//! sentence describes all backends whose checks changed in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::Changes;
use super::keys::{Difference, Keys};
use compile::{Views, is_checked_through_vip};
use config::words::few;
use config::{Check, Config, Encapsulation, Member, Pool};

/// Reports each check and encapsulation that is used in both configurations and has changed.
pub(super) fn definitions(changes: &mut Changes, old: &Config, new: &Config) {
    let (before, after) = (checks(old), checks(new));
    for (name, check) in &before {
        let Some(next) = after.get(name).filter(|next| *next != check) else { continue };
        // If the kind of the check changed, only the new kind is reported, and the keys of both
        // kinds are skipped.
        let (from, to) = (check.kind.word(), next.kind.word());
        let is_of_kind =
            |path: &str| from != to && [from, to].iter().any(|word| path.split('.').next() == Some(*word));
        let of = |check| Keys::of("", check).filter(|path| !is_of_kind(path));
        let mut words: Vec<String> = of(*check).differing(&of(next)).iter().map(Difference::short).collect();
        if from != to {
            words.insert(0, format!("kind {from} -> {to}"));
        }
        changes.say(format!("check {name}: {}", words.join("; ")));
    }
    let (before, after) = (encapsulations(old), encapsulations(new));
    for (name, kind) in &before {
        let Some(next) = after.get(name).filter(|next| *next != kind) else { continue };
        let differences = Keys::of("", *kind).differing(&Keys::of("", next));
        let words: Vec<String> = differences.iter().map(Difference::short).collect();
        changes.say(format!("encapsulation {name}: {}", words.join("; ")));
    }
}

/// Reports the VIP addresses through which backends are checked only in the new configuration.
/// Until these checks pass, no backend receives packets for the addresses.
pub(super) fn asked_first(changes: &mut Changes, old: &Config, new: &Config, machine: &str) {
    let (before, after) = (asked(old, machine), asked(new, machine));
    for ((vip, pool), addresses) in &after {
        let known = before.get(&(Arc::clone(vip), Arc::clone(pool)));
        let first: Vec<&IpAddr> =
            addresses.iter().filter(|address| known.is_none_or(|known| !known.contains(address))).collect();
        if !first.is_empty() {
            let addresses = few(first);
            changes.say(format!(
                "vip {vip}: backends of pool {pool} are checked through {addresses} for the first time"
            ));
        }
    }
}

/// Returns the VIP addresses through which backends are checked, keyed by the names of the VIP and
/// the pool.
fn asked(config: &Config, machine: &str) -> BTreeMap<(Arc<str>, Arc<str>), BTreeSet<IpAddr>> {
    let mut asked: BTreeMap<_, BTreeSet<IpAddr>> = BTreeMap::new();
    let Some(machine) = config.machine(machine) else { return asked };
    let views = Views::new(config, machine);
    let reach = views.reach();
    let through = reach.iter().filter(|(_, pool)| pool.members.iter().any(is_checked_through_vip));
    for (view, at) in through.filter_map(|(view, _)| Some((view, view.vip.as_ref()?))) {
        let addresses = asked.entry((Arc::clone(&at.vip), Arc::clone(&view.pool))).or_default();
        addresses.extend(views.addresses(at));
    }
    asked
}

/// Reports backends of a leaf pool whose checks or encapsulation changed. A single sentence
/// describes all backends with the same change.
pub(super) fn uses(changes: &mut Changes, old: &Pool, new: &Pool) {
    for (what, names) in USES {
        let mut alike: BTreeMap<(String, String), Vec<&str>> = BTreeMap::new();
        for (before, after) in pairs(old, new) {
            let (from, to) = (names(before), names(after));
            if from != to {
                alike.entry((from, to)).or_default().push(&before.backend.name);
            }
        }
        for ((from, to), backends) in alike {
            let of = if backends.len() == 1 { "backend" } else { "backends" };
            changes.say(format!("pool {}: {what} {from} -> {to} for {of} {}", old.name, few(backends)));
        }
    }
}

/// Pairs each backend that `old` lists directly with its counterpart in `new`. Skips backends that
/// `new` does not contain.
fn pairs<'a>(old: &'a Pool, new: &'a Pool) -> impl Iterator<Item = (&'a Member, &'a Member)> {
    let after: BTreeMap<&Arc<str>, &Member> =
        new.members.iter().map(|member| (&member.backend.name, member)).collect();
    let own = old.members.iter().filter(move |member| member.leaf == old.name);
    own.filter_map(move |member| Some((member, *after.get(&member.backend.name)?)))
}

/// The name of a backend property, such as its checks, and a function that returns the property of
/// a backend as a string.
type Use = (&'static str, fn(&Member) -> String);

const USES: [Use; 2] =
    [("checks", check_names), ("encapsulation", |member| member.encapsulation.name.to_string())];

fn check_names(member: &Member) -> String {
    let names: Vec<&str> = member.checks.iter().map(|check| &*check.name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn checks(config: &Config) -> BTreeMap<&str, &Check> {
    config.members().flat_map(|member| member.checks.iter()).map(|check| (&*check.name, &**check)).collect()
}

fn encapsulations(config: &Config) -> BTreeMap<&str, &Encapsulation> {
    config.members().map(|member| (&*member.encapsulation.name, &*member.encapsulation)).collect()
}
