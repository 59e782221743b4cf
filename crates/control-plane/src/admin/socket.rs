//! The Unix socket: its file, with the permissions and the group of the configuration.

use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::sys::stat::{Mode, umask};
use nix::unistd::Group;
use tokio::net::UnixListener;

/// The socket's file; removed when it is dropped.
#[derive(Debug)]
pub struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = fs::remove_file(&self.0);
    }
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another process answers there.
    #[error("admin socket {0}: another process answers there; is a balancer running already?", .path.display())]
    Taken {
        /// Where.
        path: PathBuf,
    },
    /// The machine has no such group.
    #[error("admin socket: no group {group} on this machine")]
    NoGroup {
        /// Its name.
        group: String,
    },
    /// The kernel's word.
    #[error("admin socket {0}: {step}: {error}", .path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// At what.
        step: &'static str,
        /// Why.
        error: io::Error,
    },
}

/// Listens at `path` with permissions `mode`, for `group` when there is one.
///
/// A socket that a killed process left is replaced; one that answers is not, and neither is a file of another kind.
///
/// # Errors
/// [`SocketError`]; nothing is left behind. To change the group of a file needs membership in it, or CAP_CHOWN.
pub fn listen(path: &Path, mode: u32, group: Option<&str>) -> Result<(Socket, UnixListener), SocketError> {
    let group = group.map(find_group).transpose()?;
    let failed = |step| move |error| SocketError::Io { path: path.to_owned(), step, error };
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(SocketError::Taken { path: path.to_owned() });
        }
        fs::remove_file(path).map_err(failed("removing what a killed process left"))?;
    }
    // Nobody may connect between bind and chmod.
    let usual = umask(Mode::all());
    let bound = UnixListener::bind(path);
    umask(usual);
    let listener = bound.map_err(failed("listening"))?;
    let socket = Socket(path.to_owned());
    if let Some(group) = group {
        chown(path, None, Some(group)).map_err(failed("giving it to its group"))?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("setting its permissions"))?;
    Ok((socket, listener))
}

fn find_group(name: &str) -> Result<u32, SocketError> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        _ => Err(SocketError::NoGroup { group: name.to_owned() }),
    }
}
