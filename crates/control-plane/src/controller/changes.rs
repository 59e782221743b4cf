//! What is different between two configurations, in words, and how many slots of each table move.
//!
//! In: two configurations, and both compiled. Out: sentences for `config diff` and for a reload's answer.
//! Not here: secrets. That the hash key changed is said, not what it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use maglev_hash::disruption;

use crate::compile::{Index, service_name};
use crate::config::{Config, Machine, Member, Pool, Prefix, PrefixGroup, Service, Vip};

/// What is different.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// One sentence each, in the order of the file's sections.
    pub sentences: Vec<String>,
    /// Sections whose change takes effect at the next start.
    pub needs_restart: Vec<String>,
}

/// A configuration and what came of it.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// As configured.
    pub config: &'a Config,
    /// As compiled, for one machine.
    pub index: &'a Index,
}

/// Compares `old` with `new` for one machine.
///
/// # Cost
/// Two loads a slot of each table that is another.
#[must_use]
pub fn changes(old: Side<'_>, new: Side<'_>, machine: &str) -> Changes {
    let mut changes = Changes::default();
    cluster(&mut changes, old.config, new.config);
    restarts(&mut changes, old.config, new.config, machine);
    groups(&mut changes, old.config, new.config);
    vips(&mut changes, old.config, new.config, machine);
    pools(&mut changes, old.config, new.config);
    tables(&mut changes, old.index, new.index);
    changes
}

impl Changes {
    fn say(&mut self, sentence: impl Into<String>) {
        self.sentences.push(sentence.into());
    }

    /// A few by name, many by their number.
    fn prefixes(&mut self, group: &str, what: &str, prefixes: &BTreeSet<Prefix>) {
        if prefixes.len() > NAMED_PREFIXES {
            self.say(format!("prefix_group {group}: {} prefixes {what}", prefixes.len()));
        } else {
            for prefix in prefixes {
                self.say(format!("prefix_group {group}: prefix {prefix} {what}"));
            }
        }
    }

    fn differ<T: PartialEq>(&mut self, what: &str, old: &T, new: &T, show: impl Fn(&T) -> String) {
        if old != new {
            self.say(format!("{what}: {} becomes {}", show(old), show(new)));
        }
    }
}

fn cluster(changes: &mut Changes, old: &Config, new: &Config) {
    let (old, new) = (old.cluster(), new.cluster());
    changes.differ("cluster.name", &old.name(), &new.name(), |name| format!("\"{name}\""));
    if old.hash_key() != new.hash_key() {
        changes.say("cluster.hash_key_file: another key: all tables change, and the connection tables are of no more use");
    }
    changes.differ("cluster.table_size", &old.table_size(), &new.table_size(), u32::to_string);
    changes.differ("cluster.drain_time", &old.drain_time(), &new.drain_time(), |time| format!("{time:?}"));
    changes.differ("cluster.watch", &old.watch(), &new.watch(), bool::to_string);
}

fn restarts(changes: &mut Changes, old: &Config, new: &Config, machine: &str) {
    let interfaces = |config: &Config| config.machine(machine).map(|machine| machine.interfaces().to_vec());
    let sections = [
        ("io", old.io() != new.io()),
        ("log", old.log() != new.log()),
        ("admin", old.admin() != new.admin()),
        ("cluster.flow_timeouts", old.cluster().flow_timeouts() != new.cluster().flow_timeouts()),
        ("machine.interfaces", interfaces(old) != interfaces(new)),
    ];
    for (section, _) in sections.iter().filter(|(_, changed)| *changed) {
        changes.say(format!("{section}: takes effect at the next start"));
        changes.needs_restart.push((*section).to_owned());
    }
}

fn groups(changes: &mut Changes, old: &Config, new: &Config) {
    let of = |config: &Config| -> BTreeMap<Arc<str>, BTreeSet<Prefix>> {
        let prefixes = |group: &PrefixGroup| group.prefixes().iter().copied().collect();
        config.groups().iter().map(|group| (Arc::clone(group.name()), prefixes(group))).collect()
    };
    let (old, new) = (of(old), of(new));
    for (name, prefixes) in &old {
        match new.get(name) {
            None => changes.say(format!("prefix_group {name}: removed")),
            Some(next) => {
                changes.prefixes(name, "removed", &(prefixes - next));
                changes.prefixes(name, "added", &(next - prefixes));
            }
        }
    }
    for (name, prefixes) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
        changes.say(format!("prefix_group {name}: added, with {}", count(prefixes.len(), "prefix")));
    }
}

fn vips(changes: &mut Changes, old: &Config, new: &Config, machine: &str) {
    let of = |config| -> BTreeMap<Arc<str>, &Vip> { by_name(config, machine) };
    let (old, new) = (of(old), of(new));
    for (name, vip) in &old {
        match new.get(name) {
            None => changes.say(format!("vip {name}: removed")),
            Some(next) if next != vip => one_vip(changes, vip, next),
            Some(_) => {}
        }
    }
    for (name, vip) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
        changes.say(format!(
            "vip {name}: added, with {} and {}",
            count(vip.shown_addresses().count(), "address"),
            { count(vip.services().len(), "service") }
        ));
    }
}

fn by_name<'a>(config: &'a Config, machine: &str) -> BTreeMap<Arc<str>, &'a Vip> {
    let named = |machine: &Machine| {
        config.vips_of(machine).map(|vip| (Arc::clone(vip.name()), vip)).collect::<BTreeMap<_, _>>()
    };
    config.machine(machine).map(named).unwrap_or_default()
}

