//! Tests of the value cache: fetches, expiry, invalidation by writes, and replies from the cache.

use std::num::NonZeroU32;
use std::sync::Arc;

use forwarder::*;
use kv_switch::{CacheConfig, Epochs, KeyHash, Lease, Memcached};
use packet::Encapsulation;

use crate::bed::*;
use crate::gather::scene::{OWN4, OWN6, Seen, back, bed_of, own_config, rules as gather_rules, seen};
use crate::keyed::{CLIENT4, CLIENT6, PORT, by_hand, drops, framed, keyed_of};
use crate::tunnels::{from, wrapped};

pub(crate) const MILLI: u64 = 1_000_000;

/// Returns a configuration with a keyed service whose cache has a lease of 10 ms.
pub(crate) fn cached(path: KeyPath, source_bytes: u64, epochs: &Arc<Epochs>) -> Parts {
    let gather = Some(gather_rules(kv_switch::Late::Fails));
    let mut parts = keyed_of(Box::new(Memcached::new(32)), KeyFailover::Next, path, gather);
    let service = parts.services.last_mut().unwrap();
    let keyed = Keyed::clone(service.keyed.as_deref().unwrap());
    let Keyed { rules, pools, placements } = keyed;
    let rules = Arc::try_unwrap({
        service.keyed = None;
        rules
    });
    let hash = KeyRules::maglev_hash(&HashKey::new([5; 16]));
    let cache = CacheRules {
        memory: 1 << 20,
        lease: Lease::from_nanos(10 * MILLI),
        fills_per_server: 8,
        source_bytes,
        strict: false,
        hash,
        is_own_hash: true,
        epochs: Arc::clone(epochs),
    };
    let rules = Arc::new(KeyRules { cache: Some(cache), ..rules.unwrap() });
    service.keyed = Some(Arc::new(Keyed { rules, pools, placements }));
    parts
}

pub(crate) fn give_cache(bed: &mut Bed, epochs: &Arc<Epochs>) {
    let config = CacheConfig {
        memory: 1 << 20,
        epochs: Arc::clone(epochs),
        seed: [7, 8],
        advise: |_| {},
        sum: packet::checksum::folded_sum,
    };
    bed.port.ask(Request::Cache(Some(Box::new(ValueCache::new(&config))))).unwrap();
    bed.poll();
    assert!(matches!(bed.port.answer(), Some(Reply::Cache(None))));
}

fn bed_with(path: KeyPath, source_bytes: u64) -> (Bed, Arc<Epochs>) {
    let epochs = Arc::new(Epochs::new());
    let mut config = own_config(0, 1);
    // Under `KeyPath::Through`, each read also uses an exchange.
    config.upstream_requests.as_mut().unwrap().passing = 4_000;
    let mut bed = Bed::with(cached(path, source_bytes, &epochs), config);
    bed.held.free = 1_000;
    bed.poll();
    bed.now = Now::from_nanos(10_000 * MILLI);
    give_cache(&mut bed, &epochs);
    (bed, epochs)
}

fn bed() -> (Bed, Arc<Epochs>) {
    bed_with(KeyPath::Direct, 1 << 30)
}

pub(crate) fn get(key: &str) -> Vec<u8> {
    udp(CLIENT4, 40_000, VIP4, PORT, &framed(format!("get {key}\r\n").as_bytes()))
}

/// Decapsulates a fetch request. Returns the number of the backend and the decapsulated request.
pub(crate) fn asked(frame: &[u8]) -> (u8, Seen) {
    let ethertype = if frame[14 + 24] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    (frame[14 + 19], seen(&[&frame[..12], &ethertype, &frame[38..]].concat()))
}

impl Bed {
    /// Sends reads until the pipeline sends a fetch request. Returns the number of the backend and
    /// the request.
    pub(crate) fn until_asked(&mut self, frame: &[u8]) -> (u8, Seen) {
        for _ in 0..2_000 {
            assert_eq!(self.send(24, frame).0, Verdict::Tx, "a miss is forwarded to the backend");
            self.poll();
            if let Some((_, frame)) = self.held.originated.pop() {
                assert!(self.held.originated.is_empty());
                return asked(&frame);
            }
        }
        panic!("no fetch request was sent: {:?}", drops(self));
    }

    /// Sends `frame` repeatedly until its key is fetched, and stores `value` in the cache.
    pub(crate) fn fill(&mut self, frame: &[u8], value: &str) -> Seen {
        let (_, seen) = self.until_asked(frame);
        let verdict = self.answer(&seen, &says(&seen, value));
        assert_eq!(verdict, Verdict::Taken, "{:?}", drops(self));
        seen
    }

