//! The messages between the health thread and `sluicegate run-checks`.
//!
//! Both sides send lines of text. A request is one line per value, and ends with an empty line. The
//! runner sends `started` when the program runs, and then one line with the result.

use std::net::IpAddr;
use std::time::Duration;

use config::{ExecCheck, MOST_ARGUMENTS, is_argument, is_program};

use super::Subject;
use crate::failure::shorten;

/// A request to run a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The name of a file in the check program folder.
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) limit: Duration,
    pub(crate) address: IpAddr,
    pub(crate) port: Option<u16>,
    /// The name of the backend, or an empty string.
    pub(crate) backend: String,
    /// The names of the pools, separated by spaces.
    pub(crate) pools: String,
}

impl Request {
    pub(super) fn new(check: &ExecCheck, subject: &Subject<'_>) -> Self {
        let mut pools = String::new();
        for pool in subject.pools.iter().take_while(|pool| !pool.is_empty()) {
            if pools.len() + pool.len() < MOST_POOL_BYTES {
                pools.push_str(if pools.is_empty() { "" } else { " " });
                pools.push_str(pool);
            }
        }
        Self {
            program: check.program.to_string(),
            arguments: check.arguments.iter().map(ToString::to_string).collect(),
            limit: subject.limit.clamp(Duration::from_millis(1), LONGEST_LIMIT),
            address: subject.address,
            port: check.port,
            backend: subject.backend.to_owned(),
            pools,
        }
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = format!(
            "{VERSION}\nprogram {}\nlimit {}\naddress {}\nbackend {}\npools {}\n",
            self.program,
            self.limit.as_millis(),
            self.address,
            self.backend,
            self.pools
        );
        if let Some(port) = self.port {
            text.push_str(&format!("port {port}\n"));
        }
        for argument in &self.arguments {
            text.push_str(&format!("argument {argument}\n"));
        }
        text + "\n"
    }

    /// Parses the lines before the empty line.
    ///
    /// # Errors
    /// Returns the reason why the text is not a request.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(text).map_err(|_| "the request is not UTF-8")?;
        let mut lines = text.lines();
        if lines.next() != Some(VERSION) {
            return Err("the request has an unknown version; restart both services after an update");
        }
        let (mut program, mut limit, mut address, mut port) = (None, None, None, None);
        let (mut backend, mut pools, mut arguments) = (String::new(), String::new(), Vec::new());
        for line in lines {
            let (key, value) = line.split_once(' ').ok_or("a line has no value")?;
            if value.chars().any(char::is_control) {
                return Err("a value has a control character");
            }
            match key {
                "program" if is_program(value) => program = Some(value.to_owned()),
                "limit" => limit = value.parse().ok().map(Duration::from_millis),
                "address" => address = value.parse().ok(),
                "port" => port = Some(value.parse().map_err(|_| "the port is not a number")?),
                "backend" => value.clone_into(&mut backend),
                "pools" => value.clone_into(&mut pools),
                "argument" if is_argument(value) && arguments.len() < MOST_ARGUMENTS => {
                    arguments.push(value.to_owned());
                }
                _ => return Err("a line has an unknown key or an invalid value"),
            }
        }
        let limit = limit.filter(|limit| (Duration::from_millis(1)..=LONGEST_LIMIT).contains(limit));
        Ok(Self {
            program: program.ok_or("the request has no program")?,
            arguments,
            limit: limit.ok_or("the request has no valid time limit")?,
            address: address.ok_or("the request has no address")?,
            port,
            backend,
            pools,
        })
    }
}

/// A reply of the runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Started,
    /// The program ended with exit status 0.
    Passed,
    /// The program exited with another status, or was killed. The text contains the reason.
    Failed(String),
    /// The runner could not start the program.
    Unable(String),
}

impl Reply {
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Started => "started\n".into(),
            Self::Passed => "passed\n".into(),
            Self::Failed(why) => format!("failed {}\n", printable(why.as_bytes())),
            Self::Unable(why) => format!("unable {}\n", printable(why.as_bytes())),
        }
    }

    /// Parses a line without its line break.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let text = printable(line);
        match text.split_once(' ').unwrap_or((&text, "")) {
            ("started", "") => Some(Self::Started),
            ("passed", "") => Some(Self::Passed),
            ("failed", why) if !why.is_empty() => Some(Self::Failed(why.to_owned())),
            ("unable", why) if !why.is_empty() => Some(Self::Unable(why.to_owned())),
            _ => None,
        }
    }
}

/// Makes bytes from a program or a peer safe to print. The text is cut to the length of a message.
pub(super) fn printable(bytes: &[u8]) -> String {
    let bytes = bytes.get(..MOST_TEXT_BYTES).unwrap_or(bytes);
    let mut text = String::new();
    for char in String::from_utf8_lossy(bytes).chars() {
        match char {
            ' ' | '!'..='~' => text.push(char),
            '\t' => text.push(' '),
            other => text.extend(other.escape_unicode()),
        }
    }
    shorten_to(text.trim())
}

fn shorten_to(text: &str) -> String {
    let cut = shorten(text);
    if cut.len() < text.len() { format!("{cut}...") } else { cut.to_owned() }
}

/// The longest time limit of a check.
pub(super) const LONGEST_LIMIT: Duration = Duration::from_secs(3_600);
/// The maximum length of a request in bytes.
pub(crate) const MOST_REQUEST_BYTES: usize = 16 << 10;
/// The maximum length of a reply in bytes.
pub(crate) const MOST_REPLY_BYTES: usize = 512;
const MOST_POOL_BYTES: usize = 4 << 10;
const MOST_TEXT_BYTES: usize = 300;
const VERSION: &str = "sluicegate-check 1";

#[cfg(test)]
mod tests;
