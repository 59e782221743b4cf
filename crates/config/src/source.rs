//! The files that a configuration came from, and the digest of their content.
//!
//! In: the texts, and what they refer to. Out: [`Source`]s in the order in which they were read, and one digest for all.
//! What makes two machines choose or check differently is in the digest: the texts, the lists of prefixes that they name
//! (behind the TOML), the hash key, the CAs of checks and of the admin API's clients. A machine's own certificate and its
//! key are not: each machine may have another.
//! Not here: the live tables.
//! Invariant: of the hash key only a hash gets in, so that a digest may be shown; the key has 128 random bits.
//! Source: FIPS 180-4 for SHA-256.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use config_text::{Report, Text};
use sha2::{Digest, Sha256};

use super::admin::Admin;
use super::check::CheckDraft;
use super::secret::HashKey;

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

    /// Bytes of its content, those of a list of prefixes too.
    pub fn bytes(&self) -> u64 {
        self.stamp.map_or(self.text.len() as u64, |stamp| stamp.bytes)
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
        let source = |text: &Text| Self {
            path: Arc::clone(&text.path),
            text: text.text.as_str().into(),
            digest: Sha256::digest(&text.text).into(),
            stamp: None,
        };
        report.texts().map(source).collect()
    }
}

/// SHA-256 of what all texts and all that they refer to say: of the files' digests in order, and of that of
/// [`references`]. Paths do not count, so that a configuration may lie elsewhere on another machine.
pub(super) fn digest(sources: &[Source], references: Option<&[u8; 32]>) -> [u8; 32] {
    let mut all = Sha256::new_with_prefix(b"sluicegate configuration\0");
    all.update((sources.len() as u64).to_be_bytes());
    for source in sources {
        all.update(source.digest);
    }
    if let Some(references) = references {
        all.update(references);
    }
    all.finalize().into()
}

/// SHA-256 of what the texts refer to: the hash key's own hash, then each CA with the name of its user.
pub(super) fn references(
    key: Option<HashKey>,
    checks: &BTreeMap<Arc<str>, CheckDraft>,
    admin: &Admin,
) -> [u8; 32] {
    let mut all = Sha256::new_with_prefix(b"sluicegate references\0");
    let key = key.map(|key| Sha256::new_with_prefix(b"sluicegate hash key\0").chain_update(key.bytes()));
    all.update(key.map(Sha256::finalize).unwrap_or_default());
    let checks = checks.iter().filter_map(|(name, draft)| {
        Some((format!("check {name}"), draft.value.as_ref()?.kind.tls()?.ca.clone()?))
    });
    let clients = admin.tcp.as_ref().map(|tcp| ("clients".to_owned(), Arc::clone(&tcp.client_ca)));
    for (whose, pem) in checks.chain(clients) {
        for part in [whose.as_bytes(), pem.as_bytes()] {
            // Each after its length: no two lists of parts run together into the same bytes.
            all.update((part.len() as u64).to_be_bytes());
            all.update(part);
        }
    }
    all.finalize().into()
}
