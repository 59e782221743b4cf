//! Tests of replicated keys: reads go to one backend, writes go to all backends of the key, and
//! commands that depend on the old value are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use forwarder::*;
use kv_switch::{Ack, KeyHash, Late, Memcached, Ring, Server};
use proptest::prelude::*;
use siphasher::sip::SipHasher13;

use crate::bed::*;
use crate::gather::scene::{OWN4, OWN6, Seen, asked, back, bed_of, own_config, rules as gather_rules, seen};
use crate::keyed::{CLIENT4, CLIENT6, PORT, drops, framed, keyed_of};
use crate::pieces::Datagram;
use crate::tunnels::{from, wrapped};

fn replicated(count: u8, ack: Ack, down: &[u8]) -> Parts {
    changed(count, ack, down, |_| {})
}

fn changed(count: u8, ack: Ack, down: &[u8], change: impl FnOnce(&mut Keyed)) -> Parts {
    let gather = Some(gather_rules(Late::Fails));
    let mut parts = keyed_of(Box::new(Memcached::new(32)), KeyFailover::Next, KeyPath::Direct, gather);
    let service = parts.services.last_mut().unwrap();
    let mut keyed = Arc::try_unwrap(service.keyed.take().unwrap()).unwrap();
    let rules = Arc::get_mut(&mut keyed.rules).unwrap();
    rules.replicas = Some(ReplicaRules { count, ack, timeout: 4 });
    change(&mut keyed);
    service.keyed = Some(Arc::new(keyed));
    down.iter().for_each(|backend| parts.states[usize::from(*backend) - 1] = SlotState::Down);
    parts
}

fn bed(count: u8, ack: Ack) -> Bed {
    bed_of(replicated(count, ack, &[]))
}

fn request(command: &[u8]) -> Vec<u8> {
    udp(CLIENT4, 40_000, VIP4, PORT, &framed(command))
}

fn set(key: &str) -> Vec<u8> {
    format!("set {key} 7 600 2\r\nhi\r\n").into_bytes()
}

/// Computes the backends of a key, most preferred first. Each lookup rehashes the previous hash
/// with the finalizer of MurmurHash3.
fn order(key: &str) -> Vec<u8> {
    let own = siphasher::sip128::SipHasher24::new_with_key(&[5; 16]).hash(b"kv").as_bytes();
    let table = pool(&gre_slots(5), &[1; 5]);
    let mut hash = SipHasher13::new_with_key(&own).hash(key.as_bytes());
    let mut found = Vec::new();
    for _ in 0..17 {
        let rank = table.table.as_ref().unwrap().lookup_uniform(hash).index_by_name();
        let backend = u8::try_from(table.slots[rank].0 + 1).unwrap();
        if !found.contains(&backend) {
            found.push(backend);
        }
        for multiplier in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
            hash = (hash ^ (hash >> 33)).wrapping_mul(multiplier);
        }
        hash ^= hash >> 33;
    }
    found
}

/// Returns a server's reply to a write. The reply contains the nonce of the write.
fn says(to: &Seen, words: &str) -> Vec<u8> {
    let line = to.payload[8..].split(|byte| *byte == b'\r').next().unwrap();
    let nonce = String::from_utf8(line[line.len() - 17..].to_vec()).unwrap();
    let text = format!("{words}\r\n").replace("NONCE", &nonce);
    [&to.payload[..2], &[0, 0, 0, 1, 0, 0], text.as_bytes()].concat()
}

/// Returns the only reply to the client, or `None` if no reply was sent.
fn reply(bed: &mut Bed) -> Option<Vec<u8>> {
    bed.poll();
    let mut sent = std::mem::take(&mut bed.held.originated);
    assert!(sent.len() <= 1);
    let (interface, frame) = sent.pop()?;
    assert_eq!(interface, InterfaceId(0));
    Some(seen(&frame).payload[8..].to_vec())
}

fn counts(bed: &Bed) -> [u64; 6] {
    let all = [
        &bed.counters.replicas_begun,
        &bed.counters.replicas_acknowledged,
        &bed.counters.replicas_failed,
        &bed.counters.replicas_unanswered,
        &bed.counters.replicas_disagreed,
        &bed.counters.replicas_refused,
    ];
    all.map(Counter::read)
}

