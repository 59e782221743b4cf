//! Finds the size of the largest packet that reaches each backend. The module pings all backends in
//! parallel with the don't-fragment flag, and finds the sizes by binary search. The number and the
//! duration of the rounds are bounded.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use datapath::interface::Pinger;

use crate::facts::Reach;

/// The results of the pings, and the reasons why address families could not be pinged.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) reach: HashMap<IpAddr, Reach>,
    pub(crate) unasked: Vec<String>,
}

/// Pings each address with packets up to the given size. The source address of the pings is the
/// first address of the same family in `sources`, if it is a local address.
///
/// # Cost
/// Takes milliseconds if all backends answer, and about ten seconds if a backend is silent or loses
/// large packets.
pub(crate) fn ask(targets: &BTreeMap<IpAddr, u32>, sources: &[IpAddr]) -> Heard {
    let mut heard = Heard::default();
    for ipv4 in [true, false] {
        let family: Vec<(IpAddr, u32)> =
            targets.iter().filter(|(to, _)| to.is_ipv4() == ipv4).map(|(to, asked)| (*to, *asked)).collect();
        if family.is_empty() {
            continue;
        }
        match open(ipv4, sources) {
            Ok(pinger) => {
                let mut sequence = 0;
                let found = search(ipv4, &family, &mut |sizes| round(&pinger, &mut sequence, sizes));
                heard.reach.extend(family.iter().map(|(to, _)| *to).zip(found));
            }
            Err(error) => {
                let version = if ipv4 { 4 } else { 6 };
                heard.unasked.push(format!("cannot open an IPv{version} ICMP socket ({error})"));
            }
        }
    }
    heard
}

fn open(ipv4: bool, sources: &[IpAddr]) -> io::Result<Pinger> {
    let source = sources.iter().copied().find(|source| source.is_ipv4() == ipv4);
    // A source address that is not local is reported by another finding.
    Pinger::open(ipv4, source).or_else(|_| Pinger::open(ipv4, None))
}

/// Sends one ping of the given size to each address and returns the addresses that answered. Each
/// ping is repeated once, because packets may be lost.
fn round(pinger: &Pinger, sequence: &mut u16, sizes: &[(IpAddr, u32)]) -> BTreeSet<IpAddr> {
    let mut answered = BTreeSet::new();
    // The timeout of the first round is longer, because the kernel may have to resolve neighbors.
    let patience = if *sequence == 0 { FIRST_PATIENCE } else { PATIENCE };
    for _ in 0..ATTEMPTS {
        let mut sent = HashSet::new();
        let missing = sizes.iter().filter(|(to, _)| !answered.contains(to)).collect::<Vec<_>>();
        for burst in missing.chunks(BURST) {
            for (to, size) in burst {
                *sequence = sequence.wrapping_add(1);
                if pinger.send(*to, *sequence, *size as usize).is_ok() {
                    sent.insert((*to, *sequence));
                }
            }
            listen(pinger, BETWEEN_BURSTS, &mut sent, &mut answered);
        }
        listen(pinger, patience, &mut sent, &mut answered);
        if answered.len() == sizes.len() {
            break;
        }
    }
    answered
}

/// Receives replies until all pings are answered or `patience` has passed.
fn listen(
    pinger: &Pinger,
    patience: Duration,
    sent: &mut HashSet<(IpAddr, u16)>,
    answered: &mut BTreeSet<IpAddr>,
) {
    let end = Instant::now() + patience;
    while !sent.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        let Ok(Some(reply)) = pinger.receive(left) else { return };
        if sent.remove(&reply) {
            answered.insert(reply.0);
        }
    }
}

/// Sends a ping of the given size to each address, and returns the addresses that answered.
type Pass<'a> = &'a mut dyn FnMut(&[(IpAddr, u32)]) -> BTreeSet<IpAddr>;

