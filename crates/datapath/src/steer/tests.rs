//! Tests of the filter that need no kernel. The tests that need a kernel are in `tests/bpf`.

use std::net::IpAddr;

use forwarder::Prefix;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(address: &str, length: u8) -> Prefix {
    Prefix::new(ip(address), length).unwrap()
}

#[test]
fn filter_joins_duplicates_and_mapped_addresses() {
    let twice = Filter::of_vips([ip("192.0.2.1"), ip("::ffff:192.0.2.1")]);
    check(&twice, 1).unwrap();
    assert_eq!(twice, Filter::of_vips([ip("192.0.2.1")]));
    let error = check(&Filter::of_vips([ip("192.0.2.1"), ip("192.0.2.2")]), 1).unwrap_err();
    assert_eq!(error.to_string(), "2 VIP addresses exceed io.max_vips = 1");
}

#[test]
fn check_allows_64_prefixes_and_1024_own_addresses() {
    let prefixes = |count: u8| (0..count).map(|n| Prefix::new([198, 18, n, 0].into(), 24).unwrap());
    check(&Filter::new([], prefixes(64), []), 1).unwrap();
    let error = check(&Filter::new([], prefixes(65), []), 1).unwrap_err();
    assert_eq!(error.to_string(), "65 VIP prefixes exceed the limit of 64");
    let own =
        |count: u16| (0..count).map(|n| IpAddr::from([198, 18, n.to_be_bytes()[0], n.to_be_bytes()[1]]));
    let with = |count| Filter::new([], [prefix("198.18.0.0", 15)], own(count));
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
    let filter = Filter::new([ip("198.51.100.2")], [prefix("198.51.100.0", 24)], own);
    assert_eq!(filter.own, ["198.51.100.1", "198.51.100.3"].map(ip).into());
    let changed = Filter::of_vips([ip("192.0.2.9")]).changes_to(&filter);
    assert_eq!(changed, Changed { added: 4, removed: 1 });
}

#[test]
fn held_filter_is_written_again_after_a_failed_change() {
    let [first, second] = ["192.0.2.1", "192.0.2.2"].map(|vip| Filter::of_vips([ip(vip)]));
    let mut held = HeldFilter::default();
    let both = Changed { added: 1, removed: 1 };
    let mut writes = 0;
    let mut change = |to: &Filter, result: Result<(), ()>| {
        let changed = held.change(to, |_| {
            writes += 1;
            result
        });
        (changed, writes)
    };
    assert_eq!(change(&first, Ok(())), (Ok(Changed { added: 1, removed: 0 }), 1));
    assert_eq!(change(&first, Ok(())), (Ok(Changed::default()), 1), "the maps contain the filter");
    assert_eq!(change(&second, Err(())), (Err(()), 2));
    // The maps may contain either of the two filters.
    assert_eq!(change(&first, Ok(())), (Ok(Changed::default()), 3));
    assert_eq!(change(&first, Ok(())), (Ok(Changed::default()), 3));
    assert_eq!(change(&second, Err(())), (Err(()), 4));
    assert_eq!(change(&second, Ok(())), (Ok(both), 5));
    let mut handed = HeldFilter::handed(first.clone());
    assert_eq!(handed.change(&first, |_| Err(())), Err(()), "the first change writes the maps");
}
