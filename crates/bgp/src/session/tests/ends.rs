//! Tests of the reasons why sessions end: silence, half-open connections, peers that do not read,
//! and mismatches.

use super::super::*;
use super::bed::*;
use crate::config::Times;
use crate::route::Attributes;

/// Runs the timers of a session up to `until` and discards its output.
fn run_until(side: &mut Side, until: Instant) {
    while let Some(at) = side.session.deadline().filter(|&at| at <= until) {
        side.session.tick(at);
        side.take_all(at);
    }
}

fn quick() -> PeerConfig {
    PeerConfig { times: Times { hold: Duration::from_secs(9), ..Times::default() }, ..config(PEER) }
}

#[test]
fn hold_time_ends_a_silent_session() {
    let (mut a, _, now) = established(quick(), config(US), &[]);
    let before = a.said.len();
    run_until(&mut a, now + Duration::from_millis(8_999));
    assert_eq!(a.said.len() - before, 2, "KEEPALIVEs at 3 s and 6 s");
    assert_eq!(a.session.end(), None);
    run_until(&mut a, now + Duration::from_secs(9));
    assert_eq!(a.codes(), Some((4, 0)));
    assert_eq!(a.session.end(), Some("hold time expired: no message for 9s"));
}

#[test]
fn every_message_of_the_peer_puts_the_end_off() {
    let (mut a, _, mut now) = established(quick(), config(US), &[]);
    let messages = [frame(KEEPALIVE, &[]), frame(5, &[0, 1, 0, 1]), frame(2, &[0; 4])];
    for bytes in messages.iter().cycle().take(12) {
        now += Duration::from_secs(8);
        run_until(&mut a, now);
        a.session.received(bytes, now);
    }
    assert_eq!(a.session.end(), None);
}

#[test]
fn a_hold_time_of_zero_means_no_timers_at_all() {
    let endless = PeerConfig { times: Times { hold: Duration::ZERO, ..Times::default() }, ..config(PEER) };
    let (a, _, _) = established(endless, config(US), &[]);
    assert_eq!(a.session.deadline(), None);
}

#[test]
fn half_open_connection_ends_after_the_open_time() {
    let now = Instant::now();
    for (bytes, state) in [(vec![], "OpenSent"), (open(65_000, 0, &[MP_V4]), "OpenConfirm")] {
        let mut side = Side::new(US, config(PEER), &[], now);
        side.take_all(now);
        side.session.received(&bytes, now);
        run_until(&mut side, now + Duration::from_millis(29_999));
        assert_eq!(side.session.end(), None);
        run_until(&mut side, now + Duration::from_secs(30));
        assert_eq!(
            side.session.end().unwrap(),
            format!("no session within 30s: the connection is still in {state}")
        );
        assert_eq!(side.codes(), Some((4, 0)));
    }
}

#[test]
fn send_hold_time_ends_a_session_that_is_not_read() {
    let (mut a, _, mut now) = established(config(PEER), config(US), &[]);
    a.session.desire(Arc::new(table(&["203.0.113.10/32"])));
    assert!(!a.session.output(now).is_empty());
    let stuck = now;
    // The peer keeps sending, so that the hold time does not end the session.
    while a.session.end().is_none() {
        now = a.session.deadline().unwrap();
        a.session.tick(now);
        a.session.received(&frame(KEEPALIVE, &[]), now);
    }
    assert_eq!(now - stuck, Duration::from_secs(480));
    assert_eq!(a.session.end(), Some("send hold time expired: the peer read no data for 480s"));
    assert!(a.session.output(now).is_empty(), "a NOTIFICATION could not be delivered");
}

#[test]
fn a_peer_that_takes_a_byte_now_and_then_is_not_given_up() {
    let (mut a, _, mut now) = established(config(PEER), config(US), &[]);
    a.session.desire(Arc::new(table(&["203.0.113.10/32"])));
    for _ in 0..20 {
        now += Duration::from_secs(60);
        a.session.received(&frame(KEEPALIVE, &[]), now);
        a.session.tick(now);
        a.take(1, now);
    }
    assert_eq!(a.session.end(), None);
}

#[test]
fn wrong_numbers_in_an_open_are_told_apart() {
    let now = Instant::now();
    for (bytes, codes, why) in [
        (open(65_009, 90, &[MP_V4]), (2, 2), "AS mismatch: the peer reports AS 65009, expected 65000"),
        (open(65_000, 2, &[MP_V4]), (2, 6), "the peer's hold time of 2 s is not acceptable"),
    ] {
        let mut side = Side::new(US, config(PEER), &[], now);
        side.session.received(&bytes, now);
        side.take_all(now);
        assert_eq!((side.codes(), side.session.end()), (Some(codes), Some(why)));
    }
    let mut same = Side::new(PEER, config(PEER), &[], now);
    same.session.received(&open(65_000, 90, &[MP_V4]), now);
    assert_eq!(same.session.end(), Some("the peer's router ID 192.0.2.0 is not acceptable"));
}

#[test]
fn unexpected_message_gets_the_subcode_of_the_state() {
    let now = Instant::now();
    let update = frame(2, &[0; 4]);
    let mut side = Side::new(US, config(PEER), &[], now);
    side.session.received(&update, now);
    side.take_all(now);
    assert_eq!(side.codes(), Some((5, 1)));
    let mut side = Side::new(US, config(PEER), &[], now);
    side.session.received(&[open(65_000, 90, &[MP_V4]), update].concat(), now);
    side.take_all(now);
    assert_eq!(side.codes(), Some((5, 2)));
    let (mut side, now) = against_hand(config(PEER), 90, &[MP_V4]);
    side.session.received(&open(65_000, 90, &[MP_V4]), now);
    side.take_all(now);
    assert_eq!(side.codes(), Some((5, 3)));
}

#[test]
fn the_peers_reason_is_kept_and_nothing_is_answered() {
    let (mut a, _, now) = established(config(PEER), config(US), &["203.0.113.10/32"]);
    let said = a.said.len();
    a.session.received(&frame(3, b"\x06\x02\x07upgrade"), now);
    a.take_all(now);
    let why = "the peer ended the session: Administrative Shutdown (6/2: \"upgrade\")";
    assert_eq!((a.session.end(), a.said.len()), (Some(why), said));
}

#[test]
fn an_ended_session_takes_nothing_more() {
    let (mut a, _, now) = established(config(PEER), config(US), &[]);
    a.session.stop(&Stop::Deconfigured, now);
    a.session.stop(&Stop::BfdDown, now);
    a.session.received(&frame(3, &[6, 2]), now);
    a.session.tick(now + Duration::from_secs(10_000));
    assert_eq!((a.session.end(), a.session.deadline()), (Some("the peer was removed"), None));
    a.take_all(now);
    assert_eq!(a.codes(), Some((6, 3)));
}

#[test]
fn a_notification_goes_before_routes_that_have_not_been_begun() {
    let (mut a, _, now) = established(config(PEER), config(US), &[]);
    let mut routes = Routes::new();
    for n in 0..1_000_u16 {
        let [hi, lo] = n.to_be_bytes();
        let attributes = Attributes { med: Some(n.into()), ..Attributes::default() };
        routes.insert(Prefix::host([198, 18, hi, lo].into()), attributes).unwrap();
    }
    a.session.desire(Arc::new(routes));
    a.take(10, now);
    a.session.stop(&Stop::Deconfigured, now);
    let before = a.bytes.len();
    a.take_all(now);
    assert_eq!(a.codes(), Some((6, 3)));
    let rest = a.bytes.len() - before;
    assert!(rest < 200, "{rest} bytes after the partly written message");
}
