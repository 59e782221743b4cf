//! Implements a client over TCP. The client uses one connection and keeps many requests
//! outstanding, which the server answers in order.
//!
//! The client sends all queued requests with one write.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::keyed::clients::Client;
use crate::keyed::ledger::Asked;
use crate::keyed::protocol::{Answer, parse, write_set};

/// A connection with its outstanding requests.
pub(crate) struct Tcp {
    stream: TcpStream,
    window: usize,
    asked: VecDeque<Asked>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl Tcp {
    /// Connects to the server from the namespace of the calling thread. At most `window` requests
    /// are outstanding.
    pub(crate) fn new(server: SocketAddr, window: usize) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&server, PATIENCE)
            .with_context(|| format!("cannot connect to {server}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, window, asked: VecDeque::new(), outgoing: Vec::new(), incoming: Vec::new() })
    }
}

impl Client for Tcp {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn room(&self) -> usize {
        self.window - self.asked.len()
    }

    fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    fn ask(&mut self, asked: Asked, command: &[u8]) {
        self.outgoing.extend_from_slice(command);
        self.asked.push_back(asked);
    }

    /// Bytes that do not fit into the send buffer are sent by the next flush.
    fn flush(&mut self) -> Result<()> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(written) => drop(self.outgoing.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot write to the proxy"),
            }
        }
        Ok(())
    }

    fn take(&mut self, each: &mut dyn FnMut(Asked, Answer<'_>)) -> Result<()> {
        let mut room = [0; READ_BYTES];
        match self.stream.read(&mut room) {
            Ok(0) => bail!("the proxy closed a connection"),
            Ok(bytes) => self.incoming.extend_from_slice(&room[..bytes]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error).context("cannot read from the proxy"),
        }
        let mut rest = &self.incoming[..];
        while let Some((answer, used)) = parse(rest) {
            let asked = self.asked.pop_front().context("received a response without a request")?;
            each(asked, answer);
            rest = &rest[used..];
        }
        let used = self.incoming.len() - rest.len();
        self.incoming.drain(..used);
        Ok(())
    }

    /// TCP does not lose requests, so a missing response is an error.
    fn give_up(&mut self, before: Instant, _each: &mut dyn FnMut(Asked)) -> Result<()> {
        match self.asked.front() {
            Some(asked) if asked.sent < before => bail!("the proxy does not respond"),
            _ => Ok(()),
        }
    }
}

/// Stores the given version of all values on one server.
pub(crate) fn fill(server: SocketAddr, keys: u32, version: u32, value_bytes: usize) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)
        .with_context(|| format!("cannot connect to {server}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut commands, mut said) = (Vec::new(), Vec::new());
    for first in (0..keys).step_by(FILL_AT_ONCE) {
        let some = first..keys.min(first + FILL_STEP);
        let expected = STORED.repeat(some.len());
        commands.clear();
        some.for_each(|key| write_set(key, version, value_bytes, &mut commands));
        stream.write_all(&commands)?;
        said.resize(expected.len(), 0);
        stream.read_exact(&mut said).with_context(|| format!("{server} does not respond"))?;
        if said != expected {
            bail!("{server} did not store a value: {}", said.escape_ascii());
        }
    }
    Ok(())
}

const STORED: &[u8] = b"STORED\r\n";
const FILL_STEP: u32 = 200;
const FILL_AT_ONCE: usize = FILL_STEP as usize;
const READ_BYTES: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(10);
