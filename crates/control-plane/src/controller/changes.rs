//! Describes the differences between two configurations in sentences, and counts the table slots
//! that move to other backends.
//!
//! The output of `config diff` and the response to a reload contain these sentences. `keys`
//! compares two sections key by key. `settings` handles sections without a name, such as `[io]`,
//! and keys that need a restart. `checks` handles checks and encapsulations. `routers` handles BGP
//! peers and announcements. A changed secret is reported without its value.

mod checks;
mod keys;
mod routers;
mod settings;
mod version;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use maglev_hash::{Disruption, SizesDiffer, disruption};

use self::keys::Keys;
pub use self::settings::Running;
pub use self::version::Version;

use compile::{Index, PoolView, service_name};
use config::words::{count, count_of};
use config::{Config, Machine, Member, Pool, Prefix, PrefixGroup, Remote, Service, SourceList, Vip};

/// The differences between two configurations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The differences, one sentence each, in the order of the configuration sections.
    pub sentences: Vec<String>,
    /// The keys that need a restart, each with its running and its configured value, such as
    /// `io.batch: 64 -> 32`.
    pub needs_restart: Vec<String>,
}

/// One of two compared configurations, with its compiled index.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The configuration to compare.
    pub config: &'a Config,
    /// The index of the configuration, compiled for one machine.
    pub index: &'a Index,
}

/// Describes the changes from `old` to `new` for one machine. `running` contains the settings with
/// which the process started.
///
/// # Cost
/// Two memory loads per slot of each changed table.
#[must_use]
pub fn changes(running: &Running, old: Side<'_>, new: Side<'_>, machine: &str) -> Changes {
    let mut changes = Changes { needs_restart: running.pending(new.config, machine), ..Changes::default() };
    let [before, after] = [old, new].map(|side| settings::keys(side.config, machine));
    settings::settings(&mut changes, running, &before, &after);
    routers::bgp(&mut changes, old.config, new.config, machine);
    groups(&mut changes, old.config, new.config);
    remotes(&mut changes, old.config, new.config);
    vips(&mut changes, old.config, new.config, machine);
    checks::definitions(&mut changes, old.config, new.config);
    checks::asked_first(&mut changes, old.config, new.config, machine);
    pools(&mut changes, old.config, new.config);
    moved_tables(old.index, new.index).iter().for_each(|table| changes.say(table.sentence()));
    if changes.sentences.is_empty() {
        elsewhere(&mut changes, old.config, new.config);
    }
    changes
}

impl Changes {
    fn say(&mut self, sentence: impl Into<String>) {
        self.sentences.push(sentence.into());
    }

    /// Reports each changed prefix in its own sentence. If many prefixes changed, only their number
    /// is reported.
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

/// Adds a sentence if the configurations differ only in ways that do not affect this machine.
fn elsewhere(changes: &mut Changes, old: &Config, new: &Config) {
    if old != new {
        changes.say("no change for this machine, because the files differ only in other machines, other shards or the order of entries");
    } else if !new.is_same_text_as(old) {
        changes.say("only comments or formatting changed");
    }
}

fn groups(changes: &mut Changes, old: &Config, new: &Config) {
    let of = |config: &Config| -> BTreeMap<Arc<str>, BTreeSet<Prefix>> {
        let prefixes = |group: &PrefixGroup| group.prefixes.iter().copied().collect();
        config.groups().iter().map(|group| (Arc::clone(&group.name), prefixes(group))).collect()
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
        let sources = |remote: &Remote| remote.sources.iter().map(ToString::to_string).collect();
        config.remotes().iter().map(|remote| (Arc::clone(&remote.name), sources(remote))).collect()
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
            { count_of(vip.services.len(), "service") }
        ));
    }
}

fn by_name<'a>(config: &'a Config, machine: &str) -> BTreeMap<Arc<str>, &'a Vip> {
    let named = |machine: &Machine| {
        config.vips_of(machine).map(|vip| (Arc::clone(&vip.name), vip)).collect::<BTreeMap<_, _>>()
    };
    config.machine(machine).map(named).unwrap_or_default()
}

