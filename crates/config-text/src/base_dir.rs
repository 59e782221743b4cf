//! How far a configuration that was put may reach: to files of the folder of its first file and below, links followed.
//!
//! In: names and paths. Out: whether they lie inside, and the one message for those that do not.
//! Not here: whether a file is there, or may be read (`include`, `lists`).

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::reader::Node;
use crate::report::{Place, Report};
use crate::words::quote;

/// The folder that a configuration from elsewhere may read from.
pub struct BaseDir {
    /// As the first file's name has it.
    named: PathBuf,
    /// With links followed.
    real: PathBuf,
}

impl BaseDir {
    /// The folder of a configuration's first file.
    pub fn around(first: &Path) -> Self {
        let named = first.parent().unwrap_or(Path::new("")).to_owned();
        let real = real_path(if named.as_os_str().is_empty() { Path::new(".") } else { &named });
        Self { named, real }
    }

    /// Judges a name before anything is looked for by it: of what lies outside, not even its existence is shown.
    pub fn keeps_out(&self, node: &Node<'_>) -> bool {
        let Some(name) = node.as_str() else { return false };
        // `.?` matches `..`.
        let dotted = |part: &str| part.starts_with('.') && part.contains(['*', '?', '[']);
        name.split('/').any(dotted) || !self.covers(&node.folder().join(name))
    }

    /// Whether a path lies below by its own parts.
    fn covers(&self, path: &Path) -> bool {
        path.strip_prefix(&self.named).is_ok_and(|below| !climbs(below))
    }

    /// Whether a file lies below, once links are followed. One that is not there may pass: there is nothing to read.
    pub fn holds(&self, path: &Path) -> bool {
        self.covers(path) && (real_path(path).starts_with(&self.real) || !path.exists())
    }
}

/// Whether a relative path leads above where it starts, on its way at least.
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
    /// Reports a name that leads outside.
    pub fn beyond(&self, place: &Place, name: &str) {
        let found = format!("{}, which leads out of the configuration's folder", quote(name));
        self.error(place, found, "files in that folder and below, for a configuration that is put");
    }
}

/// A file's identity, under whichever name it is opened.
pub fn real_path(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