#[test]
fn write_goes_to_all_replicas_and_client_gets_one_reply() {
    let wanted = &order("key1")[..3];
    for (command, copy, said, answer) in [
        (set("key1"), "ms key1 2 F7 T600 O", "HD NONCE", "STORED\r\n"),
        (b"delete key1\r\n".to_vec(), "md key1 O", "HD NONCE", "DELETED\r\n"),
        (b"delete key1 0\r\n".to_vec(), "md key1 O", "NF NONCE", "NOT_FOUND\r\n"),
        (b"touch key1 30\r\n".to_vec(), "mg key1 T30 O", "EN NONCE", "NOT_FOUND\r\n"),
        (b"ms key1 2 T9 Oab k\r\nhi\r\n".to_vec(), "ms key1 2 T9 O", "HD NONCE", "HD Oab kkey1\r\n"),
        (b"md key1 Oab\r\n".to_vec(), "md key1 O", "NF NONCE", "NF Oab\r\n"),
        (b"mg key1 T9 k\r\n".to_vec(), "mg key1 T9 O", "HD NONCE", "HD kkey1\r\n"),
    ] {
        for (client, own, vip, tags) in [
            (CLIENT4, OWN4, VIP4, 0),
            (CLIENT6, OWN6, VIP6, 0),
            (CLIENT4, OWN4, VIP4, 1),
            (CLIENT6, OWN6, VIP6, 2),
        ] {
            let mut bed = bed(3, Ack::All);
            let payload = framed(&command);
            let mut frame = udp(client, 40_000, vip, PORT, &payload);
            (0..tags).for_each(|id| frame = tagged(&frame, 0x8100, 7 + id));
            let copies = bed.begin(&frame);
            assert_eq!(copies.iter().map(|(backend, _)| *backend).collect::<Vec<_>>(), wanted);
            let mut ids = BTreeSet::new();
            for (_, to) in &copies {
                assert_eq!((to.source.0, to.destination), (ip(own), (ip(vip), PORT)));
                assert!(to.payload[8..].starts_with(copy.as_bytes()), "{}", to.payload.escape_ascii());
                ids.insert((to.source.1, to.payload[..2].to_vec()));
            }
            assert_eq!(ids.len(), 3, "each request has its own id");
            for (nth, (_, to)) in copies.iter().enumerate() {
                assert_eq!(reply(&mut bed), None, "{nth}");
                assert_eq!(bed.answer(to, &says(to, said)), Verdict::Taken);
                assert_eq!(bed.answer(to, &says(to, said)), Verdict::Drop(DropReason::KvAnswerLate));
            }
            bed.poll();
            let answers = std::mem::take(&mut bed.held.originated);
            let reply = seen(&answers[0].1);
            assert_eq!((answers.len(), &reply.payload[8..]), (1, answer.as_bytes()));
            assert_eq!(reply.payload[..8], payload[..8]);
            let link = frame.len() - payload.len() - 8 - if ip(client).is_ipv4() { 20 } else { 40 };
            assert_eq!(reply.link, [&ROUTER[..], &OURS, &frame[12..link]].concat());
            assert_eq!((reply.source, reply.destination), ((ip(vip), PORT), (ip(client), 40_000)));
            assert_eq!(counts(&bed), [1, 1, 0, 0, 0, 0]);
            assert_eq!((bed.pipeline.flows().len(), bed.pipeline.next_due()), (0, None));
            let packets = (0..5).map(|slot| bed.counters.backend(slot).unwrap().packets.read());
            assert_eq!(packets.sum::<u64>(), 3);
        }
    }
}

