use admin::{OverrideNote, VipAction};
use proptest::prelude::*;

use super::*;

const TIMES: Times = Times {
    hold_down: Duration::from_secs(10),
    longest: Duration::from_secs(60),
    half_life: Duration::from_secs(30),
    max_stall: Duration::from_secs(3),
};

fn rules(min: usize, back: usize) -> BTreeMap<Arc<str>, Rules> {
    let rules = Rules {
        vip: "www".into(),
        announced: true,
        heard: true,
        min_serving: min,
        return_serving: back,
        remotes: min == 1,
        ..Rules::default()
    };
    BTreeMap::from([("www".into(), rules)])
}

fn seen(serving: usize) -> Seen {
    let service =
        |serving| ServiceSeen { name: "www tcp 80".into(), family: None, serving, elsewhere: false };
    let services = BTreeMap::from([("www".to_owned(), vec![service(9), service(serving)])]);
    Seen { fault: None, set_up: true, services }
}

/// Returns an observation with a missing XDP program.
fn gone(serving: usize) -> Seen {
    Seen { fault: Some(Fault { why: "gone".into(), stalled: None }), ..seen(serving) }
}

fn stalled(seconds: u64, serving: usize) -> Seen {
    let stalled = Some(Duration::from_secs(seconds));
    Seen { fault: Some(Fault { why: "stuck".into(), stalled }), ..seen(serving) }
}

fn held(seconds: u64) -> VipStatus {
    VipStatus::HeldDown(Duration::from_secs(seconds))
}

fn forwarder(why: &str) -> Why {
    Why::Forwarder(why.into())
}

struct Bed(Decider, BTreeMap<Arc<str>, Rules>);

impl Bed {
    fn at(&mut self, second: u64, seen: &Seen) -> VipStatus {
        self.0.decide(&self.1, TIMES, seen, Duration::from_secs(second)).remove("www").unwrap()
    }
}

#[test]
fn vip_is_withdrawn_immediately_and_returns_after_hold_down() {
    let mut bed = Bed(Decider::default(), rules(2, 3));
    assert_eq!(bed.at(1, &seen(2)), VipStatus::Announced, "the first announcement has no hold-down");
    let few = |wanted| {
        VipStatus::Withdrawn(Why::TooFew { service: "www tcp 80".into(), serving: wanted - 1, wanted })
    };
    assert_eq!(bed.at(2, &seen(1)), few(2));
    assert_eq!(bed.at(3, &seen(2)), few(3), "return_serving applies after a withdrawal");
    assert_eq!(bed.at(4, &seen(3)), VipStatus::HeldDown(Duration::from_secs(10)));
    assert_eq!(bed.at(13, &seen(3)), VipStatus::HeldDown(Duration::from_secs(1)));
    assert_eq!(bed.at(14, &seen(3)), VipStatus::Announced);
    assert_eq!(bed.at(15, &seen(2)), VipStatus::Announced, "min_serving applies while announced");
    assert_eq!((bed.0.withdrawals("www"), bed.0.since("www")), (1, Duration::from_secs(14)));
}

#[test]
fn withdrawal_after_reload_has_no_hold_down() {
    let mut bed = Bed(Decider::default(), rules(2, 2));
    bed.at(1, &seen(2));
    bed.0.reloaded(Duration::from_secs(20));
    bed.1 = rules(3, 3);
    assert!(matches!(bed.at(20, &seen(2)), VipStatus::Withdrawn(Why::TooFew { .. })));
    assert_eq!(bed.at(21, &seen(3)), VipStatus::Announced, "the new backend has its first result");
    assert_eq!(bed.0.withdrawals("www"), 0);
    bed.at(29, &gone(3));
    assert_eq!(bed.at(29, &seen(3)), held(10), "a fault of the forwarder is not caused by the reload");
    assert_eq!(bed.at(39, &seen(3)), VipStatus::Announced);
    bed.at(40, &seen(2));
    assert_eq!(bed.at(40, &seen(3)), held(10), "the reload is more than 10 s ago");
}

