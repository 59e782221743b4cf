//! Reads secrets and certificates from the files that the configuration refers to.
//!
//! Key files that other users can read are rejected. Certificate files may be readable, because
//! certificates are public. Relative paths are resolved in the folder of the file that contains the
//! reference. Invariant: no message and no `Debug` output contains a part of a key.

use std::fmt;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use config_text::words::{count_of, quote};
use config_text::{BaseDir, Expected, Node};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Serialize, Serializer};
use zeroize::{Zeroize, Zeroizing};

use super::ReadSecret;
use super::canonical;
use super::secret::{Cause, SecretError, SecretName};

/// The rules for reading secrets and certificates.
#[derive(Clone, Copy)]
pub(super) struct Outside<'a> {
    /// The function that reads secrets. If `None`, secrets are not read, and placeholders are used.
    pub(super) secrets: Option<ReadSecret<'a>>,
    /// The folder that must contain all files except credentials. The value is `Some` only for a
    /// configuration that was sent by a client. In this case, messages never quote the content of a
    /// file.
    pub(super) within: Option<&'a BaseDir>,
}

/// A private key in PEM. The `Debug` output does not contain the key.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(Arc<Zeroizing<String>>);

impl PrivateKey {
    /// Reads a private key in PEM. Returns `None` if the text contains no private key.
    pub fn parse(pem: &str) -> Option<Self> {
        PrivateKeyDer::from_pem_slice(pem.as_bytes()).ok()?.zeroize();
        Some(Self(Arc::new(Zeroizing::new(pem.to_owned()))))
    }

    /// Returns the PEM text, which contains at least one private key. Do not log it.
    pub fn pem(&self) -> &str {
        &self.0
    }
}

impl Hash for PrivateKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pem().hash(state);
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
    /// Reads the secret file that `node` names, and converts its content with `read`. Returns
    /// `stand_in` if secrets are not read. `help` describes the expected content of the file.
    pub(super) fn secret<T>(
        &self,
        node: &Node<'_>,
        help: &str,
        stand_in: T,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = node.as_str().or_else(|| node.unexpected(SECRET))?;
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
                None => {
                    SecretError { cause: Cause::Content, ..SecretError::new(measure(node, &secret), help) }
                }
            },
            Err(error) => error,
        };
        let help = if why.cause == Cause::Missing { help } else { &why.help };
        let message =
            if why.cause == Cause::Content { self.of_content(node, || why.message) } else { why.message };
        // The value is not printed, because it may be the secret itself.
        node.hide();
        node.refuse((message, help));
        None
    }

    /// Reports an error if a configuration that was sent by a client refers to a file outside its
    /// folder. Returns `true` if an error was reported.
    fn reports_beyond(&self, node: &Node<'_>, path: &Path) -> bool {
        let is_beyond = self.within.is_some_and(|base| base.keeps_out(node) || !base.holds(path));
        if is_beyond {
            node.report.beyond(&node.place, node.as_str().unwrap_or_default());
        }
        is_beyond
    }

    /// Returns the message about the content of a file. If the configuration was sent by a client,
    /// which may not be allowed to read the file, returns a general message instead.
    fn of_content(&self, node: &Node<'_>, message: impl FnOnce() -> String) -> String {
        match self.within {
            Some(_) => {
                let shown = quote(node.as_str().unwrap_or_default());
                format!("{shown} does not contain a valid value for {}", node.label())
            }
            None => message(),
        }
    }

    /// Reads the private key in the file to which `node` refers.
    pub(super) fn private_key(&self, node: &Node<'_>) -> Option<PrivateKey> {
        self.secret(node, KEY, PrivateKey(Arc::default()), PrivateKey::parse)
    }

    /// Reads one or more certificates from the file that `node` names. Returns `""` if secrets are
    /// not read.
    pub(super) fn certificates(&self, node: &Node<'_>) -> Option<Arc<str>> {
        let name = node.parse(CERTIFICATES, |text| (!text.is_empty()).then_some(text))?;
        if self.secrets.is_none() {
            return Some(Arc::from(""));
        }
        let path = node.folder().join(name);
        if self.reports_beyond(node, &path) {
            return None;
        }
        let shown = |why: &str| format!("cannot use {:?} ({why})", path.display().to_string());
        let message = match read_public(&path) {
            Err(Unread::File(why)) => shown(&why),
            Err(Unread::Content(why)) => self.of_content(node, || shown(why)),
            Ok(text) => return Some(Arc::from(text)),
        };
        node.refuse((message, "specify a PEM certificate file of at most 1 MiB"));
        None
    }
}

/// Describes an invalid secret by its length, without its content.
fn measure(node: &Node<'_>, secret: &str) -> String {
    let label = node.label();
    let key = secret.trim();
    let length = count_of(key.chars().count(), "character");
    match key.lines().count() {
        0 | 1 => format!("the secret of {label} has {length} and is not a valid key"),
        lines => format!("the secret of {label} has {lines} lines and {length}, and is not a valid key"),
    }
}

/// The reason why certificates cannot be read.
enum Unread {
    File(String),
    Content(&'static str),
}

fn read_public(path: &Path) -> Result<String, Unread> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Unread::File("no such file".to_owned()),
        _ => Unread::File(error.to_string()),
    };
    // Opening a named pipe would block until another process opens it for writing, so the file type
    // is checked first.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Unread::File("not a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(MAX_PEM_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_PEM_BYTES {
        return Err(Unread::Content("larger than 1 MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| Unread::Content("it is not text"))?;
    // The parser's error is not used, because it would quote a line of the file.
    let mut certificates = CertificateDer::pem_slice_iter(text.as_bytes());
    let count = certificates.try_fold(0, |count, one| one.map(|_| count + 1));
    match count.map_err(|_| Unread::Content("a certificate is broken"))? {
        0 => Err(Unread::Content("it has no certificate")),
        _ => Ok(text),
    }
}

const MAX_PEM_BYTES: u64 = 1 << 20;
const SECRET: Expected = Expected::new("the name of a file or a credential").example("\"secrets/hash.key\"");
const KEY: &str =
    "the file must contain a private key in PEM, and only its owner may have access (chmod 600)";
const CERTIFICATES: Expected = Expected::new("a file with certificates in PEM").example("\"ca.pem\"");