#[test]
fn binary_writes_go_as_they_came_with_an_opaque_of_our_own() {
    let command = |opcode: u8, extras: &[u8], value: &[u8]| {
        let body = [extras, b"key1", value].concat();
        let header = [0x80, opcode, 0, 4, extras.len() as u8, 0, 0, 0, 0, 0, 0, body.len() as u8, 1, 2, 3, 4];
        [&header[..], &[0; 8], &body].concat()
    };
    for (opcode, extras, value, asked) in [
        (0x01, &[0, 0, 0, 7, 0, 0, 2, 88][..], &b"hi"[..], 0x01),
        (0x11, &[0, 0, 0, 7, 0, 0, 2, 88], b"hi", 0x01),
        (0x04, &[], b"", 0x04),
        (0x14, &[], b"", 0x04),
        (0x1c, &[0, 0, 0, 30], b"", 0x1c),
    ] {
        for (status, words, done) in [(0_u8, "", 1), (0x82, "Out of memory", 0)] {
            let mut bed = bed(2, Ack::All);
            let payload = command(opcode, extras, value);
            let copies = bed.begin(&request(&payload));
            let mut opaques = BTreeSet::new();
            for (_, to) in &copies {
                let (ours, theirs) = (&to.payload[8..], &payload);
                assert_eq!((ours[0], ours[1], &ours[2..12]), (0x80, asked, &theirs[2..12]));
                assert_eq!(&ours[16..], &theirs[16..]);
                opaques.insert(ours[12..16].to_vec());
                let answer = [&[0x81, asked, 0, 0, 0, 0, 0, status, 0, 0, 0, 0][..], &ours[12..16], &[0; 8]];
                let answer = [&to.payload[..2], &[0, 0, 0, 1, 0, 0], &answer.concat()].concat();
                let mut forged = answer.clone();
                forged[20] ^= 1;
                let late = status != 0 && opaques.len() == 2;
                let nonce = Verdict::Drop(DropReason::KvAnswerNonce);
                assert_eq!(bed.answer(to, &forged), nonce, "{late}");
                assert_eq!(bed.answer(to, &answer), Verdict::Taken);
            }
            assert_eq!(opaques.len(), 2);
            let said = reply(&mut bed);
            assert_eq!(counts(&bed)[1..3], [done, 1 - done]);
            if matches!(opcode, 0x11 | 0x14) {
                assert_eq!(said, None, "quiet");
                continue;
            }
            let header = [0x81, opcode, 0, 0, 0, 0, 0, status, 0, 0, 0, words.len() as u8, 1, 2, 3, 4];
            assert_eq!(said.unwrap(), [&header[..], &[0; 8], words.as_bytes()].concat());
        }
    }
}

#[test]
fn a_client_is_told_what_as_many_backends_as_wanted_have_said() {
    const NO: &str = "SERVER_ERROR out of memory storing object";
    const STORED: Option<&str> = Some("STORED\r\n");
    const MEMORY: Option<&str> = Some("SERVER_ERROR out of memory storing object\r\n");
    let (yes, missing, lost) = ("HD NONCE", "NF NONCE", "");
    type Row = (Ack, &'static [u8], [&'static str; 3], Option<&'static str>, usize, [u64; 4]);
    // The last two columns are the number of backend replies after which the client receives a
    // reply, and the counters (acknowledged, failed, unanswered, disagreed).
    let rows: [Row; 14] = [
        (Ack::All, b"s", [yes, yes, yes], STORED, 3, [1, 0, 0, 0]),
        (Ack::All, b"s", [yes, NO, yes], MEMORY, 2, [0, 1, 0, 1]),
        (Ack::All, b"s", [NO, lost, lost], MEMORY, 1, [0, 1, 0, 1]),
        (Ack::All, b"s", [yes, yes, lost], None, 3, [0, 0, 1, 1]),
        (Ack::Majority, b"s", [yes, yes, lost], STORED, 2, [1, 0, 0, 1]),
        (Ack::Majority, b"s", [yes, NO, yes], STORED, 3, [1, 0, 0, 1]),
        (Ack::Majority, b"s", [NO, yes, NO], MEMORY, 3, [0, 1, 0, 1]),
        (Ack::Majority, b"s", [yes, lost, lost], None, 3, [0, 0, 1, 1]),
        (Ack::First, b"s", [NO, yes, yes], STORED, 2, [1, 0, 0, 1]),
        (Ack::First, b"s", [NO, NO, NO], MEMORY, 3, [0, 1, 0, 0]),
        (Ack::First, b"s", [lost, lost, lost], None, 3, [0, 0, 1, 0]),
        // One backend had the key, so the client could have read its value. Now no backend has the
        // key.
        (Ack::All, b"d", [missing, yes, missing], Some("DELETED\r\n"), 3, [1, 0, 0, 1]),
        (Ack::All, b"d", [missing, missing, missing], Some("NOT_FOUND\r\n"), 3, [1, 0, 0, 0]),
        // One backend does not have the key, so reads from that backend miss.
        (Ack::All, b"t", [yes, "EN NONCE", yes], Some("NOT_FOUND\r\n"), 3, [1, 0, 0, 1]),
    ];
    for (ack, verb, words, wanted, after, ends) in rows {
        let mut bed = bed(3, ack);
        let command = match verb {
            b"s" => set("key1"),
            b"d" => b"delete key1\r\n".to_vec(),
            _ => b"touch key1 30\r\n".to_vec(),
        };
        let copies = bed.begin(&request(&command));
        let mut heard = None;
        for (nth, ((_, to), words)) in copies.iter().zip(words).enumerate() {
            if words != lost {
                assert_eq!(bed.answer(to, &says(to, words)), Verdict::Taken, "{nth}");
            }
            if let Some(said) = reply(&mut bed) {
                assert_eq!((heard, nth + 1), (None, after), "{ack:?} {words:?}");
                heard = Some(String::from_utf8(said).unwrap());
            }
        }
        bed.wait(19);
        assert_eq!(reply(&mut bed), None);
        bed.wait(1);
        assert_eq!((heard.as_deref(), reply(&mut bed)), (wanted, None), "{ack:?} {words:?}");
        assert_eq!(counts(&bed)[1..5], ends, "{ack:?} {words:?}");
        assert_eq!((bed.pipeline.next_due(), drops(&bed)), (None, BTreeMap::new()));
        let (_, last) = copies.last().unwrap();
        assert_eq!(bed.answer(last, &says(last, yes)), Verdict::Drop(DropReason::KvAnswerLate));
    }
}

