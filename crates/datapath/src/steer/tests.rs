//! Tests of the filter that need no kernel. The tests that need a kernel are in `tests/bpf`.

use forwarder::Prefix;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn head_room_bytes_reads_marks_and_unicast_addresses() {
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
fn check_refuses_an_overhead_beyond_the_mark() {
    let error = check(&Filter::of_vips([(ip("192.0.2.1"), 63), (ip("2001:db8::1"), 64)]), 9).unwrap_err();
    assert_eq!(error.to_string(), "2001:db8::1 needs 64 bytes of headroom, but at most 63 are supported");
    let error = check(&Filter::new([], [(prefix("198.51.100.0", 24), 64)], []), 9).unwrap_err();
    assert_eq!(error.to_string(), "198.51.100.0/24 needs 64 bytes of headroom, but at most 63 are supported");
}

#[test]
fn filter_usual_overhead_is_the_most_frequent_one() {
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
fn filter_joins_duplicates_and_mapped_addresses() {
    let twice = Filter::of_vips([(ip("192.0.2.1"), 20), (ip("::ffff:192.0.2.1"), 24)]);
    check(&twice, 1).unwrap();
    assert_eq!(twice, Filter::of_vips([(ip("192.0.2.1"), 24)]));
    let error = check(&Filter::of_vips([(ip("192.0.2.1"), 0), (ip("192.0.2.2"), 0)]), 1).unwrap_err();
    assert_eq!(error.to_string(), "2 VIP addresses exceed io.max_vips = 1");
}

#[test]
fn check_allows_64_prefixes_and_1024_own_addresses() {
    let prefixes = |count: u8| (0..count).map(|n| (Prefix::new([198, 18, n, 0].into(), 24).unwrap(), 0));
    check(&Filter::new([], prefixes(64), []), 1).unwrap();
    let error = check(&Filter::new([], prefixes(65), []), 1).unwrap_err();
    assert_eq!(error.to_string(), "65 VIP prefixes exceed the limit of 64");
    let own =
        |count: u16| (0..count).map(|n| IpAddr::from([198, 18, n.to_be_bytes()[0], n.to_be_bytes()[1]]));
    let with = |count| Filter::new([], [(prefix("198.18.0.0", 15), 0)], own(count));
    check(&with(1_024), 1).unwrap();
    let error = check(&with(1_025), 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "1025 addresses of this machine are inside VIP prefixes, which exceeds the limit of 1024"
    );
}

#[test]
fn filter_has_own_addresses_only_inside_prefixes() {
    let own = ["192.0.2.1", "198.51.100.1", "198.51.100.2", "::ffff:198.51.100.3", "2001:db8::1"].map(ip);
    let filter = Filter::new([(ip("198.51.100.2"), 24)], [(prefix("198.51.100.0", 24), 20)], own);
    let entries: Vec<(String, u32)> = filter.entries().map(|(a, value)| (a.to_string(), value)).collect();
    let expected = [("198.51.100.1", 64), ("198.51.100.3", 64), ("198.51.100.2", 24)];
    assert_eq!(entries, expected.map(|(address, value)| (address.to_owned(), value)));
}
