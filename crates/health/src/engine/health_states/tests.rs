//! Tests of health states. The tests contain examples, and a comparison with a simple model that
//! recomputes all states at each step.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::HealthState::{Down, Unknown, Up};
use super::Outcome::{Fail, Local, Pass, Silent};
use super::*;

const SPAN: Duration = Duration::from_millis(1_000);

fn rules(rise: u32, fall: u32) -> Rules {
    Rules { rise, fall, first_fall: 1, span: SPAN, answers: true, holds: true }
}

/// Creates one target per entry of `pools`. Each target has its own backend.
fn watching(pools: &[&str], rules: Rules) -> HealthStates {
    let mut health_states = HealthStates::new();
    for (id, pool) in (0u32..).zip(pools) {
        health_states.insert(id, rules, format!("b{id}").into(), vec![(*pool).into()]);
    }
    health_states.decide(Duration::ZERO, &mut Changes::default());
    health_states
}

fn at(health_states: &mut HealthStates, ms: u64, id: u32, outcome: Outcome) -> Changes {
    let mut changes = Changes::default();
    health_states.result(id, outcome, Duration::from_millis(ms), &mut changes);
    changes
}

fn turned(turned: &[(u32, HealthState)]) -> Changes {
    Changes { turned: turned.to_vec(), local_failure: None }
}

#[test]
fn rise_and_fall_count_consecutive_results() {
    let mut health_states = watching(&["p"], rules(2, 3));
    let steps = [
        (Fail, Some(Down)),
        (Pass, None),
        (Fail, None),
        (Pass, None),
        (Pass, Some(Up)),
        (Fail, None),
        (Fail, None),
        (Pass, None),
        (Fail, None),
        (Local, None),
        (Fail, None),
        (Fail, Some(Down)),
    ];
    for (n, (outcome, state)) in (0..).zip(steps) {
        let wanted: Vec<_> = state.into_iter().map(|state| (0, state)).collect();
        assert_eq!(at(&mut health_states, n * 100, 0, outcome), turned(&wanted), "step {n}");
    }
}

#[test]
fn first_failure_of_a_serving_target_does_not_decide() {
    let serves = Rules { first_fall: 3, ..rules(2, 3) };
    let mut health_states = watching(&["p"], serves);
    for n in 0..2 {
        assert_eq!(at(&mut health_states, n, 0, Fail), turned(&[]), "failure {n}");
    }
    assert_eq!(at(&mut health_states, 2, 0, Fail), turned(&[(0, Down)]), "`fall` failures");
    let mut health_states = watching(&["p"], serves);
    assert_eq!(at(&mut health_states, 0, 0, Fail), turned(&[]));
    assert_eq!(at(&mut health_states, 1, 0, Pass), turned(&[(0, Up)]));
}

#[test]
fn what_this_machine_could_not_ask_turns_nothing() {
    let mut health_states = watching(&["p"], rules(1, 1));
    assert_eq!(at(&mut health_states, 0, 0, Local), turned(&[]));
    at(&mut health_states, 1, 0, Pass);
    assert_eq!(at(&mut health_states, 2, 0, Local), turned(&[]));
    assert_eq!(at(&mut health_states, 3, 0, Fail), turned(&[(0, Down)]));
}

#[test]
fn a_down_verdict_leaves_with_the_next_pass_of_any_other() {
    let mut health_states = watching(&["p", "p", "q"], rules(1, 1));
    for id in 0..3 {
        at(&mut health_states, 0, id, Pass);
    }
    assert_eq!(at(&mut health_states, 10, 0, Fail), turned(&[]));
    assert!(
        health_states.wants_confirmation() && health_states.can_confirm(1) && !health_states.can_confirm(0)
    );
    assert_eq!(at(&mut health_states, 11, 2, Pass), turned(&[(0, Down)]));
    assert!(!health_states.wants_confirmation());
}

#[test]
fn a_held_verdict_is_forgotten_when_its_own_target_passes() {
    let mut health_states = watching(&["p", "p", "q"], rules(1, 1));
    for id in 0..3 {
        at(&mut health_states, 0, id, Pass);
    }
    at(&mut health_states, 10, 0, Fail);
    assert_eq!(at(&mut health_states, 20, 0, Pass), turned(&[]));
    assert_eq!(at(&mut health_states, 30, 1, Pass), turned(&[]));
    assert_eq!(health_states.count(0).map(|count| count.state), Some(Up));
}

