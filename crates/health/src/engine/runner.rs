//! The main loop of the health thread, which runs attempts and updates health states.
//!
//! One iteration of the main loop applies changes of the target set, collects results, finds due
//! attempts, updates and publishes health states, and starts attempts. The work of an iteration is
//! bounded by [`CHANGES`], [`STARTS`] and [`REPORTED`], so that a health state change never waits
//! for a reload.
//!
//! The attempts of a target never overlap, because a target is in exactly one [`Phase`] at a time.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use config::CheckKind;
use tokio::time::Sleep;

use super::damper::Damper;
use super::exchange::Exchange;
use super::flights::{Attempt, Flights};
use super::health_states::{Changes, HealthStates, Outcome, Rules};
use super::hops::{HopFlight, HopStates};
use super::pace::Pace;
use super::record::{Ability, Record};
use super::schedule::Schedule;
use super::target::{HealthState, Spec, TargetKey, TargetReport, Watched};
use super::{Dialing, StateChange};
use crate::{CheckHop, CheckHops, Dialer, Failure, HopNeighbour, Interim, Pass, attempt, exec};

/// The state of the health thread's main loop, which runs as one async task.
pub(super) struct Runner {
    exchange: Arc<Exchange>,
    dialing: Dialing,
    hops: CheckHops,
    /// The maximum number of file descriptors of running attempts.
    most: usize,
    targets: Vec<Option<Target>>,
    len: usize,
    health_states: HealthStates,
    schedule: Schedule,
    flights: Flights,
    /// The ID and the serial of each due target that waits because the maximum number of attempts
    /// is running.
    waiting: VecDeque<(u32, u64)>,
    changes: Changes,
    /// Changes in the ability to probe targets that are not published yet.
    abilities: Vec<(TargetKey, Ability)>,
    /// Changed lists of failing hops that are not published yet.
    failing_hops: Vec<(TargetKey, Vec<HopNeighbour>)>,
    pace: Pace,
    sleep: Pin<Box<Sleep>>,
    confirmation: ConfirmationProbes,
    reporting: Option<Reporting>,
}

struct Target {
    spec: Arc<Spec>,
    dialer: Dialer,
    phase: Phase,
    /// The result that is recorded if the running attempt times out.
    interim: Interim,
    damper: Damper,
    record: Record,
    /// The running attempt if it probes the backend through several next hops.
    hop_flight: Option<HopFlight>,
    hop_states: HopStates,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The timing wheel contains the start time of the next attempt.
    Planned,
    Waiting,
    Flying {
        slot: u32,
        started: Instant,
        planned: Duration,
    },
}

/// Attempts that are started early because a Down state is held.
#[derive(Debug, Default)]
struct ConfirmationProbes {
    silence: u64,
    started: u32,
    next: u32,
}

struct Reporting {
    next: usize,
    reports: Vec<TargetReport>,
}

impl Runner {
    pub(super) fn new(exchange: Arc<Exchange>, dialing: Dialing, hops: CheckHops, most: usize) -> Self {
        let now = Instant::now();
        Self {
            dialing,
            hops,
            most,
            targets: Vec::new(),
            len: 0,
            health_states: HealthStates::new(),
            schedule: Schedule::new(),
            flights: Flights::new(Arc::clone(&exchange.ready)),
            waiting: VecDeque::new(),
            changes: Changes::default(),
            abilities: Vec::new(),
            failing_hops: Vec::new(),
            pace: Pace::new(now),
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            confirmation: ConfirmationProbes::default(),
            reporting: None,
            exchange,
        }
    }

    fn turn(&mut self, context: &mut Context<'_>) {
        self.exchange.ready.register(context.waker());
        let now = self.pace.advance(Instant::now());
        let unsettled = self.take_changes(now);
        self.take_results(now);
        self.take_due(now);
        if !unsettled {
            self.health_states.decide(now, &mut self.changes);
        }
        self.publish();
        self.start_confirmation_probes();
        self.start_waiting(now);
        self.report();
        let more = unsettled || self.reporting.is_some() || (!self.waiting.is_empty() && self.has_room());
        self.rest(more, now, context);
    }

