//! The loader of the XDP program for backends (`bpf/decap.bpf.c`). The program removes the outer
//! header from packets that load balancers tunnel to the backend. The VIP must be configured on the
//! backend, for example on its loopback interface.
//!
//! The program removes an outer header only if the outer destination is this host, the outer source
//! is in a listed prefix, and the inner destination is a listed VIP. All other packets reach the
//! kernel unchanged. The program merges congestion marks of the outer header into the inner packet,
//! in the same way as `packet::merge_ecn`.
//!
//! See RFC 6040 (ECN), RFC 2784 (GRE), RFC 2003 (IPIP), RFC 2473 and RFC 4213 (tunnels with IPv6),
//! and GUE variant 0.

use std::fmt;
use std::io;
use std::net::IpAddr;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{HashMap, MapData, MapError, PerCpuArray};
use aya::{Ebpf, EbpfLoader};

use crate::attach::{self, AttachError, AttachMode, Attachment};

/// An IP address and a prefix length in bits.
pub type Prefix = (IpAddr, u8);

/// Packet counts for one type of tunnel, by the IP version of the outer header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByFamily {
    /// Packets with an IPv4 outer header.
    pub ipv4: u64,
    /// Packets with an IPv6 outer header.
    pub ipv6: u64,
}

/// The number of frames for each result. Each frame that arrives on the interface increments
/// exactly one counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecapCounts {
    /// Packets whose GRE header was removed.
    pub gre: ByFamily,
    /// IP-in-IP packets (protocols 4 and 41) whose outer header was removed.
    pub ipip: ByFamily,
    /// Packets whose GUE header was removed.
    pub gue: ByFamily,
    /// Tunneled packets to this host from an outer source that is not listed. The program passes
    /// these packets to the kernel unchanged.
    pub refused_source: u64,
    /// Tunneled packets to this host with an invalid inner packet. The program passes these packets
    /// to the kernel unchanged. An inner packet is invalid if its header is truncated or has an
    /// unexpected IP version, or if it is longer than the outer packet.
    pub malformed: u64,
    /// Tunneled packets to this host whose inner destination is not a listed VIP. The program
    /// passes these packets to the kernel unchanged.
    pub refused_destination: u64,
    /// Tunneled packets to this host whose outer header marks congestion, although the inner packet
    /// does not support ECN. The program dropped these packets (RFC 6040 §4.2).
    pub congestion: u64,
    /// All other frames. The program passes these packets to the kernel unchanged.
    pub passed: u64,
}

/// The reason why the program could not be attached or its counters could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecapError {
    /// The program could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The list of local addresses is empty.
    #[error("this host has no address other than loopback at which a tunnel could end")]
    NoAddress,
    /// The list of source prefixes is empty.
    #[error("no source prefix given; name the prefixes of the load balancers")]
    NoSource,
    /// The list of VIPs is empty.
    #[error("no VIP given; name the VIPs of this host")]
    NoVip,
    /// A prefix is longer than its address.
    #[error("prefix length of {address}/{length} is above {allowed}")]
    PrefixTooLong {
        /// The address of the prefix.
        address: IpAddr,
        /// The length of the prefix in bits.
        length: u8,
        /// The largest prefix length of this IP version.
        allowed: u8,
    },
    /// The kernel returned an error when a counter was read.
    #[error("cannot read BPF map `counts`")]
    Counts(#[source] MapError),
}

/// The decapsulation program, attached to one interface. Dropping the value detaches the program.
pub struct Decap {
    attachment: Attachment,
    counts: PerCpuArray<MapData, u64>,
}

impl Decap {
    /// Attaches the program to `interface`. Driver mode is tried first, then generic mode.
    ///
    /// - `local` contains the addresses of this host to which packets are tunneled (see
    ///   [`host_addresses`]).
    /// - `from` contains the allowed prefixes for outer source addresses.
    /// - `vips` contains the allowed prefixes for inner destination addresses.
    ///
    /// # Errors
    /// [`DecapError`], for example if one of the lists is empty, or if another XDP program is
    /// attached.
    pub fn attach(
        interface: &str,
        local: &[IpAddr],
        from: &[Prefix],
        vips: &[Prefix],
    ) -> Result<Self, DecapError> {
        check(local, from, vips)?;
        let interface = attach::free_interface(interface)?;
        let room = |entries: usize| u32::try_from(entries.max(1)).unwrap_or(u32::MAX);
        let mut ebpf = attach::load(
            EbpfLoader::new()
                .map_max_entries("local", room(local.len()))
                .map_max_entries("from4", room(from.len()))
                .map_max_entries("from6", room(from.len()))
                .map_max_entries("vips4", room(vips.len()))
                .map_max_entries("vips6", room(vips.len())),
            OBJECT,
        )?;
        let mut addresses: HashMap<MapData, [u8; 16], u8> = attach::map(&mut ebpf, "local")?;
        for address in local {
            let key = attach::key(address.to_canonical());
            addresses.insert(key, 1, 0).map_err(attach::in_map("local"))?;
        }
        // The maps must stay open until the program is loaded, because only a loaded program holds
        // references to them.
        let _tries = [fill(&mut ebpf, ["from4", "from6"], from)?, fill(&mut ebpf, ["vips4", "vips6"], vips)?];
        let counts = attach::map(&mut ebpf, "counts")?;
        Ok(Self { counts, attachment: attach::attach(ebpf, ["decap", "decap_frags"], &interface)? })
    }

