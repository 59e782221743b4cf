//! Tests of `agent`.

use proptest::prelude::*;
use tokio::io::AsyncReadExt;

use super::super::hostile::{ask, say, serve, silent, waits, words};
use super::*;
use config::{CheckKind, Payload};

fn check(port: u16) -> AgentCheck {
    AgentCheck { port, send: Some(Payload::Text("b1\n".into())), min_weight: 20, max_weight: 150 }
}

fn kind(port: u16) -> CheckKind {
    CheckKind::Agent(check(port))
}

fn advice(line: &str) -> Result<(bool, u8), String> {
    let advice = judge(line.as_bytes(), &check(1)).map_err(|failure| failure.to_string())?;
    Ok((advice.drains, advice.tenths))
}

#[test]
fn line_becomes_advice() {
    let table = [
        ("up", (false, 10)),
        ("READY", (false, 10)),
        ("75%", (false, 8)),
        ("up 74%", (false, 7)),
        ("\tup,ready, 5% # busy", (false, 2)),
        ("1%", (false, 2)),
        ("200%", (false, 15)),
        ("65535%", (false, 15)),
        ("0%", (true, 10)),
        ("drain 50%", (true, 5)),
        ("maxconn:30 up", (false, 10)),
    ];
    for (line, expected) in table {
        assert_eq!(advice(line), Ok(expected), "{line}");
    }
}

#[test]
fn line_without_service_fails_with_its_words() {
    let table = [
        ("down", "agent reports \"down\""),
        ("50% maint", "agent reports \"maint\""),
        ("failed # disk full\x07 ", "agent reports \"failed\", \"disk full\\x07\""),
        ("stopped#", "agent reports \"stopped\""),
        ("", "agent sent neither a state nor a weight"),
        (" ,\t# only a comment", "agent sent neither a state nor a weight"),
        ("up HTTP/1.1", "agent sent \"HTTP/1.1\", expected a state or a weight"),
        ("%", "agent sent \"%\", expected a state or a weight"),
        ("-5%", "agent sent \"-5%\", expected a state or a weight"),
        ("65536%", "agent sent \"65536%\", expected a state or a weight"),
    ];
    for (line, expected) in table {
        assert_eq!(advice(line), Err(expected.into()), "{line}");
    }
}

#[tokio::test]
async fn agent_line_ends_with_line_end_or_close() {
    for line in ["up 50%\n", "up 50%\r\ndown", "up 50%"] {
        assert_eq!(ask(&kind(say(line).await)).await, Ok(()), "{line}");
    }
    let port = serve(|mut stream| async move {
        let mut request = [0; 3];
        stream.read_exact(&mut request).await?;
        assert_eq!(&request, b"b1\n");
        for byte in b"drain\n" {
            stream.write_all(&[*byte]).await?;
            tokio::task::yield_now().await;
        }
        stream.read_to_end(&mut Vec::new()).await?;
        Ok(())
    });
    assert_eq!(ask(&kind(port.await)).await, Ok(()));
}

#[tokio::test]
async fn hostile_agent_fails() {
    let long = say("up ".repeat(400));
    assert_eq!(words(&kind(long.await)).await, "the line of the agent exceeds 1 KiB");
    let empty = words(&kind(say("").await)).await;
    assert_eq!(empty, "connection closed before the response was complete");
    assert_eq!(words(&kind(say("down\n").await)).await, "agent reports \"down\"");
    assert!(waits(&kind(silent().await)).await);
}

proptest! {
    #[test]
    fn any_line_gives_a_weight_within_bounds(line in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(advice) = judge(&line, &check(1)) {
            prop_assert!((2..=15).contains(&advice.tenths));
        }
    }
}
