//! Reads secrets from files or systemd credentials.
//!
//! The configuration refers to a secret by a path such as `secrets/hash.key`, or by
//! `credential:NAME`. The environment is passed as an argument, so that tests need not change the
//! variables of the process. Secret
//! a credential through an ACL. The mask of this ACL appears as the group permissions of the file.
//! Group permissions of credentials are therefore ignored (systemd.exec(5), "Credentials").
//!
//! Invariant: no message and no `Debug` output contains a part of a secret. The text of a secret is
//! overwritten in memory after use.

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

/// The location of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretName {
    /// A file. Relative paths are resolved in the folder of the configuration.
    File(PathBuf),
    /// The systemd credential NAME from `credential:NAME`, which is a file in the folder
    /// `$CREDENTIALS_DIRECTORY`.
    Credential(String),
}

impl SecretName {
    /// Parses a reference to a secret. `folder` is the folder of the configuration.
    pub(super) fn parse(reference: &str, folder: &Path) -> Result<Self, SecretError> {
        let Some(name) = reference.strip_prefix("credential:") else {
            // A user may have pasted the key itself, which must not be printed.
            if reference.len() >= 16 && reference.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                let message = "the value looks like the key itself, not like the name of a file";
                return Err(SecretError::new(message, "write the key to a file, and name the file here"));
            }
            if reference.is_empty() {
                return Err(SecretError::new("the name of the file is empty", "name a file or a credential"));
            }
            return Ok(Self::File(folder.join(reference)));
        };
        let sign = |byte: u8| matches!(byte, b'.' | b'_' | b'-');
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || sign(byte));
        if name.is_empty() || name.len() > 255 || !plain || name == "." || name == ".." {
            let help = "write credential:NAME, where NAME has letters, digits, '.', '_' and '-'";
            return Err(SecretError::new("invalid name of a credential", help));
        }
        Ok(Self::Credential(name.to_owned()))
    }
}

/// The reason why a secret could not be read. The reason never contains a part of the secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SecretError {
    pub(super) message: String,
    pub(super) help: String,
    pub(super) cause: Cause,
}

/// The kind of a [`SecretError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The file does not exist. The help line explains how to create the file.
    Missing,
    /// The content of the file is invalid.
    Content,
    /// The name or the permissions of the file are not acceptable, or a system call failed.
    File,
}

impl SecretError {
    /// Creates an error with a message and a help line. Neither may contain a part of the secret.
    pub fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: help.into(), cause: Cause::File }
    }
}

/// Reads a secret. `environment` returns the value of an environment variable. The caller must
/// overwrite the text after use, as `Outside::secret` does.
///
/// # Errors
/// Returns a [`SecretError`] if the file does not exist, is not a regular file, is larger than
/// 4,096 bytes, is not text, or can be read by other users.
pub fn read_secret(
    name: &SecretName,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Result<String, SecretError> {
    match name {
        SecretName::File(path) => read_guarded(path, 0o077),
        SecretName::Credential(name) => {
            let folder = environment("CREDENTIALS_DIRECTORY").filter(|folder| !folder.is_empty());
            let folder = folder.ok_or_else(|| {
                let help = format!("add LoadCredential={name}:PATH to the systemd unit, or name a file");
                SecretError::new("a credential needs $CREDENTIALS_DIRECTORY, which is not set", help)
            })?;
            read_guarded(&Path::new(&folder).join(name), 0o007)
        }
    }
}

/// The secret key of all hash functions that select a backend. The key is 16 bytes long, and is the
/// same on all machines of a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey([u8; 16]);

impl HashKey {
    /// Returns the bytes of the key. Do not log them.
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the SHA-256 of the key, for digests. The result need not be kept secret, because it
    /// does not reveal the key, which has 128 random bits.
    pub fn fingerprint(&self) -> [u8; 32] {
        Sha256::new_with_prefix(b"sluicegate hash key, for digests\0").chain_update(self.0).finalize().into()
    }

    /// The placeholder key for a machine that has no secrets.
    pub(super) const STAND_IN: Self = Self([0; 16]);

    /// Parses 32 hex digits. White space before and after the digits is ignored. A key of all zeros
    /// is rejected, because it is the placeholder for missing secrets and a typical value in
    /// templates.
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

/// Serializes the fingerprint in place of the key.
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
        let message = format!("cannot read {shown} ({why})");
        let error = SecretError::new(message, "name a file that this process can read");
        SecretError { cause: if missing { Cause::Missing } else { Cause::File }, ..error }
    };
    let of_content = |why: &str| SecretError {
        cause: Cause::Content,
        ..SecretError::new(format!("cannot use {shown} ({why})"), "the file must hold the secret as text")
    };
    // Opening a named pipe would block until another process opens it for writing, so the file type
    // is checked first.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(SecretError::new(format!("{shown} is not a regular file"), "name a regular file"));
    }
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    if mode & forbidden != 0 {
        let message = format!("{shown} can be read by other users (mode {:04o})", mode & 0o7777);
        return Err(SecretError::new(message, format!("chmod 600 {shown}")));
    }
    // The buffer has its full size from the start, because a growing buffer would leave copies of
    // the secret in freed memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(ROOM));
    file.take(MAX_SECRET_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_SECRET_BYTES {
        return Err(of_content(&format!("larger than {MAX_SECRET_BYTES} bytes")));
    }
    let text = std::str::from_utf8(&bytes).map(str::to_owned);
    text.map_err(|_| of_content("it is not text"))
}

const MAX_SECRET_BYTES: u64 = 4_096;
const ROOM: usize = 8_192;