    /// Applies changes of the target set. Returns `true` if further changes are waiting.
    fn take_changes(&mut self, now: Duration) -> bool {
        let (changes, more) = self.exchange.take_changes(CHANGES);
        for (id, spec) in changes {
            let kept = self.targets.get(id as usize).and_then(Option::as_ref);
            // `Event::Unable` was published under the old key. A target that could not be probed
            // therefore starts again without history.
            let kept = kept.map(|target| (target.spec.serial, target.spec.lineage, target.record.is_lost()));
            match spec {
                Some(spec) if kept.is_some_and(|(serial, ..)| serial == spec.serial) => {
                    self.regroup(id, spec, now)
                }
                Some(spec) if kept.is_some_and(|(_, first, lost)| first == spec.lineage && !lost) => {
                    self.repace(id, spec, now)
                }
                Some(spec) => {
                    self.remove(id);
                    self.add(id, spec, now);
                }
                None => self.remove(id),
            }
        }
        if self.waiting.len() > 2 * self.len + 64 {
            let targets = &self.targets;
            self.waiting.retain(|&(id, serial)| {
                targets[id as usize].as_ref().is_some_and(|target| target.spec.serial == serial)
            });
        }
        more
    }

    fn add(&mut self, id: u32, spec: Arc<Spec>, now: Duration) {
        let watched = &spec.watched;
        let rules = rules(watched);
        self.health_states.insert(id, rules, Arc::clone(&watched.backend), watched.pools.clone());
        self.schedule.first_attempt(id, self.len + 1, now);
        let dialer = (self.dialing)(watched, None);
        if id as usize >= self.targets.len() {
            self.targets.resize_with(id as usize + 1, || None);
        }
        let hop_states = HopStates::known(&spec.failing_hops);
        self.targets[id as usize] = Some(Target {
            spec,
            dialer,
            phase: Phase::Planned,
            interim: Interim::default(),
            damper: Damper::default(),
            record: Record::new(),
            hop_flight: None,
            hop_states,
        });
        self.len += 1;
    }

    fn remove(&mut self, id: u32) {
        let Some(target) = self.targets.get_mut(id as usize).and_then(Option::take) else { return };
        if let Phase::Flying { slot, .. } = target.phase {
            self.flights.end(slot);
        }
        self.schedule.cancel(id);
        self.health_states.remove(id);
        self.exchange.forget(id);
        self.changes.turned.retain(|(turned, _)| *turned != id);
        if target.record.is_lost() {
            self.abilities.push((target.spec.watched.key.clone(), Ability::Back));
        }
        if !target.hop_states.failing().is_empty() {
            self.failing_hops.push((target.spec.watched.key.clone(), Vec::new()));
        }
        self.len -= 1;
    }

    /// Applies new pools or a new slot to a target. A new slot has a new outer header, so a running
    /// attempt is canceled and another attempt starts immediately.
    fn regroup(&mut self, id: u32, spec: Arc<Spec>, now: Duration) {
        let Some(target) = self.targets.get_mut(id as usize).and_then(Option::as_mut) else { return };
        let rerouted = target.spec.watched.slot != spec.watched.slot;
        let watched = &spec.watched;
        let rules = rules(watched);
        self.health_states.regroup(id, rules, Arc::clone(&watched.backend), watched.pools.clone());
        target.dialer = (self.dialing)(&spec.watched, None);
        target.spec = spec;
        if let Phase::Flying { slot, .. } = target.phase
            && rerouted
        {
            self.flights.end(slot);
            target.phase = Phase::Planned;
        }
        if rerouted && target.phase == Phase::Planned {
            self.schedule.set(id, now);
        }
    }

