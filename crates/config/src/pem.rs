//! What lies outside the file: secrets, and certificates in PEM.
//!
//! In: a file's name at its place in the configuration. Out: text that was checked to hold what it should, or a problem.
//! Not here: TLS itself. Certificates are public, keys are secrets and are refused when others can read them.
//! A relative name is taken from the folder of the file that says it.
//! Invariant: no message and no `Debug` output holds any part of a key.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use config_text::words::{count_of, quote};
use config_text::{BaseDir, Node};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Serialize, Serializer};
use zeroize::{Zeroize, Zeroizing};

use super::ReadSecret;
use super::canonical;
use super::secret::{Cause, SecretError, SecretName};

/// How the reader gets at secrets and certificates.
#[derive(Clone, Copy)]
pub(super) struct Outside<'a> {
    /// `None`: this machine has neither; stand-ins take their place.
    pub(super) secrets: Option<ReadSecret<'a>>,
    /// For a configuration that was put: nothing beyond it is read, but credentials, and nothing is said of what a file holds.
    pub(super) within: Option<&'a BaseDir>,
}

/// A private key in PEM. It is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(Arc<Zeroizing<String>>);

impl PrivateKey {
    /// The PEM text, with one private key at least. It must not be logged.
    pub fn pem(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(redacted)")
    }
}

impl Serialize for PrivateKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        canonical::Sealed::of(self.0.as_bytes()).serialize(to)
    }
}

impl Outside<'_> {
    /// The secret that the node names, as `read` understands it; `stand_in` where there are no secrets.
    pub(super) fn secret<T>(
        &self,
        node: &Node<'_>,
        allowed: &str,
        stand_in: T,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = node.as_str().or_else(|| node.wrong(allowed))?;
        let name = SecretName::parse(text, &node.folder());
        if let Ok(SecretName::File(path)) = &name
            && self.reports_beyond(node, path)
        {
            return None;
        }
        let secret = match (name, self.secrets) {
            (Ok(_), None) => return Some(stand_in),
            (Ok(name), Some(secrets)) => secrets(&name).map(Zeroizing::new),
            (Err(error), _) => Err(error),
        };
        let why = match secret {
            Ok(secret) => match read(&secret) {
                Some(secret) => return Some(secret),
                None => SecretError { cause: Cause::Content, ..SecretError::new(measure(&secret), allowed) },
            },
            Err(error) => error,
        };
        let allowed = if why.cause == Cause::Missing { allowed } else { &why.allowed };
        let found = if why.cause == Cause::Content { self.of_content(node, || why.found) } else { why.found };
        node.report.error(&node.place, found, allowed);
        None
    }

    /// Whether a file lies where a configuration that was put may read nothing, which is reported.
    fn reports_beyond(&self, node: &Node<'_>, path: &Path) -> bool {
        let is_beyond = self.within.is_some_and(|base| base.keeps_out(node) || !base.holds(path));
        if is_beyond {
            node.report.beyond(&node.place, node.as_str().unwrap_or_default());
        }
        is_beyond
    }

    /// What is wrong with what a file holds, for those alone who could read the file themselves.
    fn of_content(&self, node: &Node<'_>, found: impl FnOnce() -> String) -> String {
        match self.within {
            Some(_) => format!("{}, which holds something else", quote(node.as_str().unwrap_or_default())),
            None => found(),
        }
    }

    /// The private key in the file that the node names.
    pub(super) fn private_key(&self, node: &Node<'_>) -> Option<PrivateKey> {
        let read = |text: &str| {
            PrivateKeyDer::from_pem_slice(text.as_bytes()).ok()?.zeroize();
            Some(PrivateKey(Arc::new(Zeroizing::new(text.to_owned()))))
        };
        self.secret(node, KEY, PrivateKey(Arc::default()), read)
    }

    /// The certificates in the file that the node names, at least one; `""` where there are no secrets.
    pub(super) fn certificates(&self, node: &Node<'_>) -> Option<Arc<str>> {
        let name = node.parse(CERTIFICATES, |text| (!text.is_empty()).then_some(text))?;
        if self.secrets.is_none() {
            return Some(Arc::from(""));
        }
        let path = node.folder().join(name);
        if self.reports_beyond(node, &path) {
            return None;
        }
        let shown = |found| format!("{:?}: {found}", path.display().to_string());
        let found = match read_public(&path) {
            Err(Unread::File(found)) => shown(found),
            Err(Unread::Content(found)) => self.of_content(node, || shown(found.into())),
            Ok(text) => return Some(Arc::from(text)),
        };
        node.report.error(&node.place, found, CERTIFICATES);
        None
    }
}

/// Of a secret that is none: its size.
fn measure(secret: &str) -> String {
    let key = secret.trim();
    let length = count_of(key.chars().count(), "character");
    match key.lines().count() {
        0 | 1 => format!("{length}, which is no key"),
        lines => format!("{lines} lines, {length}, which is no key"),
    }
}

/// Why a file gives no certificates.
enum Unread {
    File(String),
    Content(&'static str),
}

fn read_public(path: &Path) -> Result<String, Unread> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Unread::File("no such file".to_owned()),
        _ => Unread::File(error.to_string()),
    };
    // Asked before it is opened: opening a FIFO would wait for a writer.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Unread::File("not a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(MAX_PEM_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_PEM_BYTES {
        return Err(Unread::Content("over 1 MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| Unread::Content("not text"))?;
    // The error would quote a line of the file.
    let mut certificates = CertificateDer::pem_slice_iter(text.as_bytes());
    let count = certificates.try_fold(0, |count, one| one.map(|_| count + 1));
    match count.map_err(|_| Unread::Content("a broken certificate"))? {
        0 => Err(Unread::Content("no certificate")),
        _ => Ok(text),
    }
}

const MAX_PEM_BYTES: u64 = 1 << 20;
const KEY: &str = "a file with a private key in PEM, of its owner alone (chmod 600)";
const CERTIFICATES: &str = "a file with certificates in PEM, at most 1 MiB";
