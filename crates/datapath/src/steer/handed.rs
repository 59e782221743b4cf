//! A program in the hands of two processes: what one tells the other of it, and the descriptors that go along.
//!
//! In: an attached [`Steer`]. Out: facts and descriptors, and a [`Steer`] made of them in another process.
//! Not here: how they travel. Invariant: the program stays attached while one of both has its link; the maps are the same ones.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use aya::Ebpf;
use aya::maps::{Map, MapData, MapError};
use forwarder::Prefix;
use serde::{Deserialize, Serialize};

use super::ends::EndMaps;
use super::prefixes::PrefixMaps;
use super::{Filter, Handover, Maps, Steer, SteerError};
use crate::attach::{AttachError, AttachMode, Attachment, Link, descriptor, in_map};

/// What is known of a program beside its maps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SteerFacts {
    /// The interface's name.
    pub interface: String,
    /// The kernel's id of the program.
    program: u32,
    generic: bool,
    max_vips: u32,
    /// Of the two tables of prefixes the one that the program does not read.
    spare: usize,
    /// What the maps hold.
    vips: Vec<(IpAddr, u8)>,
    own: Vec<IpAddr>,
    prefixes: Vec<(IpAddr, u8, u8)>,
    ends: Vec<(IpAddr, u8, u32)>,
    sources: Vec<(IpAddr, u8, u32)>,
}

/// Descriptors of the maps, in the order of [`MAPS`]; none of a program that is not XDP's.
pub(super) fn descriptors(ebpf: &Ebpf) -> Result<Vec<OwnedFd>, AttachError> {
    let of = |name: &'static str| {
        let map = ebpf.map(name).and_then(descriptor).ok_or(AttachError::Part(name))?;
        map.try_clone_to_owned().map_err(|error| in_map(name)(MapError::IoError(error)))
    };
    MAPS.into_iter().map(of).collect()
}

impl Steer {
    /// What another process needs to have this program too.
    ///
    /// # Errors
    /// It is not XDP's, or the process has no descriptor left.
    pub(crate) fn hand(&self, interface: &str) -> io::Result<(SteerFacts, Vec<OwnedFd>)> {
        let Link::Xdp(link) = &self.attachment.link else {
            return Err(io::Error::other("an ingress program is not handed over"));
        };
        let mut descriptors = vec![link.as_fd().try_clone_to_owned()?];
        for map in &self.descriptors {
            descriptors.push(map.as_fd().try_clone_to_owned()?);
        }
        let entries = |held: &BTreeMap<Prefix, u32>| {
            held.iter().map(|(prefix, value)| (prefix.address(), prefix.length(), *value)).collect()
        };
        let prefixes = self.filter.prefixes.iter();
        let facts = SteerFacts {
            interface: interface.to_owned(),
            program: self.attachment.program,
            generic: self.attachment.mode == AttachMode::Generic,
            max_vips: self.max_vips,
            spare: self.prefixes.spare,
            vips: self.filter.vips.iter().map(|(vip, overhead)| (*vip, *overhead)).collect(),
            own: self.filter.own.iter().copied().collect(),
            prefixes: prefixes.map(|(prefix, room)| (prefix.address(), prefix.length(), *room)).collect(),
            ends: entries(&self.ends.ends.held),
            sources: entries(&self.ends.sources.held),
        };
        Ok((facts, descriptors))
    }

    /// The program that another process has attached. `descriptors` gives its own ones first.
    ///
    /// # Errors
    /// The descriptors are not those of the facts.
    pub(crate) fn taken(
        facts: &SteerFacts,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Self, SteerError> {
        let link = descriptors.next().ok_or(AttachError::Part("link"))?;
        let own: Vec<OwnedFd> = descriptors.take(MAPS.len()).collect();
        let mut maps = Handed::open(&own)?;
        let mode = if facts.generic { AttachMode::Generic } else { AttachMode::Driver };
        let attachment = Attachment { link: Link::Xdp(link), mode, program: facts.program };
        let handover = Handover::Redirect(maps.next("xsks")?);
        let addresses = maps.next("vips")?;
        let tables = [maps.next("prefixes_a")?, maps.next("prefixes_b")?];
        let prefixes = PrefixMaps { chosen: maps.next("prefixes")?, tables, spare: facts.spare.min(1) };
        let counts = maps.next("counts")?;
        let mut ends = EndMaps::new(maps.next("ends")?, maps.next("sources")?);
        ends.ends.held = held(&facts.ends);
        ends.sources.held = held(&facts.sources);
        let maps = Maps { addresses, prefixes, counts, ends };
        let mut steer = Self::new(attachment, maps, handover, facts.max_vips, own);
        steer.filter = facts.filter();
        Ok(steer)
    }
}

impl SteerFacts {
    fn filter(&self) -> Filter {
        let prefixes = self.prefixes.iter();
        let prefixes =
            prefixes.filter_map(|(address, length, room)| Some((Prefix::new(*address, *length)?, *room)));
        Filter {
            vips: self.vips.iter().copied().collect(),
            prefixes: prefixes.collect(),
            own: self.own.iter().copied().collect(),
        }
    }
}

fn held(entries: &[(IpAddr, u8, u32)]) -> BTreeMap<Prefix, u32> {
    let entries = entries.iter();
    entries.filter_map(|(address, length, value)| Some((Prefix::new(*address, *length)?, *value))).collect()
}

/// Maps that were handed over, in the order of [`MAPS`].
struct Handed(std::vec::IntoIter<Map>);

impl Handed {
    fn open(descriptors: &[OwnedFd]) -> Result<Self, AttachError> {
        let open = |(name, fd): (&'static str, &OwnedFd)| {
            let fd = fd.try_clone().map_err(|error| in_map(name)(MapError::IoError(error)))?;
            MapData::from_fd(fd).and_then(Map::from_map_data).map_err(in_map(name))
        };
        let maps: Vec<Map> = MAPS.into_iter().zip(descriptors).map(open).collect::<Result<_, _>>()?;
        Ok(Self(maps.into_iter()))
    }

    fn next<M: TryFrom<Map, Error = MapError>>(&mut self, name: &'static str) -> Result<M, AttachError> {
        let map = self.0.next().ok_or(AttachError::Part(name))?;
        M::try_from(map).map_err(in_map(name))
    }
}

/// In the order in which their descriptors are handed over.
const MAPS: [&str; 8] = ["xsks", "vips", "prefixes_a", "prefixes_b", "prefixes", "counts", "ends", "sources"];

/// What the program and its maps mean: counted up when another version of the program would read its maps in another way, so that no
/// process takes over maps that it would fill wrongly.
pub const MAPS_VERSION: u32 = 1;
