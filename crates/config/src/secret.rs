//! Secrets: read from a file or a systemd credential, checked, never shown.
//!
//! In: a reference such as `secrets/hash.key` or `credential:NAME`. Out: a [`HashKey`].
//! Not here: the environment. The caller says how it is read, so that tests need not change it.
//! Invariant: no message and no `Debug` output holds any part of a secret; a text is wiped when it is read no more.
//! Source: systemd.exec(5), "Credentials". With `User=` systemd grants a credential by ACL, whose mask
//! shows as group bits in the mode; so a credential is refused for bits of others alone.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::canonical::Sealed;

/// Where a secret lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretName {
    /// A file; a relative path in the configuration is taken from the configuration's folder.
    File(PathBuf),
    /// `credential:NAME`: the file NAME in the folder that `$CREDENTIALS_DIRECTORY` names.
    Credential(String),
}

impl SecretName {
    /// Reads a reference as the file writes it; `folder` is that of the configuration.
    pub(super) fn parse(reference: &str, folder: &Path) -> Result<Self, SecretError> {
        let Some(name) = reference.strip_prefix("credential:") else {
            // A key pasted where its file's name belongs must not be printed by what follows.
            if reference.len() >= 16 && reference.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(SecretError::new("what looks like the key itself", "the name of a file"));
            }
            if reference.is_empty() {
                return Err(SecretError::new("\"\"", "the name of a file"));
            }
            return Ok(Self::File(folder.join(reference)));
        };
        let sign = |byte: u8| matches!(byte, b'.' | b'_' | b'-');
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || sign(byte));
        if name.is_empty() || name.len() > 255 || !plain || name == "." || name == ".." {
            return Err(SecretError::new("an impossible credential name", "credential:NAME"));
        }
        Ok(Self::Credential(name.to_owned()))
    }
}

/// Why a secret could not be read: what was found and what was allowed, without the secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found {found}, allowed {allowed}")]
pub struct SecretError {
    pub(super) found: String,
    pub(super) allowed: String,
    pub(super) cause: Cause,
}

/// What a [`SecretError`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// There is no such file yet, so the message says how to make one.
    Missing,
    /// What the file holds.
    Content,
    /// Its name, its permissions, what the system says.
    File,
}

impl SecretError {
    /// Both parts are shown to the operator; neither may hold any of the secret.
    pub fn new(found: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self { found: found.into(), allowed: allowed.into(), cause: Cause::File }
    }
}

/// Reads a secret from the system, `environment` giving the variables. Who takes the text wipes it (`Outside::secret`).
///
/// # Errors
/// [`SecretError`]: no such file, not a regular file, over 4,096 bytes, not text, readable by others.
pub fn read_secret(
    name: &SecretName,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Result<String, SecretError> {
    match name {
        SecretName::File(path) => read_guarded(path, 0o077),
        SecretName::Credential(name) => {
            let folder = environment("CREDENTIALS_DIRECTORY").filter(|folder| !folder.is_empty());
            let folder = folder.ok_or_else(|| {
                let allowed = format!("a service with LoadCredential={name}:PATH, or the name of a file");
                SecretError::new("a credential, and no $CREDENTIALS_DIRECTORY", allowed)
            })?;
            read_guarded(&Path::new(&folder).join(name), 0o007)
        }
    }
}

/// The key of all hashes that choose a backend: 16 bytes, equal on all machines of a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey([u8; 16]);

impl HashKey {
    /// The key's bytes. They must not be logged.
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// What stands for the key in digests: one-way, and it may be shown, as the key has 128 random bits.
    pub fn fingerprint(&self) -> [u8; 32] {
        Sha256::new_with_prefix(b"sluicegate hash key, for digests\0").chain_update(self.0).finalize().into()
    }

    /// In place of the key on a machine that has no secrets.
    pub(super) const STAND_IN: Self = Self([0; 16]);

    /// Reads 32 hex digits; white space around them is cut off. A key of zeros is none: it is what stands in for one, and what an
    /// empty device or a template has.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.trim().as_bytes();
        let mut key = [0_u8; 16];
        if digits.len() != 2 * key.len() {
            return None;
        }
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            for &digit in pair {
                let value = char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())?;
                *byte = (*byte << 4) | value;
            }
        }
        (key != Self::STAND_IN.0).then_some(Self(key))
    }
}

/// Its fingerprint.
impl Serialize for HashKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Sealed::of(&self.fingerprint()).serialize(to)
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(redacted)")
    }
}

fn read_guarded(path: &Path, forbidden: u32) -> Result<String, SecretError> {
    let shown = format!("{:?}", path.display().to_string());
    let failed = |error: std::io::Error| {
        let missing = error.kind() == std::io::ErrorKind::NotFound;
        let why = if missing { "no such file".to_owned() } else { error.to_string() };
        let error = SecretError::new(format!("{shown}: {why}"), "a file that this process can read");
        SecretError { cause: if missing { Cause::Missing } else { Cause::File }, ..error }
    };
    let of_content =
        |found| SecretError { cause: Cause::Content, ..SecretError::new(found, "a secret as text") };
    // Asked before it is opened: opening a FIFO would wait for a writer.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(SecretError::new(format!("{shown}: not a regular file"), "a regular file"));
    }
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    if mode & forbidden != 0 {
        let found = format!("{shown} with mode {:04o}, which others can read", mode & 0o7777);
        return Err(SecretError::new(found, format!("a file of its owner alone: chmod 600 {shown}")));
    }
    // Room for all of it from the start: a piece that grows leaves its bytes where it was.
    let mut bytes = Zeroizing::new(Vec::with_capacity(ROOM));
    file.take(MAX_SECRET_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_SECRET_BYTES {
        return Err(of_content(format!("{shown}: over {MAX_SECRET_BYTES} bytes")));
    }
    let text = std::str::from_utf8(&bytes).map(str::to_owned);
    text.map_err(|_| of_content(format!("{shown}: not text")))
}

const MAX_SECRET_BYTES: u64 = 4_096;
const ROOM: usize = 8_192;
