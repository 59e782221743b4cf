//! Why the control plane does not do what it is asked.
//!
//! In: what a part finds wrong with an order or a configuration. Out: one reason, in words. Not here: statuses of the API (`rows`).

use std::fmt;

use config::Problems;

/// Why something is not done; each but `Invalid` has one sentence.
#[derive(Clone, Debug)]
pub enum Refused {
    /// There is no such thing.
    NotFound(String),
    /// It does not go with what is there.
    Conflict(String),
    /// Not now.
    Unavailable(String),
    /// The configuration has problems.
    Invalid(Problems),
}

impl Refused {
    /// [`Refused::Conflict`], in the words of an error.
    pub fn conflict(error: impl fmt::Display) -> Self {
        Self::Conflict(error.to_string())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(words) | Self::Conflict(words) | Self::Unavailable(words) => f.write_str(words),
            Self::Invalid(_) => f.write_str("the configuration has problems"),
        }
    }
}
