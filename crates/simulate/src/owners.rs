//! The three ways of hashing, each as a table from slot to backend, as the paper compares them.
//!
//! In: backends with weights, a key, a size. Out: the owner of each slot. Maglev's table is the product's, and ketama's ring is
//! `kv_switch`'s; a slot asks the ring, and rendezvous, by a hash of its number.
//! Source: Maglev §5.3 ("we populate one lookup table using each method"); weights of rendezvous: Schindelhauer and
//! Schomaker, *Weighted distributed hash tables*, SPAA 2005 (the logarithmic method).

use kv_switch::{Ring, Server};
use maglev_hash::{Options, Seed};

use crate::random::{mix, unit};
use crate::scenario::{Backend, Version};

/// How a flow's backend is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hashing {
    /// Maglev's table, as packet threads have it.
    Maglev,
    /// Ketama's ring of about 160 points a backend.
    Ketama,
    /// Rendezvous: the highest weight wins.
    Rendezvous,
}

impl Hashing {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Maglev, Self::Ketama, Self::Rendezvous];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Maglev => "maglev",
            Self::Ketama => "ketama",
            Self::Rendezvous => "rendezvous",
        }
    }
}

/// The backend of each slot; no slots: nobody serves.
///
/// # Errors
/// In words, what does not give a table.
/// # Cost
/// Maglev's and ketama's: milliseconds. Rendezvous: slots times backends.
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

/// A backend that serves.
struct Seat<'a> {
    name: &'a str,
    weight: u32,
    backend: u16,
}

fn maglev(mut serving: Vec<Seat<'_>>, version: &Version) -> Result<Vec<u16>, String> {
    serving.sort_by_key(|seat| seat.name); // ranks are in the order of names
    let given: Vec<maglev_hash::Backend<'_>> = serving
        .iter()
        .map(|seat| maglev_hash::Backend { name: seat.name.as_bytes(), weight: seat.weight })
        .collect();
    let mut options = Options::new(Seed::new(version.key));
    options.size = version.table_size;
    options.allow_coarse = true; // as `run` builds them
    let table = maglev_hash::build(&given, &options).map_err(|error| error.to_string())?;
    Ok(table.iter().map(|rank| serving[rank as usize].backend).collect())
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
    // Of equal weights the logarithm changes no order, and costs most of the time.
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
