//! Pools inside pools become one list of backends for each pool.
//!
//! In: the drafts. Out: [`Pool`]s in the order of their names. Weights multiply along a path and add over
//! paths; they are never normalised. A member keeps the encapsulation of the pool that lists it.
//! Checks are handed down to the pools inside, on top of their own.
//! Not here: the Maglev table (`maglev-hash`), when a fallback takes over.
//! Invariant: each pool is flattened once, after all pools inside it, without recursion, so neither a long
//! chain nor a lattice of pools costs more than its edges times its members.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::check::Check;
use super::keyed::{self, RingPorts};
use super::pool::{Backend, Member, Pool, PoolDraft, PoolReference};
use super::sections::Sections;

/// The checks that hold for a pool, in the order of their names.
type Checks = BTreeMap<Arc<str>, Arc<Check>>;

/// Members by the name of the backend, with weights that fit `u32`.
type Members = BTreeMap<Arc<str>, Member>;

impl Sections<'_> {
    /// Flattens every pool; cycles, unknown names and weights that are too large are reported.
    pub(super) fn flatten(&self) -> Vec<Arc<Pool>> {
        let mut done: BTreeMap<&str, Members> = BTreeMap::new();
        let mut total = 0_usize;
        let order = self.order();
        let mut checks = self.hand_down(&order);
        for (name, inner) in &order {
            let name = *name;
            let checks: Arc<[_]> = checks.remove(name).unwrap_or_default().into_values().collect();
            let members = self.members_of(name, inner, &done, &checks);
            total = total.saturating_add(members.len());
            if total > MAX_MEMBERS {
                let found = format!("over {MAX_MEMBERS} backends in all flattened pools together");
                self.report.error(&self.pools[name].place, found, format!("at most {MAX_MEMBERS}"));
                return Vec::new();
            }
            done.insert(name, members);
        }
        let rings = keyed::rings(self);
        done.into_iter().map(|(name, members)| Arc::new(self.pool(name, members, rings.get(name)))).collect()
    }

    /// A pool with these members.
    fn pool(&self, name: &str, members: Members, ring: Option<&RingPorts>) -> Pool {
        let draft = &self.pools[name];
        let max_down = draft.max_down.as_ref().map(|percent| percent.value);
        Pool {
            name: name.into(),
            shard: draft.shard().cloned(),
            members: keyed::name_on_ring(self, name, members.into_values().collect(), ring),
            fallback: draft.fallback.as_ref().map(|fallback| fallback.value.clone()),
            slow_start: draft.slow_start.as_ref().map(|span| span.value),
            max_down: max_down.filter(|percent| *percent < 100),
            kv: draft.kv.as_ref().and_then(|kv| kv.value.clone()),
        }
    }

    /// The checks of every pool: its own, and those of the pools around it, which come after it in `order`.
    fn hand_down<'s>(&self, order: &[(&'s str, Vec<&'s PoolReference>)]) -> BTreeMap<&'s str, Checks> {
        let mut all: BTreeMap<&str, Checks> = BTreeMap::new();
        for (name, _) in order {
            all.insert(name, self.own_checks(&self.pools[*name]));
        }
        for (name, inner) in order.iter().rev() {
            let Some(checks) = all.get(name).filter(|checks| !checks.is_empty()) else { continue };
            if checks.len() > MAX_CHECKS {
                let found = format!("{} checks, with those of the pools around it", checks.len());
                self.report.error(&self.pools[*name].place, found, format!("at most {MAX_CHECKS}"));
                return BTreeMap::new();
            }
            let checks = checks.clone();
            for reference in inner {
                if let Some(theirs) = all.get_mut(&*reference.pool.value) {
                    theirs.extend(checks.clone());
                }
            }
        }
        all
    }

    fn own_checks(&self, draft: &PoolDraft) -> Checks {
        let mut checks = Checks::new();
        for name in &draft.checks {
            match self.checks.get(&name.value) {
                Some(known) => {
                    checks.extend(known.value.clone().map(|check| (Arc::clone(&check.name), check)))
                }
                None => self.report.unknown(name, self.checks.keys(), "a section [check.NAME]"),
            }
        }
        checks
    }

    /// Every pool after the pools inside it, with those of its references that lead somewhere and close
    /// no cycle.
    fn order(&self) -> Vec<(&str, Vec<&PoolReference>)> {
        let mut ordered = Vec::with_capacity(self.pools.len());
        let mut states: BTreeMap<&str, bool> = BTreeMap::new(); // present: seen; true: finished
        for (start, draft) in &self.pools {
            if states.contains_key(&**start) {
                continue;
            }
            states.insert(start, false);
            let mut path = vec![Step::new(start, draft)];
            while let Some(step) = path.last_mut() {
                let Some(reference) = step.left.next() else {
                    let Some(step) = path.pop() else { break };
                    states.insert(step.name, true);
                    ordered.push((step.name, step.kept));
                    continue;
                };
                let Some((name, inner)) = self.pools.get_key_value(&reference.pool.value) else {
                    self.report.unknown(&reference.pool, self.pools.keys(), "a section [pool.NAME]");
                    continue;
                };
                match states.get(&**name) {
                    Some(false) => self.cycle(&path, reference),
                    Some(true) => step.kept.push(reference),
                    None => {
                        step.kept.push(reference);
                        states.insert(name, false);
                        path.push(Step::new(name, inner));
                    }
                }
            }
        }
        ordered
    }

    fn members_of(
        &self,
        name: &str,
        inner: &[&PoolReference],
        done: &BTreeMap<&str, Members>,
        checks: &Arc<[Arc<Check>]>,
    ) -> Members {
        let draft = &self.pools[name];
        let mut members = self.own_members(name, draft, checks);
        for reference in inner {
            let Some(theirs) = done.get(&*reference.pool.value) else { continue };
            for member in theirs.values() {
                let weight = u64::from(member.weight) * u64::from(reference.weight);
                let known = members.get(&member.backend.name);
                if let Some(other) = known.filter(|other| other.encapsulation != member.encapsulation) {
                    self.two_encapsulations(draft, other, member);
                    continue;
                }
                let sum = weight + known.map_or(0, |other| u64::from(other.weight));
                let weight = u32::try_from(sum).unwrap_or_else(|_| {
                    let found = format!("a weight of {sum} for backend \"{}\"", member.backend.name);
                    self.report.error(&reference.pool.place, found, format!("at most {}", u32::MAX));
                    u32::MAX
                });
                // With the leaf come its checks: a membership has one state, wherever it stands.
                let first = known.filter(|other| other.leaf <= member.leaf).unwrap_or(member);
                let member = Member { weight, ..first.clone() };
                members.insert(Arc::clone(&member.backend.name), member);
            }
        }
        members
    }

    /// The backends that the pool itself lists; one listed twice is reported.
    fn own_members(&self, name: &str, draft: &PoolDraft, checks: &Arc<[Arc<Check>]>) -> Members {
        let mut members = Members::new();
        let leaf: Arc<str> = name.into();
        let named = draft.encapsulation.as_ref();
        if let Some(name) = named.filter(|name| !self.encapsulations.contains_key(&name.value)) {
            let allowed = "a section [encapsulation.NAME] or one of gre, ipip, gue, l2";
            self.report.unknown(name, self.encapsulations.keys(), allowed);
        }
        let Some(encapsulation) = self.encapsulation(named) else { return members };
        for backend in &draft.backends {
            let key = Arc::clone(&backend.name.value);
            let shared = Arc::new(Backend { name: Arc::clone(&key), address: backend.address.value });
            let member = Member {
                backend: shared,
                leaf: Arc::clone(&leaf),
                encapsulation: Arc::clone(encapsulation),
                ring_name: backend.ring_name.clone(),
                weight: backend.weight,
                checks: Arc::clone(checks),
            };
            if members.insert(key, member).is_some() {
                let found = format!("backend \"{}\" a second time", backend.name.value);
                self.report.error(&backend.name.place, found, "each backend once in a pool");
            }
        }
        members
    }

    fn cycle(&self, path: &[Step<'_>], reference: &PoolReference) {
        let target = &*reference.pool.value;
        let ring = path.iter().map(|step| step.name).skip_while(|name| *name != target);
        let ring: Vec<&str> = ring.chain([target]).collect();
        let found = if ring.len() <= 33 {
            format!("the cycle {}", ring.join(" -> "))
        } else {
            format!("a cycle of {} pools through {target}", ring.len() - 1)
        };
        self.report.error(&reference.pool.place, found, "pools that do not contain themselves");
    }

    fn two_encapsulations(&self, draft: &PoolDraft, one: &Member, other: &Member) {
        let found = format!(
            "backend \"{}\" by encapsulation \"{}\" in pool \"{}\" and by \"{}\" in pool \"{}\"",
            one.backend.name, &one.encapsulation.name, one.leaf, &other.encapsulation.name, other.leaf
        );
        self.report.error(&draft.place, found, "one encapsulation for a backend within a pool");
    }
}

/// A pool on the way down: the references still to follow, and those that hold.
struct Step<'d> {
    name: &'d str,
    left: std::slice::Iter<'d, PoolReference>,
    kept: Vec<&'d PoolReference>,
}

impl<'d> Step<'d> {
    fn new(name: &'d str, draft: &'d PoolDraft) -> Self {
        Self { name, left: draft.pools.iter(), kept: Vec::new() }
    }
}

/// More checks of one backend than an operator keeps track of; it bounds what pools inherit.
const MAX_CHECKS: usize = 64;
const MAX_MEMBERS: usize = 1 << 22;