#[test]
fn short_stall_marks_and_long_stall_withdraws_without_hold_down() {
    let mut bed = Bed(Decider::default(), rules(2, 3));
    assert_eq!(bed.at(1, &seen(2)), VipStatus::Announced);
    for second in [2, 3, 4] {
        assert_eq!(bed.at(second, &stalled(second - 2, 2)), VipStatus::Marked(forwarder("stuck")));
    }
    assert_eq!(bed.at(5, &seen(2)), VipStatus::Announced);
    assert_eq!(bed.0.withdrawals("www"), 0);
    assert!(matches!(bed.at(6, &stalled(1, 1)), VipStatus::Withdrawn(Why::TooFew { .. })));
    bed.0.clear("www");
    assert_eq!(bed.at(7, &seen(2)), VipStatus::Announced);
    for second in [10, 20, 30] {
        assert_eq!(bed.at(second, &stalled(3, 2)), VipStatus::Withdrawn(forwarder("stuck")));
        assert_eq!(bed.at(second + 1, &stalled(4, 2)), VipStatus::Withdrawn(forwarder("stuck")));
        assert_eq!(bed.at(second + 2, &seen(2)), VipStatus::Announced, "{second}");
    }
    assert_eq!(bed.at(33, &gone(2)), VipStatus::Withdrawn(forwarder("gone")), "a certain fault");
    assert_eq!(bed.at(34, &seen(2)), held(10), "min_serving suffices after a fault of the forwarder");
    assert_eq!(bed.0.not_announced("www"), Duration::from_secs(1 + 3 * 2 + 1));
}

#[test]
fn causes_have_separate_penalties() {
    let mut bed = Bed(Decider::default(), rules(2, 2));
    bed.at(0, &seen(2));
    let (mut now, mut last) = (0, Duration::ZERO);
    for _ in 0..3 {
        bed.at(now, &seen(1));
        let VipStatus::HeldDown(wait) = bed.at(now, &seen(2)) else { panic!("not held down") };
        assert!(wait > last, "the hold-down grows with each withdrawal");
        now += wait.as_secs() + 1;
        assert_eq!(bed.at(now, &seen(2)), VipStatus::Announced);
        last = wait;
    }
    assert_eq!(bed.at(now, &gone(2)), VipStatus::Withdrawn(forwarder("gone")));
    assert_eq!(bed.at(now + 1, &seen(2)), held(10), "the first fault of the forwarder");
    // Too few backends during the hold-down of the forwarder do not extend this hold-down.
    assert!(matches!(bed.at(now + 4, &seen(1)), VipStatus::Withdrawn(Why::TooFew { .. })));
    assert_eq!(bed.at(now + 11, &seen(2)), VipStatus::Announced);
    // A stall during the hold-down of the backends does not extend that hold-down either.
    bed.at(now + 20, &seen(1));
    let VipStatus::HeldDown(left) = bed.at(now + 20, &seen(2)) else { panic!("not held down") };
    bed.at(now + 21, &stalled(1, 2));
    let later = bed.at(now + 22, &seen(2));
    assert_eq!(later, VipStatus::HeldDown(left - Duration::from_secs(2)));
    bed.0.clear("other");
    assert_eq!(bed.at(now + 22, &seen(2)), later);
    bed.0.clear("www");
    assert_eq!(bed.at(now + 22, &seen(2)), VipStatus::Announced);
}

#[test]
fn penalty_halves_in_its_half_life_and_is_limited() {
    let mut damping = Damping::default();
    let mut withdrawn = |seconds| {
        let now = Duration::from_secs(seconds);
        damping.withdrawn(TIMES, now);
        damping.left(now).as_secs_f64()
    };
    let about = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}");
    about(withdrawn(0), 10.0);
    about(withdrawn(0), 20.0);
    about(withdrawn(0), 40.0);
    about(withdrawn(0), 60.0);
    about(withdrawn(0), 60.0);
    // The penalty was limited to 1 + log2(6), about 3.585, and has halved.
    about(withdrawn(30), 10.0 * (3.584_962_5_f64 / 2.0).exp2());
    about(withdrawn(3_600), 10.0);
    let mut none = Damping::default();
    none.withdrawn(Times { hold_down: Duration::ZERO, ..TIMES }, Duration::ZERO);
    none.withdrawn(Times { longest: Duration::ZERO, hold_down: Duration::ZERO, ..TIMES }, Duration::ZERO);
    assert_eq!(none.left(Duration::ZERO), Duration::ZERO);
}