fn one_vip(changes: &mut Changes, old: &Vip, new: &Vip) {
    let addresses = |vip: &Vip| -> BTreeSet<String> { vip.shown_addresses().collect() };
    let (before, after) = (addresses(old), addresses(new));
    for address in before.difference(&after) {
        changes.say(format!("vip {}: address {address} removed", old.name));
    }
    for address in after.difference(&before) {
        changes.say(format!("vip {}: address {address} added", old.name));
    }
    guard(changes, old, new);
    in_clusters(changes, old, new);
    routers::announce(changes, old, new);
    let keys = |vip: &Vip| {
        Keys::of("", vip).filter(|path| !NAMED_APART.contains(&path.split('.').next().unwrap_or(path)))
    };
    for difference in keys(old).differing(&keys(new)) {
        changes.say(format!("vip {}: {}", old.name, difference.sentence()));
    }
    fn services(vip: &Vip) -> BTreeMap<String, &Service> {
        vip.services.iter().map(|service| (service_name(vip, service), service)).collect()
    }
    let (before, after) = (services(old), services(new));
    for (name, service) in &before {
        let Some(next) = after.get(name) else {
            changes.say(format!("service {name}: removed"));
            continue;
        };
        for difference in Keys::of("", *service).differing(&Keys::of("", *next)) {
            changes.say(format!("service {name}: {}", difference.short()));
        }
    }
    for (name, service) in after.iter().filter(|(name, _)| !before.contains_key(*name)) {
        changes.say(format!("service {name}: added, served by pool {}", service.pool.name));
    }
}

fn guard(changes: &mut Changes, old: &Vip, new: &Vip) {
    let (name, before, after) = (&old.name, &old.guard, &new.guard);
    let show = |list: &Option<&SourceList>| {
        list.map_or_else(|| "none".to_owned(), |list| count_of(list.len(), "prefix"))
    };
    for (what, from, to) in [
        ("allow list", before.allow.as_ref(), after.allow.as_ref()),
        ("deny list", before.deny.as_ref(), after.deny.as_ref()),
    ] {
        if show(&from) == show(&to) && from != to {
            changes.say(format!("vip {name}: {what}: {}, content changed", show(&to)));
        } else {
            changes.differ(&format!("vip {name}: {what}"), &from, &to, show);
        }
    }
}

/// Compares the remote clusters of a VIP, with the checks of each cluster.
fn in_clusters(changes: &mut Changes, old: &Vip, new: &Vip) {
    let of = |vip: &Vip| -> BTreeMap<String, String> {
        let members = vip.remote_pools.iter().flat_map(|there| &there.pool.members);
        let row = |member: &Member| {
            let checks: Vec<&str> = member.checks.iter().map(|check| &*check.name).collect();
            let way = &member.encapsulation.name;
            let words = format!(
                "{way}, checks {}",
                if checks.is_empty() { "none".to_owned() } else { checks.join(", ") }
            );
            (format!("remote {} at {}", member.backend.name, member.backend.address), words)
        };
        members.map(row).collect()
    };
    let (name, before, after) = (&old.name, of(old), of(new));
    for (what, words) in &before {
        match after.get(what) {
            None => changes.say(format!("vip {name}: {what} removed; its flows continue for the drain time")),
            Some(next) => changes.differ(&format!("vip {name}: {what}"), words, next, String::clone),
        }
    }
    for what in after.keys().filter(|what| !before.contains_key(*what)) {
        changes.say(format!("vip {name}: {what} added"));
    }
}

fn pools(changes: &mut Changes, old: &Config, new: &Config) {
    for pool in old.pools() {
        match new.pool(&pool.name) {
            None => changes.say(format!("pool {}: removed", pool.name)),
            Some(next) if next != pool => one_pool(changes, pool, next),
            Some(_) => {}
        }
    }
    for pool in new.pools().iter().filter(|pool| old.pool(&pool.name).is_none()) {
        changes.say(format!("pool {}: added, with {}", pool.name, count_of(pool.members.len(), "backend")));
    }
}

