//! The ketama ring, which maps keys to servers exactly as libmemcached and nutcracker do.
//!
//! A [`Ring`] is built from the names and weights of the servers in the clients' configuration. A
//! lookup takes the 32-bit hash of a key and returns the index of a server. Rings with the same
//! names, weights, order and ejected servers are identical. The share of each server is computed
//! with single precision, as in libmemcached and nutcracker.
//!
//! References: libmemcached 1.1 `hosts.cc` (`update_continuum`, KETAMA_WEIGHTED) and `hash.cc`;
//! nutcracker 0.5 `nc_ketama.c`.

use std::iter;

use thiserror::Error;

use crate::key_hash::md5_points;

/// A server on a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server<'a> {
    /// The name of the server on the ring. By default this is [`ring_name`], but the clients'
    /// configuration can set a different name.
    pub ring_name: &'a str,
    /// The weight of the server, which must be at least 1. The share of a server is its weight
    /// divided by the sum of all weights.
    pub weight: u32,
    /// `true` if the server is left out of the ring. Clients leave out a server that does not
    /// respond.
    pub is_ejected: bool,
}

/// The reason why a ring cannot be built.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// The list of servers is empty, or all servers are ejected.
    #[error("the ring has no servers, or all of them are ejected")]
    NoServers,
    /// A server has weight 0. Nutcracker refuses this weight, and libmemcached treats it as 1.
    #[error("server {index} has weight 0, but the weight must be at least 1")]
    NoWeight {
        /// The index of the server.
        index: usize,
    },
    /// There are more than 65,535 servers.
    #[error("the ring has {count} servers, but the maximum is 65535")]
    TooManyServers {
        /// The number of servers in the list.
        count: usize,
    },
}

/// The result of [`Ring::choose`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The index of the server.
    pub server: u16,
    /// The index of the point on the ring, which is less than [`Ring::len`].
    pub point: u32,
}

/// A ketama ring, which is a list of points on a 32-bit circle. Each point belongs to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    points: Box<[u32]>,
    owners: Box<[u16]>,
}

impl Ring {
    /// Builds the ring. Lookups identify a server by its index in `servers`. If two servers have
    /// the same point, the order of `servers` decides which point comes first.
    ///
    /// # Errors
    /// Returns a [`RingError`] if there are no usable servers or too many servers, or if a weight
    /// is 0.
    /// # Cost
    /// One MD5 digest for every four points, and one sort. A server has about 160 points, and a
    /// point takes 6 bytes.
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

    /// Returns the server of a key, as an index into the slice that was passed to [`Ring::build`].
    /// This is the server with the first point at or after the 32-bit hash of the key. If the hash
    /// is longer, as with [`KeyHash::sip`](crate::KeyHash::sip), the lower 32 bits are used.
    ///
    /// # Cost
    /// One binary search, which takes 14 steps for 100 servers.
    #[inline]
    #[must_use]
    pub fn lookup(&self, hash: u64) -> u16 {
        self.choose(hash, |_| true).map_or(0, |chosen| chosen.server) // a ring always has points
    }

    /// Returns the server with the first point at or after the hash for which `usable` returns
    /// `true`, or `None` if no server is usable. Clients that have ejected the unusable servers
    /// usually choose the same server if all weights are equal. To match the clients exactly,
    /// [build](Self::build) a ring with ejected servers.
    ///
    /// # Cost
    /// The cost of [`Self::lookup`] plus one step for each skipped point. On average, 1.5 steps are
    /// needed if a third of the servers are down. If all servers are down, every point is visited.
    #[inline]
    pub fn choose(&self, hash: u64, mut usable: impl FnMut(u16) -> bool) -> Option<Choice> {
        #[expect(clippy::cast_possible_truncation, reason = "the circle has 2^32 places")]
        let hash = hash as u32;
        let at = self.points.partition_point(|&point| point < hash);
        let (before, from) = self.owners.split_at_checked(at)?;
        let points = (at..).zip(from).chain(before.iter().enumerate());
        let (point, &server) = points.into_iter().find(|&(_, &owner)| usable(owner))?;
        Some(Choice { server, point: u32::try_from(point).unwrap_or(u32::MAX) })
    }

    /// Returns all points in ascending order, each with the index of its server.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u16)> {
        self.points.iter().copied().zip(self.owners.iter().copied())
    }

    /// Returns the number of points.
    #[must_use]
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Returns `false`, because a ring always has points.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }
}

/// Returns the number of MD5 digests that are computed for a server. Each digest yields four
/// points. The number is floor(share x 40 x servers), computed with single precision and with the
/// same order of operations as in libmemcached and nutcracker. For some numbers of servers with
/// equal weights, rounding gives 39 instead of 40.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 40 times 65,535 fits u32")]
#[allow(clippy::cast_precision_loss, reason = "both libraries use single precision")]
fn rounds(weight: u32, total: u64, servers: u16) -> u32 {
    let share = weight as f32 / total as f32;
    (share * 160.0 / 4.0 * f32::from(servers)).floor() as u32
}

/// Returns the default name of a server on the ring. The default name consists of the host and the
/// port, or only of the host if the port is 11211.
#[must_use]
pub fn ring_name(host: &str, port: u16) -> String {
    if port == 11_211 { host.to_owned() } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests;
