//! Tests of `grpc`.

use bytes::Bytes;
use h2::server;
use hyper::{HeaderMap, Response};
use proptest::prelude::*;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use super::super::hostile::{ask, recorded, say, serve, silent, waits, words};
use super::super::tls::tests::Authority;
use super::*;
use config::{CheckKind, Tls};

fn kind(port: u16, service: &str, tls: Option<Tls>) -> CheckKind {
    CheckKind::Grpc(GrpcCheck { port, service: service.into(), tls, probe_mtu: false })
}

/// The scripted response from a server.
#[derive(Clone)]
struct Script {
    status: u16,
    pieces: Vec<Vec<u8>>,
    grpc_status: Option<&'static str>,
    /// `true` to send the status in the headers without a body.
    at_once: bool,
}

fn says(message: &[u8]) -> Script {
    let framed = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], message].concat();
    Script { status: 200, pieces: vec![framed], grpc_status: Some("0"), at_once: false }
}

async fn speak<S: AsyncRead + AsyncWrite + Unpin>(stream: S, script: Script) -> Result<(), h2::Error> {
    let mut connection = server::handshake(stream).await?;
    while let Some(asked) = connection.accept().await {
        let (request, mut respond) = asked?;
        assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
        assert_eq!(request.headers()["content-type"], "application/grpc");
        assert_eq!(request.headers()["te"], "trailers");
        let script = script.clone();
        tokio::spawn(async move {
            let mut response = Response::builder().status(script.status);
            if let Some(code) = script.grpc_status.filter(|_| script.at_once) {
                response = response.header("grpc-status", code);
            }
            let mut body = respond.send_response(response.body(()).unwrap(), script.at_once)?;
            if script.at_once {
                return Ok(());
            }
            for piece in script.pieces {
                body.send_data(Bytes::from(piece), script.grpc_status.is_none())?;
            }
            let mut trailers = HeaderMap::new();
            if let Some(code) = script.grpc_status {
                trailers.insert("grpc-status", code.parse().unwrap());
                body.send_trailers(trailers)?;
            }
            Ok::<_, h2::Error>(())
        });
    }
    Ok(())
}

async fn server(script: Script) -> u16 {
    serve(move |stream| {
        let script = script.clone();
        async move { speak(stream, script).await.map_err(std::io::Error::other) }
    })
    .await
}

async fn server_in_tls(script: Script, acceptor: TlsAcceptor) -> u16 {
    serve(move |stream| {
        let (script, acceptor) = (script.clone(), acceptor.clone());
        async move {
            let stream = acceptor.accept(stream).await?;
            speak(stream, script).await.map_err(std::io::Error::other)
        }
    })
    .await
}

#[tokio::test]
async fn serving_passes_with_and_without_tls() {
    assert_eq!(ask(&kind(server(says(&[8, 1])).await, "", None)).await, Ok(()));
    let ca = Authority::new();
    let port = server_in_tls(says(&[8, 1]), ca.server(&["127.0.0.1"], (2000, 4000), "h2")).await;
    assert_eq!(ask(&kind(port, "web.v1.Web", Some(ca.trust()))).await, Ok(()));
}

#[tokio::test]
async fn padded_request_fills_a_packet_and_its_loss_has_words() {
    let padded =
        |port| CheckKind::Grpc(GrpcCheck { port, service: "web".into(), tls: None, probe_mtu: true });
    let (seen, mut lengths) = tokio::sync::mpsc::unbounded_channel();
    let port = serve(move |stream| {
        let seen = seen.clone();
        async move {
            let segment = SockRef::from(&stream).tcp_mss()? as usize;
            let mut connection = server::handshake(stream).await.map_err(std::io::Error::other)?;
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let seen = seen.clone();
                tokio::spawn(async move {
                    let (mut body, mut length) = (request.into_body(), 0);
                    while let Some(Ok(data)) = body.data().await {
                        length += data.len();
                        body.flow_control().release_capacity(data.len()).unwrap();
                    }
                    seen.send((length, segment)).unwrap();
                    let mut reply = respond.send_response(Response::new(()), false).unwrap();
                    reply.send_data(Bytes::from_static(&[0, 0, 0, 0, 2, 8, 1]), false).unwrap();
                    let trailers = [("grpc-status".parse().unwrap(), "0".parse().unwrap())];
                    reply.send_trailers(HeaderMap::from_iter(trailers)).unwrap();
                });
            }
            Ok(())
        }
    })
    .await;
    assert_eq!(ask(&padded(port)).await, Ok(()));
    let (length, segment) = lengths.recv().await.unwrap();
    // On the loopback interface, the two ends may have slightly different segments.
    assert!(length * 10 >= segment * 9, "{length} bytes, {segment} per segment");

    let why = recorded(&padded(silent().await)).await;
    assert!(why.to_string().starts_with("connected, but no answer to a full-size packet"), "{why}");
}

