//! Fuzzing entry points for BFD sessions.
//!
//! The input is a sequence of datagrams, each preceded by a length byte. A length byte of 255 is
//! not followed by a datagram, but advances the time to the next deadline of the session.
//!
//! The function `next` follows the wording of RFC 5880 §6.8.6.

use std::time::{Instant, SystemTime};

use crate::bfd::SessionState::{self, AdminDown, Down, Init, Up};
use crate::bfd::handed::{Handed, decoded};
use crate::bfd::packet::Control;
use crate::bfd::session::Session;
use crate::bfd::{BfdConfig, HandedBfd};

/// Runs a BFD session with arbitrary datagrams. Checks that state changes follow RFC 5880, and that
/// encoding and parsing do not change packets.
///
/// # Panics
/// Panics if a check fails.
pub fn bfd(bytes: &[u8]) {
    let mut now = Instant::now();
    let (mut session, mut rest) = (Session::new(7, 100_000, 3, now), bytes);
    while let Some((&length, behind)) = rest.split_first() {
        if length == u8::MAX {
            rest = behind;
            let Some(deadline) = session.deadline() else { continue };
            now = now.max(deadline);
            said(session.tick(now, u32::from(length)));
            continue;
        }
        let (datagram, behind) = behind.split_at(usize::from(length).min(behind.len()));
        rest = behind;
        let Some(control) = Control::parse(datagram) else { continue };
        assert_eq!(Control::parse(&control.encode()), Some(control));
        assert_eq!(control.encode().get(4..20), datagram.get(4..20), "encoding changed a field");
        let expected = next(session.state, control.state);
        said(session.received(&control, now));
        assert_eq!(session.state, expected);
    }
}

/// Checks that a sent packet can be parsed.
fn said(packet: Option<Control>) {
    if let Some(packet) = packet {
        assert_eq!(Control::parse(&packet.encode()), Some(packet));
    }
}

fn next(state: SessionState, received: SessionState) -> SessionState {
    match state {
        AdminDown => AdminDown,
        _ if received == AdminDown => Down,
        Down if received == Down => Init,
        Down if received == Init => Up,
        Init if matches!(received, Init | Up) => Up,
        Up if received == Down => Down,
        other => other,
    }
}

/// Decodes arbitrary bytes as handed-over sessions. Accepted sessions must not change when they are
/// encoded and decoded again.
///
/// # Panics
/// Panics if the decoded sessions differ.
pub fn handed_bfd(bytes: &[u8]) {
    let Ok((hears, sessions)) = decoded(bytes) else { return };
    let written = |hears, sessions| HandedBfd { hears, sessions, sockets: Vec::new() }.to_bytes();
    let once = written(hears, sessions);
    let again = decoded(&once).map(|(hears, sessions)| written(hears, sessions));
    assert_eq!(again.as_deref(), Ok(&once[..]));
}

/// Returns encoded sessions as seeds for the fuzzer: an empty list, a session without received
/// packets, and a session that is up.
pub fn handed_sessions() -> Vec<Vec<u8>> {
    let (now, config) = (Instant::now(), BfdConfig::new("192.0.2.0", [192, 0, 2, 0].into()));
    let unheard = || Session::new(7 << 16, 100_000, 3, now);
    let mut up = unheard();
    up.received(&said_by_router(Down, false, false), now);
    up.received(&said_by_router(Up, false, false), now);
    let one = |session| Handed { config: config.clone(), session, since: SystemTime::UNIX_EPOCH, losses: 1 };
    let all = [vec![], vec![one(unheard())], vec![one(up)]];
    all.map(|sessions| HandedBfd { hears: [false, true], sessions, sockets: Vec::new() }.to_bytes()).into()
}

/// Returns seeds for the fuzzer. The seeds are the packets of a session that comes up, is polled
/// and goes down again. Each packet is one seed, and the whole sequence is an additional seed.
pub fn datagrams() -> Vec<Vec<u8>> {
    let packet = said_by_router;
    let packets = [
        packet(Down, false, false),
        packet(Init, false, false),
        packet(Up, true, false),
        packet(Up, false, true),
        packet(AdminDown, false, false),
    ];
    let framed = packets.map(|packet| [&[24], &packet.encode()[..]].concat());
    let row = framed.join(&u8::MAX);
    framed.into_iter().chain([row]).collect()
}

fn said_by_router(state: SessionState, poll: bool, is_final: bool) -> Control {
    Control {
        diagnostic: 0,
        state,
        poll,
        is_final,
        demand: false,
        multiplier: 3,
        my_discriminator: 9,
        your_discriminator: 7,
        desired_tx: 100_000,
        required_rx: 100_000,
    }
}