    pub(crate) fn counted(&mut self) -> [u64; 5] {
        self.poll();
        let counters = &self.counters;
        [
            counters.cache_hits.read(),
            counters.cache_fetches.read(),
            counters.cache_fills.read(),
            counters.cache_renewals.read(),
            counters.cache_stale_avoided.read(),
        ]
    }
}

/// Returns the reply of a memcached server that has the value.
pub(crate) fn says(asked: &Seen, value: &str) -> Vec<u8> {
    let line = String::from_utf8(asked.payload[8..].to_vec()).unwrap();
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    let (key, nonce) = (words[1], words.last().unwrap());
    let said = if words.contains(&"v") {
        format!("VA {} k{key} t-1 c9 f5 {nonce}\r\n{value}\r\n", value.len())
    } else {
        format!("HD k{key} t-1 c9 {nonce}\r\n")
    };
    [&asked.payload[..2], &[0, 0, 0, 1, 0, 0], said.as_bytes()].concat()
}

#[test]
fn hot_key_is_answered_from_the_cache_until_lease_end() {
    let (mut bed, _) = bed();
    let (backend, question) = bed.until_asked(&get("user:1"));
    assert_eq!(backend, by_hand("user:1"));
    assert_eq!((question.source.0, question.destination), (ip(OWN4), (ip(VIP4), PORT)));
    assert!(
        question.payload[8..].starts_with(b"mg user:1 k v f t c O"),
        "the first fetch updates the server's access time"
    );
    assert_eq!(bed.send(24, &get("user:1")).0, Verdict::Tx, "reads are forwarded during the fetch");
    assert_eq!(bed.answer(&question, &says(&question, "hello")), Verdict::Taken);
    let (verdict, frame) = bed.send(24, &get("user:1"));
    assert_eq!(verdict, Verdict::Reply);
    let reply = seen(&frame);
    assert_eq!(reply.payload, framed(b"VALUE user:1 5 5\r\nhello\r\nEND\r\n"));
    assert_eq!((reply.source, reply.destination), ((ip(VIP4), PORT), (ip(CLIENT4), 40_000)));
    assert_eq!(reply.link, [&ROUTER[..], &OURS, &[8, 0]].concat());
    for _ in 0..3 {
        assert_eq!(bed.send(24, &get("user:1")).0, Verdict::Reply);
    }
    bed.wait(10);
    assert_eq!(bed.send(24, &get("user:1")).0, Verdict::Tx);
    assert_eq!(bed.counted()[..3], [4, 2, 1], "a frequently read key is fetched again");
    assert_eq!(bed.pipeline.flows().len(), 0);
}

/// Shortly before it expires, a cached value is renewed by its version number. Reads are answered
/// from the cache during the renewal.
#[test]
fn a_copy_that_is_read_near_its_end_is_renewed() {
    let (mut bed, _) = bed();
    bed.fill(&get("user:1"), "hello");
    bed.wait(9);
    assert_eq!(bed.held.originated.len(), 0, "an unread copy is not renewed");
    assert_eq!(bed.send(24, &get("user:1")).0, Verdict::Reply);
    bed.poll();
    let (backend, question) = asked(&bed.held.originated.pop().expect("the copy expires in a millisecond").1);
    assert_eq!(backend, by_hand("user:1"));
    let said = question.payload.escape_ascii().to_string();
    assert!(question.payload[8..].starts_with(b"mg user:1 k t c u O"), "{said}");
    assert_eq!(bed.answer(&question, &says(&question, "hello")), Verdict::Taken);
    bed.wait(9);
    assert_eq!(bed.send(24, &get("user:1")).0, Verdict::Reply, "the renewed copy is used");
    assert_eq!(bed.counted()[..4], [2, 3, 1, 1]);
}

/// The reply to `get` does not fit into one datagram, so `get` is forwarded unchanged. The reply to
/// `mg` is shorter and comes from the cache.
#[test]
fn a_request_whose_reply_is_too_long_is_forwarded_as_it_came() {
    let (mut bed, _) = bed();
    let (verdict, forwarded) = bed.send(24, &get("k1"));
    assert_eq!(verdict, Verdict::Tx);
    let value = "v".repeat(1_370);
    bed.fill(&get("k1"), &value);
    let (verdict, frame) = bed.send(24, &get("k1"));
    assert_eq!((verdict, frame), (Verdict::Tx, forwarded));
    let (verdict, frame) = bed.send(24, &udp(CLIENT4, 40_000, VIP4, PORT, &framed(b"mg k1 v\r\n")));
    assert_eq!(verdict, Verdict::Reply);
    assert_eq!(seen(&frame).payload, framed(format!("VA 1370\r\n{value}\r\n").as_bytes()));
}

