//! Tests of `memcached`.

use proptest::prelude::*;
use socket2::SockRef;
use tokio::io::AsyncReadExt;

use super::super::hostile::{ask, datagrams, recorded, say, serve, silent, waits, words};
use super::*;
use config::CheckKind;

fn kind(port: u16) -> CheckKind {
    CheckKind::Memcached(MemcachedCheck { port, transport: Transport::Tcp, probe_mtu: false })
}

fn by_datagram(port: u16) -> CheckKind {
    CheckKind::Memcached(MemcachedCheck { port, transport: Transport::Udp, probe_mtu: false })
}

/// Encodes a response of memcached 1.6. The response has the UDP frame header of the request and
/// `line`.
fn answer(request: &[u8], line: &str) -> Vec<u8> {
    assert_eq!(&request[2..], b"\0\0\0\x01\0\0version\r\n");
    [&request[..8], line.as_bytes()].concat()
}

#[tokio::test]
async fn over_udp_the_answer_to_this_request_passes_and_no_other() {
    let port = datagrams(|request| vec![answer(request, "VERSION 1.6.38\r\n")]).await;
    assert_eq!(ask(&by_datagram(port)).await, Ok(()));
    let port = datagrams(|request| {
        let mut other = answer(request, "ERROR\r\n");
        other[1] ^= 1;
        let mut second_of_two = answer(request, "ERROR\r\n");
        (second_of_two[3], second_of_two[5]) = (1, 2);
        vec![vec![], vec![0; 300], other, second_of_two, answer(request, "VERSION 1.6.38\r\n")]
    });
    assert_eq!(ask(&by_datagram(port.await)).await, Ok(()));
    let port = datagrams(|request| vec![answer(request, "ERROR\r\n")]).await;
    assert_eq!(words(&by_datagram(port)).await, "\"ERROR\\r\", expected \"VERSION ...\"");
    let port = datagrams(|request| vec![answer(request, "VERSION 1.6.38")]).await;
    assert_eq!(words(&by_datagram(port)).await, "\"VERSION 1.6.38\", expected \"VERSION ...\"");
}

/// Checks a server with the option `-U 0`, which is the default of memcached and turns UDP off.
#[tokio::test]
async fn a_server_without_udp_fails_over_udp_alone() {
    let port = say("VERSION 1.6.38\r\n").await;
    assert_eq!(ask(&kind(port)).await, Ok(()));
    assert!(ask(&by_datagram(port)).await.is_err());
}

#[tokio::test]
async fn a_version_passes() {
    assert_eq!(ask(&kind(say("VERSION 1.6.38\r\n").await)).await, Ok(()));
}

#[tokio::test]
async fn a_version_that_comes_byte_by_byte_passes() {
    let port = serve(|mut stream| async move {
        let mut asked = [0; 16];
        let length = stream.read(&mut asked).await?;
        assert_eq!(&asked[..length], b"version\r\n");
        for byte in b"VERSION 1.6.38\r\n" {
            stream.write_all(&[*byte]).await?;
            stream.flush().await?;
            tokio::task::yield_now().await;
        }
        Ok(())
    })
    .await;
    assert_eq!(ask(&kind(port)).await, Ok(()));
}

#[tokio::test]
async fn other_answers_fail_and_are_quoted() {
    assert_eq!(words(&kind(say("ERROR\r\n").await)).await, "\"ERROR\\r\", expected \"VERSION ...\"");
    assert_eq!(
        words(&kind(say("VERSION 1.6").await)).await,
        "connection closed before the response was complete"
    );
    assert_eq!(words(&kind(say("").await)).await, "connection closed before the response was complete");
    let long = words(&kind(say(vec![b'x'; 1 << 20]).await)).await;
    assert_eq!(long, format!("\"{}...\", expected \"VERSION ...\"", "x".repeat(40)));
}

#[tokio::test]
async fn a_server_that_never_answers_is_waited_for() {
    assert!(waits(&kind(silent().await)).await);
}

