//! Checks requests whose keys belong to several backends, on three threads. Replies arrive on any
//! queue, and some arrive twice, late or never. Every frame must be in exactly one place, each
//! request must end exactly once, and replies must be complete and correct.

use std::collections::BTreeMap;
use std::sync::Arc;

use forwarder::{
    DropReason, GatherRules, HashKey, HashPolicy, KeyFailover, KeyPath, KeyRules, Keyed, Live, Now,
    Placement, PrefixSet, ReplicaRules, Snapshot, TooBig,
};
use kv_switch::{Late, Memcached, Routes};
use packet::{Encapsulation, Family, Outer, Template};

use crate::bed::{self, OWN, THREADS, Thread, VIPS, threads};
use crate::frames::{udp_header, whole_of};
use crate::random::Random;
use crate::{MILLI, drain, drops, in_one_place_and_counted_once, sum};

pub(crate) const PORT: u16 = 11_211;
/// The timeout in ticks. One tick is 2 ms.
const TIMEOUT: usize = 1;

/// Returns a keyed pool with three backends. Some of its keys have one backend, others have
/// several.
pub(crate) fn keyed(replicas: Option<ReplicaRules>) -> Snapshot {
    let backend = |n: u8| {
        let destination = [198, 18, 1, n].into();
        let outer = Outer::V4 { source: [192, 0, 2, 1].into(), destination };
        let template = |inner| Template::new(Encapsulation::Gre, outer, inner, true);
        let templates = Some([template(Family::V4), template(Family::V6)]);
        bed::way(destination.into(), templates, 1500, TooBig::Drop)
    };
    let mut parts = bed::plain((1..4).map(backend).collect());
    let rules = KeyRules {
        application: Box::new(Memcached::new(32)),
        clients: PrefixSet::new([([198, 51, 100, 0].into(), 24)]),
        hash: KeyRules::maglev_hash(&HashKey::new([5; 16])),
        routes: Routes::build(&[], &[]).unwrap(),
        failover: KeyFailover::Next,
        failover_ttl: None,
        path: KeyPath::Direct,
        gather: Some(GatherRules { timeout: TIMEOUT, late: Late::Fails }),
        cache: None,
        replicas,
    };
    let placements = [Placement::Maglev { all: None }].into();
    let keyed = Keyed { rules: Arc::new(rules), pools: [].into(), placements };
    (parts.services[0].policy, parts.services[0].keyed) = (HashPolicy::Key, Some(Arc::new(keyed)));
    parts.bindings.iter_mut().for_each(|binding| binding.ports = PORT..=PORT);
    Snapshot::new(parts).unwrap()
}

fn request(port: u16, keys: &[String]) -> Vec<u8> {
    let payload = [b"\x12\x34\0\0\0\x01\0\0get ", keys.join(" ").as_bytes(), b"\r\n"].concat();
    whole_of(([198, 51, 100, 7].into(), VIPS[0]), &datagram(port, PORT, &payload))
}

/// Returns a UDP packet without a checksum.
pub(crate) fn datagram(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let mut udp = [&udp_header(from, to, payload.len() as u16), payload].concat();
    udp[6..8].fill(0);
    udp
}

/// Returns the stored value of a key. Only every second key has a value.
fn value(key: &str) -> Option<String> {
    let number: usize = key[3..].parse().unwrap();
    number.is_multiple_of(2).then(|| key.repeat(1 + number * 3))
}

/// Returns the replies that a backend sends for a frame.
fn answers(frame: &[u8]) -> Vec<Vec<u8>> {
    let udp = &frame[14 + 24 + 20..];
    let port = u16::from_be_bytes([udp[0], udp[1]]);
    if port < 61_000 {
        // The source port belongs to a client. The request was forwarded unchanged, so the backend
        // replies directly to the client.
        return Vec::new();
    }
    let text = std::str::from_utf8(&udp[16..]).unwrap();
    let answer = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let said = match value(words[1]) {
            Some(value) => format!("VA {} k{} f0 {}\r\n{value}\r\n", value.len(), words[1], words[5]),
            None => format!("EN k{} {}\r\n", words[1], words[5]),
        };
        let payload = [&udp[8..10], &[0, 0, 0, 1, 0, 0], said.as_bytes()].concat();
        whole_of((VIPS[0], OWN[0]), &datagram(PORT, port, &payload))
    };
    text.lines().map(answer).collect()
}