#[test]
fn who_wants_no_answer_has_none_and_all_backends_have_the_write() {
    for command in ["set key1 0 0 2 noreply\r\nhi\r\n", "delete key1 noreply\r\n", "ms key1 2 q\r\nhi\r\n"] {
        let mut bed = bed(2, Ack::All);
        let copies = bed.begin(&request(command.as_bytes()));
        assert_eq!(copies.iter().map(|(backend, _)| *backend).collect::<Vec<_>>(), order("key1")[..2]);
        for (_, to) in &copies {
            assert!(!to.payload.windows(7).any(|word| word == b"noreply"));
            assert_eq!(bed.answer(to, &says(to, "HD NONCE")), Verdict::Taken);
        }
        assert_eq!(reply(&mut bed), None);
        assert_eq!((counts(&bed), bed.pipeline.next_due()), ([1, 1, 0, 0, 0, 0], None));
    }
}

#[test]
fn wrong_write_reply_is_dropped_and_acknowledges_nothing() {
    let mut bed = bed(2, Ack::First);
    let copies = bed.begin(&request(&set("key1")));
    let (to, other) = (&copies[0].1, &copies[1].1);
    let mut other_id = says(to, "HD NONCE");
    other_id[0] ^= 0x80;
    let elsewhere = Seen { destination: (ip("198.18.1.1"), PORT), ..to.clone() };
    let mut of_other = says(other, "HD NONCE");
    of_other[..2].copy_from_slice(&to.payload[..2]);
    let mut broken = back(to, &says(to, "HD NONCE"));
    let last = broken.len() - 4;
    broken[last] ^= 1;
    for (reason, frame) in [
        (DropReason::KvAnswerLate, back(to, &other_id)),
        (DropReason::KvAnswerSource, back(&elsewhere, &says(to, "HD NONCE"))),
        (DropReason::KvAnswerNonce, back(to, &of_other)),
        (DropReason::KvAnswerNonce, back(to, &says(to, "HD O0000000000000000"))),
        (DropReason::KvAnswerNonce, back(to, &says(to, "HD"))),
        (DropReason::KvAnswerNonce, back(to, &says(to, "STORED"))),
        (DropReason::KvAnswerNonce, back(to, &says(to, "EN NONCE"))),
        (DropReason::KvAnswerMalformed, back(to, &says(to, "HD NONCE\r\nHD NONCE"))),
        (DropReason::KvAnswerMalformed, back(to, &says(to, "HD NONCE")[..9])),
        (DropReason::KvAnswerMalformed, broken),
    ] {
        let before = bed.counters.drops(reason);
        assert_eq!(bed.send(0, &frame).0, Verdict::Drop(reason), "{}", frame.escape_ascii());
        assert_eq!(bed.counters.drops(reason), before + 1);
    }
    assert_eq!((reply(&mut bed), counts(&bed)), (None, [1, 0, 0, 0, 0, 0]));
    assert_eq!(bed.answer(to, &says(to, "HD NONCE")), Verdict::Taken);
    assert_eq!(reply(&mut bed).unwrap(), b"STORED\r\n");
}