/// The request is forwarded, because this machine does not reply to it. The backend drops it.
#[test]
fn wrong_header_checksum_gets_no_reply_from_the_cache() {
    let (mut bed, _) = bed();
    let request = udp(CLIENT4, 40_000, VIP4, PORT, &framed(b"get k1\r\n"));
    bed.fill(&request, "hello");
    assert_eq!(bed.send(24, &request).0, Verdict::Reply);
    let mut damaged = request.clone();
    damaged[14 + 10] ^= 1;
    assert_eq!(bed.send(24, &damaged).0, Verdict::Tx);
    assert_eq!(bed.send(24, &request).0, Verdict::Reply);
}

#[test]
fn cache_replies_cover_all_requests_tags_and_head_room() {
    let (mut bed, _) = bed();
    bed.fill(&get("k1"), "hello");
    bed.fill(&udp(CLIENT6, 40_000, VIP6, PORT, &framed(b"get k1\r\n")), "hello");
    let binary = [&[0x80, 0x0d, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 3, 4][..], &[0; 8], b"k1"].concat();
    let body = [&[0, 0, 0, 5][..], b"k1hello"].concat();
    let header =
        [&[0x81, 0x0d, 0, 2, 4, 0, 0, 0, 0, 0, 0, 11, 1, 2, 3, 4][..], &[0, 0, 0, 0, 0, 0, 0, 9]].concat();
    for (command, wanted) in [
        (b"get k1\r\n".to_vec(), b"VALUE k1 5 5\r\nhello\r\nEND\r\n".to_vec()),
        (b"mg k1 v f c O77\r\n".to_vec(), b"VA 5 f5 c9 O77\r\nhello\r\n".to_vec()),
        (b"mg azE= b k\r\n".to_vec(), b"HD kk1\r\n".to_vec()),
        (binary, [header, body].concat()),
    ] {
        for (client, vip, head) in
            [(CLIENT4, VIP4, 0), (CLIENT4, VIP4, 24), (CLIENT6, VIP6, 24), (CLIENT6, VIP6, 60)]
        {
            let frame = udp(client, 40_000, vip, PORT, &framed(&command));
            let (verdict, reply) = bed.send(head, &frame);
            assert_eq!(verdict, Verdict::Reply, "{}", command.escape_ascii());
            let reply = seen(&reply);
            assert_eq!(reply.payload, framed(&wanted));
            assert_eq!((reply.source.0, reply.destination.0), (ip(vip), ip(client)));
            let (verdict, reply) = bed.send(head, &tagged(&frame, 0x8100, 7));
            assert_eq!(
                (verdict, seen(&reply).link.len(), &reply[12..16]),
                (Verdict::Reply, 18, &[0x81, 0, 0, 7][..])
            );
        }
    }
    // These commands are forwarded to the backend, because their replies need more than the cached
    // value or because they request several keys.
    for command in ["gets k1", "get k1 k1", "mg k1 h", "mg k1 l v", "gat 9 nokey"] {
        let frame = udp(CLIENT4, 40_000, VIP4, PORT, &framed(format!("{command}\r\n").as_bytes()));
        let (verdict, sent) = bed.send(24, &frame);
        assert_eq!(verdict, Verdict::Tx, "{command}");
        assert!(sent.ends_with(&framed(format!("{command}\r\n").as_bytes())), "the request is unchanged");
    }
}

// Promise: cache-staleness
#[test]
fn a_write_through_any_service_ends_the_copy_before_it_leaves() {
    let (mut bed, _) = bed();
    bed.fill(&get("k1"), "old");
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Reply);
    // The first read is answered with the old value or forwarded. The reads after the write find no
    // cached value.
    let set = udp(CLIENT6, 40_001, VIP6, PORT, &framed(b"set k1 0 0 3\r\nnew\r\n"));
    assert_eq!(bed.send(24, &set).0, Verdict::Tx);
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Tx);
    assert_eq!(bed.counted()[4], 1);
    // The value is not fetched again before the write has reached the backend.
    for _ in 0..100 {
        assert_eq!(bed.send(24, &get("k1")).0, Verdict::Tx);
    }
    bed.poll();
    assert!(bed.held.originated.is_empty());
    bed.wait(2);
    bed.fill(&get("k1"), "new");
    let (_, reply) = bed.send(24, &get("k1"));
    assert_eq!(seen(&reply).payload, framed(b"VALUE k1 5 3\r\nnew\r\nEND\r\n"));
    // A command that writes several keys invalidates the cached values of all these keys.
    let touch = udp(CLIENT4, 40_001, VIP4, PORT, &framed(b"gat 9 k7 k1\r\n"));
    let _ = bed.send(24, &touch).0;
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Tx);
}

