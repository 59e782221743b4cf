//! The files that a configuration came from, and the digest of their content.
//!
//! In: the texts. Out: [`Source`]s in the order in which they were read, and one digest for all.
//! Not here: what a file refers to (keys, certificates), the live tables.
//! Source: FIPS 180-4 for SHA-256.

use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::report::Report;

/// One file of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    path: Arc<Path>,
    text: Arc<str>,
    digest: [u8; 32],
}

impl Source {
    /// Its path: as it was given, or as the including file's folder and the pattern make it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its content, as it was read.
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// SHA-256 of its content.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    pub(super) fn all(report: &Report) -> Vec<Self> {
        let source = |text: &super::report::Text| Self {
            path: Arc::clone(&text.path),
            text: text.text.as_str().into(),
            digest: digest_of(&text.text),
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
