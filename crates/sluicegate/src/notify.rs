//! Notifies the service manager of readiness, reloads and shutdown, and sends heartbeats and a
//! status line.
//!
//! The environment variable `NOTIFY_SOCKET` contains the path or the abstract name of the socket,
//! and `WATCHDOG_USEC` contains the watchdog timeout. Each message is one datagram. Sending never
//! blocks: if the socket buffer is full, the message is lost and the loss is logged. The crate
//! `sd-notify` is not used, because it does not support abstract socket names and opens a socket
//! for each message.
//!
//! References: sd_notify(3), sd_watchdog_enabled(3).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The connection to the service manager. Without a service manager, messages are discarded.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    manager: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Opens the socket named in the environment. A failure is logged, and all messages are then
    /// discarded.
    pub(crate) fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let watchdog = watchdog(
            variable("WATCHDOG_USEC").as_deref(),
            variable("WATCHDOG_PID").as_deref(),
            std::process::id(),
        );
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Self::default() };
        match open(&name) {
            Ok(manager) => Self { manager: Some(manager), watchdog },
            Err(error) => {
                // log: The socket in `NOTIFY_SOCKET` cannot be used, so the service manager does
                // not learn that the process is ready. Start the process with the systemd unit.
                tracing::warn!(path = %name.display(), %error, "service manager not reachable");
                Self::default()
            }
        }
    }

    /// Returns the watchdog timeout of the service manager.
    pub(crate) fn watchdog_time(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Reports that startup or a reload is complete. The message is also sent after a failed
    /// reload.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\n{}", status_line(status)));
    }

    /// Reports that a reload has started.
    pub(crate) fn reloading(&self) {
        // Since version 253, systemd ignores this message if it does not contain a timestamp.
        match clock_gettime(ClockId::CLOCK_MONOTONIC) {
            Ok(now) => {
                let micros = Duration::from(now).as_micros();
                self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reloading\n"));
            }
            // log: The clock could not be read, so `systemctl reload` may wait until it times out.
            // The reload itself is not affected.
            Err(error) => tracing::warn!(%error, "reload notification not sent"),
        }
    }

    /// Reports that the process is shutting down. The shutdown takes at most `at_most`.
    pub(crate) fn stopping(&self, at_most: Duration, status: &str) {
        let micros = at_most.as_micros();
        self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\n{}", status_line(status)));
    }

    /// Reports that `pid` is now the main process of the service.
    pub(crate) fn main_process(&self, pid: u32) {
        self.send(&format!("MAINPID={pid}\n"));
    }

    /// Sets the status line of `systemctl status`.
    pub(crate) fn status(&self, status: &str) {
        self.send(&status_line(status));
    }

    /// Sends a heartbeat.
    pub(crate) fn heartbeat(&self) {
        self.send("WATCHDOG=1\n");
    }

    fn send(&self, message: &str) {
        let Some((socket, manager)) = &self.manager else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), manager) {
            // log: The socket of the service manager is full and a message was lost. Without
            // heartbeats, the watchdog may restart the service. Check whether systemd is
            // overloaded.
            tracing::warn!(notification = message.trim_end(), %error, "service manager message lost");
        }
    }
}

fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::Error::other("not an absolute path or an abstract name")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// Returns the watchdog timeout, or `None` if the watchdog supervises a process other than `me`.
fn watchdog(micros: Option<&str>, process: Option<&str>, me: u32) -> Option<Duration> {
    if process.is_some_and(|process| process.parse() != Ok(me)) {
        return None;
    }
    let micros = micros?.parse().ok().filter(|micros| *micros > 0);
    micros.map(Duration::from_micros)
}

/// Formats the status as one line, because a line break would begin another message.
fn status_line(status: &str) -> String {
    format!("STATUS={}\n", status.replace(['\n', '\r'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(bound: &SocketAddr, name: &OsStr) {
        let manager = UnixDatagram::bind_addr(bound).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let received = || {
            let mut buffer = [0; 512];
            let length = manager.recv(&mut buffer).unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        let notifier = Notifier { manager: Some(open(name).unwrap()), watchdog: None };
        notifier.ready("generation 1\nREADY=0");
        assert_eq!(received(), "READY=1\nSTATUS=generation 1 READY=0\n");
        notifier.heartbeat();
        assert_eq!(received(), "WATCHDOG=1\n");
        notifier.stopping(Duration::from_millis(1500), "draining");
        assert_eq!(received(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=1500000\nSTATUS=draining\n");
        notifier.status("well");
        assert_eq!(received(), "STATUS=well\n");
        notifier.main_process(4_711);
        assert_eq!(received(), "MAINPID=4711\n");
        let now = || Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_micros();
        let before = now();
        notifier.reloading();
        let received = received();
        let micros =
            received.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").and_then(|rest| rest.split('\n').next());
        let micros: u128 = micros.unwrap().parse().unwrap();
        assert!((before..=now()).contains(&micros), "{received}");
        // A full or closed socket must not block the sender.
        for _ in 0..2_000 {
            notifier.heartbeat();
        }
        drop(manager);
        notifier.heartbeat();
    }

    #[test]
    fn notifier_sends_to_path_and_abstract_name() {
        let name = format!("sluicegate-notify-{}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("socket");
        exchange(&SocketAddr::from_pathname(&path).unwrap(), path.as_os_str());
        std::fs::remove_dir_all(&folder).unwrap();
        exchange(&SocketAddr::from_abstract_name(&name).unwrap(), OsStr::new(&format!("@{name}")));
        assert!(open(OsStr::new("relative")).is_err() && open(OsStr::new("")).is_err());
    }

    #[test]
    fn the_watchdog_is_for_the_process_that_it_names() {
        for (micros, process, wanted) in [
            (Some("3000000"), None, Some(3_000_000)),
            (Some("3000000"), Some("7"), Some(3_000_000)),
            (Some("3000000"), Some("8"), None),
            (Some("3000000"), Some("x"), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
            (None, Some("7"), None),
        ] {
            assert_eq!(
                watchdog(micros, process, 7),
                wanted.map(Duration::from_micros),
                "{micros:?} {process:?}"
            );
        }
    }
}
