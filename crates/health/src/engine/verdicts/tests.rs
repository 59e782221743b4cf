//! Verdicts by hand, and against a model that keeps whole lists and recomputes everything at each step.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::HealthState::{Down, Unknown, Up};
use super::Outcome::{Fail, Local, Pass};
use super::*;

const SPAN: Duration = Duration::from_millis(1_000);

fn rules(rise: u32, fall: u32) -> Rules {
    Rules { rise, fall, first_fall: 1, span: SPAN }
}

/// Targets with a backend each, and their pools.
fn watching(pools: &[&str], rules: Rules) -> Verdicts {
    let mut verdicts = Verdicts::new();
    for (id, pool) in (0u32..).zip(pools) {
        verdicts.insert(id, rules, format!("b{id}").into(), vec![(*pool).into()]);
    }
    verdicts.decide(Duration::ZERO, &mut Changes::default());
    verdicts
}

fn at(verdicts: &mut Verdicts, ms: u64, id: u32, outcome: Outcome) -> Changes {
    let mut changes = Changes::default();
    verdicts.result(id, outcome, Duration::from_millis(ms), &mut changes);
    changes
}

fn turned(turned: &[(u32, HealthState)]) -> Changes {
    Changes { turned: turned.to_vec(), local_failure: None }
}

#[test]
fn rise_and_fall_count_in_a_row_and_the_first_result_decides_alone() {
    let mut verdicts = watching(&["p"], rules(2, 3));
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
        assert_eq!(at(&mut verdicts, n * 100, 0, outcome), turned(&wanted), "step {n}");
    }
}

#[test]
fn the_first_result_of_a_target_that_serves_decides_only_if_it_passes() {
    let serves = Rules { first_fall: 3, ..rules(2, 3) };
    let mut verdicts = watching(&["p"], serves);
    for n in 0..2 {
        assert_eq!(at(&mut verdicts, n, 0, Fail), turned(&[]), "failure {n}");
    }
    assert_eq!(at(&mut verdicts, 2, 0, Fail), turned(&[(0, Down)]), "`fall` failures");
    let mut verdicts = watching(&["p"], serves);
    assert_eq!(at(&mut verdicts, 0, 0, Fail), turned(&[]));
    assert_eq!(at(&mut verdicts, 1, 0, Pass), turned(&[(0, Up)]));
}

#[test]
fn what_this_machine_could_not_ask_turns_nothing() {
    let mut verdicts = watching(&["p"], rules(1, 1));
    assert_eq!(at(&mut verdicts, 0, 0, Local), turned(&[]));
    at(&mut verdicts, 1, 0, Pass);
    assert_eq!(at(&mut verdicts, 2, 0, Local), turned(&[]));
    assert_eq!(at(&mut verdicts, 3, 0, Fail), turned(&[(0, Down)]));
}

#[test]
fn a_down_verdict_leaves_with_the_next_pass_of_any_other() {
    let mut verdicts = watching(&["p", "p", "q"], rules(1, 1));
    for id in 0..3 {
        at(&mut verdicts, 0, id, Pass);
    }
    assert_eq!(at(&mut verdicts, 10, 0, Fail), turned(&[]));
    assert!(verdicts.wants_confirmation() && verdicts.can_confirm(1) && !verdicts.can_confirm(0));
    assert_eq!(at(&mut verdicts, 11, 2, Pass), turned(&[(0, Down)]));
    assert!(!verdicts.wants_confirmation());
}

#[test]
fn a_held_verdict_is_forgotten_when_its_own_target_passes() {
    let mut verdicts = watching(&["p", "p", "q"], rules(1, 1));
    for id in 0..3 {
        at(&mut verdicts, 0, id, Pass);
    }
    at(&mut verdicts, 10, 0, Fail);
    assert_eq!(at(&mut verdicts, 20, 0, Pass), turned(&[]));
    assert_eq!(at(&mut verdicts, 30, 1, Pass), turned(&[]));
    assert_eq!(verdicts.count(0).map(|count| count.state), Some(Up));
}