proptest! {
    #[test]
    fn reads_of_a_flow_stay_on_one_original_replica(
        key in "[a-z]{1,20}", count in 2..=4_u8, down in prop::collection::btree_set(1..=5_u8, 0..4),
        ports in prop::collection::vec(12_000..60_000_u16, 40),
    ) {
        prop_assume!(key != "flag");
        let order = order(&key);
        prop_assume!(order.len() == 5);
        let down: Vec<u8> = down.into_iter().collect();
        let mut bed = bed_of(replicated(count, Ack::All, &down));
        let serving: Vec<u8> = order.iter().copied().filter(|backend| !down.contains(backend)).collect();
        let holders = &serving[..serving.len().min(count.into())];
        let own = &order[..count.into()];
        let mut wanted: BTreeSet<u8> = holders.iter().copied().filter(|backend| own.contains(backend)).collect();
        if wanted.is_empty() {
            wanted = holders.iter().copied().collect();
        }
        let mut seen_at = BTreeSet::new();
        // Forty random flows may miss one of the four backends, so the test adds flows until each
        // backend has been selected.
        for (n, port) in ports.into_iter().chain(12_000..60_000).enumerate() {
            if n >= 40 && seen_at == wanted {
                break;
            }
            let get = |command: String| udp(CLIENT4, port, VIP4, PORT, &framed(command.as_bytes()));
            let at = bed.backend_of(&get(format!("get {key}\r\n")));
            prop_assert_eq!(bed.backend_of(&get(format!("mg {key} v\r\n"))), at);
            let flow = Flow::new((ip(CLIENT4), port), (ip(VIP4), PORT), 17).unwrap();
            let said = bed.live.current().explain_key(&flow, key.as_bytes());
            prop_assert_eq!(said.slot, at.map(|backend| SlotId(u32::from(backend) - 1)));
            let all: Vec<u8> =
                bed.live.current().replicas_of_key(&flow, key.as_bytes()).map(|slot| slot.0 as u8 + 1).collect();
            prop_assert_eq!(&all[..], holders);
            prop_assert!(wanted.contains(&at.unwrap()), "{at:?} {wanted:?}");
            seen_at.insert(at.unwrap());
        }
        prop_assert_eq!(seen_at, wanted);
        let all: Vec<u8> = bed.live.current().owners_of_key(ServiceId(3), key.as_bytes()).map(|s| s.0 as u8 + 1).collect();
        prop_assert_eq!(&all[..], holders);
        // Writes go to all backends that currently store the key, with a short time to live on
        // failover backends.
        for (backend, to) in bed.begin(&request(&set(&key))) {
            let time = if own.contains(&backend) { " T600 " } else { " T10 " };
            let line = String::from_utf8(to.payload[8..].to_vec()).unwrap();
            prop_assert!(holders.contains(&backend) && line.contains(time), "{backend} {line}");
        }
        prop_assert_eq!(counts(&bed)[0], 1);
    }

    #[test]
    fn on_a_ring_the_next_servers_of_the_ring_have_the_key(key in "[a-z]{1,20}", down in prop::option::of(1..=5_u8)) {
        prop_assume!(key != "flag");
        let names: Vec<String> = (1..=5).map(|n| format!("198.18.1.{n}")).collect();
        let servers: Vec<Server<'_>> =
            names.iter().map(|ring_name| Server { ring_name, weight: 1, is_ejected: false }).collect();
        let ring = Arc::new(Ring::build(&servers).unwrap());
        let hash = KeyHash::md5().hash(key.as_bytes());
        let mut points: Vec<(u32, u16)> = ring.iter().collect();
        let at = points.partition_point(|(point, _)| u64::from(*point) < hash);
        points.rotate_left(at);
        let mut order: Vec<u8> = Vec::new();
        points.iter().map(|(_, server)| *server as u8 + 1).for_each(|server| {
            if !order.contains(&server) {
                order.push(server);
            }
        });
        let down: Vec<u8> = down.into_iter().collect();
        let mut bed = bed_of(changed(2, Ack::All, &down, |keyed| {
            Arc::get_mut(&mut keyed.rules).unwrap().hash = KeyHash::md5();
            let rings = Rings { all: Some(Arc::clone(&ring)), live: Some(Arc::clone(&ring)) };
            keyed.placements = [Placement::Ring(rings.clone()), Placement::Ring(rings)].into();
        }));
        order.retain(|backend| !down.contains(backend));
        let asked: Vec<u8> = bed.begin(&request(&set(&key))).iter().map(|(backend, _)| *backend).collect();
        prop_assert_eq!(&asked[..], &order[..2]);
    }
}

