//! What needs no kernel; the rest is in `tests/bpf.rs`.

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_mark_tells_its_growth_and_a_unicast_address_tells_none() {
    for growth in 1..=MAX_GROWTH_BYTES {
        assert_eq!(head_room_bytes(growth * 2 + 1), growth);
    }
    for first_of_mac in (0..=254).step_by(2) {
        assert_eq!(head_room_bytes(first_of_mac), 0);
    }
}

#[test]
fn a_growth_beyond_the_mark_is_refused_by_name() {
    let error = checked([(ip("192.0.2.1"), 63), (ip("2001:db8::1"), 64)], 9).unwrap_err();
    assert_eq!(error.to_string(), "2001:db8::1 wants 64 bytes of head room, at most 63 are allowed");
}

#[test]
fn vips_are_counted_after_doubles_and_mapped_addresses_are_joined() {
    let twice = [(ip("192.0.2.1"), 20), (ip("::ffff:192.0.2.1"), 24)];
    assert_eq!(checked(twice, 1).unwrap(), BTreeMap::from([(ip("192.0.2.1"), 24)]));
    let error = checked([(ip("192.0.2.1"), 0), (ip("192.0.2.2"), 0)], 1).unwrap_err();
    assert_eq!(error.to_string(), "2 VIPs wanted, 1 allowed");
}