    /// Applies a new interval to a target whose probe is unchanged. The health state stays and is
    /// published under the new key. The next attempt starts after a random part of the new
    /// interval. Targets that changed together are therefore not probed together.
    fn repace(&mut self, id: u32, spec: Arc<Spec>, now: Duration) {
        let interval = spec.watched.key.check.interval;
        let before = self.targets.get(id as usize).and_then(Option::as_ref);
        let old_key = before.map(|target| target.spec.watched.key.clone());
        self.regroup(id, spec, now);
        let Some(target) = self.targets.get_mut(id as usize).and_then(Option::as_mut) else { return };
        // The failing hops were published under the old key, so they are moved to the new key.
        let failing = target.hop_states.failing();
        if let Some(old_key) = old_key.filter(|_| !failing.is_empty()) {
            self.failing_hops.push((old_key, Vec::new()));
            self.failing_hops.push((target.spec.watched.key.clone(), failing));
        }
        if !matches!(target.phase, Phase::Flying { .. }) {
            target.phase = Phase::Planned;
            let at = now + self.schedule.part_of(interval);
            self.schedule.set(id, at);
        }
        // The advice was published under the old key, so it is published again under the new key.
        if let Some(advice) = target.damper.published() {
            self.exchange.advise(id, target.spec.watched.key.clone(), advice);
        }
        let state = self.health_states.count(id).map(|count| count.state);
        let known = state.filter(|state| *state != HealthState::Unknown);
        self.changes.turned.extend(known.map(|state| (id, state)));
    }

    fn take_results(&mut self, now: Duration) {
        let ready = self.flights.take_ready();
        for (n, slot) in ready.iter().enumerate() {
            if let Poll::Ready((id, result)) = self.flights.poll(*slot) {
                self.finish(id, result, now);
            }
            if n % RESULTS == RESULTS - 1 {
                self.publish();
            }
        }
        self.flights.give_back(ready);
    }

    /// Starts due attempts and ends attempts that have timed out. The main loop collects results
    /// before it calls this function, so a response that arrived in time is used even if this
    /// iteration starts late.
    fn take_due(&mut self, now: Duration) {
        let due = self.schedule.take_due(now);
        for id in &due {
            let id = *id;
            let Some(target) = &self.targets[id as usize] else { continue };
            match target.phase {
                Phase::Flying { slot, .. } => {
                    let result = target.interim.expired();
                    self.flights.end(slot);
                    self.finish(id, result, now);
                }
                Phase::Planned => self.enqueue(id),
                Phase::Waiting => {}
            }
        }
        self.schedule.give_back(due);
    }

    fn enqueue(&mut self, id: u32) {
        if let Some(target) = self.targets[id as usize].as_mut() {
            target.phase = Phase::Waiting;
            self.waiting.push_back((id, target.spec.serial));
        }
    }

    fn has_room(&self) -> bool {
        self.flights.descriptors() < self.most
    }

    fn start_waiting(&mut self, now: Duration) {
        for _ in 0..STARTS {
            if !self.has_room() {
                break;
            }
            let Some((id, serial)) = self.waiting.pop_front() else { break };
            let Some(target) = self.targets[id as usize].as_mut() else { continue };
            if target.spec.serial != serial || target.phase != Phase::Waiting {
                continue;
            }
            let timeout = target.spec.watched.key.check.timeout;
            let started = Instant::now();
            target.interim.clear();
            let future = target.attempt(&self.hops, &self.dialing);
            let descriptors = target.hop_flight.as_ref().map_or(1, HopFlight::len);
            // The phase is set before the first poll, because the attempt may end in that poll.
            target.phase = Phase::Flying { slot: u32::MAX, started, planned: now };
            match self.flights.start(id, descriptors, future) {
                Ok(slot) => {
                    target.phase = Phase::Flying { slot, started, planned: now };
                    self.schedule.set(id, now + timeout);
                }
                Err(result) => self.finish(id, result, now),
            }
        }
        self.publish();
    }

