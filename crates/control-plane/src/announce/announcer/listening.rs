//! Where peers may dial us: addresses that can't be listened at, and when they are tried again.
//!
//! In: the speaker's refusals, the time. Out: sentences for the operator. Not here: the sockets (`bgp`).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// How listening at the addresses of the file went.
#[derive(Debug, Default)]
pub(super) struct Listening {
    /// Why an address of the file is not listened at, one sentence each.
    pub(super) failures: Vec<String>,
    again_at: Duration,
}

impl Listening {
    /// What became of the addresses at `now`: logs each that failed for the first time.
    pub(super) fn observe(&mut self, refused: &[(SocketAddr, io::Error)], now: Duration) {
        let failures: Vec<String> = refused.iter().map(|(at, error)| sentence(*at, error)).collect();
        for why in failures.iter().filter(|why| !self.failures.contains(why)) {
            tracing::error!(why, "peers can't dial us");
        }
        *self = Self { failures, again_at: now + LISTEN_AGAIN };
    }

    /// Whether an address failed and is to be tried again at `now`.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        !self.failures.is_empty() && now >= self.again_at
    }
}

fn sentence(at: SocketAddr, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "; a port below 1,024 wants CAP_NET_BIND_SERVICE",
        io::ErrorKind::AddrNotAvailable => "; no interface of the machine has the address",
        io::ErrorKind::AddrInUse => "; another program listens there",
        _ => "",
    };
    format!("can't listen at {at}: {error}{hint}; it is tried again every {} s", LISTEN_AGAIN.as_secs())
}

/// An address that can't be listened at may come later.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);
