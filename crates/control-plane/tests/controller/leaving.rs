//! Tests of backends that a reload removed: their checks continue until their drains end.

use super::*;

/// The states of the slots that no configured backend has.
fn gone(bed: &Bed) -> Vec<SlotState> {
    let slots = (0..).map(forwarder::SlotId).zip(bed.live.states());
    slots.filter(|(id, _)| bed.controller.index().of_slot(*id).is_none()).map(|(_, state)| *state).collect()
}

fn rows(bed: &Bed, backend: &str) -> Vec<admin::view::BackendState> {
    let rows = bed.controller.backend_rows(&bed.live, |_| Default::default(), None, &[]);
    rows.iter().filter(|row| row.name == backend).map(|row| row.state).collect()
}

#[test]
fn removed_backend_is_checked_until_its_drain_ends() {
    for checks in ["tcp", "vip"] {
        let text =
            |count| pool("web", 1, count, &format!("checks = [\"{checks}\"]")) + &vip("www", 10, "web");
        let mut bed = Bed::new(config(&text(3)));
        bed.say("web", HealthState::Up, 1);
        bed.settle(1);
        bed.job(Some(config(&text(2))), 10);
        assert_eq!((gone(&bed), bed.targets("web-3").len()), (vec![SlotState::Draining], 1), "{checks}");
        let with_flows = |bed: &Bed| bed.controller.removed_with_flows().into_iter().collect::<String>();
        assert_eq!(with_flows(&bed), "web-3");
        let watched = bed.controller.watched();
        assert!(watched.iter().all(|one| one.slot.is_some() == one.key.through.is_some()), "{watched:?}");

        bed.say("web-3", HealthState::Down, 11);
        assert_eq!(gone(&bed), [SlotState::Down], "its flows move");
        assert_eq!(with_flows(&bed), "", "an upgrade loses nothing");
        assert_eq!(rows(&bed, "web-3"), [admin::view::BackendState::Down]);
        let (totals, down) = bed.controller.state_totals(&bed.live);
        assert_eq!((totals.draining, totals.down, down), (0, 1, vec!["web-3 (removed)".to_owned()]));
        assert!(bed.settle(11) && !bed.settle(11), "the tables are not rebuilt again and again");
        bed.job(Some(config(&text(2))), 12);
        assert_eq!(gone(&bed), [SlotState::Down], "another reload keeps the health state");
        bed.say("web-3", HealthState::Up, 13);
        assert_eq!((gone(&bed), with_flows(&bed)), (vec![SlotState::Draining], "web-3".to_owned()));
        bed.say("web-3", HealthState::Down, 14);

        bed.tick(69);
        assert_eq!(bed.targets("web-3").len(), 1, "the drain time is 60 s");
        bed.tick(70);
        assert_eq!((gone(&bed), bed.targets("web-3").len()), (vec![SlotState::Free], 0));
        assert_eq!((bed.controller.leaving().count(), bed.controller.unknown()), (0, 0));
    }
}

#[test]
fn rebuilt_tables_end_the_checks_of_a_removed_backend() {
    let text = |count| pool("web", 1, count, "checks = [\"tcp\"]") + &vip("www", 10, "web");
    let mut bed = Bed::new(config(&text(3)));
    bed.say("web", HealthState::Up, 1);
    bed.settle(1);
    bed.job(Some(config(&text(2))), 10);
    bed.say("web-1", HealthState::Down, 69);
    assert_eq!(bed.controller.leaving().count(), 1);
    assert!(bed.settle(70));
    assert_eq!((bed.controller.leaving().count(), bed.targets("web-3").len()), (0, 0));
}

#[test]
fn removed_backend_that_returns_is_checked_as_configured() {
    let text = |count, checks| pool("web", 1, count, checks) + &vip("www", 10, "web");
    let mut bed = Bed::new(config(&text(3, "checks = [\"tcp\"]")));
    bed.say("web", HealthState::Up, 1);
    bed.job(Some(config(&text(2, "checks = [\"tcp\"]"))), 10);
    bed.say("web-3", HealthState::Down, 11);
    bed.job(Some(config(&text(3, "checks = [\"tcp\"]"))), 12);
    assert_eq!((bed.state("web-3"), bed.controller.leaving().count()), (SlotState::Down, 0));
    bed.say("web-3", HealthState::Up, 13);
    assert_eq!(bed.state("web-3"), SlotState::Serving);

    bed.job(Some(config(&text(2, "checks = [\"tcp\"]"))), 20);
    bed.say("web-3", HealthState::Down, 21);
    bed.job(Some(config(&text(3, "checks = []"))), 22);
    bed.settle(22);
    assert_eq!((bed.state("web-3"), bed.controller.leaving().count()), (SlotState::Serving, 0));
    assert!(!bed.settle(22));
}

#[test]
fn removed_vip_ends_the_checks_through_it() {
    let two = vip("www", 10, "web") + &vip("api", 11, "web");
    let text = |count, vips: &str| pool("web", 1, count, "checks = [\"vip\"]") + vips;
    let mut bed = Bed::new(config(&text(3, &two)));
    bed.say("web", HealthState::Up, 1);
    bed.job(Some(config(&text(2, &vip("www", 10, "web")))), 10);
    let left = bed.targets("web-3");
    let through = left.iter().filter_map(|one| one.through.as_ref()).map(|one| one.vip.to_string());
    assert_eq!(through.collect::<Vec<_>>(), ["203.0.113.10"]);
}
