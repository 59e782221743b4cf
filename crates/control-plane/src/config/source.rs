//! The files that a configuration came from, and the digest of their content.
//!
//! In: the texts. Out: [`Source`]s in the order in which they were read, and one digest for all.
//! Lists of prefixes count as files of the configuration, behind the TOML. Not here: keys and certificates, the live tables.
//! Source: FIPS 180-4 for SHA-256.

use std::fs::{self, Metadata};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::report::Report;

/// One file of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    path: Arc<Path>,
    text: Arc<str>,
    digest: [u8; 32],
    /// Of a list of prefixes alone.
    stamp: Option<Stamp>,
}

/// What changes with a file, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { bytes: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl Source {
    /// Its path: as it was given, or as the including file's folder and the pattern make it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its content, as it was read; nothing of a list of prefixes, which may be large.
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// SHA-256 of its content.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Whether it is a list of prefixes that the configuration names, and not a part of the configuration.
    pub fn is_list(&self) -> bool {
        self.stamp.is_some()
    }

    /// Whether the file says now what it said when it was read.
    ///
    /// # Cost
    /// Reads the file; a list of prefixes only when its size or time is another.
    pub fn is_unchanged(&self) -> bool {
        let same_stamp = |stamp: Stamp| fs::metadata(&self.path).is_ok_and(|now| Stamp::of(&now) == stamp);
        self.stamp.is_some_and(same_stamp)
            || fs::read(&self.path).is_ok_and(|bytes| <[u8; 32]>::from(Sha256::digest(&bytes)) == self.digest)
    }

    /// A list of prefixes with this content.
    pub(super) fn list(path: &Path, content: &[u8], stamp: Stamp) -> Self {
        let digest = Sha256::digest(content).into();
        Self { path: path.into(), text: Arc::default(), digest, stamp: Some(stamp) }
    }

    pub(super) fn all(report: &Report) -> Vec<Self> {
        let source = |text: &super::report::Text| Self {
            path: Arc::clone(&text.path),
            text: text.text.as_str().into(),
            digest: digest_of(&text.text),
            stamp: None,
        };
        report.texts().map(source).collect()
    }
}

/// SHA-256 of a file's content.
pub fn digest_of(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Of one file its own SHA-256, as `sha256sum` prints it; of several the SHA-256 of their digests, 32 bytes each, in
/// order. Paths do not count, so that a configuration may lie elsewhere on another machine.
pub(super) fn digest(sources: &[Source]) -> [u8; 32] {
    if let [only] = sources {
        return only.digest;
    }
    let mut all = Sha256::new();
    for source in sources {
        all.update(source.digest);
    }
    all.finalize().into()
}
