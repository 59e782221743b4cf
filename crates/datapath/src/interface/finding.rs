//! One thing that is wrong, in words, with the command that mends it.
//!
//! In: what a judgement found. Out: [`Finding`]s, for a refusal, a log line or `sluicegate doctor`.
//! Not here: the judgements. Invariant: a command can be given to a root shell as it stands.

use std::fmt;

/// Whether traffic can be carried with what was found.
// Not the severity of a problem in a file, which is refused or not: this one is of a running machine, and has advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Traffic will not flow, or not rightly.
    Error,
    /// It flows, and an operator should know.
    Warn,
    /// Nothing is wrong: it could be faster.
    Advice,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its name, such as `rp-filter`: the same fault has the same one in every version.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// The command that mends it, for a shell of root; `None`: no command of this machine can.
    pub command: Option<String>,
    /// What to do besides, or instead.
    pub hint: Option<String>,
}

impl Finding {
    /// Traffic will not flow, or not rightly.
    #[must_use]
    pub fn error(id: &'static str, what: impl Into<String>, why: impl Into<String>) -> Self {
        let (what, why) = (what.into(), why.into());
        Self { id, severity: Severity::Error, what, why, command: None, hint: None }
    }

    /// Traffic flows, and an operator should know.
    #[must_use]
    pub fn warning(id: &'static str, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { severity: Severity::Warn, ..Self::error(id, what, why) }
    }

    /// Nothing is wrong: it could be faster.
    #[must_use]
    pub fn advice(id: &'static str, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { severity: Severity::Advice, ..Self::error(id, what, why) }
    }

    /// The same with the command that mends it.
    #[must_use]
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// The same with advice that is no command.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Command and hint, in one line.
    #[must_use]
    pub fn mend(&self) -> String {
        let parts: Vec<&str> = self.command.iter().chain(&self.hint).map(String::as_str).collect();
        parts.join("; or: ")
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; to mend it: {}", self.what, self.why, self.mend())
    }
}
