//! How a reload ended, as the admin API shows it.

use std::time::UNIX_EPOCH;

use admin::view::{ConfigSource, LastReload, ReloadOutcome};
use config::words::count_of;

use crate::reload::{Ended, Origin};

impl From<&Ended> for LastReload {
    fn from(ended: &Ended) -> Self {
        let (outcome, message) = match &ended.outcome {
            Ok(now) if now.changed.is_empty() => (ReloadOutcome::Unchanged, "nothing changed".to_owned()),
            Ok(now) => (ReloadOutcome::Published, count_of(now.changed.len(), "change")),
            Err(refused) => (ReloadOutcome::Refused, refused.to_string()),
        };
        let unix_seconds = ended.at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { unix_seconds, outcome, took_ms: ended.took.as_secs_f64() * 1e3, message }
    }
}

impl From<Origin> for ConfigSource {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::File => Self::File,
            Origin::Api => Self::Api,
        }
    }
}
