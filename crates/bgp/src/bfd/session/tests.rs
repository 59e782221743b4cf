use super::*;
use proptest::prelude::*;

const FAST: u32 = 100_000;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn control(state: SessionState) -> Control {
    Control {
        diagnostic: 0,
        state,
        poll: false,
        is_final: false,
        demand: false,
        multiplier: 3,
        my_discriminator: 9,
        your_discriminator: 7,
        desired_tx: FAST,
        required_rx: FAST,
    }
}

fn up(now: Instant) -> Session {
    let mut session = Session::new(7, FAST, 3, now);
    session.received(&control(SessionState::Down), now);
    session.received(&control(SessionState::Up), now);
    assert_eq!(session.state, SessionState::Up);
    session.polling = false;
    session.sent(now, 25);
    session
}

#[test]
fn the_state_machine_is_that_of_the_rfc() {
    use SessionState::{AdminDown, Down, Init, Up};
    // The rows are the local states, and the columns are the peer's states AdminDown, Down, Init
    // and Up (RFC 5880 §6.8.6).
    let table = [
        (AdminDown, [AdminDown, AdminDown, AdminDown, AdminDown]),
        (Down, [Down, Init, Up, Down]),
        (Init, [Down, Init, Up, Up]),
        (Up, [Down, Down, Up, Up]),
    ];
    let now = Instant::now();
    for (ours, row) in table {
        for (theirs, then) in [AdminDown, Down, Init, Up].into_iter().zip(row) {
            let mut session = Session::new(7, FAST, 3, now);
            session.state = ours;
            session.received(&control(theirs), now);
            assert_eq!(session.state, then, "state {ours}, received {theirs}");
        }
    }
}

#[test]
fn a_session_that_is_not_up_calls_once_a_second_at_most() {
    let now = Instant::now();
    let mut session = Session::new(7, FAST, 3, now);
    let first = session.tick(now, 0).unwrap();
    assert_eq!((first.desired_tx, first.required_rx, first.your_discriminator), (1_000_000, FAST, 0));
    assert_eq!(session.tick(now + ms(749), 0), None);
    assert!(session.tick(now + ms(750), 25).is_some());
    assert_eq!(session.tick(now + ms(750 + 999), 0), None);
    assert!(session.tick(now + ms(750 + 1_000), 0).is_some());
}

#[test]
fn a_peer_that_wants_packets_sooner_gets_the_next_one_sooner() {
    let now = Instant::now();
    let mut session = up(now);
    // So far, the peer has requested one packet per second, so the next packet is due in almost a
    // second.
    session.received(&Control { required_rx: 1_000_000, ..control(SessionState::Up) }, now);
    session.sent(now, 25);
    assert_eq!(session.deadline(), Some(now + ms(300)), "the detection time ends first");
    session.received(&control(SessionState::Up), now + ms(50));
    assert_eq!(session.transmit_at(), Some(now + ms(100)));
    assert!(session.tick(now + ms(100), 0).is_some());
}

#[test]
fn the_first_packet_after_up_waits_for_no_second() {
    let now = Instant::now();
    let mut session = Session::new(7, FAST, 3, now);
    session.received(&control(SessionState::Down), now);
    session.sent(now, 25);
    let said = session.received(&control(SessionState::Init), now + ms(10)).unwrap();
    assert_eq!((said.state, said.desired_tx, said.poll), (SessionState::Up, FAST, true));
    assert!(session.transmit_at().unwrap() <= now + ms(10 + 100));
}

#[test]
fn silence_for_the_detection_time_is_a_loss() {
    for (theirs, multiplier, until) in [(FAST, 3, 300), (50_000, 5, 500), (200_000, 3, 600)] {
        let now = Instant::now();
        let mut session = up(now);
        session.received(&Control { desired_tx: theirs, multiplier, ..control(SessionState::Up) }, now);
        for at in 0..until {
            session.tick(now + ms(at), 0);
            assert_eq!(session.state, SessionState::Up, "at {at} ms");
        }
        let said = session.tick(now + ms(until), 0).unwrap();
        assert_eq!(
            (session.state, session.diagnostic),
            (SessionState::Down, Diagnostic::DetectionTimeExpired)
        );
        assert_eq!(
            (said.state, said.your_discriminator, said.desired_tx),
            (SessionState::Down, 0, 1_000_000)
        );
    }
}

#[test]
fn a_poll_is_answered_at_once_and_only_a_final_ends_ours() {
    let now = Instant::now();
    let mut session = up(now);
    session.polling = true;
    let answer = session.received(&Control { poll: true, ..control(SessionState::Up) }, now).unwrap();
    assert!(answer.is_final && !answer.poll);
    assert!(session.packet(false).poll, "the poll sequence continues");
    session.received(&Control { is_final: true, ..control(SessionState::Up) }, now);
    assert!(!session.packet(false).poll);
}

