//! Starts memcached on backends of the testbed. By default the server listens on the VIPs, so that
//! it can reply directly to clients, and on the backend's own address.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{Bed, Host, Process, QueryClient, eventually};

/// The UDP and TCP port of memcached.
pub const MEMCACHED_PORT: u16 = 11_211;

/// Starts a memcached server with the additional arguments `more`, and waits until it responds over
/// UDP.
///
/// # Errors
/// Returns an error if memcached is not installed or does not respond. The message contains the
/// output of the server.
pub fn start_memcached(bed: &Bed, host: &Host, more: &[&str]) -> Result<Process> {
    start_memcached_at(host, bed.spec.vips.iter().copied().chain([host.v4.into()]), more)
}

/// Starts a memcached server that listens on the addresses `at`, and waits until it responds on the
/// last address.
///
/// # Errors
/// Fails in the same cases as [`start_memcached`].
pub fn start_memcached_at(
    host: &Host,
    at: impl IntoIterator<Item = IpAddr>,
    more: &[&str],
) -> Result<Process> {
    start_memcached_at_port(host, MEMCACHED_PORT, at, more)
}

/// Starts a memcached server like [`start_memcached_at`], which listens on `port`.
///
/// # Errors
/// Fails in the same cases as [`start_memcached`].
pub fn start_memcached_at_port(
    host: &Host,
    port: u16,
    at: impl IntoIterator<Item = IpAddr>,
    more: &[&str],
) -> Result<Process> {
    let at: Vec<_> = at.into_iter().map(|address| SocketAddr::new(address, port)).collect();
    let port = port.to_string();
    let listen = at.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
    let own = *at.last().context("no listen address given")?;
    // The server keeps running as root, because a change of user would clear the parent-death
    // signal.
    let args = [&["-u", "root", "-l", &listen, "-U", &port, "-t", "1", "-m", "64"], more].concat();
    let server = Process::start(&host.ns, &format!("memcached on {}", host.name), "memcached", &args)?;
    let client = QueryClient::new(&host.ns, own);
    let answers = || {
        let said = client.ask_within(b"version\r\n", LOOK)?;
        said.starts_with(b"VERSION ").then_some(())
    };
    if eventually(BOUND, answers).is_none() {
        bail!("memcached on {} does not respond:\n{}", host.name, server.tail());
    }
    Ok(server)
}

const LOOK: Duration = Duration::from_millis(300);
const BOUND: Duration = Duration::from_secs(20);
