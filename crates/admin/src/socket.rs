//! Creates the Unix socket of the admin API with the configured permissions and group. Recreates
//! the socket if its file is deleted.

use std::convert::Infallible;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io};

use axum::Router;
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::getegid;
use socket2::{Domain, SockAddr, Type};
use tokio::net::UnixListener;
use tokio::time::timeout;

use super::server::{Limits, Listener, serve};
use crate::accounts;

/// The file of the Unix socket. Dropping this value removes the file, unless another process has
/// replaced it.
#[derive(Debug)]
pub struct Socket(Arc<File>);

/// The path of the socket and its access rights.
#[derive(Debug)]
struct File {
    path: PathBuf,
    /// The permission bits and the group. Without a configured group, the file has the group of the
    /// process.
    access: Mutex<(u32, Option<String>)>,
    /// The device and inode of the file that this process created, or `None` after the socket was
    /// dropped.
    made: Mutex<Option<(u64, u64)>>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut made = self.0.made();
        if self.0.stands(*made) {
            // The file may have been deleted already.
            let _ = fs::remove_file(&self.0.path);
        }
        *made = None;
    }
}

impl Socket {
    /// Serves the listener, as [`serve`] does, and checks the file once a second. If the file was
    /// deleted, the socket is created again. Dropping the future stops serving, and dropping the
    /// [`Socket`] removes the file.
    pub fn keep(
        &self,
        listener: UnixListener,
        router: Router,
        limits: Limits,
    ) -> impl Future<Output = Infallible> + use<> {
        let file = Arc::clone(&self.0);
        async move {
            let mut serving = Box::pin(serve(Listener::Unix(listener), router.clone(), limits));
            let mut trouble = None;
            loop {
                if let Err(_passed) = timeout(EVERY, &mut serving).await
                    && let Some(listener) = file.look_after(&mut trouble)
                {
                    serving = Box::pin(serve(Listener::Unix(listener), router.clone(), limits));
                }
            }
        }
    }
}

impl Socket {
    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Changes the permissions and the group of the file. Open connections are not affected.
    ///
    /// # Errors
    /// Returns the same errors as [`listen`]. After an error, the file has its old permissions, or
    /// only its owner has access.
    pub fn open_to(&self, mode: u32, group: Option<&str>) -> Result<(), SocketError> {
        let made = self.0.made();
        let had_group = self.0.access().1.is_some();
        let to = group.map(find_group).transpose()?.or(had_group.then(|| getegid().as_raw()));
        if self.0.stands(*made) {
            give(&self.0.path, mode, to)?;
        }
        *self.0.access() = (mode, group.map(str::to_owned));
        Ok(())
    }
}

impl File {
    fn access(&self) -> MutexGuard<'_, (u32, Option<String>)> {
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn made(&self) -> MutexGuard<'_, Option<(u64, u64)>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if the file at the path is the file that this process created.
    fn stands(&self, made: Option<(u64, u64)>) -> bool {
        made.is_some() && identity(&self.path) == made
    }

    /// Creates the socket again if its file was deleted, and returns the new listener. `trouble` is
    /// the last logged error.
    fn look_after(&self, trouble: &mut Option<String>) -> Option<UnixListener> {
        let mut made = self.made();
        if made.is_none() || self.stands(*made) {
            *trouble = None;
            return None;
        }
        let (mode, group) = self.access().clone();
        match bind(&self.path, mode, group.as_deref()) {
            Ok((listener, identity)) => {
                *made = Some(identity);
                *trouble = None;
                // log: The file of the admin socket was deleted, and the load balancer created it
                // again. Find out which program deletes files in this directory.
                tracing::warn!(path = %self.path.display(), "admin socket file recreated");
                Some(listener)
            }
            Err(error) => {
                let words = error.to_string();
                if trouble.as_ref() != Some(&words) {
                    // log: The file of the admin socket was deleted, and creating it again failed.
                    // The load balancer tries again every second. Commands exit with code 3 until
                    // the directory exists again.
                    tracing::error!(error = %words, "admin socket file not recreated");
                    *trouble = Some(words);
                }
                None
            }
        }
    }
}

