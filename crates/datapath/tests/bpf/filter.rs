//! Tests of the filter: addresses, prefixes, excluded addresses of the machine, and changes without
//! interruption.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use datapath::AttachError;
use datapath::steer::{Changed, Filter, Steer, SteerCounts, SteerError, SteerOptions};
use forwarder::Prefix;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::bed;
use crate::frames::{frame, ip, udp};
use crate::run::{PASS, Program, REDIRECT};
use crate::steer::{OPTIONS, Receiver, difference, to};

fn prefix(address: &str, length: u8) -> Prefix {
    Prefix::new(ip(address), length).unwrap()
}

#[test]
fn filter_prefix_excludes_own_addresses_and_link_traffic() {
    bed::enter();
    let mut steer = Steer::attach("near", &OPTIONS).unwrap();
    let receiver = Receiver::on(0);
    steer.set_socket(0, receiver.rx.fd()).unwrap();
    let program = Program::on_near();
    let filter = Filter::new(
        [ip("198.51.100.9")],
        [prefix("198.51.100.0", 25), prefix("198.51.100.64", 26), prefix("2001:db8:e::", 48)],
        ["198.51.100.1", "198.51.100.9", "2001:db8:e::1", "192.0.2.1"].map(ip),
    );
    let added = steer.set_filter(&filter).unwrap();
    assert_eq!(
        added,
        Changed { added: 6, ..Changed::default() },
        "three prefixes, one VIP, two own addresses"
    );
    let udp = udp(80, b"x");
    let redirected = SteerCounts { redirected: 1, ..SteerCounts::default() };
    let passed = SteerCounts { passed: 1, ..SteerCounts::default() };
    let discovery = SteerCounts { neighbour_discovery: 1, ..SteerCounts::default() };
    let rows = [
        (to("198.51.100.0", 17, &udp), REDIRECT, redirected),
        (to("198.51.100.63", 17, &udp), REDIRECT, redirected),
        (to("198.51.100.64", 17, &udp), REDIRECT, redirected),
        (to("198.51.100.9", 17, &udp), REDIRECT, redirected),
        (to("198.51.100.1", 17, &udp), PASS, passed),
        (to("198.51.100.128", 17, &udp), PASS, passed),
        (to("198.51.100.255", 17, &udp), PASS, passed),
        (to("192.0.2.1", 17, &udp), PASS, passed),
        (to("2001:db8:e::", 17, &udp), REDIRECT, redirected),
        (to("2001:db8:e:ffff:ffff:ffff:ffff:ffff", 17, &udp), REDIRECT, redirected),
        (to("2001:db8:e::1", 17, &udp), PASS, passed),
        (to("2001:db8:f::", 17, &udp), PASS, passed),
        (to("::ffff:198.51.100.0", 17, &udp), PASS, passed),
        (to("2001:db8:e::2", 58, &[135, 0]), PASS, discovery),
        (to("2001:db8:e::2", 58, &[128, 0]), REDIRECT, redirected),
    ];
    for (row, (packet, verdict, moved)) in rows.iter().enumerate() {
        let (before, frame) = (steer.counts().unwrap(), frame(0, packet));
        assert_eq!(program.run(&frame, 0).0, *verdict, "row {row}");
        assert_eq!(difference(&steer.counts().unwrap(), &before), *moved, "row {row}");
    }
    steer.set_filter(&Filter::default()).unwrap();
    assert_eq!(program.run(&frame(0, &rows[0].0), 0).0, PASS);
}

