//! The loop that makes attempts and gives verdicts.
//!
//! In: changes of the set (`exchange`), the clock. Out: events and reports (`exchange`).
//! One turn: take changes, results, what is due, decide, publish, start. A turn's work is bounded, so that a verdict never waits
//! for a reload: at most [`CHANGES`], [`STARTS`] and [`REPORTED`] of each.
//! Not here: when a target is due (`schedule`), results to verdicts (`verdicts`).
//! Invariant: a target is planned, waiting or flying, never two of them; so its attempts never overlap.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use super::exchange::Exchange;
use super::flights::Flights;
use super::pace::Pace;
use super::record::{Ability, Record};
use super::schedule::Schedule;
use super::target::{HealthState, Spec, TargetKey, TargetReport, Watched};
use super::verdicts::{Changes, Outcome, Rules, Verdicts};
use super::{Dialing, StateChange};
use crate::{Dialer, Failure, attempt};

/// The loop's state; it runs as one task.
pub(super) struct Runner {
    exchange: Arc<Exchange>,
    dialing: Dialing,
    /// Most attempts under way.
    most: usize,
    targets: Vec<Option<Target>>,
    len: usize,
    verdicts: Verdicts,
    schedule: Schedule,
    flights: Flights,
    /// Due, by number and serial, until there is room for them.
    waiting: VecDeque<(u32, u64)>,
    changes: Changes,
    /// Targets that this machine can't ask, or can again: not published yet.
    abilities: Vec<(TargetKey, Ability)>,
    pace: Pace,
    sleep: Pin<Box<Sleep>>,
    confirmation: ConfirmationProbes,
    reporting: Option<Reporting>,
}

struct Target {
    spec: Arc<Spec>,
    dialer: Dialer,
    phase: Phase,
    record: Record,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The wheel says when.
    Planned,
    Waiting,
    Flying {
        slot: u32,
        started: Instant,
        planned: Duration,
    },
}