#[test]
fn silent_passes_count_but_end_no_silence() {
    let mut health_states = watching(&["p", "p", "q", "q"], rules(1, 1));
    assert_eq!(at(&mut health_states, 0, 3, Silent), turned(&[(3, Up)]));
    for id in 0..3 {
        at(&mut health_states, 0, id, Pass);
    }
    at(&mut health_states, 10, 3, Fail);
    assert_eq!(at(&mut health_states, 11, 3, Silent), turned(&[]));
    assert_eq!(at(&mut health_states, 12, 0, Pass), turned(&[]), "the held state was forgotten");
    at(&mut health_states, 20, 0, Fail);
    assert_eq!(at(&mut health_states, 21, 3, Silent), turned(&[]), "the state of target 0 stays held");
    at(&mut health_states, 22, 1, Fail);
    at(&mut health_states, 23, 2, Fail);
    let over = 20 + u64::try_from(SPAN.as_millis()).unwrap();
    let local_failure = Changes { local_failure: Some(true), ..turned(&[]) };
    assert_eq!(at(&mut health_states, over, 2, Fail), local_failure);
    assert_eq!(at(&mut health_states, over + 1, 3, Silent), turned(&[]), "the local failure continues");
    assert_eq!(at(&mut health_states, over + 2, 0, Pass).local_failure, Some(false));
}

/// Programs that pass do not show that the network works, and programs that fail are held.
#[test]
fn programs_on_an_isolated_machine_change_no_state() {
    let mut health_states = watching(&["p", "p", "q", "q"], rules(1, 1));
    let program = Rules { answers: false, ..rules(1, 1) };
    for id in [4, 5] {
        health_states.insert(id, program, format!("b{id}").into(), vec!["r".into()]);
    }
    health_states.decide(Duration::ZERO, &mut Changes::default());
    (0..4).for_each(|id| drop(at(&mut health_states, 0, id, Pass)));
    (4..6).for_each(|id| drop(at(&mut health_states, 0, id, Silent)));
    assert_eq!(at(&mut health_states, 10, 4, Fail), turned(&[]));
    assert_eq!(at(&mut health_states, 11, 5, Local), turned(&[]));
    for id in 0..3 {
        assert_eq!(at(&mut health_states, 20, id, Fail), turned(&[]));
        assert_eq!(at(&mut health_states, 20, 5, Silent), turned(&[]));
    }
    let failed = Changes { turned: vec![], local_failure: Some(true) };
    assert_eq!(at(&mut health_states, 30, 3, Fail), failed);
    assert_eq!(at(&mut health_states, 1_020, 5, Silent), turned(&[]));
    assert_eq!(at(&mut health_states, 1_030, 4, Fail), turned(&[]));
    let passed = Changes { turned: vec![], local_failure: Some(false) };
    assert_eq!(at(&mut health_states, 1_040, 0, Pass), passed);
    assert_eq!(at(&mut health_states, 1_050, 4, Fail), turned(&[]));
    assert_eq!(at(&mut health_states, 1_060, 1, Pass), turned(&[(4, Down)]));
}

/// Without other targets, no pass could end a local failure.
#[test]
fn programs_alone_cause_no_local_failure() {
    let program = Rules { answers: false, ..rules(1, 1) };
    let mut health_states = watching(&["p", "p", "q", "q"], program);
    for id in 0..4 {
        assert_eq!(at(&mut health_states, 0, id, Silent), turned(&[(id, Up)]));
    }
    for id in 0..4 {
        assert_eq!(at(&mut health_states, 10, id, Local), turned(&[]));
        assert_eq!(at(&mut health_states, 20, id, Fail), turned(&[(id, Down)]));
    }
}

#[test]
fn targets_without_responses_cause_no_local_failure() {
    let silent = Rules { answers: false, holds: false, ..rules(1, 1) };
    let mut health_states = watching(&["p", "p", "q", "q"], silent);
    for id in 0..4 {
        assert_eq!(at(&mut health_states, 0, id, Silent), turned(&[(id, Up)]));
    }
    for id in 0..3 {
        assert_eq!(at(&mut health_states, 10, id, Fail), turned(&[(id, Down)]));
    }
    let over = 20 + u64::try_from(SPAN.as_millis()).unwrap();
    assert_eq!(at(&mut health_states, over, 3, Fail), turned(&[(3, Down)]));
    assert_eq!(at(&mut health_states, over + 1, 0, Silent), turned(&[(0, Up)]));
}

