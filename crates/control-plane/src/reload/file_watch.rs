//! Watching the configuration's files: `cluster.watch`.
//!
//! In: the folders of the files, by inotify: a rename over a file, a new file that an `include` matches, a symbolic link that
//! is led elsewhere are all changes of a folder. Out: one call, once nothing has changed for a second (or for ten at most,
//! while something goes on changing).
//! Not here: whether the content is another; an unchanged reload changes nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use config::Config;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// The kernel does not watch.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Nothing at all.
    #[error("inotify: {0}")]
    Inotify(Errno),
    /// This folder.
    #[error("watching the folder {}: {error}", folder.display())]
    #[expect(missing_docs, reason = "said above")]
    Folder { folder: PathBuf, error: Errno },
}

/// The folders that are watched, and what has happened in them.
#[derive(Debug)]
pub struct FileWatch {
    events: Inotify,
    folders: BTreeSet<PathBuf>,
    rest: Rest,
}

impl FileWatch {
    /// Watches if the configuration says so.
    ///
    /// # Errors
    /// [`WatchError`].
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

    /// Watches what a new configuration is made of. What has happened while it was read is not forgotten.
    ///
    /// # Errors
    /// [`WatchError`]; the watch is then as it was.
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

    /// Whether the files have changed and then rested. Never waits.
    pub fn look(&mut self, now: Instant) -> bool {
        let mut happened = false;
        while let Ok(events) = self.events.read_events() {
            happened |= !events.is_empty();
        }
        self.rest.look(happened, now)
    }
}

/// When changes have come to rest.
#[derive(Debug, Default)]
struct Rest {
    /// The first change since the last rest, and the last one.
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

/// The folders in which the files stand, and those to which symbolic links among them lead.
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

/// As the documentation has it.
const REST: Duration = Duration::from_secs(1);
const AT_MOST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_count_once_after_a_second_of_rest_and_after_ten_without_any() {
        let start = Instant::now();
        let mut rest = Rest::default();
        let mut look =
            |tenths: u64, happened| rest.look(happened, start + Duration::from_millis(tenths * 100));
        assert!(!look(0, false) && !look(1, true) && !look(8, true) && !look(17, false));
        assert!(look(18, false));
        assert!(!look(19, false) && !look(60, false));
        let restless: Vec<u64> = (100..=320).filter(|tenths| look(*tenths, true)).collect();
        assert_eq!(restless, [200, 301], "each tenth of a second something changes");
    }
}
