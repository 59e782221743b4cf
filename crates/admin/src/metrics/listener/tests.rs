use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::readiness::{Machine, VipState};
use crate::stats::Stats;
use crate::view::Status;

struct Scene {
    address: SocketAddr,
    readiness: watch::Sender<Readiness>,
    commands: mpsc::Receiver<Command>,
}

impl Scene {
    async fn new() -> Self {
        let (readiness, watched) = watch::channel(Readiness::of(&well(), BTreeMap::new()));
        let (asks, commands) = mpsc::channel(1);
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(
            listener,
            router(Sources { readiness: watched, commands: asks }),
            Hosts::new(["x".to_owned()]),
        ));
        Self { address, readiness, commands }
    }

    async fn ask(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        read(stream).await
    }

    async fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

fn well() -> Machine {
    Machine { has_link: true, set_up: true, ..Machine::default() }
}

/// Reads until the listener closes the connection.
async fn read(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A connection reset also means that the listener closed the connection. A reset occurs if the
    // listener did not read the whole request.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

fn begins(answer: &str, status: u16) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
}

#[tokio::test]
async fn a_scrape_returns_the_counters_of_the_run_loop() {
    let mut scene = Scene::new().await;
    let address = scene.address;
    let client = tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        read(stream).await
    });
    // The commands may arrive in any order. An unexpected command is an error.
    while let Some(command) = tokio::select! {
        command = scene.commands.recv() => command,
        () = async { while !client.is_finished() { tokio::task::yield_now().await } } => None,
    } {
        match command {
            Command::Stats(answer) => {
                answer.send(Stats { generation: 7, ..Stats::default() }).unwrap();
            }
            Command::Status(answer) => answer.send(Status { ready: true, ..Status::default() }).unwrap(),
            Command::Vips(answer) => answer.send(vec![]).unwrap(),
            Command::Backends(answer) => answer.send(vec![]).unwrap(),
            Command::Bgp(answer) => answer.send(crate::view::BgpView::default()).unwrap(),
            other => panic!("{other:?}"),
        }
    }
    let answer = client.await.unwrap();
    begins(&answer, 200);
    assert!(answer.contains("\r\ncontent-type: text/plain; version=0.0.4"), "{answer}");
    for line in ["sluicegate_generation 7", "sluicegate_ready 1"] {
        assert!(answer.contains(&format!("\n{line}\n")), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_scrape_without_reply_returns_status_503() {
    let scene = Scene::new().await;
    begins(&scene.get("/metrics").await, 503);
}

#[tokio::test]
async fn health_and_readiness_return_their_reasons() {
    let scene = Scene::new().await;
    begins(&scene.get("/healthz").await, 200);
    begins(&scene.get("/readyz").await, 200);

    let unserved = VipState { unserved: Some("no backend for www tcp 80".into()), announcement: None };
    let vips = BTreeMap::from([("www".to_owned(), unserved), ("mail".to_owned(), VipState::default())]);
    scene.readiness.send_replace(Readiness::of(&well(), vips.clone()));
    let answer = scene.get("/readyz/vip/www").await;
    begins(&answer, 503);
    assert!(answer.ends_with("\r\n\r\nnot serving: www, no backend for www tcp 80\n"), "{answer}");
    begins(&scene.get("/readyz/vip/mail").await, 200);
    begins(&scene.get("/readyz").await, 200);
    let answer = scene.get("/readyz/vip/other%0a").await;
    begins(&answer, 404);
    assert!(answer.ends_with("\r\n\r\nVIP \"other\\n\" is not configured on this machine\n"), "{answer}");
    for path in ["/readyz/vip/%ff", "/readyz?vip=www"] {
        begins(&scene.get(path).await, 400);
    }

    scene.readiness.send_replace(Readiness::of(&Machine { draining: true, ..well() }, vips));
    begins(&scene.get("/healthz").await, 200);
    let answer = scene.get("/readyz").await;
    begins(&answer, 503);
    let body = "\r\n\r\ndraining\nnot serving: www, no backend for www tcp 80\n";
    assert!(answer.ends_with(body), "{answer}");
    begins(&scene.get("/readyz/vip/mail").await, 503);

    let stuck = Machine { fault: Some("thread 2 stands".into()), ..well() };
    scene.readiness.send_replace(Readiness::of(&stuck, BTreeMap::new()));
    for path in ["/healthz", "/readyz"] {
        let answer = scene.get(path).await;
        begins(&answer, 503);
        assert!(answer.ends_with("\r\n\r\nthread 2 stands\n"), "{answer}");
    }
}

#[tokio::test]
async fn all_routes_fail_after_the_end_of_the_run_loop() {
    let Scene { address, readiness, commands } = Scene::new().await;
    drop((readiness, commands));
    for path in ["/healthz", "/readyz", "/metrics"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        begins(&read(stream).await, 503);
    }
}

// Promise: api-access
#[tokio::test]
async fn only_three_paths_and_get_are_served() {
    let scene = Scene::new().await;
    for path in ["/", "/v1/status", "/counters", "/metrics/", "//metrics", "/healthz/../v1/status"] {
        begins(&scene.get(path).await, 404);
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        for path in ["/metrics", "/healthz", "/readyz"] {
            begins(
                &scene
                    .ask(&format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"))
                    .await,
                405,
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn incomplete_requests_are_closed() {
    let scene = Scene::new().await;
    let started = tokio::time::Instant::now();
    for half in ["", "GET /healthz HTTP/1.1\r\nHost: x\r\n", "GET /hea"] {
        let mut stream = scene.connect().await;
        stream.write_all(half.as_bytes()).await.unwrap();
        let answer = read(stream).await;
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    assert!(started.elapsed() <= 3 * CONNECTION_LIFE, "{:?}", started.elapsed());
    begins(&scene.get("/healthz").await, 200);
}

#[tokio::test]
async fn an_endless_header_is_rejected() {
    let scene = Scene::new().await;
    let answer =
        scene.ask(&format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(4 * MAX_HEADER_BYTES))).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    begins(&scene.get("/healthz").await, 200);
}

/// These clients occupy all connections and send nothing.
#[tokio::test(start_paused = true)]
async fn silent_clients_are_disconnected() {
    let scene = Scene::new().await;
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        silent.push(scene.connect().await);
    }
    begins(&scene.get("/healthz").await, 200);
    for stream in silent {
        assert!(!read(stream).await.contains(" 200 "));
    }
}

#[tokio::test]
async fn the_number_of_connections_is_limited() {
    let mut scene = Scene::new().await;
    let mut waiting = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut stream = scene.connect().await;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        waiting.push(stream);
    }
    // One query is being handled, one waits in the channel, and all other connections are open.
    let first = scene.commands.recv().await.unwrap();
    let mut late = scene.connect().await;
    late.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(300), late.read(&mut [0])).await;
    assert!(early.is_err(), "a response despite {MAX_CONNECTIONS} other connections");
    drop(first);
    while let Ok(ask) = scene.commands.try_recv() {
        drop(ask);
    }
    begins(&read(late).await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_stalled_clients_delay_no_other() {
    let scene = Scene::new().await;
    for half in ["", "GET /healthz HTTP/1.1\r\nHost: l"] {
        let mut stopped = Vec::new();
        for _ in 0..100 {
            let mut stream = scene.connect().await;
            // The permit of the connection may already have been revoked.
            let _ = stream.write_all(half.as_bytes()).await;
            stopped.push(stream);
        }
        let start = tokio::time::Instant::now();
        begins(&scene.get("/healthz").await, 200);
        assert!(start.elapsed() < Duration::from_millis(250), "{half:?} {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn an_unknown_host_name_is_rejected() {
    let scene = Scene::new().await;
    for path in ["/healthz", "/readyz", "/metrics", "/other"] {
        let answer = scene.ask(&format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n")).await;
        begins(&answer, 421);
        assert!(answer.contains("admin.metrics_hosts"), "{answer}");
    }
    begins(&scene.ask("GET /healthz HTTP/1.1\r\n\r\n").await, 200);
    begins(&scene.ask("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n").await, 200);
}
