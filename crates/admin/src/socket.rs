//! The Unix socket: its file, with the permissions and the group of the configuration, made again when it is taken away.

use std::convert::Infallible;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io};

use axum::Router;
use nix::sys::stat::{Mode, umask};
use nix::unistd::getegid;
use socket2::{Domain, SockAddr, Type};
use tokio::net::UnixListener;
use tokio::time::timeout;

use super::server::{Limits, Listener, serve};
use crate::accounts;

/// The socket's file; removed when it is dropped, if it is still the one that was made.
#[derive(Debug)]
pub struct Socket(Arc<File>);

/// The file, and how it is made.
#[derive(Debug)]
struct File {
    path: PathBuf,
    /// Its permissions, and its group; `None`: the process's own.
    access: Mutex<(u32, Option<String>)>,
    /// Device and number of what stands there by us; `None`: it is to stand there no more.
    made: Mutex<Option<(u64, u64)>>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut made = self.0.made();
        if self.0.stands(*made) {
            // Gone already is as good.
            let _ = fs::remove_file(&self.0.path);
        }
        *made = None;
    }
}

impl Socket {
    /// Serves at the file, as [`serve`], and looks after it once a second: when somebody has taken it away, it is made again.
    /// Ends its part when it is dropped; the file goes with the [`Socket`].
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
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Others may connect from now on; connections that are open stay.
    ///
    /// # Errors
    /// As [`listen`]; what could not be changed is as it was, or the owner's alone.
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

    /// Whether what stands at the path is what was made.
    fn stands(&self, made: Option<(u64, u64)>) -> bool {
        made.is_some() && identity(&self.path) == made
    }

    /// The new listener when the file had to be made again; `trouble` is what was last said of a failure.
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
                tracing::warn!(path = %self.path.display(), "the admin socket's file was taken away, and is made again");
                Some(listener)
            }
            Err(error) => {
                let words = error.to_string();
                if trouble.as_ref() != Some(&words) {
                    tracing::error!(error = %words, "the admin socket's file was taken away, and can't be made again");
                    *trouble = Some(words);
                }
                None
            }
        }
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
    /// There is no folder for it.
    #[error(
        "admin socket {}: there is no folder {}: make it, or have the service manager do so (RuntimeDirectory=)",
        .path.display(), .folder.display()
    )]
    NoFolder {
        /// Where it was to be.
        path: PathBuf,
        /// What is missing.
        folder: PathBuf,
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
    let (listener, identity) = bind(path, mode, group)?;
    let access = Mutex::new((mode, group.map(str::to_owned)));
    let file = File { path: path.to_owned(), access, made: Mutex::new(Some(identity)) };
    Ok((Socket(Arc::new(file)), listener))
}

/// The listener, and what its file is known by.
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
        fs::remove_file(path).map_err(failed("removing what a killed process left"))?;
    }
    // Nobody may connect between bind and chmod.
    let usual = umask(Mode::all());
    let bound = UnixListener::bind(path);
    umask(usual);
    let listener = bound.map_err(failed("listening"))?;
    let open = || {
        give(path, mode, group)?;
        let gone = || failed("looking at it")(io::ErrorKind::NotFound.into());
        identity(path).ok_or_else(gone)
    };
    match open() {
        Ok(identity) => Ok((listener, identity)),
        Err(error) => {
            // The first error is the one to report.
            let _ = fs::remove_file(path);
            Err(error)
        }
    }
}

/// Gives the file to those who may connect; while it changes hands it is its owner's alone.
fn give(path: &Path, mode: u32, group: Option<u32>) -> Result<(), SocketError> {
    let failed = |step| move |error| SocketError::Io { path: path.to_owned(), step, error };
    let set = |mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    if let Some(group) = group {
        set(mode & OWNER).map_err(failed("setting its permissions"))?;
        chown(path, None, Some(group)).map_err(failed("giving it to its group"))?;
    }
    set(mode).map_err(failed("setting its permissions"))
}

/// Whether somebody listens there. Does not wait: a full queue is an answer too.
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
/// Between two looks at the file: one system call each.
const EVERY: Duration = Duration::from_secs(1);
