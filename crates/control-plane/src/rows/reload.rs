//! Builds the API responses for reloads, pending confirmations and stored generations.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use admin::view::{
    ConfigSource, ConfigText, ConfirmationRow, GenerationCause, GenerationRow, GenerationView, HistoryView,
    LastReload, ReloadOutcome,
};
use config::words::count_of;
use config::{Config, Source};

use crate::digest::hex;
use crate::refused::Refused;
use crate::reload::{Cause, Ended, Generations, Kept, Origin};

impl From<&Ended> for LastReload {
    fn from(ended: &Ended) -> Self {
        let (outcome, message) = match &ended.outcome {
            Ok(now) if now.changed.is_empty() => (ReloadOutcome::Unchanged, "nothing changed".to_owned()),
            Ok(now) => (ReloadOutcome::Published, count_of(now.changed.len(), "change")),
            Err(refused) => (ReloadOutcome::Refused, refused.to_string()),
        };
        let unix_seconds = seconds(ended.at);
        Self { unix_seconds, outcome, took_ms: ended.took.as_secs_f64() * 1e3, message }
    }
}

impl From<Origin> for ConfigSource {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::File => Self::File,
            Origin::Api => Self::Api,
            Origin::Kept => Self::Kept,
        }
    }
}

impl From<Cause> for GenerationCause {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Start => Self::Start,
            Cause::Signal => Self::Sighup,
            Cause::Watch => Self::Watch,
            Cause::Api => Self::Reload,
            Cause::Put => Self::Put,
            Cause::Rollback => Self::Rollback,
            Cause::Unconfirmed => Self::Unconfirmed,
        }
    }
}

/// Returns the text of each configuration file, without prefix lists. The texts contain no secrets,
/// because secrets are in separate files.
#[must_use]
pub fn texts(config: &Config) -> Vec<ConfigText> {
    let text = |source: &Source| ConfigText {
        path: source.path().display().to_string(),
        text: source.text().to_string(),
    };
    config.sources().iter().filter(|source| !source.is_list()).map(text).collect()
}

impl Generations {
    /// Returns the row for the pending confirmation, if any. `now` is the time since the process
    /// started.
    #[must_use]
    pub fn confirmation_row(&self, now: Duration) -> Option<ConfirmationRow> {
        let pending = self.pending()?;
        let left = if pending.is_returning { Duration::ZERO } else { pending.ends.saturating_sub(now) };
        Some(ConfirmationRow {
            generation: self.in_force().generation,
            returns_to: pending.to.generation,
            ends_in_seconds: left.as_secs_f64(),
        })
    }

    /// Returns the rows for all stored generations, without their configuration texts.
    #[must_use]
    pub fn view(&self) -> HistoryView {
        HistoryView { generations: self.iter().map(|kept| self.row(kept)).collect() }
    }

    /// Returns one stored generation with its configuration text.
    pub fn view_of(&self, generation: u64) -> Result<GenerationView, Refused> {
        let kept = self.find(Some(generation))?;
        Ok(GenerationView { generation: self.row(kept), files: texts(&kept.config) })
    }

    fn row(&self, kept: &Kept) -> GenerationRow {
        GenerationRow {
            generation: kept.generation,
            unix_seconds: seconds(kept.at),
            cause: kept.cause.into(),
            by: kept.by.clone(),
            sha256: hex(&kept.config.digest()),
            bytes: kept.bytes(),
            in_force: kept.generation == self.in_force().generation,
        }
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
