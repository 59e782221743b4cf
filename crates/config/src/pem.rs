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

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Serialize, Serializer};

use super::ReadSecret;
use super::canonical;
use super::reader::Node;
use super::secret::SecretName;
use crate::words::count_of;

/// How the reader gets at secrets and certificates.
#[derive(Clone, Copy)]
pub(super) struct Outside<'a> {
    /// `None`: this machine has neither; stand-ins take their place.
    pub(super) secrets: Option<ReadSecret<'a>>,
}

/// A private key in PEM. It is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(Arc<str>);

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
        canonical::sealed(&self.0, to)
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
        let secret = match (name, self.secrets) {
            (Ok(_), None) => return Some(stand_in),
            (Ok(name), Some(secrets)) => secrets(&name),
            (Err(error), _) => Err(error),
        };
        match secret {
            Ok(secret) => read(&secret).or_else(|| {
                let key = secret.trim();
                let length = count_of(key.chars().count(), "character");
                let found = match key.lines().count() {
                    0 | 1 => format!("{length}, which is no key"),
                    lines => format!("{lines} lines, {length}, which is no key"),
                };
                node.report.error(&node.place, found, allowed);
                None
            }),
            Err(error) => {
                let allowed = if error.missing { allowed } else { &error.allowed };
                node.report.error(&node.place, error.found, allowed);
                None
            }
        }
    }

    /// The private key in the file that the node names.
    pub(super) fn private_key(&self, node: &Node<'_>) -> Option<PrivateKey> {
        let read = |text: &str| {
            let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).ok();
            key.map(|_| PrivateKey(Arc::from(text)))
        };
        self.secret(node, KEY, PrivateKey(Arc::from("")), read)
    }

    /// The certificates in the file that the node names, at least one; `""` where there are no secrets.
    pub(super) fn certificates(&self, node: &Node<'_>) -> Option<Arc<str>> {
        let name = node.parse(CERTIFICATES, |text| (!text.is_empty()).then_some(text))?;
        if self.secrets.is_none() {
            return Some(Arc::from(""));
        }
        let path = node.folder().join(name);
        let text = read_public(&path).and_then(|text| {
            let count = CertificateDer::pem_slice_iter(text.as_bytes()).try_fold(0, |count, one| {
                let broken = |error| format!("a broken certificate ({error})");
                one.map(|_| count + 1).map_err(broken)
            })?;
            if count == 0 { Err("no certificate".to_owned()) } else { Ok(Arc::from(text)) }
        });
        let shown = format!("{:?}", path.display().to_string());
        text.map_err(|found| node.report.error(&node.place, format!("{shown}: {found}"), CERTIFICATES)).ok()
    }
}

fn read_public(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".to_owned(),
        _ => error.to_string(),
    };
    // Asked before it is opened: opening a FIFO would wait for a writer.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err("not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(MAX_PEM_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_PEM_BYTES {
        return Err("over 1 MiB".to_owned());
    }
    String::from_utf8(bytes).map_err(|_| "not text".to_owned())
}

const MAX_PEM_BYTES: u64 = 1 << 20;
const KEY: &str = "a file with a private key in PEM, of its owner alone (chmod 600)";
const CERTIFICATES: &str = "a file with certificates in PEM, at most 1 MiB";