/// A prefix, its length, and the indices of the test addresses that it contains.
type Candidate = (&'static str, u8, fn(usize) -> bool);
const CANDIDATES: [Candidate; 8] = [
    ("203.0.113.0", 24, |n| n % 2 == 0),
    ("203.0.113.0", 28, |n| n % 2 == 0 && n < 16),
    ("203.0.113.8", 29, |n| n % 2 == 0 && (8..16).contains(&n)),
    ("203.0.113.16", 28, |n| n % 2 == 0 && n >= 16),
    ("2001:db8:f::", 64, |n| n % 2 == 1),
    ("2001:db8:f::", 124, |n| n % 2 == 1 && n < 10),
    ("2001:db8:f::", 125, |n| n % 2 == 1 && n < 8),
    ("2001:db8:f::10", 124, |n| n % 2 == 1 && n > 10),
];

/// A filter whose addresses and prefixes are given by index.
#[derive(Clone, Debug, Default)]
struct Wanted {
    vips: BTreeSet<usize>,
    prefixes: BTreeSet<usize>,
    own: BTreeSet<usize>,
}

impl Wanted {
    /// Returns the expected result for address `n` by searching all entries.
    fn takes(&self, n: usize) -> bool {
        if self.vips.contains(&n) || self.own.contains(&n) {
            return self.vips.contains(&n);
        }
        self.prefixes.iter().any(|of| CANDIDATES[*of].2(n))
    }

    fn filter(&self, addresses: &[String]) -> Filter {
        let address = |n: &usize| ip(&addresses[*n]);
        let prefixes = self.prefixes.iter().map(|n| prefix(CANDIDATES[*n].0, CANDIDATES[*n].1));
        Filter::new(self.vips.iter().map(address), prefixes, self.own.iter().map(address))
    }
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let vips = prop::collection::btree_set(0_usize..20, 0..=10);
    let prefixes = prop::collection::btree_set(0..CANDIDATES.len(), 0..=6);
    let own = prop::collection::btree_set(0_usize..20, 0..=6);
    (vips, prefixes, own).prop_map(|(vips, prefixes, own)| Wanted { vips, prefixes, own })
}

#[test]
fn filter_matches_the_model_during_and_after_changes() {
    bed::enter();
    let mut steer = Steer::attach("near", &OPTIONS).unwrap();
    let receiver = Receiver::on(0);
    steer.set_socket(0, receiver.rx.fd()).unwrap();
    let program = Program::on_near();
    let addresses: Vec<String> = (0..20)
        .map(|n| if n % 2 == 0 { format!("203.0.113.{n}") } else { format!("2001:db8:f::{n}") })
        .collect();
    let mut held = Wanted::default();
    let steps = std::cell::RefCell::new((&mut steer, &mut held));
    let config = ProptestConfig {
        cases: 300,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..ProptestConfig::default()
    };
    TestRunner::new(config)
        .run(&prop::collection::vec(wanted(), 1..5), |sets| {
            let mut steps = steps.borrow_mut();
            let (steer, held) = &mut *steps;
            let taken = |n: usize| program.run(&frame(0, &to(&addresses[n], 17, b"")), 0).0 == REDIRECT;
            for next in sets {
                let filter = next.filter(&addresses);
                steer.narrow_to(&filter).unwrap();
                for (n, address) in addresses.iter().enumerate() {
                    let (before, after, now) = (held.takes(n), next.takes(n), taken(n));
                    prop_assert_eq!(now, before && after, "halfway {}", address);
                }
                match steer.set_filter(&filter) {
                    Err(SteerError::TooManyVips { wanted, allowed: 8 }) => {
                        prop_assert!(wanted == next.vips.len() && wanted > 8);
                        let between = Wanted { prefixes: BTreeSet::new(), ..Wanted::default() };
                        steer.set_filter(&between.filter(&addresses)).unwrap();
                        **held = between;
                        continue;
                    }
                    other => prop_assert!(other.is_ok() && next.vips.len() <= 8, "{:?}", other),
                }
                for (n, address) in addresses.iter().enumerate() {
                    prop_assert_eq!(taken(n), next.takes(n), "{}", address);
                    prop_assert_eq!(steer.filter().takes(ip(address)), next.takes(n), "{}", address);
                }
                prop_assert_eq!(steer.filter(), &filter);
                **held = next;
            }
            Ok(())
        })
        .unwrap();
}

/// Generates the leading bits of an address, and its width of 32 or 128 bits. Many of the generated
/// prefixes are nested or differ only in their last bits.
fn crowd() -> impl Strategy<Value = (usize, String)> {
    let bits = |most| {
        prop::collection::vec(any::<bool>(), 0..=most)
            .prop_map(|bits| bits.iter().map(|bit| if *bit { '1' } else { '0' }).collect::<String>())
    };
    let shared = prop::sample::select(vec![0_usize, 1, 7, 20, 58, 63, 64, 70, 110]);
    (any::<bool>(), shared, bits(3), prop::sample::select(vec![0_usize, 9, 40]), bits(9)).prop_map(
        |(is_v4, shared, early, gap, late)| {
            let width = if is_v4 { 32 } else { 128 };
            let all = "10".repeat(55)[..shared.min(width)].to_owned() + &early + &"1".repeat(gap) + &late;
            (width, all[..all.len().min(width)].to_owned())
        },
    )
}

fn from_digits(digits: &str) -> IpAddr {
    match digits.len() {
        32 => IpAddr::V4(u32::from_str_radix(digits, 2).unwrap().into()),
        _ => IpAddr::V6(u128::from_str_radix(digits, 2).unwrap().into()),
    }
}

#[test]
fn filter_prefixes_match_a_walk_over_digits() {
    bed::enter();
    let mut steer = Steer::attach("near", &OPTIONS).unwrap();
    let receiver = Receiver::on(0);
    steer.set_socket(0, receiver.rx.fd()).unwrap();
    let program = Program::on_near();
    let steer = std::cell::RefCell::new(&mut steer);
    let config = ProptestConfig {
        cases: 120,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..ProptestConfig::default()
    };
    let prefixes = prop::collection::btree_set(crowd(), 1..=64);
    let turned = (any::<prop::sample::Index>(), 0_usize..128, any::<u128>());
    TestRunner::new(config)
        .run(&(prefixes, prop::collection::vec(turned, 40)), |(prefixes, turned)| {
            let entries = prefixes.iter().map(|(width, front)| {
                let address = from_digits(&format!("{front:0<width$}"));
                Prefix::new(address, u8::try_from(front.len()).unwrap()).unwrap()
            });
            steer.borrow_mut().set_filter(&Filter::new([], entries, [])).unwrap();
            let fronts: Vec<_> = prefixes.iter().collect();
            for (of, at, rest) in turned {
                // Each probed address starts with a prefix and continues with random bits. One bit
                // is flipped, inside the prefix or after it.
                let (width, front) = of.get(&fronts);
                let mut probe = front.clone() + &format!("{rest:0128b}")[..width - front.len()];
                let at = at % width;
                let other = if &probe[at..=at] == "0" { "1" } else { "0" };
                probe.replace_range(at..=at, other);
                let holding = prefixes.iter().filter(|(of, front)| of == width && probe.starts_with(front));
                let (verdict, _) = program.run(&frame(0, &to(&from_digits(&probe).to_string(), 17, b"")), 0);
                prop_assert_eq!(verdict == REDIRECT, holding.count() > 0, "{}", probe);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn filter_full_set_is_replaced_in_one_call() {
    bed::enter();
    let mut steer = Steer::attach("near", &SteerOptions { max_vips: 1_000, ..OPTIONS }).unwrap();
    let receiver = Receiver::on(0);
    steer.set_socket(0, receiver.rx.fd()).unwrap();
    let program = Program::on_near();
    let vip = |third: u8, n: u16| match (n % 2, n.to_be_bytes()) {
        (0, [high, low]) => IpAddr::from([198, 18 + third, high, low]),
        _ => IpAddr::from([0x2001, 0xdb8, 0xff00 + u16::from(third), n, 0, 0, 0, 0]),
    };
    let set = |third: u8| {
        let vips = (0..1_000).map(move |n| vip(third, n));
        let address =
            move |net: u16, host: u16| IpAddr::from([0x2001, 0xdb8, third.into(), net, 0, 0, 0, host]);
        let prefixes = (0..64).map(move |n| Prefix::new(address(n, 0), 64).unwrap());
        let own = (0..1_024).map(move |n| address(0, n));
        Filter::new(vips, prefixes, own)
    };
    let all = 1_000 + 64 + 1_024;
    assert_eq!(steer.set_filter(&set(0)).unwrap(), Changed { added: all, removed: 0 });
    assert_eq!(steer.set_filter(&set(1)).unwrap(), Changed { added: all, removed: all });
    assert_eq!(steer.set_filter(&set(1)).unwrap(), Changed::default());
    let verdict = |to_vip: IpAddr| program.run(&frame(0, &to(&to_vip.to_string(), 17, b"")), 0).0;
    for n in 0..1_000 {
        assert_eq!((verdict(vip(0, n)), verdict(vip(1, n))), (PASS, REDIRECT), "VIP {n}");
    }
    for nobody in ["0.0.0.0", "::"] {
        assert_eq!(verdict(ip(nobody)), PASS, "empty slots match no address");
    }
    assert_eq!(steer.set_filter(&Filter::default()).unwrap(), Changed { removed: all, ..Changed::default() });
}

/// Returns a number without a pattern that differs for each `n`. Each step is reversible.
fn irregular(n: u32) -> u32 {
    let n = n.wrapping_mul(0x9e37_79b9);
    let n = (n ^ n >> 15).wrapping_mul(0x85eb_ca6b);
    n ^ n >> 13
}

#[test]
fn filter_full_set_in_one_network_is_found() {
    bed::enter();
    let mut steer = Steer::attach("near", &SteerOptions { max_vips: 4_096, ..OPTIONS }).unwrap();
    let receiver = Receiver::on(0);
    steer.set_socket(0, receiver.rx.fd()).unwrap();
    let program = Program::on_near();
    // All addresses have the same first 12 bytes.
    let last = |n: u32| Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(irregular(n)));
    let vips = |set: u32| (0..4_096).map(move |n| IpAddr::V6(last(set * 8_192 + n)));
    let own = |set: u32| (4_096..5_120).map(move |n| IpAddr::V6(last(set * 8_192 + n)));
    let filter = |set: u32| Filter::new(vips(set), [prefix("2001:db8::", 96)], own(set));
    let verdict = |address: IpAddr| program.run(&frame(0, &to(&address.to_string(), 17, b"")), 0).0;
    for set in [0, 1] {
        steer.set_filter(&filter(set)).unwrap();
        assert!(vips(set).all(|vip| verdict(vip) == REDIRECT), "all VIPs of set {set} are found");
        assert!(own(set).all(|address| verdict(address) == PASS), "all addresses of the machine are found");
    }
    assert!(own(0).all(|address| verdict(address) == REDIRECT), "the previous set is gone");
    let vips_alone = |set| Filter::of_vips(vips(set));
    steer.set_filter(&vips_alone(0)).unwrap();
    assert!(vips(0).all(|vip| verdict(vip) == REDIRECT) && vips(1).all(|vip| verdict(vip) == PASS));
}

#[test]
fn filter_without_room_names_its_table_and_changes_nothing() {
    bed::enter();
    let mut steer = Steer::attach("near", &SteerOptions { max_vips: 4_096, ..OPTIONS }).unwrap();
    let receiver = Receiver::on(0);
    steer.set_socket(0, receiver.rx.fd()).unwrap();
    let before = Filter::of_vips([ip("2001:db8::1")]);
    steer.set_filter(&before).unwrap();
    // For every hash, addresses in which bytes 4 to 7 repeat bytes 0 to 3 share one second bucket.
    let repeated = |n: u32| {
        let first = u128::from(irregular(n));
        IpAddr::V6((first << 96 | first << 64 | 1).into())
    };
    let error = steer.set_filter(&Filter::of_vips((0..4_096).map(repeated))).unwrap_err();
    assert!(matches!(error, SteerError::Attach(AttachError::Map { map: "vips6", .. })), "{error}");
    assert_eq!(steer.filter(), &before);
    let verdict = |address| Program::on_near().run(&frame(0, &to(address, 17, b"")), 0).0;
    assert_eq!((verdict("2001:db8::1"), verdict("2001:db8:2001:db8::1")), (REDIRECT, PASS));
}
