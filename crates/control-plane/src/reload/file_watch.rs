//! Watches the directories of the configuration files with inotify, if `cluster.watch` is set.
//!
//! Directories are watched because a rename over a file, a new file that matches an `include`, and
//! a changed symbolic link all modify a directory. A change is reported after 1 s without further
//! changes, and at most 10 s after the first change. The file content is not compared, because a
//! reload with unchanged content has no effect.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use config::Config;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// An error that prevents watching the configuration files.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The process cannot use inotify.
    #[error("cannot watch the configuration files with inotify: {0}")]
    Inotify(Errno),
    /// A directory cannot be watched.
    #[error("cannot watch directory {}: {error}", folder.display())]
    #[expect(missing_docs, reason = "the variant documents its fields")]
    Folder { folder: PathBuf, error: Errno },
}

/// The watched directories, and the changes that have not been reported yet.
#[derive(Debug)]
pub struct FileWatch {
    events: Inotify,
    folders: BTreeSet<PathBuf>,
    rest: Rest,
}

impl FileWatch {
    /// Watches the directories of the configuration files. Returns `None` if `cluster.watch` is not
    /// set.
    ///
    /// # Errors
    /// Returns [`WatchError`] if inotify is not available or a directory cannot be watched.
    pub fn start(config: &Config) -> Result<Option<Self>, WatchError> {
        if !config.cluster().watch {
            return Ok(None);
        }
        let events =
            Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).map_err(WatchError::Inotify)?;
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE;
        let folders = folders(config);
        for folder in &folders {
            events
                .add_watch(folder, flags)
                .map_err(|error| WatchError::Folder { folder: folder.clone(), error })?;
        }
        Ok(Some(Self { events, folders, rest: Rest::default() }))
    }

    /// Watches the files of a new configuration. Changes during the reload are reported later.
    ///
    /// # Errors
    /// Returns [`WatchError`]. The watch is then unchanged.
    pub fn follow(watch: &mut Option<Self>, config: &Config) -> Result<(), WatchError> {
        let same = watch.as_ref().is_some_and(|watch| watch.folders == folders(config));
        if same && config.cluster().watch {
            return Ok(());
        }
        let mut next = Self::start(config)?;
        if let (Some(old), Some(next)) = (watch.as_mut(), next.as_mut()) {
            old.look(Instant::now());
            next.rest = std::mem::take(&mut old.rest);
        }
        *watch = next;
        Ok(())
    }

    /// Returns `true` once after a series of changes has ended. This function does not block.
    pub fn look(&mut self, now: Instant) -> bool {
        let mut happened = false;
        while let Ok(events) = self.events.read_events() {
            happened |= !events.is_empty();
        }
        self.rest.look(happened, now)
    }
}

/// Detects when a series of changes has ended.
#[derive(Debug, Default)]
struct Rest {
    /// The times of the first and the last change in the current series.
    since: Option<(Instant, Instant)>,
}

impl Rest {
    fn look(&mut self, happened: bool, now: Instant) -> bool {
        if happened {
            let first = self.since.map_or(now, |(first, _)| first);
            self.since = Some((first, now));
        }
        let rested = |(first, last): (Instant, Instant)| {
            now.duration_since(last) >= REST || now.duration_since(first) >= AT_MOST
        };
        let rested = self.since.is_some_and(rested);
        if rested {
            self.since = None;
        }
        rested
    }
}

/// Returns the directories that contain the configuration files or the targets of their symbolic
/// links.
fn folders(config: &Config) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    for source in config.sources() {
        let real = source.path().canonicalize().ok();
        for path in [Some(source.path()), real.as_deref()].into_iter().flatten() {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            folders.insert(folder.unwrap_or(Path::new(".")).to_owned());
        }
    }
    folders
}

/// The time without changes after which a series ends. The user documentation states this time.
const REST: Duration = Duration::from_secs(1);
const AT_MOST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_reported_after_1_s_of_rest_or_after_10_s() {
        let start = Instant::now();
        let mut rest = Rest::default();
        let mut look =
            |tenths: u64, happened| rest.look(happened, start + Duration::from_millis(tenths * 100));
        assert!(!look(0, false) && !look(1, true) && !look(8, true) && !look(17, false));
        assert!(look(18, false));
        assert!(!look(19, false) && !look(60, false));
        let restless: Vec<u64> = (100..=320).filter(|tenths| look(*tenths, true)).collect();
        assert_eq!(restless, [200, 301], "with a change every 0.1 s");
    }
}