    fn finish(&mut self, id: u32, result: Result<Pass, Failure>, now: Duration) {
        let Some(target) = self.targets[id as usize].as_mut() else { return };
        let Phase::Flying { started, planned, .. } = target.phase else { return };
        target.phase = Phase::Planned;
        let failing_before = target.hop_states.failing();
        let mut took = started.elapsed();
        let result = match target.hop_flight.take() {
            None => {
                target.hop_states = HopStates::default();
                result
            }
            Some(flight) => {
                let check = &target.spec.watched.key.check;
                let (result, passed) = target.hop_states.take(flight, check.rise, check.fall);
                took = passed.unwrap_or(took);
                result
            }
        };
        let failing = target.hop_states.failing();
        if failing != failing_before {
            self.failing_hops.push((target.spec.watched.key.clone(), failing));
        }
        let outcome = match &result {
            Ok(Pass::Silent) => Outcome::Silent,
            Ok(Pass::Answered | Pass::Agent(_)) => Outcome::Pass,
            Err(failure) if failure.is_local() => Outcome::Local,
            Err(_) => Outcome::Fail,
        };
        if let Ok(Pass::Agent(advice)) = &result {
            let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let changed = target.damper.take(*advice, clock);
            let key = &target.spec.watched.key;
            changed.into_iter().for_each(|advice| self.exchange.advise(id, key.clone(), advice));
        }
        let passed = result.is_ok();
        let ability = target.record.note(result.map(drop), took);
        self.abilities.extend(ability.map(|ability| (target.spec.watched.key.clone(), ability)));
        self.health_states.result(id, outcome, now, &mut self.changes);
        let in_doubt = self.health_states.in_doubt(id, passed);
        let check = &target.spec.watched.key.check;
        let pause = match (in_doubt, target.record.attempts) {
            (false, 1) => self.schedule.part_of(check.interval),
            (false, _) => self.schedule.jittered(check.interval, check),
            (true, _) => self.schedule.jittered(check.fast_interval, check),
        };
        self.schedule.set(id, (planned + pause).max(now));
    }

    /// Probes a few targets early while a Down state is held. If one of these targets passes, the
    /// held state is applied.
    fn start_confirmation_probes(&mut self) {
        if !self.health_states.wants_confirmation() || self.targets.is_empty() {
            return;
        }
        if self.confirmation.silence != self.health_states.silence {
            (self.confirmation.silence, self.confirmation.started) = (self.health_states.silence, 0);
        }
        let all = u32::try_from(self.targets.len()).unwrap_or(u32::MAX);
        for _ in 0..all.min(CONFIRMATION_CANDIDATES) {
            if self.confirmation.started >= CONFIRMATION_PROBES {
                return;
            }
            self.confirmation.next = (self.confirmation.next + 1) % all;
            let id = self.confirmation.next;
            // Only a response shows that the network of this machine works.
            let planned = self.targets[id as usize]
                .as_ref()
                .is_some_and(|t| t.phase == Phase::Planned && answers(&t.spec.watched.key.check.kind));
            if planned && self.health_states.can_confirm(id) {
                self.confirmation.started += 1;
                self.schedule.cancel(id);
                self.enqueue(id);
            }
        }
        // Setting `started` to the maximum ends the search for candidates. Otherwise, every
        // iteration would search again while all candidates have running attempts.
        self.confirmation.started = CONFIRMATION_PROBES;
    }

    fn publish(&mut self) {
        if self.changes != Changes::default() || !self.abilities.is_empty() || !self.failing_hops.is_empty() {
            let changes = std::mem::take(&mut self.changes);
            let targets = &mut self.targets;
            let keyed = changes.turned.into_iter().filter_map(|(id, state)| {
                let target = targets[id as usize].as_mut()?;
                target.record.turn();
                let why = target.record.why(state);
                Some((id, StateChange { key: target.spec.watched.key.clone(), state, why }))
            });
            let (abilities, hops) = (self.abilities.drain(..), self.failing_hops.drain(..));
            self.exchange.publish(keyed, changes.local_failure, abilities, hops);
        }
    }

    /// Adds up to [`REPORTED`] targets to the requested report. Sends the report when it is
    /// complete.
    fn report(&mut self) {
        if self.reporting.is_none() && !self.exchange.report_wanted() {
            return;
        }
        let mut reporting = self
            .reporting
            .take()
            .unwrap_or_else(|| Reporting { next: 0, reports: Vec::with_capacity(self.len) });
        let until = (reporting.next + REPORTED).min(self.targets.len());
        for id in reporting.next..until {
            let (Some(target), Some(count)) =
                (&self.targets[id], u32::try_from(id).ok().and_then(|id| self.health_states.count(id)))
            else {
                continue;
            };
            reporting.reports.push(target.record.report(&target.spec.watched, count));
        }
        reporting.next = until;
        if until == self.targets.len() {
            self.exchange.give_report(reporting.reports);
        } else {
            self.reporting = Some(reporting);
        }
    }