/// The reasons why the socket could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another process is listening on the socket.
    #[error("admin socket {0} is in use, is another load balancer running?", .path.display())]
    Taken {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The configured group does not exist.
    #[error("group {group} of the admin socket does not exist, create it or change admin.socket.group")]
    NoGroup {
        /// The name of the group.
        group: String,
    },
    /// The directory of the socket does not exist.
    #[error(
        "cannot create admin socket {}, create directory {} or set RuntimeDirectory= in the systemd unit",
        .path.display(), .folder.display()
    )]
    NoFolder {
        /// The path of the socket.
        path: PathBuf,
        /// The directory that does not exist.
        folder: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {step} admin socket {0}: {error}", .path.display())]
    Io {
        /// The path of the socket.
        path: PathBuf,
        /// The operation that failed, such as `create`.
        step: &'static str,
        /// The error that the system call returned.
        error: io::Error,
    },
}

/// Creates the socket at `path` with the permissions `mode`, and with `group` if given.
///
/// The socket file of a killed process is replaced. A socket that another process is using is not
/// replaced, and neither is any other kind of file.
///
/// # Errors
/// Returns [`SocketError`], and leaves no file behind. Changing the group requires membership in
/// this group or CAP_CHOWN.
pub fn listen(path: &Path, mode: u32, group: Option<&str>) -> Result<(Socket, UnixListener), SocketError> {
    let (listener, identity) = bind(path, mode, group)?;
    let access = Mutex::new((mode, group.map(str::to_owned)));
    let file = File { path: path.to_owned(), access, made: Mutex::new(Some(identity)) };
    Ok((Socket(Arc::new(file)), listener))
}

/// Returns the listener, and the device and inode of its file.
fn bind(path: &Path, mode: u32, group: Option<&str>) -> Result<(UnixListener, (u64, u64)), SocketError> {
    let group = group.map(find_group).transpose()?;
    let failed = |step| move |error| SocketError::Io { path: path.to_owned(), step, error };
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        return Err(SocketError::NoFolder { path: path.to_owned(), folder: folder.to_owned() });
    }
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        if answers(path) {
            return Err(SocketError::Taken { path: path.to_owned() });
        }
        fs::remove_file(path).map_err(failed("remove the stale file of"))?;
    }
    let listener = bind_private(path).map_err(failed("create"))?;
    let open = || {
        give(path, mode, group)?;
        let gone = || failed("examine")(io::ErrorKind::NotFound.into());
        identity(path).ok_or_else(gone)
    };
    match open() {
        Ok(identity) => Ok((listener, identity)),
        Err(error) => {
            // A removal error is ignored, because only the first error is reported.
            let _ = fs::remove_file(path);
            Err(error)
        }
    }
}

/// Binds a listening socket whose file gives no permission to anybody. Otherwise other users could
/// connect before [`give`] sets the permissions.
///
/// Linux creates the file with the permissions of the unbound socket. Setting the permissions of
/// the unbound socket does not affect files that other threads create, in contrast to a change of
/// the umask.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    fchmod(&socket, Mode::empty())?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    UnixListener::from_std(socket.into())
}

/// Sets the permissions and the group of the file. While the group is being changed, only the owner
/// has access.
fn give(path: &Path, mode: u32, group: Option<u32>) -> Result<(), SocketError> {
    let failed = |step| move |error| SocketError::Io { path: path.to_owned(), step, error };
    let set = |mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    if let Some(group) = group {
        set(mode & OWNER).map_err(failed("set the permissions of"))?;
        chown(path, None, Some(group)).map_err(failed("set the group of"))?;
    }
    set(mode).map_err(failed("set the permissions of"))
}

/// Returns `true` if a process is listening on the socket, even if its accept queue is full. The
/// check does not block.
fn answers(path: &Path) -> bool {
    let asked = || -> io::Result<()> {
        let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    };
    asked().map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |()| true)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(path).ok().filter(|found| found.file_type().is_socket())?;
    Some((found.dev(), found.ino()))
}

fn find_group(name: &str) -> Result<u32, SocketError> {
    accounts::group(name).ok_or_else(|| SocketError::NoGroup { group: name.to_owned() })
}

const OWNER: u32 = 0o700;
/// The number of connections that may wait to be accepted. This value is the default of the Rust
/// standard library.
const BACKLOG: i32 = 128;
/// The interval between checks of the socket file. A check costs one system call.
const EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn new_socket_file_has_no_permissions() {
        let name = format!("sluicegate-private-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = bind_private(&path);
        let mode = fs::symlink_metadata(&path).map(|found| found.permissions().mode() & 0o7777);
        let _ = fs::remove_file(&path);
        listener.unwrap();
        assert_eq!(mode.unwrap(), 0);
    }
}
