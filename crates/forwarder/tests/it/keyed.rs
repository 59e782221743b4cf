//! Tests of keyed services: requests for a key go to the same backend from any flow, refused
//! requests are counted with the right drop reason, and requests create no flows.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use forwarder::*;
use kv_switch::{Application, Header, HotKeys, KeyHash, Memcached, Routes};
use proptest::prelude::*;
use siphasher::sip::SipHasher13;

use crate::bed::*;
use crate::pieces::*;

pub(crate) const CLIENT4: &str = "198.51.100.7";
pub(crate) const CLIENT6: &str = "2001:db8:9::7";
pub(crate) const PORT: u16 = 11_211;

/// Returns a configuration with a keyed service at UDP port 11211 of both VIPs. The key `flag` and
/// keys with the prefix `log:` are routed to a pool that contains only the first backend.
fn keyed(failover: KeyFailover) -> Parts {
    keyed_by(Box::new(Memcached::new(3)), failover)
}

fn keyed_by(application: Box<dyn Application>, failover: KeyFailover) -> Parts {
    keyed_of(application, failover, KeyPath::Direct, None)
}

/// Returns a configuration with a keyed service and the given rules for requests whose keys are on
/// several backends.
pub(crate) fn keyed_of(
    application: Box<dyn Application>,
    failover: KeyFailover,
    path: KeyPath,
    gather: Option<GatherRules>,
) -> Parts {
    let slots = gre_slots(5);
    let mut parts = parts(slots.clone(), &[1; 5]);
    let rules = KeyRules {
        application,
        clients: PrefixSet::new([
            (ip("198.51.100.0"), 24),
            (ip("2001:db8:9::"), 48),
            (ip("203.0.113.0"), 24),
        ]),
        routes: Routes::build(&[(b"flag", 0)], &[(b"log:", 0)]).unwrap(),
        failover,
        hash: KeyRules::maglev_hash(&HashKey::new([5; 16])),
        failover_ttl: Some(10),
        path,
        gather,
        cache: None,
        replicas: None,
    };
    let (all, logs) = (pool(&slots, &[1; 5]), pool(&slots, &[1]));
    let placements = [&all, &logs].map(|pool| Placement::Maglev { all: pool.table.clone() }).into();
    let keyed = Keyed { rules: Arc::new(rules), pools: [logs].into(), placements };
    parts.services.push(Service { keyed: Some(Arc::new(keyed)), ..service(3, HashPolicy::Key, &all) });
    parts.bindings.extend([VIP4, VIP6].map(|vip| binding(vip, 17, PORT..=PORT, 3)));
    parts
}

fn bed() -> Bed {
    Bed::new(keyed(KeyFailover::Next))
}

pub(crate) fn framed(command: &[u8]) -> Vec<u8> {
    [b"\x12\x34\0\0\0\x01\0\0", command].concat()
}

fn request(command: &[u8]) -> Vec<u8> {
    udp(CLIENT4, 40_000, VIP4, PORT, &framed(command))
}

fn get(key: &str) -> Vec<u8> {
    format!("get {key}\r\n").into_bytes()
}

/// Computes the backend of a key with an independent hash implementation and the Maglev table.
pub(crate) fn by_hand(key: &str) -> u8 {
    // The secret of the key hash is the 128-bit SipHash of `kv` under the cluster's hash key.
    let own = siphasher::sip128::SipHasher24::new_with_key(&[5; 16]).hash(b"kv").as_bytes();
    let table = pool(&gre_slots(5), &[1; 5]);
    let hash = SipHasher13::new_with_key(&own).hash(key.as_bytes());
    let rank = table.table.as_ref().unwrap().lookup_uniform(hash).index_by_name();
    u8::try_from(table.slots[rank].0 + 1).unwrap()
}

/// Returns all drop reasons that occurred, with the number of drops.
pub(crate) fn drops(bed: &Bed) -> BTreeMap<&'static str, u64> {
    let all = DropReason::ALL.iter().map(|reason| (reason.name(), bed.counters.drops(*reason)));
    all.filter(|(_, count)| *count > 0).collect()
}

