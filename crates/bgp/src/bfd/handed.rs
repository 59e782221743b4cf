//! Sessions between two processes: one lets them go, another takes them up, and their peers notice nothing.
//!
//! In: sessions that no thread has any more, or bytes and sockets of another process. Out: the same, checked.
//! The sockets go over themselves: so source ports stay, what comes meanwhile waits in the kernel, and no port is ever free.
//! Invariant: names, peers and places of discriminators are unique, and each session has its socket.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use super::bytes::Reader;
use super::session::{SLOT, Session};
use super::{BfdConfig, BfdError};

/// Sessions that [`Bfd::let_go`](super::Bfd::let_go) gave.
#[derive(Debug)]
pub struct HandedBfd {
    pub(crate) sessions: Vec<Handed>,
    /// Whether there is a socket that hears IPv6, IPv4.
    pub(crate) hears: [bool; 2],
    /// Those that hear, then one of each session.
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
    /// What another process has to know, for [`Self::from_parts`] there.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, u8::from(self.hears[0]), u8::from(self.hears[1])];
        self.sessions.iter().for_each(|one| one.write(&mut bytes));
        bytes
    }

    /// What that process needs beside the bytes, in this order.
    #[must_use]
    pub fn sockets(&self) -> &[OwnedFd] {
        &self.sockets
    }

    /// The sessions' configurations.
    pub fn configs(&self) -> impl Iterator<Item = &BfdConfig> {
        self.sessions.iter().map(|one| &one.config)
    }

    /// For how long nobody may have them, as [`Bfd::least_spare`](super::Bfd::least_spare); `None`: no session is up.
    #[must_use]
    pub fn least_spare(&self) -> Option<Duration> {
        self.sessions.iter().filter_map(|one| one.session.spare()).min()
    }

    /// Reads what another process has written. Whose the sockets are is seen when the sessions are taken over.
    ///
    /// # Errors
    /// The bytes are not of [`Self::to_bytes`] of this version, or there are more or fewer sockets than they say.
    pub fn from_parts(bytes: &[u8], sockets: Vec<OwnedFd>) -> Result<Self, BfdError> {
        let (hears, sessions) = decoded(bytes).map_err(BfdError::Handed)?;
        let ears = hears.iter().filter(|hears| **hears).count();
        if sockets.len() != ears + sessions.len() {
            return Err(BfdError::Handed("as many sockets are wanted as there are sessions and families"));
        }
        Ok(Self { sessions, hears, sockets })
    }
}

/// The part that needs no socket.
pub(crate) fn decoded(bytes: &[u8]) -> Result<([bool; 2], Vec<Handed>), &'static str> {
    let (mut from, now) = (Reader::new(bytes), Instant::now());
    if from.byte() != Some(VERSION) {
        return Err("written in another way than this version reads");
    }
    let hears = from.flag().zip(from.flag()).map(<[bool; 2]>::from).ok_or(CUT)?;
    let mut sessions: Vec<Handed> = Vec::new();
    let mut known = Known::default();
    while !from.is_empty() {
        let one = Handed::read(&mut from, now).ok_or(CUT)?;
        one.config.check().map_err(|_| "a session's field is out of range")?;
        if !hears[usize::from(one.config.peer.is_ipv4())] {
            return Err("nobody hears a session's family");
        }
        if !known.is_new(&one) {
            return Err("two sessions have the same name, peer or place");
        }
        sessions.push(one);
    }
    Ok((hears, sessions))
}

/// What no two sessions share.
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
        // Longer names are cut: nobody has them.
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

/// Of the bytes.
const VERSION: u8 = 1;
const LONGEST_NAME: usize = u16::MAX as usize;
const CUT: &str = "bytes that are no session";

#[cfg(test)]
mod tests;
