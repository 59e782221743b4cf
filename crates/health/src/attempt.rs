//! One attempt of a check.
//!
//! In: the kind, the address, how to connect. Out: passed, or a [`Failure`].
//! Not here: when, how often, how long (the caller's: it wraps an attempt in its time-out).
//! Invariant: nothing is spawned, so a dropped attempt leaves no task and no descriptor.

use std::net::{IpAddr, SocketAddr};

use super::{Dialer, Failure, dns, grpc, http, memcached, ntp};
use config::CheckKind;

#[cfg(test)]
mod tests;

/// Asks once, and waits for the answer as long as it takes: the caller sets the limit, and [`Failure::NoAnswer`] is what
/// it says then. Dropping the future releases everything at once.
///
/// # Errors
/// Why the answer does not pass.
/// # Cost
/// At most 200 KiB, whatever the answer: a TCP check holds a descriptor and no buffer.
pub async fn attempt(kind: &CheckKind, address: IpAddr, dialer: &Dialer) -> Result<(), Failure> {
    match kind {
        CheckKind::Tcp(check) => {
            dialer.tcp(SocketAddr::new(address, check.port)).await.map(drop).map_err(|error| (&error).into())
        }
        // Boxed: their state would make every TCP check as large as the largest of them.
        CheckKind::Http(check) => Box::pin(http::attempt(check, address, dialer)).await,
        CheckKind::Grpc(check) => Box::pin(grpc::attempt(check, address, dialer)).await,
        CheckKind::Dns(check) => Box::pin(dns::attempt(check, address, dialer)).await,
        CheckKind::Memcached(check) => Box::pin(memcached::attempt(check, address, dialer)).await,
        CheckKind::Ntp(check) => Box::pin(ntp::attempt(check, address, dialer)).await,
    }
}
