//! Tests of `http`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::super::hostile::{ask, recorded, say, serve, silent, waits, words};
use super::*;
use config::CheckKind;

fn check(port: u16) -> HttpCheck {
    HttpCheck {
        port,
        tls: None,
        method: "GET".into(),
        path: "/healthz?deep=1".into(),
        host: None,
        headers: Vec::new(),
        status: vec![200..=299],
        body_contains: None,
        probe_mtu: false,
    }
}

fn get(port: u16) -> CheckKind {
    CheckKind::Http(check(port))
}

fn with_body(port: u16, wanted: &str) -> CheckKind {
    CheckKind::Http(HttpCheck { body_contains: Some(wanted.into()), ..check(port) })
}

#[tokio::test]
async fn the_request_is_what_the_check_says() {
    let (asked, mut was_asked) = mpsc::unbounded_channel();
    let port = serve(move |mut stream| {
        let asked = asked.clone();
        async move {
            let mut bytes = vec![0; 4096];
            let length = stream.read(&mut bytes).await?;
            asked.send(String::from_utf8_lossy(&bytes[..length]).to_lowercase()).unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await
        }
    })
    .await;
    assert_eq!(ask(&get(port)).await, Ok(()));
    let usual = was_asked.recv().await.unwrap();
    let lines: Vec<&str> = usual.split("\r\n").collect();
    let expected =
        ["get /healthz?deep=1 http/1.1", &format!("host: 127.0.0.1:{port}"), "user-agent: sluicegate"];
    assert_eq!(&lines[..3], expected);
    assert_eq!(&lines[3..], ["connection: close", "", ""]);
    let own = HttpCheck {
        method: "HEAD".into(),
        host: Some("www.example.org".into()),
        headers: vec![("User-Agent".into(), "probe/1".into()), ("X-Test".into(), "a b".into())],
        ..check(port)
    };
    assert_eq!(ask(&CheckKind::Http(own)).await, Ok(()));
    let own = was_asked.recv().await.unwrap();
    for line in ["head /", "host: www.example.org\r\n", "user-agent: probe/1\r\n", "x-test: a b\r\n"] {
        assert!(own.contains(line), "{own}");
    }
    assert!(!own.contains("sluicegate"), "{own}");
}

#[tokio::test]
async fn the_status_decides_and_a_redirect_is_not_followed() {
    let redirect = "HTTP/1.1 302 Found\r\nLocation: /healthz?deep=1\r\nContent-Length: 0\r\n\r\n";
    let port = say(redirect).await;
    assert_eq!(words(&get(port)).await, "status 302, expected 200-299");
    let wanted = HttpCheck { status: vec![200..=200, 300..=302], ..check(port) };
    assert_eq!(ask(&CheckKind::Http(wanted)).await, Ok(()));
    let port = say("HTTP/1.1 503 Service Unavailable\r\n\r\n").await;
    assert_eq!(words(&get(port)).await, "status 503, expected 200-299");
    let port = say("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n").await;
    assert_eq!(ask(&get(port)).await, Ok(()));
}

#[tokio::test]
async fn a_body_is_searched_whatever_way_it_is_sent() {
    let sized = say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall is ok").await;
    let to_the_end = say("HTTP/1.0 200 OK\r\n\r\nall is ok").await;
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nall is o\r\n1\r\nk\r\n0\r\n\r\n";
    for port in [sized, to_the_end, say(chunks).await] {
        assert_eq!(ask(&with_body(port, "is ok")).await, Ok(()));
        assert_eq!(words(&with_body(port, "is well")).await, "body does not contain \"is well\"");
    }
}

#[tokio::test]
async fn a_body_is_searched_for_64_kib_and_no_further() {
    let port = say([b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &[b'.'; (64 << 10) - 2], b"ok"].concat()).await;
    assert_eq!(ask(&with_body(port, "ok")).await, Ok(()));
    let port = say([b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &[b'.'; (64 << 10) - 1], b"ok"].concat()).await;
    assert_eq!(words(&with_body(port, "ok")).await, "body does not contain \"ok\"");
}

#[tokio::test]
async fn a_body_of_1_gb_is_neither_read_nor_waited_for() {
    const GIGABYTE: u64 = 1 << 30;
    let sent = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&sent);
    let port = serve(move |mut stream| {
        let count = Arc::clone(&count);
        async move {
            let _ = stream.read(&mut [0; 4096]).await?;
            stream
                .write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {GIGABYTE}\r\n\r\n").as_bytes())
                .await?;
            let piece = vec![b'.'; 1 << 16];
            for _ in 0..GIGABYTE >> 16 {
                stream.write_all(&piece).await?;
                count.fetch_add(1 << 16, Ordering::Relaxed);
            }
            Ok(())
        }
    })
    .await;
    assert_eq!(ask(&get(port)).await, Ok(()));
    assert_eq!(words(&with_body(port, "ok")).await, "body does not contain \"ok\"");
    // The server can send at most the content of the socket buffers of two connections, and 64 KiB
    // per attempt.
    assert!(sent.load(Ordering::Relaxed) < GIGABYTE / 16, "{sent:?} bytes");
}

