//! Tracks the origin of the current configuration: the file and the watch on it, pending reloads,
//! and earlier generations for a rollback. `Controller` stores the configuration itself, and the
//! module `reload` performs reloads.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use config::{Config, Problems, Source};
use control_plane::Running;
use control_plane::reload::{Cause, FileWatch, Generations, Kept, Origin, ReloadQueue};

use super::reload::{Client, sentences};
use super::warnings;

#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) file: PathBuf,
    pub(super) origin: Origin,
    /// The files that belonged to the configuration when it was last read from disk.
    pub(super) file_sources: Vec<Source>,
    watch: Option<FileWatch>,
    /// The warnings about the configuration.
    pub(super) warnings: Vec<String>,
    /// The settings with which the process was started and which a reload cannot change.
    pub(super) running: Running,
    /// The maximum number of VIP addresses in the XDP filter.
    pub(super) max_vips: u32,
    pub(super) reloads: ReloadQueue<Client>,
    pub(super) generations: Generations,
}

impl Configuration {
    /// Creates the state for the first configuration.
    pub(super) fn new(
        file: PathBuf,
        config: &Arc<Config>,
        machine: &str,
        warnings: Problems,
    ) -> anyhow::Result<Self> {
        let said = sentences(&warnings);
        let (at, cause, whole) = (SystemTime::now(), Cause::Start, Arc::clone(config));
        // The controller also assigns generation number 1 to its first configuration.
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

    /// Returns `true` if the file has changed since the last call and is no longer being written.
    pub(super) fn has_changed(&mut self, now: Instant) -> bool {
        self.watch.as_mut().is_some_and(|watch| watch.look(now))
    }

    /// Records whether the current configuration comes from the file or from the API.
    pub(super) fn comes_from(&mut self, origin: Origin, config: &Config) {
        self.origin = origin;
        if origin == Origin::File {
            self.file_sources = config.sources().to_vec();
        }
    }

    /// Records a new configuration and logs its warnings.
    pub(super) fn follow(&mut self, config: &Config, origin: Origin, warnings: Vec<String>) {
        self.warnings = warnings;
        warnings::log(&self.warnings);
        if self.origin == Origin::Api && origin == Origin::File {
            // log: A reload of the file replaced a configuration that was set through the API. Add
            // the change to the file if you want to keep it.
            tracing::warn!(change = "reload", "API configuration replaced by the file");
        }
        self.comes_from(origin, config);
        if let Err(error) = FileWatch::follow(&mut self.watch, config) {
            // log: The file cannot be watched for `cluster.watch`, for example because there are
            // too many inotify watches. Reload with SIGHUP and check `fs.inotify.max_user_watches`.
            tracing::warn!(%error, "configuration file not watched");
        }
    }
}
