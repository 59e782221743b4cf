//! The reasons why the control plane rejects a request. `rows` maps them to HTTP status codes.

use std::fmt;

use config::Problems;

/// The reason why a request was rejected. The text of each variant except `Invalid` is one
/// sentence.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    /// An object that the request names does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The request conflicts with the current state.
    #[error("{0}")]
    Conflict(String),
    /// The request cannot be served now.
    #[error("{0}")]
    Unavailable(String),
    /// The configuration has problems.
    #[error("the configuration has problems")]
    Invalid(Problems),
}

impl Refused {
    /// Creates a [`Refused::Conflict`] from an error.
    pub fn conflict(error: impl fmt::Display) -> Self {
        Self::Conflict(error.to_string())
    }
}