proptest! {
    // Promise: key-placement
    #[test]
    fn a_key_has_its_backend_from_any_client_by_any_command(
        key in "[!-~]{1,60}", ports in prop::collection::vec(1024_u16..11_000, 3), v6: bool,
    ) {
        prop_assume!(key != "flag" && !key.starts_with("log:"));
        let mut bed = bed();
        let (client, vip) = if v6 { (CLIENT6, VIP6) } else { (CLIENT4, VIP4) };
        let commands =
            [get(&key), format!("set {key} 0 0 2\r\nab\r\n").into_bytes(), format!("mg {key} v\r\n").into_bytes()];
        for (port, command) in ports.iter().zip(commands) {
            let frame = udp(client, *port, vip, PORT, &framed(&command));
            prop_assert_eq!(bed.backend_of(&frame), Some(by_hand(&key)), "{:?}", drops(&bed));
        }
        let tagged = tagged(&udp(client, 5000, vip, PORT, &framed(&get(&key))), 0x8100, 7);
        prop_assert!(matches!(bed.send(24, &tagged), (Verdict::Tx, _)));
        prop_assert_eq!(bed.pipeline.flows().len(), 0);
    }
}

#[test]
fn where_says_what_the_pipeline_does() {
    let mut bed = bed();
    for key in (0..200).map(|n| format!("key{n}")).chain(["flag".into(), "log:1".into(), "flags".into()]) {
        let sent = bed.backend_of(&request(&get(&key))).unwrap();
        let flow = Flow::new((ip(CLIENT4), 40_000), (ip(VIP4), PORT), 17).unwrap();
        let said = bed.live.current().explain_key(&flow, key.as_bytes());
        assert_eq!((said.outcome, said.slot), (Outcome::Forward, Some(SlotId(u32::from(sent) - 1))), "{key}");
        let is_routed = key == "flag" || key.starts_with("log:");
        assert_eq!((said.route, sent == 1 || !is_routed), (is_routed.then_some(0), true), "{key}");
    }
    let flow = Flow::new((ip("192.0.2.9"), 40_000), (ip(VIP4), PORT), 17).unwrap();
    let said = bed.live.current().explain_key(&flow, b"key");
    assert_eq!((said.outcome, said.slot), (Outcome::Drop(DropReason::KvClient), None));
}

/// Returns one request for each drop reason.
fn refused() -> Vec<(DropReason, Vec<u8>)> {
    let long = vec![b'k'; 251];
    let from = |source, port| udp(source, port, VIP4, PORT, &framed(&get("a")));
    let mut total = framed(&get("a"));
    total[5] = 2;
    vec![
        (DropReason::KvClient, from("192.0.2.9", 40_000)),
        (DropReason::KvSourcePort, from(CLIENT4, 1_023)),
        (DropReason::KvSourcePort, from(CLIENT4, PORT)),
        (DropReason::FromVip, from(VIP4, 40_000)),
        (DropReason::KvShortFrame, udp(CLIENT4, 40_000, VIP4, PORT, b"\x12\x34\0\0\0")),
        (DropReason::KvTotalNotOne, udp(CLIENT4, 40_000, VIP4, PORT, &total)),
        (DropReason::KvSeveralCommands, request(b"get a\r\nget b\r\n")),
        (DropReason::KvUnknownVerb, request(b"hello world\r\n")),
        (DropReason::KvAdministrative, request(b"flush_all\r\n")),
        (DropReason::KvLineEnd, request(b"get a\n")),
        (DropReason::KvZeroByte, request(b"get a\0b\r\n")),
        (DropReason::KvKeyEmpty, request(b"get\r\n")),
        (DropReason::KvKeyTooLong, request(&[b"get ", &long[..], b"\r\n"].concat())),
        (DropReason::KvTooManyKeys, request(b"get a b c d\r\n")),
        (DropReason::KvWrongArguments, request(b"set a 0 0\r\n")),
        (DropReason::KvBadNumber, request(b"set a 0 0 x\r\nab\r\n")),
        (DropReason::KvBadFlag, request(b"mg a !\r\n")),
        (DropReason::KvBadBase64, request(b"mg a!= b\r\n")),
        (DropReason::KvWrongLength, request(b"set a 0 0 9\r\nab\r\n")),
    ]
}

// Promise: keyed-requests-only
#[test]
fn each_refusal_is_dropped_by_its_name() {
    for (reason, frame) in refused() {
        let mut bed = bed();
        let before = frame.clone();
        let (verdict, after) = bed.send(24, &frame);
        assert_eq!(verdict, Verdict::Drop(reason), "{}", frame[42..].escape_ascii());
        assert_eq!((drops(&bed), after), (BTreeMap::from([(reason.name(), 1)]), before));
    }
}