#[test]
fn a_peer_that_asks_for_none_or_is_in_demand_mode_gets_none() {
    let now = Instant::now();
    let mut session = up(now);
    session.received(&Control { required_rx: 0, ..control(SessionState::Up) }, now);
    assert_eq!(session.transmit_at(), None);
    session.received(&Control { demand: true, ..control(SessionState::Up) }, now);
    assert_eq!(session.transmit_at(), None);
    session.received(&control(SessionState::Up), now);
    assert!(session.transmit_at().is_some());
}

#[test]
fn an_end_on_purpose_says_so() {
    let now = Instant::now();
    let mut session = up(now);
    let last = session.admin_down();
    assert_eq!((last.state, last.diagnostic, last.your_discriminator), (SessionState::AdminDown, 7, 9));
    let mut peer = up(now);
    peer.received(&last, now);
    assert_eq!((peer.state, peer.diagnostic), (SessionState::Down, Diagnostic::NeighborSaysDown));
}

#[test]
fn changed_times_apply_after_confirmation() {
    let now = Instant::now();
    let mut slower = up(now);
    let said = slower.change(400_000, 5, now).unwrap();
    assert_eq!((said.poll, said.desired_tx, said.required_rx, said.multiplier), (true, 400_000, 400_000, 5));
    assert_eq!(
        slower.transmit_interval(),
        Some(ms(100)),
        "the interval is unchanged before the confirmation"
    );
    slower.received(&Control { is_final: true, ..control(SessionState::Up) }, now);
    assert_eq!(slower.transmit_interval(), Some(ms(400)));
    let mut faster = up(now);
    assert!(faster.change(20_000, 3, now).unwrap().poll);
    faster.received(&Control { desired_tx: 20_000, ..control(SessionState::Up) }, now);
    assert_eq!(faster.detect_at, Some(now + ms(300)), "the peer may still use the old interval");
    faster.received(&Control { desired_tx: 20_000, is_final: true, ..control(SessionState::Up) }, now);
    assert_eq!(faster.detect_at, Some(now + ms(60)));
    assert_eq!(up(now).change(FAST, 9, now), None, "the next packet has the multiplier");
    assert_eq!(Session::new(7, FAST, 3, now).change(20_000, 3, now), None, "there is no peer to poll");
}

proptest! {
    #[test]
    fn packets_are_75_to_100_percent_of_the_interval_apart(chances in proptest::collection::vec(any::<u32>(), 50), one: bool) {
        let now = Instant::now();
        let mut session = up(now);
        session.multiplier = if one { 1 } else { 3 };
        let (mut at, mut last) = (session.transmit_at().unwrap(), now);
        let widest = if one { 90 } else { 100 };
        for chance in chances {
            session.received(&control(SessionState::Up), at);
            prop_assert!(session.tick(at, chance).is_some());
            let next = session.transmit_at().unwrap();
            last = at;
            prop_assert!((ms(75)..=ms(widest)).contains(&(next - at)), "{:?}", next - at);
            at = next;
        }
        prop_assert!(last > now);
    }

    /// Checks that two sessions over a perfect link come up, stay up while one changes its
    /// interval, and detect a cut within the detection time.
    #[test]
    fn two_sessions_come_up_follow_a_change_and_see_a_cut_in_time(a in 10..500_u64, b in 10..500_u64, c in 10..500_u64, chances in proptest::collection::vec(any::<u32>(), 64)) {
        let start = Instant::now();
        let to_us = |ms: u64| u32::try_from(ms * 1_000).unwrap();
        let mut ends = [Session::new(1, to_us(a), 3, start), Session::new(2, to_us(b), 3, start + ms(17))];
        let mut chance = chances.iter().cycle().copied();
        let mut fresh = || chance.next().unwrap_or(0);
        for step in 0..10_000 {
            let now = start + ms(step);
            for n in [0, 1] {
                let changed = (n == 0 && step == 7_000).then(|| ends[0].change(to_us(c), 3, now)).flatten();
                let mut packet = changed.or_else(|| ends[n].tick(now, fresh()));
                let mut to = 1 - n;
                while let Some(said) = packet {
                    packet = ends[to].received(&said, now);
                    to = 1 - to;
                }
            }
            if step > 5_000 {
                prop_assert!(ends.iter().all(|end| end.state == SessionState::Up), "at {step} ms");
            }
        }
        prop_assert!(ends[0].before.is_none(), "the change was confirmed");
        let detection = ms(c.max(b) * 3 + 1);
        for end in &mut ends {
            end.tick(start + ms(9_999) + detection, fresh());
            prop_assert_eq!(end.state, SessionState::Down);
        }
    }
}
