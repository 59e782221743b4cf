//! Tests of the exec check against runners that are missing, hang or send arbitrary bytes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::AsyncReadExt;
use tokio::net::UnixListener;
use tokio::time::timeout;

use super::super::hostile::HERE;
use super::*;

fn socket() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("sluicegate-exec-{}-{number}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

async fn ask(socket: &Path) -> Result<(), Failure> {
    let check = ExecCheck { program: "c".into(), arguments: vec![], port: None, socket: socket.into() };
    let interim = Interim::default();
    let subject = Subject::of(HERE);
    let attempt = attempt(&check, &subject, &interim);
    let result = timeout(Duration::from_millis(500), attempt).await;
    result.unwrap_or_else(|_| interim.expired().map(drop))
}

/// Runs an attempt against a runner that sends these bytes, and then closes the connection unless
/// it `hangs`.
async fn answered(bytes: &'static [u8], hangs: bool) -> Failure {
    let path = socket();
    let listener = UnixListener::bind(&path).unwrap();
    let runner = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4_096];
        let read = stream.read(&mut request).await.unwrap();
        assert!(request[..read].ends_with(b"\n\n"));
        let _ = stream.write_all(bytes).await;
        if hangs {
            std::future::pending::<()>().await;
        }
    });
    let failure = ask(&path).await.expect_err("a failure");
    runner.abort();
    std::fs::remove_file(path).unwrap();
    failure
}

#[tokio::test]
async fn missing_runner_is_a_local_failure() {
    let path = socket();
    let failure = ask(&path).await.expect_err("no runner");
    assert!(
        failure.is_local() && failure.to_string().contains("is sluicegate-checks.socket active?"),
        "{failure}"
    );
    drop(UnixListener::bind(&path).unwrap());
    let failure = ask(&path).await.expect_err("no runner");
    assert!(failure.is_local() && failure.to_string().contains("refused"), "{failure}");
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn runner_that_hangs_or_dies_is_a_local_failure() {
    for (bytes, hangs, words) in [
        (&b""[..], true, "does not respond"),
        (b"", false, "sent no result"),
        (b"started\n", false, "sent no result"),
        (b"start", true, "does not respond"),
        (b"garbage\n", true, "sent no result"),
        (b"unable the check runner already runs 64 programs\n", true, "already runs"),
    ] {
        let failure = answered(bytes, hangs).await;
        assert!(failure.is_local() && failure.to_string().contains(words), "{bytes:?}: {failure}");
    }
    let long: &'static [u8] = Box::leak(vec![b'x'; 100_000].into_boxed_slice());
    assert!(answered(long, true).await.is_local());
}

#[tokio::test]
async fn results_of_the_program_count() {
    let late = answered(b"started\n", true).await;
    assert_eq!(late, Failure::Program("the program did not end in time".into()));
    let failed = answered(b"started\nfailed exit status 2: lag 90 s\n", true).await;
    assert_eq!((failed.to_string().as_str(), failed.reason()), ("exit status 2: lag 90 s", "program"));
}