#[test]
fn keys_of_one_backend_pass_and_of_several_are_dropped() {
    let mut bed = bed();
    let keys: Vec<String> = (0..200).map(|n| format!("key{n}")).collect();
    let mut by_backend: BTreeMap<u8, Vec<&str>> = BTreeMap::new();
    for key in &keys {
        by_backend.entry(by_hand(key)).or_default().push(key);
    }
    let backends: BTreeSet<u8> = by_backend.keys().copied().collect();
    assert_eq!(backends.len(), 5);
    for (backend, keys) in &by_backend {
        let frame = request(format!("get {} {} {}\r\n", keys[0], keys[1], keys[2]).as_bytes());
        let (verdict, out) = bed.send(24, &frame);
        assert_eq!((verdict, out[14 + 19]), (Verdict::Tx, *backend));
        assert_eq!(out[14 + 24 + 20..], frame[14 + 20..], "the request is unchanged");
    }
    let one = |backend: u8| by_backend[&backend][0];
    let split = request(format!("get {} {} {}\r\n", one(1), one(1), one(2)).as_bytes());
    assert_eq!(bed.send(24, &split).0, Verdict::Drop(DropReason::KvSplit));
}

#[test]
fn keys_of_a_down_backend_follow_failover_and_others_stay() {
    let keys: Vec<String> = (0..300).map(|n| format!("key{n}")).collect();
    for (state, failover) in [SlotState::Down, SlotState::Draining].into_iter().flat_map(|state| {
        [KeyFailover::Next, KeyFailover::Nowhere, KeyFailover::Pool(0)].map(|to| (state, to))
    }) {
        let mut bed = Bed::new(keyed(failover));
        let mut states = vec![SlotState::Serving; 5];
        states[2] = state;
        bed.live.publish(bed.live.current().with_states(states).unwrap());
        let mut seen = BTreeSet::new();
        for key in &keys {
            let sent = bed.backend_of(&request(&get(key)));
            if by_hand(key) == 3 {
                seen.insert(sent);
            } else {
                assert_eq!(sent, Some(by_hand(key)), "{key}: {failover:?}");
            }
        }
        let expected = match failover {
            KeyFailover::Next => [1, 2, 4, 5].map(Some).into(),
            KeyFailover::Nowhere => [None].into(),
            KeyFailover::Pool(_) => [Some(1)].into(),
        };
        assert_eq!(seen, expected, "{state:?} {failover:?}");
    }
}

#[test]
fn fragments_of_a_set_follow_the_first_with_its_key() {
    for (client, vip) in [(CLIENT4, VIP4), (CLIENT6, VIP6)] {
        let mut bed = bed();
        let whole = |key: &str| {
            let command = [format!("set {key} 0 0 2000\r\n").as_bytes(), &[b'v'; 2000], b"\r\n"].concat();
            let mut payload = udp_payload(40_000, PORT, command.len() + 8);
            payload.splice(8.., framed(&command));
            payload
        };
        for (id, key) in (1..60).map(|id| (id, format!("key{id}"))) {
            let datagram = Datagram { source: client, vip, protocol: 17, id, payload: whole(&key) };
            let pieces = datagram.cut(1024);
            let order = if id % 2 == 0 { [0, 1] } else { [1, 0] };
            let out: Vec<_> = order.iter().flat_map(|place| bed.all(&pieces[*place])).collect();
            let sent: Vec<_> = out.iter().map(|(verdict, frame)| (*verdict, frame[14 + 19])).collect();
            assert_eq!(sent, [(Verdict::Tx, by_hand(&key)); 2], "{key} {order:?}");
        }
        let payload = whole(&"k".repeat(250));
        let datagram = Datagram { source: client, vip, protocol: 17, id: 99, payload };
        let (first, later) = (datagram.piece(0, 128), datagram.piece(128, 1024));
        assert_eq!(bed.all(&first)[0].0, Verdict::Drop(DropReason::KvFirstFragmentTooShort));
        assert_eq!(
            bed.all(&later)[0].0,
            Verdict::Drop(DropReason::KvFirstFragmentTooShort),
            "the fragment follows its first"
        );
    }
}

