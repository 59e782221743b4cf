//! Ketama's ring: where libmemcached and nutcracker put a key.
//!
//! In: servers by the names that *their* files give them, with weights, and a key's 32-bit hash. Out: a server's index.
//! Not here: the hash (`key_hash`), who is alive.
//! Invariant: a ring depends on names, weights, order and who is ejected alone, bit for bit, and single precision is part of it.
//! Source: libmemcached 1.1 `hosts.cc` (`update_continuum`, KETAMA_WEIGHTED) and `hash.cc`; nutcracker 0.5 `nc_ketama.c`.

use std::iter;

use thiserror::Error;

use crate::key_hash::md5_points;

/// A server of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server<'a> {
    /// Its name: [`ring_name`], or what a client's file calls it.
    pub ring_name: &'a str,
    /// Its share relative to the others', at least 1.
    pub weight: u32,
    /// Left out, as clients leave out a server that does not answer: the ring is that of the others.
    pub is_ejected: bool,
}

/// Why servers give no ring.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// No server, or all ejected.
    #[error("no server is left")]
    NoServers,
    /// A weight of 0, which nutcracker refuses and libmemcached takes for 1.
    #[error("server {index} has weight 0, allowed from 1")]
    NoWeight {
        /// Its index.
        index: usize,
    },
    /// More servers than `u16` counts.
    #[error("found {count} servers, allowed up to 65535")]
    TooManyServers {
        /// How many.
        count: usize,
    },
}

/// A server that a ring chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// Its index.
    pub server: u16,
    /// The index of the point that named it, below [`Ring::len`].
    pub point: u32,
}

/// Points on a circle of 32 bits, and whose each is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    points: Box<[u32]>,
    owners: Box<[u16]>,
}

impl Ring {
    /// Builds the ring. The order of servers decides where two points are equal, and gives the indices of answers.
    ///
    /// # Errors
    /// [`RingError`], before anything is allocated.
    /// # Cost
    /// An MD5 for four points, of which a server has about 160, and a sort; 6 bytes a point.
    pub fn build(servers: &[Server<'_>]) -> Result<Self, RingError> {
        let live = || (0_u16..).zip(servers).filter(|(_, server)| !server.is_ejected);
        if u16::try_from(servers.len()).is_err() {
            return Err(RingError::TooManyServers { count: servers.len() });
        }
        if let Some(index) = servers.iter().position(|server| server.weight == 0) {
            return Err(RingError::NoWeight { index });
        }
        let (count, total) = live()
            .fold((0_u16, 0_u64), |(count, total), (_, one)| (count + 1, total + u64::from(one.weight)));
        if count == 0 {
            return Err(RingError::NoServers);
        }
        let mut points: Vec<(u32, u16)> = live()
            .flat_map(|(index, server)| {
                let rounds = rounds(server.weight, total, count);
                let digests =
                    (0..rounds).map(move |k| md5_points(format!("{}-{k}", server.ring_name).as_bytes()));
                digests.flatten().zip(iter::repeat(index))
            })
            .collect();
        points.sort_unstable();
        let (points, owners): (Vec<u32>, Vec<u16>) = points.into_iter().unzip();
        Ok(Self { points: points.into(), owners: owners.into() })
    }

    /// The server of a key: the owner of the first point at or behind its 32-bit hash.
    ///
    /// # Cost
    /// A binary search: 14 steps for 100 servers.
    #[inline]
    #[must_use]
    pub fn lookup(&self, hash: u64) -> u16 {
        self.choose(hash, |_| true).map_or(0, |chosen| chosen.server) // a ring has points
    }

    /// The first server behind the hash that is `usable`, or `None` if none is. While weights are equal this is where clients go
    /// once they have ejected the others, but for servers whose number makes 1/n round down; who wants exactly their ring
    /// [builds](Self::build) it.
    ///
    /// # Cost
    /// As [`Self::lookup`], and a step for each point of servers that are not usable: one and a half where a third of them are
    /// down, all points where all are.
    #[inline]
    pub fn choose(&self, hash: u64, mut usable: impl FnMut(u16) -> bool) -> Option<Choice> {
        let at = self.points.partition_point(|&point| u64::from(point) < hash);
        let (before, from) = self.owners.split_at_checked(at)?;
        let points = (at..).zip(from).chain(before.iter().enumerate());
        let (point, &server) = points.into_iter().find(|&(_, &owner)| usable(owner))?;
        Some(Choice { server, point: u32::try_from(point).unwrap_or(u32::MAX) })
    }

    /// All points in their order, each with its server.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u16)> {
        self.points.iter().copied().zip(self.owners.iter().copied())
    }

    /// Number of points.
    #[must_use]
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Never: a ring has points.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }
}

/// Digests of a server, four points each: floor(share x 40 x servers), in single precision and in the order in which both libraries
/// write it. 1/n of n servers is 39 for some n.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 40 times 65,535")]
#[allow(clippy::cast_precision_loss, reason = "as in the libraries")]
fn rounds(weight: u32, total: u64, servers: u16) -> u32 {
    let share = weight as f32 / total as f32;
    (share * 160.0 / 4.0 * f32::from(servers)).floor() as u32
}

/// A server's name where its file gives it none: without the port when that is 11211.
///
/// ```
/// assert_eq!(kv_switch::ring_name("192.0.2.1", 11_211), "192.0.2.1");
/// assert_eq!(kv_switch::ring_name("192.0.2.1", 11_212), "192.0.2.1:11212");
/// ```
#[must_use]
pub fn ring_name(host: &str, port: u16) -> String {
    if port == 11_211 { host.to_owned() } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests;
