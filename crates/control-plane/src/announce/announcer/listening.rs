//! Tracks the addresses on which listening for BGP failed, and schedules retries. The crate `bgp`
//! opens the sockets.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// The addresses on which listening failed, and the time of the next attempt.
#[derive(Debug, Default)]
pub(super) struct Listening {
    /// One sentence with the reason for each failed address.
    pub(super) failures: Vec<String>,
    again_at: Duration,
}

impl Listening {
    /// Records the addresses on which listening failed at `now`, and logs each new failure.
    pub(super) fn observe(&mut self, refused: &[(SocketAddr, io::Error)], now: Duration) {
        let failures: Vec<String> = refused.iter().map(|(at, error)| sentence(*at, error)).collect();
        for why in failures.iter().filter(|why| !self.failures.contains(why)) {
            // log: The process cannot listen on an address in `bgp.listen`. Either the address is
            // in use, or the port is below 1024 and the process lacks CAP_NET_BIND_SERVICE. The
            // process tries again every 5 s.
            tracing::error!(why, "BGP listen failed");
        }
        *self = Self { failures, again_at: now + LISTEN_AGAIN };
    }

    /// Returns `true` if listening failed on an address and the next attempt is due.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        !self.failures.is_empty() && now >= self.again_at
    }
}

fn sentence(at: SocketAddr, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "; ports below 1024 need CAP_NET_BIND_SERVICE",
        io::ErrorKind::AddrNotAvailable => "; no interface of this machine has the address",
        io::ErrorKind::AddrInUse => "; another program uses the address",
        _ => "",
    };
    format!("cannot listen on {at} ({error}){hint}; next try within {} s", LISTEN_AGAIN.as_secs())
}

/// The time between two attempts to listen. A later attempt to listen can succeed, for example when
/// an interface gets the address.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);