#[test]
fn commands_on_the_old_value_get_a_protocol_error() {
    const SAYS: &str = "SERVER_ERROR not supported with replicas\r\n";
    let mut bed = bed(2, Ack::All);
    let text = [
        "add k 0 0 2\r\nhi\r\n",
        "replace k 0 0 2\r\nhi\r\n",
        "append k 0 0 2\r\nhi\r\n",
        "prepend k 0 0 2\r\nhi\r\n",
        "cas k 0 0 2 7\r\nhi\r\n",
        "incr k 1\r\n",
        "decr k 1\r\n",
        "gat 30 k\r\n",
        "gats 30 k key1 key2 key3\r\n",
        "ma k\r\n",
        "ms k 2 MA\r\nhi\r\n",
        "ms k 2 C7\r\nhi\r\n",
        "ms k 2 c\r\nhi\r\n",
        "ms k 2 I\r\nhi\r\n",
        "md k C7\r\n",
        "md k I\r\n",
        "mg k v N30\r\n",
        "mg k v T30\r\n",
    ];
    for (nth, command) in (1..).zip(text) {
        let frame = tagged(&request(command.as_bytes()), 0x8100, 7);
        let (verdict, out) = bed.send(24, &frame);
        assert_eq!(verdict, Verdict::Reply, "{command:?} {:?}", drops(&bed));
        let reply = seen(&out);
        assert_eq!(reply.payload, framed(SAYS.as_bytes()), "{command:?}");
        assert_eq!(reply.link, [&ROUTER[..], &OURS, &frame[12..18]].concat());
        assert_eq!((reply.source, reply.destination), ((ip(VIP4), PORT), (ip(CLIENT4), 40_000)));
        assert_eq!(counts(&bed), [0, 0, 0, 0, 0, nth]);
    }
    let binary = |opcode: u8, extras: usize, cas: u8| {
        let header = [0x80, opcode, 0, 1, extras as u8, 0, 0, 0, 0, 0, 0, extras as u8 + 1, 9, 8, 7, 6];
        [&header[..], &[0, 0, 0, 0, 0, 0, 0, cas], &vec![0; extras], b"k"].concat()
    };
    for (opcode, extras, cas) in
        [(0x02, 8, 0), (0x05, 20, 0), (0x15, 20, 0), (0x0e, 0, 0), (0x1d, 4, 0), (0x01, 8, 7), (0x04, 0, 7)]
    {
        let (verdict, out) = bed.send(24, &request(&binary(opcode, extras, cas)));
        let header = [0x81, opcode, 0, 0, 0, 0, 0, 0x83, 0, 0, 0, 13, 9, 8, 7, 6];
        let wanted = [&header[..], &[0; 8], b"Not supported"].concat();
        assert_eq!((verdict, seen(&out).payload), (Verdict::Reply, framed(&wanted)), "{opcode}");
    }
    let six = udp(CLIENT6, 40_000, VIP6, PORT, &framed(b"incr k 1\r\n"));
    assert_eq!(seen(&bed.send(0, &six).1).payload, framed(SAYS.as_bytes()));
    // No error reply is sent to a command with `noreply`.
    for command in ["incr k 1 noreply\r\n", "cas k 0 0 2 7 noreply\r\nhi\r\n"] {
        let refused = Verdict::Drop(DropReason::KvReplicaRefused);
        assert_eq!(bed.send(24, &request(command.as_bytes())).0, refused);
    }
    assert!(bed.begin(&request(&set("key1"))).len() == 2 && bed.pipeline.flows().is_empty());
}

