//! Why something was not done.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// For programs.
    pub kind: RefusalKind,
    /// For people: one sentence.
    #[serde(rename = "error")]
    pub message: String,
    /// What is wrong with the configuration.
    pub problems: Vec<ProblemView>,
}

/// See [`Refusal`]. Each has its own HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// 404: there is no such thing.
    NotFound,
    /// 409: it does not go with what is there.
    Conflict,
    /// 412: what is in force is not what `If-Match` names.
    Stale,
    /// 428: the order must say by `If-Match` what it replaces.
    Unconditional,
    /// 422: the configuration has problems.
    Invalid,
    /// 403: the configuration does not allow it, or not this client.
    Forbidden,
    /// 503: not now.
    Unavailable,
    /// 400, 405, 408 or 413: the request itself is wrong.
    BadRequest,
}

impl Refusal {
    /// A refusal without problems of a file.
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), problems: Vec::new() }
    }
}

/// A problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProblemView {
    /// How bad it is.
    pub severity: Severity,
    /// The file as it was named.
    pub file: String,
    /// From 1; null: the file as a whole.
    pub line: Option<usize>,
    /// In characters, from 1.
    pub column: Option<usize>,
    /// Such as `pool.web.backends[0].weight`.
    pub field: String,
    /// What stands there.
    pub found: String,
    /// What may stand there.
    pub allowed: String,
}

/// How bad a problem is.
// Not `config-text`'s: this crate knows no domain type. `control-plane` converts (`rows/refusal.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The configuration is refused.
    Error,
    /// It is taken all the same.
    Warning,
}

impl std::fmt::Display for ProblemView {
    /// As the problem itself is shown: `file:line:column: field: found X, allowed Y`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.file)?;
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{line}:{column}:")?;
        }
        if !self.field.is_empty() {
            write!(f, " {}:", self.field)?;
        }
        write!(f, " found {}, allowed {}", self.found, self.allowed)
    }
}
