//! Tests of requests for keys on several backends: the upstream requests, the validation of their
//! replies, and the single reply to the client.

pub(crate) mod scene;

use std::collections::BTreeMap;
use std::sync::Arc;

use forwarder::*;
use kv_switch::{Late, Memcached};
use proptest::prelude::*;
use proptest::sample::Index;
use sip_lanes::LaneHashers;

use crate::bed::*;
use crate::keyed::{CLIENT4, CLIENT6, PORT, by_hand, drops, framed, keyed_of};
use crate::tunnels::{from, wrapped};

use self::scene::*;

#[test]
fn split_request_asks_each_backend_and_sends_one_reply() {
    let keys = apart(3);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let there = values(&[(names[0], "first"), (names[2], "third")]);
    for (client, own, vip, tags) in [
        (CLIENT4, OWN4, VIP4, 0),
        (CLIENT6, OWN6, VIP6, 0),
        (CLIENT4, OWN4, VIP4, 1),
        (CLIENT6, OWN6, VIP6, 2),
    ] {
        for verb in ["get", "gets"] {
            let mut bed = bed(Late::Fails);
            // The client requests the first key twice.
            let said = [names[0], names[1], names[2], names[0]];
            let command = framed(format!("{verb} {}\r\n", said.join(" ")).as_bytes());
            let mut frame = udp(client, 40_000, vip, PORT, &command);
            (0..tags).for_each(|id| frame = tagged(&frame, 0x8100, 7 + id));
            let parts = bed.begin(&frame);
            assert_eq!(parts.iter().map(|(backend, _)| *backend).collect::<Vec<_>>(), [1, 2, 3]);
            let mut ports = Vec::new();
            for ((_, part), key) in parts.iter().zip(&names) {
                assert_eq!((part.source.0, part.destination), (ip(own), (ip(vip), PORT)));
                assert_eq!(part.link[..12], [HOP, OURS].concat());
                assert!(SOURCE_PORTS.contains(&part.source.1));
                assert!(part.payload[8..].starts_with(format!("mg {key} k f v O").as_bytes()));
                ports.push((part.source.1, part.payload[..2].to_vec()));
            }
            ports.dedup();
            assert_eq!(ports.len(), 3, "each request has its own id");
            for (_, part) in parts.iter().rev() {
                for answer in answers(&part.payload, &there) {
                    assert_eq!(bed.answer(part, &answer), Verdict::Taken);
                }
            }
            bed.poll();
            let replies = std::mem::take(&mut bed.held.originated);
            assert_eq!(joined(&replies), wanted(&said, verb, &there));
            let reply = seen(&replies[0].1);
            let link = frame.len() - command.len() - 8 - if ip(client).is_ipv4() { 20 } else { 40 };
            assert_eq!(reply.link, [&ROUTER[..], &OURS, &frame[12..link]].concat());
            assert_eq!((reply.source, reply.destination), ((ip(vip), PORT), (ip(client), 40_000)));
            assert_eq!((bed.ended(), drops(&bed)), ([1, 0, 0, 0, 0], BTreeMap::new()));
            assert_eq!(bed.counters.gathers_begun.read(), 1);
            assert_eq!(bed.pipeline.flows().len(), 0);
            // In total, three packets were sent to backends.
            let packets = (0..5).map(|slot| bed.counters.backend(slot).unwrap().packets.read());
            assert_eq!(packets.collect::<Vec<_>>(), [1, 1, 1, 0, 0]);
        }
    }
}