#[test]
fn a_write_that_has_no_room_is_begun_nowhere() {
    let full = |bed: &mut Bed, frame: &[u8], reason| {
        assert_eq!(bed.send(24, frame).0, Verdict::Drop(reason));
        bed.poll();
        assert!(bed.held.originated.is_empty());
    };
    let frame = request(&set("key1"));
    // At most two writes can be pending at a time.
    let mut bed = bed(3, Ack::All);
    (0..2).for_each(|_| assert_eq!(bed.begin(&frame).len(), 3));
    full(&mut bed, &frame, DropReason::KvReplicaFull);
    bed.wait(20);
    assert_eq!(counts(&bed), [2, 0, 0, 2, 0, 0]);
    // The number of free frames is enough for only two of the three upstream requests.
    bed.held.free = 5;
    bed.poll();
    assert_eq!(bed.send(24, &frame).0, Verdict::Taken);
    assert_eq!(bed.send(24, &frame).0, Verdict::Drop(DropReason::KvReplicaNoFrame));
    bed.poll();
    assert_eq!((bed.held.originated.len(), counts(&bed)[0]), (3, 3));
    // The frames are free when the write is checked, but in use when an upstream request is sent.
    // The requests that were sent may be acknowledged, but the client receives no success reply.
    bed.wait(20);
    bed.held.originated.clear();
    bed.held.free = 3;
    bed.poll();
    assert_eq!(bed.send(24, &frame).0, Verdict::Taken);
    bed.held.free = 2;
    bed.poll();
    let copies: Vec<(u8, Seen)> = bed.held.originated.drain(..).map(|(_, frame)| asked(&frame)).collect();
    assert_eq!((copies.len(), counts(&bed)[3]), (2, 4));
    bed.held.free = 100;
    for (_, to) in &copies {
        assert_eq!(bed.answer(to, &says(to, "HD NONCE")), Verdict::Taken);
    }
    assert_eq!((reply(&mut bed), counts(&bed)[1], bed.pipeline.next_due()), (None, 0, None));
    // The reply to the client needs a free frame.
    let copies = bed.begin(&frame);
    copies.iter().for_each(|(_, to)| assert_eq!(bed.answer(to, &says(to, "HD NONCE")), Verdict::Taken));
    bed.held.free = 0;
    assert_eq!((reply(&mut bed), counts(&bed)[3]), (None, 5));
    // The payload limit is 1,500 - 24 - 28 bytes. Fields that the pipeline adds use 40 of these
    // bytes.
    let value = |length: usize| format!("set key1 0 0 {length}\r\n{}\r\n", "v".repeat(length)).into_bytes();
    bed.held.free = 100;
    bed.poll();
    let around = framed(&value(1_000)).len() - 1_000;
    let copies = bed.begin(&request(&value(1_408 - around)));
    assert_eq!(copies.len(), 3);
    assert!(copies.iter().all(|(_, to)| to.payload.len() > 1_408 && to.payload.len() <= 1_448));
    full(&mut bed, &request(&value(1_409 - around)), DropReason::KvReplicaTooLong);
}

#[test]
fn a_write_without_a_way_back_is_begun_nowhere() {
    let no_way = Verdict::Drop(DropReason::KvNoReturnPath);
    let long = [&b"set key1 7 0 2000\r\n"[..], &[b'v'; 2000], b"\r\n"].concat();
    let payload = request(&long)[34..].to_vec();
    let pieces = Datagram { source: CLIENT4, vip: VIP4, protocol: 17, id: 7, payload }.cut(1_000);
    assert_eq!(bed(2, Ack::All).send(24, &pieces[0]).0, no_way);
    let tunnels = vec![from("192.0.2.77", TunnelSourceKind::UpstreamTunnel)];
    let mut tunnelled = bed_of(Parts { tunnels, ..replicated(2, Ack::All, &[]) });
    for command in [set("key1"), b"incr key1 1\r\n".to_vec()] {
        let frame = wrapped(&request(&command), packet::Encapsulation::Gre, ("192.0.2.77", OWN4), 0);
        assert_eq!(tunnelled.send(24, &frame).0, no_way);
    }
    let mut broken = request(&set("key1"));
    let last = broken.len() - 4;
    broken[last] ^= 1;
    assert_eq!(bed(2, Ack::All).send(24, &broken).0, Verdict::Drop(DropReason::Malformed));
    // In the first case, upstream requests are disabled. In the second case, no backend is serving.
    let full = Verdict::Drop(DropReason::KvReplicaFull);
    assert_eq!(Bed::new(replicated(2, Ack::All, &[])).send(24, &request(&set("key1"))).0, full);
    let mut none = bed_of(replicated(2, Ack::All, &[1, 2, 3, 4, 5]));
    assert_eq!(none.send(24, &request(&set("key1"))).0, Verdict::Drop(DropReason::NoBackend));
    assert_eq!(none.send(24, &request(b"get key1\r\n")).0, Verdict::Drop(DropReason::NoBackend));
    // If only one backend is serving, its acknowledgment is sufficient.
    let mut one = bed_of(replicated(2, Ack::Majority, &[1, 2, 4, 5]));
    let copies = one.begin(&request(&set("key1")));
    assert_eq!(copies.len(), 1);
    assert_eq!(one.answer(&copies[0].1, &says(&copies[0].1, "HD NONCE")), Verdict::Taken);
    assert_eq!(reply(&mut one).unwrap(), b"STORED\r\n");
}

