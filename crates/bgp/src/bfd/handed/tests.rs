use proptest::prelude::*;

use super::*;
use crate::bfd::packet::{Control, SessionState};

fn handed(number: u32, config: BfdConfig, now: Instant) -> Handed {
    let session = Session::new(number << 16 | number, config.interval_us(), config.multiplier, now);
    let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    Handed { config, session, since, losses: u64::from(number) }
}

fn configs() -> [BfdConfig; 3] {
    let mut all = [
        BfdConfig::new("192.0.2.0", [192, 0, 2, 0].into()),
        BfdConfig::new("fe80::1%2", "fe80::1".parse().unwrap()),
        BfdConfig::new("", [198, 51, 100, 7].into()),
    ];
    (all[0].local, all[1].scope) = (Some([192, 0, 2, 1].into()), 2);
    (all[1].interval, all[1].multiplier) = (Duration::from_millis(10), 255);
    all
}

/// Returns three sessions. The first session is up, the second receives packets from its peer, and
/// the third has received no packets.
fn some() -> HandedBfd {
    let now = Instant::now();
    let mut sessions: Vec<Handed> =
        (1..).zip(configs()).map(|(number, config)| handed(number, config, now)).collect();
    for (index, states) in [(0, &[SessionState::Down, SessionState::Up][..]), (1, &[SessionState::Down])] {
        for state in states {
            let one = &mut sessions[index].session;
            one.received(&said(*state, one.discriminator), now);
        }
    }
    HandedBfd { sessions, hears: [true, true], sockets: Vec::new() }
}

fn said(state: SessionState, yours: u32) -> Control {
    Control {
        diagnostic: 0,
        state,
        poll: false,
        is_final: false,
        demand: false,
        multiplier: 3,
        my_discriminator: 9,
        your_discriminator: yours,
        desired_tx: 100_000,
        required_rx: 50_000,
    }
}

#[test]
fn what_is_written_is_read_the_same() {
    let written = some();
    let (hears, sessions) = decoded(&written.to_bytes()).unwrap();
    assert_eq!(hears, [true, true]);
    for (one, other) in sessions.iter().zip(&written.sessions) {
        assert_eq!((&one.config, one.since, one.losses), (&other.config, other.since, other.losses));
        let known = |session: &Session| {
            let mut bytes = Vec::new();
            session.write(&mut bytes);
            bytes
        };
        assert_eq!(known(&one.session), known(&other.session));
        assert_eq!(one.session.state, other.session.state);
    }
    assert_eq!(sessions.len(), 3);
}

#[test]
fn what_no_process_writes_is_refused_and_named() {
    let good = some().to_bytes();
    let refused = |bytes: &[u8]| decoded(bytes).map(|_| ()).unwrap_err();
    assert_eq!(refused(&[]), "the handover data has an unknown version");
    assert_eq!(refused(&[&[2], &good[1..]].concat()), "the handover data has an unknown version");
    assert_eq!(refused(&[VERSION, 1]), CUT);
    assert_eq!(refused(&[VERSION, 1, 2]), CUT, "2 is not a flag");
    for length in 4..good.len() {
        // If the data is truncated between two sessions, only the number of sockets reveals the
        // truncation.
        if let Ok((_, sessions)) = decoded(&good[..length]) {
            assert!(sessions.len() < 3);
        }
    }
    let twice = [&good, &good[3..]].concat();
    assert_eq!(refused(&twice), "two sessions have the same name, peer or slot");
    let deaf = [&[VERSION, 1, 0], &good[3..]].concat();
    assert_eq!(refused(&deaf), "the address family of a session has no receive socket");
    let mut fast = some();
    fast.sessions[0].config.interval = Duration::from_millis(9);
    assert_eq!(refused(&fast.to_bytes()), "a field of a session is out of range");
    let counted = HandedBfd::from_parts(&good, Vec::new()).unwrap_err().to_string();
    assert!(
        counted.ends_with("the number of sockets does not match the number of sessions and address families"),
        "{counted}"
    );
}

proptest! {
    // Promise: upgrade-routes
    #[test]
    fn any_bytes_are_refused_or_come_back_the_same(bytes: Vec<u8>, at: prop::sample::Index, byte: u8, glued: bool) {
        let mut good = some().to_bytes();
        let at = at.index(good.len());
        good[at] = byte;
        let bytes = if glued { good } else { bytes };
        if let Ok((hears, sessions)) = decoded(&bytes) {
            let written = HandedBfd { sessions, hears, sockets: Vec::new() }.to_bytes();
            let again = decoded(&written).unwrap();
            let again = HandedBfd { sessions: again.1, hears: again.0, sockets: Vec::new() }.to_bytes();
            prop_assert_eq!(again, written);
        }
    }

    // Promise: upgrade-routes
    /// Models the peer according to RFC 5880. The state of the peer depends on the time of the last
    /// packet that it received.
    #[test]
    fn the_peer_of_a_session_that_goes_over_is_never_down(
        interval in 10_u64..500,
        multiplier in 2_u8..10,
        parts in prop::collection::vec((1_u64..2_000, 0_u64..1_000), 1..5),
    ) {
        let ms = Duration::from_millis;
        let (mut now, us) = (Instant::now(), u32::try_from(interval * 1_000).unwrap());
        let (mut ours, mut theirs) = (Session::new(7 << 16, us, multiplier, now), Session::new(9, us, multiplier, now));
        let exchange = |ours: &mut Session, theirs: &mut Session, now: Instant| {
            let mut to_them = ours.tick(now, 3);
            let mut to_us = theirs.tick(now, 5);
            while to_them.is_some() || to_us.is_some() {
                let answer = to_them.take().and_then(|packet| theirs.received(&packet, now));
                to_them = to_us.take().and_then(|packet| ours.received(&packet, now));
                to_us = answer;
            }
        };
        for _ in 0..10_000 {
            exchange(&mut ours, &mut theirs, now);
            now += ms(1);
        }
        prop_assert_eq!((ours.state, theirs.state), (SessionState::Up, SessionState::Up));
        for (until, pause) in parts {
            for _ in 0..until {
                exchange(&mut ours, &mut theirs, now);
                now += ms(1);
                prop_assert_eq!(theirs.state, SessionState::Up);
            }
            // For part of the time that the peer tolerates, no process owns the sessions, and
            // packets wait in the socket.
            let spare = u64::try_from(ours.spare().unwrap().as_millis()).unwrap();
            let mut waiting = Vec::new();
            for _ in 0..pause * spare.saturating_sub(2) / 1_000 {
                waiting.extend(theirs.tick(now, 5));
                now += ms(1);
                prop_assert_eq!(theirs.state, SessionState::Up);
            }
            let mut bytes = Vec::new();
            ours.write(&mut bytes);
            let mut next = Session::read(&mut Reader::new(&bytes), us, multiplier, now).unwrap();
            prop_assert_eq!(next.discriminator, ours.discriminator);
            next.resume(now);
            ours = next;
            for packet in waiting {
                if let Some(answer) = ours.received(&packet, now) {
                    theirs.received(&answer, now);
                }
            }
        }
        exchange(&mut ours, &mut theirs, now);
        prop_assert_eq!((ours.state, theirs.state), (SessionState::Up, SessionState::Up));
    }
}