/// Attempts brought forward because a verdict is held.
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
    pub(super) fn new(exchange: Arc<Exchange>, dialing: Dialing, most: usize) -> Self {
        let now = Instant::now();
        Self {
            dialing,
            most,
            targets: Vec::new(),
            len: 0,
            verdicts: Verdicts::new(),
            schedule: Schedule::new(),
            flights: Flights::new(Arc::clone(&exchange.ready)),
            waiting: VecDeque::new(),
            changes: Changes::default(),
            abilities: Vec::new(),
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
            self.verdicts.decide(now, &mut self.changes);
        }
        self.publish();
        self.start_confirmation_probes();
        self.start_waiting(now);
        self.report();
        let more = unsettled || self.reporting.is_some() || (!self.waiting.is_empty() && self.has_room());
        self.rest(more, now, context);
    }

    /// Applies what changed in the set. `true`: there is more to apply.
    fn take_changes(&mut self, now: Duration) -> bool {
        let (changes, more) = self.exchange.take_changes(CHANGES);
        for (id, spec) in changes {
            let kept = self.targets.get(id as usize).and_then(Option::as_ref);
            // A local failure was published under the old key: such a target begins anew.
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
        self.verdicts.insert(id, rules, Arc::clone(&watched.backend), watched.pools.clone());
        self.schedule.first_attempt(id, self.len + 1, now);
        let dialer = (self.dialing)(watched);
        if id as usize >= self.targets.len() {
            self.targets.resize_with(id as usize + 1, || None);
        }
        self.targets[id as usize] =
            Some(Target { spec, dialer, phase: Phase::Planned, record: Record::new() });
        self.len += 1;
    }

    fn remove(&mut self, id: u32) {
        let Some(target) = self.targets.get_mut(id as usize).and_then(Option::take) else { return };
        if let Phase::Flying { slot, .. } = target.phase {
            self.flights.end(slot);
        }
        self.schedule.cancel(id);
        self.verdicts.remove(id);
        self.exchange.forget(id);
        self.changes.turned.retain(|(turned, _)| *turned != id);
        if target.record.is_lost() {
            self.abilities.push((target.spec.watched.key.clone(), Ability::Back));
        }
        self.len -= 1;
    }

    /// The same target for other pools, or by another slot's outer header: then an attempt under way says nothing any more,
    /// and one by the new header follows at once.
    fn regroup(&mut self, id: u32, spec: Arc<Spec>, now: Duration) {
        let Some(target) = self.targets.get_mut(id as usize).and_then(Option::as_mut) else { return };
        let rerouted = target.spec.watched.slot != spec.watched.slot;
        let watched = &spec.watched;
        let rules = rules(watched);
        self.verdicts.regroup(id, rules, Arc::clone(&watched.backend), watched.pools.clone());
        target.dialer = (self.dialing)(&spec.watched);
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

    /// The same question at another pace: what is known stays, and is published under the new key. The next attempt comes at a
    /// random part of the new interval, so that targets that were changed together spread over it.
    fn repace(&mut self, id: u32, spec: Arc<Spec>, now: Duration) {
        let interval = spec.watched.key.check.interval;
        self.regroup(id, spec, now);
        let Some(target) = self.targets.get_mut(id as usize).and_then(Option::as_mut) else { return };
        if !matches!(target.phase, Phase::Flying { .. }) {
            target.phase = Phase::Planned;
            let at = now + self.schedule.part_of(interval);
            self.schedule.set(id, at);
        }
        let state = self.verdicts.count(id).map(|count| count.state);
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

    /// What the wheel gives out is to be started, or has taken too long. Results were taken before: one that came in time
    /// counts, however late the loop is.
    fn take_due(&mut self, now: Duration) {
        let due = self.schedule.take_due(now);
        for id in &due {
            let id = *id;
            match self.targets[id as usize].as_ref().map(|target| target.phase) {
                Some(Phase::Flying { slot, .. }) => {
                    self.flights.end(slot);
                    self.finish(id, Err(Failure::NoAnswer), now);
                }
                Some(Phase::Planned) => self.enqueue(id),
                Some(Phase::Waiting) | None => {}
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
        self.flights.len() < self.most
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
            let (spec, dialer) = (Arc::clone(&target.spec), target.dialer.clone());
            let timeout = spec.watched.key.check.timeout;
            let started = Instant::now();
            let future = async move {
                let key = &spec.watched.key;
                // Through the tunnel the VIP is the peer: `Host` and the certificate's name are those of clients.
                let address = key.through.as_ref().map_or(key.address, |through| through.vip);
                attempt(&key.check.kind, address, &dialer).await
            };
            // Set before the first poll: an attempt may end in it.
            target.phase = Phase::Flying { slot: u32::MAX, started, planned: now };
            match self.flights.start(id, Box::pin(future)) {
                Ok(slot) => {
                    target.phase = Phase::Flying { slot, started, planned: now };
                    self.schedule.set(id, now + timeout);
                }
                Err(result) => self.finish(id, result, now),
            }
        }
        self.publish();
    }

    fn finish(&mut self, id: u32, result: Result<(), Failure>, now: Duration) {
        let Some(target) = self.targets[id as usize].as_mut() else { return };
        let Phase::Flying { started, planned, .. } = target.phase else { return };
        target.phase = Phase::Planned;
        let outcome = match &result {
            Ok(()) => Outcome::Pass,
            Err(failure) if failure.is_local() => Outcome::Local,
            Err(_) => Outcome::Fail,
        };
        let ability = target.record.note(result, started.elapsed());
        self.abilities.extend(ability.map(|ability| (target.spec.watched.key.clone(), ability)));
        self.verdicts.result(id, outcome, now, &mut self.changes);
        let in_doubt = self.verdicts.in_doubt(id, outcome == Outcome::Pass);
        let check = &target.spec.watched.key.check;
        let pause = match (in_doubt, target.record.attempts) {
            (false, 1) => self.schedule.part_of(check.interval),
            (false, _) => self.schedule.jittered(check.interval, check),
            (true, _) => self.schedule.jittered(check.fast_interval, check),
        };
        self.schedule.set(id, (planned + pause).max(now));
    }

    /// While a Down state is held, probes a few targets that should pass at once: it need not wait for their turn.
    fn start_confirmation_probes(&mut self) {
        if !self.verdicts.wants_confirmation() || self.targets.is_empty() {
            return;
        }
        if self.confirmation.silence != self.verdicts.silence {
            (self.confirmation.silence, self.confirmation.started) = (self.verdicts.silence, 0);
        }
        let all = u32::try_from(self.targets.len()).unwrap_or(u32::MAX);
        for _ in 0..all.min(CONFIRMATION_CANDIDATES) {
            if self.confirmation.started >= CONFIRMATION_PROBES {
                return;
            }
            self.confirmation.next = (self.confirmation.next + 1) % all;
            let id = self.confirmation.next;
            let planned = self.targets[id as usize].as_ref().is_some_and(|t| t.phase == Phase::Planned);
            if planned && self.verdicts.can_confirm(id) {
                self.confirmation.started += 1;
                self.schedule.cancel(id);
                self.enqueue(id);
            }
        }
        // Otherwise every turn would look again for targets that are all under way.
        self.confirmation.started = CONFIRMATION_PROBES;
    }

    fn publish(&mut self) {
        if self.changes != Changes::default() || !self.abilities.is_empty() {
            let changes = std::mem::take(&mut self.changes);
            let targets = &mut self.targets;
            let keyed = changes.turned.into_iter().filter_map(|(id, state)| {
                let target = targets[id as usize].as_mut()?;
                target.record.turn();
                let why = target.record.why(state);
                Some((id, StateChange { key: target.spec.watched.key.clone(), state, why }))
            });
            self.exchange.publish(keyed, changes.local_failure, self.abilities.drain(..));
        }
    }

    /// Goes on with a report that is asked for.
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
                (&self.targets[id], u32::try_from(id).ok().and_then(|id| self.verdicts.count(id)))
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

    /// Arranges the next turn for when there is something to do.
    fn rest(&mut self, more: bool, now: Duration, context: &mut Context<'_>) {
        if more {
            self.pace.ask(Some(now));
            // Deferred: sockets are looked at before the next turn.
            let mut pause = Box::pin(tokio::task::yield_now());
            let _ = pause.as_mut().poll(context);
            return;
        }
        let wake = self.schedule.next().into_iter().chain(self.verdicts.deadline()).min();
        if let Some(at) = self.pace.ask(wake) {
            self.sleep.as_mut().reset(at.into());
            if self.sleep.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
        }
    }
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
    Rules { rise: check.rise, fall: check.fall, first_fall, span: stretched + check.timeout }
}

/// Changes of the set applied in one turn, at about a microsecond each.
const CHANGES: usize = 256;
/// Attempts started in one turn: the kernel takes 10 to 20 µs for each.
const STARTS: usize = 32;
/// Results after which changes of state are published.
const RESULTS: usize = 32;
/// Targets reported in one turn.
const REPORTED: usize = 256;
/// Confirmation probes started in one silence.
const CONFIRMATION_PROBES: u32 = 16;
/// Targets looked at for that.
const CONFIRMATION_CANDIDATES: u32 = 256;
