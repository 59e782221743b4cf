//! Handover of a steering program to another process. The old process sends the properties of the
//! program, and the descriptors of its link and maps. The program stays attached as long as at
//! least one of the two processes holds a descriptor of its link. Both processes use the same maps.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use aya::Ebpf;
use aya::maps::{Map, MapData, MapError};
use forwarder::Prefix;
use serde::{Deserialize, Serialize};

use super::filter::HeldFilter;
use super::maps::{FilterMaps, NAMES};
use super::tunnel_endpoints::EndpointMaps;
use super::{Filter, Handover, Maps, Steer, SteerError};
use crate::attach::{AttachError, AttachMode, Attachment, Link, descriptor, in_map};

/// The properties of a steering program, including the content of its maps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SteerFacts {
    /// The name of the interface to which the program is attached.
    pub interface: String,
    /// The ID of the program in the kernel.
    program: u32,
    generic: bool,
    max_vips: u32,
    /// The VIPs, own addresses and prefixes that the maps contain.
    vips: Vec<IpAddr>,
    own: Vec<IpAddr>,
    prefixes: Vec<(IpAddr, u8)>,
    ends: Vec<(IpAddr, u8, u32)>,
    sources: Vec<(IpAddr, u8, u32)>,
}

/// Duplicates the descriptors of the maps, in the order of [`MAPS`].
pub(super) fn descriptors(ebpf: &Ebpf) -> Result<Vec<OwnedFd>, AttachError> {
    let of = |name: &'static str| {
        let map = ebpf.map(name).and_then(descriptor).ok_or(AttachError::Part(name))?;
        map.try_clone_to_owned().map_err(|error| in_map(name)(MapError::IoError(error)))
    };
    MAPS.into_iter().map(of).collect()
}

impl Steer {
    /// Returns the properties and descriptors that another process needs to take over this program.
    ///
    /// # Errors
    /// The call fails if this is not an XDP program, or if the process has too many open
    /// descriptors.
    pub(crate) fn hand(&self, interface: &str) -> io::Result<(SteerFacts, Vec<OwnedFd>)> {
        let Link::Xdp(link) = &self.attachment.link else {
            return Err(io::Error::other("an ingress program cannot be handed over"));
        };
        let mut descriptors = vec![link.as_fd().try_clone_to_owned()?];
        for map in &self.descriptors {
            descriptors.push(map.as_fd().try_clone_to_owned()?);
        }
        let entries = |held: &BTreeMap<Prefix, u32>| {
            held.iter().map(|(prefix, value)| (prefix.address(), prefix.length(), *value)).collect()
        };
        let filter = self.filter.get();
        let facts = SteerFacts {
            interface: interface.to_owned(),
            program: self.attachment.program,
            generic: self.attachment.mode == AttachMode::Generic,
            max_vips: self.max_vips,
            vips: filter.vips.iter().copied().collect(),
            own: filter.own.iter().copied().collect(),
            prefixes: filter.prefixes.iter().map(|prefix| (prefix.address(), prefix.length())).collect(),
            ends: entries(&self.ends.ends.held),
            sources: entries(&self.ends.sources.held),
        };
        Ok((facts, descriptors))
    }

    /// Creates the handle for a program that a different process has attached. This call takes the
    /// descriptors of the program from the front of `descriptors`.
    ///
    /// # Errors
    /// The call fails if the descriptors do not match the properties.
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
        let filter = FilterMaps::handed(|name| maps.map(name), facts.max_vips)?;
        let counts = maps.next("counts")?;
        let mut ends = EndpointMaps::new(maps.next("ends")?, maps.next("sources")?);
        ends.ends.held = held(&facts.ends);
        ends.sources.held = held(&facts.sources);
        let maps = Maps { filter, counts, ends };
        let mut steer = Self::new(attachment, maps, handover, facts.max_vips, own);
        steer.filter = HeldFilter::handed(facts.filter());
        Ok(steer)
    }
}

impl SteerFacts {
    fn filter(&self) -> Filter {
        let prefixes = self.prefixes.iter().filter_map(|(address, length)| Prefix::new(*address, *length));
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

/// Received maps, in the order of [`MAPS`].
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

    fn map(&mut self, name: &'static str) -> Result<Map, AttachError> {
        self.0.next().ok_or(AttachError::Part(name))
    }

    fn next<M: TryFrom<Map, Error = MapError>>(&mut self, name: &'static str) -> Result<M, AttachError> {
        M::try_from(self.map(name)?).map_err(in_map(name))
    }
}

/// The names of the maps, in the order in which their descriptors are sent.
const MAPS: [&str; 10] = {
    let [vips4, vips6, own, prefixes, settled, chosen] = NAMES;
    ["xsks", vips4, vips6, own, prefixes, settled, chosen, "counts", "ends", "sources"]
};

/// The version of the program and its maps. The version is incremented when the interpretation of
/// the maps changes. A process refuses a takeover if the versions differ.
pub const MAPS_VERSION: u32 = 3;
