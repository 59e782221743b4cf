//! The controller combines configuration, health states and overrides into snapshots. Health states
//! and overrides apply to pool members. A pool member is one backend in one leaf pool.
//!
//! A state change produces a new snapshot immediately. If Maglev tables must be rebuilt, the
//! controller creates a [`Job`] that runs on another thread. The controller does not access sockets
//! or files, and its caller publishes the snapshots. Invariant: a health state change copies one
//! byte per slot, regardless of how many pools contain the backend. The tables are rebuilt later.

mod advice;
mod changes;
mod emptied;
mod fallback;
mod leaving;
mod plan;
mod rejoin;
mod slow_start;

use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use forwarder::{Generation, Service, SlotId, SlotState, Snapshot};

pub use self::changes::{Changes, MovedTable, Running, Side, Version, changes, moved_tables};

use self::fallback::{Fallbacks, Rule};
pub use self::plan::HeldPool;
pub use self::rejoin::Flushing;

use self::plan::Plan;
use self::rejoin::Rejoins;
use self::slow_start::SlowStart;
use compile::{
    CompileError, CompileInput, Compiled, Compiler, Index, Membership, Override, OverrideKey, RuntimeState,
    SlotKey, find_machine,
};
use config::Config;
use health::{Advice, HealthState, TargetKey, Watched};

/// Maintains the configuration, runtime state and compiler of one machine.
#[derive(Debug)]
pub struct Controller {
    machine: String,
    config: Arc<Config>,
    generation: Generation,
    index: Arc<Index>,
    plan: Arc<Plan>,
    runtime_state: RuntimeState,
    results: HashMap<TargetKey, HealthState>,
    /// The last advice of each agent.
    advice: HashMap<TargetKey, Advice>,
    fallbacks: Fallbacks,
    slow_start: SlowStart,
    rejoins: Rejoins,
    /// The compiler. The value is `None` while a job uses the compiler.
    compiler: Option<Compiler>,
    /// `true` if the Maglev tables are outdated, because they were built with other states or
    /// weights.
    stale: bool,
}

/// The backends, pools and VIPs that one health check target affects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affected {
    /// The names of the backends. A check of one address affects several backends if they share the
    /// address.
    pub backends: BTreeSet<Arc<str>>,
    /// The leaf pools of the backends.
    pub pools: BTreeSet<Arc<str>>,
    /// The VIPs that use the pools. The set is truncated at 64 names.
    pub vips: BTreeSet<Arc<str>>,
}

/// A compilation that runs on another thread.
#[derive(Debug)]
pub struct Job {
    machine: String,
    config: Arc<Config>,
    generation: Generation,
    compiler: Compiler,
    runtime_state: RuntimeState,
    results: HashMap<TargetKey, HealthState>,
    known: Known,
    next_hops: Arc<next_hop::Table>,
    states: Vec<SlotState>,
    now: Duration,
    /// `true` if the Maglev tables were stale when the job started and the job compiles a different
    /// configuration. If the job fails, the tables are still stale.
    leaves_stale: bool,
}

/// The finished job. The caller passes the job to [`Controller::finish`].
#[derive(Debug)]
pub struct Done {
    config: Arc<Config>,
    generation: Generation,
    compiler: Compiler,
    next_hops: Arc<next_hop::Table>,
    leaves_stale: bool,
    result: Result<(Compiled, Plan), CompileError>,
}

impl Done {
    /// Returns the next hops with which the snapshot was compiled.
    #[must_use]
    pub fn next_hops(&self) -> &Arc<next_hop::Table> {
        &self.next_hops
    }

    /// Returns the error of the job, if it failed. [`Controller::finish`] returns the same error.
    #[must_use]
    pub fn error(&self) -> Option<&CompileError> {
        self.result.as_ref().err()
    }
}

impl Job {
    /// Compiles the tables and the snapshot.
    ///
    /// # Cost
    /// Same as [`Compiler::compile`].
    #[must_use]
    pub fn run(mut self) -> Done {
        let result = self.compile();
        let Self { config, generation, compiler, next_hops, leaves_stale, .. } = self;
        Done { config, generation, compiler, next_hops, leaves_stale, result }
    }