#[tokio::test]
async fn other_answers_fail_with_their_reason() {
    let broken = "gRPC response is not a health status";
    let status = |code| Script { grpc_status: Some(code), ..says(&[]) };
    let table = [
        (says(&[8, 2]), "gRPC health status NOT_SERVING"),
        (says(&[8, 3]), "gRPC health status SERVICE_UNKNOWN"),
        (says(&[]), "gRPC health status 0, expected 1 (SERVING)"),
        (says(&[8]), broken),
        (status("14"), "gRPC status 14, expected 0"),
        (status("x"), "grpc-status is not a number"),
        (Script { at_once: true, ..status("5") }, "gRPC status 5, the server does not know the service"),
        (Script { at_once: true, ..status("12") }, "gRPC status 12, the server has no health service"),
        (Script { status: 404, ..says(&[8, 1]) }, "status 404, expected 200"),
        (Script { grpc_status: None, ..says(&[8, 1]) }, "gRPC response without grpc-status"),
        (Script { pieces: vec![], ..says(&[]) }, broken),
        (Script { pieces: vec![vec![0; 1 << 20]], ..says(&[]) }, "gRPC response larger than 4 KiB"),
    ];
    for (script, expected) in table {
        assert_eq!(words(&kind(server(script).await, "web", None)).await, expected);
    }
}

#[tokio::test]
async fn a_message_in_pieces_is_put_together() {
    let pieces = vec![vec![0, 0], vec![0, 0, 2, 8], vec![1]];
    assert_eq!(ask(&kind(server(Script { pieces, ..says(&[]) }).await, "", None)).await, Ok(()));
}

#[tokio::test]
async fn other_protocol_fails_and_silent_server_is_waited_for() {
    let words = words(&kind(say("HTTP/1.1 400 Bad Request\r\n\r\n").await, "", None)).await;
    assert!(words.starts_with("response is not HTTP/2: "), "{words}");
    assert!(ask(&kind(say("").await, "", None)).await.is_err());
    assert!(waits(&kind(silent().await, "", None)).await);
}

#[test]
fn a_question_is_laid_out_as_protocol_buffers_say() {
    assert_eq!(question("", 0)[..], [0, 0, 0, 0, 0]);
    assert_eq!(question("web", 0)[..], *b"\0\0\0\0\x05\x0a\x03web");
    let long = question(&"x".repeat(300), 0);
    assert_eq!(long[..8], [0, 0, 0, 1, 0x2f, 0x0a, 0xac, 0x02]);
    assert_eq!(long.len(), 5 + 3 + 300);
    assert_eq!(question("web", 3)[..], *b"\0\0\0\0\x0a\x0a\x03web\x7a\x03\0\0\0");
}

#[test]
fn a_status_is_found_among_other_fields() {
    let table: [(&[u8], Option<u64>); 13] = [
        (b"", Some(0)),
        (b"\x08\x01", Some(1)),
        (b"\x08\x02\x08\x01", Some(1)), // The last field 1 is used.
        (b"\x12\x02ab\x08\x01", Some(1)),
        (b"\x11\0\0\0\0\0\0\0\0\x08\x01", Some(1)),
        (b"\x15\0\0\0\0\x08\x01", Some(1)),
        (b"\x18\x07\x08\x81\x00", Some(1)),
        (b"\x08", None),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", None),
        (b"\x12\x05ab", None),
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", None),
        (b"\x0b\x08\x01", None), // Groups are not supported.
        (b"\x00\x01", None),     // Field number 0 is invalid.
    ];
    for (message, expected) in table {
        assert_eq!(status_field(message), expected, "{}", message.escape_ascii());
    }
}

#[test]
fn a_frame_must_hold_its_message_exactly() {
    assert_eq!(health_of(&[0, 0, 0, 0, 2, 8, 1]), Ok(1));
    for broken in [&[0, 0, 0, 0, 1, 8, 1][..], &[0, 0, 0, 0, 3, 8, 1], &[1, 0, 0, 0, 2, 8, 1], &[0, 0, 0, 0]]
    {
        assert!(health_of(broken).is_err(), "{broken:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = health_of(&bytes);
        let _ = status_field(&bytes);
    }

    #[test]
    fn any_number_is_read_back(number: u64, rest: u8) {
        let mut bytes = Vec::new();
        let mut left = u128::from(number);
        loop {
            let more = left > 127;
            bytes.push(u8::try_from(left % 128).unwrap() + if more { 128 } else { 0 });
            left /= 128;
            if !more { break }
        }
        bytes.push(rest);
        let mut reader = &bytes[..];
        prop_assert_eq!(varint(&mut reader), Some(number));
        prop_assert_eq!(reader, &[rest]);
    }
}
