//! `[admin]`: where an operator's tools reach the running balancer.
//!
//! In: the section. Out: [`Admin`]. Not here: listening (the binary's), TCP with mutual TLS and `metrics` (a later version).

use std::path::{Path, PathBuf};

use super::reader::{Node, Section};

/// The admin interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    socket: Option<AdminSocket>,
}

/// A Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSocket {
    path: PathBuf,
    mode: u32,
}

impl Admin {
    /// Its Unix socket; without one the balancer can't be asked.
    pub fn socket(&self) -> Option<&AdminSocket> {
        self.socket.as_ref()
    }

    pub(super) fn read(mut section: Section<'_>) -> Self {
        let socket = section.optional("socket").and_then(|node| node.section()).and_then(AdminSocket::read);
        section.finish(&["metrics", "tcp"]);
        Self { socket }
    }
}

impl AdminSocket {
    /// An absolute path, at most 107 bytes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its file's permissions, at most 0666. Default 0600.
    pub fn mode(&self) -> u32 {
        self.mode
    }

    fn read(mut section: Section<'_>) -> Option<Self> {
        let path = section.required("path", SOCKET_PATH).and_then(|node| read_path(&node));
        let mode = section.or("mode", OWNER_ONLY, |node| node.parse(SOCKET_MODE, read_mode));
        section.finish(&["group"]);
        Some(Self { path: path?, mode })
    }
}

fn read_path(node: &Node<'_>) -> Option<PathBuf> {
    node.parse(SOCKET_PATH, |text| (text.starts_with('/') && text.len() <= SUN_PATH).then(|| text.into()))
}

fn read_mode(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('0')?;
    let octal = digits.len() == 3 && digits.bytes().all(|digit| matches!(digit, b'0' | b'2' | b'4' | b'6'));
    u32::from_str_radix(digits, 8).ok().filter(|_| octal)
}

const SOCKET_PATH: &str = "an absolute path of at most 107 bytes";
const SOCKET_MODE: &str = "four octal digits without execute bits, such as \"0660\"";
const OWNER_ONLY: u32 = 0o600;
/// What `sockaddr_un` holds, less the zero at its end.
const SUN_PATH: usize = 107;