#[test]
fn missing_condition_is_reported_as_the_reason() {
    let mut bed = Bed(Decider::default(), rules(1, 1));
    let starting = Seen { set_up: false, ..seen(9) };
    assert_eq!(bed.at(1, &starting), VipStatus::Withdrawn(Why::Starting));
    assert_eq!(bed.at(1, &gone(9)), VipStatus::Withdrawn(forwarder("gone")));
    assert_eq!(bed.at(1, &stalled(1, 9)), VipStatus::Withdrawn(forwarder("stuck")), "not announced yet");
    for services in [BTreeMap::new(), BTreeMap::from([("www".to_owned(), Vec::new())])] {
        let nothing = Seen { services, ..seen(9) };
        assert_eq!(bed.at(1, &nothing), VipStatus::Withdrawn(Why::Unknown));
    }
    bed.1 = rules(1, 1).into_iter().map(|(name, rules)| (name, Rules { heard: false, ..rules })).collect();
    assert_eq!(bed.at(2, &seen(9)), VipStatus::Withdrawn(Why::NoPeer));
    bed.1 = BTreeMap::from([("www".into(), Rules::default())]);
    assert_eq!(bed.at(2, &seen(9)), VipStatus::Withdrawn(Why::NotWanted));
}

#[test]
fn each_address_family_has_its_own_status() {
    let family =
        |family, serving| ServiceSeen { name: "www tcp 80".into(), family, serving, elsewhere: false };
    let now = |v4, v6| {
        let services = vec![family(None, 9), family(Some(Family::V4), v4), family(Some(Family::V6), v6)];
        Seen { services: BTreeMap::from([("www".to_owned(), services)]), ..seen(9) }
    };
    let of = |family| Rules { family, ..rules(2, 2).remove("www").unwrap() };
    let labels = [("www IPv4", Some(Family::V4)), ("www IPv6", Some(Family::V6)), ("www", None)];
    let rules = labels.map(|(name, family)| (Arc::from(name), of(family))).into();
    let mut decider = Decider::default();
    let mut up = |v4, v6| {
        let statuses = decider.decide(&rules, TIMES, &now(v4, v6), Duration::ZERO);
        labels.map(|(name, _)| statuses[name] == VipStatus::Announced)
    };
    assert_eq!(up(2, 1), [true, false, false]);
    assert_eq!(up(2, 2), [true, true, true]);
    assert_eq!(up(1, 2), [false, true, false]);
}

#[test]
fn inherit_copies_the_hold_down_to_a_new_name() {
    let mut bed = Bed(Decider::default(), rules(2, 2));
    bed.at(1, &seen(2));
    bed.at(2, &seen(1));
    let name: Arc<str> = "www IPv4".into();
    bed.0.inherit("www", &name);
    bed.1.insert(Arc::clone(&name), bed.1["www"].clone());
    let statuses = bed.0.decide(&bed.1, TIMES, &seen(2), Duration::from_secs(3));
    assert_eq!(statuses[&name], VipStatus::HeldDown(Duration::from_secs(10)));
}

#[test]
fn another_cluster_qualifies_if_the_rules_allow_remotes() {
    let mut elsewhere = seen(0);
    elsewhere.services.get_mut("www").unwrap()[1].elsewhere = true;
    let mut bed = Bed(Decider::default(), rules(1, 1));
    assert_eq!(bed.at(1, &elsewhere), VipStatus::Announced);
    bed.1 = rules(2, 2);
    assert!(matches!(bed.at(2, &elsewhere), VipStatus::Withdrawn(Why::TooFew { .. })));
}

