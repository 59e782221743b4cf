//! Why there may be no pipeline.

/// Why a pipeline's memory could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// The connection table.
    #[error("connection table: {0}")]
    Flows(conntrack::ConfigError),
    /// The table of fragmented datagrams.
    #[error("fragment table: {0}")]
    Fragments(fragment_table::ConfigError),
    /// The table of requests of our own.
    #[error("table of requests of our own: {0}")]
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
