//! A stand-in for the service manager: the socket that `$NOTIFY_SOCKET` names.
//!
//! In: datagrams of sd_notify(3). Out: each as text, in order.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Listens at a path.
#[derive(Debug)]
pub struct Manager {
    socket: UnixDatagram,
}

impl Manager {
    /// Anybody may tell it something, as with the real one.
    ///
    /// # Errors
    /// The path can't be bound.
    pub fn listen(path: &Path) -> Result<Self> {
        let socket =
            UnixDatagram::bind(path).with_context(|| format!("can't listen at {}", path.display()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
        Ok(Self { socket })
    }

    /// The next message.
    ///
    /// # Errors
    /// None came by `bound`.
    pub fn next(&self, bound: Duration) -> Result<String> {
        let end = Instant::now() + bound;
        let mut buffer = [0; 4096];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // Zero would mean for ever.
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.socket.recv(&mut buffer) {
                // The children of other tests end, and each end is a signal.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).with_context(|| format!("no message in {bound:?}")),
                Ok(length) => return Ok(String::from_utf8_lossy(&buffer[..length]).into_owned()),
            }
        }
    }

    /// Passes over messages up to one that has the line `line`.
    ///
    /// # Errors
    /// None came by `bound`: those that did are in the message.
    pub fn wait_for(&self, bound: Duration, line: &str) -> Result<String> {
        let end = Instant::now() + bound;
        let mut others = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let message = self.next(left).with_context(|| format!("{line} did not come, but {others:?}"))?;
            if message.lines().any(|found| found == line) {
                return Ok(message);
            }
            others.push(message);
        }
    }
}