fn one_pool(changes: &mut Changes, old: &Pool, new: &Pool) {
    fn members(pool: &Pool) -> BTreeMap<&Arc<str>, &Member> {
        pool.members.iter().map(|member| (&member.backend.name, member)).collect()
    }
    let (before, after) = (members(old), members(new));
    let pool = &old.name;
    for (name, member) in &before {
        let Some(next) = after.get(name) else {
            changes
                .say(format!("pool {pool}: backend {name} removed; its flows continue for the drain time"));
            continue;
        };
        let what = format!("pool {pool}: backend {name}");
        if member != next {
            one_member(changes, old, &what, member, next);
        }
    }
    checks::uses(changes, old, new);
    for (name, member) in after.iter().filter(|(name, _)| !before.contains_key(*name)) {
        changes.say(format!("pool {pool}: backend {name} added, weight {}", member.weight));
    }
    for difference in Keys::of("", &old.without_members()).differing(&Keys::of("", &new.without_members())) {
        changes.say(format!("pool {pool}: {}", difference.sentence()));
    }
}

fn one_member(changes: &mut Changes, pool: &Pool, what: &str, old: &Member, new: &Member) {
    let keys = |member: &Member| {
        Keys::of("", member).filter(|path| match path {
            // `uses` reports changes to these two keys for many backends in one sentence.
            "checks" | "encapsulation" => false,
            "address" => old.leaf == pool.name,
            _ => true,
        })
    };
    for difference in keys(old).differing(&keys(new)) {
        changes.say(format!("{what}: {}", difference.sentence()));
    }
}

/// A pool whose table change moves flows to other backends.
#[derive(Clone, Debug)]
pub struct MovedTable {
    /// The name of the pool.
    pub pool: Arc<str>,
    /// The number of slots in the new table.
    size: u32,
    counted: Result<Disruption, SizesDiffer>,
}

impl MovedTable {
    /// Returns the percentage of table slots that move to another backend. The result is 100 if the
    /// table size changed.
    #[must_use]
    pub fn percent(&self) -> f64 {
        self.counted.map_or(100.0, |counted| f64::from(counted.changed()) * 100.0 / f64::from(self.size))
    }

    /// Describes how many slots move, and why.
    fn sentence(&self) -> String {
        let counted = match &self.counted {
            Ok(counted) => counted,
            Err(sizes) => return format!("pool {}: {sizes}; every flow may move", self.pool),
        };
        let why: Vec<String> = [
            (counted.backend_gone, "because their backend was removed"),
            (counted.backend_new, "to new backends"),
            (counted.weight_changed, "because weights changed"),
            (counted.moved_needlessly, "between unchanged backends because Maglev keeps their shares even"),
        ]
        .into_iter()
        .filter(|(slots, _)| *slots > 0)
        .map(|(slots, why)| format!("{slots} {why}"))
        .collect();
        let (of, share) = (count(self.size, "table slot"), self.percent());
        let pool = &self.pool;
        format!(
            "pool {pool}: {} of {of} move to another backend ({share:.2} %): {}",
            counted.changed(),
            why.join(", ")
        )
    }
}

/// Returns the pools whose table changed. A pool that has several tables with the same change is
/// returned once. Added and removed tables are not returned, because such changes do not move
/// flows.
#[must_use]
pub fn moved_tables(old: &Index, new: &Index) -> Vec<MovedTable> {
    let mut seen = BTreeSet::new();
    let mut moved = Vec::new();
    for (view, after) in new.pools() {
        let before = old.pool(view).or_else(|| old.pool(&PoolView::of_all(&view.pool)));
        let Some((before, from, to)) =
            before.and_then(|before| Some((before, before.table.as_ref()?, after.table.as_ref()?)))
        else {
            continue;
        };
        if Arc::ptr_eq(from, to) || !seen.insert((&before.name, Arc::as_ptr(from), Arc::as_ptr(to))) {
            continue;
        }
        let counted = disruption(from, to);
        if counted.is_ok_and(|counted| counted.changed() == 0) {
            continue;
        }
        moved.push(MovedTable { pool: Arc::clone(&after.name), size: to.size(), counted });
    }
    moved
}

/// The maximum number of prefixes that are reported individually.
const NAMED_PREFIXES: usize = 16;
/// The keys of a VIP whose changes are described by other functions.
const NAMED_APART: [&str; 8] =
    ["addresses", "allow", "announce", "deny", "group", "remote_pools", "services", "suffixes"];
