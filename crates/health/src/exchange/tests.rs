//! Tests of `exchange`.

use std::time::Duration;

use config::{CheckKind, ExpectForm, Payload};
use proptest::prelude::*;
use tokio::net::{TcpListener, UdpSocket};

use super::super::attempt;
use super::super::hostile::{HERE, ask, datagrams, say, serve, waits, words};
use super::*;

fn expect(key: &str, value: &str) -> Option<Expect> {
    Some(Expect::new(ExpectForm::parse(key, value).unwrap()).unwrap())
}

fn tcp(port: u16, key: &str, value: &str) -> CheckKind {
    let send = Some(Payload::Text("PING\r\n".into()));
    CheckKind::Tcp(TcpCheck { port, send, expect: expect(key, value) })
}

fn udp(port: u16, expect: Option<Expect>) -> CheckKind {
    CheckKind::Udp(UdpCheck { port, send: Payload::Hex("50494e47".into()), expect })
}

/// Runs an attempt with a time limit, as the health thread does.
async fn within(kind: &CheckKind, limit: Duration) -> Result<Pass, Failure> {
    let interim = Interim::default();
    let attempt = attempt(kind, HERE, &Dialer::Direct, &interim);
    tokio::time::timeout(limit, attempt).await.unwrap_or_else(|_| interim.expired())
}

