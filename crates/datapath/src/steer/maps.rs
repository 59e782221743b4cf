//! The maps with the addresses and prefixes of the filter. A change writes the side that the
//! program does not read, and then makes the program read this side. All parts of the filter
//! therefore change in one step.
//!
//! Invariant: a side that the program may read is never written. The system call in
//! [`FilterMaps::settle`] returns only after no program reads the previous side anymore.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{Ordering, fence};

use aya::maps::{Array, ArrayOfMaps, Map, MapData, MapError};

use super::prefixes::Table;
use super::tables::{Buckets, Chosen, OWN_BUCKETS};
use super::{Filter, SteerError};
use crate::attach::{self, AttachError, in_map};

/// The maps of the filter.
pub(super) struct FilterMaps {
    vips4: Buckets<u32>,
    vips6: Buckets<[u64; 2]>,
    own: Buckets<[u64; 2]>,
    prefixes: Array<MapData, Table>,
    settled: ArrayOfMaps<MapData, Array<MapData, Table>>,
    chosen: Array<MapData, Chosen>,
    /// `false` if a program may still read the side that is not chosen.
    is_settled: bool,
}

impl FilterMaps {
    /// Takes the maps of a program from another process. `take` returns each map by its name, in
    /// the order of [`NAMES`].
    pub(super) fn handed(
        mut take: impl FnMut(&'static str) -> Result<Map, AttachError>,
        max_vips: u32,
    ) -> Result<Self, AttachError> {
        let count = buckets(max_vips);
        Ok(Self {
            vips4: Buckets::new(take("vips4")?, "vips4", count)?,
            vips6: Buckets::new(take("vips6")?, "vips6", count)?,
            own: Buckets::new(take("own")?, "own", OWN_BUCKETS)?,
            prefixes: take("prefixes")?.try_into().map_err(in_map("prefixes"))?,
            settled: take("settled")?.try_into().map_err(in_map("settled"))?,
            chosen: take(CHOSEN)?.try_into().map_err(in_map(CHOSEN))?,
            is_settled: false,
        })
    }

    /// Takes the maps of a new program and makes them the maps of an empty filter.
    pub(super) fn new(
        take: impl FnMut(&'static str) -> Result<Map, AttachError>,
        max_vips: u32,
    ) -> Result<Self, SteerError> {
        let mut maps = Self::handed(take, max_vips)?;
        maps.chosen.set(0, Chosen::random(buckets(max_vips)), 0).map_err(in_map(CHOSEN))?;
        maps.set(&Filter::default())?;
        Ok(maps)
    }

    /// Replaces the filter in one step.
    pub(super) fn set(&mut self, filter: &Filter) -> Result<(), SteerError> {
        let table = Table::new(&filter.prefixes).ok_or(SteerError::TooManyPrefixes(filter.prefixes.len()))?;
        if !self.is_settled {
            self.settle()?;
        }
        let mut chosen = self.chosen.get(&0, 0).map_err(in_map(CHOSEN))?;
        let next = 1 - chosen.index();
        self.write(filter, &mut chosen, next as usize)?;
        self.prefixes.set(next, table.as_ref(), 0).map_err(in_map("prefixes"))?;
        // Release: a program that reads the new offset also reads the new content of this side.
        fence(Ordering::Release);
        self.is_settled = false;
        self.chosen.set(0, chosen.switched(), 0).map_err(in_map(CHOSEN))?;
        Ok(self.settle()?)
    }

    /// Waits until no program reads the side that is not chosen. Updating a map of maps has this
    /// effect (Linux `maybe_wait_bpf_programs` in `kernel/bpf/syscall.c`).
    pub(super) fn settle(&mut self) -> Result<(), AttachError> {
        self.settled.set(0, &self.prefixes, 0).map_err(in_map("settled"))?;
        self.is_settled = true;
        Ok(())
    }

    /// Writes the addresses to the side `next`. If an address finds no free slot, the side gets
    /// another random hash.
    fn write(&mut self, filter: &Filter, chosen: &mut Chosen, next: usize) -> Result<(), AttachError> {
        let side = chosen.sides.get_mut(next).ok_or(AttachError::Part(CHOSEN))?;
        let before = *side;
        let mut full = "";
        for _ in 0..MAX_HASHES {
            let vips6 = filter.vips.iter().filter(|vip| vip.is_ipv6()).map(key6);
            let written = (self.vips4.write(next, side, filter.vips.iter().filter_map(key4)))
                .and_then(|()| self.vips6.write(next, side, vips6))
                .and_then(|()| self.own.write(next, side, filter.own.iter().map(key6)));
            match written {
                Ok(()) if *side == before => return Ok(()),
                Ok(()) => {
                    // The program must not read the new offset before the new hash.
                    self.chosen.set(0, *chosen, 0).map_err(in_map(CHOSEN))?;
                    return self.settle();
                }
                Err(map) => full = map,
            }
            *side = side.reseeded();
        }
        Err(AttachError::Map { map: full, source: MapError::IoError(io::ErrorKind::StorageFull.into()) })
    }
}

/// Returns the number of buckets on each side of the tables of VIPs. During a change, the tables
/// can contain the VIPs of two filters, so at most half of the slots are used.
pub(super) fn buckets(max_vips: u32) -> u32 {
    max_vips.max(LEAST_BUCKETS)
}

fn key4(address: &IpAddr) -> Option<u32> {
    match address {
        IpAddr::V4(address) => Some(u32::from_ne_bytes(address.octets())),
        IpAddr::V6(_) => None,
    }
}

fn key6(address: &IpAddr) -> [u64; 2] {
    let bits = u128::from_be_bytes(attach::key(*address));
    let [high, low] = super::prefixes::halves(bits);
    [high.to_be(), low.to_be()]
}

/// The names of the maps.
pub(super) const NAMES: [&str; 6] = ["vips4", "vips6", "own", "prefixes", "settled", CHOSEN];
/// The map that contains the variable `chosen` of the BPF program.
const CHOSEN: &str = ".bss";
/// An empty bucket contains an address that belongs to other buckets, so there must be other
/// buckets.
const LEAST_BUCKETS: u32 = 64;
/// The maximum number of random hashes that are tried. For addresses that follow a pattern, such as
/// consecutive addresses, a hash fails with a probability below 1 %. For other addresses, the
/// probability is far smaller.
const MAX_HASHES: usize = 64;
