//! A folder that goes with its handle, and whose leftovers the next one removes.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// A folder of mode 0700 under the system's temporary folder, removed on drop.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes an empty folder, and removes those of processes that were killed.
    ///
    /// # Errors
    /// The temporary folder can't be written.
    pub fn new() -> Result<Self> {
        remove_stale(&std::env::temp_dir());
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("{PREFIX}{}-{n}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("can't make {}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Nothing can be done about it here; the next bed tries again.
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
    fn the_folder_goes_with_its_handle_and_a_dead_owners_with_the_next() {
        // No process has this id: pid_max is at most 2^22.
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
