//! Runs one attempt of a check.
//!
//! The caller schedules attempts and wraps each one in a timeout.
//!
//! Invariant: an attempt spawns no task, so dropping an attempt leaves no task and no file
//! descriptor.

use std::net::{IpAddr, SocketAddr};

use super::{Dialer, Failure, Interim, Pass, agent, dns, exchange, exec, grpc, http, memcached, ntp};
use config::CheckKind;

#[cfg(test)]
mod tests;

/// Sends one probe and waits for the response without a time limit. The caller sets a time limit
/// and uses [`Interim::expired`] when the limit expires. Dropping the future releases all
/// resources.
///
/// # Errors
/// Returns the reason why the check did not pass.
///
/// # Cost
/// An attempt needs at most 200 KiB of memory, regardless of the response. A TCP check needs one
/// file descriptor and no buffer.
pub async fn attempt(
    kind: &CheckKind,
    address: IpAddr,
    dialer: &Dialer,
    interim: &Interim,
) -> Result<Pass, Failure> {
    match kind {
        CheckKind::Tcp(check) => match &check.expect {
            Some(expect) => {
                return Box::pin(exchange::over_tcp(check, expect, address, dialer, interim)).await;
            }
            None => {
                let peer = SocketAddr::new(address, check.port);
                dialer.tcp(peer).await.map(drop).map_err(|error| (&error).into())
            }
        },
        CheckKind::Udp(check) => {
            return Box::pin(exchange::over_udp(check, address, dialer, interim)).await;
        }
        // The futures of the other protocols are boxed. Otherwise, the future of each TCP check
        // would be as large as the largest of these futures.
        CheckKind::Agent(check) => return Box::pin(agent::attempt(check, address, dialer)).await,
        CheckKind::Http(check) => Box::pin(http::attempt(check, address, dialer, interim)).await,
        CheckKind::Grpc(check) => Box::pin(grpc::attempt(check, address, dialer, interim)).await,
        CheckKind::Dns(check) => Box::pin(dns::attempt(check, address, dialer, interim)).await,
        CheckKind::Memcached(check) => Box::pin(memcached::attempt(check, address, dialer, interim)).await,
        CheckKind::Ntp(check) => Box::pin(ntp::attempt(check, address, dialer)).await,
        CheckKind::Exec(check) => Box::pin(exec::attempt(check, &exec::Subject::of(address), interim)).await,
    }
    .map(|()| Pass::Answered)
}