/// Starts a server that reads the payload, sends `chunks` one after the other and keeps the
/// connection open.
async fn chunks(chunks: &'static [&'static [u8]]) -> u16 {
    serve(move |mut stream| async move {
        let mut payload = [0; 6];
        stream.read_exact(&mut payload).await?;
        assert_eq!(&payload, b"PING\r\n");
        for chunk in chunks {
            stream.write_all(chunk).await?;
            stream.flush().await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stream.read_to_end(&mut Vec::new()).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn tcp_response_passes_in_each_form_across_chunks() {
    let port = chunks(&[b"noise +P", b"O", b"NG\r\n\x00\xff"]).await;
    for (key, value) in [
        ("expect", "+PONG"),
        ("expect", "+PONG\r\n"),
        ("expect_hex", "00ff"),
        ("expect_regex", r"(?i)^noise \+p.NG"),
        ("expect_regex", r"\x00\xff"),
        ("expect_regex", r"(?m)PONG\r$"),
    ] {
        assert_eq!(ask(&tcp(port, key, value)).await, Ok(()), "{key} {value}");
    }
}

#[tokio::test]
async fn tcp_response_end_matches_only_after_close() {
    let open = chunks(&[b"+PONG"]).await;
    assert!(waits(&tcp(open, "expect_regex", "PONG$")).await);
    assert_eq!(ask(&tcp(open, "expect_regex", "PONG")).await, Ok(()));
    assert_eq!(ask(&tcp(say("+PONG").await, "expect_regex", "PONG$")).await, Ok(()));
    assert_eq!(
        words(&tcp(say("+PONG!").await, "expect_regex", "PONG$")).await,
        "response \"+PONG!\" does not contain a match of \"PONG$\""
    );
}

#[tokio::test]
async fn tcp_without_match_fails_with_the_response() {
    assert_eq!(
        words(&tcp(say("-ERR\x07").await, "expect", "+PONG")).await,
        "response \"-ERR\\x07\" does not contain \"+PONG\""
    );
    assert_eq!(
        words(&tcp(say("").await, "expect_hex", "00")).await,
        "connection closed before the response was complete"
    );
    // The server keeps the connection open, so the time limit ends the attempt.
    let port = chunks(&[b"554 ", b"busy\r\n"]).await;
    let failure = within(&tcp(port, "expect_hex", "32 32 30"), Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(failure.to_string(), "response \"554 busy\\r\\n\" does not contain the bytes 323230");
    let silent = super::super::hostile::silent().await;
    let limit = Duration::from_millis(50);
    assert_eq!(within(&tcp(silent, "expect", "x"), limit).await, Err(Failure::NoAnswer));
}

#[tokio::test]
async fn tcp_response_is_read_up_to_64_kib() {
    let before = [vec![b'a'; MAX_RESPONSE_BYTES - 1], b"b".to_vec()].concat();
    assert_eq!(ask(&tcp(say(before).await, "expect", "ab")).await, Ok(()));
    let after = [vec![b'a'; MAX_RESPONSE_BYTES], b"b".to_vec()].concat();
    let why = words(&tcp(say(after).await, "expect", "ab")).await;
    assert_eq!(why, format!("response \"{}...\" does not contain \"ab\"", "a".repeat(40)));
    let endless = serve(|mut stream| async move {
        loop {
            stream.write_all(&[b'a'; 4096]).await?;
        }
    });
    assert!(words(&tcp(endless.await, "expect", "ab")).await.starts_with("response \"aaa"));
}

#[tokio::test]
async fn udp_response_must_contain_the_expectation() {
    let echo = |request: &[u8]| vec![[request, b" PONG"].concat()];
    let port = datagrams(echo).await;
    for (key, value) in
        [("expect", "PING PONG"), ("expect_regex", "^PING .*PONG$"), ("expect_hex", "504f4e47")]
    {
        assert_eq!(ask(&udp(port, expect(key, value))).await, Ok(()), "{key} {value}");
    }
    assert_eq!(within(&udp(port, None), Duration::from_secs(10)).await, Ok(Pass::Answered));
    assert_eq!(
        words(&udp(port, expect("expect_regex", "^PONG"))).await,
        "response \"PING PONG\" does not contain a match of \"^PONG\""
    );
    let empty = datagrams(|_| vec![Vec::new()]).await;
    assert_eq!(ask(&udp(empty, expect("expect_regex", "^$"))).await, Ok(()));
    let long = datagrams(|_| vec![vec![0xff; 9_000]]).await;
    assert!(words(&udp(long, expect("expect", "x"))).await.starts_with("response \"\\xff"));
}

#[tokio::test]
async fn udp_silence_passes_only_without_expectation() {
    let socket = UdpSocket::bind((HERE, 0)).await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let limit = Duration::from_millis(50);
    assert_eq!(within(&udp(port, None), limit).await, Ok(Pass::Silent));
    assert_eq!(within(&udp(port, expect("expect", "x")), limit).await, Err(Failure::NoAnswer));
}

#[tokio::test]
async fn udp_icmp_error_fails_in_both_families() {
    for address in [HERE, "::1".parse().unwrap()] {
        // The TCP listener reserves the port, and no process listens on its UDP port.
        let reserved = TcpListener::bind((address, 0)).await.unwrap();
        let port = reserved.local_addr().unwrap().port();
        for kind in [udp(port, None), udp(port, expect("expect", "x"))] {
            let interim = Interim::default();
            let attempt = attempt(&kind, address, &Dialer::Direct, &interim);
            let result = tokio::time::timeout(Duration::from_secs(10), attempt).await;
            assert_eq!(result, Ok(Err(Failure::PortUnreachable)), "{address}");
        }
    }
}

proptest! {
    /// The automaton finds a text if and only if the response contains the text, regardless of how
    /// the response is divided into chunks.
    #[test]
    fn text_is_found_in_any_chunks(
        response in prop::collection::vec(prop::sample::select(vec![b'a', b'b', 0xff]), 0..40),
        wanted in "[ab]{1,5}",
        cuts in prop::collection::vec(1_usize..8, 40),
    ) {
        let wanted = expect("expect", &wanted).unwrap();
        let mut search = Search::new(&wanted).unwrap();
        let (mut rest, mut found) = (&response[..], false);
        for cut in cuts {
            let (chunk, after) = rest.split_at(cut.min(rest.len()));
            found |= !found && search.add(chunk);
            rest = after;
        }
        let ExpectForm::Text(text) = &wanted.form else { unreachable!() };
        prop_assert_eq!(found, response.windows(text.len()).any(|part| part == text.as_bytes()));
    }
}