    /// Returns the mode in which the program runs.
    #[must_use]
    pub const fn mode(&self) -> AttachMode {
        self.attachment.mode
    }

    /// Returns the counters since the program was attached, summed over all CPUs.
    ///
    /// # Errors
    /// [`DecapError::Counts`] if the kernel cannot read a counter.
    pub fn counts(&self) -> Result<DecapCounts, DecapError> {
        let count = |index: u32| attach::total(&self.counts, index).map_err(DecapError::Counts);
        let kind =
            |first: u32| Ok::<_, DecapError>(ByFamily { ipv4: count(first)?, ipv6: count(first + 1)? });
        Ok(DecapCounts {
            gre: kind(Count::Gre as u32)?,
            ipip: kind(Count::Ipip as u32)?,
            gue: kind(Count::Gue as u32)?,
            refused_source: count(Count::RefusedSource as u32)?,
            malformed: count(Count::Malformed as u32)?,
            refused_destination: count(Count::RefusedDestination as u32)?,
            passed: count(Count::Passed as u32)?,
            congestion: count(Count::Congestion as u32)?,
        })
    }
}

impl fmt::Debug for Decap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decap").field("mode", &self.mode()).finish_non_exhaustive()
    }
}

/// Returns all addresses of this host, except loopback addresses. The addresses are read in the
/// network namespace of the calling thread.
pub fn host_addresses() -> io::Result<Vec<IpAddr>> {
    let mut addresses: Vec<IpAddr> = nix::ifaddrs::getifaddrs()?
        .filter_map(|interface| interface.address)
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        })
        .filter(|address| !address.is_loopback())
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Inserts each prefix into the trie for its IP version.
fn fill(
    ebpf: &mut Ebpf,
    [name4, name6]: [&'static str; 2],
    prefixes: &[Prefix],
) -> Result<Tries, AttachError> {
    let (mut trie4, mut trie6): Tries = (attach::map(ebpf, name4)?, attach::map(ebpf, name6)?);
    for &(address, length) in prefixes {
        let (name, filled) = match address {
            IpAddr::V4(v4) => (name4, trie4.insert(&Key::new(length.into(), v4.octets()), 1, 0)),
            IpAddr::V6(v6) => (name6, trie6.insert(&Key::new(length.into(), v6.octets()), 1, 0)),
        };
        filled.map_err(attach::in_map(name))?;
    }
    Ok((trie4, trie6))
}

type Tries = (LpmTrie<MapData, [u8; 4], u8>, LpmTrie<MapData, [u8; 16], u8>);

fn check(local: &[IpAddr], from: &[Prefix], vips: &[Prefix]) -> Result<(), DecapError> {
    if local.is_empty() {
        return Err(DecapError::NoAddress);
    }
    if from.is_empty() {
        return Err(DecapError::NoSource);
    }
    if vips.is_empty() {
        return Err(DecapError::NoVip);
    }
    for &(address, length) in from.iter().chain(vips) {
        let allowed = if address.is_ipv4() { 32 } else { 128 };
        if length > allowed {
            return Err(DecapError::PrefixTooLong { address, length, allowed });
        }
    }
    Ok(())
}

/// Indices of the map `counts`, in the order of `enum count` in `bpf/decap.bpf.c`. For each type of
/// tunnel, the first index counts packets with IPv4 outer headers, and the next index counts
/// packets with IPv6 outer headers.
#[derive(Clone, Copy)]
enum Count {
    Gre = 0,
    Ipip = 2,
    Gue = 4,
    RefusedSource = 6,
    Malformed = 7,
    RefusedDestination = 8,
    Passed = 9,
    Congestion = 10,
}

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/decap.bpf.o"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_refuses_empty_lists_and_long_prefixes() {
        let (v4, v6): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        for (local, from, vips, said) in [
            (
                vec![],
                vec![(v4, 32)],
                vec![(v4, 32)],
                "this host has no address other than loopback at which a tunnel could end",
            ),
            (
                vec![v4],
                vec![],
                vec![(v4, 32)],
                "no source prefix given; name the prefixes of the load balancers",
            ),
            (vec![v4], vec![(v4, 32)], vec![], "no VIP given; name the VIPs of this host"),
            (vec![v4], vec![(v4, 33)], vec![(v4, 0)], "prefix length of 192.0.2.1/33 is above 32"),
            (vec![v4], vec![(v6, 128)], vec![(v6, 129)], "prefix length of 2001:db8::1/129 is above 128"),
        ] {
            assert_eq!(check(&local, &from, &vips).unwrap_err().to_string(), said);
        }
        assert!(check(&[v4, v6], &[(v4, 32), (v6, 0)], &[(v6, 128)]).is_ok());
    }
}
