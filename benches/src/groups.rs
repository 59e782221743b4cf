//! Snapshots with many prefixes and suffixes, and the frames for them.

use std::net::{IpAddr, Ipv6Addr};

use forwarder::{Binding, Prefix, PrefixGroup, Snapshot, Suffix, VipAddress};

use crate::parts;

/// The VIP of IPv6 frames that have an exact one.
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 0x10);

/// As [`crate::snapshot`], over IPv6.
///
/// # Panics
/// Never: the parts fit.
#[must_use]
pub fn exact_v6() -> Snapshot {
    let bindings = [80, 443].map(|port| crate::binding(IpAddr::V6(VIP6), port)).into();
    Snapshot::new(forwarder::Parts { bindings, ..parts() }).expect("parts that fit")
}

/// `count` prefixes of five lengths in 16 groups, as many suffixes of three lengths, and `addresses` that have a VIP, each by
/// another pair.
///
/// # Panics
/// Never, up to 10,000 of each.
#[must_use]
pub fn grouped(count: u32, addresses: u32) -> (Snapshot, Vec<[u8; 16]>) {
    let group = |group: u32| PrefixGroup {
        name: format!("g{group}").into(),
        prefixes: (0..count).filter(|n| n % GROUPS == group).map(prefix).collect(),
    };
    let binding = |n: u32| Binding {
        address: VipAddress::Suffix { group: (n % GROUPS) as usize, suffix: suffix(n) },
        protocol: 6,
        ports: 80..=80,
        service: 0,
    };
    let groups = (0..GROUPS).map(group).collect();
    let bindings = (0..count).map(binding).collect();
    let snapshot = Snapshot::new(forwarder::Parts { groups, bindings, ..parts() }).expect("parts that fit");
    (snapshot, pairs(count, addresses))
}

/// Addresses that a prefix and a suffix of one group make, in an order that looks like chance.
fn pairs(count: u32, addresses: u32) -> Vec<[u8; 16]> {
    let mut state = 1_u32;
    let address = |_| {
        state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        let of_prefix = (state >> 8) % count;
        let turns = (state >> 4) % (count / GROUPS);
        let of_suffix = of_prefix % GROUPS + turns * GROUPS;
        match prefix(of_prefix).with(&suffix(of_suffix)) {
            Some(IpAddr::V6(v6)) => v6.octets(),
            _ => unreachable!("both are of IPv6"),
        }
    };
    (0..addresses).map(address).collect()
}

fn prefix(n: u32) -> Prefix {
    // Scattered below 2001:db8::/32 by a full-period product, and by length, so that none is another's twin.
    let front = u128::from(n.wrapping_mul(0x9e37) & 0xffff) << 80 | u128::from(n % 5) << 77;
    let length = [50, 52, 56, 60, 64][n as usize % 5];
    let bits = (0x2001_0db8_u128 << 96 | front) >> (128 - length) << (128 - length);
    Prefix::new(IpAddr::V6(bits.into()), length).expect("no bit behind its length")
}

fn suffix(n: u32) -> Suffix {
    let bits = u128::from(n + 1) << 8 | u128::from(n % 256);
    Suffix::new(IpAddr::V6(bits.into()), [40, 48, 64][n as usize % 3]).expect("short")
}

/// A frame of TCP over IPv6 to port 80 of an address, from flow number `flow`.
#[must_use]
pub fn frame_v6(flow: u32, to: &[u8; 16]) -> [u8; 74] {
    let mut frame = [0; 74];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9]);
    frame[12..16].copy_from_slice(&[0x86, 0xdd, 0x60, 0x00]);
    frame[18..22].copy_from_slice(&[0, 20, 6, 64]);
    frame[22..26].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    frame[34..38].copy_from_slice(&flow.to_be_bytes());
    frame[38..54].copy_from_slice(to);
    frame[54..58].copy_from_slice(&[0x40, 0, 0, 80]);
    frame[66..68].copy_from_slice(&[0x50, 0x10]);
    frame
}

const GROUPS: u32 = 16;
