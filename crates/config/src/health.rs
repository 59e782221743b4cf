//! `[health]`: settings of this machine for health checks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use config_text::{Expected, Section};
use serde::Serialize;

/// Settings of this machine for health checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Health {
    /// The Unix socket of `sluicegate run-checks`. Default: none, so exec checks are not allowed.
    pub exec_socket: Option<Arc<Path>>,
}

impl Health {
    pub(super) fn read(mut section: Section<'_>) -> Self {
        let socket = section.optional("exec_socket");
        let exec_socket =
            socket.and_then(|node| node.parse(SOCKET, |text| is_socket(text).then(|| path(text))));
        section.finish();
        Self { exec_socket }
    }
}

fn path(text: &str) -> Arc<Path> {
    PathBuf::from(text).into()
}

/// Returns `true` for the path of a Unix socket. The kernel allows 107 bytes.
fn is_socket(text: &str) -> bool {
    text.starts_with('/') && text.len() <= 107 && !text.contains('\0')
}

const SOCKET: Expected =
    Expected::new("an absolute path of at most 107 bytes, the socket of `sluicegate run-checks`")
        .example("\"/run/sluicegate-checks.sock\"");
