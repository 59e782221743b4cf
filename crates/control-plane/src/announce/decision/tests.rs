use proptest::prelude::*;

use super::*;

const TIMES: Times = Times { hold_down: Duration::from_secs(10), longest: Duration::from_secs(60) };

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
    Seen { forwarder_fault: None, set_up: true, services }
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
    bed.at(29, &Seen { forwarder_fault: Some("gone".into()), ..seen(3) });
    assert_eq!(bed.at(29, &seen(3)), VipStatus::HeldDown(Duration::from_secs(10)));
    assert_eq!(bed.at(39, &seen(3)), VipStatus::Announced);
    bed.at(40, &seen(2));
    assert_eq!(
        bed.at(40, &seen(3)),
        VipStatus::HeldDown(Duration::from_secs(20)),
        "the reload is more than 10 s ago"
    );
}

#[test]
fn missing_condition_is_reported_as_the_reason() {
    let mut bed = Bed(Decider::default(), rules(1, 1));
    let starting = Seen { set_up: false, ..seen(9) };
    assert_eq!(bed.at(1, &starting), VipStatus::Withdrawn(Why::Starting));
    let ill = Seen { forwarder_fault: Some("gone".into()), ..seen(9) };
    assert_eq!(bed.at(1, &ill), VipStatus::Withdrawn(Why::Forwarder("gone".into())));
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
        // The times at which announcements ended, each with the duration of the announcement.
        let ends: Vec<(usize, u64)> = (1..now)
            .filter(|&n| announced[n - 1] && !announced[n])
            .map(|n| {
                let begin = (0..n).rev().take_while(|&m| announced[m]).last().unwrap();
                (n, history[n].0 - history[begin].0)
            })
            .collect();
        let before = now > 0 && announced[now - 1];
        // The number of consecutive withdrawals that followed a short announcement, counted back
        // from the last withdrawal.
        let short = ends.iter().rev().take_while(|(_, stayed)| *stayed < 60).count();
        let doublings = if short == ends.len() { short.saturating_sub(1) } else { short };
        let wait = (0..doublings).fold(10_u64, |wait, _| (wait * 2).min(60));
        announced.push(if before {
            serving >= min
        } else {
            match ends.last() {
                None => serving >= min,
                Some(&(end, _)) => {
                    let run = (end..=now).rev().take_while(|&n| history[n].1 >= back).last();
                    run.is_some_and(|first| time - history[first].0 >= wait)
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