/// A backend may run one server per port and address, and each server has its own values.
// Promise: cache-staleness
#[test]
fn copy_answers_only_the_address_and_port_of_its_fetch() {
    let epochs = Arc::new(Epochs::new());
    let mut parts = cached(KeyPath::Direct, 1 << 30, &epochs);
    parts.bindings.push(binding(VIP4, 17, PORT + 1..=PORT + 1, 3));
    let mut bed = Bed::with(parts, own_config(0, 1));
    bed.held.free = 1_000;
    bed.now = Now::from_nanos(10_000 * MILLI);
    give_cache(&mut bed, &epochs);
    let places = [(CLIENT4, VIP4, PORT), (CLIENT4, VIP4, PORT + 1), (CLIENT6, VIP6, PORT)];
    let read = |at: usize| {
        let (client, vip, port) = places[at];
        udp(client, 40_000, vip, port, &framed(b"get k1\r\n"))
    };
    for (at, (_, vip, port)) in places.into_iter().enumerate() {
        let question = bed.fill(&read(at), &format!("value {at}"));
        assert_eq!(question.destination, (ip(vip), port));
    }
    let replies = |bed: &mut Bed| -> Vec<_> { (0..places.len()).map(|at| bed.send(24, &read(at))).collect() };
    for (at, (verdict, reply)) in replies(&mut bed).into_iter().enumerate() {
        let wanted = framed(format!("VALUE k1 5 7\r\nvalue {at}\r\nEND\r\n").as_bytes());
        assert_eq!((verdict, seen(&reply).payload), (Verdict::Reply, wanted), "{:?}", places[at]);
    }
    // Two addresses may belong to one server, so a write to one address invalidates the values that
    // were fetched through any address.
    let set = udp(CLIENT4, 40_001, VIP4, PORT + 1, &framed(b"set k1 0 0 3\r\nnew\r\n"));
    assert_eq!(bed.send(24, &set).0, Verdict::Tx);
    assert!(replies(&mut bed).iter().all(|(verdict, _)| *verdict == Verdict::Tx));
}

/// A write that no server executes does not invalidate the cached value.
#[test]
fn refused_write_keeps_the_copy() {
    let epochs = Arc::new(Epochs::new());
    let mut parts = cached(KeyPath::Direct, 1 << 30, &epochs);
    let guard = Guard { new_flows_per_second: NonZeroU32::new(10_000), ..Guard::default() };
    parts.services[3].guard = Some(Arc::new(guard));
    let mut bed = Bed::with(parts, own_config(0, 1));
    bed.held.free = 1_000;
    bed.now = Now::from_nanos(10_000 * MILLI);
    give_cache(&mut bed, &epochs);
    bed.fill(&get("k1"), "old");
    let set = udp(CLIENT4, 40_001, VIP4, PORT, &framed(b"set k1 0 0 3\r\nnew\r\n"));
    let mut damaged = set.clone();
    let value = damaged.windows(3).position(|three| three == b"new").unwrap();
    damaged[value] ^= 1;
    let verdict = bed.send(24, &damaged).0;
    assert_eq!(verdict, Verdict::Drop(DropReason::Malformed));
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Reply);
    // Writes to a different key use up the rate limit.
    let other = udp(CLIENT4, 40_001, VIP4, PORT, &framed(b"delete k2\r\n"));
    let mut writes = 0;
    while bed.send(24, &other).0 == Verdict::Tx {
        writes += 1;
    }
    assert!((1..=10_000).contains(&writes), "{writes}");
    assert_eq!(bed.send(24, &set).0, Verdict::Drop(DropReason::FlowRate));
    bed.wait(1);
    // A read is admitted again, and the cached value is still valid.
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Reply);
    assert_eq!(bed.counted()[4], 0);
}