#[test]
fn local_failure_freezes_states_until_a_pass() {
    let mut health_states = watching(&["p", "p", "q"], rules(1, 2));
    for id in 0..3 {
        at(&mut health_states, 0, id, Pass);
    }
    for id in [0, 0, 0, 1, 1] {
        assert_eq!(at(&mut health_states, 10, id, Fail), turned(&[]));
    }
    assert_eq!(at(&mut health_states, 20, 2, Fail), Changes { local_failure: Some(true), ..turned(&[]) });
    for ms in 0..100 {
        assert_eq!(at(&mut health_states, 30 + 100 * ms, 1, Fail), turned(&[]));
    }
    assert_eq!(
        at(&mut health_states, 20_000, 2, Pass),
        Changes { local_failure: Some(false), ..turned(&[]) }
    );
    assert_eq!(at(&mut health_states, 20_001, 0, Fail), turned(&[]));
    assert_eq!(at(&mut health_states, 20_002, 2, Pass), turned(&[]));
    assert_eq!(at(&mut health_states, 20_003, 0, Fail), turned(&[]));
    assert_eq!(at(&mut health_states, 20_004, 2, Pass), turned(&[(0, Down)]));
}

#[test]
fn a_start_into_a_dead_network_gives_no_verdict() {
    let mut health_states = watching(&["p", "q", "q"], rules(1, 1));
    at(&mut health_states, 0, 0, Fail);
    at(&mut health_states, 1, 1, Fail);
    assert_eq!(at(&mut health_states, 2, 2, Fail), Changes { local_failure: Some(true), ..turned(&[]) });
    assert_eq!(
        (0..3).filter_map(|id| health_states.count(id)).map(|count| count.state).collect::<Vec<_>>(),
        [Unknown; 3]
    );
}

#[test]
fn one_pool_or_two_backends_are_never_this_machine() {
    for pools in [&["p", "p", "p", "p"][..], &["p", "q"][..]] {
        let mut health_states = watching(pools, rules(1, 1));
        for id in 0..u32::try_from(pools.len()).unwrap() {
            assert_eq!(at(&mut health_states, 0, id, Fail), turned(&[(id, Down)]));
        }
    }
}

#[test]
fn complete_silence_with_few_failures_applies_held_states() {
    let mut health_states = watching(&["p", "p", "q"], rules(1, 1));
    at(&mut health_states, 0, 0, Pass);
    at(&mut health_states, 5, 0, Fail);
    assert_eq!(health_states.deadline(), Some(Duration::from_millis(1_005)));
    let mut changes = Changes::default();
    health_states.decide(Duration::from_millis(1_004), &mut changes);
    assert_eq!(changes, turned(&[]));
    health_states.decide(Duration::from_millis(1_005), &mut changes);
    assert_eq!(changes, turned(&[(0, Down)]));
    assert_eq!(health_states.deadline(), None);
}

#[test]
fn local_failure_ends_when_the_set_no_longer_allows_it() {
    let mut health_states = watching(&["p", "p", "q"], rules(1, 1));
    for id in 0..3 {
        at(&mut health_states, 0, id, Fail);
    }
    assert!(health_states.local_failure);
    health_states.remove(2);
    let mut changes = Changes::default();
    health_states.decide(Duration::from_millis(5), &mut changes);
    assert_eq!(changes, Changes { local_failure: Some(false), ..turned(&[]) });
    assert_eq!(at(&mut health_states, 10, 0, Fail), turned(&[(0, Down)]));
}

/// A model of the rules of `HealthStates`, with lists instead of counters.
#[derive(Default)]
struct Model {
    targets: Vec<ModelTarget>,
    /// The targets that failed since the last pass, and the time of the first failure.
    silent: Vec<u32>,
    since: Option<u64>,
    fault: bool,
}

struct ModelTarget {
    id: u32,
    group: Group,
    state: HealthState,
    run: Vec<bool>,
    due: bool,
}

/// The backend, pools, `rise`, `fall` and span of a target, and `true` if the backend is already in
/// service.
type Group = (u8, Vec<u8>, u32, u32, u64, bool);

