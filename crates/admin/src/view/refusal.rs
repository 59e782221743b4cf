//! Error responses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// The kind of the error, for programs.
    pub kind: RefusalKind,
    /// The error message in one sentence.
    #[serde(rename = "error")]
    pub message: String,
    /// The problems of a rejected configuration.
    pub problems: Vec<ProblemView>,
}

/// The kind of an error. Each kind except `bad_request` corresponds to exactly one HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// 404: the object does not exist.
    NotFound,
    /// 409: the request conflicts with the current state.
    Conflict,
    /// 412: the entity tag of the current configuration differs from the tag in `If-Match`.
    Stale,
    /// 428: the `If-Match` header is missing.
    Unconditional,
    /// 422: the configuration has problems.
    Invalid,
    /// 403: the configuration or the role of the client does not allow the request.
    Forbidden,
    /// 503: the load balancer is starting, stopping or busy.
    Unavailable,
    /// 400, 405, 408 or 413: the request is invalid.
    BadRequest,
}

impl Refusal {
    /// Creates an error without configuration problems.
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), problems: Vec::new() }
    }
}

/// A problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProblemView {
    /// The severity of the problem.
    pub severity: Severity,
    /// The name of the file.
    pub file: String,
    /// The line number, starting at 1. Null if the problem concerns the whole file.
    pub line: Option<usize>,
    /// The column in characters, starting at 1.
    pub column: Option<usize>,
    /// The path of the setting, such as `pool.web.backends[0].weight`.
    pub field: String,
    /// The message, which names the fault.
    pub message: String,
    /// A hint on how to correct the fault, or null.
    pub help: Option<String>,
}

/// The severity of a problem.
// This crate does not depend on crates with domain types, so it defines its own severity type. The
// crate `control-plane` converts the type (`rows/refusal.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The configuration is rejected.
    Error,
    /// The configuration is accepted.
    Warning,
}

impl std::fmt::Display for ProblemView {
    /// Formats the problem as `file:line:column: message`, without the help.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.file)?;
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.message)
    }
}
