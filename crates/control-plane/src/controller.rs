//! The controller: what is configured, what is healthy and what operators say, made one.
//!
//! In: configurations, verdicts of checks, operators' orders, the time. Out: snapshots to publish, at once where a state
//! changed; and [`Job`]s for another thread, where tables have to be built.
//! Not here: sockets, files, the XDP filter, publishing.
//! Invariant: a verdict costs a byte a slot, whatever the number of pools; tables follow.

mod changes;
mod emptied;
mod fallback;
mod plan;
mod rejoin;
mod slow_start;

use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use forwarder::{Generation, SlotId, SlotState, Snapshot};

pub use self::changes::{Changes, MovedTable, Running, Side, changes, moved_tables};

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
use health::{HealthState, TargetKey, Watched};

/// See the module's header.
#[derive(Debug)]
pub struct Controller {
    machine: String,
    config: Arc<Config>,
    generation: Generation,
    index: Arc<Index>,
    plan: Arc<Plan>,
    runtime_state: RuntimeState,
    results: HashMap<TargetKey, HealthState>,
    fallbacks: Fallbacks,
    slow_start: SlowStart,
    rejoins: Rejoins,
    /// `None`: a job has it.
    compiler: Option<Compiler>,
    /// The tables don't follow the states yet.
    stale: bool,
}

/// Names of those that a verdict is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affected {
    /// Backends: several under one address may share a check.
    pub backends: BTreeSet<Arc<str>>,
    /// Their leaf pools.
    pub pools: BTreeSet<Arc<str>>,
    /// VIPs that lead there; of very many the first.
    pub vips: BTreeSet<Arc<str>>,
}

/// Work for a thread that may take its time.
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
    /// The tables of the configuration in force are not those of its states, and this is not their job.
    leaves_stale: bool,
}

/// A job's outcome, for [`Controller::finish`].
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
    /// The ways to backends that its snapshot has.
    #[must_use]
    pub fn next_hops(&self) -> &Arc<next_hop::Table> {
        &self.next_hops
    }

    /// Why nothing came of it; [`Controller::finish`] gives the same.
    #[must_use]
    pub fn error(&self) -> Option<&CompileError> {
        self.result.as_ref().err()
    }
}

impl Job {
    /// Builds tables and the snapshot.
    ///
    /// # Cost
    /// As [`Compiler::compile`].
    #[must_use]
    pub fn run(mut self) -> Done {
        let result = self.compile();
        let Self { config, generation, compiler, next_hops, leaves_stale, .. } = self;
        Done { config, generation, compiler, next_hops, leaves_stale, result }
    }

    fn compile(&mut self) -> Result<(Compiled, Plan), CompileError> {
        let plan = Plan::new(&self.config, find_machine(&self.config, &self.machine)?);
        self.known.judge(&plan, &self.results, &mut self.runtime_state);
        let input = CompileInput {
            generation: self.generation,
            machine: &self.machine,
            next_hops: &self.next_hops,
            runtime_state: &self.runtime_state,
            states: &self.states,
            now: self.now,
        };
        Ok((self.compiler.compile(&self.config, input)?, plan))
    }
}

