//! Tests of `ntp`.

use proptest::prelude::*;

use super::super::hostile::{ask, datagrams, nobody, waits, words};
use super::*;
use config::CheckKind;

fn kind(port: u16) -> CheckKind {
    CheckKind::Ntp(NtpCheck { port, max_stratum: 3 })
}

/// Encodes a response to `request` with this leap indicator, mode, stratum and reference ID.
fn answer(request: &[u8], leap: u8, mode: u8, stratum: u8, code: [u8; 4]) -> Vec<u8> {
    let mut answer = vec![0; HEADER_BYTES];
    (answer[0], answer[1]) = (leap << 6 | VERSION << 3 | mode, stratum);
    answer[12..16].copy_from_slice(&code);
    answer[ORIGIN..32].copy_from_slice(&request[40..]);
    answer
}

fn good(request: &[u8]) -> Vec<u8> {
    answer(request, 0, MODE_SERVER, 3, [192, 0, 2, 1])
}

#[test]
fn a_request_is_laid_out_as_rfc_5905_says() {
    let stamp = *b"a number";
    let request = request(stamp);
    assert_eq!(request[0], 0b00_100_011, "no leap, version 4, a client");
    assert_eq!(request[1..40], [0; 39]);
    assert_eq!(request[40..], stamp);
}

#[tokio::test]
async fn a_server_that_is_synchronized_passes() {
    let port = datagrams(|request| vec![good(request)]).await;
    assert_eq!(ask(&kind(port)).await, Ok(()));
    let port = datagrams(|request| vec![[good(request), vec![7; 400]].concat()]).await;
    assert_eq!(ask(&kind(port)).await, Ok(()), "extensions after the header are ignored");
}

#[tokio::test]
async fn an_answer_to_another_request_is_not_the_answer() {
    let strange = |request: &[u8]| {
        let mut other = answer(request, LEAP_UNKNOWN, MODE_SERVER, 16, [0; 4]);
        other[ORIGIN] ^= 1;
        vec![other, vec![], vec![0; 31], vec![0; 600], request.to_vec()]
    };
    let port = datagrams(move |request| [strange(request), vec![good(request)]].concat()).await;
    assert_eq!(ask(&kind(port)).await, Ok(()));
    assert!(waits(&kind(datagrams(strange).await)).await);
}

#[tokio::test]
async fn stamps_differ_from_attempt_to_attempt() {
    let (seen, mut stamps) = tokio::sync::mpsc::unbounded_channel();
    let port = datagrams(move |request| {
        seen.send(request[40..].to_vec()).unwrap();
        vec![good(request)]
    });
    let port = port.await;
    let mut different = std::collections::BTreeSet::new();
    for _ in 0..16 {
        assert_eq!(ask(&kind(port)).await, Ok(()));
        different.insert(stamps.recv().await.unwrap());
    }
    assert_eq!(different.len(), 16, "{different:?}");
}

#[tokio::test]
async fn closed_port_refuses_and_silent_server_is_waited_for() {
    assert_eq!(words(&kind(nobody().await)).await, "ICMP port unreachable");
    assert!(waits(&kind(datagrams(|_| vec![]).await)).await);
}

#[test]
fn what_is_no_good_answer_fails_with_its_reason() {
    let stamp = *b"a number";
    let judged = |leap, mode, stratum, code| {
        let health_state = judge(&answer(&request(stamp), leap, mode, stratum, code), stamp, 3);
        health_state.expect("an answer").map_or_else(|failure| failure.to_string(), |()| "passes".to_owned())
    };
    let table = [
        ((0, 4, 1, *b"GPS\0"), "passes"),
        ((1, 4, 3, [192, 0, 2, 1]), "passes"),
        ((0, 4, 4, [192, 0, 2, 1]), "NTP stratum 4, expected at most 3"),
        ((0, 4, 15, [192, 0, 2, 1]), "NTP stratum 15, expected at most 3"),
        ((0, 4, 16, [0; 4]), "the NTP server is not synchronized"),
        ((0, 4, 255, [0; 4]), "the NTP server is not synchronized"),
        ((3, 4, 2, [192, 0, 2, 1]), "the NTP server is not synchronized"),
        ((3, 4, 0, [0; 4]), "the NTP server is not synchronized"),
        ((3, 4, 0, *b"RATE"), "NTP kiss code \"RATE\""),
        ((0, 4, 0, *b"DE\"Y"), "NTP kiss code \"DE\\\"Y\""),
        ((0, 3, 2, [192, 0, 2, 1]), "NTP mode 3, expected 4 (server)"),
        ((3, 5, 0, *b"RATE"), "NTP mode 5, expected 4 (server)"),
    ];
    for ((leap, mode, stratum, code), expected) in table {
        assert_eq!(judged(leap, mode, stratum, code), expected);
    }
    let cut = &answer(&request(stamp), 0, 4, 1, [0; 4])[..47];
    let failure = judge(cut, stamp, 3).expect("an answer").unwrap_err();
    assert_eq!(failure.to_string(), "response shorter than the NTP header");
}

proptest! {
    #[test]
    fn any_bytes_are_judged_and_only_a_server_with_a_stratum_passes(
        mut answer in prop::collection::vec(any::<u8>(), 0..60),
        stamp: [u8; 8],
        repeats: bool,
        max_stratum in 1_u8..=15,
    ) {
        if let (true, Some(origin)) = (repeats, answer.get_mut(ORIGIN..32)) {
            origin.copy_from_slice(&stamp);
        }
        if judge(&answer, stamp, max_stratum) == Some(Ok(())) {
            prop_assert!(answer.len() >= HEADER_BYTES && answer[ORIGIN..32] == stamp);
            prop_assert!(answer[0] & 7 == 4 && answer[0] >> 6 < 3 && (1..=max_stratum).contains(&answer[1]));
        }
    }
}
