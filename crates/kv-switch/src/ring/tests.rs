use std::collections::HashSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{KeyHash, fnv1a_64, md5_ketama};

fn ring(names: &[String], weight: impl Fn(usize) -> u32, ejected: &[usize]) -> Ring {
    let server = |(index, name): (usize, &'static str)| Server {
        ring_name: name,
        weight: weight(index),
        is_ejected: ejected.contains(&index),
    };
    let names: Vec<&'static str> = names.iter().map(|name| &*name.clone().leak()).collect();
    Ring::build(&names.into_iter().enumerate().map(server).collect::<Vec<_>>()).unwrap()
}

fn names(count: usize, port: impl Fn(usize) -> u16) -> Vec<String> {
    (0..count).map(|n| ring_name(&format!("192.0.2.{n}"), port(n))).collect()
}

fn owners(ring: &Ring, hash: KeyHash, keys: usize) -> Vec<u16> {
    (0..keys).map(|n| ring.lookup(hash.hash(format!("key:{n}").as_bytes()))).collect()
}

fn split(ring: &Ring, hash: KeyHash, keys: usize, servers: u16) -> Vec<usize> {
    let owners = owners(ring, hash, keys);
    (0..servers).map(|server| owners.iter().filter(|&&owner| owner == server).count()).collect()
}

/// Returns the FNV-1a hash of the servers that store `key:0` to `key:2999`, as a checksum of the
/// ring.
fn fingerprint(ring: &Ring) -> u64 {
    let owners = owners(ring, KeyHash::md5(), 3_000).into_iter();
    owners.fold(0xcbf2_9ce4_8422_2325, |hash, owner| (hash ^ u64::from(owner)).wrapping_mul(0x100_0000_01b3))
}

/// The expected values come from `memcached_generate_hash` of libmemcached 1.1.4 with
/// KETAMA_WEIGHTED. The servers are 192.0.2.0 and the following addresses. In the first ring, all
/// servers have port 11211 and weight 1. In the second ring, server n has port 11211 + n mod 3 and
/// weight 1 + n^2 mod 17.
#[test]
fn three_thousand_keys_are_where_libmemcached_puts_them() {
    for (count, equal, weighted) in [
        (1, 0x0e91_54a5_da46_4b85, 0x0e91_54a5_da46_4b85),
        (2, 0x6ca4_491a_1fd4_009b, 0x2c9f_9440_d18c_82f3),
        (3, 0x0591_6b29_e1d5_b6b2, 0x57c5_13b9_9ab3_e221),
        (5, 0x7e3b_2baf_50e1_84af, 0x5965_01d5_ee62_77a8),
        (7, 0x8de4_4b42_24a8_2724, 0x2d4a_84c9_d19d_b143),
        (11, 0xdd5a_68d2_5da5_1df9, 0x898c_9a31_0d91_40db),
        (13, 0x8811_8877_7cf4_f101, 0x8c2e_13ca_3879_9bbb),
        (25, 0x021b_371a_4011_1cc8, 0xf4f3_d958_606e_4407),
        (29, 0xf757_1801_3790_42ef, 0x1e5e_0df6_af1d_671d),
        (40, 0xc956_7231_962b_d57a, 0xfed9_51b5_cd26_2a9b),
        (41, 0xa567_bc64_dcde_eff5, 0xbccf_4dbd_7236_9f11),
        (47, 0x8951_bb72_0223_b000, 0x1ead_74fa_f0ce_2434),
        (55, 0xf9cf_b553_6fcb_d04b, 0xec23_d311_fc5e_5c73),
        (61, 0xa33d_b05b_d412_ff0a, 0xda69_bf49_44e2_55f4),
        (83, 0x9e15_6127_64a9_a1c7, 0x4b2c_16be_7571_25b6),
        (100, 0x66e4_8846_3c0c_730f, 0x6489_a7be_18f2_bef4),
    ] {
        let ports = |n: usize| 11_211 + u16::try_from(n % 3).unwrap();
        let weights = |n: usize| 1 + u32::try_from(n * n % 17).unwrap();
        assert_eq!(fingerprint(&ring(&names(count, |_| 11_211), |_| 1, &[])), equal, "{count}");
        assert_eq!(fingerprint(&ring(&names(count, ports), weights, &[])), weighted, "{count}");
    }
}

/// The expected values come from libmemcached. The second check sets `MEMCACHED_BEHAVIOR_HASH` to
/// FNV1A_64, which changes only the hash of the keys.
#[test]
fn keys_split_as_libmemcached_splits_them() {
    let three: Vec<String> = (1..=3).map(|n| format!("192.0.2.{n}")).collect();
    let three = ring(&three, |_| 1, &[]);
    assert_eq!(split(&three, KeyHash::md5(), 3_000, 3), [1_019, 946, 1_035]);
    // The documentation states that this hash distributes keys unevenly.
    assert_eq!(split(&three, KeyHash::fnv1a_64(), 1_000, 3), [210, 340, 450]);

    let four = ["192.0.2.1", "192.0.2.2", "192.0.2.3:11311", "cache.example.net"].map(str::to_owned);
    let four = ring(&four, |index| [1, 2, 5, 3][index], &[]);
    assert_eq!(split(&four, KeyHash::md5(), 3_000, 4), [238, 515, 1_465, 782]);
    assert_eq!(split(&four, KeyHash::fnv1a_64(), 1_000, 4), [200, 180, 430, 190]);
}

