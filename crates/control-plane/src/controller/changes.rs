//! What is different between two configurations, in words, and how many slots of each table move.
//!
//! In: two configurations, and both compiled. Out: sentences for `config diff` and for a reload's answer.
//! Rooms: `keys` (a section key by key), `settings` (what waits for a start), `checks` (those and encapsulations), `routers`
//! (peers and announcements).
//! Not here: secrets. That the hash key changed is said, not what it was.

mod checks;
mod keys;
mod routers;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use maglev_hash::{Disruption, disruption};

pub(crate) use self::checks::{check_keys, encapsulation_keys};
pub(crate) use self::keys::Keys;
pub use self::settings::Running;

use crate::compile::{Index, service_name};
use config::words::{count, count_of};
use config::{
    Config, Hash, Limits, Machine, Member, Pool, Prefix, PrefixGroup, Remote, Service, SourceList, Vip,
    format_duration,
};

/// What is different.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// One sentence each, in the order of the file's sections.
    pub sentences: Vec<String>,
    /// What the new one says and only a start brings, such as `io.batch: 64 -> 32`: from what runs to what is configured.
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

/// Compares `old` with `new` for one machine, on which `running` was started.
///
/// # Cost
/// Two loads a slot of each table that is another.
#[must_use]
pub fn changes(running: &Running, old: Side<'_>, new: Side<'_>, machine: &str) -> Changes {
    let mut changes = Changes { needs_restart: running.pending(new.config, machine), ..Changes::default() };
    cluster(&mut changes, old.config, new.config);
    trace(&mut changes, old.config, new.config);
    restarts(&mut changes, running, [old.config, new.config], machine);
    own_addresses(&mut changes, old.config, new.config, machine);
    vlans(&mut changes, old.config, new.config, machine);
    routers::bgp(&mut changes, old.config, new.config, machine);
    groups(&mut changes, old.config, new.config);
    remotes(&mut changes, old.config, new.config);
    vips(&mut changes, old.config, new.config, machine);
    checks::definitions(&mut changes, old.config, new.config);
    pools(&mut changes, old.config, new.config);
    tables(&mut changes, old.index, new.index);
    if changes.sentences.is_empty() {
        elsewhere(&mut changes, old.config, new.config);
    }
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
            self.say(format!("{what}: {} -> {}", show(old), show(new)));
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
    changes.differ("cluster.drain_time", &old.drain_time(), &new.drain_time(), |time| format_duration(*time));
    let mtu = (old.mtu(), new.mtu());
    changes.differ("cluster.mtu.clients", &mtu.0.clients(), &mtu.1.clients(), u32::to_string);
    changes.differ("cluster.mtu.core", &mtu.0.core(), &mtu.1.core(), |core| {
        core.map_or_else(|| "none".to_owned(), |core| core.to_string())
    });
    changes.differ("cluster.watch", &old.watch(), &new.watch(), bool::to_string);
}

fn trace(changes: &mut Changes, old: &Config, new: &Config) {
    changes.differ("trace", &old.trace(), &new.trace(), |trace| {
        trace.map_or_else(
            || "off".to_owned(),
            |trace| {
                let receivers: Vec<String> = trace.receivers().iter().map(ToString::to_string).collect();
                format!("reports to {}, {}/s a thread", receivers.join(", "), trace.max_per_second())
            },
        )
    });
}

/// A key that goes back to what runs waits for nothing.
fn restarts(changes: &mut Changes, running: &Running, [old, new]: [&Config; 2], machine: &str) {
    let (old, new) = (Running::of(old, machine), Running::of(new, machine));
    let waiting = running.differing(&new);
    for difference in old.differing(&new) {
        let waits = waiting.iter().any(|other| other.key == difference.key);
        let when = if waits { "takes effect at the next start" } else { "as it runs already" };
        changes.say(format!("{} ({when})", difference.sentence()));
    }
}

fn own_addresses(changes: &mut Changes, old: &Config, new: &Config, machine: &str) {
    let of = |config: &Config| config.machine(machine).map(|machine| machine.addresses().to_vec());
    changes.differ(&format!("machine.{machine}.addresses"), &of(old), &of(new), |addresses| {
        let words: Vec<String> = addresses.iter().flatten().map(ToString::to_string).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(", ") }
    });
}

/// Of interfaces that both have: of another, its name says all.
fn vlans(changes: &mut Changes, old: &Config, new: &Config, machine: &str) {
    let (Some(old), Some(new)) = (old.machine(machine), new.machine(machine)) else { return };
    for interface in old.interfaces().iter().filter(|interface| new.interfaces().contains(interface)) {
        let what = format!("machine.{machine}.vlan.{interface}");
        changes.differ(&what, &old.vlan(interface), &new.vlan(interface), ToString::to_string);
    }
}

/// Something differs, and nothing of it is for this machine.
fn elsewhere(changes: &mut Changes, old: &Config, new: &Config) {
    if old != new {
        changes.say("nothing for this machine: other machines and shards, or the order of entries");
    } else if !new.is_same_text_as(old) {
        changes.say("only the text: it says the same as before");
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
        changes.say(format!("prefix_group {name}: added, with {}", count_of(prefixes.len(), "prefix")));
    }
}

