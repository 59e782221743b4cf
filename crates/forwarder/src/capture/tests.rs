use super::*;
use crate::{DropReason, HashKey, NextHopMode, Parts};

fn tap(records: usize) -> (Box<Tap>, CaptureReceiver) {
    capture_tap(CaptureFilter::default(), TapSize { snap: 64, records, batch: 4 })
}

/// Returns a snapshot without VIPs.
fn empty() -> Snapshot {
    let parts = Parts {
        generation: Generation(2),
        hash_key: HashKey::new([5; 16]),
        services: Vec::new(),
        bindings: Vec::new(),
        groups: Vec::new(),
        slots: Vec::new(),
        states: Vec::new(),
        next_hop: NextHopMode::Resolve,
        own: Vec::new(),
        tunnels: Vec::new(),
        peers: None,
    };
    Snapshot::new(parts).unwrap()
}

fn frame(tags: usize, ethertype: u16, ip: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    for _ in 0..tags {
        bytes.extend([0x81, 0, 0, 7]);
    }
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(ip);
    bytes
}

#[test]
fn a_destination_is_found_behind_two_tags_and_in_no_other_frame() {
    let v4: Vec<u8> = (0..20).collect();
    let v6: Vec<u8> = (0..40).collect();
    for tags in 0..=2 {
        assert_eq!(destination(&frame(tags, 0x0800, &v4)), Some([16, 17, 18, 19].into()));
        let sixteen: [u8; 16] = std::array::from_fn(|n| v6[24 + n]);
        assert_eq!(destination(&frame(tags, 0x86dd, &v6)), Some(sixteen.into()));
    }
    assert_eq!(destination(&frame(3, 0x0800, &v4)), None);
    assert_eq!(destination(&frame(0, 0x0806, &v4)), None);
    for len in 0..frame(2, 0x86dd, &v6).len() {
        assert_eq!(destination(&frame(2, 0x86dd, &v6)[..len]), None, "{len}");
    }
}

#[test]
fn a_set_of_reasons_holds_what_was_put_in() {
    for reason in DropReason::ALL {
        let set: DropReasons = [*reason, DropReason::NoVip].into_iter().collect();
        for other in DropReason::ALL {
            assert_eq!(set.contains(*other), other == reason || *other == DropReason::NoVip);
        }
    }
}

#[test]
fn records_go_round_and_the_ring_is_as_large_as_was_asked() {
    let (mut tap, mut catch) = tap(3);
    let mut bytes = vec![9; 80];
    let packets = [Packet::new(&mut bytes, 0, 80, crate::Origin::Wire)];
    let snapshot = empty();
    let moment = Moment { time: Now::from_nanos(5), thread: ThreadId(1), generation: Generation(2) };
    let seen = Seen { place: 0, verdict: Verdict::Reply, service: None, slot: None, new_flow: false };
    for round in 0..10u64 {
        for _ in 0..5 {
            tap.begin(&packets);
            tap.offer(&seen, &[7; 100], &moment, &snapshot);
        }
        let counts =
            CaptureCounts { matched: 5 * (round + 1), taken: 3 * (round + 1), lost: 2 * (round + 1) };
        assert_eq!((catch.counts(), catch.next_time()), (counts, Some(moment.time)));
        for _ in 0..3 {
            let record = catch.pop().unwrap();
            assert_eq!(record.before(), Snapped { bytes: &[9; 64], whole: 80 });
            assert_eq!(record.after(), Some(Snapped { bytes: &[7; 64], whole: 100 }));
            catch.give_back(record);
        }
        assert!(catch.pop().is_none() && catch.next_time().is_none());
    }
    drop(catch);
    tap.begin(&packets);
    assert!(!tap.is_open());
}

#[test]
fn sizes_out_of_bounds_are_brought_within() {
    for (asked, given) in [(0, 64), (5_000, 2_048), (300, 300)] {
        let (tap, _catch) =
            capture_tap(CaptureFilter::default(), TapSize { snap: asked, records: 0, batch: 2 });
        assert_eq!((tap.snap, tap.scratch.len(), tap.empty.slots()), (given, 2 * given, 1));
    }
}
