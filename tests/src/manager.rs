//! A substitute for systemd that receives the notifications of a service at `$NOTIFY_SOCKET`.
//!
//! The messages are datagrams as described in sd_notify(3).

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A listening notification socket.
#[derive(Debug)]
pub struct Manager {
    socket: UnixDatagram,
}

impl Manager {
    /// Binds the socket. Any process may send messages to it, as with systemd.
    ///
    /// # Errors
    /// Returns an error if the path cannot be bound.
    pub fn listen(path: &Path) -> Result<Self> {
        let socket =
            UnixDatagram::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
        Ok(Self { socket })
    }

    /// Returns the next message.
    ///
    /// # Errors
    /// Returns an error if no message arrives within `bound`.
    pub fn next(&self, bound: Duration) -> Result<String> {
        let end = Instant::now() + bound;
        let mut buffer = [0; 4096];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // A timeout of zero would mean that the call waits forever.
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.socket.recv(&mut buffer) {
                // Child processes of other tests may end while this call waits. Each time a child
                // process ends, SIGCHLD is raised, which can interrupt the call.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).with_context(|| format!("no message in {bound:?}")),
                Ok(length) => return Ok(String::from_utf8_lossy(&buffer[..length]).into_owned()),
            }
        }
    }

    /// Waits for a message that contains the line `line` and returns it. Other messages are
    /// skipped.
    ///
    /// # Errors
    /// Returns an error if no such message arrives within `bound`. The error lists the skipped
    /// messages.
    pub fn wait_for(&self, bound: Duration, line: &str) -> Result<String> {
        let end = Instant::now() + bound;
        let mut others = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let message = self
                .next(left)
                .with_context(|| format!("no message contains {line:?}, received {others:?}"))?;
            if message.lines().any(|found| found == line) {
                return Ok(message);
            }
            others.push(message);
        }
    }
}
