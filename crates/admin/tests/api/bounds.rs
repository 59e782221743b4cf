//! Tests of the Unix listener: its socket file, and its connection limits. Most tests use the
//! paused clock of tokio, which advances while all tasks wait.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, process};

use admin::{Command, Limits, Listener, Rules, Socket, SocketError, listen, router, serve};
use axum::Router;
use nix::unistd::{Group, getgid};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::mock;

/// A temporary directory, removed at the end of the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("sluicegate-admin-{}-{number}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) struct Open {
    folder: Folder,
    pub(crate) log: mock::Log,
    commands: mpsc::Sender<Command>,
    server: JoinHandle<std::convert::Infallible>,
    _file: Socket,
}

impl Open {
    pub(crate) fn new(limits: Limits) -> Self {
        let folder = Folder::new();
        let (commands, log) = mock::start();
        let router = router(commands.clone(), Rules::new(true), Router::new());
        let (file, listener) = listen(&folder.0.join("admin.sock"), 0o600, None).unwrap();
        let server = tokio::spawn(serve(Listener::Unix(listener), router, limits));
        Self { folder, log, commands, server, _file: file }
    }

    pub(crate) async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.folder.0.join("admin.sock")).await.unwrap()
    }

    /// Sends `bytes` and returns the complete response, which ends when the server closes the
    /// connection.
    async fn throw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        read_to_end(&mut stream).await
    }

    pub(crate) async fn serves(&self) -> bool {
        self.throw(GOOD).await.starts_with("HTTP/1.1 200")
    }

    /// Waits until no connection is open. Every open connection holds a sender of the command
    /// channel.
    pub(crate) async fn every_connection_has_ended(&self) {
        for _ in 0..1_000 {
            // The test and the router hold one sender each, and the guard layer holds another one.
            if self.commands.strong_count() <= self.at_rest() {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("{} ways to the loop, {} at rest", self.commands.strong_count(), self.at_rest());
    }

    fn at_rest(&self) -> usize {
        let (commands, _received) = mpsc::channel(1);
        let router = router(commands.clone(), Rules::new(true), Router::new());
        let count = commands.strong_count();
        drop(router);
        count
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn read_to_end(stream: &mut UnixStream) -> String {
    let mut answer = Vec::new();
    // A connection reset also marks the end of the response.
    let read = timeout(Duration::from_secs(3_600), stream.read_to_end(&mut answer)).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    // Random input may start a capture without a limit, which lasts until the client disconnects.
    let is_capture = || answer.starts_with("HTTP/1.1 200") && answer.contains("application/x-pcapng");
    assert!(read.is_ok() || is_capture(), "the server did not end the connection: {answer:?}");
    answer
}

const LOOK: Duration = Duration::from_millis(20);
const GOOD: &[u8] = b"GET /v1/status HTTP/1.1\r\nHost: lb\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn socket_file_has_mode_and_group_until_drop() {
    let folder = Folder::new();
    let path = folder.0.join("admin.sock");
    let group = Group::from_gid(getgid()).unwrap().unwrap();
    let (file, _listener) = listen(&path, 0o640, Some(&group.name)).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.permissions().mode() & 0o7777, found.gid()), (0o640, getgid().as_raw()));
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    file.open_to(0o660, None).unwrap();
    assert_eq!(mode(), 0o660);
    file.open_to(0o600, Some(&group.name)).unwrap();
    let error = file.open_to(0o666, Some("no-such-group")).unwrap_err();
    assert_eq!((mode(), error.to_string().contains("no-such-group")), (0o600, true));
    drop(file);
    assert!(!path.exists());
    let error = listen(&path, 0o640, Some("no-such-group")).unwrap_err();
    assert!(matches!(error, SocketError::NoGroup { .. }), "{error}");
    assert!(!path.exists());
}

