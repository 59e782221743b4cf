//! Hands BFD sessions from one process to another without a state change at the peers.
//!
//! The old process encodes its sessions with this module, and the new process decodes and checks
//! them. The open sockets are passed to the new process. As a result, source ports do not change,
//! and packets that arrive during the handover wait in the kernel.
//!
//! The decoder ensures that names, peers and discriminator slots are unique, and that each session
//! has a socket.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use super::bytes::Reader;
use super::session::{SLOT, Session};
use super::{BfdConfig, BfdError};

/// The sessions released by [`Bfd::let_go`](super::Bfd::let_go).
#[derive(Debug)]
pub struct HandedBfd {
    pub(crate) sessions: Vec<Handed>,
    /// `true` for each address family that has a receive socket. Index 0 is IPv6, and index 1 is
    /// IPv4.
    pub(crate) hears: [bool; 2],
    /// The receive sockets, followed by the send socket of each session.
    pub(crate) sockets: Vec<OwnedFd>,
}

#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) config: BfdConfig,
    pub(crate) session: Session,
    pub(crate) since: SystemTime,
    pub(crate) losses: u64,
}

impl HandedBfd {
    /// Encodes the sessions, so that another process can decode them with [`Self::from_parts`].
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, u8::from(self.hears[0]), u8::from(self.hears[1])];
        self.sessions.iter().for_each(|one| one.write(&mut bytes));
        bytes
    }

    /// Returns the sockets that the other process needs, in the order that [`Self::from_parts`]
    /// expects.
    #[must_use]
    pub fn sockets(&self) -> &[OwnedFd] {
        &self.sockets
    }

    /// Returns the configurations of the sessions.
    pub fn configs(&self) -> impl Iterator<Item = &BfdConfig> {
        self.sessions.iter().map(|one| &one.config)
    }

    /// Returns how long this side may stop sending during the handover before a peer considers it
    /// down. See [`Bfd::least_spare`](super::Bfd::least_spare). Returns `None` if no session is up.
    #[must_use]
    pub fn least_spare(&self) -> Option<Duration> {
        self.sessions.iter().filter_map(|one| one.session.spare()).min()
    }

    /// Decodes sessions that another process encoded. [`Bfd::take_over`](super::Bfd::take_over)
    /// later checks that each socket belongs to its session.
    ///
    /// # Errors
    /// Returns an error if the bytes were not encoded by this version of [`Self::to_bytes`], or if
    /// the number of sockets is wrong.
    pub fn from_parts(bytes: &[u8], sockets: Vec<OwnedFd>) -> Result<Self, BfdError> {
        let (hears, sessions) = decoded(bytes).map_err(BfdError::Handed)?;
        let ears = hears.iter().filter(|hears| **hears).count();
        if sockets.len() != ears + sessions.len() {
            return Err(BfdError::Handed(
                "the number of sockets does not match the number of sessions and address families",
            ));
        }
        Ok(Self { sessions, hears, sockets })
    }
}

/// Decodes the sessions without their sockets.
pub(crate) fn decoded(bytes: &[u8]) -> Result<([bool; 2], Vec<Handed>), &'static str> {
    let (mut from, now) = (Reader::new(bytes), Instant::now());
    if from.byte() != Some(VERSION) {
        return Err("the handover data has an unknown version");
    }
    let hears = from.flag().zip(from.flag()).map(<[bool; 2]>::from).ok_or(CUT)?;
    let mut sessions: Vec<Handed> = Vec::new();
    let mut known = Known::default();
    while !from.is_empty() {
        let one = Handed::read(&mut from, now).ok_or(CUT)?;
        one.config.check().map_err(|_| "a field of a session is out of range")?;
        if !hears[usize::from(one.config.peer.is_ipv4())] {
            return Err("the address family of a session has no receive socket");
        }
        if !known.is_new(&one) {
            return Err("two sessions have the same name, peer or slot");
        }
        sessions.push(one);
    }
    Ok((hears, sessions))
}

/// The values of the sessions decoded so far. Each value must be unique.
#[derive(Default)]
struct Known {
    names: std::collections::HashSet<String>,
    peers: std::collections::HashSet<(IpAddr, u32)>,
    places: std::collections::HashSet<u32>,
}

impl Known {
    fn is_new(&mut self, one: &Handed) -> bool {
        self.names.insert(one.config.name.clone())
            && self.peers.insert((one.config.peer, one.config.scope))
            && self.places.insert(one.session.discriminator & SLOT)
    }
}

impl Handed {
    fn write(&self, to: &mut Vec<u8>) {
        let Self { config, session, since, losses } = self;
        // The length field is two bytes long, so a longer name is truncated. Real names are much
        // shorter.
        let length = config.name.floor_char_boundary(config.name.len().min(LONGEST_NAME));
        to.extend(u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
        to.extend(config.name.bytes().take(length));
        write_address(Some(config.peer), to);
        write_address(config.local, to);
        to.extend(config.scope.to_be_bytes());
        to.extend(config.interval_us().to_be_bytes());
        to.push(config.multiplier);
        let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        to.extend(u64::try_from(since.as_micros()).unwrap_or(0).to_be_bytes());
        to.extend(losses.to_be_bytes());
        session.write(to);
    }

    fn read(from: &mut Reader<'_>, now: Instant) -> Option<Self> {
        let length = u16::from_be_bytes(from.array()?);
        let name = std::str::from_utf8(from.take(length.into())?).ok()?.to_owned();
        let (peer, local, scope) = (from.address()??, from.address()?, from.word()?);
        let (interval, multiplier) = (from.word()?, from.byte()?);
        let config = BfdConfig {
            name,
            peer,
            scope,
            local,
            interval: Duration::from_micros(interval.into()),
            multiplier,
        };
        let since = Duration::from_micros(from.long()?);
        let since = SystemTime::UNIX_EPOCH.checked_add(since)?;
        let losses = from.long()?;
        Some(Self { session: Session::read(from, interval, multiplier, now)?, config, since, losses })
    }
}

fn write_address(address: Option<IpAddr>, to: &mut Vec<u8>) {
    match address {
        None => to.push(0),
        Some(IpAddr::V4(v4)) => to.extend([4].into_iter().chain(v4.octets())),
        Some(IpAddr::V6(v6)) => to.extend([6].into_iter().chain(v6.octets())),
    }
}

const VERSION: u8 = 1;
const LONGEST_NAME: usize = u16::MAX as usize;
const CUT: &str = "the handover data is truncated or invalid";

#[cfg(test)]
mod tests;
