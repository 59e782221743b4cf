//! Tests of snapshots: inconsistent parts are refused, and replaced snapshots are freed.

use std::sync::Arc;

use forwarder::*;

use crate::bed::*;

#[test]
fn parts_that_point_nowhere_are_refused() {
    let mut no_slot = parts(gre_slots(2), &[1, 1]);
    no_slot.slots.pop();
    no_slot.states.pop();
    assert_eq!(Snapshot::new(no_slot).err(), Some(SnapshotError::NoSuchSlot(1)));
    let mut no_state = parts(gre_slots(2), &[1, 1]);
    no_state.states.pop();
    assert_eq!(Snapshot::new(no_state).err(), Some(SnapshotError::NoSuchSlot(1)));
    let mut no_service = parts(gre_slots(1), &[1]);
    no_service.bindings[0].service = 9;
    assert_eq!(Snapshot::new(no_service).err(), Some(SnapshotError::NoSuchService(9)));
    let mut clash = parts(gre_slots(1), &[1]);
    clash.bindings.push(binding(VIP4, 6, 80..=80, 1));
    assert_eq!(Snapshot::new(clash).err(), Some(SnapshotError::Clash("s0".into(), "s1".into())));
    let mut far = parts(gre_slots(1), &[1]);
    far.services[0].id = ServiceId(u32::MAX);
    assert_eq!(Snapshot::new(far).err(), Some(SnapshotError::TooMany));
}

#[test]
fn a_snapshot_takes_only_states_and_services_that_fit_it() {
    let snapshot = Snapshot::new(parts(gre_slots(2), &[1, 1])).unwrap();
    let down = snapshot.with_states(vec![SlotState::Down, SlotState::Serving]).unwrap();
    assert_eq!(
        [0, 1, 2].map(|n| down.state(SlotId(n))),
        [SlotState::Down, SlotState::Serving, SlotState::Free]
    );
    assert!(snapshot.with_states(vec![SlotState::Down]).is_err());
    let over = |slots: &[Slot], weights: &[u32]| -> Vec<Service> {
        let pool = pool(slots, weights);
        snapshot.services().iter().map(|s| Service { pool: Arc::clone(&pool), ..s.clone() }).collect()
    };
    assert!(snapshot.with_services(over(&gre_slots(3), &[1, 1, 1])).is_err());
    assert!(snapshot.with_services(over(snapshot.slots(), &[1])[..1].to_vec()).is_err());
    assert!(snapshot.with_services(over(snapshot.slots(), &[1])).is_ok());
}

#[test]
fn the_filter_has_each_vip_once() {
    let snapshot = Snapshot::new(parts(gre_slots(2), &[3, 2])).unwrap();
    assert_eq!(snapshot.filter(), [ip(VIP4), ip(VIP6)]);
}

#[test]
fn replaced_snapshot_is_freed_by_the_publisher() {
    let live = Live::new(Snapshot::new(parts(gre_slots(1), &[1])).unwrap());
    let mut reader = live.reader();
    let old = Arc::downgrade(reader.load());
    let mut next = parts(gre_slots(1), &[1]);
    next.generation = Generation(2);
    live.publish(Snapshot::new(next).unwrap());
    assert_eq!(live.reclaim(), 1, "the reader still holds the snapshot");
    assert_eq!(reader.load().generation(), Generation(2));
    assert!(old.upgrade().is_some(), "the reader does not free the snapshot");
    assert_eq!(live.reclaim(), 0);
    assert!(old.upgrade().is_none());
}
