//! The backend's side, from outside: an XDP program that takes off what balancers put in front of packets.
//!
//! In: the host's own addresses, the balancers' prefixes, the VIPs. Out: counts.
//! Not here: the program (`bpf/decap.bpf.c`), the VIP on the host's loopback interface.
//! Invariant: only what is addressed to the host, comes from a listed prefix and holds a packet to a listed VIP is
//! taken off. All else reaches the kernel untouched.
//! Source: RFC 2784 (GRE), RFC 2003 (IPIP), RFC 2473 and RFC 4213 (IPv6 in and around), GUE variant 0.

use std::fmt;
use std::io;
use std::net::IpAddr;

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{HashMap, MapData, MapError, PerCpuArray};
use aya::{Ebpf, EbpfLoader};

use crate::attach::{self, AttachError, AttachMode, Attachment};

/// An address and how many of its bits count.
pub type Prefix = (IpAddr, u8);

/// One kind of tunnel, by the family of its outer header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByFamily {
    /// The outer header was IPv4.
    pub ipv4: u64,
    /// The outer header was IPv6.
    pub ipv6: u64,
}

/// Frames by what the program did with them. Each frame of the interface moves exactly one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecapCounts {
    /// GRE taken off.
    pub gre: ByFamily,
    /// IP in IP taken off: protocols 4 and 41.
    pub ipip: ByFamily,
    /// GUE taken off.
    pub gue: ByFamily,
    /// A tunnel to this host from no listed source: passed untouched.
    pub refused_source: u64,
    /// A tunnel to this host whose inner header is cut off, or not of the family it is said to be, or whose
    /// inner packet is longer than its outer one: passed untouched.
    pub malformed: u64,
    /// A tunnel to this host whose inner packet goes to no listed VIP: passed untouched.
    pub refused_destination: u64,
    /// All else.
    pub passed: u64,
}

/// Why the program is not attached, or could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecapError {
    /// The program is not attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Nothing could be addressed to this host.
    #[error("no address of this host given")]
    NoAddress,
    /// Nothing could be allowed.
    #[error("no source prefix given: nothing would be taken off")]
    NoSource,
    /// Nothing could be opened.
    #[error("no VIP given: nothing would be taken off")]
    NoVip,
    /// A prefix of this length does not exist.
    #[error("prefix {address}/{length}: the length is above {allowed}")]
    PrefixTooLong {
        /// The prefix's address.
        address: IpAddr,
        /// Its length in bits.
        length: u8,
        /// The most for its family.
        allowed: u8,
    },
    /// The kernel refused to read a count.
    #[error("cannot read map `counts`")]
    Counts(#[source] MapError),
}

/// The program on one interface. Dropping it leaves the interface as it was found.
pub struct Decap {
    attachment: Attachment,
    counts: PerCpuArray<MapData, u64>,
}

impl Decap {
    /// Attaches the program to `interface`, in the driver or else generic.
    ///
    /// `local` are the addresses that tunnels may end at, see [`host_addresses`]; `from` are the prefixes,
    /// address and length in bits, that they may come from; `vips` those that inner packets may go to.
    ///
    /// # Errors
    /// [`DecapError`]: among others, when one of the lists is empty, or another XDP program is there.
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
        // Held until the program, which is loaded last, holds them itself.
        let _tries = [fill(&mut ebpf, ["from4", "from6"], from)?, fill(&mut ebpf, ["vips4", "vips6"], vips)?];
        let counts = attach::map(&mut ebpf, "counts")?;
        Ok(Self { counts, attachment: attach::attach(ebpf, ["decap", "decap_frags"], &interface)? })
    }

    /// Where the program runs.
    #[must_use]
    pub const fn mode(&self) -> AttachMode {
        self.attachment.mode
    }

    /// What the program has done since it was attached, summed over the CPUs.
    ///
    /// # Errors
    /// [`DecapError::Counts`].
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
        })
    }
}

impl fmt::Debug for Decap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decap").field("mode", &self.mode()).finish_non_exhaustive()
    }
}

/// The addresses of this host, in the calling thread's network namespace, without those of loopback.
///
/// # Errors
/// When the kernel does not list them.
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

/// Puts prefixes into the tries of their families.
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

/// Indices of the map `counts`, as `enum count` in `bpf/decap.bpf.c` has them. After a kind's index for an
/// outer header of IPv4 comes the one for IPv6.
#[derive(Clone, Copy)]
enum Count {
    Gre = 0,
    Ipip = 2,
    Gue = 4,
    RefusedSource = 6,
    Malformed = 7,
    RefusedDestination = 8,
    Passed = 9,
}

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/decap.bpf.o"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_lists_and_impossible_prefixes_are_refused_before_the_kernel_is_asked() {
        let (v4, v6): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        for (local, from, vips, said) in [
            (vec![], vec![(v4, 32)], vec![(v4, 32)], "no address of this host given"),
            (vec![v4], vec![], vec![(v4, 32)], "no source prefix given: nothing would be taken off"),
            (vec![v4], vec![(v4, 32)], vec![], "no VIP given: nothing would be taken off"),
            (vec![v4], vec![(v4, 33)], vec![(v4, 0)], "prefix 192.0.2.1/33: the length is above 32"),
            (vec![v4], vec![(v6, 128)], vec![(v6, 129)], "prefix 2001:db8::1/129: the length is above 128"),
        ] {
            assert_eq!(check(&local, &from, &vips).unwrap_err().to_string(), said);
        }
        assert!(check(&[v4, v6], &[(v4, 32), (v6, 0)], &[(v6, 128)]).is_ok());
    }
}
