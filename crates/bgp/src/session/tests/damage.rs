//! Tests of peers that send random bytes, damaged messages or floods.

use proptest::prelude::*;

use super::super::*;
use super::bed::*;

fn established_by_hand() -> (Side, Instant) {
    against_hand(config(PEER), 90, &[MP_V4, MP_V6, (65, &[0, 0, 0xfd, 0xe8]), (6, &[])])
}

/// Encodes an UPDATE with these attributes and IPv4 prefixes.
fn update(attributes: &[u8], nlri: &[u8]) -> Vec<u8> {
    let len = u16::try_from(attributes.len()).unwrap().to_be_bytes();
    frame(2, &[&[0, 0], &len[..], attributes, nlri].concat())
}

const ORIGIN: &[u8] = &[0x40, 1, 1, 0];
const AS_PATH: &[u8] = &[0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe8];
const NEXT_HOP: &[u8] = &[0x40, 3, 4, 192, 0, 2, 0];
const PREFIX: &[u8] = &[24, 198, 51, 100];

#[test]
fn routes_of_the_peer_are_counted_and_dropped() {
    let (mut a, now) = established_by_hand();
    let good = update(&[ORIGIN, AS_PATH, NEXT_HOP].concat(), &PREFIX.repeat(100));
    for _ in 0..1_000 {
        a.session.received(&good, now);
    }
    let counts = a.session.counts();
    assert_eq!((a.session.end(), counts.ignored_prefixes, counts.tolerated_errors), (None, 100_000, 0));
}

#[test]
fn what_rfc_7606_lets_pass_is_counted_and_ends_nothing() {
    let bad_origin: &[u8] = &[0x40, 1, 1, 9];
    let bad_flags: &[u8] = &[0xc0, 1, 1, 0];
    let bad_community: &[u8] = &[0xc0, 8, 3, 1, 2, 3];
    let bad_med: &[u8] = &[0x80, 4, 3, 1, 2, 3];
    let overrun: &[u8] = &[0xc0, 8, 200, 1, 2, 3];
    let (mut a, now) = established_by_hand();
    for (n, bad) in [bad_origin, bad_flags, bad_community, bad_med, overrun].into_iter().enumerate() {
        let first = if bad[1] == 1 { bad } else { ORIGIN };
        let last = if bad[1] == 1 { &[] } else { bad };
        a.session.received(&update(&[first, AS_PATH, NEXT_HOP, last].concat(), PREFIX), now);
        let tolerated = a.session.counts().tolerated_errors;
        assert_eq!((a.session.end(), tolerated), (None, n as u64 + 1), "{bad:02x?}");
    }
}

#[test]
fn what_leaves_the_routes_unknown_ends_the_session() {
    let good = [ORIGIN, AS_PATH, NEXT_HOP].concat();
    let reach: &[u8] = &[0x80, 14, 5, 0, 2, 1, 0, 0];
    for bytes in [
        update(&good, &[33, 198, 51, 100, 0, 0]),
        update(&good, &[24, 198]),
        update(&[reach, reach].concat(), &[]),
        frame(2, &[0, 9, 1, 2]),
        frame(2, &[0, 0, 0, 200, 1]),
    ] {
        let (mut a, now) = established_by_hand();
        a.session.received(&bytes, now);
        a.take_all(now);
        assert_eq!(a.codes().map(|codes| codes.0), Some(3), "{bytes:02x?}: {:?}", a.session.end());
        let why = a.session.end().unwrap();
        assert!(why.starts_with("malformed message in Established"), "{why}");
    }
}