fn wanted(keys: &[String]) -> String {
    let said = keys.iter().filter_map(|key| {
        let value = value(key)?;
        Some(format!("VALUE {key} 0 {}\r\n{value}\r\n", value.len()))
    });
    said.collect::<String>() + "END\r\n"
}

/// Collects the sent packets. Each packet is a request to a backend, or a reply to a client.
fn take(engine: &mut Thread, answered: &mut Vec<Vec<u8>>, replies: &mut BTreeMap<u16, Vec<Vec<u8>>>) {
    engine.device_mut().transmitted(usize::MAX, |frame| {
        if frame[14 + 9] == 47 {
            answered.extend(answers(frame));
        } else {
            let udp = &frame[34..];
            assert!(packet::udp_checksum_ok(frame, &packet::parse(frame).unwrap()));
            replies.entry(u16::from_be_bytes([udp[2], udp[3]])).or_default().push(udp[8..].to_vec());
        }
    });
}

#[test]
fn gathered_requests_end_once_and_lose_no_frames() {
    let live = Live::new(keyed(None));
    let (mut engines, counters) = threads(&live);
    let (mut random, mut now) = (Random(5), MILLI);
    let (mut asked, mut network, mut replies) = (BTreeMap::new(), Vec::<Vec<u8>>::new(), BTreeMap::new());
    for engine in &mut engines {
        engine.step(Now::from_nanos(now));
    }
    for port in 2_000..10_000 {
        let keys: Vec<String> =
            (0..1 + random.below(8)).map(|_| format!("key{}", random.below(60))).collect();
        let which = random.below(u64::from(THREADS)) as usize;
        if engines[which].device_mut().inject(&request(port, &keys), 24) {
            asked.insert(port, keys);
        }
        for _ in 0..random.below(12) {
            if network.is_empty() {
                break;
            }
            let at = random.below(network.len() as u64) as usize;
            let frame: Vec<u8> =
                if random.once_in(8) { network[at].clone() } else { network.swap_remove(at) };
            if !random.once_in(16) {
                let queue = random.below(u64::from(THREADS)) as usize;
                engines[queue].device_mut().inject(&frame, 0);
            }
        }
        now += random.below(MILLI / 2);
        for engine in &mut engines {
            engine.step(Now::from_nanos(now));
            take(engine, &mut network, &mut replies);
        }
        in_one_place_and_counted_once(&engines, &counters);
    }
    drain(&mut engines, now);
    in_one_place_and_counted_once(&engines, &counters);
    let begun = sum(&counters, |c| &c.gathers_begun);
    let ended = [
        sum(&counters, |c| &c.gathers_answered),
        sum(&counters, |c| &c.gathers_timed_out),
        sum(&counters, |c| &c.gathers_unsent),
    ];
    println!("{begun} begun, {ended:?} answered, timed out, unsent");
    for reason in DropReason::ALL.iter().filter(|reason| drops(&counters, **reason) > 0) {
        println!("dropped as {}: {}", reason.name(), drops(&counters, *reason));
    }
    assert_eq!(begun, ended.iter().sum::<u64>());
    assert!(ended[..2].iter().all(|count| *count > 100), "{ended:?}");
    assert!(sum(&counters, |c| &c.to_threads) > 100);
    assert!(drops(&counters, DropReason::KvAnswerLate) > 0 && drops(&counters, DropReason::KvGatherFull) > 0);
    assert_eq!(replies.len() as u64, ended[0]);
    for (port, datagrams) in replies {
        let total = datagrams.len();
        let whole: Vec<u8> = datagrams
            .iter()
            .enumerate()
            .flat_map(|(nth, datagram)| {
                assert_eq!(datagram[..8], [0x12, 0x34, 0, nth as u8, 0, total as u8, 0, 0]);
                datagram[8..].to_vec()
            })
            .collect();
        assert_eq!(String::from_utf8(whole).unwrap(), wanted(&asked[&port]), "{port}");
    }
}