#[test]
fn a_line_is_judged_by_its_first_word_and_its_end() {
    let table: [(&[u8], bool); 6] = [
        (b"VERSION 1\r", true),
        (b"VERSION \r", false),
        (b"VERSION 1", false),
        (b"version 1\r", false),
        (b" VERSION 1\r", false),
        (b"", false),
    ];
    for (line, passes) in table {
        assert_eq!(VERSION.judge(line).is_ok(), passes, "{}", line.escape_ascii());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_judged_and_only_a_version_passes(line in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(VERSION.judge(&line).is_err() || line.starts_with(b"VERSION "));
    }
}

/// Returns the result of flushing a server that sends this response.
async fn flushed(answer: &'static str) -> Result<(), String> {
    let port = serve(move |mut stream| async move {
        let mut asked = [0; 32];
        let length = stream.read(&mut asked).await?;
        assert_eq!(&asked[..length], b"flush_all\r\n");
        for byte in answer.bytes() {
            stream.write_all(&[byte]).await?;
            tokio::task::yield_now().await;
        }
        stream.shutdown().await
    });
    let server = SocketAddr::new(super::super::hostile::HERE, port.await);
    flush(server, &Dialer::Direct).await.map_err(|failure| failure.to_string())
}

#[tokio::test]
async fn a_server_is_empty_when_it_says_ok_and_nothing_else() {
    assert_eq!(flushed("OK\r\n").await, Ok(()));
    for other in
        ["OK\n", "OKAY\r\n", "ok\r\n", "\r\n", "VERSION 1.6.38\r\n", "CLIENT_ERROR flush_all not allowed\r\n"]
    {
        let words = flushed(other).await.unwrap_err();
        assert!(words.ends_with("expected \"OK\""), "{other:?}: {words}");
    }
    assert_eq!(flushed("OK").await.unwrap_err(), Failure::Closed.to_string());
}

#[tokio::test]
async fn padded_commands_fill_a_packet_and_their_loss_has_words() {
    let padded = |port, transport| CheckKind::Memcached(MemcachedCheck { port, transport, probe_mtu: true });
    let port = serve(|mut stream| async move {
        let segment = SockRef::from(&stream).tcp_mss()? as usize;
        let mut received = Vec::new();
        // On the loopback interface, the two ends may have slightly different segments.
        while received.len() * 10 < segment * 9 {
            stream.read_buf(&mut received).await?;
        }
        assert!(received.chunks(9).all(|line| b"version\r\n".starts_with(line)));
        stream.write_all(b"VERSION 1.6.38\r\nVERSION").await?;
        stream.read_to_end(&mut received).await.map(drop)
    })
    .await;
    assert_eq!(ask(&padded(port, Transport::Tcp)).await, Ok(()));
    let why = recorded(&padded(silent().await, Transport::Tcp)).await;
    assert!(why.to_string().starts_with("connected, but no answer to a full-size packet"), "{why}");

    let (seen, mut lengths) = tokio::sync::mpsc::unbounded_channel();
    let port = datagrams(move |request| {
        seen.send(request.len()).unwrap();
        assert_eq!(&request[2..15], b"\0\0\0\x01\0\0version");
        assert_eq!(request[15..].trim_ascii_start(), b"");
        vec![[&request[..8], b"VERSION 1.6.38\r\n"].concat()]
    })
    .await;
    assert_eq!(ask(&padded(port, Transport::Udp)).await, Ok(()));
    assert_eq!(lengths.recv().await, Some(17));
    assert!(lengths.recv().await.unwrap() > 1_200);
    // The second datagram is lost.
    let port = datagrams(|request| match request.len() {
        17 => vec![answer(request, "VERSION 1.6.38\r\n"); 2],
        _ => vec![],
    });
    let why = recorded(&padded(port.await, Transport::Udp)).await;
    assert!(why.to_string().starts_with("answered, but no answer to a full-size packet"), "{why}");
}
