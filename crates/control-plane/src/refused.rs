//! Why the control plane does not do what it is asked.
//!
//! In: what a part finds wrong with an order or a configuration. Out: one reason, in words. Not here: statuses of the API (`rows`).

use std::fmt;

use config::Problems;

/// Why something is not done; each but `Invalid` has one sentence.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refused {
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// It does not go with what is there.
    #[error("{0}")]
    Conflict(String),
    /// Not now.
    #[error("{0}")]
    Unavailable(String),
    /// The configuration has problems.
    #[error("the configuration has problems")]
    Invalid(Problems),
}

impl Refused {
    /// [`Refused::Conflict`], in the words of an error.
    pub fn conflict(error: impl fmt::Display) -> Self {
        Self::Conflict(error.to_string())
    }
}