#[test]
fn an_answer_that_is_not_the_server_s_fills_nothing() {
    let (mut bed, _) = bed();
    let (_, question) = bed.until_asked(&get("k1"));
    let right = says(&question, "hello");
    let forged = |bed: &mut Bed, seen: &Seen, payload: &[u8], name: &str| {
        let before = drops(bed).get(name).copied().unwrap_or(0);
        assert!(matches!(bed.answer(seen, payload), Verdict::Drop(_)), "{name}");
        assert_eq!(drops(bed).get(name), Some(&(before + 1)), "{:?}", drops(bed));
    };
    let nonce = right.windows(2).position(|pair| pair == b" O").unwrap() + 2;
    let with = |at: usize| {
        let mut bytes = right.clone();
        bytes[at] ^= 1;
        bytes
    };
    forged(&mut bed, &question, &with(nonce), "kv_answer_nonce");
    forged(&mut bed, &question, &with(1), "kv_answer_late");
    forged(&mut bed, &question, &with(3), "kv_answer_continuation");
    forged(&mut bed, &question, &right[..right.len() - 1], "kv_answer_malformed");
    let mut other_key = right.clone();
    let key = right.windows(3).position(|three| three == b"kk1").unwrap();
    other_key[key + 2] = b'2';
    forged(&mut bed, &question, &other_key, "kv_answer_unexpected");
    let elsewhere = Seen { destination: (ip("203.0.113.99"), PORT), ..question.clone() };
    forged(&mut bed, &elsewhere, &right, "kv_answer_source");
    let port = Seen { destination: (ip(VIP4), PORT + 1), ..question.clone() };
    forged(&mut bed, &port, &right, "kv_answer_source");
    // Only the checksum of this reply is wrong.
    let mut damaged = back(&question, &right);
    let in_value = damaged.windows(5).position(|five| five == b"hello").unwrap();
    damaged[in_value] ^= 1;
    assert_eq!(bed.send(0, &damaged).0, Verdict::Drop(DropReason::KvAnswerMalformed));
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Tx);
    assert_eq!(bed.answer(&question, &right), Verdict::Taken, "the correct reply is still accepted");
    forged(&mut bed, &question, &right, "kv_answer_late");
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Reply);
}

#[test]
fn unanswered_fetch_times_out_and_is_sent_again() {
    let (mut bed, _) = bed();
    let (_, late) = bed.until_asked(&get("k1"));
    assert_eq!(bed.pipeline.next_due(), Some(Now::from_nanos(10_020 * MILLI)));
    bed.wait(19);
    bed.poll();
    assert_eq!(bed.counters.cache_unanswered.read(), 0);
    bed.wait(1);
    bed.poll();
    assert_eq!((bed.counters.cache_unanswered.read(), bed.pipeline.next_due()), (1, None));
    assert!(matches!(bed.answer(&late, &says(&late, "late")), Verdict::Drop(DropReason::KvAnswerLate)));
    bed.fill(&get("k1"), "hello");
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Reply);
}

#[test]
fn without_a_free_frame_nobody_is_asked_and_reads_go_on() {
    let (mut bed, _) = bed();
    bed.held.free = 0;
    for _ in 0..1_000 {
        assert_eq!(bed.send(24, &get("k1")).0, Verdict::Tx);
        bed.poll();
    }
    assert!(bed.held.originated.is_empty() && bed.pipeline.next_due().is_none());
    bed.held.free = 10;
    bed.wait(1_000);
    bed.fill(&get("k1"), "hello");
}

