//! The files of a configuration, and the digest of their content.
//!
//! Two machines with the same digest choose backends and check their health in the same way. The
//! digest covers the files, the prefix lists, the hash key, and the CA certificates for checks and
//! API clients. The digest does not cover the certificate and key of a machine, which may differ
//! between machines. The digest does not reveal the hash key, which has 128 random bits. Reference:
//! FIPS 180-4 for SHA-256.

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

/// A file of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    path: Arc<Path>,
    text: Arc<str>,
    digest: [u8; 32],
    /// The stamp of a prefix list. `None` for other files.
    stamp: Option<Stamp>,
}

/// The size and modification time of a file, which show whether the content may have changed.
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
    /// Returns the path of the file. For the first file, this is the path that the caller passed.
    /// For an included file, the path is the folder of the including file joined with the included
    /// name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content of the file. For a prefix list, returns an empty string, because lists
    /// may be large.
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// Returns the size of the file in bytes, also for prefix lists.
    pub fn bytes(&self) -> u64 {
        self.stamp.map_or(self.text.len() as u64, |stamp| stamp.bytes)
    }

    /// Returns the SHA-256 of the content.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Returns `true` if the file is a prefix list.
    pub fn is_list(&self) -> bool {
        self.stamp.is_some()
    }

    /// Returns `true` if the file still has the content that was read.
    ///
    /// # Cost
    /// Reads the file. A prefix list is read only if its size or modification time has changed.
    pub fn is_unchanged(&self) -> bool {
        let same_stamp = |stamp: Stamp| fs::metadata(&self.path).is_ok_and(|now| Stamp::of(&now) == stamp);
        self.stamp.is_some_and(same_stamp)
            || fs::read(&self.path).is_ok_and(|bytes| <[u8; 32]>::from(Sha256::digest(&bytes)) == self.digest)
    }

    /// Creates the source for a prefix list with this content.
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

/// Returns the digest of a configuration: the SHA-256 over the digests of all files, in order, and
/// over [`references`]. Paths are not included, so the configuration may be in different folders on
/// different machines.
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

/// Returns the SHA-256 of the secrets and certificates to which the files refer. The input is a
/// hash of the hash key, followed by each CA certificate with the name of its section.
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
            // Each string is preceded by its length, so that different lists of strings never have
            // the same hash input.
            all.update((part.len() as u64).to_be_bytes());
            all.update(part);
        }
    }
    all.finalize().into()
}
