//! Problems found on the machine, with the commands that fix them. Findings are used for startup
//! errors, log lines and `sluicegate doctor`. The command of a finding can be pasted into a root
//! shell.

use std::fmt;

/// The effect of a finding on traffic.
// The crate `config` has its own severity type without advice: a configuration problem is either an
// error or a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Packets are lost or not forwarded.
    Error,
    /// Traffic is forwarded, but an operator should act.
    Warn,
    /// Traffic works, but it could be faster.
    Advice,
}

/// A problem found on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// A short identifier, such as `rp-filter`. Identifiers do not change between versions.
    pub id: &'static str,
    /// The severity of the problem.
    pub severity: Severity,
    /// The observed state, for example `eth0 is down`.
    pub what: String,
    /// The effect of the problem on traffic.
    pub why: String,
    /// The command that fixes the problem in a root shell. `None` if no such command exists on this
    /// machine.
    pub command: Option<String>,
    /// Further advice. A finding can have a command, advice, or both.
    pub hint: Option<String>,
}

impl Finding {
    /// Creates a finding with [`Severity::Error`].
    #[must_use]
    pub fn error(id: &'static str, what: impl Into<String>, why: impl Into<String>) -> Self {
        let (what, why) = (what.into(), why.into());
        Self { id, severity: Severity::Error, what, why, command: None, hint: None }
    }

    /// Creates a finding with [`Severity::Warn`].
    #[must_use]
    pub fn warning(id: &'static str, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { severity: Severity::Warn, ..Self::error(id, what, why) }
    }

    /// Creates a finding with [`Severity::Advice`].
    #[must_use]
    pub fn advice(id: &'static str, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { severity: Severity::Advice, ..Self::error(id, what, why) }
    }

    /// Adds the command that fixes the problem.
    #[must_use]
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// Adds advice that is not a command.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns the command and the hint on one line.
    #[must_use]
    pub fn fix(&self) -> String {
        let parts: Vec<&str> = self.command.iter().chain(&self.hint).map(String::as_str).collect();
        parts.join(", or ")
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}); fix: {}", self.what, self.why, self.fix())
    }
}