#[test]
fn wrong_udp_length_is_malformed_and_padding_is_ignored() {
    let mut bed = bed();
    let mut frame = request(&get("a"));
    frame.extend([0; 9]);
    let expected = by_hand("a");
    assert_eq!(bed.backend_of(&frame), Some(expected), "Ethernet's padding");
    let length = 14 + 20 + 4;
    frame[length + 1] += 1;
    assert!(matches!(bed.send(24, &frame).0, Verdict::Drop(DropReason::Malformed)));
}

#[test]
fn each_request_counts_as_a_new_flow_for_the_limits() {
    let mut parts = keyed(KeyFailover::Next);
    let guard = Guard { new_flows_per_second: NonZeroU32::new(3), ..Guard::default() };
    parts.services[3].guard = Some(Arc::new(guard));
    let mut bed = Bed::new(parts);
    let sent: Vec<bool> = (0..5).map(|_| bed.send(24, &request(&get("a"))).0 == Verdict::Tx).collect();
    assert_eq!(sent, [true, true, true, false, false]);
    assert_eq!(drops(&bed), BTreeMap::from([("flow_rate", 2)]));
}

#[test]
fn keyless_request_goes_by_flow_to_a_serving_backend() {
    let version = [&[0x80, 0x0b], &[0; 22][..]].concat();
    for failover in [KeyFailover::Next, KeyFailover::Nowhere, KeyFailover::Pool(0)] {
        let mut parts = keyed(failover);
        let mut by_ring = parts.services[3].keyed.as_deref().unwrap().clone();
        by_ring.placements = [(); 2].map(|()| Placement::Ring(Rings { all: None, live: None })).into();
        for on_ring in [false, true] {
            if on_ring {
                parts.services[3].keyed = Some(Arc::new(by_ring.clone()));
            }
            let mut bed = Bed::new(parts.clone());
            let mut sent = |ports: std::ops::Range<u16>, command: &[u8]| -> BTreeSet<Option<u8>> {
                ports.map(|port| bed.backend_of(&udp(CLIENT4, port, VIP4, PORT, &framed(command)))).collect()
            };
            for command in [&b"mn\r\n"[..], b"version\r\n", &version] {
                assert_eq!(sent(20_000..20_100, command), [1, 2, 3, 4, 5].map(Some).into());
                assert_eq!(sent(20_000..20_001, command).len(), 1);
            }
            let mut states = vec![SlotState::Serving; 5];
            states[2] = SlotState::Down;
            bed.live.publish(bed.live.current().with_states(states).unwrap());
            let mut sent = |port| bed.backend_of(&udp(CLIENT4, port, VIP4, PORT, &framed(b"version\r\n")));
            let left: BTreeSet<_> = (20_000..20_100).map(&mut sent).collect();
            assert_eq!(left, [1, 2, 4, 5].map(Some).into(), "{failover:?}");
        }
    }
}

/// Keyed requests are not tracked, so an ICMP error about a memcached reply belongs to no flow.
#[test]
fn an_icmp_error_about_an_answer_is_dropped_by_name() {
    let mut bed = bed();
    let answer = udp(VIP4, PORT, CLIENT4, 40_000, &framed(b"END\r\n"));
    let link =
        etherparse::PacketBuilder::ethernet2(ROUTER, OURS).ipv4([198, 51, 100, 1], [203, 0, 113, 10], 64);
    let unreachable = etherparse::icmpv4::DestUnreachableHeader::Port;
    let mut error = Vec::new();
    link.icmpv4(etherparse::Icmpv4Type::DestinationUnreachable(unreachable))
        .write(&mut error, &answer[14..])
        .unwrap();
    assert_eq!(bed.send(24, &error).0, Verdict::Drop(DropReason::IcmpQuote));
}

proptest! {
    #[test]
    fn any_payload_is_forwarded_unchanged_or_dropped(
        bytes in prop::collection::vec(any::<u8>(), 0..200), is_framed: bool,
    ) {
        let mut bed = bed();
        let payload = if is_framed { framed(&bytes) } else { bytes };
        let frame = udp(CLIENT4, 40_000, VIP4, PORT, &payload);
        match bed.send(24, &frame) {
            (Verdict::Tx, out) => prop_assert_eq!(&out[14 + 24 + 20..], &frame[14 + 20..]),
            (Verdict::Drop(_), out) => prop_assert_eq!(out, frame),
            (other, _) => prop_assert!(false, "{other:?}"),
        }
        prop_assert_eq!(bed.pipeline.flows().len(), 0);
    }
}