impl Model {
    fn distinct(&self, ids: impl Fn(u32) -> bool) -> (usize, usize) {
        let of: Vec<&ModelTarget> = self.targets.iter().filter(|target| ids(target.id)).collect();
        let backends: BTreeSet<u8> = of.iter().map(|target| target.group.0).collect();
        let pools: BTreeSet<u8> = of.iter().flat_map(|target| target.group.1.clone()).collect();
        (backends.len(), pools.len())
    }

    fn guarded(&self) -> bool {
        let (backends, pools) = self.distinct(|_| true);
        backends > 2 && pools > 1
    }

    fn result(&mut self, id: u32, outcome: Outcome, now: u64) -> Changes {
        let mut changes = Changes::default();
        let guarded = self.guarded();
        if !self.targets.iter().any(|target| target.id == id) {
            return changes;
        }
        if outcome == Pass {
            if self.fault {
                self.fault = false;
                changes.local_failure = Some(false);
                self.targets.iter_mut().for_each(|target| target.run.clear());
            }
            for target in &mut self.targets {
                if target.due && target.id != id {
                    target.state = Down;
                    changes.turned.push((target.id, Down));
                }
                target.due = false;
            }
            (self.silent, self.since) = (Vec::new(), None);
        } else {
            self.silent.push(id);
            self.since = Some(self.since.unwrap_or(now));
        }
        let fault = self.fault;
        for target in self.targets.iter_mut().filter(|target| target.id == id) {
            if outcome == Local || (fault && outcome == Fail) {
                break;
            }
            target.run.push(outcome == Pass);
            let (_, _, rise, fall, _, serving) = target.group;
            let ends = |n: u32, with: bool| {
                target.run.len() >= n as usize && target.run.iter().rev().take(n as usize).all(|r| *r == with)
            };
            let next = match target.state {
                Unknown if outcome == Pass => Some(Up),
                Unknown if !serving || ends(fall, false) => Some(Down),
                Up if ends(fall, false) => Some(Down),
                Down if ends(rise, true) => Some(Up),
                _ => None,
            };
            match next {
                Some(Down) if guarded => target.due = true,
                Some(state) => {
                    target.state = state;
                    changes.turned.push((id, state));
                }
                None => {}
            }
        }
        if outcome != Pass {
            self.judge(now, &mut changes);
        }
        changes
    }

    fn judge(&mut self, now: u64, changes: &mut Changes) {
        if !self.guarded() {
            if self.fault {
                changes.local_failure = Some(false);
                self.targets.iter_mut().for_each(|target| target.run.clear());
            }
            self.fault = false;
            self.give(changes);
        }
        let Some(since) = self.since.filter(|_| !self.fault) else { return };
        let span = self.targets.iter().map(|target| target.group.4).max().unwrap_or(0);
        let (backends, pools) = self.distinct(|id| self.silent.contains(&id));
        let all = self.targets.iter().all(|target| self.silent.contains(&target.id));
        if backends >= 3 && pools >= 2 {
            if all || now >= since + span {
                self.fault = true;
                changes.local_failure = Some(true);
                self.targets.iter_mut().for_each(|target| target.due = false);
            }
        } else if now >= since + span {
            self.give(changes);
            (self.silent, self.since) = (Vec::new(), None);
        }
    }

    fn give(&mut self, changes: &mut Changes) {
        for target in self.targets.iter_mut().filter(|target| target.due) {
            (target.due, target.state) = (false, Down);
            changes.turned.push((target.id, Down));
        }
    }

    fn remove(&mut self, id: u32) {
        self.targets.retain(|target| target.id != id);
        self.silent.retain(|silent| *silent != id);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Result(u32, u8),
    Wait(u64),
    /// Removes some targets and adds others at the same time.
    Set(Vec<u32>, Vec<(u32, Group)>),
    Regroup(u32, Group),
}

fn group() -> impl Strategy<Value = Group> {
    (
        0..5u8,
        proptest::collection::btree_set(0..3u8, 1..3),
        1..4u32,
        1..4u32,
        prop_oneof![Just(1_000u64), Just(3_000)],
        any::<bool>(),
    )
        .prop_map(|(backend, pools, rise, fall, span, serving)| {
            (backend, pools.into_iter().collect(), rise, fall, span, serving)
        })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        // Kinds 0 to 4 are failures, kind 5 is a local failure, and all other kinds are passes, so
        // that runs of failures are likely.
        24 => (0..7u32, 0..8u8).prop_map(|(id, kind)| Op::Result(id, kind)),
        4 => prop_oneof![0..300u64, 900..3_200u64].prop_map(Op::Wait),
        1 => (vec(0..7u32, 0..3), vec((0..7u32, group()), 0..4)).prop_map(|(out, new)| Op::Set(out, new)),
        1 => (0..7u32, group()).prop_map(|(id, group)| Op::Regroup(id, group)),
    ]
}

