//! Snapshots with many prefixes and suffixes, and frames that match them.

use std::net::{IpAddr, Ipv6Addr};

use forwarder::{Binding, Prefix, PrefixGroup, Snapshot, Suffix, VipAddress};

use crate::parts;

/// The exact VIP to which the IPv6 frames are addressed.
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 0x10);

/// Returns a snapshot like [`crate::snapshot`], but with an IPv6 VIP.
///
/// # Panics
/// Does not panic, because all parts of the snapshot are valid.
#[must_use]
pub fn exact_v6() -> Snapshot {
    let bindings = [80, 443].map(|port| crate::binding(IpAddr::V6(VIP6), port)).into();
    Snapshot::new(forwarder::Parts { bindings, ..parts() }).expect("the parts are valid")
}

/// Returns a snapshot with `count` prefixes and `count` suffixes, and a list of `addresses` VIP
/// addresses.
///
/// The prefixes have five different lengths and belong to 16 groups. The suffixes have three
/// different lengths. Each VIP address combines a different prefix with a different suffix.
///
/// # Panics
/// Does not panic for up to 10,000 prefixes and suffixes.
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
    let snapshot =
        Snapshot::new(forwarder::Parts { groups, bindings, ..parts() }).expect("the parts are valid");
    (snapshot, pairs(count, addresses))
}

/// Returns addresses that combine a prefix and a suffix of the same group, in a scattered order.
fn pairs(count: u32, addresses: u32) -> Vec<[u8; 16]> {
    let mut state = 1_u32;
    let address = |_| {
        state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        let of_prefix = (state >> 8) % count;
        let turns = (state >> 4) % (count / GROUPS);
        let of_suffix = of_prefix % GROUPS + turns * GROUPS;
        match prefix(of_prefix).with(&suffix(of_suffix)) {
            Some(IpAddr::V6(v6)) => v6.octets(),
            _ => unreachable!("both addresses are IPv6"),
        }
    };
    (0..addresses).map(address).collect()
}

fn prefix(n: u32) -> Prefix {
    // Multiplying by an odd number scatters the prefixes below 2001:db8::/32 and keeps them
    // distinct.
    let front = u128::from(n.wrapping_mul(0x9e37) & 0xffff) << 80 | u128::from(n % 5) << 77;
    let length = [50, 52, 56, 60, 64][n as usize % 5];
    let bits = (0x2001_0db8_u128 << 96 | front) >> (128 - length) << (128 - length);
    Prefix::new(IpAddr::V6(bits.into()), length).expect("the prefix has no bits after its length")
}

fn suffix(n: u32) -> Suffix {
    let bits = u128::from(n + 1) << 8 | u128::from(n % 256);
    Suffix::new(IpAddr::V6(bits.into()), [40, 48, 64][n as usize % 3]).expect("the suffix length is valid")
}

/// Returns an IPv6 TCP frame that belongs to flow number `flow` and is addressed to port 80 of
/// `to`.
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