#[tokio::test]
async fn only_a_stale_socket_is_replaced() {
    let folder = Folder::new();
    let path = folder.0.join("admin.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let (file, listener) = listen(&path, 0o600, None).unwrap();
    let error = listen(&path, 0o600, None).unwrap_err();
    assert!(matches!(error, SocketError::Taken { .. }), "{error}");
    drop((file, listener));
    fs::write(&path, "a file").unwrap();
    let error = listen(&path, 0o600, None).unwrap_err();
    assert!(matches!(error, SocketError::Io { .. }), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
    let error = listen(&folder.0.join("none/admin.sock"), 0o600, None).unwrap_err().to_string();
    let wanted = format!("create directory {}", folder.0.join("none").display());
    assert!(error.contains(&wanted), "{error}");
}

// Promise: api-stalled-clients
#[tokio::test(start_paused = true)]
async fn stalled_clients_are_disconnected() {
    let open = Open::new(Limits::default());
    for half in [
        "",
        "GET /v1/sta",
        "GET /v1/status HTTP/1.1\r\nHost: l",
        "POST /v1/reload HTTP/1.1\r\nHost: lb\r\nContent-Length: 10\r\n\r\nhal",
        "PUT /v1/config HTTP/1.1\r\nHost: lb\r\nIf-Match: *\r\nContent-Length: 1000000\r\n\r\nschema",
        "POST /v1/reload HTTP/1.1\r\nHost: lb\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal",
    ] {
        let start = Instant::now();
        let answer = open.throw(half.as_bytes()).await;
        assert!(!answer.contains("200 OK"), "{half:?} {answer}");
        assert!(start.elapsed() <= Duration::from_secs(21), "{half:?} {:?}", start.elapsed());
    }
    // These clients disconnect before they receive the response.
    for _ in 0..200 {
        open.connect().await.write_all(GOOD).await.unwrap();
    }
    open.every_connection_has_ended().await;
    assert!(open.serves().await);
}

#[tokio::test]
async fn broken_and_too_large_bodies_are_distinguished() {
    let open = Open::new(Limits::default());
    let broken = "POST /v1/reload HTTP/1.1\r\nHost: lb\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
    let answer = open.throw(broken.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("cannot read the request body"),
        "{answer}"
    );
    let head = "POST /v1/reload HTTP/1.1\r\nHost: lb\r\nTransfer-Encoding: chunked\r\n\r\n10001\r\n";
    let large = [head.as_bytes(), &[b'x'; 0x1_0001]].concat();
    let answer = open.throw(&large).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("larger than 65536 bytes"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_disconnected() {
    let open = Open::new(Limits::default());
    let mut stream = open.connect().await;
    let requests = b"GET /openapi.json HTTP/1.1\r\nHost: lb\r\n\r\n".repeat(200);
    stream.write_all(&requests).await.unwrap();
    // The server has started to respond.
    stream.readable().await.unwrap();
    let start = Instant::now();
    open.every_connection_has_ended().await;
    assert!(start.elapsed() <= Duration::from_secs(12), "{:?}", start.elapsed());
    let answers = read_to_end(&mut stream).await.matches("HTTP/1.1 200").count();
    assert!(answers < 200, "{answers}");
}

// Promise: api-stalled-clients
#[tokio::test(start_paused = true)]
async fn a_hundred_stalled_clients_delay_no_other() {
    let open = Open::new(Limits::default());
    for half in [
        "",
        "GET /v1/status HTTP/1.1\r\nHost: l",
        "POST /v1/reload HTTP/1.1\r\nHost: lb\r\nContent-Length: 10\r\n\r\nhal",
        // An idle connection after a response.
        "GET /v1/status HTTP/1.1\r\nHost: lb\r\n\r\n",
    ] {
        let mut stopped = Vec::new();
        for _ in 0..100 {
            let mut stream = open.connect().await;
            // The server may have closed the connection already.
            let _ = stream.write_all(half.as_bytes()).await;
            stopped.push(stream);
        }
        let start = Instant::now();
        assert!(open.serves().await, "{half:?}");
        assert!(start.elapsed() < Duration::from_millis(250), "{half:?} {:?}", start.elapsed());
    }
    open.every_connection_has_ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_hundred_unread_responses_delay_others_by_a_second() {
    let open = Open::new(Limits::default());
    let requests = b"GET /openapi.json HTTP/1.1\r\nHost: lb\r\n\r\n".repeat(100);
    let mut stopped = Vec::new();
    for _ in 0..100 {
        let mut stream = open.connect().await;
        // The write fails or blocks if the server does not read.
        let _ = timeout(Duration::from_millis(1), stream.write_all(&requests)).await;
        stopped.push(stream);
    }
    let start = Instant::now();
    assert!(open.serves().await);
    assert!(start.elapsed() < Duration::from_millis(2_500), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_request_in_progress_is_never_displaced() {
    let limits = Limits { connections: 4, ..Limits::default() };
    let folder = Folder::new();
    let (overrides, mut commands) = mpsc::channel(16);
    let (file, listener) = listen(&folder.0.join("admin.sock"), 0o600, None).unwrap();
    let router = router(overrides, Rules::new(true), Router::new());
    let _server = tokio::spawn(file.keep(listener, router, limits));
    let ask = async |path: PathBuf| {
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.write_all(GOOD).await.unwrap();
        read_to_end(&mut stream).await
    };
    let clients: Vec<_> = (0..6).map(|_| tokio::spawn(ask(folder.0.join("admin.sock")))).collect();
    sleep(Duration::from_secs(1)).await;
    let mut waiting = Vec::new();
    while let Ok(command) = commands.try_recv() {
        waiting.push(command);
    }
    assert_eq!(waiting.len(), 4, "two clients wait for a permit");
    for _ in 0..6 {
        let command = match waiting.pop() {
            Some(command) => command,
            None => commands.recv().await.unwrap(),
        };
        let Command::Status(answer) = command else { panic!("{command:?}") };
        answer.send(Default::default()).unwrap();
    }
    for client in clients {
        let answer = client.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test]
async fn a_deleted_socket_file_is_recreated() {
    let folder = Folder::new();
    let path = folder.0.join("admin.sock");
    let (commands, _) = mock::start();
    let router = router(commands, Rules::new(true), Router::new());
    let (file, listener) = listen(&path, 0o640, None).unwrap();
    let server = tokio::spawn(file.keep(listener, router, Limits::default()));
    let serves = async || {
        let Ok(mut stream) = UnixStream::connect(&path).await else { return false };
        let written = stream.write_all(GOOD).await;
        written.is_ok() && read_to_end(&mut stream).await.starts_with("HTTP/1.1 200")
    };
    let serves_soon = async || {
        timeout(Duration::from_secs(30), async {
            while !serves().await {
                sleep(LOOK).await
            }
        })
        .await
        .is_ok()
    };
    assert!(serves().await);
    fs::remove_file(&path).unwrap();
    assert!(serves_soon().await, "after the file was deleted");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
    fs::rename(&path, folder.0.join("elsewhere")).unwrap();
    fs::write(&path, "a file").unwrap();
    sleep(Duration::from_millis(2_500)).await;
    assert_eq!(fs::read_to_string(&path).unwrap(), "a file", "a file of another program is not replaced");
    fs::remove_file(&path).unwrap();
    assert!(serves_soon().await, "after the path is free again");
    // A socket that a different process created at the same path is not removed.
    fs::remove_file(&path).unwrap();
    let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    server.abort();
    drop(file);
    assert!(path.exists());
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn a_busy_connection_ends_at_its_time_limit() {
    let limits = Limits { life: Duration::from_secs(60), ..Limits::default() };
    let open = Open::new(limits);
    let mut stream = open.connect().await;
    let start = Instant::now();
    let mut answers = 0;
    let mut buffer = vec![0; 64 << 10];
    while stream.write_all(b"GET /v1/config HTTP/1.1\r\nHost: lb\r\n\r\n").await.is_ok() {
        match stream.read(&mut buffer).await {
            Ok(1..) => answers += 1,
            _ => break,
        }
        assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
        sleep(Duration::from_secs(5)).await;
    }
    assert!((10..=14).contains(&answers), "{answers}");
}

#[tokio::test(start_paused = true)]
async fn endless_request_headers_are_rejected() {
    let open = Open::new(Limits::default());
    let mut stream = open.connect().await;
    let mut sent = stream.write_all(b"GET /v1/status HTTP/1.1\r\n").await;
    for number in 0.. {
        if sent.is_err() || number > 100_000 {
            break;
        }
        sent = stream.write_all(format!("X-{number}: {}\r\n", "x".repeat(100)).as_bytes()).await;
    }
    assert!(sent.is_err(), "the server accepted 10 MB of headers");
    assert!(open.serves().await);
}

/// Generates arbitrary bytes, and requests with some changed bytes.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let request = prop::sample::select(vec![
        &b"GET /v1/flows?vip=www&limit=10 HTTP/1.1\r\nHost: lb\r\n\r\n"[..],
        b"PUT /v1/config HTTP/1.1\r\nHost: lb\r\nIf-Match: \"x\"\r\nContent-Length: 3\r\n\r\nabc",
        b"POST /v1/backends/b1/weight?pool=web HTTP/1.1\r\nContent-Length: 13\r\n\r\n{\"weight\": 5}",
        b"POST /v1/capture?drop=ttl&sample=5&count=2 HTTP/1.1\r\nHost: lb\r\n\r\n",
        b"GET /v1/where?source=192.0.2.7:1&destination=203.0.113.10:80&protocol=tcp HTTP/1.0\r\n\r\n",
    ]);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let changed = (request, changes).prop_map(|(request, changes)| {
        let mut bytes = request.to_vec();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        bytes
    });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..300), changed]
}

#[tokio::test(start_paused = true)]
async fn an_unlimited_capture_ends_with_its_client() {
    let open = Open::new(Limits::default());
    let answer = open.throw(b"POST /v1/capture?drop=ttl HTTP/1.1\r\nHost: lb\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    open.every_connection_has_ended().await;
}

#[test]
fn arbitrary_input_does_not_end_the_server() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let open = runtime.block_on(async { Open::new(Limits::default()) });
    proptest!(ProptestConfig::with_cases(512), |(bytes in bytes())| {
        let served = runtime.block_on(async {
            let answer = open.throw(&bytes).await;
            prop_assert!(answer.is_empty() || answer.starts_with("HTTP/1."), "{answer}");
            Ok(open.serves().await)
        })?;
        prop_assert!(served);
    });
    runtime.block_on(open.every_connection_has_ended());
    runtime.block_on(async { drop(open) });
}