    fn compile(&mut self) -> Result<(Compiled, Plan), CompileError> {
        let machine = find_machine(&self.config, &self.machine)?;
        let mut plan = Plan::new(&self.config, machine);
        plan.follow_leaving(&self.known.plan, self.compiler.draining(), &self.config, machine);
        self.known.judge(&plan, &self.results, &mut self.runtime_state);
        let input = CompileInput {
            generation: self.generation,
            machine: &self.machine,
            next_hops: &self.next_hops,
            runtime_state: &self.runtime_state,
            states: &self.states,
            now: self.now,
        };
        let compiled = self.compiler.compile(&self.config, input)?;
        plan.follow_leaving(&self.known.plan, self.compiler.draining(), &self.config, machine);
        Ok((compiled, plan))
    }
}

impl Controller {
    /// Compiles the first configuration. A pool member with checks has an unknown health state
    /// until each of its checks has a result.
    pub fn start(
        config: Arc<Config>,
        machine: &str,
        next_hops: Arc<next_hop::Table>,
        now: Duration,
    ) -> Result<(Self, Snapshot), CompileError> {
        Self::start_by(Compiler::default(), config, machine, next_hops, now)
    }

    /// Compiles the first configuration with `compiler`, which contains the slot and service IDs of
    /// the previous process.
    pub fn start_by(
        compiler: Compiler,
        config: Arc<Config>,
        machine: &str,
        next_hops: Arc<next_hop::Table>,
        now: Duration,
    ) -> Result<(Self, Snapshot), CompileError> {
        let mut controller = Self {
            machine: machine.to_owned(),
            config: Arc::clone(&config),
            generation: Generation(0),
            index: Arc::default(),
            plan: Arc::default(),
            runtime_state: RuntimeState::default(),
            results: HashMap::new(),
            fallbacks: Fallbacks::default(),
            slow_start: SlowStart::default(),
            advice: HashMap::new(),
            rejoins: Rejoins::default(),
            compiler: Some(compiler),
            stale: false,
        };
        let job = controller.job(Some(config), next_hops, Vec::new(), now);
        // `job` does not return `None`, because the compiler is not in use.
        let Some(job) = job else { return Err(CompileError::TooMany) };
        let snapshot = controller.finish(job.run(), now)?;
        Ok((controller, snapshot))
    }

    /// Returns the current configuration.
    #[must_use]
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Returns the generation number of the current configuration.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the name of this machine.
    #[must_use]
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// Returns the index of the current configuration, which maps pool members to slots and slots
    /// to pool members.
    #[must_use]
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// Returns the runtime state: health states, overrides and slow start.
    #[must_use]
    pub fn runtime_state(&self) -> &RuntimeState {
        &self.runtime_state
    }

    /// Returns the compiler, or `None` while a job uses it. During a handover, the new process
    /// needs the slot and service IDs of the compiler.
    #[must_use]
    pub fn compiler(&self) -> Option<&Compiler> {
        self.compiler.as_ref()
    }

    /// Returns the most recent result of each health check target.
    pub fn results(&self) -> impl Iterator<Item = (&TargetKey, HealthState)> {
        self.results.iter().map(|(target, state)| (target, *state))
    }

    /// Returns the health check targets that determine the health state of a pool member.
    #[must_use]
    pub fn targets_of(&self, key: &SlotKey) -> &[TargetKey] {
        self.plan.targets_of(key)
    }

    /// Returns the backends, pools and VIPs that are affected by the health state of `target`.
    #[must_use]
    pub fn affected(&self, target: &TargetKey) -> Affected {
        let mut affected = Affected::default();
        for key in self.plan.memberships_of(target) {
            affected.backends.insert(Arc::clone(&key.backend));
            affected.pools.insert(Arc::clone(&key.pool));
            let removed = std::slice::from_ref(&key.pool);
            let within = self.index.membership(key).map_or(removed, |membership| &membership.pools);
            // The log names only three VIPs. The limit saves work in large configurations.
            let all = within.iter().flat_map(|pool| self.plan.vips_of(pool)).take(VIPS_NAMED);
            match &key.vip {
                Some(at) => _ = affected.vips.insert(Arc::clone(&at.vip)),
                None => affected.vips.extend(all.cloned()),
            }
        }
        affected
    }

    /// Returns all health check targets with the data that the checker needs.
    #[must_use]
    pub fn watched(&self) -> Vec<Watched> {
        self.plan.watched(&self.index, &self.runtime_state)
    }

