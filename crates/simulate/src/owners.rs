//! Implements the three hashing methods that the Maglev paper compares. Each method fills a lookup
//! table that maps slots to backends.
//!
//! `maglev_hash` builds the Maglev table, and `kv_switch` builds the ketama ring. Ketama and
//! rendezvous hashing select the backend for a slot by hashing the slot number.
//!
//! References: Maglev §5.3 ("we populate one lookup table using each method"). Schindelhauer and
//! Schomaker, *Weighted distributed hash tables*, SPAA 2005, describe the logarithmic method for
//! weighted rendezvous hashing.

use kv_switch::{Ring, Server};
use maglev_hash::{Options, Seed};

use crate::random::{mix, unit};
use crate::scenario::{Backend, Version};

/// The method that selects the backend of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hashing {
    /// The Maglev table of the load balancer.
    Maglev,
    /// A ketama ring with about 160 points per backend.
    Ketama,
    /// Rendezvous hashing, which selects the backend with the highest score.
    Rendezvous,
}

impl Hashing {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::Maglev, Self::Ketama, Self::Rendezvous];

    /// Returns the name of the method for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Maglev => "maglev",
            Self::Ketama => "ketama",
            Self::Rendezvous => "rendezvous",
        }
    }
}

/// Returns the backend of each slot. The result is empty if no backend is in service.
///
/// # Errors
/// Returns a message if the table cannot be built.
///
/// # Cost
/// Maglev and ketama take milliseconds. Rendezvous hashing computes a score for each slot and
/// backend.
pub(crate) fn owners(hashing: Hashing, backends: &[Backend], version: &Version) -> Result<Vec<u16>, String> {
    let serving: Vec<Seat<'_>> = version
        .serving()
        .map(|(backend, weight)| Seat { name: &backends[usize::from(backend)].hash_name, weight, backend })
        .collect();
    if serving.is_empty() {
        return Ok(Vec::new());
    }
    match hashing {
        Hashing::Maglev => maglev(serving, version),
        Hashing::Ketama => ketama(&serving, version),
        Hashing::Rendezvous => Ok(rendezvous(&serving, version)),
    }
}

/// A serving backend.
struct Seat<'a> {
    name: &'a str,
    weight: u32,
    backend: u16,
}

fn maglev(mut serving: Vec<Seat<'_>>, version: &Version) -> Result<Vec<u16>, String> {
    serving.sort_by_key(|seat| seat.name); // Ranks are in alphabetical order of the backend names.
    let given: Vec<maglev_hash::Backend<'_>> = serving
        .iter()
        .map(|seat| maglev_hash::Backend { name: seat.name.as_bytes(), weight: seat.weight })
        .collect();
    let mut options = Options::new(Seed::new(version.key));
    options.size = version.table_size;
    options.allow_coarse = true; // The load balancer also builds its tables with this option.
    let table = maglev_hash::build(&given, &options).map_err(|error| error.to_string())?;
    Ok(table.iter().map(|rank| serving[rank.index_by_name()].backend).collect())
}

fn ketama(serving: &[Seat<'_>], version: &Version) -> Result<Vec<u16>, String> {
    let servers =
        serving.iter().map(|seat| Server { ring_name: seat.name, weight: seat.weight, is_ejected: false });
    let ring = Ring::build(&servers.collect::<Vec<_>>()).map_err(|error| error.to_string())?;
    let owner = |slot: u32| serving[usize::from(ring.lookup(mix(u64::from(slot) + 1) >> 32))].backend;
    Ok((0..version.table_size).map(owner).collect())
}

fn rendezvous(serving: &[Seat<'_>], version: &Version) -> Vec<u16> {
    let salt = version.salt();
    let hash = |seat: &Seat<'_>| seat.name.bytes().fold(salt, |hash, byte| mix(hash ^ u64::from(byte)));
    let seats: Vec<(u64, f64, u16)> =
        serving.iter().map(|seat| (hash(seat), f64::from(seat.weight), seat.backend)).collect();
    // If all weights are the same, the logarithm does not change the order of the scores. In this
    // case, the slow computation of the logarithm is skipped.
    let is_even = serving.windows(2).all(|pair| pair[0].weight == pair[1].weight);
    let owner = |slot: u32| {
        let slot = mix(u64::from(slot) + 1);
        let score = |hash: u64, weight: f64| {
            let fraction = unit(mix(hash ^ slot));
            if is_even { fraction } else { -weight / fraction.ln() }
        };
        let (mut most, mut owner) = (f64::MIN, 0);
        for &(hash, weight, backend) in &seats {
            let score = score(hash, weight);
            if score > most {
                (most, owner) = (score, backend);
            }
        }
        owner
    };
    (0..version.table_size).map(owner).collect()
}
