//! Tests of captures: the parameters, the stream, and the end of the stream.

use std::time::Duration;

use admin::Limits;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};

use crate::bounds::Open;
use crate::document::Api;

#[tokio::test(start_paused = true)]
async fn capture_query_and_stream_are_passed_through() {
    let api = Api::new(false).await;
    let all = "?vip=www&backend=b1&drop=no_vip,ttl&new_flows=true&sample=1000&snaplen=64&count=3&seconds=60";
    for (query, words) in [
        (
            all,
            "capture VIP www backend b1 dropped as no_vip or ttl new flows 1 packet in 1000, 64 bytes each, \
             up to 3 packets, for up to 60 seconds",
        ),
        ("?count=2", "capture 1 packet in 1, 256 bytes each, up to 2 packets, for up to 3600 seconds"),
    ] {
        let request = Request::post(format!("/v1/capture{query}")).body(Body::empty()).unwrap();
        let response = api.ask_plainly(request).await;
        assert_eq!((response.status(), api.last().as_str()), (StatusCode::OK, words));
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/x-pcapng");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let chunks = if query == all { 3 } else { 2 };
        assert_eq!(body.len(), chunks << 16);
        assert_eq!((&body[..8], &body[1 << 16..][..8]), (&b"00000000"[..], &b"00000001"[..]));
    }
}

#[tokio::test]
async fn invalid_capture_parameters_are_rejected() {
    let api = Api::new(false).await;
    for (query, status, words) in [
        (
            "drop=no_such",
            StatusCode::BAD_REQUEST,
            "unknown drop reason \"no_such\", use one of malformed, not_ip, no_vip,",
        ),
        ("drop=ttl,", StatusCode::BAD_REQUEST, "unknown drop reason \"\", use one of malformed"),
        ("drop=tx_full", StatusCode::BAD_REQUEST, "drop reason tx_full cannot be used as a filter"),
        ("sample=0", StatusCode::BAD_REQUEST, "sample"),
        ("count=0", StatusCode::BAD_REQUEST, "count"),
        ("snaplen=63", StatusCode::BAD_REQUEST, "snaplen=63 is out of range, use 64 to 2048"),
        ("snaplen=2049", StatusCode::BAD_REQUEST, "snaplen=2049 is out of range, use 64 to 2048"),
        ("seconds=0", StatusCode::BAD_REQUEST, "seconds=0 is out of range, use 1 to 86400"),
        ("seconds=86401", StatusCode::BAD_REQUEST, "seconds=86401 is out of range, use 1 to 86400"),
        ("vips=www", StatusCode::BAD_REQUEST, "unknown field"),
        ("vip=busy", StatusCode::CONFLICT, "a capture is running"),
        ("vip=nobody", StatusCode::NOT_FOUND, "no VIP \"nobody\""),
    ] {
        let request = Request::post(format!("/v1/capture?{query}")).body(Body::empty()).unwrap();
        let (found, refusal) = api.call(request).await;
        let said = refusal["error"].as_str().unwrap();
        assert!(found == status && said.contains(words), "{query}: {found} {said}");
    }
    let request = Request::delete("/v1/capture").body(Body::empty()).unwrap();
    let (status, ended) = api.call(request).await;
    assert_eq!((status, &ended["captured"], &ended["lost"]), (StatusCode::OK, &3.into(), &1.into()));
}

async fn begin(open: &Open, query: &str) -> tokio::net::UnixStream {
    let mut stream = open.connect().await;
    let head = format!("POST /v1/capture{query} HTTP/1.1\r\nHost: lb\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(start_paused = true)]
async fn a_stream_may_exceed_the_time_limit_of_its_connection() {
    let limits =
        Limits { life: Duration::from_secs(10), farewell: Duration::from_secs(5), ..Limits::default() };
    let open = Open::new(limits);
    let (start, mut stream) = (Instant::now(), begin(&open, "?count=100").await);
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap();
    let took = start.elapsed();
    assert!(read.ends_with(b"0\r\n\r\n") && read.len() > 100 << 16, "{}", read.len());
    assert!((100..110).contains(&took.as_secs()), "{took:?}");
    assert_eq!(open.log.lock().unwrap().last().unwrap(), "the stream has ended");
    open.every_connection_has_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_capture_ends_when_its_client_leaves_or_stops_reading() {
    let open = Open::new(Limits::default());
    let mut stream = begin(&open, "").await;
    let mut buffer = vec![0; 1 << 16];
    for _ in 0..10 {
        assert!(stream.read(&mut buffer).await.unwrap() > 0);
    }
    let start = Instant::now();
    drop(stream);
    let dropped = async |within: Duration| {
        let start = Instant::now();
        while open.log.lock().unwrap().last().unwrap() != "the stream was dropped" {
            assert!(start.elapsed() <= within, "{:?}", open.log.lock().unwrap());
            sleep(Duration::from_millis(10)).await;
        }
    };
    dropped(Duration::from_millis(500)).await;
    println!("gone after {:?}", start.elapsed());
    open.log.lock().unwrap().clear();
    let silent = begin(&open, "").await;
    sleep(Duration::from_millis(100)).await;
    dropped(Duration::from_secs(30)).await;
    assert!(open.serves().await);
    drop(silent);
}