    /// Returns the number of pool members with an unknown health state because a check has no
    /// result yet.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.plan.checked().filter(|key| self.runtime_state.health(key) == HealthState::Unknown).count()
    }

    /// Returns `true` if Maglev tables must be rebuilt and no job is running.
    #[must_use]
    pub fn wants_job(&self) -> bool {
        self.stale && self.compiler.is_some()
    }

    /// Returns `true` while a job is running.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.compiler.is_none()
    }

    /// Creates a job that compiles `config`. If `config` is `None`, the job rebuilds the tables of
    /// the current configuration. `states` contains the slot states of the current snapshot.
    /// Returns `None` if another job is running.
    pub fn job(
        &mut self,
        config: Option<Arc<Config>>,
        next_hops: Arc<next_hop::Table>,
        states: Vec<SlotState>,
        now: Duration,
    ) -> Option<Job> {
        let compiler = self.compiler.take()?;
        let leaves_stale = std::mem::take(&mut self.stale) && config.is_some();
        let generation = Generation(self.generation.0 + u64::from(config.is_some()));
        Some(Job {
            machine: self.machine.clone(),
            config: config.unwrap_or_else(|| Arc::clone(&self.config)),
            generation,
            compiler,
            runtime_state: self.runtime_state.clone(),
            results: self.results.clone(),
            known: self.known(),
            next_hops,
            states,
            now,
            leaves_stale,
        })
    }

    /// Applies the result of a job. Returns the snapshot to publish, which contains the current
    /// states.
    ///
    /// # Errors
    /// Returns the [`CompileError`] of the job. The configuration and the index are then unchanged.
    pub fn finish(&mut self, done: Done, now: Duration) -> Result<Snapshot, CompileError> {
        self.compiler = Some(done.compiler);
        let (compiled, plan) = done.result.inspect_err(|_| self.stale |= done.leaves_stale)?;
        let unavailable = self.known().judge(&plan, &self.results, &mut self.runtime_state);
        (self.config, self.generation) = (done.config, done.generation);
        (self.index, self.plan) = (Arc::new(compiled.index), Arc::new(plan));
        self.results.retain(|target, _| !self.plan.memberships_of(target).is_empty());
        self.advice.retain(|target, _| !self.plan.memberships_of(target).is_empty());
        self.follow_advice();
        self.fallbacks.retain(|pool| self.index.has_fallback(pool));
        self.keep_overrides_of_memberships();
        self.follow_absence(unavailable);
        let states =
            self.compiler.as_ref().map(|compiler| compiler.states(&self.runtime_state)).unwrap_or_default();
        // The tables in the snapshot do not contain state changes since the job was created.
        self.stale |= states != compiled.snapshot.states();
        self.slow_start.settled |= self.unknown() == 0;
        self.state_again(&compiled.snapshot, states, now)
    }

    /// Applies new results of health checks. Returns the snapshot to publish, or `None` if no slot
    /// state and no fallback changed.
    ///
    /// # Errors
    /// Returns [`CompileError::Snapshot`] if `current` is not derived from the last snapshot that
    /// [`Controller::finish`] returned.
    pub fn health_states(
        &mut self,
        changed: &[(TargetKey, HealthState)],
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, CompileError> {
        let mut asked = Vec::new();
        for (target, state) in changed {
            let keys = self.plan.memberships_of(target);
            if keys.is_empty() {
                continue; // A reload removed the target before the result arrived.
            }
            self.results.insert(target.clone(), *state);
            asked.extend(keys);
        }
        let before = |key: &SlotKey| self.runtime_state.health(key);
        let judged = self.plan.judge_with_others(asked, &self.results, before);
        let changed = |(key, after): (&SlotKey, _)| (key.clone(), before(key), after);
        let mut touched: Vec<_> = judged.into_iter().map(changed).collect();
        touched.retain(|(_, before, after)| before != after);
        for (key, before, after) in &touched {
            self.runtime_state.health.insert(key.clone(), *after);
            if *after == HealthState::Up && (*before == HealthState::Down || self.slow_start.settled) {
                self.start_slowly(key, now);
            }
        }
        self.slow_start.settled = self.slow_start.settled || self.unknown() == 0;
        self.restate(touched.iter().map(|(key, ..)| key), current, now)
    }

    /// Sets overrides. An empty override deletes the existing override. Returns the snapshot to
    /// publish, or `None` if no slot state and no fallback changed.
    ///
    /// # Errors
    /// Returns [`CompileError::Snapshot`] if `current` is not derived from the last snapshot that
    /// [`Controller::finish`] returned.
    pub fn override_backends(
        &mut self,
        says: Vec<(OverrideKey, Override)>,
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, CompileError> {
        let keys: HashSet<&OverrideKey> = says.iter().map(|(key, _)| key).collect();
        let is_meant = |key: &&SlotKey| OverrideKey::of(key).iter().any(|key| keys.contains(key));
        let members = self.index.backends().map(|found| &found.key);
        let meant: BTreeSet<SlotKey> = members.filter(is_meant).cloned().collect();
        self.stale |= !says.is_empty();
        for (backend, says) in says {
            match says == Override::default() {
                true => self.runtime_state.overrides.remove(&backend),
                false => self.runtime_state.overrides.insert(backend, says),
            };
        }
        self.restate(meant.iter(), current, now)
    }

    /// Returns the keys of all overrides that apply to at least one pool member.
    pub(crate) fn override_keys(&self) -> HashSet<OverrideKey> {
        self.index.backends().flat_map(|found| OverrideKey::of(&found.key)).collect()
    }

    /// Returns the pool members to which an override applies.
    pub fn memberships_of(&self, wanted: &OverrideKey) -> impl Iterator<Item = &Membership> {
        let meant = |found: &&Membership| {
            let is_in_pool = wanted.pool.as_ref().is_none_or(|pool| *pool == found.key.pool);
            found.key.backend == wanted.backend && is_in_pool
        };
        self.index.backends().filter(meant)
    }

    /// Applies changes that depend only on time, which are ended drains, fallbacks whose hold time
    /// has passed, and the steps of slow start. Returns the snapshot to publish, or `None` if it
    /// does not change.
    ///
    /// # Errors
    /// Returns [`CompileError::Snapshot`] if `current` is not derived from the last snapshot that
    /// [`Controller::finish`] returned.
    pub fn tick(&mut self, current: &Snapshot, now: Duration) -> Result<Option<Snapshot>, CompileError> {
        let quarters = self.quarters(now);
        self.stale |= quarters != self.runtime_state.quarters;
        self.runtime_state.quarters = quarters;
        let Some(compiler) = self.compiler.as_mut() else { return Ok(None) };
        let ended = compiler.end_draining(&self.config, current.services(), &self.index, now);
        let has_ended = ended.is_some();
        let states = match ended {
            Some(index) => {
                self.index = Arc::new(index);
                let states = compiler.states(&self.runtime_state);
                self.end_leaving();
                states
            }
            None if self.fallbacks.is_waiting() => current.states().to_vec(),
            None => return Ok(None),
        };
        let before = self.runtime_state.fallbacks.clone();
        let next = self.state_again(current, states, now)?;
        Ok((has_ended || before != self.runtime_state.fallbacks).then_some(next))
    }

    /// Recomputes the slot states of `keys`. Returns the snapshot to publish, or `None` if no slot
    /// state and no fallback changed.
    fn restate<'a>(
        &mut self,
        keys: impl Iterator<Item = &'a SlotKey>,
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, CompileError> {
        let keys: Vec<&SlotKey> = keys.collect();
        self.note_absence(&keys);
        let mut states = current.states().to_vec();
        let (mut changed, is_touched) = (false, !keys.is_empty());
        for (slot, state) in keys.into_iter().filter_map(|key| self.slot_state(key)) {
            let Some(place) = states.get_mut(slot.0 as usize) else { continue };
            changed |= *place != state;
            *place = state;
        }
        // A first result of `Down` does not change the slot state, which was `Down` before, but can
        // activate a fallback, and can begin to reject packets.
        let has_effect = self.index.with_fallback().next().is_some() || self.index.rejects_no_backend();
        if !(changed || is_touched && has_effect) {
            return Ok(None);
        }
        self.stale |= changed;
        let before = self.runtime_state.fallbacks.clone();
        let next = self.state_again(current, states, now)?;
        let mut rejects = next.services().iter().zip(current.services());
        let changed = changed
            || before != self.runtime_state.fallbacks
            || rejects.any(|(next, current)| next.rejects != current.rejects);
        Ok(changed.then_some(next))
    }

    /// Returns a copy of the snapshot `base` in which the slots have the states `states`. In the
    /// copy, each service uses its configured pool or the fallback pool that currently replaces it,
    /// and excludes draining slots if it moves its flows.
    fn state_again(
        &mut self,
        base: &Snapshot,
        states: Vec<SlotState>,
        now: Duration,
    ) -> Result<Snapshot, CompileError> {
        for (view, pool, fallback) in self.index.with_fallback() {
            // A fallback is activated only after all backends of the pool have their first check
            // results.
            if pool.slots.iter().any(|slot| self.is_unknown(*slot)) && !self.fallbacks.is_called(view) {
                continue;
            }
            let rule = Rule { below: fallback.below, hold: fallback.hold };
            self.fallbacks.observe(view, rule, Index::serving(pool, &states), now);
        }
        self.runtime_state.fallbacks = self.fallbacks.called();
        self.slow_start.retain(|key| self.runtime_state.state(key) != SlotState::Down);
        let mut services = base.services().to_vec();
        self.index.lead(&mut services, &self.runtime_state, &states);
        let is_same = |a: &Service, b: &Service| {
            Arc::ptr_eq(&a.pool, &b.pool) && a.excluded_slots == b.excluded_slots && a.rejects == b.rejects
        };
        let same = services.iter().zip(base.services()).all(|(a, b)| is_same(a, b));
        let next = base.with_states(states)?;
        Ok(if same { next } else { next.with_services(services)? })
    }

    fn known(&self) -> Known {
        let unavailable = self.rejoins.unavailable.clone();
        Known { index: Arc::clone(&self.index), plan: Arc::clone(&self.plan), unavailable }
    }

    /// Returns the pools in which more backends fail than `max_down` allows. Backends of these
    /// pools keep their previous health states.
    #[must_use]
    pub fn held_pools(&self) -> Vec<HeldPool> {
        self.plan.held(&self.results)
    }

    fn is_unknown(&self, slot: SlotId) -> bool {
        let key = self.index.of_slot(slot).map(|membership| &membership.key);
        key.is_some_and(|key| self.runtime_state.health(key) == HealthState::Unknown)
    }

    fn start_slowly(&mut self, key: &SlotKey, now: Duration) {
        let Some(membership) = self.index.membership(key) else { return };
        let times = membership.pools.iter().chain([&key.pool]);
        let over = times.filter_map(|pool| self.config.pool(pool)?.slow_start).max();
        if let Some(over) = over {
            self.slow_start.begin(key.clone(), now, over);
            self.runtime_state.quarters = self.quarters(now);
        }
    }

    /// Returns the weights of the memberships in slow start. A drained membership pauses.
    fn quarters(&mut self, now: Duration) -> HashMap<SlotKey, u8> {
        let runtime_state = &self.runtime_state;
        self.slow_start.quarters(now, |key| runtime_state.state(key) == SlotState::Serving)
    }

    /// Deletes the overrides of backends that a reload removed. Otherwise the overrides would apply
    /// to a backend that is added later with the same name.
    fn keep_overrides_of_memberships(&mut self) {
        let known = self.override_keys();
        self.runtime_state.overrides.retain(|key, _| known.contains(key));
    }
}

/// State of the current generation from which the next generation is computed.
#[derive(Clone, Debug)]
struct Known {
    index: Arc<Index>,
    plan: Arc<Plan>,
    unavailable: HashSet<SlotKey>,
}

impl Known {
    /// Computes the health state of all pool members in `plan`. A pool member that had no check
    /// before is treated as if its last health state had been up. Returns the pool members whose
    /// servers must be flushed before they receive requests.
    fn judge(
        &self,
        plan: &Plan,
        results: &HashMap<TargetKey, HealthState>,
        runtime_state: &mut RuntimeState,
    ) -> HashSet<SlotKey> {
        let apart = LazyCell::new(|| self.apart(runtime_state));
        let before = |key: &SlotKey| match (runtime_state.health.get(key), &key.vip) {
            (Some(before), _) => *before,
            (None, _) if self.index.membership(key).is_some() => HealthState::Up,
            // The reload added checks through VIPs. The pool member keeps its previous state for
            // the VIPs that already used it.
            (None, Some(at)) => {
                let whole = key.membership();
                let found = self.index.membership(&whole);
                let served = found.is_some_and(|found| self.plan.leads(&at.vip, &found.pools));
                if served { runtime_state.health(&whole) } else { HealthState::Unknown }
            }
            // The reload removed checks through VIPs.
            (None, None) if apart.contains(key) => HealthState::Up,
            (None, None) => HealthState::Unknown,
        };
        let judged = plan.judge(plan.checked(), results, before);
        runtime_state.health = judged.into_iter().map(|(key, state)| (key.clone(), state)).collect();
        let unavailable = self.unavailable_in(plan, runtime_state);
        runtime_state.flushing = plan.flushing(&unavailable, runtime_state);
        unavailable
    }

    /// Returns the pool members that passed the checks through at least one VIP.
    fn apart(&self, runtime_state: &RuntimeState) -> HashSet<SlotKey> {
        let keys = self.index.memberships().iter().map(|found| &found.key);
        let up = |key: &&SlotKey| key.vip.is_some() && runtime_state.health(key) == HealthState::Up;
        keys.filter(up).map(SlotKey::membership).collect()
    }
}

const VIPS_NAMED: usize = 64;