#[test]
fn removed_vip_loses_its_history() {
    let mut bed = Bed(Decider::default(), rules(1, 1));
    bed.at(1, &seen(1));
    bed.at(2, &seen(0));
    assert!(bed.0.decide(&BTreeMap::new(), TIMES, &seen(1), Duration::from_secs(3)).is_empty());
    assert_eq!(bed.at(4, &seen(1)), VipStatus::Announced);
}

/// Computes the expected decisions from the complete history. The algorithm differs from the one
/// under test.
fn model(history: &[(u64, usize)], min: usize, back: usize) -> Vec<bool> {
    let mut announced: Vec<bool> = Vec::new();
    for now in 0..history.len() {
        let (time, serving) = history[now];
        // The times at which announcements ended.
        let ends: Vec<usize> = (1..now).filter(|&n| announced[n - 1] && !announced[n]).collect();
        let before = now > 0 && announced[now - 1];
        let most = 1.0 + 6_f64.log2();
        let decayed =
            |penalty: f64, passed: u64| penalty * (-Duration::from_secs(passed).as_secs_f64() / 30.0).exp2();
        let penalty = ends.iter().fold((0.0, 0), |(penalty, last), &end| {
            ((decayed(penalty, history[end].0 - last) + 1.0).min(most), history[end].0)
        });
        let wait = Duration::from_secs(10).mul_f64((penalty.0 - 1.0).exp2());
        announced.push(if before {
            serving >= min
        } else {
            match ends.last() {
                None => serving >= min,
                Some(&end) => {
                    let run = (end..=now).rev().take_while(|&n| history[n].1 >= back).last();
                    run.is_some_and(|first| Duration::from_secs(time - history[first].0) >= wait)
                }
            }
        });
    }
    announced
}

proptest! {
    #[test]
    fn decisions_match_the_model(
        steps in prop::collection::vec((0_u64..25, 0_usize..4), 1..120),
        min in 1_usize..3,
        more in 0_usize..2,
    ) {
        let mut time = 0;
        let history: Vec<(u64, usize)> =
            steps.into_iter().map(|(passed, serving)| { time += passed; (time, serving) }).collect();
        let mut bed = Bed(Decider::default(), rules(min, min + more));
        let announced: Vec<bool> =
            history.iter().map(|&(time, serving)| bed.at(time, &seen(serving)) == VipStatus::Announced).collect();
        prop_assert_eq!(&announced, &model(&history, min, min + more));
        // A VIP is never announced without enough backends. The starts of two announcements are at
        // least the hold-down apart.
        let begins: Vec<u64> =
            (0..announced.len()).filter(|&n| announced[n] && (n == 0 || !announced[n - 1])).map(|n| history[n].0).collect();
        prop_assert!(begins.windows(2).all(|pair| pair[1] - pair[0] >= 10));
        prop_assert!(announced.iter().zip(&history).all(|(announced, (_, serving))| !announced || *serving >= min));
    }
}

fn order(action: VipAction, seconds: u64, now: u64) -> VipOverride {
    let note = OverrideNote {
        by: "uid 0".into(),
        reason: Some("a new kernel".into()),
        lasts: Some(Duration::from_secs(seconds)),
        then_down: None,
    };
    VipOverride::new(action, &note, Duration::from_secs(now))
}

#[test]
fn withdrawal_by_operator_has_no_hold_down_and_ends() {
    let mut bed = Bed(Decider::default(), rules(2, 3));
    bed.at(1, &seen(2));
    bed.0.overrides.give(&"www".into(), order(VipAction::Withdraw, 60, 2));
    let VipStatus::Withdrawn(why) = bed.at(3, &seen(3)) else { panic!("not withdrawn") };
    assert_eq!(why.to_string(), "withdrawn by uid 0, 59 s left, reason: a new kernel");
    assert_eq!(bed.0.overrides.expire(Duration::from_secs(61)).len(), 0);
    assert!(matches!(bed.at(61, &seen(1)), VipStatus::Withdrawn(Why::Operator { .. })));
    assert_eq!(bed.0.overrides.expire(Duration::from_secs(62)).len(), 1);
    assert_eq!(bed.at(62, &seen(2)), VipStatus::Announced, "min_serving suffices, without a hold-down");
    assert_eq!((bed.0.withdrawals("www"), bed.0.not_announced("www")), (0, Duration::from_secs(59)));
    bed.0.overrides.give(&"other".into(), order(VipAction::Withdraw, 60, 62));
    assert_eq!(bed.at(63, &seen(2)), VipStatus::Announced);
}

