//! Where the configuration in force comes from, and how it is replaced: the file, its watch, the reloads that wait, and what there
//! is to go back to.
//!
//! In: configurations that came into force. Out: what the API and the log say of them.
//! Not here: what is configured (`Controller` has it), the steps of a reload (`reload`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use config::{Config, Problems, Source};
use control_plane::Running;
use control_plane::reload::{Cause, FileWatch, Generations, Kept, Origin, ReloadQueue};

use super::reload::{Client, sentences};

#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) file: PathBuf,
    pub(super) origin: Origin,
    /// The files of the last configuration that came from the file.
    pub(super) file_sources: Vec<Source>,
    watch: Option<FileWatch>,
    /// One sentence each.
    pub(super) warnings: Vec<String>,
    /// The settings of the start, which a reload does not change.
    pub(super) running: Running,
    /// VIP addresses that fit the filter.
    pub(super) max_vips: u32,
    pub(super) reloads: ReloadQueue<Client>,
    pub(super) generations: Generations,
}

impl Configuration {
    /// That of the start.
    pub(super) fn new(
        file: PathBuf,
        config: &Arc<Config>,
        machine: &str,
        warnings: Problems,
    ) -> anyhow::Result<Self> {
        let said = sentences(&warnings);
        let (at, cause, whole) = (SystemTime::now(), Cause::Start, Arc::clone(config));
        // The controller begins with this number.
        let first = Kept { generation: 1, at, cause, by: None, config: whole, warnings };
        Ok(Self {
            file,
            origin: Origin::File,
            file_sources: config.sources().to_vec(),
            watch: FileWatch::start(config)?,
            warnings: said,
            running: Running::of(config, machine),
            max_vips: config.io().max_vips,
            reloads: ReloadQueue::default(),
            generations: Generations::new(first),
        })
    }

    /// Whether the file has changed since the last look, and rested.
    pub(super) fn has_changed(&mut self, now: Instant) -> bool {
        self.watch.as_mut().is_some_and(|watch| watch.look(now))
    }

    /// `config` is in force.
    pub(super) fn comes_from(&mut self, origin: Origin, config: &Config) {
        self.origin = origin;
        if origin == Origin::File {
            self.file_sources = config.sources().to_vec();
        }
    }

    /// Another configuration has come into force.
    pub(super) fn follow(&mut self, config: &Config, origin: Origin, warnings: Vec<String>) {
        self.warnings = warnings;
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
        if self.origin == Origin::Api && origin == Origin::File {
            tracing::warn!(change = "reload", "the file has replaced a configuration that came by the API");
        }
        self.comes_from(origin, config);
        if let Err(error) = FileWatch::follow(&mut self.watch, config) {
            tracing::warn!(%error, "changes of the file are not watched");
        }
    }
}