#[test]
fn a_source_has_no_more_bytes_of_copies_than_it_may() {
    let (mut bed, _) = bed_with(KeyPath::Direct, 64 << 10);
    let value = "x".repeat(1_000);
    bed.fill(&get("k1"), &value);
    let (mut bytes, mut forwarded) = (0, 0);
    for _ in 0..1_000 {
        match bed.send(24, &get("k1")) {
            (Verdict::Reply, frame) => bytes += frame.len(),
            (Verdict::Tx, frame) => {
                assert!(frame.ends_with(&framed(b"get k1\r\n")), "the request is unchanged");
                forwarded += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((50 << 10..=64 << 10).contains(&bytes), "{bytes}");
    assert_eq!(bed.counters.cache_over_budget.read(), forwarded);
    // A different source address has a separate budget.
    let other = udp("198.51.100.8", 40_000, VIP4, PORT, &framed(b"get k1\r\n"));
    assert_eq!(bed.send(24, &other).0, Verdict::Reply);
}

#[test]
fn tunneled_damaged_or_multicast_request_is_not_answered() {
    let epochs = Arc::new(Epochs::new());
    let mut parts = cached(KeyPath::Direct, 1 << 30, &epochs);
    parts.tunnels = vec![from("198.18.9.1", TunnelSourceKind::UpstreamTunnel)];
    let mut bed = bed_of(parts);
    bed.now = Now::from_nanos(10_000 * MILLI);
    give_cache(&mut bed, &epochs);
    bed.fill(&get("k1"), "hello");
    let tunnelled = wrapped(&get("k1"), Encapsulation::Gre, ("198.18.9.1", OWN4), 0);
    assert_eq!(bed.send(24, &tunnelled).0, Verdict::Tx);
    let mut damaged = get("k1");
    damaged[14 + 20 + 8 + 7] ^= 1; // The byte is reserved, and servers ignore it.
    assert_eq!(bed.send(24, &damaged).0, Verdict::Tx);
    let mut group = get("k1");
    group[6] |= 1;
    assert_eq!(bed.send(24, &group).0, Verdict::Tx);
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Reply);
}

#[test]
fn new_configuration_discards_copies_and_fetches() {
    let (mut bed, epochs) = bed();
    bed.fill(&get("k1"), "hello");
    let mut parts = cached(KeyPath::Direct, 1 << 30, &epochs);
    parts.generation = Generation(2);
    bed.live.publish(Snapshot::new(parts).unwrap());
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Tx);
    // A state change of a backend invalidates the cached values from that backend.
    bed.wait(10);
    bed.fill(&get("k1"), "hello");
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Reply);
    epochs.server_changed(bed.now.nanos(), u32::from(by_hand("k1")) - 1);
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Tx);
    let gather = Some(gather_rules(kv_switch::Late::Fails));
    let parts = keyed_of(Box::new(Memcached::new(32)), KeyFailover::Next, KeyPath::Direct, gather);
    bed.live.publish(Snapshot::new(parts).unwrap());
    bed.port.ask(Request::Cache(None)).unwrap();
    bed.poll();
    assert!(matches!(bed.port.answer(), Some(Reply::Cache(Some(_)))));
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Tx);
}

#[test]
fn a_backend_without_the_vip_is_asked_at_its_own_address() {
    let (mut bed, _) = bed_with(KeyPath::Through { timeout: 4 }, 1 << 30);
    for _ in 0..2_000 {
        let _ = bed.send(24, &get("k1")).0;
        bed.poll();
        if !bed.held.originated.is_empty() {
            break;
        }
    }
    let (_, frame) = bed.held.originated.pop().expect("the backend receives a fetch");
    let (backend, question) = asked(&frame);
    assert_eq!(question.destination, (ip(&format!("198.18.1.{backend}")), PORT));
    assert_eq!(bed.answer(&question, &says(&question, "hello")), Verdict::Taken, "{:?}", drops(&bed));
    assert_eq!(bed.send(24, &get("k1")).0, Verdict::Reply);
}

#[test]
fn keys_of_a_ring_have_copies_by_a_hash_of_their_own() {
    let epochs = Arc::new(Epochs::new());
    let mut parts = cached(KeyPath::Direct, 1 << 30, &epochs);
    let service = parts.services.last_mut().unwrap();
    let Keyed { rules, pools, placements } = Keyed::clone(service.keyed.take().as_deref().unwrap());
    let mut rules = Arc::try_unwrap(rules).unwrap();
    rules.hash = KeyHash::md5();
    rules.cache.as_mut().unwrap().is_own_hash = false;
    service.keyed = Some(Arc::new(Keyed { rules: Arc::new(rules), pools, placements }));
    let mut bed = Bed::with(parts, own_config(0, 1));
    bed.held.free = 100;
    bed.now = Now::from_nanos(10_000 * MILLI);
    give_cache(&mut bed, &epochs);
    let get6 = udp(CLIENT6, 40_000, VIP6, PORT, &framed(b"get k1\r\n"));
    let question = bed.fill(&get6, "hello");
    assert_eq!(question.source.0, ip(OWN6));
    assert_eq!(bed.send(24, &get6).0, Verdict::Reply);
    let set = udp(CLIENT4, 40_001, VIP4, PORT, &framed(b"set k1 0 0 3\r\nnew\r\n"));
    assert_eq!(bed.send(24, &set).0, Verdict::Tx);
    assert_eq!(bed.send(24, &get6).0, Verdict::Tx);
}
