//! The query of tcp and udp targets: `send`, `send_hex`, `expect`, `expect_hex` and `expect_regex`,
//! with percent-encoded values. The parameters have the same names as the configuration keys.

use config::{Expect, ExpectForm, Payload};

/// Reads a query such as `?send=PING%0D%0A&expect=PONG`, with a leading `/` or without it.
pub(super) fn read(rest: &str) -> Result<(Option<Payload>, Option<Expect>), String> {
    let query = match rest.strip_prefix('/').unwrap_or(rest) {
        "" => return Ok((None, None)),
        query => query.strip_prefix('?').ok_or(FORM)?,
    };
    let (mut send, mut expect) = (None, None);
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').ok_or(FORM)?;
        let value = decoded(value).ok_or(FORM)?;
        let taken = match key {
            "send" | "send_hex" => {
                let payload = Payload::parse(key, &value).ok_or(format!("invalid value of {key}"))?;
                send.replace(payload).is_some()
            }
            "expect" | "expect_hex" | "expect_regex" => {
                let form = ExpectForm::parse(key, &value).ok_or(format!("invalid value of {key}"))?;
                let wrong = |why| format!("invalid regular expression: {why}");
                expect.replace(Expect::new(form).map_err(wrong)?).is_some()
            }
            _ => return Err(FORM.into()),
        };
        if taken {
            return Err("a target has at most one payload and one expectation".into());
        }
    }
    Ok((send, expect))
}

/// Formats a query. [`read`] returns the same payload and expectation for the formatted query.
pub(super) fn written(send: Option<&Payload>, expect: Option<&Expect>) -> String {
    let pairs = [send.map(Payload::pair), expect.map(|expect| expect.form.pair())];
    let pairs = pairs.into_iter().flatten().map(|(key, value)| format!("{key}={}", encoded(value)));
    let query = pairs.collect::<Vec<_>>().join("&");
    if query.is_empty() { query } else { format!("/?{query}") }
}

fn encoded(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~^$*+()[]|,:;/".contains(&byte);
    let form = |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    value.bytes().map(form).collect()
}

fn decoded(value: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = match first {
            b'%' => {
                let digits = after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
                (u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?, after.get(2..)?)
            }
            other => (other, after),
        };
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

const FORM: &str = "a tcp or udp target ends with its port, or with a query such as ?send=PING%0D%0A&expect=PONG \
                    (keys: send, send_hex, expect, expect_hex, expect_regex; values are percent-encoded)";