#[test]
fn garbage_is_refused_by_its_first_bytes() {
    let now = Instant::now();
    let mut wrong_marker = frame(KEEPALIVE, &[]);
    wrong_marker[7] = 0;
    let mut short = frame(KEEPALIVE, &[]);
    short[17] = 18;
    let mut huge_open = open(65_000, 90, &[]);
    huge_open[16..18].copy_from_slice(&5_000_u16.to_be_bytes());
    for (bytes, codes) in [
        (b"GET / HTTP/1.1\r\nHost: router\r\n\r\n".to_vec(), (1, 1)),
        (wrong_marker, (1, 1)),
        (short, (1, 2)),
        (huge_open, (1, 2)),
        (frame(9, &[]), (1, 3)),
        (frame(KEEPALIVE, &[0]), (1, 2)),
        (frame(1, &[3, 0xfd, 0xe8, 0, 90, 192, 0, 2, 0, 0]), (2, 1)),
    ] {
        let mut side = Side::new(US, config(PEER), &[], now);
        side.take_all(now);
        side.session.received(&bytes, now);
        side.take_all(now);
        assert_eq!(side.codes(), Some(codes), "{bytes:02x?}");
    }
}

#[test]
fn message_of_65535_bytes_is_read_byte_by_byte() {
    let (mut a, now) = established_by_hand();
    let attributes = [ORIGIN, AS_PATH, NEXT_HOP].concat();
    let count = (65_535 - 19 - 4 - attributes.len()) / 4;
    let bytes = update(&attributes, &PREFIX.repeat(count));
    assert!(bytes.len() > 65_530);
    for chunk in bytes.chunks(1) {
        a.session.received(chunk, now);
    }
    assert_eq!((a.session.end(), a.session.counts().ignored_prefixes), (None, count as u64));
}

#[test]
fn max_prefixes_ignores_repeated_prefixes() {
    let limited = PeerConfig { max_prefixes: Some(10), ..config(PEER) };
    let (mut a, now) = against_hand(limited, 90, &[MP_V4, (65, &[0, 0, 0xfd, 0xe8])]);
    let attributes = [ORIGIN, AS_PATH, NEXT_HOP].concat();
    let announce = |n: u8| update(&attributes, &[32, 198, 51, 100, n]);
    for n in (0..10).chain(0..10) {
        a.session.received(&announce(n), now);
    }
    a.session.received(&frame(2, &[0, 5, 32, 198, 51, 100, 3, 0, 0]), now);
    a.session.received(&announce(10), now);
    assert_eq!(a.session.end(), None, "ten prefixes after one was withdrawn and one added");
    a.session.received(&announce(11), now);
    a.take_all(now);
    assert_eq!(a.codes(), Some((6, 1)));
    assert_eq!(a.session.end(), Some("the peer announces more than 10 prefixes"));
}

