//! Messages to the service manager: readiness, reloads, the end, a heartbeat, and a line of status.
//!
//! In: `$NOTIFY_SOCKET`, a path or an abstract name, and `$WATCHDOG_USEC`. Out: one datagram for each change. Without a
//! manager nothing is sent. Not here: whether a heartbeat is due (`liveness`).
//! Written by hand: the crate `sd-notify` knows no abstract names, and opens a socket for each message.
//! Invariant: a message never waits. What the manager's full socket refuses is lost, and logged.
//! Source: sd_notify(3), sd_watchdog_enabled(3).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The way to the service manager, where there is one.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    manager: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// As the environment says. A manager that cannot be reached is logged, and gets no message.
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
                tracing::warn!(socket = %name.display(), %error, "the service manager cannot be notified");
                Self::default()
            }
        }
    }

    /// How long the manager waits for a heartbeat.
    pub(crate) fn watchdog_time(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Started, or a reload is over, whether or not it took effect.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\n{}", status_line(status)));
    }

    /// A reload begins.
    pub(crate) fn reloading(&self) {
        // Since systemd 253 a reload without the time is not believed.
        match clock_gettime(ClockId::CLOCK_MONOTONIC) {
            Ok(now) => {
                let micros = Duration::from(now).as_micros();
                self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reloading\n"));
            }
            Err(error) => tracing::warn!(%error, "the service manager cannot be notified of the reload"),
        }
    }

    /// The end begins, and takes up to `at_most`.
    pub(crate) fn stopping(&self, at_most: Duration, status: &str) {
        let micros = at_most.as_micros();
        self.send(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\n{}", status_line(status)));
    }

    /// Another process is the service from now on: its messages count, and this one's do not.
    pub(crate) fn main_process(&self, pid: u32) {
        self.send(&format!("MAINPID={pid}\n"));
    }

    /// A line for `systemctl status`.
    pub(crate) fn status(&self, status: &str) {
        self.send(&status_line(status));
    }

    /// Still alive.
    pub(crate) fn heartbeat(&self) {
        self.send("WATCHDOG=1\n");
    }

    fn send(&self, message: &str) {
        let Some((socket, manager)) = &self.manager else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), manager) {
            tracing::warn!(message = message.trim_end(), %error, "the service manager did not take a message");
        }
    }
}

fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::Error::other("neither a path from the root on nor an abstract name")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// `process`: the one that the watchdog is meant for, where that is set.
fn watchdog(micros: Option<&str>, process: Option<&str>, me: u32) -> Option<Duration> {
    if process.is_some_and(|process| process.parse() != Ok(me)) {
        return None;
    }
    let micros = micros?.parse().ok().filter(|micros| *micros > 0);
    micros.map(Duration::from_micros)
}

/// One line, whatever the text holds: the next one would be a message of its own.
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
        // A manager that is gone, or that does not read, stops nobody.
        for _ in 0..2_000 {
            notifier.heartbeat();
        }
        drop(manager);
        notifier.heartbeat();
    }

    #[test]
    fn the_manager_hears_everything_by_path_and_by_abstract_name() {
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