#[test]
fn refusals_of_a_preamble_have_their_names() {
    let preamble =
        |id: u8, start: u32, end: u32| [&[id], &start.to_be_bytes()[..], &end.to_be_bytes(), b"abc"].concat();
    for (reason, payload) in [
        (DropReason::KvOtherApplication, preamble(8, 9, 12)),
        (DropReason::KvWrongOffsets, preamble(7, 9, 13)),
        (DropReason::KvKeyEmpty, preamble(7, 9, 9)),
    ] {
        let mut bed = Bed::new(keyed_by(Box::new(Header::new(7)), KeyFailover::Next));
        assert_eq!(bed.send(24, &udp(CLIENT4, 40_000, VIP4, PORT, &payload)).0, Verdict::Drop(reason));
    }
    let mut bed = Bed::new(keyed_by(Box::new(Header::new(7)), KeyFailover::Next));
    let sent = bed.backend_of(&udp(CLIENT4, 40_000, VIP4, PORT, &preamble(7, 9, 12)));
    assert_eq!(sent, Some(by_hand("abc")));
}

#[test]
fn requests_are_counted_by_kind_unless_dropped() {
    for (command, expected) in [
        (b"get a\r\n".as_slice(), [1, 0, 0, 0]),
        (b"set a 0 0 2\r\nab\r\n", [0, 1, 0, 0]),
        (b"incr a 1\r\n", [0, 0, 1, 0]),
        (b"mn\r\n", [0, 0, 0, 1]),
        (b"version\r\n", [0, 0, 0, 1]),
        (b"flush_all\r\n", [0; 4]),
    ] {
        let mut bed = bed();
        let _ = bed.send(24, &request(command));
        let all = &bed.counters;
        let counted = [&all.keyed_reads, &all.keyed_writes, &all.keyed_changes, &all.keyed_others];
        assert_eq!(counted.map(|counter| counter.read()), expected, "{}", command.escape_ascii());
        let verbs = bed.counters.requests().map(|(_, count)| count).sum::<u64>();
        assert_eq!(verbs, expected.iter().sum(), "{}", command.escape_ascii());
    }
}

#[test]
fn requests_are_counted_by_verb_unless_dropped() {
    let mut bed = bed();
    let with_value = |words: &str| format!("{words}\r\nab\r\n").into_bytes();
    let commands = [
        get("a"),
        b"gets a\r\n".to_vec(),
        b"gat 9 a\r\n".to_vec(),
        b"gats 9 a\r\n".to_vec(),
        with_value("set a 0 0 2"),
        with_value("add a 0 0 2"),
        with_value("replace a 0 0 2"),
        with_value("append a 0 0 2"),
        with_value("prepend a 0 0 2"),
        with_value("cas a 0 0 2 1"),
        b"delete a\r\n".to_vec(),
        b"incr a 1\r\n".to_vec(),
        b"decr a 1\r\n".to_vec(),
        b"touch a 1\r\n".to_vec(),
        b"mg a v\r\n".to_vec(),
        with_value("ms a 2"),
        b"md a\r\n".to_vec(),
        b"ma a\r\n".to_vec(),
        b"me a\r\n".to_vec(),
        b"mn\r\n".to_vec(),
        b"version\r\n".to_vec(),
    ];
    let mut expected = BTreeMap::new();
    // Each command is sent a different number of times.
    for (times, command) in (1..).zip(&commands) {
        (0..times).for_each(|_| assert!(matches!(bed.send(24, &request(command)), (Verdict::Tx, _))));
        let verb = command.split(u8::is_ascii_whitespace).next().unwrap();
        expected.insert(if verb == b"mn" { "noop" } else { std::str::from_utf8(verb).unwrap() }, times);
    }
    let elsewhere = (0..).map(|n| format!("key{n}")).find(|key| by_hand(key) != by_hand("a")).unwrap();
    let split = request(format!("get a {elsewhere}\r\n").as_bytes());
    for frame in refused().into_iter().map(|(_, frame)| frame).chain([split]) {
        assert!(matches!(bed.send(24, &frame).0, Verdict::Drop(_)));
    }
    expected.insert("request", 0);
    assert_eq!(bed.counters.requests().collect::<BTreeMap<_, _>>(), expected);
    let mut bed = Bed::new(keyed_by(Box::new(Header::new(7)), KeyFailover::Next));
    let preamble = [&[7, 0, 0, 0, 9, 0, 0, 0, 12], &b"abc"[..]].concat();
    assert!(bed.backend_of(&udp(CLIENT4, 40_000, VIP4, PORT, &preamble)).is_some());
    assert!(bed.counters.requests().all(|(verb, count)| count == u64::from(verb == "request")));
}