#[test]
fn when_all_fail_the_states_stay_until_one_passes_and_then_all_count_anew() {
    let mut verdicts = watching(&["p", "p", "q"], rules(1, 2));
    for id in 0..3 {
        at(&mut verdicts, 0, id, Pass);
    }
    for id in [0, 0, 0, 1, 1] {
        assert_eq!(at(&mut verdicts, 10, id, Fail), turned(&[]));
    }
    assert_eq!(at(&mut verdicts, 20, 2, Fail), Changes { local_failure: Some(true), ..turned(&[]) });
    for ms in 0..100 {
        assert_eq!(at(&mut verdicts, 30 + 100 * ms, 1, Fail), turned(&[]));
    }
    assert_eq!(at(&mut verdicts, 20_000, 2, Pass), Changes { local_failure: Some(false), ..turned(&[]) });
    assert_eq!(at(&mut verdicts, 20_001, 0, Fail), turned(&[]));
    assert_eq!(at(&mut verdicts, 20_002, 2, Pass), turned(&[]));
    assert_eq!(at(&mut verdicts, 20_003, 0, Fail), turned(&[]));
    assert_eq!(at(&mut verdicts, 20_004, 2, Pass), turned(&[(0, Down)]));
}

#[test]
fn a_start_into_a_dead_network_gives_no_verdict() {
    let mut verdicts = watching(&["p", "q", "q"], rules(1, 1));
    at(&mut verdicts, 0, 0, Fail);
    at(&mut verdicts, 1, 1, Fail);
    assert_eq!(at(&mut verdicts, 2, 2, Fail), Changes { local_failure: Some(true), ..turned(&[]) });
    assert_eq!(
        (0..3).filter_map(|id| verdicts.count(id)).map(|count| count.state).collect::<Vec<_>>(),
        [Unknown; 3]
    );
}

#[test]
fn one_pool_or_two_backends_are_never_this_machine() {
    for pools in [&["p", "p", "p", "p"][..], &["p", "q"][..]] {
        let mut verdicts = watching(pools, rules(1, 1));
        for id in 0..u32::try_from(pools.len()).unwrap() {
            assert_eq!(at(&mut verdicts, 0, id, Fail), turned(&[(id, Down)]));
        }
    }
}

#[test]
fn a_silence_with_too_few_failures_gives_what_is_held_when_it_is_whole() {
    let mut verdicts = watching(&["p", "p", "q"], rules(1, 1));
    at(&mut verdicts, 0, 0, Pass);
    at(&mut verdicts, 5, 0, Fail);
    assert_eq!(verdicts.deadline(), Some(Duration::from_millis(1_005)));
    let mut changes = Changes::default();
    verdicts.decide(Duration::from_millis(1_004), &mut changes);
    assert_eq!(changes, turned(&[]));
    verdicts.decide(Duration::from_millis(1_005), &mut changes);
    assert_eq!(changes, turned(&[(0, Down)]));
    assert_eq!(verdicts.deadline(), None);
}

#[test]
fn local_failure_ends_when_the_set_no_longer_allows_it() {
    let mut verdicts = watching(&["p", "p", "q"], rules(1, 1));
    for id in 0..3 {
        at(&mut verdicts, 0, id, Fail);
    }
    assert!(verdicts.local_failure);
    verdicts.remove(2);
    let mut changes = Changes::default();
    verdicts.decide(Duration::from_millis(5), &mut changes);
    assert_eq!(changes, Changes { local_failure: Some(false), ..turned(&[]) });
    assert_eq!(at(&mut verdicts, 10, 0, Fail), turned(&[(0, Down)]));
}

/// What the header of the room says, with lists instead of counters.
#[derive(Default)]
struct Model {
    targets: Vec<ModelTarget>,
    /// Targets that failed since the last pass, and the moment of the first failure.
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

/// Backend, pools, rise, fall, span; whether it serves already.
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
    /// Out with some, in with others, at one moment.
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
        // 0 to 4 fails, 5 is local, the rest passes; runs of failures are what matters.
        24 => (0..7u32, 0..8u8).prop_map(|(id, kind)| Op::Result(id, kind)),
        4 => prop_oneof![0..300u64, 900..3_200u64].prop_map(Op::Wait),
        1 => (vec(0..7u32, 0..3), vec((0..7u32, group()), 0..4)).prop_map(|(out, new)| Op::Set(out, new)),
        1 => (0..7u32, group()).prop_map(|(id, group)| Op::Regroup(id, group)),
    ]
}

