//! The agent check, which uses the agent protocol of HAProxy.
//!
//! An agent runs on the backend. When a connection opens, the agent sends one line of words, such
//! as `up 75%`, and closes the connection. Each line replaces the previous line completely: a line
//! without `drain` ends a drain, and a line without a weight means 100 %. Machines that start at
//! different times therefore agree. In HAProxy, by contrast, a setting from an earlier line stays
//! in effect.
//!
//! References: "agent-check" in the configuration manual of HAProxy 3.0.

use std::net::{IpAddr, SocketAddr};

use config::AgentCheck;
use tokio::io::AsyncWriteExt;

use super::dial::read_line;
use super::failure::quote;
use super::{Advice, Dialer, Failure, Pass};

/// Connects to the agent, and reads one line.
pub(super) async fn attempt(check: &AgentCheck, address: IpAddr, dialer: &Dialer) -> Result<Pass, Failure> {
    let peer = SocketAddr::new(address, check.port);
    let mut stream = dialer.tcp(peer).await.map_err(|error| Failure::from(&error))?;
    if let Some(payload) = &check.send {
        stream.write_all(&payload.bytes()).await.map_err(|error| Failure::from(&error))?;
    }
    let (mut buffer, mut length) = ([0; LONGEST_LINE], 0);
    let end = read_line(&mut stream, &mut buffer, &mut length, |byte| matches!(byte, b'\r' | b'\n')).await;
    match end.map_err(|error| Failure::from(&error))? {
        None if length == LONGEST_LINE => Err(Failure::malformed("the line of the agent exceeds 1 KiB")),
        None if length == 0 => Err(Failure::Closed),
        end => judge(buffer.get(..end.unwrap_or(length)).unwrap_or_default(), check).map(Pass::Agent),
    }
}

/// Evaluates a line from an agent.
pub(super) fn judge(line: &[u8], check: &AgentCheck) -> Result<Advice, Failure> {
    let (words, reason) = match line.iter().position(|byte| *byte == b'#') {
        Some(at) => line.split_at(at),
        None => (line, &[][..]),
    };
    let mut advice = Advice { drains: false, tenths: 10 };
    let (mut found, mut down) = (false, None);
    let words = words.split(|byte| matches!(byte, b' ' | b'\t' | b','));
    for word in words.filter(|word| !word.is_empty()) {
        found = true;
        match word.to_ascii_lowercase().as_slice() {
            b"up" | b"ready" => {}
            b"drain" => advice.drains = true,
            b"maint" | b"down" | b"failed" | b"fail" | b"stopped" => down = Some(word),
            // The limit is ignored, because Sluicegate does not limit the number of connections.
            other if other.starts_with(b"maxconn:") => {}
            other => match percent(other) {
                Some(0) => advice.drains = true,
                Some(percent) => advice.tenths = tenths(percent, check),
                None => {
                    let what = format!("agent sent {}, expected a state or a weight", quote(word));
                    return Err(Failure::Malformed(what.into()));
                }
            },
        }
    }
    match (found, down) {
        (false, _) => Err(Failure::malformed("agent sent neither a state nor a weight")),
        (true, None) => Ok(advice),
        (true, Some(word)) => {
            let reason = reason.strip_prefix(b"#").unwrap_or(reason).trim_ascii();
            let reason = if reason.is_empty() { String::new() } else { format!(", {}", quote(reason)) };
            Err(Failure::Agent(format!("agent reports {}{reason}", quote(word)).into()))
        }
    }
}

fn percent(word: &[u8]) -> Option<u16> {
    let digits = word.strip_suffix(b"%")?;
    let good = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| good)?.parse().ok()
}

/// Rounds a percentage to tenths, within the bounds of the check.
fn tenths(percent: u16, check: &AgentCheck) -> u8 {
    let rounded = u8::try_from((percent.saturating_add(5)) / 10).unwrap_or(u8::MAX);
    rounded.clamp(check.min_weight / 10, check.max_weight / 10)
}

const LONGEST_LINE: usize = 1 << 10;

#[cfg(test)]
mod tests;
