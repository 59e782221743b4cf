//! Tests that the cost of reading and printing responses of the API is linear in their length.

use admin::view::{BackendRow, EventsView};
use serde::de::DeserializeOwned;
use serde_json::Value;
use steps::Case;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;
use crate::table::{clean, table};

// Promise: linear-time
#[test]
fn responses_are_read_in_linear_time() {
    steps::check("client::linear::responses_are_read_in_linear_time", &CASES);
}

/// Reads a response from a server that sends it after the first bytes of the request.
fn received(answer: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (here, mut there) = duplex(1 << 22);
        let server = async {
            let _ = there.read(&mut [0; 4_096]).await;
            let _ = there.write_all(answer).await;
            let _ = there.shutdown().await;
        };
        let client = async {
            let response = send_over(here, Request::get("/").body(Full::default()).unwrap()).await?;
            received_whole(response).await
        };
        let _ = std::hint::black_box(tokio::join!(client, server).0);
    });
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> T {
    serde_json::from_slice(body).unwrap()
}

fn events(body: &[u8]) {
    let view: EventsView = parsed(body);
    let rows: Vec<String> = view.events.iter().map(crate::events::words).collect();
    std::hint::black_box(crate::table::lines("", &rows));
}

fn backends(body: &[u8]) {
    let rows: Vec<BackendRow> = parsed(body);
    let row = |row: &BackendRow| [row.name.clone(), row.pools.join(","), crate::table::word(&row.state)];
    std::hint::black_box(table(["backend", "pools", ">state"], rows.iter().map(row)));
}

fn text(body: &[u8]) {
    std::hint::black_box(clean(&parsed::<String>(body)));
}

fn refusal(body: &[u8]) {
    std::hint::black_box(refused(hyper::StatusCode::CONFLICT, body));
}

fn value(body: &[u8]) {
    let _ = std::hint::black_box(serde_json::from_slice::<Value>(body));
}

const CASES: [Case<'_>; 12] = [
    ("header fields", |n| response(&"A: b\r\n".repeat(n / 8), "{}"), received),
    ("one header field", |n| response(&format!("A: {}\r\n", "b".repeat(100 * n)), "{}"), received),
    ("a body", |n| response("", &" ".repeat(100 * n)), received),
    (
        "chunks of a body",
        |n| {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            format!("{head}{}0\r\n\r\n", "1\r\n \r\n".repeat(n)).into()
        },
        received,
    ),
    ("events", many_events, events),
    ("backends", |n| many_backends(n, 1), backends),
    ("pools of a backend", |n| many_backends(1, n), backends),
    ("backends with a long name", |n| many_backends(n, n), backends),
    ("control characters", |n| json(&Value::from("\u{1b}[2J".repeat(n))), text),
    (
        "a message of a refusal",
        |n| json(&serde_json::json!({ "kind": "conflict", "error": "a ".repeat(20 * n) })),
        refusal,
    ),
    // The parser refuses more than 127 levels.
    ("nested JSON", |n| "[".repeat(n / 5).into(), value),
    (
        "keys of JSON",
        |n| format!("{{{}\"a\": 1}}", (0..n).map(|i| format!("\"{i}\": 1, ")).collect::<String>()).into(),
        value,
    ),
];

fn response(fields: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len()).into()
}

fn json(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

fn many_events(count: usize) -> Vec<u8> {
    let mut view: Value = parsed(include_bytes!("../../../admin/src/page/sample/events.json"));
    let event = view["events"][0].clone();
    view["events"] = vec![event; count].into();
    json(&view)
}

/// Returns rows of which the first has a number of pools.
fn many_backends(rows: usize, pools: usize) -> Vec<u8> {
    let samples: Vec<Value> = parsed(include_bytes!("../../../admin/src/page/sample/backends.json"));
    let mut all = vec![samples[0].clone(); rows];
    all[0]["pools"] = (0..pools).map(|number| format!("pool-{number}")).collect();
    json(&all.into())
}
