//! Memcached on backends of the bed.
//!
//! In: a bed, a backend. Out: a server that answers: at the VIPs, as a backend that answers clients directly must, and at its own address.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{Asker, Bed, Host, Process, eventually};

/// The port that it serves, over UDP and TCP.
pub const MEMCACHED_PORT: u16 = 11_211;

/// Starts one, with further arguments, and waits until it answers over UDP.
///
/// # Errors
/// There is none on this machine, or it does not answer: what it said is in the message.
pub fn start_memcached(bed: &Bed, host: &Host, more: &[&str]) -> Result<Process> {
    start_memcached_at(host, bed.spec.vips.iter().copied().chain([host.v4.into()]), more)
}

/// Starts one that listens at these addresses; the last of them is asked whether it is there.
///
/// # Errors
/// As [`start_memcached`].
pub fn start_memcached_at(
    host: &Host,
    at: impl IntoIterator<Item = IpAddr>,
    more: &[&str],
) -> Result<Process> {
    let at: Vec<_> = at.into_iter().map(|address| SocketAddr::new(address, MEMCACHED_PORT)).collect();
    let listen = at.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
    let own = *at.last().context("no address to listen at")?;
    // As root it stays who it is: a change of user would clear the signal that ends it with its test.
    let args = [&["-u", "root", "-l", &listen, "-U", "11211", "-t", "1", "-m", "64"], more].concat();
    let server = Process::start(&host.ns, &format!("memcached on {}", host.name), "memcached", &args)?;
    let asker = Asker::new(&host.ns, own);
    let answers = || {
        let said = asker.ask_within(b"version\r\n", LOOK)?;
        said.starts_with(b"VERSION ").then_some(())
    };
    if eventually(BOUND, answers).is_none() {
        bail!("memcached on {} does not answer:\n{}", host.name, server.tail());
    }
    Ok(server)
}

const LOOK: Duration = Duration::from_millis(300);
const BOUND: Duration = Duration::from_secs(20);
