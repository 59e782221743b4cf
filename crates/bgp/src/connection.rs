//! A TCP connection with its BGP session.
//!
//! The module moves bytes between the socket and the session, and runs the session's timers. When
//! the module closes a connection, it makes sure that the last message is not lost.
//!
//! One iteration reads at most one buffer of data, so that a peer that sends continuously does not
//! block the other work of its task.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::PeerConfig;
use crate::message::Identity;
use crate::route::Routes;
use crate::session::{Session, Stop};
use crate::socket;
use crate::status::State;

#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    pub(crate) local_address: IpAddr,
    pub(crate) session: Session,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(
        stream: TcpStream,
        local: Identity,
        config: Arc<PeerConfig>,
        want: Arc<Routes>,
    ) -> io::Result<Self> {
        if let Some(hops) = config.gtsm_hops {
            socket::set_furthest(&stream, config.address.is_ipv6(), Some(hops))?;
        }
        let local_address = stream.local_addr()?.ip();
        let session = Session::new(local, config, local_address, want, now());
        Ok(Self { stream, local_address, session, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Returns `true` if the peer has acknowledged all announcements and withdrawals. Also returns
    /// `true` if no session is established, because the peer then has no routes from this speaker.
    pub(crate) fn is_flushed(&self) -> bool {
        self.session.state() != State::Established
            || (self.session.has_said_all() && socket::has_all(&self.stream).unwrap_or(false))
    }

    /// Returns the number of segments that TCP has retransmitted on this connection.
    pub(crate) fn repeated_segments(&self) -> u32 {
        socket::repeated_segments(&self.stream).unwrap_or(0)
    }

    pub(crate) fn was_heard(&self) -> bool {
        self.session.counts().messages_received > 0
    }

    /// Applies a new configuration that does not need a new session.
    pub(crate) fn reconfigure(&mut self, config: &Arc<PeerConfig>) {
        let before = &self.session.config;
        let mut set = Ok(());
        if before.md5 != config.md5 {
            set = socket::set_md5(&self.stream, config.address, config.md5.as_ref());
        }
        if before.gtsm_hops != config.gtsm_hops {
            let is_v6 = config.address.is_ipv6();
            set = set.and_then(|()| socket::set_furthest(&self.stream, is_v6, config.gtsm_hops));
        }
        self.session.reconfigure(Arc::clone(config));
        if let Err(error) = set {
            self.session.lost(&format!("cannot set the new MD5 key or hop limit ({error})"), now());
        }
    }

    /// Waits until the socket is ready or a timer expires, and passes the event to the session.
    /// This future is cancel-safe.
    pub(crate) async fn turn(&mut self) {
        let has_output = !self.session.output(now()).is_empty();
        let deadline = self.session.deadline().map(Instant::from_std);
        tokio::select! {
            ready = self.stream.readable() => self.read(ready),
            ready = self.stream.writable(), if has_output => self.write(ready),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                self.session.tick(now());
            }
        }
    }

    pub(crate) fn stop(&mut self, stop: &Stop) {
        self.session.stop(stop, now());
    }

    /// Closes the connection with a TCP reset. Unsent data in the kernel is discarded.
    pub(crate) fn reset(self) {
        reset(&self.stream);
    }

    /// Writes the remaining output, then waits for the peer to close the connection. If this side
    /// closed the connection first, a TCP reset from the kernel could reach the peer before the
    /// last message.
    pub(crate) async fn close(mut self) {
        let rest = self.session.output(now()).to_vec();
        take_leave(self.stream, rest).await;
    }

    fn read(&mut self, ready: io::Result<()>) {
        match ready.and_then(|()| self.stream.try_read(&mut self.buffer)) {
            Ok(0) => self.session.lost("closed by the peer", now()),
            Ok(count) => self.session.received(self.buffer.get(..count).unwrap_or_default(), now()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => self.session.lost(&error.to_string(), now()),
        }
    }

    fn write(&mut self, ready: io::Result<()>) {
        match ready.and_then(|()| self.stream.try_write(self.session.output(now()))) {
            Ok(count) => self.session.written(count, now()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => self.session.lost(&error.to_string(), now()),
        }
    }
}

/// Writes the last message and waits for the peer to close the connection. After 2 s, the
/// connection is reset, because a peer that has stopped reading would otherwise not notice the end
/// of the session and would keep the routes from this speaker.
pub(crate) async fn take_leave(mut stream: TcpStream, message: Vec<u8>) {
    if timeout(LINGER, linger(&mut stream, &message)).await.is_err() {
        reset(&stream);
    }
}

fn reset(stream: &TcpStream) {
    if let Err(error) = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(%error, "BGP connection reset failed");
    }
}

async fn linger(stream: &mut TcpStream, rest: &[u8]) -> io::Result<()> {
    stream.write_all(rest).await?;
    stream.shutdown().await?;
    let mut left = [0; 4096];
    while stream.read(&mut left).await? > 0 {}
    Ok(())
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

const BUFFER_BYTES: usize = 16 << 10;
const LINGER: Duration = Duration::from_secs(2);
