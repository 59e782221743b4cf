//! The error type for pipeline creation.

/// The reason why a pipeline could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The connection table cannot be created.
    #[error("cannot create the connection table: {0}")]
    Flows(conntrack::ConfigError),
    /// The fragment table cannot be created.
    #[error("cannot create the fragment table: {0}")]
    Fragments(fragment_table::ConfigError),
    /// The table of upstream requests cannot be created.
    #[error("cannot create the table of upstream requests: {0}")]
    Exchanges(kv_switch::ExchangeError),
}

impl From<conntrack::ConfigError> for PipelineError {
    fn from(error: conntrack::ConfigError) -> Self {
        Self::Flows(error)
    }
}

impl From<kv_switch::ExchangeError> for PipelineError {
    fn from(error: kv_switch::ExchangeError) -> Self {
        Self::Exchanges(error)
    }
}

impl From<fragment_table::ConfigError> for PipelineError {
    fn from(error: fragment_table::ConfigError) -> Self {
        Self::Fragments(error)
    }
}
