use proptest::prelude::*;

use super::*;

fn claim(address: u8, protocol: u8, ports: RangeInclusive<u16>, service: u32) -> Claim {
    Claim { vip: VipKey::Exact([address; 16]), protocol, ports, service }
}

fn exact(claims: &[Claim]) -> Result<VipTable, (u32, u32)> {
    VipTable::build(claims, [].into_iter())
}

#[test]
fn the_narrower_claim_wins_and_the_wider_fills_the_rest() {
    let table = exact(&[
        claim(1, 6, 0..=65535, 0),
        claim(1, 6, 8000..=8099, 1),
        claim(1, 6, 8050..=8050, 2),
        claim(1, 17, 53..=53, 3),
    ])
    .unwrap();
    let find = |protocol, port| table.find(&[1; 16], protocol, port);
    assert_eq!([7999, 8000, 8049, 8050, 8051, 8100].map(|p| find(6, p)), [0, 1, 1, 2, 1, 0].map(Some));
    assert_eq!((find(17, 53), find(17, 54), find(17, 0), find(1, 0)), (Some(3), None, None, None));
    assert_eq!(table.find(&[2; 16], 6, 80), None);
}

#[test]
fn equal_claims_clash() {
    let clash = exact(&[claim(1, 6, 80..=80, 4), claim(1, 6, 80..=80, 5)]);
    assert_eq!(clash.err(), Some((4, 5)));
}

#[test]
fn equals_that_a_narrower_claim_hides_do_not_clash_in_any_order() {
    let claims = [claim(1, 6, 23..=39, 0), claim(1, 6, 35..=51, 1), claim(1, 6, 30..=39, 2)];
    for [a, b, c] in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let table = exact(&[claims[a].clone(), claims[b].clone(), claims[c].clone()]).unwrap();
        assert_eq!([29, 35, 39, 40].map(|port| table.find(&[1; 16], 6, port)), [0, 2, 2, 1].map(Some));
    }
}