#[test]
fn the_first_port_of_clients_is_1024() {
    let of = |port| bed().send(24, &udp(CLIENT4, port, VIP4, PORT, &framed(&get("a")))).0;
    let wrong = Verdict::Drop(DropReason::KvSourcePort);
    assert_eq!(
        [1, 1_023, 1_024, 11_210, 11_211, 11_212].map(of),
        [wrong, wrong, Verdict::Tx, Verdict::Tx, wrong, Verdict::Tx]
    );
}

#[test]
fn key_of_a_down_backend_is_counted_as_rehashed() {
    let mut bed = bed();
    let mut states = vec![SlotState::Serving; 5];
    states[2] = SlotState::Down;
    bed.live.publish(bed.live.current().with_states(states).unwrap());
    let mut expected = 0;
    for key in (0..100).map(|n| format!("key{n}")) {
        let _ = bed.send(24, &request(&get(&key)));
        expected += u64::from(by_hand(&key) == 3);
    }
    assert!(expected > 5);
    assert_eq!(bed.counters.rehashed.read(), expected);
}

/// Installs a counter of hot keys, and returns the previous counter.
fn count(bed: &mut Bed, next: Option<HotKeys>) -> Option<Box<HotKeys>> {
    bed.port.ask(Request::HotKeys(next.map(Box::new))).unwrap();
    bed.poll();
    match bed.port.answer() {
        Some(Reply::HotKeys(old)) => old,
        other => panic!("{other:?}"),
    }
}

#[test]
fn hot_keys_cover_the_requests_of_the_counting_period() {
    let mut bed = bed();
    let _ = bed.send(24, &request(&get("before")));
    // Service 3 is the keyed service.
    assert!(count(&mut bed, Some(HotKeys::new(16, [3], KeyHash::sip(1, 2)))).is_none());
    for turn in 0..30 {
        let key = ["hot", "warm", "hot", "flag", "hot", "warm"][turn % 6];
        let command = match turn % 3 {
            0 => get(key),
            1 => format!("set {key} 0 0 2\r\nab\r\n").into_bytes(),
            _ => format!("md {key}\r\n").into_bytes(),
        };
        assert_eq!(bed.send(24, &request(&command)).0, Verdict::Tx);
    }
    // `aG90` is the base64 form of `hot`. Each key in a request is counted. Refused requests and
    // requests without a key are not counted.
    let _ = bed.send(24, &request(b"mg aG90 b v\r\n"));
    let _ = bed.send(24, &request(b"get warm warm\r\n"));
    let _ = bed.send(24, &request(b"mn\r\n"));
    refused().iter().for_each(|(_, frame)| drop(bed.send(24, frame)));
    let _ = bed.send(24, &tcp(CLIENT4, 40_000, VIP4, 80, "S"));
    let counted = count(&mut bed, None).expect("the installed counter");
    let _ = bed.send(24, &request(&get("after")));
    let found = kv_switch::hottest([&*counted], 10);
    let rows: Vec<_> = found.iter().map(|hot| (&*hot.key, hot.service, hot.at_least, hot.at_most)).collect();
    assert_eq!(rows, [(&b"hot"[..], 3, 16, 16), (b"warm", 3, 12, 12), (b"flag", 3, 5, 5)]);
    assert_eq!(counted.asked(3), 33);
    assert!(count(&mut bed, None).is_none(), "the counter was removed");

    let snapshot = bed.live.current();
    let owner = |key: &str| {
        snapshot.owners_of_key(ServiceId(3), key.as_bytes()).map(|slot| slot.0 + 1).collect::<Vec<_>>()
    };
    assert_eq!(owner("flag"), [1], "the key is routed");
    assert_eq!(["hot", "warm"].map(owner), ["hot", "warm"].map(|key| vec![u32::from(by_hand(key))]));
    assert_eq!(snapshot.owners_of_key(ServiceId(0), b"hot").count(), 0, "the service selects by flow");
}
