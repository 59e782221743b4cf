//! Flattens nested pools, so that each pool has a single list of all its backends.
//!
//! Weights are multiplied along each path of nested pools, and the products of all paths are added.
//! Weights are never normalized. A backend keeps the encapsulation of the pool that lists it. In
//! addition to its own checks, a pool inherits the checks of the pools that contain it.
//!
//! Invariant: each pool is flattened once, after all pools inside it, without recursion. This order
//! bounds the cost even for long chains of pools, and for pools with many paths between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use config_text::At;

use super::check::Check;
use super::keyed::{self, RingPorts};
use super::pool::{Backend, Member, Pool, PoolDraft, PoolReference};
use super::sections::Sections;

/// The checks of a pool, by name.
type Checks = BTreeMap<Arc<str>, Arc<Check>>;

/// Members by backend name. The weight of each member fits into `u32`.
type Members = BTreeMap<Arc<str>, Member>;

impl Sections<'_> {
    /// Flattens every pool. Reports cycles, unknown names and weights that are too large.
    pub(super) fn flatten(&self) -> Vec<Arc<Pool>> {
        let mut done: BTreeMap<&str, Members> = BTreeMap::new();
        let mut total = 0_usize;
        let order = self.order();
        let mut checks = self.hand_down(&order);
        for (name, inner) in &order {
            let name = *name;
            let checks: Arc<[_]> = checks.remove(name).unwrap_or_default().into_values().collect();
            let inner = &merged(inner);
            let of = |(pool, _): &Weighted<'_>| done.get(&*pool.value).map_or(0, Members::len);
            total += self.pools[name].backends.len() + inner.iter().map(of).sum::<usize>();
            if total > MAX_MEMBERS {
                let message =
                    format!("all pools together have more than {MAX_MEMBERS} references to backends");
                let help = "a backend is counted once for each reference to a pool that contains it";
                self.report.error(&self.pools[name].place, (message, help));
                return Vec::new();
            }
            done.insert(name, self.members_of(name, inner, &done, &checks));
        }
        let rings = keyed::rings(self);
        done.into_iter().map(|(name, members)| Arc::new(self.pool(name, members, rings.get(name)))).collect()
    }

    /// Builds a pool with the given members.
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

    /// Returns the checks of every pool: its own checks, and the checks of the pools that contain
    /// it. In `order`, each pool comes after its nested pools.
    fn hand_down<'s>(&self, order: &[(&'s str, Vec<&'s PoolReference>)]) -> BTreeMap<&'s str, Checks> {
        let mut all: BTreeMap<&str, Checks> = BTreeMap::new();
        for (name, _) in order {
            all.insert(name, self.own_checks(&self.pools[*name]));
        }
        for (name, inner) in order.iter().rev() {
            let Some(checks) = all.get(name).filter(|checks| !checks.is_empty()) else { continue };
            if checks.len() > MAX_CHECKS {
                let message = format!(
                    "pool \"{name}\" has {} checks, including the checks of pools that contain it",
                    checks.len()
                );
                let help = format!("a backend can have at most {MAX_CHECKS} checks");
                self.report.error(&self.pools[*name].place, (message, help));
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
                None => self.report.unknown(name, self.checks.keys(), "check"),
            }
        }
        checks
    }

    /// Returns the pools in an order in which each pool comes after its nested pools. References to
    /// unknown pools and references that close a cycle are dropped.
    fn order(&self) -> Vec<(&str, Vec<&PoolReference>)> {
        let mut ordered = Vec::with_capacity(self.pools.len());
        // Unvisited pools have no entry. The entry is the position of the pool while the pool is
        // on the current path, and `None` when the pool is finished.
        let mut states: BTreeMap<&str, Option<usize>> = BTreeMap::new();
        for (start, draft) in &self.pools {
            if states.contains_key(&**start) {
                continue;
            }
            states.insert(start, Some(0));
            let mut path = vec![Step::new(start, draft)];
            while let Some(step) = path.last_mut() {
                let Some(reference) = step.left.next() else {
                    let Some(step) = path.pop() else { break };
                    states.insert(step.name, None);
                    ordered.push((step.name, step.kept));
                    continue;
                };
                let Some((name, inner)) = self.pools.get_key_value(&reference.pool.value) else {
                    self.report.unknown(&reference.pool, self.pools.keys(), "pool");
                    continue;
                };
                match states.get(&**name) {
                    Some(Some(depth)) => self.cycle(&path[*depth..], reference),
                    Some(None) => step.kept.push(reference),
                    None => {
                        step.kept.push(reference);
                        states.insert(name, Some(path.len()));
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
        inner: &[Weighted<'_>],
        done: &BTreeMap<&str, Members>,
        checks: &Arc<[Arc<Check>]>,
    ) -> Members {
        let draft = &self.pools[name];
        let mut members = self.own_members(name, draft, checks);
        for (pool, factor) in inner {
            let Some(theirs) = done.get(&*pool.value) else { continue };
            for member in theirs.values() {
                let weight = u64::from(member.weight) * factor;
                let known = members.get(&member.backend.name);
                if let Some(other) = known.filter(|other| other.encapsulation != member.encapsulation) {
                    self.two_encapsulations(draft, other, member);
                    continue;
                }
                let sum = weight + known.map_or(0, |other| u64::from(other.weight));
                let weight = u32::try_from(sum).unwrap_or_else(|_| {
                    let message = format!("the total weight of backend \"{}\" is {sum}", member.backend.name);
                    let help = format!("reduce weights until the sum is at most {}", u32::MAX);
                    self.report.error(&pool.place, (message, help));
                    u32::MAX
                });
                // The checks are taken from the pool that lists the backend directly. If only one
                // pool lists a backend, the backend therefore has the same health state in all
                // pools.
                let first = known.filter(|other| other.leaf <= member.leaf).unwrap_or(member);
                let member = Member { weight, ..first.clone() };
                members.insert(Arc::clone(&member.backend.name), member);
            }
        }
        members
    }

    /// Returns the backends that the pool lists directly. Reports a backend that is listed twice.
    fn own_members(&self, name: &str, draft: &PoolDraft, checks: &Arc<[Arc<Check>]>) -> Members {
        let mut members = Members::new();
        let leaf: Arc<str> = name.into();
        let named = draft.encapsulation.as_ref();
        if let Some(name) = named.filter(|name| !self.encapsulations.contains_key(&name.value)) {
            self.report.unknown(name, self.encapsulations.keys(), "encapsulation");
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
                let message = format!("backend \"{}\" is listed twice in this pool", backend.name.value);
                self.report.error(&backend.name.place, (message, "use weight to give it more traffic"));
            }
        }
        members
    }

    /// Reports a reference from the last pool of a path to the first.
    fn cycle(&self, path: &[Step<'_>], reference: &PoolReference) {
        let target = &*reference.pool.value;
        let message = if path.len() <= 32 {
            let ring: Vec<&str> = path.iter().map(|step| step.name).chain([target]).collect();
            format!("pools contain each other in a cycle, {}", ring.join(" -> "))
        } else {
            format!("{} pools contain each other in a cycle through pool \"{target}\"", path.len())
        };
        self.report.error(&reference.pool.place, (message, "remove one of these references"));
    }

    fn two_encapsulations(&self, draft: &PoolDraft, one: &Member, other: &Member) {
        let message = format!(
            "backend \"{}\" has two encapsulations, \"{}\" in pool \"{}\" and \"{}\" in pool \"{}\"",
            one.backend.name, &one.encapsulation.name, one.leaf, &other.encapsulation.name, other.leaf
        );
        self.report.error(
            &draft.place,
            (message, "a pool can use only one encapsulation for a backend; use the same encapsulation in both pools"),
        );
    }
}

/// A nested pool, and the sum of the weights in all references to this pool.
type Weighted<'d> = (&'d At<Arc<str>>, u64);

/// Combines the references to the same pool, so that the members of the pool are read only once.
/// The position of the last reference is kept, because the sum of the weights is complete there.
fn merged<'d>(references: &[&'d PoolReference]) -> Vec<Weighted<'d>> {
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut all: Vec<Weighted<'d>> = Vec::with_capacity(references.len());
    for reference in references {
        let number = *numbers.entry(&reference.pool.value).or_insert(all.len());
        let weight = u64::from(reference.weight);
        match all.get_mut(number) {
            Some((pool, sum)) => (*pool, *sum) = (&reference.pool, *sum + weight),
            None => all.push((&reference.pool, weight)),
        }
    }
    all
}

/// A pool on the current search path, with its unvisited references and its valid references.
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

/// The maximum number of checks for a pool, including inherited checks.
const MAX_CHECKS: usize = 64;
const MAX_MEMBERS: usize = 1 << 22;