fn remotes(changes: &mut Changes, old: &Config, new: &Config) {
    let of = |config: &Config| -> BTreeMap<Arc<str>, BTreeSet<String>> {
        let sources = |remote: &Remote| remote.sources().iter().map(ToString::to_string).collect();
        config.remotes().iter().map(|remote| (Arc::clone(remote.name()), sources(remote))).collect()
    };
    let (old, new) = (of(old), of(new));
    for (name, sources) in &old {
        match new.get(name) {
            None => changes.say(format!("remote {name}: removed")),
            Some(next) => changes.differ(&format!("remote {name}: sources"), sources, next, |sources| {
                sources.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
            }),
        }
    }
    for name in new.keys().filter(|name| !old.contains_key(*name)) {
        changes.say(format!("remote {name}: added"));
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
            count_of(vip.shown_addresses().count(), "address"),
            { count_of(vip.services().len(), "service") }
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
    guard(changes, old, new);
    in_clusters(changes, old, new);
    routers::announce(changes, old, new);
    changes.differ(
        &format!("vip {}: fragments", old.name()),
        &old.fragments(),
        &new.fragments(),
        bool::to_string,
    );
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
            changes.say(format!("service {name}: hash {} -> {}", hash(service), hash(next)));
        }
    }
    for (name, service) in after.iter().filter(|(name, _)| !before.contains_key(*name)) {
        changes.say(format!("service {name}: added, served by pool {}", service.pool().name()));
    }
}

fn guard(changes: &mut Changes, old: &Vip, new: &Vip) {
    let (name, before, after) = (old.name(), old.guard(), new.guard());
    let show = |list: &Option<&SourceList>| {
        list.map_or_else(|| "none".to_owned(), |list| count_of(list.len(), "prefix"))
    };
    for (what, from, to) in
        [("allow list", before.allow(), after.allow()), ("deny list", before.deny(), after.deny())]
    {
        if show(&from) == show(&to) && from != to {
            changes.say(format!("vip {name}: {what}: {}, others than before", show(&to)));
        } else {
            changes.differ(&format!("vip {name}: {what}"), &from, &to, show);
        }
    }
    changes.differ(&format!("vip {name}: limits"), &before.limits(), &after.limits(), Limits::to_string);
}

/// Where it is in other clusters, and how it is checked there.
fn in_clusters(changes: &mut Changes, old: &Vip, new: &Vip) {
    let of = |vip: &Vip| -> BTreeMap<String, String> {
        let members = vip.remote_pools().iter().flat_map(|there| there.pool().members());
        let row = |member: &Member| {
            let checks: Vec<&str> = member.checks().iter().map(|check| &*check.name).collect();
            let way = member.encapsulation().name();
            let words = format!(
                "{way}, checks {}",
                if checks.is_empty() { "none".to_owned() } else { checks.join(", ") }
            );
            (format!("remote {} at {}", member.backend().name(), member.backend().address()), words)
        };
        members.map(row).collect()
    };
    let (name, before, after) = (old.name(), of(old), of(new));
    for (what, words) in &before {
        match after.get(what) {
            None => changes.say(format!("vip {name}: {what} removed: its flows go on for the drain time")),
            Some(next) => changes.differ(&format!("vip {name}: {what}"), words, next, String::clone),
        }
    }
    for what in after.keys().filter(|what| !before.contains_key(*what)) {
        changes.say(format!("vip {name}: {what} added"));
    }
}

fn hash(service: &Service) -> &'static str {
    match service.hash() {
        Hash::FiveTuple => "5-tuple",
        Hash::Addresses => "addresses",
        Hash::Source => "source",
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
        changes.say(format!(
            "pool {}: added, with {}",
            pool.name(),
            count_of(pool.members().len(), "backend")
        ));
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
        one_member(changes, old, &what, member, next);
    }
    checks::uses(changes, old, new);
    for (name, member) in after.iter().filter(|(name, _)| !before.contains_key(*name)) {
        changes.say(format!("pool {pool}: backend {name} added, weight {}", member.weight()));
    }
    changes.differ(&format!("pool {pool}: fallback"), &old.fallback(), &new.fallback(), |fallback| {
        fallback.map_or("none".to_owned(), |f| {
            format!("{} below {} (hold {})", f.pool(), f.below(), format_duration(f.hold()))
        })
    });
    changes.differ(&format!("pool {pool}: slow_start"), &old.slow_start(), &new.slow_start(), |time| {
        time.map_or("off".to_owned(), format_duration)
    });
}

fn one_member(changes: &mut Changes, pool: &Pool, what: &str, old: &Member, new: &Member) {
    // Told where it is listed, and not again for each pool around that one.
    if old.leaf() == pool.name() {
        let (before, after) = (old.backend().address(), new.backend().address());
        changes.differ(&format!("{what}: address"), &before, &after, ToString::to_string);
    }
    changes.differ(&format!("{what}: weight"), &old.weight(), &new.weight(), ToString::to_string);
    changes.differ(&format!("{what}: listed by pool"), &old.leaf(), &new.leaf(), ToString::to_string);
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
            Ok(counted) if counted.changed() > 0 => {
                changes.say(format!("pool {pool}: {}", moved(&counted, to.size())));
            }
            Ok(_) => {}
            Err(sizes) => changes.say(format!("pool {pool}: {sizes}: every flow may move")),
        }
    }
}

/// How much of a table goes to other backends, and why.
fn moved(counted: &Disruption, size: u32) -> String {
    let why: Vec<String> = [
        (counted.backend_gone, "because their backend is gone"),
        (counted.backend_new, "to backends that are new"),
        (counted.weight_changed, "because weights changed"),
        (
            counted.moved_needlessly,
            "between backends that stay as they were (Maglev keeps shares even at this price)",
        ),
    ]
    .into_iter()
    .filter(|(slots, _)| *slots > 0)
    .map(|(slots, why)| format!("{slots} {why}"))
    .collect();
    let share = f64::from(counted.changed()) * 100.0 / f64::from(size);
    let of = count(size, "table slot");
    format!("{} of {of} get another backend ({share:.2} %): {}", counted.changed(), why.join(", "))
}

/// How many prefixes of a group are named one by one.
const NAMED_PREFIXES: usize = 16;