/// Names and rules as the verdicts take them.
fn translated(group: &Group) -> (Rules, Arc<str>, Vec<Arc<str>>) {
    let (backend, pools, rise, fall, span, serving) = group;
    let pools = pools.iter().map(|pool| format!("p{pool}").into()).collect();
    let first_fall = if *serving { *fall } else { 1 };
    let rules = Rules { rise: *rise, fall: *fall, first_fall, span: Duration::from_millis(*span) };
    (rules, format!("b{backend}").into(), pools)
}

fn sorted(mut changes: Changes) -> Changes {
    changes.turned.sort_by_key(|(id, _)| *id);
    changes
}

fn apply(op: Op, now: &mut u64, verdicts: &mut Verdicts, model: &mut Model) -> (Changes, Changes) {
    let (mut fast, mut slow) = (Changes::default(), Changes::default());
    match op {
        Op::Result(id, kind) => {
            let outcome = [Fail, Fail, Fail, Fail, Fail, Local, Pass, Pass][usize::from(kind)];
            fast = at(verdicts, *now, id, outcome);
            slow = model.result(id, outcome, *now);
            return (sorted(fast), sorted(slow));
        }
        Op::Wait(by) => *now += by,
        Op::Set(out, new) => {
            for id in out {
                verdicts.remove(id);
                model.remove(id);
            }
            for (id, group) in new {
                verdicts.remove(id);
                model.remove(id);
                let (rules, backend, pools) = translated(&group);
                verdicts.insert(id, rules, backend, pools);
                model.targets.push(ModelTarget { id, group, state: Unknown, run: Vec::new(), due: false });
            }
        }
        Op::Regroup(id, group) => {
            let (rules, backend, pools) = translated(&group);
            verdicts.regroup(id, rules, backend, pools);
            for target in model.targets.iter_mut().filter(|target| target.id == id) {
                target.group = group.clone();
            }
        }
    }
    verdicts.decide(Duration::from_millis(*now), &mut fast);
    model.judge(*now, &mut slow);
    (sorted(fast), sorted(slow))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn agrees_with_the_model(first in vec(group(), 0..7), ops in vec(op(), 0..120)) {
        let (mut verdicts, mut model, mut now) = (Verdicts::new(), Model::default(), 0);
        let first = (0..).zip(first).collect();
        for (n, op) in std::iter::once(Op::Set(Vec::new(), first)).chain(ops).enumerate() {
            let words = format!("step {n}, {op:?}");
            let (fast, slow) = apply(op, &mut now, &mut verdicts, &mut model);
            prop_assert_eq!(fast, slow, "{}", words);
            prop_assert_eq!(verdicts.local_failure, model.fault, "{}", &words);
            for target in &model.targets {
                let count = verdicts.count(target.id).unwrap();
                prop_assert_eq!((count.state, count.held), (target.state, target.due), "{}", &words);
            }
        }
    }

    /// The machine breaks in the midst of anything: from then on each attempt fails, and each target shows itself within
    /// its span.
    #[test]
    fn no_down_verdict_leaves_a_machine_that_is_cut_off(
        before in vec((0..6u32, any::<bool>(), 0..200u64), 0..60),
        rounds in vec(Just((0..6u32).collect::<Vec<_>>()).prop_shuffle(), 1..6),
        fall in 1..4u32,
        pause in 1..160u64,
    ) {
        let mut verdicts = watching(&["p", "p", "q", "q", "r", "r"], rules(2, fall));
        let mut now = 0;
        for (id, passes, wait) in before {
            now += wait;
            at(&mut verdicts, now, id, if passes { Pass } else { Fail });
        }
        // A pass just before: no silence is under way, so what follows is of the cut alone.
        at(&mut verdicts, now, 0, Pass);
        for id in rounds.into_iter().flatten() {
            now += pause;
            let mut changes = at(&mut verdicts, now, id, Fail);
            verdicts.decide(Duration::from_millis(now), &mut changes);
            prop_assert!(changes.turned.is_empty());
        }
        prop_assert!(verdicts.local_failure);
    }
}