#[test]
fn announce_by_operator_suspends_flap_damping() {
    let mut bed = Bed(Decider::default(), rules(2, 3));
    for now in [1, 20, 60] {
        bed.at(now, &seen(3));
        bed.at(now + 1, &seen(1));
    }
    assert!(matches!(bed.at(62, &seen(3)), VipStatus::HeldDown(_)));
    bed.0.overrides.give(&"www".into(), order(VipAction::Announce, 10, 62));
    assert_eq!(bed.at(62, &seen(2)), VipStatus::Announced);
    assert!(matches!(bed.at(63, &seen(1)), VipStatus::Withdrawn(Why::TooFew { .. })), "only damping ends");
    assert_eq!(bed.at(64, &seen(2)), VipStatus::Announced);
    bed.0.overrides.expire(Duration::from_secs(72));
    bed.at(72, &seen(1));
    assert_eq!(bed.at(72, &seen(3)), held(10), "damping starts again without a penalty");
}

#[test]
fn reload_shortens_hold_down_and_never_extends_it() {
    let mut bed = Bed(Decider::default(), rules(2, 2));
    bed.at(1, &seen(2));
    bed.at(2, &seen(1));
    assert_eq!(bed.at(2, &seen(2)), held(10));
    let mut at = |second, times| {
        bed.0.decide(&bed.1, times, &seen(2), Duration::from_secs(second)).remove("www").unwrap()
    };
    let longer = Times { hold_down: Duration::from_secs(30), ..TIMES };
    assert_eq!(at(3, longer), held(9));
    let shorter = Times { hold_down: Duration::from_secs(4), ..TIMES };
    assert_eq!(at(4, shorter), held(2), "two of four seconds have passed");
    assert_eq!(at(4, TIMES), held(2));
    let capped = Times { hold_down: Duration::from_secs(1), longest: Duration::from_secs(1), ..TIMES };
    assert_eq!(at(4, capped), VipStatus::Announced);
}

// Promise: upgrade-hold-down
#[test]
fn next_process_continues_hold_downs_and_overrides() {
    let mut bed = Bed(Decider::default(), rules(2, 3));
    bed.at(1, &seen(2));
    bed.at(2, &seen(1));
    assert_eq!(bed.at(3, &seen(3)), held(10));
    bed.0.overrides.give(&"www".into(), order(VipAction::Withdraw, 6, 3));
    let text = serde_json::to_string(&bed.0.handed()).unwrap();
    let handed: HandedAnnouncements = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&handed).unwrap(), text);
    let mut next = Bed(Decider::default(), rules(2, 3));
    next.0.take(&handed);
    assert!(matches!(next.at(8, &seen(3)), VipStatus::Withdrawn(Why::Operator { seconds: 1, .. })));
    next.0.overrides.expire(Duration::from_secs(9));
    assert!(matches!(next.at(9, &seen(2)), VipStatus::Withdrawn(Why::TooFew { wanted: 3, .. })));
    assert_eq!(next.0.since("www"), Duration::from_secs(2));
    assert_eq!(next.at(10, &seen(3)), held(10), "too few backends served at 9 s");
    assert_eq!(next.at(20, &seen(3)), VipStatus::Announced);
    let mut healthy = Bed(Decider::default(), rules(2, 3));
    healthy.0.take(&next.0.handed());
    assert_eq!(healthy.at(21, &seen(2)), VipStatus::Announced, "an announced VIP stays announced");
}