#[test]
fn a_quiet_batch_in_binary_is_gathered_too() {
    let keys = apart(2);
    let there = values(&[(&keys[1], "second")]);
    let mut bed = bed(Late::Fails);
    let mut batch = Vec::new();
    for (opcode, key) in [(0x09, &keys[0]), (0x0d, &keys[1])] {
        let length = key.len() as u8;
        batch.extend([0x80, opcode, 0, length, 0, 0, 0, 0, 0, 0, 0, length, 1, 2, 3, opcode]);
        batch.extend([&[0; 8], key.as_bytes()].concat());
    }
    batch.extend([0x80, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
    let parts = bed.begin(&udp(CLIENT4, 40_000, VIP4, PORT, &framed(&batch)));
    for (_, part) in &parts {
        answers(&part.payload, &there)
            .iter()
            .for_each(|answer| assert_eq!(bed.answer(part, answer), Verdict::Taken));
    }
    bed.poll();
    let length = keys[1].len() as u8;
    let mut wanted = vec![0x81, 0x0d, 0, length, 4, 0, 0, 0, 0, 0, 0, 4 + length + 6, 1, 2, 3, 0x0d];
    wanted.extend([&[0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 5], keys[1].as_bytes(), b"second"].concat());
    wanted.extend([0x81, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(joined(&bed.held.originated), wanted);
}

#[test]
fn what_is_no_answer_to_what_was_asked_is_dropped_by_its_name() {
    let keys = apart(2);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let there = values(&[(names[0], "first"), (names[1], "second")]);
    // The service on the second port sends no upstream requests in this test.
    let mut two_ports = gathering(Late::Fails);
    two_ports.bindings.push(binding(VIP4, 17, PORT + 1..=PORT + 1, 3));
    let mut bed = bed_of(two_ports);
    let parts = bed.begin(&get(&names));
    let (first, second) = (&parts[0].1, &parts[1].1);
    let true_answer = answers(&first.payload, &there).remove(0);
    let changed = |from: &str, to: &str| {
        let text = String::from_utf8_lossy(&true_answer[8..]).replacen(from, to, 1).into_bytes();
        [&true_answer[..8], &text].concat()
    };
    let mut other_id = true_answer.clone();
    other_id[0] ^= 0x80;
    let mut later = true_answer.clone();
    (later[3], later[5]) = (1, 2);
    let mut other_part = true_answer.clone();
    other_part[..2].copy_from_slice(&second.payload[..2]);
    let nonce = String::from_utf8(first.payload[8..].to_vec()).unwrap();
    let nonce = nonce.split(" O").nth(1).unwrap()[..16].to_owned();
    let zeros = "0".repeat(16);
    let other = |source: Option<(&str, u16)>, port: Option<u16>| Seen {
        destination: source.map_or(first.destination, |(address, port)| (ip(address), port)),
        source: (first.source.0, port.unwrap_or(first.source.1)),
        ..first.clone()
    };
    let mut broken = back(first, &true_answer);
    let in_value = broken.len() - 4;
    broken[in_value] ^= 1;
    let rows: [(DropReason, Vec<u8>); 12] = [
        (DropReason::KvAnswerLate, back(first, &other_id)),
        (DropReason::KvAnswerLate, back(&other(None, Some(61_006)), &true_answer)),
        (DropReason::KvAnswerSource, back(&other(Some(("198.18.1.1", PORT)), None), &true_answer)),
        (DropReason::KvAnswerSource, back(&other(Some((VIP4, 443)), None), &true_answer)),
        (DropReason::KvAnswerSource, back(&other(Some((VIP4, PORT + 1)), None), &true_answer)),
        (DropReason::KvAnswerNonce, back(first, &changed(&nonce, &zeros))),
        (DropReason::KvAnswerNonce, back(second, &other_part)),
        (
            DropReason::KvAnswerNonce,
            back(first, &[&true_answer[..8], b"SERVER_ERROR out of memory\r\n"].concat()),
        ),
        (DropReason::KvAnswerContinuation, back(first, &later)),
        (DropReason::KvAnswerMalformed, back(first, &true_answer[..7])),
        (DropReason::KvAnswerMalformed, broken),
        (DropReason::KvAnswerUnexpected, back(first, &changed(names[0], names[1]))),
    ];
    for (reason, frame) in rows {
        let before = bed.counters.drops(reason);
        assert_eq!(bed.send(0, &frame).0, Verdict::Drop(reason));
        assert_eq!(bed.counters.drops(reason), before + 1);
    }
    // The wrong replies had no effect. The correct replies complete the request.
    assert_eq!(bed.answer(first, &true_answer), Verdict::Taken);
    assert_eq!(
        bed.answer(first, &true_answer),
        Verdict::Drop(DropReason::KvAnswerLate),
        "the duplicate is dropped"
    );
    bed.poll();
    assert!(bed.held.originated.is_empty());
    assert_eq!(bed.answer(second, &answers(&second.payload, &there)[0]), Verdict::Taken);
    bed.poll();
    assert_eq!(joined(&bed.held.originated), wanted(&names, "get", &there));
}

#[test]
fn ports_of_others_and_addresses_of_others_are_no_answers() {
    let mut bed = bed(Late::Fails);
    let keys = apart(2);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let part = bed.begin(&get(&names)).remove(0).1;
    let at = |address: &str, port| udp(VIP4, PORT, address, port, &part.payload);
    for frame in [at(OWN4, 60_999), at(OWN4, 61_008), at("192.0.2.2", part.source.1)] {
        assert_eq!(bed.send(0, &frame).0, Verdict::Drop(DropReason::NoVip));
    }
    // No pool splits requests here, so no upstream request is sent. The source ports stay reserved.
    let mut parts = gathering(Late::Fails);
    parts.services.truncate(3);
    parts.bindings.retain(|binding| binding.service < 3);
    let mut bed = bed_of(parts);
    assert!(matches!(bed.send(0, &at(OWN4, 61_001)).0, Verdict::Drop(DropReason::NoVip)));
}

#[test]
fn silent_backend_ends_a_request_without_reply_or_with_miss() {
    let keys = apart(3);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let there = values(&[(names[0], "first"), (names[1], "second"), (names[2], "third")]);
    for late in [Late::Fails, Late::IsMissing] {
        let mut bed = bed(late);
        let parts = bed.begin(&get(&names));
        assert_eq!(bed.pipeline.next_due(), Some(Now::from_nanos(bed.now.nanos() + 20_000_000)));
        bed.wait(5);
        for (_, part) in [&parts[0], &parts[2]] {
            assert_eq!(bed.answer(part, &answers(&part.payload, &there)[0]), Verdict::Taken);
        }
        bed.wait(14);
        assert_eq!((bed.held.originated.len(), bed.ended()), (0, [0; 5]), "the timeout has not passed yet");
        bed.wait(1);
        let replies = std::mem::take(&mut bed.held.originated);
        if late == Late::Fails {
            assert_eq!((replies.len(), bed.ended()), (0, [0, 0, 1, 0, 0]));
        } else {
            assert_eq!(joined(&replies), wanted(&[names[0], names[2]], "get", &there));
            assert_eq!(bed.ended(), [0, 1, 0, 0, 0]);
        }
        assert_eq!(bed.pipeline.next_due(), None);
        let late = answers(&parts[1].1.payload, &there);
        assert_eq!(bed.answer(&parts[1].1, &late[0]), Verdict::Drop(DropReason::KvAnswerLate));
    }
}

#[test]
fn value_larger_than_a_datagram_ends_the_request() {
    let keys = apart(2);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let there = values(&[(names[0], &"v".repeat(1_400)), (names[1], "second")]);
    let mut bed = bed(Late::IsMissing);
    let parts = bed.begin(&get(&names));
    let both = answers(&parts[0].1.payload, &there);
    assert_eq!(both.len(), 2);
    assert_eq!(bed.answer(&parts[0].1, &both[0]), Verdict::Taken);
    assert_eq!(bed.ended(), [0, 0, 0, 1, 0]);
    assert_eq!(bed.answer(&parts[0].1, &both[1]), Verdict::Drop(DropReason::KvAnswerLate));
    let second = answers(&parts[1].1.payload, &there);
    assert_eq!(bed.answer(&parts[1].1, &second[0]), Verdict::Drop(DropReason::KvAnswerLate));
    bed.wait(30);
    assert!(bed.held.originated.is_empty());
}

#[test]
fn a_reply_of_many_datagrams_is_sent_whole_or_not_at_all() {
    let keys = apart(5);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let big = "v".repeat(1_300);
    let there: BTreeMap<_, _> = values(&names.iter().map(|name| (*name, big.as_str())).collect::<Vec<_>>());
    for frames in [5, 4] {
        let mut bed = bed(Late::Fails);
        let parts = bed.begin(&get(&names));
        for (_, part) in &parts {
            assert_eq!(bed.answer(part, &answers(&part.payload, &there)[0]), Verdict::Taken);
        }
        bed.held.free = frames;
        bed.poll();
        let replies = std::mem::take(&mut bed.held.originated);
        if frames == 5 {
            assert_eq!((joined(&replies), replies.len()), (wanted(&names, "get", &there), 5));
            assert_eq!(bed.ended(), [1, 0, 0, 0, 0]);
        } else {
            assert_eq!((replies.len(), bed.ended()), (0, [0, 0, 0, 0, 1]));
        }
    }
}

#[test]
fn what_has_no_room_is_dropped_by_its_name_and_not_begun() {
    let keys = apart(2);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut bed = bed(Late::Fails);
    for _ in 0..3 {
        assert_eq!(bed.begin(&get(&names)).len(), 2);
    }
    assert_eq!(bed.send(24, &get(&names)).0, Verdict::Drop(DropReason::KvGatherFull));
    bed.wait(20);
    assert_eq!(bed.ended(), [0, 0, 3, 0, 0]);
    // The number of free frames is enough for one of the two requests.
    bed.held.free = 3;
    bed.poll();
    assert_eq!(bed.send(24, &get(&names)).0, Verdict::Taken);
    assert_eq!(bed.send(24, &get(&names)).0, Verdict::Drop(DropReason::KvGatherNoFrame));
    bed.poll();
    assert_eq!(bed.held.originated.len(), 2);
    assert_eq!(bed.counters.gathers_begun.read(), 4);
    // The frames are free when the request is checked, but in use when the upstream requests are
    // sent.
    bed.held.free = 2;
    bed.poll();
    assert_eq!(bed.send(24, &get(&names)).0, Verdict::Taken);
    bed.held.free = 1;
    bed.poll();
    assert_eq!(bed.ended(), [0, 0, 3, 0, 1]);
}

#[test]
fn what_cannot_be_gathered_is_dropped_by_its_name() {
    let keys = apart(2);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let is_split = |bed: &mut Bed, frame: &[u8]| {
        assert_eq!(bed.send(24, frame).0, Verdict::Drop(DropReason::KvSplit));
    };
    let has_no_return_path = |bed: &mut Bed, frame: &[u8]| {
        assert_eq!(bed.send(24, frame).0, Verdict::Drop(DropReason::KvNoReturnPath));
    };
    // Splitting is disabled in the pool, or upstream requests are disabled for this thread.
    is_split(
        &mut bed_of(keyed_of(Box::new(Memcached::new(32)), KeyFailover::Next, KeyPath::Direct, None)),
        &get(&names),
    );
    is_split(&mut Bed::new(gathering(Late::Fails)), &get(&names));
    // A request that arrives in a tunnel has no return path. A reply that arrives in a tunnel is
    // not accepted.
    let tunnels = vec![from("192.0.2.77", TunnelSourceKind::UpstreamTunnel)];
    let mut bed_with_tunnel = bed_of(Parts { tunnels, ..gathering(Late::Fails) });
    let tunnelled = |frame: &[u8]| wrapped(frame, packet::Encapsulation::Gre, ("192.0.2.77", OWN4), 0);
    has_no_return_path(&mut bed_with_tunnel, &tunnelled(&get(&names)));
    let part = bed_with_tunnel.begin(&get(&names)).remove(0).1;
    let answer = tunnelled(&back(&part, &answers(&part.payload, &values(&[]))[0]));
    assert_eq!(bed_with_tunnel.send(24, &answer).0, Verdict::Drop(DropReason::NoVip));
    // The machine has no IPv6 address.
    let six =
        udp(CLIENT6, 40_000, VIP6, PORT, &framed(format!("get {} {}\r\n", names[0], names[1]).as_bytes()));
    let alone = || Parts { own: vec![ip(OWN4)], ..gathering(Late::Fails) };
    has_no_return_path(&mut bed_of(alone()), &six);
    assert_eq!(bed_of(alone()).send(24, &get(&names)).0, Verdict::Taken);
    // The source MAC address is a multicast address.
    let mut group = get(&names);
    group[6] |= 1;
    has_no_return_path(&mut bed(Late::Fails), &group);
    // The checksum of the request is wrong, so this machine must not reply.
    let mut broken = get(&names);
    let last = broken.len() - 4;
    broken[last] ^= 1;
    assert_eq!(bed(Late::Fails).send(24, &broken).0, Verdict::Drop(DropReason::Malformed));
    // The request comes from an unknown gateway.
    let reflect =
        |gateway| NextHopMode::Reflect { gateways: [packet::Mac(gateway)].into(), tagging: [].into() };
    for (gateway, verdict) in [(ROUTER, Verdict::Taken), (HOP, Verdict::Drop(DropReason::UnknownGateway))] {
        let parts = Parts { next_hop: reflect(gateway), ..gathering(Late::Fails) };
        assert_eq!(bed_of(parts).send(24, &get(&names)).0, verdict);
    }
}

#[test]
fn missing_next_hop_or_backend_equals_a_silent_backend() {
    let keys = apart(3);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let there = values(&[(names[0], "first"), (names[1], "second"), (names[2], "third")]);
    for late in [Late::Fails, Late::IsMissing] {
        // The second backend has no next hop.
        let mut parts = gathering(late);
        parts.slots[1].next_hop = None;
        let mut bed = bed_of(parts);
        let parts = bed.begin(&get(&names));
        if late == Late::Fails {
            assert_eq!(bed.ended(), [0, 0, 0, 0, 1]);
        } else {
            for (_, part) in &parts {
                assert_eq!(bed.answer(part, &answers(&part.payload, &there)[0]), Verdict::Taken);
            }
            bed.poll();
            assert_eq!(joined(&bed.held.originated), wanted(&[names[0], names[2]], "get", &there));
            assert_eq!(bed.ended(), [0, 1, 0, 0, 0]);
        }
        // The pool has no failover for the keys of the second backend.
        let mut bed = bed_of(keyed_of(
            Box::new(Memcached::new(32)),
            KeyFailover::Nowhere,
            KeyPath::Direct,
            Some(rules(late)),
        ));
        let mut states = vec![SlotState::Serving; 5];
        states[1] = SlotState::Down;
        bed.live.publish(bed.live.current().with_states(states).unwrap());
        if late == Late::Fails {
            assert_eq!(bed.send(24, &get(&names)).0, Verdict::Drop(DropReason::NoBackend));
            continue;
        }
        let parts = bed.begin(&get(&names));
        assert_eq!(parts.iter().map(|(backend, _)| *backend).collect::<Vec<_>>(), [1, 3]);
        for (_, part) in &parts {
            assert_eq!(bed.answer(part, &answers(&part.payload, &there)[0]), Verdict::Taken);
        }
        bed.poll();
        assert_eq!(joined(&bed.held.originated), wanted(&[names[0], names[2]], "get", &there));
    }
}

#[test]
fn a_service_that_a_reload_takes_has_no_reply() {
    let keys = apart(2);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut bed = bed(Late::Fails);
    let parts = bed.begin(&get(&names));
    let mut next = gathering(Late::Fails);
    next.bindings.retain(|binding| binding.service < 3);
    bed.live.publish(Snapshot::new(next).unwrap());
    let answer = answers(&parts[0].1.payload, &values(&[]));
    assert_eq!(bed.answer(&parts[0].1, &answer[0]), Verdict::Drop(DropReason::KvAnswerLate));
    bed.wait(20);
    assert_eq!((bed.ended(), bed.held.originated.len()), ([0, 0, 1, 0, 0], 0));
}

#[test]
fn a_backend_that_goes_after_it_was_asked_is_heard_still() {
    let keys = apart(2);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let there = values(&[(names[0], "first"), (names[1], "second")]);
    for state in [SlotState::Down, SlotState::Draining] {
        let mut bed = bed(Late::Fails);
        let parts = bed.begin(&get(&names));
        let mut states = vec![SlotState::Serving; 5];
        states[1] = state;
        bed.live.publish(bed.live.current().with_states(states).unwrap());
        for (_, part) in &parts {
            assert_eq!(bed.answer(part, &answers(&part.payload, &there)[0]), Verdict::Taken);
        }
        bed.poll();
        let replies = std::mem::take(&mut bed.held.originated);
        assert_eq!(joined(&replies), wanted(&names, "get", &there));
    }
}

#[test]
fn reply_on_another_queue_is_handed_to_the_requesting_thread() {
    let keys = apart(2);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let there = values(&[(names[0], "first"), (names[1], "second")]);
    let mut requester = Bed::with(gathering(Late::Fails), own_config(1, 2));
    requester.held.free = 100;
    requester.poll();
    let mut other = Bed::with(gathering(Late::Fails), own_config(0, 2));
    let parts = requester.begin(&get(&names));
    let to_requester = Verdict::ToThread(ThreadId(1), HandoffReason::Answer);
    let (from_other, from_requester) = (
        Origin::Thread(ThreadId(0), HandoffReason::Answer),
        Origin::Thread(ThreadId(1), HandoffReason::Answer),
    );
    let ports = SourcePorts::new(&SOURCE_PORTS, 2);
    let config =
        SteeringConfig { threads: 2, max_batch: 8, hashers: LaneHashers::PORTABLE, source_ports: ports };
    let mut steering = SoftwareSteering::new(config, &requester.live, Arc::new(ThreadCounters::new(0, 0)));
    for (_, part) in &parts {
        assert!(part.source.1 >= 61_004, "the port is in the second half");
        let frame = back(part, &answers(&part.payload, &there)[0]);
        assert_eq!(other.send(0, &frame), (to_requester, frame.clone()), "the request is unchanged");
        let mut bytes = frame.clone();
        let end = bytes.len();
        let (mut packets, mut verdicts) = ([Packet::new(&mut bytes, 0, end, Origin::Wire)], [Verdict::Tx]);
        steering.process(requester.now, &mut packets, &mut verdicts);
        assert_eq!(verdicts, [to_requester], "software steering selects the same thread");
        assert_eq!(requester.send_as(from_other, 0, &frame).0, Verdict::Taken);
        let nobody = Verdict::Drop(DropReason::KvAnswerLate);
        assert_eq!(other.send_as(from_requester, 0, &frame).0, nobody, "the packet does not return");
    }
    requester.poll();
    assert_eq!(joined(&requester.held.originated), wanted(&names, "get", &there));
}

proptest! {
    // Promise: gather-replies
    /// Under any packet loss, duplication or reordering, the client receives either the reply that
    /// a single server would send, or no reply.
    #[test]
    fn the_reply_is_that_of_one_server_whatever_the_network_does(
        picks in prop::collection::vec(0..30_u8, 2..12),
        lengths in prop::collection::vec(prop::option::of(0..1_300_usize), 30),
        order in prop::collection::vec((any::<Index>(), 0..10_u8), 40),
        is_missing: bool,
    ) {
        let keys: Vec<String> = picks.iter().map(|pick| format!("key{pick}")).collect();
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        prop_assume!(names.iter().any(|name| by_hand(name) != by_hand(names[0])));
        let there: BTreeMap<Vec<u8>, Vec<u8>> = (0..30_u8).zip(&lengths)
            .filter_map(|(n, length)| Some((format!("key{n}").into_bytes(), vec![b'a' + n % 26; (*length)?])))
            .collect();
        let mut bed = bed(if is_missing { Late::IsMissing } else { Late::Fails });
        let parts = bed.begin(&get(&names));
        let mut network: Vec<(Seen, Vec<u8>)> = parts.iter()
            .flat_map(|(_, part)| answers(&part.payload, &there).into_iter().map(|answer| (part.clone(), answer)))
            .collect();
        let (mut lost, mut taken) = (Vec::new(), Vec::new());
        for (which, fate) in order {
            if network.is_empty() {
                break;
            }
            let at = which.index(network.len());
            let (part, answer) = if fate == 0 { network[at].clone() } else { network.remove(at) };
            if fate == 1 {
                lost.push(answer);
                continue;
            }
            let verdict = bed.answer(&part, &answer);
            if taken.contains(&answer) {
                prop_assert!(matches!(verdict, Verdict::Drop(DropReason::KvAnswerLate | DropReason::KvAnswerUnexpected)));
            } else {
                prop_assert_eq!(verdict, Verdict::Taken);
                taken.push(answer);
            }
            bed.poll();
        }
        lost.extend(network.into_iter().map(|(_, answer)| answer));
        lost.retain(|answer| !taken.contains(answer));
        bed.wait(20);
        let replies = std::mem::take(&mut bed.held.originated);
        let said = |name: &&str| {
            let word = format!(" k{name} ");
            !lost.iter().any(|answer| answer.windows(word.len()).any(|part| part == word.as_bytes()))
        };
        let spoken: Vec<&str> = names.iter().copied().filter(said).collect();
        if lost.is_empty() || is_missing {
            prop_assert_eq!(joined(&replies), wanted(&spoken, "get", &there));
        } else {
            prop_assert!(replies.is_empty());
        }
        let expected = match (lost.is_empty(), is_missing) {
            (true, _) => [1, 0, 0, 0, 0],
            (false, true) => [0, 1, 0, 0, 0],
            (false, false) => [0, 0, 1, 0, 0],
        };
        prop_assert_eq!(bed.ended(), expected);
        prop_assert_eq!(bed.pipeline.next_due(), None);
    }
}