fn one_vip(changes: &mut Changes, old: &Vip, new: &Vip) {
    let addresses = |vip: &Vip| -> BTreeSet<String> { vip.shown_addresses().collect() };
    let (before, after) = (addresses(old), addresses(new));
    for address in before.difference(&after) {
        changes.say(format!("vip {}: address {address} removed", old.name()));
    }
    for address in after.difference(&before) {
        changes.say(format!("vip {}: address {address} added", old.name()));
    }
    let services = |vip| -> BTreeMap<String, &Service> {
        Vip::services(vip).iter().map(|service| (service_name(vip, service), service)).collect()
    };
    let (before, after) = (services(old), services(new));
    for (name, service) in &before {
        let Some(next) = after.get(name) else {
            changes.say(format!("service {name}: removed"));
            continue;
        };
        if service.pool().name() != next.pool().name() {
            changes.say(format!(
                "service {name}: from pool {} to pool {}",
                service.pool().name(),
                next.pool().name()
            ));
        }
        if service.hash() != next.hash() {
            changes.say(format!("service {name}: hashed by {:?}, was {:?}", next.hash(), service.hash()));
        }
    }
    for (name, service) in after.iter().filter(|(name, _)| !before.contains_key(*name)) {
        changes.say(format!("service {name}: added, served by pool {}", service.pool().name()));
    }
}

fn pools(changes: &mut Changes, old: &Config, new: &Config) {
    for pool in old.pools() {
        match new.pool(pool.name()) {
            None => changes.say(format!("pool {}: removed", pool.name())),
            Some(next) if next != pool => one_pool(changes, pool, next),
            Some(_) => {}
        }
    }
    for pool in new.pools().iter().filter(|pool| old.pool(pool.name()).is_none()) {
        changes.say(format!("pool {}: added, with {}", pool.name(), count(pool.members().len(), "backend")));
    }
}

fn one_pool(changes: &mut Changes, old: &Pool, new: &Pool) {
    let members = |pool| -> BTreeMap<&Arc<str>, &Member> {
        Pool::members(pool).iter().map(|member| (member.backend().name(), member)).collect()
    };
    let (before, after) = (members(old), members(new));
    let pool = old.name();
    for (name, member) in &before {
        let Some(next) = after.get(name) else {
            changes.say(format!("pool {pool}: backend {name} removed: its flows go on for the drain time"));
            continue;
        };
        let what = format!("pool {pool}: backend {name}");
        one_member(changes, &what, member, next);
    }
    for (name, member) in after.iter().filter(|(name, _)| !before.contains_key(*name)) {
        changes.say(format!("pool {pool}: backend {name} added, weight {}", member.weight()));
    }
    changes.differ(&format!("pool {pool}: fallback"), &old.fallback(), &new.fallback(), |fallback| {
        fallback
            .map_or("none".to_owned(), |f| format!("{} below {} (hold {:?})", f.pool(), f.below(), f.hold()))
    });
    changes.differ(&format!("pool {pool}: slow_start"), &old.slow_start(), &new.slow_start(), |time| {
        time.map_or("off".to_owned(), |time| format!("{time:?}"))
    });
}

fn one_member(changes: &mut Changes, what: &str, old: &Member, new: &Member) {
    let (before, after) = (old.backend().address(), new.backend().address());
    changes.differ(&format!("{what}: address"), &before, &after, ToString::to_string);
    changes.differ(&format!("{what}: weight"), &old.weight(), &new.weight(), ToString::to_string);
    if old.leaf() != new.leaf() {
        changes.say(format!("{what}: listed by pool {}, was by {}", new.leaf(), old.leaf()));
    }
    if old.encapsulation() != new.encapsulation() {
        let (before, after) = (old.encapsulation().name(), new.encapsulation().name());
        let same = if before == after { ", otherwise defined" } else { "" };
        changes.say(format!("{what}: encapsulation {before} becomes {after}{same}"));
    }
    let names = |member: &Member| {
        let names: Vec<&str> = member.checks().iter().map(|check| &**check.name()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    if old.checks() != new.checks() {
        let (before, after) = (names(old), names(new));
        let same = if before == after { ", otherwise defined" } else { "" };
        changes.say(format!("{what}: checks {before} become {after}{same}"));
    }
}

fn tables(changes: &mut Changes, old: &Index, new: &Index) {
    for after in new.pools() {
        let Some(before) = old.pool(&after.name) else { continue };
        let (Some(from), Some(to)) = (&before.table, &after.table) else { continue };
        if Arc::ptr_eq(from, to) {
            continue;
        }
        let pool = &after.name;
        match disruption(from, to) {
            Ok(counted) if counted.changed() > 0 => changes.say(format!(
                "pool {pool}: {} of {} slots move ({:.2} %): {} from backends that went, {} to new ones, {} by weights, {} \
                 besides",
                counted.changed(),
                to.size(),
                f64::from(counted.changed()) * 100.0 / f64::from(to.size()),
                counted.backend_gone,
                counted.backend_new,
                counted.weight_changed,
                counted.moved_needlessly
            )),
            Ok(_) => {}
            Err(sizes) => changes.say(format!("pool {pool}: {sizes}: every flow may move")),
        }
    }
}

fn count(number: usize, what: impl Display) -> String {
    let plural = match number {
        1 => "",
        _ if what.to_string().ends_with(['s', 'x']) => "es",
        _ => "s",
    };
    format!("{number} {what}{plural}")
}

/// How many prefixes of a group are named one by one.
const NAMED_PREFIXES: usize = 16;