#[tokio::test]
async fn an_answer_that_ends_early_fails() {
    for part in ["", "HTTP/1.1 200 OK\r\nServ", "HTTP/1.1 20"] {
        assert_eq!(
            words(&get(say(part).await)).await,
            "connection closed before the response was complete",
            "{part:?}"
        );
    }
    let port = say("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").await;
    assert_eq!(ask(&get(port)).await, Ok(()), "the body is not checked");
    assert_eq!(words(&with_body(port, "ok")).await, "connection closed before the response was complete");
    assert_eq!(ask(&with_body(port, "half")).await, Ok(()), "the text is found before the end");
}

#[tokio::test]
async fn an_answer_that_is_not_http_fails() {
    for answer in ["SSH-2.0-OpenSSH_9.9\r\n", "\0\0\x06\x04\0\0\0\0\0\0\0\0\0\0\0\0"] {
        let words = words(&get(say(answer).await)).await;
        assert!(words.starts_with("response is not HTTP/1.1: "), "{words}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_wait_for_the_question_fails() {
    for answer in [b"".as_slice(), b"SSH-2.0-OpenSSH_9.9\r\n", b"HTTP/1.1 200 OK\r\n\r\n"] {
        let port = serve(move |mut stream| async move { stream.write_all(answer).await }).await;
        // The response and the request race, so each of these reasons is possible.
        let failure = ask(&get(port)).await.err();
        let reasons = ["closed", "reset", "malformed"];
        let known = failure.as_ref().is_some_and(|failure| reasons.contains(&failure.reason()));
        assert!(known || answer.len() == 19, "{failure:?}");
    }
}

#[tokio::test]
async fn headers_without_end_are_not_held() {
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(101));
    let long = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(1 << 20));
    for answer in [many, long] {
        assert_eq!(
            words(&get(say(answer).await)).await,
            "response is not HTTP/1.1: message head is too large"
        );
    }
    let enough = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(100));
    assert_eq!(ask(&get(say(enough).await)).await, Ok(()));
}

#[tokio::test]
async fn a_server_that_never_answers_or_never_ends_is_waited_for() {
    assert!(waits(&get(silent().await)).await);
    let trickle = serve(|mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\no").await?;
        std::future::pending().await
    });
    assert!(waits(&with_body(trickle.await, "ok")).await);
}

#[test]
fn authority_omits_default_port_and_brackets_ipv6() {
    let table = [
        ("192.0.2.1:80", "192.0.2.1"),
        ("192.0.2.1:8080", "192.0.2.1:8080"),
        ("[2001:db8::1]:80", "[2001:db8::1]"),
        ("[2001:db8::1]:8080", "[2001:db8::1]:8080"),
    ];
    for (peer, expected) in table {
        assert_eq!(authority(peer.parse().unwrap(), 80), expected);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn any_bytes_as_an_answer_are_judged() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let heads = prop_oneof![
        Just("".to_owned()),
        "HTTP/1\\.[01] [0-9]{3} [ -~]{0,9}\r\n",
        Just("HTTP/1.1 200 OK\r\n\r\n".to_owned())
    ];
    let answers = (heads, prop::collection::vec(any::<u8>(), 0..400))
        .prop_map(|(head, rest)| [head.as_bytes(), &rest].concat());
    for _ in 0..200 {
        let answer = answers.new_tree(&mut runner).unwrap().current();
        let passes = ask(&with_body(say(answer.clone()).await, "ok")).await.is_ok();
        // Random bytes pass only if they contain a valid header and the text.
        assert!(!passes || answer.windows(2).any(|pair| pair == b"ok"));
    }
}

proptest! {
    /// Compares the search in chunks with a search of the whole body.
    #[test]
    fn pieces_are_searched_as_the_whole_is(
        pieces in prop::collection::vec("[ab]{0,6}", 0..12),
        wanted in "[ab]{1,5}",
    ) {
        let mut seen = Seen::new(wanted.as_bytes());
        let found = pieces.iter().any(|piece| seen.add(piece.as_bytes()) == Some(true));
        prop_assert_eq!(found, pieces.concat().contains(&wanted));
    }
}

#[test]
fn a_search_holds_no_more_than_it_needs() {
    let mut seen = Seen::new(b"needle");
    for _ in 0..15 {
        assert_eq!(seen.add(&[b'n'; 4096]), None);
        assert_eq!(seen.tail.len(), 5);
    }
    assert_eq!(seen.add(&[b'n'; 4096]), Some(false));
}

#[tokio::test]
async fn padded_request_fills_a_packet_and_its_loss_has_words() {
    let (request, mut requests) = tokio::sync::mpsc::unbounded_channel();
    let port = serve(move |mut stream| {
        let request = request.clone();
        async move {
            let mut received = Vec::new();
            while !received.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut received).await?;
            }
            let _ = request.send((received.len(), SockRef::from(&stream).tcp_mss()?));
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await
        }
    })
    .await;
    let padded = |port| CheckKind::Http(HttpCheck { probe_mtu: true, ..check(port) });
    assert_eq!(ask(&padded(port)).await, Ok(()));
    let (length, segment) = requests.recv().await.unwrap();
    assert!(u32::try_from(length).unwrap() >= segment, "{length} bytes, {segment} per segment");

    let why = recorded(&padded(silent().await)).await;
    assert!(why.to_string().starts_with("connected, but no answer to a full-size packet"), "{why}");
    assert_eq!(why.reason(), "no_answer");
}
