//! What needs no kernel; the rest is in `tests/bpf.rs`.

use forwarder::Prefix;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_mark_tells_its_growth_and_a_unicast_address_tells_none() {
    for encap_overhead in 1..=MAX_ENCAP_OVERHEAD_BYTES {
        assert_eq!(head_room_bytes(encap_overhead * 2 + 1), encap_overhead);
    }
    for first_of_mac in (0..=254).step_by(2) {
        assert_eq!(head_room_bytes(first_of_mac), 0);
    }
}

fn prefix(address: &str, length: u8) -> Prefix {
    Prefix::new(ip(address), length).unwrap()
}

#[test]
fn a_growth_beyond_the_mark_is_refused_by_name() {
    let error = check(&Filter::of_vips([(ip("192.0.2.1"), 63), (ip("2001:db8::1"), 64)]), 9).unwrap_err();
    assert_eq!(error.to_string(), "2001:db8::1 wants 64 bytes of head room, at most 63 are allowed");
    let error = check(&Filter::new([], [(prefix("198.51.100.0", 24), 64)], []), 9).unwrap_err();
    assert_eq!(error.to_string(), "198.51.100.0/24 wants 64 bytes of head room, at most 63 are allowed");
}

#[test]
fn the_usual_overhead_is_that_of_most_and_of_as_many_the_larger() {
    for (vips, prefixes, usual) in [
        (&[][..], &[][..], 0),
        (&[24], &[], 24),
        (&[24, 44, 24], &[], 24),
        (&[24, 44], &[], 44),
        (&[24, 44], &[24], 24),
        (&[0, 0, 0], &[63, 63], 0),
    ] {
        let vips = (0..).zip(vips).map(|(n, bytes)| (IpAddr::from([203, 0, 113, n]), *bytes));
        let prefixes = (0..).zip(prefixes).map(|(n, bytes)| (prefix(&format!("198.18.{n}.0"), 24), *bytes));
        let filter = Filter::new(vips, prefixes, []);
        assert_eq!(filter.usual_encap_overhead(), usual, "{filter:?}");
    }
}

#[test]
fn vips_are_counted_after_doubles_and_mapped_addresses_are_joined() {
    let twice = Filter::of_vips([(ip("192.0.2.1"), 20), (ip("::ffff:192.0.2.1"), 24)]);
    check(&twice, 1).unwrap();
    assert_eq!(twice, Filter::of_vips([(ip("192.0.2.1"), 24)]));
    let error = check(&Filter::of_vips([(ip("192.0.2.1"), 0), (ip("192.0.2.2"), 0)]), 1).unwrap_err();
    assert_eq!(error.to_string(), "2 VIPs wanted, 1 allowed");
}

#[test]
fn there_is_room_for_64_prefixes_and_1024_addresses_of_the_machine() {
    let prefixes = |count: u8| (0..count).map(|n| (Prefix::new([198, 18, n, 0].into(), 24).unwrap(), 0));
    check(&Filter::new([], prefixes(64), []), 1).unwrap();
    let error = check(&Filter::new([], prefixes(65), []), 1).unwrap_err();
    assert_eq!(error.to_string(), "65 prefixes wanted, 64 allowed");
    let own =
        |count: u16| (0..count).map(|n| IpAddr::from([198, 18, n.to_be_bytes()[0], n.to_be_bytes()[1]]));
    let with = |count| Filter::new([], [(prefix("198.18.0.0", 15), 0)], own(count));
    check(&with(1_024), 1).unwrap();
    let error = check(&with(1_025), 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "1025 of this machine's addresses lie in prefixes of VIPs, 1024 are allowed"
    );
}

#[test]
fn only_addresses_of_the_machine_that_a_prefix_would_take_have_an_entry() {
    let own = ["192.0.2.1", "198.51.100.1", "198.51.100.2", "::ffff:198.51.100.3", "2001:db8::1"].map(ip);
    let filter = Filter::new([(ip("198.51.100.2"), 24)], [(prefix("198.51.100.0", 24), 20)], own);
    let entries: Vec<(String, u32)> = filter.entries().map(|(a, value)| (a.to_string(), value)).collect();
    let expected = [("198.51.100.1", 64), ("198.51.100.3", 64), ("198.51.100.2", 24)];
    assert_eq!(entries, expected.map(|(address, value)| (address.to_owned(), value)));
}