    /// Schedules the next iteration of the main loop.
    fn rest(&mut self, more: bool, now: Duration, context: &mut Context<'_>) {
        if more {
            self.pace.ask(Some(now));
            // The wake-up is deferred, so that the runtime polls sockets before the next iteration.
            let mut pause = Box::pin(tokio::task::yield_now());
            let _ = pause.as_mut().poll(context);
            return;
        }
        let wake = self.schedule.next().into_iter().chain(self.health_states.deadline()).min();
        if let Some(at) = self.pace.ask(wake) {
            self.sleep.as_mut().reset(at.into());
            if self.sleep.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
        }
    }
}

impl Target {
    /// Creates an attempt. If the backend has several next hops, the attempt probes the backend
    /// through each of them.
    fn attempt(&mut self, hops: &CheckHops, dialing: &Dialing) -> Attempt {
        let spec = Arc::clone(&self.spec);
        let key = &spec.watched.key;
        if let CheckKind::Exec(_) = key.check.kind {
            self.hop_flight = None;
            return Box::pin(run_program(spec, self.interim.clone()));
        }
        // For checks through the tunnel, the peer is the VIP. The `Host` value and the name in the
        // certificate are therefore the same as for clients.
        let address = key.through.as_ref().map_or(key.address, |through| through.vip);
        let dialers = |hops: &[CheckHop]| -> Vec<Dialer> {
            hops.iter().map(|hop| dialing(&spec.watched, Some(hop))).collect()
        };
        let hops = hops.of(key.address).map(|hops| (dialers(&hops), hops));
        // Without the tunnel, the kernel chooses the next hop, so the result cannot be assigned to
        // one of the next hops.
        let by_hop = |dialers: &[Dialer]| dialers.iter().all(|dialer| matches!(dialer, Dialer::Tunnel(_)));
        if let Some((dialers, hops)) = hops.filter(|(dialers, _)| by_hop(dialers)) {
            let (flight, future) = HopFlight::new(hops, dialers, Arc::clone(&key.check), address);
            self.hop_flight = Some(flight);
            return Box::pin(future);
        }
        self.hop_flight = None;
        let (dialer, interim) = (self.dialer.clone(), self.interim.clone());
        Box::pin(async move { attempt(&spec.watched.key.check.kind, address, &dialer, &interim).await })
    }
}

/// Runs an exec check. A check program runs once, not once per next hop, and can pass without the
/// network.
async fn run_program(spec: Arc<Spec>, interim: Interim) -> Result<Pass, Failure> {
    let Watched { key, backend, pools, .. } = &spec.watched;
    let CheckKind::Exec(check) = &key.check.kind else { return Ok(Pass::Silent) };
    let subject = exec::Subject { address: key.address, backend, pools, limit: key.check.timeout };
    exec::attempt(check, &subject, &interim).await.map(|()| Pass::Silent)
}

impl Future for Runner {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.turn(context);
        Poll::Pending
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.exchange.close();
    }
}

fn rules(watched: &Watched) -> Rules {
    let check = &watched.key.check;
    let stretched = check.interval * (100 + u32::from(check.jitter_percent)) / 100;
    let first_fall = if watched.serving { check.fall } else { 1 };
    Rules {
        rise: check.rise,
        fall: check.fall,
        first_fall,
        span: stretched + check.timeout,
        answers: answers(&check.kind),
        holds: !check.kind.passes_in_silence(),
    }
}

/// Returns `true` if a pass of the check shows that the network of this machine works.
fn answers(kind: &CheckKind) -> bool {
    !kind.passes_in_silence() && !matches!(kind, CheckKind::Exec(_))
}

/// The maximum number of target changes that are applied per iteration. Each change takes about a
/// microsecond.
const CHANGES: usize = 256;
/// The maximum number of attempts that are started per iteration. The kernel needs 10 to 20 µs to
/// start an attempt.
const STARTS: usize = 32;
/// The number of collected results after which health state changes are published.
const RESULTS: usize = 32;
/// The maximum number of targets reported per iteration.
const REPORTED: usize = 256;
/// The maximum number of confirmation probes while no target answers.
const CONFIRMATION_PROBES: u32 = 16;
/// The maximum number of candidates for confirmation probes per iteration.
const CONFIRMATION_CANDIDATES: u32 = 256;
