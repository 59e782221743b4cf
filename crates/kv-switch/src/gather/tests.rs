//! Tests how keys are assigned to parts. The tests in `memcached/tests` cover whole requests.

use super::*;
use crate::{Ask, Datagram, Memcached};

const MEMCACHED: Memcached = Memcached::new(40);

fn request(keys: &str) -> (Vec<u8>, Ask) {
    let payload = [b"\0\0\0\0\0\x01\0\0get ", keys.as_bytes(), b"\r\n"].concat();
    let ask = MEMCACHED.read(Datagram::whole(&payload)).unwrap();
    (payload, ask)
}

fn value(start: u16) -> Content {
    Content::Value(Value { start, len: 1, flags: 0, cas: 0 })
}

#[test]
fn keys_are_bounded() {
    let names = |count: usize| (0..count).map(|n| format!("k{n}")).collect::<Vec<_>>().join(" ");
    let gather = |keys: &str, none: Option<usize>| {
        let (payload, ask) = request(keys);
        let request = Request { payload: &payload, ask: &ask };
        Gather::new(&MEMCACHED, &request, &mut |key, _| (Some(key) != none).then_some(0))
            .map(|gather| gather.part(0).count())
    };
    assert_eq!(gather(&names(32), None), Some(32));
    assert_eq!(gather(&names(33), None), None);
    assert_eq!(gather(&names(32), Some(31)), None); // the last key has no server
    assert_eq!(gather("k k k", None), Some(1)); // each key is requested once
}

#[test]
fn a_key_is_filled_once_by_its_own_part() {
    let (payload, ask) = request("a b a c");
    let request = Request { payload: &payload, ask: &ask };
    let mut seen = Vec::new();
    let mut gather = Gather::new(&MEMCACHED, &request, &mut |number, key| {
        seen.push((number, key.to_vec()));
        Some(u8::from(key == b"c"))
    })
    .unwrap();
    assert_eq!(seen, [(0, b"a".to_vec()), (1, b"b".to_vec()), (2, b"a".to_vec()), (3, b"c".to_vec())]);
    let names = |gather: &Gather, part| {
        gather.part(part).map(|item| item.bytes(&payload).to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(
        (names(&gather, 0), names(&gather, 1)),
        (vec![b"a".to_vec(), b"b".to_vec()], vec![b"c".to_vec()])
    );
    let mut answer = |part, frame, key: &[u8], content| {
        let arrival = Arrival { part, frame, answer: Answer { key, content } };
        (
            gather.answer(&MEMCACHED, &request, &arrival),
            gather.place(0).map(|place| place.frame),
            gather.waits_for(0),
        )
    };
    // The key belongs to a different part.
    assert_eq!(answer(1, 1, b"a", value(9)), (Progress::Unchanged, None, true));
    // The request does not contain this key.
    assert_eq!(answer(0, 2, b"x", value(9)), (Progress::Unchanged, None, true));
    assert_eq!(answer(0, 3, b"a", value(9)), (Progress::Waiting, Some(3), true));
    assert_eq!(answer(0, 4, b"a", Content::Missing), (Progress::Unchanged, Some(3), true));
    assert_eq!(answer(0, 5, b"a", Content::TooLong), (Progress::Unchanged, Some(3), true));
    assert_eq!(answer(0, 6, b"b", Content::Missing), (Progress::Waiting, Some(3), false));
    assert_eq!(answer(1, 7, b"c", value(4)), (Progress::Complete, Some(3), false));
    assert_eq!(answer(1, 8, b"c", value(5)), (Progress::Unchanged, Some(3), false));
    let places: Vec<Option<u32>> = (0..5).map(|key| gather.place(key).map(|place| place.frame)).collect();
    assert_eq!(places, [Some(3), None, Some(3), Some(7), None]);
    assert!(gather.frames().eq([3, 7]));
}

#[test]
fn a_late_part_fails_the_request_or_its_keys_are_missing() {
    let (payload, ask) = request("a b c");
    let request = Request { payload: &payload, ask: &ask };
    let new = || Gather::new(&MEMCACHED, &request, &mut |number, _| u8::try_from(number).ok()).unwrap();
    let answer = |gather: &mut Gather, part, key: &[u8], content| {
        gather.answer(&MEMCACHED, &request, &Arrival { part, frame: 9, answer: Answer { key, content } })
    };
    let mut gather = new();
    assert_eq!(answer(&mut gather, 0, b"a", value(1)), Progress::Waiting);
    // All keys of the part already have an answer.
    assert_eq!(gather.expire(0, Late::Fails), Progress::Unchanged);
    assert_eq!(gather.expire(1, Late::Fails), Progress::Failed);
    assert!(!gather.waits_for(1) && !gather.waits_for(2));
    assert_eq!(answer(&mut gather, 2, b"c", value(1)), Progress::Unchanged);
    assert_eq!(gather.expire(2, Late::IsMissing), Progress::Unchanged);

    let mut gather = new();
    assert_eq!(gather.expire(1, Late::IsMissing), Progress::Waiting);
    // the part has already timed out
    assert_eq!(answer(&mut gather, 1, b"b", value(1)), Progress::Unchanged);
    assert_eq!(answer(&mut gather, 0, b"a", value(1)), Progress::Waiting);
    assert_eq!(gather.expire(2, Late::IsMissing), Progress::Complete);
    assert_eq!([0, 1, 2].map(|key| gather.place(key).is_some()), [true, false, false]);

    let mut gather = new();
    assert_eq!(answer(&mut gather, 0, b"a", Content::TooLong), Progress::Failed);
    assert_eq!(answer(&mut gather, 1, b"b", value(1)), Progress::Unchanged);
}