proptest! {
    /// Compares the result with a search of all claims for the narrowest claim that contains the
    /// port.
    #[test]
    fn agrees_with_a_walk_over_the_claims(
        raw in prop::collection::vec((0u8..4, 0u8..3, 0u16..40, 0u16..20), 0..12),
        probes in prop::collection::vec((0u8..5, 0u8..4, 0u16..70), 40),
    ) {
        let claims: Vec<Claim> = raw.iter().enumerate()
            .map(|(n, &(a, p, from, more))| claim(a, p, from..=from + more, index(n))).collect();
        let matching = |a: u8, p: u8, port: u16| {
            let mut hits: Vec<&Claim> = claims.iter()
                .filter(|c| c.vip == VipKey::Exact([a; 16]) && c.protocol == p && c.ports.contains(&port)).collect();
            hits.sort_by_key(|c| c.ports.end() - c.ports.start());
            hits
        };
        let clash = (0u8..4).any(|a| (0u8..3).any(|p| (0u16..70).any(|port| {
            let hits = matching(a, p, port);
            hits.len() > 1 && hits[0].ports.clone().count() == hits[1].ports.clone().count()
        })));
        match exact(&claims) {
            Err(_) => prop_assert!(clash),
            Ok(table) => {
                for (a, p, port) in probes {
                    let expected = matching(a, p, port).first().map(|c| c.service);
                    prop_assert_eq!(table.find(&[a; 16], p, port), expected);
                    prop_assert_eq!(table.find_exact(words_of(&[a; 16]), p, port), expected);
                    prop_assert_eq!(table.contains(&[a; 16]), claims.iter().any(|c| c.vip == VipKey::Exact([a; 16])));
                }
            }
        }
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ends(text: &str) -> (IpAddr, u8) {
    let (address, length) = text.split_once('/').unwrap();
    (ip(address), length.parse().unwrap())
}

/// Builds a table in which TCP port 80 of each VIP belongs to a service. Each VIP is given as a
/// group number and a suffix, such as `0 ::20/72`.
fn grouped(groups: &[&[&str]], vips: &[&str]) -> VipTable {
    let prefix = |text: &&str| Prefix::new(ends(text).0, ends(text).1).unwrap();
    let groups: Vec<Vec<Prefix>> = groups.iter().map(|group| group.iter().map(prefix).collect()).collect();
    let claims: Vec<Claim> = (0..)
        .zip(vips)
        .map(|(service, text)| {
            let vip = match text.split_once(' ') {
                Some((group, suffix)) => VipKey::Suffix(
                    group.parse().unwrap(),
                    Suffix::new(ends(suffix).0, ends(suffix).1).unwrap(),
                ),
                None => VipKey::Exact(crate::flow::mapped(ip(text))),
            };
            Claim { vip, protocol: 6, ports: 80..=80, service }
        })
        .collect();
    VipTable::build(&claims, groups.iter().map(Vec::as_slice)).unwrap()
}

fn find(table: &VipTable, address: &str) -> Option<u32> {
    let address = crate::flow::mapped(ip(address));
    let found = table.find(&address, 6, 80);
    assert_eq!(table.contains(&address), found.is_some(), "all VIPs serve port 80");
    found
}

#[test]
fn unlisted_prefix_inside_a_group_is_served() {
    let table = grouped(&[&["198.51.100.0/24", "2001:db8:e::/48"]], &["0 0.0.0.20/5", "0 ::20/72"]);
    for address in ["198.51.100.20", "198.51.100.52", "198.51.100.244"] {
        assert_eq!(find(&table, address), Some(0), "{address}");
    }
    for address in ["2001:db8:e::20", "2001:db8:e:100::20", "2001:db8:e:ff00::20"] {
        assert_eq!(find(&table, address), Some(1), "{address}");
    }
    for address in ["198.51.100.21", "203.0.113.20", "2001:db8:e::21", "2001:db8:e:1::20", "2001:db8:f::20"] {
        assert_eq!(find(&table, address), None, "{address}");
    }
}

#[test]
fn longest_prefix_selects_the_group() {
    let groups: [&[&str]; 3] = [&["198.18.0.0/15"], &["198.18.7.0/24"], &["198.19.0.0/16"]];
    let table = grouped(&groups, &["0 0.0.0.1/8", "1 0.0.0.2/8", "0 0.0.0.3/16"]);
    assert_eq!(find(&table, "198.18.6.1"), Some(0));
    assert_eq!(find(&table, "198.18.7.2"), Some(1));
    assert_eq!(find(&table, "198.18.7.1"), None, "the suffix is not in the group of the longer prefix");
    assert_eq!(find(&table, "198.19.0.1"), None, "the longest prefix belongs to a group without VIPs");
    assert_eq!(find(&table, "198.18.0.3"), Some(2));
    assert_eq!(find(&table, "198.18.6.3"), None);
}

#[test]
fn a_vip_that_lacks_the_port_is_not_made_good_by_another() {
    let groups = [vec![Prefix::new(ip("198.18.0.0"), 15).unwrap()]];
    let vip = |length, octets: &str| VipKey::Suffix(0, Suffix::new(ip(octets), length).unwrap());
    let claim = |vip, port, service| Claim { vip, protocol: 6, ports: port..=port, service };
    let claims = [
        claim(vip(8, "0.0.0.9"), 80, 0),
        claim(vip(16, "0.0.3.9"), 81, 1),
        claim(VipKey::Exact(crate::flow::mapped(ip("198.18.4.9"))), 82, 2),
    ];
    let table = VipTable::build(&claims, groups.iter().map(Vec::as_slice)).unwrap();
    let found = |address: &str| {
        let address = crate::flow::mapped(ip(address));
        ([80, 81, 82].map(|port| table.find(&address, 6, port)), table.contains(&address))
    };
    assert_eq!(found("198.18.2.9"), ([Some(0), None, None], true));
    assert_eq!(found("198.18.3.9"), ([None, Some(1), None], true), "longer suffix");
    assert_eq!(found("198.18.4.9"), ([None, None, Some(2)], true), "exact address");
    assert_eq!(found("198.18.4.8"), ([None; 3], false));
}

/// Builds the first bytes of an untagged frame, up to the destination address.
fn frame(digits: &str) -> Vec<u8> {
    let mut frame = vec![0; 12];
    match from_digits(digits) {
        IpAddr::V4(to) => {
            frame.extend([0x08, 0x00]);
            frame.extend([0; 16]);
            frame.extend(to.octets());
        }
        IpAddr::V6(to) => {
            frame.extend([0x86, 0xdd]);
            frame.extend([0; 24]);
            frame.extend(to.octets());
        }
    }
    frame
}

/// Returns the value of the longest matching entry, which a slow model finds digit by digit.
fn longest(entries: &[(String, bool)], low: bool, probe: &str) -> Option<u32> {
    let holds = |digits: &str| if low { probe.ends_with(digits) } else { probe.starts_with(digits) };
    let matching = (0..).zip(entries).filter(|(_, (digits, _))| holds(digits));
    matching.max_by_key(|(value, (digits, _))| (digits.len(), *value)).map(|(value, _)| value)
}

fn entry(space: u32, digits: &str, low: bool, value: u32) -> Entry {
    let all = if low { format!("{digits:0>128}") } else { format!("{digits:0<128}") };
    let bits = u128::from_str_radix(&all, 2).unwrap();
    Entry { space, bits, length: u8::try_from(digits.len()).unwrap(), value }
}

fn agrees<const LOW: bool>(entries: &[(String, bool)], probes: &[String]) -> Result<(), TestCaseError> {
    let of = |(digits, other): &(String, bool), value| entry(u32::from(*other), digits, LOW, value);
    let tree = Longest::<LOW>::build(3, (0..).zip(entries).map(|(value, e)| of(e, value)).collect());
    for probe in probes {
        let bits = u128::from_str_radix(probe, 2).unwrap();
        for space in [false, true] {
            let own = |e: &(String, bool)| if e.1 == space { e.clone() } else { ("x".into(), e.1) };
            let own: Vec<_> = entries.iter().map(own).collect();
            prop_assert_eq!(
                tree.find(u32::from(space), &halves(bits)),
                longest(&own, LOW, probe),
                "{}",
                probe
            );
        }
        prop_assert_eq!(
            (tree.find(2, &halves(bits)), tree.find(3, &halves(bits))),
            (None, None),
            "space without entries"
        );
    }
    Ok(())
}

/// Generates entries with long common prefixes, including entries of different lengths that contain
/// each other.
fn crowd() -> impl Strategy<Value = String> {
    let bits = |most| {
        prop::collection::vec(any::<bool>(), 0..=most)
            .prop_map(|bits| bits.iter().map(|bit| if *bit { '1' } else { '0' }).collect::<String>())
    };
    (
        prop::sample::select(vec![0usize, 1, 30, 58, 63, 64, 70, 110]),
        bits(3),
        prop::sample::select(vec![0usize, 9, 40]),
        bits(9),
    )
        .prop_map(|(shared, early, gap, late)| {
            let all = "10".repeat(55)[..shared].to_owned() + &early + &"1".repeat(gap) + &late;
            all[..all.len().min(128)].to_owned()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Entries share many bits, so that the tree has nested branches in both words of the address
    /// and across the boundary between the words.
    #[test]
    fn crowds_agree_with_a_walk_over_digits(
        ends in prop::collection::vec((crowd(), any::<bool>()), 0..120),
        turned in prop::collection::vec((any::<prop::sample::Index>(), 0usize..128, any::<bool>(), any::<u128>()), 40),
    ) {
        for low in [false, true] {
            let reverse = |digits: &String| if low { digits.chars().rev().collect() } else { digits.clone() };
            let ends: Vec<_> = ends.iter().map(|(digits, other)| (reverse(digits), *other)).collect();
            // A probe is an entry that is padded with one digit or with random digits. In some
            // probes, one digit is flipped.
            let probes: Vec<String> = turned.iter().filter(|_| !ends.is_empty()).map(|(of, at, one, rest)| {
                let digits = &of.get(&ends).0;
                let fill = if *one { "1".repeat(128) } else { format!("{rest:0128b}") };
                let missing = &fill[digits.len()..];
                let mut all = if low { missing.to_owned() + digits } else { digits.clone() + missing };
                let other = if &all[*at..=*at] == "0" { "1" } else { "0" };
                all.replace_range(*at..=*at, if *one { other } else { &fill[..1] });
                all
            }).collect();
            if low { agrees::<true>(&ends, &probes)?; } else { agrees::<false>(&ends, &probes)?; }
        }
    }
}

#[test]
fn tree_of_10000_entries_takes_less_than_200_bytes_per_entry() {
    // The test uses four kinds of entries: scattered entries, consecutive entries, hosts in
    // networks, and one entry far from all others.
    let kinds: [fn(u32) -> u128; 4] = [
        |n| u128::from(n.wrapping_mul(0x9e37_79b1)) << 64,
        u128::from,
        |n| u128::from(n % 100) << 100 | u128::from(n / 100) << 20,
        |n| if n == 0 { 1 << 127 } else { u128::from(n) },
    ];
    for kind in kinds {
        let entries = |low| {
            move |n| {
                let bits: u128 = if low { kind(n).reverse_bits() } else { kind(n) };
                Entry { space: 0, bits, length: 128, value: n }
            }
        };
        let (high, low) = (
            Longest::<false>::build(1, (0..10_000).map(entries(false)).collect()),
            Longest::<true>::build(1, (0..10_000).map(entries(true)).collect()),
        );
        assert!(high.bytes() / 10_000 < 200 && low.bytes() == high.bytes(), "{}", high.bytes() / 10_000);
        for n in (0..10_000).step_by(7) {
            assert_eq!(high.find(0, &halves(kind(n))), Some(n));
            assert_eq!(low.find(0, &halves(kind(n).reverse_bits())), Some(n));
        }
    }
}

fn from_digits(digits: &str) -> IpAddr {
    match digits.len() {
        32 => IpAddr::V4(u32::from_str_radix(digits, 2).unwrap().into()),
        _ => IpAddr::V6(u128::from_str_radix(digits, 2).unwrap().into()),
    }
}

/// Generates an address in which only the first and last 16 bits vary, so that prefixes and
/// suffixes match often.
fn seed() -> impl Strategy<Value = String> {
    (any::<bool>(), any::<u16>(), any::<u16>()).prop_map(|(wide, front, back)| {
        let middle = if wide { "01".repeat(48) } else { String::new() };
        format!("{front:016b}{middle}{back:016b}")
    })
}

proptest! {
    /// Compares the table with a digit-by-digit search of all prefixes and then of all suffixes.
    #[test]
    fn groups_agree_with_a_walk_over_digits(
        raw_prefixes in prop::collection::vec((0u32..4, seed(), 0usize..=128), 1..40),
        raw_suffixes in prop::collection::vec((0u32..4, seed(), 0usize..=128, 0u16..3), 1..40),
        raw_exact in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 0..5),
        probes in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), prop::option::of(0usize..32), 0u16..3), 60),
    ) {
        let mut prefixes: BTreeMap<String, u32> = BTreeMap::new();
        let mut seeds = vec!["0".repeat(32)];
        for (group, digits, length) in &raw_prefixes {
            let length = *length % (digits.len() + 1);
            // The map key begins with the address length, so that the empty prefixes of IPv4 and
            // IPv6 differ.
            prefixes.insert(format!("{}:{}", digits.len(), &digits[..length]), *group);
            seeds.push(digits.clone());
        }
        let mut suffixes: BTreeMap<(u32, String, u16), u32> = BTreeMap::new();
        for (service, (group, digits, length, port)) in (0..).zip(&raw_suffixes) {
            let from = digits.len() - *length % (digits.len() + 1);
            suffixes.insert((*group, format!("{}:{}", digits.len(), &digits[from..]), *port), service);
            seeds.push(digits.clone());
        }
        // Combines the start of one seed with the end of a different seed from the same address
        // family. In some results, one bit is flipped.
        let cross = |front: &prop::sample::Index, back: &prop::sample::Index, turned: Option<usize>| {
            let (front, back) = (front.get(&seeds), back.get(&seeds));
            let mut all = front[..front.len() - 16].to_owned() + &back[back.len() - 16..];
            if let Some(turned) = turned {
                let at = if turned < 16 { turned } else { all.len() - 32 + turned };
                let other = if &all[at..=at] == "0" { "1" } else { "0" };
                all.replace_range(at..=at, other);
            }
            all
        };
        let exact: BTreeMap<String, u32> =
            (1000..).zip(&raw_exact).map(|(service, (a, b))| (cross(a, b, None), service)).collect();
        let mut groups = vec![Vec::new(); 4];
        for (text, group) in &prefixes {
            let (width, front) = text.split_once(':').unwrap();
            let width: usize = width.parse().unwrap();
            let address = from_digits(&format!("{front:0<width$}"));
            groups[*group as usize].push(Prefix::new(address, u8::try_from(front.len()).unwrap()).unwrap());
        }
        let mut claims: Vec<Claim> = suffixes.iter().map(|((group, text, port), service)| {
            let (width, back) = text.split_once(':').unwrap();
            let width: usize = width.parse().unwrap();
            let suffix = Suffix::new(from_digits(&format!("{back:0>width$}")), u8::try_from(back.len()).unwrap()).unwrap();
            Claim { vip: VipKey::Suffix(*group, suffix), protocol: 6, ports: *port..=*port, service: *service }
        }).collect();
        claims.extend(exact.iter().map(|(digits, service)| {
            let vip = VipKey::Exact(crate::flow::mapped(from_digits(digits)));
            Claim { vip, protocol: 6, ports: 1..=1, service: *service }
        }));
        let table = VipTable::build(&claims, groups.iter().map(Vec::as_slice)).unwrap();
        let before = VipTable::build(&claims[..claims.len() / 2], groups.iter().map(Vec::as_slice)).unwrap();
        let frames: Vec<Vec<u8>> =
            probes.iter().map(|(front, back, turned, _)| frame(&cross(front, back, *turned))).collect();
        let (mut ahead, mut stale) = (BatchLookup::new(probes.len()), BatchLookup::new(probes.len()));
        ahead.look_up(&table, frames.iter().map(Vec::as_slice));
        stale.look_up(&before, frames.iter().map(Vec::as_slice));
        for (place, (front, back, turned, port)) in probes.iter().enumerate() {
            let probe = cross(front, back, *turned);
            let (expected, known) = walk(&prefixes, &suffixes, &exact, &probe, *port);
            let address = crate::flow::mapped(from_digits(&probe));
            prop_assert_eq!(table.find(&address, 6, *port), expected, "{}", &probe);
            prop_assert_eq!(table.contains(&address), known, "{}", &probe);
            // Looks up the address in advance for this packet, for the next packet, and with
            // another table.
            for (ahead, place) in [(&ahead, place), (&ahead, place + 1), (&stale, place)] {
                let flow = Flow { source: [0; 16], destination: address, source_port: 1, destination_port: *port, protocol: 6 };
                prop_assert_eq!(table.find_ahead(ahead, place, &flow), expected, "{}", &probe);
            }
        }
    }
}

/// Returns the service of an address and port, and `true` if the address has any service.
fn walk(
    prefixes: &BTreeMap<String, u32>,
    suffixes: &BTreeMap<(u32, String, u16), u32>,
    exact: &BTreeMap<String, u32>,
    probe: &str,
    port: u16,
) -> (Option<u32>, bool) {
    if let Some(service) = exact.get(probe) {
        return ((port == 1).then_some(*service), true);
    }
    let width = format!("{}:", probe.len());
    let front = prefixes
        .iter()
        .filter(|(text, _)| text.strip_prefix(&width).is_some_and(|digits| probe.starts_with(digits)));
    let Some((_, group)) = front.max_by_key(|(text, _)| text.len()) else { return (None, false) };
    let back: Vec<_> = suffixes
        .iter()
        .filter(|((of, text, _), _)| {
            of == group && text.strip_prefix(&width).is_some_and(|digits| probe.ends_with(digits))
        })
        .collect();
    let Some(longest) = back.iter().map(|((_, text, _), _)| text.len()).max() else { return (None, false) };
    let service = back.iter().find(|((_, text, has), _)| text.len() == longest && *has == port);
    (service.map(|(_, service)| **service), true)
}
