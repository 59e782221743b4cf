//! A temporary directory that is removed when its handle is dropped. Creating a directory also
//! removes the leftover directories of killed processes.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// A directory with mode 0700 in the system's temporary directory. Dropping the handle removes it.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Creates an empty directory, and removes leftover directories of processes that were killed.
    ///
    /// # Errors
    /// Returns an error if the temporary directory is not writable.
    pub fn new() -> Result<Self> {
        remove_stale(&std::env::temp_dir());
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{PREFIX}{}-{n}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Errors are ignored, because the next testbed removes leftover directories.
        drop(fs::remove_dir_all(&self.0));
    }
}

fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|n| n.strip_prefix(PREFIX)).and_then(|n| n.split('-').next());
        let Some(owner) = owner.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if !Path::new(&format!("/proc/{owner}")).exists() {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}

const PREFIX: &str = "sluicegate-bed-";
static NEXT: AtomicU32 = AtomicU32::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temp_dir_removes_itself_and_stale_directories() {
        // A process with this ID cannot exist, because `pid_max` is at most 2^22.
        let stale = std::env::temp_dir().join(format!("{PREFIX}99999999-0"));
        fs::create_dir_all(&stale).unwrap();
        let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        assert!(!stale.exists());
        assert!(first.path().exists() && second.path().exists() && first.path() != second.path());
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists() && second.path().exists());
    }
}