#[test]
fn a_ring_with_a_server_ejected_is_the_ring_of_the_others() {
    let (all, weights) = (names(6, |n| if n == 4 { 11_300 } else { 11_211 }), [3, 1, 4, 1, 5, 9]);
    let ejected = ring(&all, |index| weights[index], &[1, 4]);
    let rest = [all[0].clone(), all[2].clone(), all[3].clone(), all[5].clone()];
    let rest = ring(&rest, |index| [3, 4, 1, 9][index], &[]);
    let index = [0, 2, 3, 5];
    for n in 0..3_000 {
        let hash = u64::from(md5_ketama(format!("key:{n}").as_bytes()));
        assert_eq!(ejected.lookup(hash), index[usize::from(rest.lookup(hash))]);
    }
}

#[test]
fn ring_server_has_160_points_unless_rounded_down() {
    // for these n, 1/n * 160 / 4 * n is below 40 in single precision
    let rounded = [25, 47, 50, 55, 61, 71, 94, 100];
    for count in 1..=100 {
        let each = if rounded.contains(&count) { 156 } else { 160 };
        assert_eq!(ring(&names(count, |_| 11_211), |_| 1, &[]).len(), count * each, "{count}");
    }
}

#[test]
fn what_is_no_ring_is_refused() {
    let server = Server { ring_name: "a", weight: 1, is_ejected: false };
    let ejected = Server { is_ejected: true, ..server };
    assert_eq!(Ring::build(&[]), Err(RingError::NoServers));
    assert_eq!(Ring::build(&[ejected, ejected]), Err(RingError::NoServers));
    assert_eq!(Ring::build(&[server, Server { weight: 0, ..server }]), Err(RingError::NoWeight { index: 1 }));
    assert_eq!(Ring::build(&[server; 65_536]), Err(RingError::TooManyServers { count: 65_536 }));
    let most = Server { weight: u32::MAX, ..server };
    assert!(!Ring::build(&[most, most, server]).unwrap().is_empty());
}

/// Finds the server for a hash by comparing all points. The result is the usable point at the
/// smallest distance in ascending direction around the circle.
fn slow(points: &[(u32, u16)], hash: u32, usable: &HashSet<u16>) -> Option<u16> {
    let usable = points.iter().filter(|(_, owner)| usable.contains(owner));
    usable.min_by_key(|(point, owner)| (point.wrapping_sub(hash), *owner)).map(|&(_, owner)| owner)
}

#[test]
fn lookup_spreads_64_bit_hashes_too() {
    let (ring, sip) = (ring(&names(4, |_| 11_211), |_| 1, &[]), crate::KeyHash::sip(1, 2));
    let mut keys = [0_u32; 4];
    for hash in (0_u32..4_000).map(|n| sip.hash(&n.to_le_bytes())) {
        assert_eq!(ring.lookup(hash), ring.lookup(hash & 0xffff_ffff));
        keys[usize::from(ring.lookup(hash))] += 1;
    }
    assert!(keys.iter().all(|count| (600..1_500).contains(count)), "{keys:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn the_owner_is_the_nearest_usable_point_upwards(
        weights in vec(1_u32..9, 1..6), hashes in vec(any::<u32>(), 10), usable in prop::collection::hash_set(0_u16..6, 0..6),
    ) {
        let ring = ring(&names(weights.len(), |_| 11_211), |index| weights[index], &[]);
        let points: Vec<(u32, u16)> = ring.points.iter().copied().zip(ring.owners.iter().copied()).collect();
        let all = (0..6).collect();
        let ends = points.iter().step_by(37).flat_map(|&(point, _)| [point.wrapping_sub(1), point, point.wrapping_add(1)]);
        for hash in hashes.into_iter().chain([0, u32::MAX]).chain(ends) {
            prop_assert_eq!(Some(ring.lookup(hash.into())), slow(&points, hash, &all));
            let chosen = ring.choose(hash.into(), |owner| usable.contains(&owner));
            prop_assert_eq!(chosen.map(|chosen| chosen.server), slow(&points, hash, &usable));
            if let Some(chosen) = chosen {
                prop_assert_eq!(ring.iter().nth(chosen.point as usize).unwrap().1, chosen.server);
            }
        }
    }

    #[test]
    fn with_equal_weights_the_next_choice_is_where_clients_go(count in 2_usize..9, down in any::<prop::sample::Index>(), keys in vec(any::<[u8; 8]>(), 20)) {
        let (names, down) = (names(count, |_| 11_211), down.index(count));
        let (whole, rest) = (ring(&names, |_| 1, &[]), ring(&names, |_| 1, &[down]));
        for hash in keys.iter().flat_map(|key| [md5_ketama(key), fnv1a_64(key)]).map(u64::from) {
            let next = whole.choose(hash, |owner| usize::from(owner) != down).map(|chosen| chosen.server);
            prop_assert_eq!(next, Some(rest.lookup(hash)));
        }
    }
}