/// Returns the messages of a long, valid session. The tests damage these messages.
fn good_frames() -> Vec<Vec<u8>> {
    let attributes = [ORIGIN, AS_PATH, NEXT_HOP].concat();
    let reach = [
        &[0x80, 14, 26, 0, 2, 1, 16][..],
        &[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
        &[0, 32, 0x20, 1, 0x0d, 0xb8],
    ];
    let unreach: &[u8] = &[0x80, 15, 8, 0, 2, 1, 32, 0x20, 1, 0x0d, 0xb8];
    let more: &[u8] =
        &[0x80, 4, 4, 0, 0, 0, 9, 0xc0, 8, 4, 0xfd, 0xe8, 0, 1, 0xc0, 16, 8, 0, 2, 0, 1, 0, 0, 0, 1];
    vec![
        frame(KEEPALIVE, &[]),
        update(&[&attributes, more].concat(), &PREFIX.repeat(3)),
        update(&[ORIGIN, AS_PATH, &reach.concat()].concat(), &[]),
        update(unreach, &[]),
        frame(2, &[0, 4, 24, 198, 51, 100, 0, 0]),
        frame(5, &[0, 1, 0, 1]),
        frame(5, &[0, 1, 0, 1, 1, 64, 0, 9, 0x80, 0, 0, 0, 1, 8, 16, 8, 198]),
        frame(3, b"\x06\x02\x04text"),
        open(65_000, 90, &[MP_V4, MP_V6, (64, &[0x40, 120, 0, 1, 1, 0x80]), (69, &[0, 1, 1, 3]), (70, &[])]),
    ]
}

#[derive(Clone, Debug)]
enum Damage {
    Flip(usize, u8),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Length(i16),
}

fn damage() -> impl Strategy<Value = Damage> {
    let inserted = (19..120_usize, proptest::collection::vec(any::<u8>(), 1..40));
    prop_oneof![
        4 => (19..120_usize, 1..=255_u8).prop_map(|(at, with)| Damage::Flip(at, with)),
        1 => (0..120_usize).prop_map(Damage::Cut),
        1 => inserted.prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        1 => (-40..40_i16).prop_map(Damage::Length),
    ]
}

fn apply(frame: &mut Vec<u8>, damage: &Damage) {
    match damage {
        Damage::Flip(at, with) => {
            let at = at % frame.len();
            frame[at] ^= with;
        }
        Damage::Cut(at) => frame.truncate((*at).max(1)),
        Damage::Insert(at, bytes) => {
            let at = at % frame.len();
            frame.splice(at..at, bytes.iter().copied());
        }
        Damage::Length(by) => {
            if let Some([hi, lo]) = frame.get_mut(16..18) {
                [*hi, *lo] = u16::from_be_bytes([*hi, *lo]).wrapping_add_signed(*by).to_be_bytes();
            }
        }
    }
}

/// Corrects the length in the header, so that damage reaches the body.
fn mend_length(frame: &mut [u8]) {
    let len = u16::try_from(frame.len()).unwrap().to_be_bytes();
    if let Some(field) = frame.get_mut(16..18) {
        field.copy_from_slice(&len);
    }
}

fn cases() -> ProptestConfig {
    let cases = if std::env::var_os("SLUICEGATE_LONG").is_some() { 200_000 } else { 4_000 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Checks the limits that must hold for every session after any input.
fn check_bounds(side: &mut Side, now: Instant) -> Result<(), TestCaseError> {
    let ended = side.session.end().is_some();
    let waiting = side.session.output(now).len();
    prop_assert!(waiting < 16_384 + 4_096, "{waiting} bytes wait");
    side.take_all(now);
    let notifications = side.said.iter().filter(|m| matches!(m, Message::Notification(_))).count();
    prop_assert!(notifications <= usize::from(ended), "{notifications} notifications");
    prop_assert_eq!(side.session.state() == State::Idle, ended);
    Ok(())
}

type Damaged = (usize, Vec<Damage>, bool);

fn damaged() -> impl Strategy<Value = Vec<Damaged>> {
    let one = (0..9_usize, proptest::collection::vec(damage(), 0..4), any::<bool>());
    proptest::collection::vec(one, 1..8)
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn damaged_messages_never_panic_and_end_a_session_once_at_most(order in damaged()) {
        let (mut side, now) = established_by_hand();
        let good = good_frames();
        for (n, list, mend) in &order {
            let mut frame = good[*n].clone();
            list.iter().for_each(|damage| apply(&mut frame, damage));
            if *mend {
                mend_length(&mut frame);
            }
            side.session.received(&frame, now);
            check_bounds(&mut side, now)?;
        }
    }

    #[test]
    fn damaged_opens_never_panic(list in proptest::collection::vec(damage(), 0..4), mend: bool) {
        let now = Instant::now();
        let mut side = Side::new(US, config(PEER), &["203.0.113.10/32"], now);
        let mut frame = good_frames().pop().unwrap();
        list.iter().for_each(|damage| apply(&mut frame, damage));
        if mend {
            mend_length(&mut frame);
        }
        side.session.received(&frame, now);
        check_bounds(&mut side, now)?;
    }

    #[test]
    fn any_bytes_behind_a_header_never_panic(
        kind in 0..8_u8,
        body in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let (mut side, now) = established_by_hand();
        side.session.received(&frame(kind, &body), now);
        check_bounds(&mut side, now)?;
    }
}
