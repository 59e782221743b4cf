//! Tests of `memcached`.

use proptest::prelude::*;

use super::super::hostile::{ask, say, serve, silent, waits, words};
use super::*;
use config::CheckKind;

fn kind(port: u16) -> CheckKind {
    CheckKind::Memcached(MemcachedCheck { port })
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
    assert_eq!(words(&kind(say("ERROR\r\n").await)).await, "\"ERROR\\r\", wanted \"VERSION ...\"");
    assert_eq!(words(&kind(say("VERSION 1.6").await)).await, "closed before its answer was complete");
    assert_eq!(words(&kind(say("").await)).await, "closed before its answer was complete");
    let long = words(&kind(say(vec![b'x'; 1 << 20]).await)).await;
    assert_eq!(long, format!("\"{}...\", wanted \"VERSION ...\"", "x".repeat(40)));
}

#[tokio::test]
async fn a_server_that_never_answers_is_waited_for() {
    assert!(waits(&kind(silent().await)).await);
}

#[test]
fn a_line_is_judged_by_its_first_word_and_its_end() {
    let table: [(&[u8], Option<bool>); 8] = [
        (b"VERSION 1\r\n", Some(true)),
        (b"VERSION 1\r\nVERSION 2\r\n", Some(true)),
        (b"VERSION \r\n", Some(false)),
        (b"VERSION 1\n", Some(false)),
        (b"version 1\r\n", Some(false)),
        (b" VERSION 1\r\n", Some(false)),
        (b"VERSION 1\r", None),
        (b"", None),
    ];
    for (answer, passes) in table {
        assert_eq!(judge(answer).map(|verdict| verdict.is_ok()), passes, "{}", answer.escape_ascii());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_judged_and_only_a_version_passes(answer in prop::collection::vec(any::<u8>(), 0..300)) {
        let passes = matches!(judge(&answer), Some(Ok(())));
        prop_assert!(!passes || answer.starts_with(b"VERSION "));
    }
}
