//! Checks writes to keys with two backends each, on three threads. Replies arrive on any queue, and
//! some arrive twice, late or never. Every frame must be in exactly one place, and each write must
//! end exactly once. A client receives success only if both backends confirmed the write.

use std::collections::{BTreeMap, BTreeSet};

use forwarder::{DropReason, Live, Now, ReplicaRules};
use kv_switch::Ack;

use crate::bed::{OWN, THREADS, Thread, VIPS, threads};
use crate::frames::whole_of;
use crate::gathers::{PORT, datagram, keyed};
use crate::random::Random;
use crate::{MILLI, drain, drops, in_one_place_and_counted_once, sum};

/// The timeout is one tick, which is 2 ms.
const RULES: ReplicaRules = ReplicaRules { count: 2, ack: Ack::All, timeout: 1 };

fn request(port: u16, command: &[u8]) -> Vec<u8> {
    let payload = [b"\x12\x34\0\0\0\x01\0\0", command].concat();
    whole_of(([198, 51, 100, 7].into(), VIPS[0]), &datagram(port, PORT, &payload))
}

/// Returns the key of a write to a backend, `true` if the backend accepts the write, and the
/// backend's reply. The backend refuses one key in eight.
fn answer(frame: &[u8]) -> (String, bool, Vec<u8>) {
    let udp = &frame[14 + 24 + 20..];
    let port = u16::from_be_bytes([udp[0], udp[1]]);
    let line = std::str::from_utf8(&udp[16..]).unwrap().lines().next().unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let key = words[1].to_owned();
    let is_done = !key[3..].parse::<usize>().unwrap().is_multiple_of(8);
    let said = if is_done {
        format!("HD {}\r\n", words.last().unwrap())
    } else {
        "SERVER_ERROR out of memory\r\n".into()
    };
    let payload = [&udp[8..10], &[0, 0, 0, 1, 0, 0], said.as_bytes()].concat();
    (key, is_done, whole_of((VIPS[0], OWN[0]), &datagram(PORT, port, &payload)))
}

/// Collects the sent packets. Each packet is a write to a backend, a read, or a reply to a client.
fn take(engine: &mut Thread, network: &mut Vec<Vec<u8>>, reply: &mut BTreeMap<u16, Vec<u8>>) {
    engine.device_mut().transmitted(usize::MAX, |frame| {
        if frame[14 + 9] != 47 {
            let udp = &frame[34..];
            assert!(packet::udp_checksum_ok(frame, &packet::parse(frame).unwrap()));
            let port = u16::from_be_bytes([udp[2], udp[3]]);
            assert_eq!(reply.insert(port, udp[8..].to_vec()), None, "reply twice");
        } else if u16::from_be_bytes([frame[58], frame[59]]) >= 61_000 {
            network.push(frame.to_vec());
        }
    });
}

// Promise: replica-acknowledgment
#[test]
fn replicated_writes_end_once_and_lose_no_frames() {
    let live = Live::new(keyed(Some(RULES)));
    let (mut engines, counters) = threads(&live);
    let (mut random, mut now) = (Random(7), MILLI);
    let (mut asked, mut network, mut reply) = (BTreeMap::new(), Vec::<Vec<u8>>::new(), BTreeMap::new());
    // The distinct backend replies that were delivered for each key.
    let mut brought: BTreeMap<String, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for engine in &mut engines {
        engine.step(Now::from_nanos(now));
    }
    for port in 12_000..20_000 {
        // Each write uses its own key, so that replies can be matched to writes.
        let key = format!("key{port}");
        let command = match random.below(12) {
            0 => format!("incr {key} 1 noreply\r\n"),
            1 => format!("incr {key} 1\r\n"),
            2 => format!("get {key}\r\n"),
            3 => format!("set {key} 0 0 1400\r\n{}\r\n", "v".repeat(1_400)),
            _ => format!("set {key} 0 0 2\r\nhi\r\n"),
        };
        let which = random.below(u64::from(THREADS)) as usize;
        if engines[which].device_mut().inject(&request(port, command.as_bytes()), 24) {
            asked.insert(port, command);
        }
        for _ in 0..random.below(5) {
            if network.is_empty() {
                break;
            }
            let at = random.below(network.len() as u64) as usize;
            let copy = if random.once_in(8) { network[at].clone() } else { network.swap_remove(at) };
            if !random.once_in(16) {
                let (key, is_done, frame) = answer(&copy);
                let queue = random.below(u64::from(THREADS)) as usize;
                if engines[queue].device_mut().inject(&frame, 0) && is_done {
                    brought.entry(key).or_default().insert(copy);
                }
            }
        }
        now += random.below(MILLI / 2);
        for engine in &mut engines {
            engine.step(Now::from_nanos(now));
            take(engine, &mut network, &mut reply);
        }
        in_one_place_and_counted_once(&engines, &counters);
    }
    drain(&mut engines, now);
    in_one_place_and_counted_once(&engines, &counters);
    let begun = sum(&counters, |c| &c.replicas_begun);
    let ended = [
        sum(&counters, |c| &c.replicas_acknowledged),
        sum(&counters, |c| &c.replicas_failed),
        sum(&counters, |c| &c.replicas_unanswered),
    ];
    println!("{begun} begun, {ended:?} acknowledged, failed, unanswered");
    for reason in DropReason::ALL.iter().filter(|reason| drops(&counters, **reason) > 0) {
        println!("dropped as {}: {}", reason.name(), drops(&counters, *reason));
    }
    assert_eq!(begun, ended.iter().sum::<u64>());
    assert!(ended.iter().all(|count| *count > 100), "{ended:?}");
    for reason in [
        DropReason::KvAnswerLate,
        DropReason::KvReplicaFull,
        DropReason::KvReplicaTooLong,
        DropReason::KvReplicaRefused,
    ] {
        assert!(drops(&counters, reason) > 0, "{}", reason.name());
    }
    let (mut done, mut failed) = (0, 0);
    for (port, said) in reply {
        assert_eq!(said[..8], *b"\x12\x34\0\0\0\x01\0\0");
        match &said[8..] {
            b"STORED\r\n" => {
                done += 1;
                assert_eq!(brought[&format!("key{port}")].len(), 2, "both backends must confirm");
            }
            b"SERVER_ERROR out of memory storing object\r\n" => failed += 1,
            other => {
                assert!(asked[&port].starts_with("incr"), "{}", other.escape_ascii());
            }
        }
    }
    assert_eq!([done, failed], ended[..2]);
}