#[test]
fn each_write_and_each_refusal_counts_as_a_new_flow() {
    for (command, passes) in [(set("key1"), Verdict::Taken), (b"incr key1 1\r\n".to_vec(), Verdict::Reply)] {
        let mut parts = replicated(2, Ack::All, &[]);
        let guard = Guard { new_flows_per_second: NonZeroU32::new(2), ..Guard::default() };
        parts.services.last_mut().unwrap().guard = Some(Arc::new(guard));
        let mut bed = bed_of(parts);
        let seen: Vec<Verdict> = (0..4).map(|_| bed.send(24, &request(&command)).0).collect();
        let limited = Verdict::Drop(DropReason::FlowRate);
        assert_eq!(seen, [passes, passes, limited, limited]);
    }
}

#[test]
fn several_keys_are_read_from_the_replicas_of_the_flow() {
    let keys: Vec<String> = (0..6).map(|n| format!("key{n}")).collect();
    for port in 12_000..12_020 {
        let mut bed = bed(2, Ack::All);
        let get = |keys: &str| udp(CLIENT4, port, VIP4, PORT, &framed(format!("get {keys}\r\n").as_bytes()));
        let mut wanted: BTreeMap<u8, BTreeSet<&str>> = BTreeMap::new();
        for key in &keys {
            wanted.entry(bed.backend_of(&get(key)).unwrap()).or_default().insert(key);
        }
        let parts = bed.begin(&get(&keys.join(" ")));
        let texts: Vec<(u8, String)> = parts
            .iter()
            .map(|(backend, to)| (*backend, String::from_utf8_lossy(&to.payload[8..]).into()))
            .collect();
        let asked: BTreeMap<u8, BTreeSet<&str>> = texts
            .iter()
            .map(|(backend, text)| {
                (*backend, text.lines().map(|line| line.split(' ').nth(1).unwrap()).collect())
            })
            .collect();
        assert_eq!(asked, wanted);
    }
}

#[test]
fn a_service_that_a_reload_takes_answers_no_write() {
    let mut bed = bed(2, Ack::First);
    let copies = bed.begin(&request(&set("key1")));
    let mut next = replicated(2, Ack::First, &[]);
    next.bindings.retain(|binding| binding.service < 3);
    bed.live.publish(Snapshot::new(next).unwrap());
    let (_, to) = &copies[0];
    assert_eq!(bed.answer(to, &says(to, "HD NONCE")), Verdict::Drop(DropReason::KvAnswerLate));
    bed.wait(20);
    assert_eq!((reply(&mut bed), counts(&bed)), (None, [1, 0, 0, 1, 0, 0]));
}

#[test]
fn a_backend_that_goes_after_it_was_asked_is_heard_still() {
    let mut bed = bed(2, Ack::All);
    let copies = bed.begin(&request(&set("key1")));
    bed.live.publish(bed.live.current().with_states(vec![SlotState::Down; 5]).unwrap());
    for (_, to) in &copies {
        assert_eq!(bed.answer(to, &says(to, "HD NONCE")), Verdict::Taken);
    }
    assert_eq!(reply(&mut bed).unwrap(), b"STORED\r\n");
}

#[test]
fn write_reply_on_another_queue_is_handed_to_the_writer() {
    let mut requester = Bed::with(replicated(2, Ack::All, &[]), own_config(1, 2));
    requester.held.free = 100;
    requester.poll();
    let mut other = Bed::with(replicated(2, Ack::All, &[]), own_config(0, 2));
    for (_, to) in requester.begin(&request(&set("key1"))) {
        let frame = back(&to, &says(&to, "HD NONCE"));
        let (verdict, frame) = other.send(0, &frame);
        assert_eq!(verdict, Verdict::ToThread(ThreadId(1), HandoffReason::Answer));
        let origin = Origin::Thread(ThreadId(0), HandoffReason::Answer);
        assert_eq!(requester.send_as(origin, 0, &frame).0, Verdict::Taken);
    }
    assert_eq!(reply(&mut requester).unwrap(), b"STORED\r\n");
}