impl Controller {
    /// Compiles the first configuration. Memberships with checks are unknown until those have had a result.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn start(
        config: Arc<Config>,
        machine: &str,
        next_hops: Arc<next_hop::Table>,
        now: Duration,
    ) -> Result<(Self, Snapshot), CompileError> {
        Self::start_by(Compiler::default(), config, machine, next_hops, now)
    }

    /// The same by a compiler that goes on with another process's numbers.
    ///
    /// # Errors
    /// [`CompileError`].
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
            rejoins: Rejoins::default(),
            compiler: Some(compiler),
            stale: false,
        };
        let job = controller.job(Some(config), next_hops, Vec::new(), now);
        // The compiler is at home: there is a job.
        let Some(job) = job else { return Err(CompileError::TooMany) };
        let snapshot = controller.finish(job.run(), now)?;
        Ok((controller, snapshot))
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Its number.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The machine's name.
    #[must_use]
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// Who is who in it.
    #[must_use]
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// What stands beside the file.
    #[must_use]
    pub fn runtime_state(&self) -> &RuntimeState {
        &self.runtime_state
    }

    /// The compiler, by whose numbers another process goes on; `None`: a job has it.
    #[must_use]
    pub fn compiler(&self) -> Option<&Compiler> {
        self.compiler.as_ref()
    }

    /// The last verdicts.
    pub fn results(&self) -> impl Iterator<Item = (&TargetKey, HealthState)> {
        self.results.iter().map(|(target, state)| (target, *state))
    }

    /// What a membership's targets are.
    #[must_use]
    pub fn targets_of(&self, key: &SlotKey) -> &[TargetKey] {
        self.plan.targets_of(key)
    }

    /// The backends, pools and VIPs that a target's verdict is for.
    #[must_use]
    pub fn affected(&self, target: &TargetKey) -> Affected {
        let mut affected = Affected::default();
        for key in self.plan.memberships_of(target) {
            affected.backends.insert(Arc::clone(&key.backend));
            affected.pools.insert(Arc::clone(&key.pool));
            let within = self.index.membership(key).map_or(&[][..], |membership| &membership.pools);
            // In the log three are named, and more would be counted for nothing.
            let all = within.iter().flat_map(|pool| self.plan.vips_of(pool)).take(VIPS_NAMED);
            match &key.vip {
                Some(at) => _ = affected.vips.insert(Arc::clone(&at.vip)),
                None => affected.vips.extend(all.cloned()),
            }
        }
        affected
    }

    /// Everything that must be checked.
    #[must_use]
    pub fn watched(&self) -> Vec<Watched> {
        self.plan.watched(&self.index, &self.runtime_state)
    }

    /// Memberships of which not all checks have had a first result.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.plan.checked().filter(|key| self.runtime_state.health(key) == HealthState::Unknown).count()
    }

    /// Whether tables wait to be built, and a job may do it.
    #[must_use]
    pub fn wants_job(&self) -> bool {
        self.stale && self.compiler.is_some()
    }

    /// Whether a job is under way.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.compiler.is_none()
    }

    /// Work for another thread: a new configuration, or (`None`) the tables of the one in force. `None`: one is under way.
    ///
    /// `states` are those of the snapshot in force.
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

    /// Takes a job's outcome over: what to publish, with the states that hold by now.
    ///
    /// # Errors
    /// [`CompileError`]: everything is as it was.
    pub fn finish(&mut self, done: Done, now: Duration) -> Result<Snapshot, CompileError> {
        self.compiler = Some(done.compiler);
        let (compiled, plan) = done.result.inspect_err(|_| self.stale |= done.leaves_stale)?;
        let away = self.known().judge(&plan, &self.results, &mut self.runtime_state);
        (self.config, self.generation) = (done.config, done.generation);
        (self.index, self.plan) = (Arc::new(compiled.index), Arc::new(plan));
        self.results.retain(|target, _| !self.plan.memberships_of(target).is_empty());
        self.fallbacks.retain(|pool| self.index.has_fallback(pool));
        self.keep_overrides_of_memberships();
        self.follow_absence(away);
        let states =
            self.compiler.as_ref().map(|compiler| compiler.states(&self.runtime_state)).unwrap_or_default();
        // What changed since the job set out is not in its tables.
        self.stale |= states != compiled.snapshot.states();
        self.slow_start.settled |= self.unknown() == 0;
        self.state_again(&compiled.snapshot, states, now)
    }

    /// Takes verdicts in. `None`: no membership is touched.
    ///
    /// # Errors
    /// [`CompileError::Snapshot`]: `current` is not what [`Controller::finish`] made last, under whatever states.
    pub fn verdicts(
        &mut self,
        changed: &[(TargetKey, HealthState)],
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, CompileError> {
        let mut asked = Vec::new();
        for (target, state) in changed {
            let keys = self.plan.memberships_of(target);
            if keys.is_empty() {
                continue; // gone by a reload while the result was on its way
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

    /// An operator's overrides; one that says nothing takes back what was said under its key. Gives what to publish.
    ///
    /// # Errors
    /// [`CompileError::Snapshot`]: `current` is not what [`Controller::finish`] made last, under whatever states.
    pub fn order(
        &mut self,
        says: Vec<(OverrideKey, Override)>,
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, CompileError> {
        let meant = says.iter().flat_map(|(key, _)| self.memberships_of(key));
        let meant: BTreeSet<SlotKey> = meant.map(|found| found.key.clone()).collect();
        self.stale |= !says.is_empty();
        for (backend, says) in says {
            match says == Override::default() {
                true => self.runtime_state.overrides.remove(&backend),
                false => self.runtime_state.overrides.insert(backend, says),
            };
        }
        self.restate(meant.iter(), current, now)
    }

    /// Memberships of backends that an override is for.
    pub fn memberships_of(&self, wanted: &OverrideKey) -> impl Iterator<Item = &Membership> {
        let meant = |found: &&Membership| {
            let is_in_pool = wanted.pool.as_ref().is_none_or(|pool| *pool == found.key.pool);
            found.key.backend == wanted.backend && is_in_pool
        };
        self.index.backends().filter(meant)
    }

    /// What the time alone brings: the end of draining, of a fallback's hold, the next quarter of a slow start.
    ///
    /// # Errors
    /// [`CompileError::Snapshot`]: `current` is not what [`Controller::finish`] made last, under whatever states.
    pub fn tick(&mut self, current: &Snapshot, now: Duration) -> Result<Option<Snapshot>, CompileError> {
        let quarters = self.slow_start.quarters(now);
        self.stale |= quarters != self.runtime_state.quarters;
        self.runtime_state.quarters = quarters;
        let Some(compiler) = self.compiler.as_mut() else { return Ok(None) };
        let ended = compiler.end_draining(&self.config, &self.runtime_state, current, now)?;
        if !self.fallbacks.is_waiting() {
            return Ok(ended);
        }
        let base = ended.as_ref().unwrap_or(current);
        let before = self.runtime_state.fallbacks.clone();
        let next = self.state_again(base, base.states().to_vec(), now)?;
        Ok(if ended.is_some() || before != self.runtime_state.fallbacks { Some(next) } else { None })
    }

    /// The states of these memberships anew.
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
        for membership in keys.into_iter().filter_map(|key| self.index.membership(key)) {
            let Some(place) = states.get_mut(membership.slot.0 as usize) else { continue };
            let state = self.runtime_state.state(&membership.key);
            changed |= *place != state;
            *place = state;
        }
        // A first verdict of down changes no state, and yet a fallback may be called for.
        if !changed && (!is_touched || self.index.with_fallback().next().is_none()) {
            return Ok(None);
        }
        self.stale |= changed;
        let before = self.runtime_state.fallbacks.clone();
        let next = self.state_again(current, states, now)?;
        Ok((changed || before != self.runtime_state.fallbacks).then_some(next))
    }

    /// `base` under `states`, each service led to the pool that then serves.
    fn state_again(
        &mut self,
        base: &Snapshot,
        states: Vec<SlotState>,
        now: Duration,
    ) -> Result<Snapshot, CompileError> {
        for (view, pool, fallback) in self.index.with_fallback() {
            // Before their first results backends are neither up nor down.
            if pool.slots.iter().any(|slot| self.is_unknown(*slot)) && !self.fallbacks.is_called(view) {
                continue;
            }
            let rule = Rule { below: fallback.below, hold: fallback.hold };
            self.fallbacks.observe(view, rule, Index::serving(pool, &states), now);
        }
        self.runtime_state.fallbacks = self.fallbacks.called();
        self.slow_start.retain(|key| self.runtime_state.state(key) == SlotState::Serving);
        let mut services = base.services().to_vec();
        self.index.lead(&mut services, &self.runtime_state, &states);
        let same = services.iter().zip(base.services()).all(|(a, b)| Arc::ptr_eq(&a.pool, &b.pool));
        let next = base.with_states(states)?;
        Ok(if same { next } else { next.with_services(services)? })
    }

    fn known(&self) -> Known {
        let away = self.rejoins.away.clone();
        Known { index: Arc::clone(&self.index), plan: Arc::clone(&self.plan), away }
    }

    /// Pools of which more backends fail than `max_down` lets go: the last states hold.
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
            self.runtime_state.quarters = self.slow_start.quarters(now);
        }
    }

    /// An override of a backend that has gone would lie in wait for another of its name.
    fn keep_overrides_of_memberships(&mut self) {
        let mut overrides = std::mem::take(&mut self.runtime_state.overrides);
        overrides.retain(|key, _| self.memberships_of(key).next().is_some());
        self.runtime_state.overrides = overrides;
    }
}

/// What a new generation follows.
#[derive(Clone, Debug)]
struct Known {
    index: Arc<Index>,
    plan: Arc<Plan>,
    away: HashSet<SlotKey>,
}

impl Known {
    /// Verdicts of all memberships in `plan`. One that was there before without a check counted as up. Gives those that are to be
    /// emptied before they serve.
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
            // Checks through the VIP have come: what was said of the membership holds for the VIPs that it served.
            (None, Some(at)) => {
                let whole = key.membership();
                let found = self.index.membership(&whole);
                let served = found.is_some_and(|found| self.plan.leads(&at.vip, &found.pools));
                if served { runtime_state.health(&whole) } else { HealthState::Unknown }
            }
            // They have gone.
            (None, None) if apart.contains(key) => HealthState::Up,
            (None, None) => HealthState::Unknown,
        };
        let judged = plan.judge(plan.checked(), results, before);
        runtime_state.health = judged.into_iter().map(|(key, state)| (key.clone(), state)).collect();
        let away = self.away_in(plan, runtime_state);
        runtime_state.flushing = plan.flushing(&away, runtime_state);
        away
    }

    /// Memberships that some VIP saw up, by checks through it.
    fn apart(&self, runtime_state: &RuntimeState) -> HashSet<SlotKey> {
        let keys = self.index.memberships().iter().map(|found| &found.key);
        let up = |key: &&SlotKey| key.vip.is_some() && runtime_state.health(key) == HealthState::Up;
        keys.filter(up).map(SlotKey::membership).collect()
    }
}

const VIPS_NAMED: usize = 64;
