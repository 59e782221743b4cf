//! Restricts the files that a configuration sent by a client may read.
//!
//! A configuration that arrives through `config put` may only refer to files in the folder of its
//! first file, or in folders below. Symbolic links are resolved before the check, so that a link
//! cannot lead out of the folder.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::reader::Node;
use crate::report::{Place, Report};
use crate::words::quote;

/// The folder from which a configuration sent by a client may read files.
pub struct BaseDir {
    /// The folder as written in the path of the first file.
    named: PathBuf,
    /// The folder with symbolic links resolved.
    real: PathBuf,
}

impl BaseDir {
    /// Creates a restriction to the folder of a configuration's first file.
    pub fn around(first: &Path) -> Self {
        let named = first.parent().unwrap_or(Path::new("")).to_owned();
        let real = real_path(if named.as_os_str().is_empty() { Path::new(".") } else { &named });
        Self { named, real }
    }

    /// Returns `true` if the file name or pattern in `node` leads outside the folder. This check
    /// does not access the file system, so that a client cannot find out which files exist outside.
    pub fn keeps_out(&self, node: &Node<'_>) -> bool {
        let Some(name) = node.as_str() else { return false };
        // The pattern `.?` would match `..`.
        let dotted = |part: &str| part.starts_with('.') && part.contains(['*', '?', '[']);
        name.split('/').any(dotted) || !self.covers(&node.folder().join(name))
    }

    /// Returns `true` if the path is in the folder or below it. Symbolic links are not resolved.
    fn covers(&self, path: &Path) -> bool {
        path.strip_prefix(&self.named).is_ok_and(|below| !climbs(below))
    }

    /// Returns `true` if a file is in the folder or below it after symbolic links are resolved, or
    /// if the file does not exist.
    pub fn holds(&self, path: &Path) -> bool {
        self.covers(path) && (real_path(path).starts_with(&self.real) || !path.exists())
    }
}

/// Returns `true` if a `..` in a relative path leads above the folder in which the path starts.
fn climbs(path: &Path) -> bool {
    let mut depth = 0_usize;
    for part in path.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => match depth.checked_sub(1) {
                Some(above) => depth = above,
                None => return true,
            },
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return true,
        }
    }
    false
}

impl Report {
    /// Reports a file name that leads outside the folder.
    pub fn beyond(&self, place: &Place, name: &str) {
        let help = "a configuration sent by \"config put\" may only name files in that folder and below";
        self.error(place, (format!("{} is outside the configuration's folder", quote(name)), help));
    }
}

/// Returns the path of a file with symbolic links resolved. Returns the path unchanged if the file
/// does not exist.
pub fn real_path(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