/// Converts a group to the arguments of `insert`.
fn translated(group: &Group) -> (Rules, Arc<str>, Vec<Arc<str>>) {
    let (backend, pools, rise, fall, span, serving) = group;
    let pools = pools.iter().map(|pool| format!("p{pool}").into()).collect();
    let first_fall = if *serving { *fall } else { 1 };
    let span = Duration::from_millis(*span);
    let rules = Rules { rise: *rise, fall: *fall, first_fall, span, answers: true, holds: true };
    (rules, format!("b{backend}").into(), pools)
}

fn sorted(mut changes: Changes) -> Changes {
    changes.turned.sort_by_key(|(id, _)| *id);
    changes
}

fn apply(op: Op, now: &mut u64, health_states: &mut HealthStates, model: &mut Model) -> (Changes, Changes) {
    let (mut fast, mut slow) = (Changes::default(), Changes::default());
    match op {
        Op::Result(id, kind) => {
            let outcome = [Fail, Fail, Fail, Fail, Fail, Local, Pass, Pass][usize::from(kind)];
            fast = at(health_states, *now, id, outcome);
            slow = model.result(id, outcome, *now);
            return (sorted(fast), sorted(slow));
        }
        Op::Wait(by) => *now += by,
        Op::Set(out, new) => {
            for id in out {
                health_states.remove(id);
                model.remove(id);
            }
            for (id, group) in new {
                health_states.remove(id);
                model.remove(id);
                let (rules, backend, pools) = translated(&group);
                health_states.insert(id, rules, backend, pools);
                model.targets.push(ModelTarget { id, group, state: Unknown, run: Vec::new(), due: false });
            }
        }
        Op::Regroup(id, group) => {
            let (rules, backend, pools) = translated(&group);
            health_states.regroup(id, rules, backend, pools);
            for target in model.targets.iter_mut().filter(|target| target.id == id) {
                target.group = group.clone();
            }
        }
    }
    health_states.decide(Duration::from_millis(*now), &mut fast);
    model.judge(*now, &mut slow);
    (sorted(fast), sorted(slow))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    // Promise: isolated-machine
    #[test]
    fn agrees_with_the_model(first in vec(group(), 0..7), ops in vec(op(), 0..120)) {
        let (mut health_states, mut model, mut now) = (HealthStates::new(), Model::default(), 0);
        let first = (0..).zip(first).collect();
        for (n, op) in std::iter::once(Op::Set(Vec::new(), first)).chain(ops).enumerate() {
            let words = format!("step {n}, {op:?}");
            let (fast, slow) = apply(op, &mut now, &mut health_states, &mut model);
            prop_assert_eq!(fast, slow, "{}", words);
            prop_assert_eq!(health_states.local_failure, model.fault, "{}", &words);
            for target in &model.targets {
                let count = health_states.count(target.id).unwrap();
                prop_assert_eq!((count.state, count.held), (target.state, target.due), "{}", &words);
            }
        }
    }

    /// Checks a machine that loses its network at an arbitrary moment. From then on, each attempt
    /// fails, and each target is probed once within its span.
    #[test]
    fn no_down_verdict_leaves_a_machine_that_is_cut_off(
        before in vec((0..6u32, any::<bool>(), 0..200u64), 0..60),
        rounds in vec(Just((0..6u32).collect::<Vec<_>>()).prop_shuffle(), 1..6),
        fall in 1..4u32,
        pause in 1..160u64,
    ) {
        let mut health_states = watching(&["p", "p", "q", "q", "r", "r"], rules(2, fall));
        let mut now = 0;
        for (id, passes, wait) in before {
            now += wait;
            at(&mut health_states, now, id, if passes { Pass } else { Fail });
        }
        // A pass ends an earlier silence, so that the following silence starts with the network
        // failure.
        at(&mut health_states, now, 0, Pass);
        for id in rounds.into_iter().flatten() {
            now += pause;
            let mut changes = at(&mut health_states, now, id, Fail);
            health_states.decide(Duration::from_millis(now), &mut changes);
            prop_assert!(changes.turned.is_empty());
        }
        prop_assert!(health_states.local_failure);
    }
}