/// Returns the largest packet size that reaches each target, in the order of `targets`.
fn search(ipv4: bool, targets: &[(IpAddr, u32)], pass: Pass<'_>) -> Vec<Reach> {
    let floor = if ipv4 { SMALL_V4 } else { SMALL_V6 };
    let small: Vec<_> = targets.iter().map(|(to, asked)| (*to, floor.min(*asked))).collect();
    let alive = pass(&small);
    let full: Vec<_> = targets.iter().copied().filter(|(to, _)| alive.contains(to)).collect();
    let passed = if full.is_empty() { BTreeSet::new() } else { pass(&full) };
    // The bounds of the binary search for each target that did not answer a full-size packet. The
    // lower bound is the largest size that was answered, and the upper bound is the smallest size
    // that was not.
    let lost = full.iter().filter(|(to, _)| !passed.contains(to));
    let mut bounds: BTreeMap<IpAddr, (u32, u32)> =
        lost.map(|(to, asked)| (*to, (floor.min(*asked), *asked))).collect();
    loop {
        let halves: Vec<_> = bounds
            .iter()
            .filter(|(_, (low, high))| high - low > 1)
            .map(|(to, (low, high))| (*to, low.midpoint(*high)))
            .collect();
        if halves.is_empty() {
            break;
        }
        let passed = pass(&halves);
        for (to, half) in halves {
            if let Some((low, high)) = bounds.get_mut(&to) {
                *(if passed.contains(&to) { low } else { high }) = half;
            }
        }
    }
    let reach = |(to, asked): &(IpAddr, u32)| match bounds.get(to) {
        Some((low, _)) => Reach::Longest(*low),
        None if passed.contains(to) => Reach::Longest(*asked),
        None => Reach::Silent,
    };
    targets.iter().map(reach).collect()
}

/// The packet sizes that every host must accept: 576 bytes for IPv4 (RFC 1122 §3.3.2) and 1,280
/// bytes for IPv6 (RFC 8200 §5).
const SMALL_V4: u32 = 576;
const SMALL_V6: u32 = 1_280;
const ATTEMPTS: usize = 2;
/// The kernel repeats a neighbor request once a second. The timeout leaves enough time for one
/// repetition.
const FIRST_PATIENCE: Duration = Duration::from_millis(1_500);
const PATIENCE: Duration = Duration::from_millis(400);
/// The number of pings in a burst. The replies to a burst fit into the socket buffer.
const BURST: usize = 64;
const BETWEEN_BURSTS: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates hosts. Returns the result for each host, and the number of rounds. Each host has a
    /// requested size and a path MTU. An MTU of 0 represents a host that is down.
    fn found(ipv4: bool, hosts: &[(u32, u32)]) -> (Vec<Reach>, usize) {
        let address = |n: usize| -> IpAddr {
            if ipv4 { format!("198.18.1.{n}") } else { format!("2001:db8:18::{n}") }.parse().unwrap()
        };
        let targets: Vec<_> = hosts.iter().enumerate().map(|(n, (asked, _))| (address(n), *asked)).collect();
        let limits: HashMap<_, _> =
            hosts.iter().enumerate().map(|(n, (_, limit))| (address(n), *limit)).collect();
        let mut rounds = 0;
        let reach = search(ipv4, &targets, &mut |sizes| {
            rounds += 1;
            sizes.iter().filter(|(to, size)| *size <= limits[to]).map(|(to, _)| *to).collect()
        });
        (reach, rounds)
    }

    #[test]
    fn the_largest_size_is_found_to_the_byte() {
        let (reach, rounds) = found(
            true,
            &[(1_524, 9_000), (1_524, 1_524), (1_524, 1_523), (1_524, 1_500), (1_524, 576), (1_524, 0)],
        );
        let longest = Reach::Longest;
        assert_eq!(
            reach,
            [longest(1_524), longest(1_524), longest(1_523), longest(1_500), longest(576), Reach::Silent]
        );
        assert!(rounds <= 12, "{rounds}");
        assert_eq!(found(false, &[(1_544, 1_280)]).0, [longest(1_280)]);
        assert_eq!(found(true, &[(400, 9_000)]).0, [longest(400)], "a link below the floor");
    }

    #[test]
    fn two_rounds_are_enough_without_problems() {
        assert_eq!(found(true, &[(1_524, 1_600), (1_500, 1_600)]).1, 2);
        assert_eq!(found(true, &[(1_524, 0)]).1, 1, "a silent host is pinged in one round only");
    }

    proptest::proptest! {
        #[test]
        fn each_host_gets_its_own_answer(hosts in proptest::collection::vec((1_280u32..2_000, 500u32..2_100), 1..20)) {
            for (reach, (asked, limit)) in found(true, &hosts).0.into_iter().zip(&hosts) {
                let expected = if *limit < 576 { Reach::Silent } else { Reach::Longest(*limit.min(asked)) };
                proptest::prop_assert_eq!(reach, expected);
            }
        }
    }
}
