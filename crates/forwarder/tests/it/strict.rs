//! Tests of the strict cache: the reply to a write returns through this machine, which then
//! discards all values that were fetched earlier.

use std::sync::Arc;

use forwarder::*;
use kv_switch::{Epochs, KeyHash};
use proptest::prelude::*;

use crate::bed::*;
use crate::cache::{MILLI, asked, cached, get, give_cache, says};
use crate::gather::scene::{OWN4, OWN6, SOURCE_PORTS, Seen, apart, back, own_config, seen};
use crate::keyed::{CLIENT4, CLIENT6, PORT, by_hand, drops, framed};
use crate::pieces::Datagram;

/// Returns the configuration of [`cached`] with a strict cache and with further changes.
fn strict(path: KeyPath, epochs: &Arc<Epochs>, change: impl FnOnce(&mut KeyRules)) -> Parts {
    let mut parts = cached(path, 1 << 30, epochs);
    let service = parts.services.last_mut().unwrap();
    let mut keyed = Arc::try_unwrap(service.keyed.take().unwrap()).unwrap();
    let rules = Arc::get_mut(&mut keyed.rules).unwrap();
    rules.cache.as_mut().unwrap().strict = true;
    change(rules);
    service.keyed = Some(Arc::new(keyed));
    parts
}

fn bed_of(parts: Parts, [thread, threads]: [u16; 2], epochs: &Arc<Epochs>) -> Bed {
    let mut config = own_config(thread, threads);
    config.upstream_requests.as_mut().unwrap().passing = 4_000;
    let mut bed = Bed::with(parts, config);
    bed.held.free = 1_000;
    bed.poll();
    bed.now = Now::from_nanos(10_000 * MILLI);
    give_cache(&mut bed, epochs);
    bed
}

fn bed_with(path: KeyPath, change: impl FnOnce(&mut KeyRules)) -> Bed {
    let epochs = Arc::new(Epochs::new());
    bed_of(strict(path, &epochs, change), [0, 1], &epochs)
}

fn bed() -> Bed {
    bed_with(KeyPath::Direct, |_| {})
}

fn write(command: &[u8]) -> Vec<u8> {
    udp(CLIENT4, 40_001, VIP4, PORT, &framed(command))
}

/// Returns a server's reply to a request.
fn answer(to: &Seen, text: &str) -> Vec<u8> {
    [&to.payload[..2], &[0, 0, 0, 1, 0, 0], text.as_bytes()].concat()
}

const SET: &[u8] = b"set k1 0 0 3\r\nnew\r\n";

impl Bed {
    /// Sends a write. Returns the request that the backend receives.
    fn begin_write(&mut self, command: &[u8]) -> Seen {
        let (verdict, out) = self.send(24, &write(command));
        assert_eq!(verdict, Verdict::Tx, "{:?}", drops(self));
        asked(&out).1
    }

    fn has_copy(&mut self, key: &str) -> bool {
        match self.send(24, &get(key)).0 {
            Verdict::Reply => true,
            Verdict::Tx => false,
            other => panic!("{other:?}"),
        }
    }

    fn passed(&self) -> [u64; 3] {
        let counters = &self.counters;
        [&counters.proxied_begun, &counters.proxied_answers, &counters.proxied_unanswered].map(Counter::read)
    }
}

proptest! {
    #[test]
    fn strict_write_is_proxied_and_replied_from_the_vip(
        key in "[a-z]{1,60}", value in "[ -~]{0,900}", port in 1_024_u16..11_000, v6: bool, is_tagged: bool,
        head in 0..60_usize,
    ) {
        prop_assume!(key != "flag");
        let mut bed = bed();
        let (client, vip, own) = if v6 { (CLIENT6, VIP6, OWN6) } else { (CLIENT4, VIP4, OWN4) };
        let command = framed(format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()).as_bytes());
        let plain = udp(client, port, vip, PORT, &command);
        let frame = if is_tagged { tagged(&plain, 0x8100, 7) } else { plain };
        let (verdict, mut out) = bed.send(head, &frame);
        prop_assert_eq!(verdict, Verdict::Tx, "{:?}", drops(&bed));
        if is_tagged {
            prop_assert_eq!(out.splice(12..16, []).collect::<Vec<_>>(), [0x81, 0, 0, 7]);
        }
        let (backend, got) = asked(&out);
        prop_assert_eq!((got.source.0, SOURCE_PORTS.contains(&got.source.1)), (ip(own), true));
        prop_assert_eq!((backend, got.destination), (by_hand(&key), (ip(vip), PORT)));
        prop_assert_eq!(&got.payload[2..], &command[2..]);
        let (verdict, out) = bed.send(head, &back(&got, &answer(&got, "STORED\r\n")));
        prop_assert_eq!(verdict, Verdict::Tx, "{:?}", drops(&bed));
        let (come, wanted) = (seen(&out), seen(&frame));
        prop_assert_eq!(&come.link, &[&ROUTER[..], &OURS, &frame[12..wanted.link.len()]].concat());
        prop_assert_eq!((come.source, come.destination), ((ip(vip), PORT), (ip(client), port)));
        prop_assert_eq!(come.payload, framed(b"STORED\r\n"));
        prop_assert_eq!((bed.passed(), bed.pipeline.next_due()), ([1, 1, 0], None));
        let counted = bed.counters.backend(u32::from(backend) - 1).unwrap();
        prop_assert_eq!((counted.packets.read(), counted.bytes.read()), (1, frame.len() as u64));
    }
}

// Promise: cache-strict
#[test]
fn old_copy_is_served_only_until_the_write_reply() {
    for path in [KeyPath::Direct, KeyPath::Through { timeout: 7 }] {
        let mut bed = bed_with(path, |_| {});
        let set = bed.begin_write(SET);
        // The backend replies to the write slowly, and the key is fetched in the meantime.
        bed.wait(3);
        bed.fill(&get("k1"), "old");
        assert!(bed.has_copy("k1"), "the client has no reply yet");
        assert_eq!(bed.answer(&set, &answer(&set, "STORED\r\n")), Verdict::Tx);
        assert!(!bed.has_copy("k1"));
        bed.wait(2);
        bed.fill(&get("k1"), "new");
        assert!(bed.has_copy("k1"));
    }
}

// Promise: cache-strict
#[test]
fn fetch_started_before_the_write_reply_is_discarded() {
    let mut bed = bed();
    let set = bed.begin_write(SET);
    bed.wait(3);
    let (_, question) = bed.until_asked(&get("k1"));
    assert_eq!(bed.answer(&set, &answer(&set, "STORED\r\n")), Verdict::Tx);
    assert_eq!(bed.answer(&question, &says(&question, "old")), Verdict::Taken);
    assert!(!bed.has_copy("k1"));
    assert_eq!(bed.counted(), [0, 1, 0, 0, 1]);
    bed.wait(2);
    bed.fill(&get("k1"), "new");
    // A write to another key does not discard the fetch.
    let other = bed.begin_write(b"delete k2\r\n");
    assert_eq!(bed.answer(&other, &answer(&other, "DELETED\r\n")), Verdict::Tx);
    assert!(bed.has_copy("k1"));
}

#[test]
fn an_answer_of_several_datagrams_ends_copies_with_each() {
    let mut bed = bed();
    let gat = bed.begin_write(b"gat 9 k1\r\n");
    for number in [1, 0] {
        bed.wait(3);
        bed.fill(&get("k1"), "old");
        let datagram = [&gat.payload[..2], &[0, number, 0, 2, 0, 0], b"part"].concat();
        assert_eq!(bed.answer(&gat, &datagram), Verdict::Tx);
        assert!(!bed.has_copy("k1"), "{number}");
    }
    assert_eq!(bed.passed(), [1, 2, 0]);
}

#[test]
fn late_forged_or_duplicate_write_reply_has_no_effect() {
    let mut bed = bed();
    let set = bed.begin_write(SET);
    let right = answer(&set, "STORED\r\n");
    bed.wait(3);
    bed.fill(&get("k1"), "old");
    let from = |address: &str, port| Seen { destination: (ip(address), port), ..set.clone() };
    let mut other_id = right.clone();
    other_id[1] ^= 1;
    for (frame, reason) in [
        (back(&from("198.18.1.1", PORT), &right), DropReason::KvAnswerSource),
        (back(&from(VIP4, PORT + 1), &right), DropReason::KvAnswerSource),
        (back(&set, &other_id), DropReason::KvAnswerLate),
        (back(&set, &right[..7]), DropReason::KvAnswerMalformed),
    ] {
        assert_eq!(bed.send(0, &frame).0, Verdict::Drop(reason));
        assert!(bed.has_copy("k1"), "{reason:?}");
    }
    assert_eq!(bed.answer(&set, &right), Verdict::Tx);
    bed.wait(2);
    bed.fill(&get("k1"), "new");
    assert_eq!(bed.answer(&set, &right), Verdict::Drop(DropReason::KvAnswerLate), "twice");
    assert!(bed.has_copy("k1"));
    // The reply is late. The client sends the write again and does not receive the late reply.
    let set = bed.begin_write(SET);
    bed.wait(999);
    assert_eq!(bed.passed(), [2, 1, 0]);
    bed.wait(1);
    assert_eq!(bed.passed(), [2, 1, 1]);
    bed.fill(&get("k1"), "new");
    assert_eq!(bed.answer(&set, &answer(&set, "STORED\r\n")), Verdict::Drop(DropReason::KvAnswerLate));
    assert!(bed.has_copy("k1"));
}

#[test]
fn copies_of_all_threads_end_with_an_answer_that_one_has_passed() {
    let epochs = Arc::new(Epochs::new());
    let bed = |thread| bed_of(strict(KeyPath::Direct, &epochs, |_| {}), [thread, 2], &epochs);
    let [mut writes, mut reads] = [bed(0), bed(1)];
    let set = writes.begin_write(SET);
    reads.wait(3);
    reads.fill(&get("k1"), "old");
    // The reply arrives on the other thread, which hands it over to the thread that sent the
    // request.
    let frame = back(&set, &answer(&set, "STORED\r\n"));
    assert_eq!(reads.send(0, &frame).0, Verdict::ToThread(ThreadId(0), HandoffReason::Answer));
    assert!(reads.has_copy("k1"));
    let handed = Origin::Thread(ThreadId(1), HandoffReason::Answer);
    assert_eq!(writes.send_as(handed, 0, &frame).0, Verdict::Tx);
    assert!(!reads.has_copy("k1"));
}

#[test]
fn what_acknowledges_nothing_goes_as_it_came() {
    let binary = |opcode: u8| {
        let header = [0x80, opcode, 0, 2, 8, 0, 0, 0, 0, 0, 0, 13, 1, 2, 3, 4];
        [&header[..], &[0; 8], &[0; 8], b"k1", b"new"].concat()
    };
    let mut bed = bed();
    for command in [
        b"set k1 0 0 3 noreply\r\nnew\r\n".to_vec(),
        b"delete k1 noreply\r\n".to_vec(),
        b"ms k1 3 q\r\nnew\r\n".to_vec(),
    ] {
        bed.wait(3);
        bed.fill(&get("k1"), "old");
        let got = bed.begin_write(&command);
        assert_eq!((got.source, &got.payload), ((ip(CLIENT4), 40_001), &framed(&command)));
        assert!(!bed.has_copy("k1"), "the write invalidates copies");
    }
    assert_eq!(bed.passed(), [0; 3]);
    for command in
        [&binary(0x01)[..], &binary(0x11), b"ms k1 3\r\nnew\r\n", b"incr k1 1\r\n", b"mg k1 T9 q\r\n"]
    {
        assert_eq!(bed.begin_write(command).source.0, ip(OWN4));
    }
    // Reads, and without a strict cache all other requests, are forwarded with the client's
    // address.
    assert_eq!(bed.begin_write(b"get k1\r\n").source, (ip(CLIENT4), 40_001));
    let mut bed = bed_with(KeyPath::Direct, |rules| rules.cache.as_mut().unwrap().strict = false);
    assert_eq!(bed.begin_write(SET).source, (ip(CLIENT4), 40_001));
}

/// Returns a backend's replies to a part of a split `gat` request.
fn touched(to: &Seen) -> Vec<Vec<u8>> {
    let lines = to.payload[8..].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let said = lines.map(|line| {
        let line = String::from_utf8(line.to_vec()).unwrap();
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        assert!(words[0] == "mg" && words.contains(&"T9"), "{line}");
        answer(to, &format!("VA 3 k{} f5 {}\r\nold\r\n", words[1], words[5]))
    });
    said.collect()
}

#[test]
fn write_of_several_keys_ends_copies_before_the_reply() {
    let [one, other] = <[String; 2]>::try_from(apart(2)).unwrap();
    let same = (0..200).map(|n| format!("same{n}")).find(|key| by_hand(key) == by_hand(&one)).unwrap();
    for (second, parts) in [(&other, 2), (&same, 1)] {
        let mut bed = bed();
        let gat = write(format!("gat 9 {one} {second}\r\n").as_bytes());
        assert_eq!(bed.send(24, &gat).0, Verdict::Taken);
        bed.poll();
        let asked: Vec<Seen> =
            std::mem::take(&mut bed.held.originated).iter().map(|(_, frame)| asked(frame).1).collect();
        assert_eq!(asked.len(), parts);
        bed.wait(3);
        for key in [&one, second] {
            bed.fill(&get(key), "old");
        }
        for part in &asked {
            for said in touched(part) {
                assert_eq!(bed.answer(part, &said), Verdict::Taken);
            }
        }
        assert!(bed.has_copy(&one) && bed.has_copy(second), "the client has no reply yet");
        bed.poll();
        let reply = bed.held.originated.pop().expect("a reply").1;
        assert_eq!(seen(&reply).destination, (ip(CLIENT4), 40_001));
        assert!(!bed.has_copy(&one) && !bed.has_copy(second));
    }
    // If splitting is disabled, the request is dropped, because cached values could become stale.
    let mut bed = bed_with(KeyPath::Direct, |rules| rules.gather = None);
    let gat = write(format!("gat 9 {one} {same}\r\n").as_bytes());
    assert_eq!(bed.send(24, &gat).0, Verdict::Drop(DropReason::KvSplit));
}

#[test]
fn write_that_cannot_be_proxied_is_dropped() {
    let epochs = Arc::new(Epochs::new());
    let mut bed = Bed::with(strict(KeyPath::Direct, &epochs, |_| {}), own_config(0, 1));
    bed.held.free = 100;
    bed.poll();
    let mut room = 0;
    while bed.send(24, &write(SET)).0 == Verdict::Tx {
        room += 1;
    }
    assert_eq!((room, drops(&bed).get("kv_proxied_full")), (36, Some(&1)));
    // A write that requests no reply need not be proxied.
    assert_eq!(bed.send(24, &write(b"delete k1 noreply\r\n")).0, Verdict::Tx);
    bed.wait(1_000);
    assert_eq!(bed.passed(), [36, 0, 36]);
    bed.begin_write(SET);

    let long = |more: &str| {
        let command = [format!("set k1 0 0 2000{more}\r\n").as_bytes(), &[b'v'; 2000], b"\r\n"].concat();
        let payload = udp(CLIENT4, 2_000, VIP4, PORT, &framed(&command))[34..].to_vec();
        Datagram { source: CLIENT4, vip: VIP4, protocol: 17, id: 7, payload }.cut(1_000)
    };
    let mut bed = self::bed();
    long("").iter().for_each(|piece| drop(bed.send(0, piece)));
    assert_eq!(drops(&bed).get("kv_no_return_path"), Some(&3), "{:?}", drops(&bed));
    let mut bed = self::bed();
    long(" noreply").iter().for_each(|piece| assert_eq!(bed.send(0, piece).0, Verdict::Tx));

    let mut parts = strict(KeyPath::Direct, &epochs, |_| {});
    parts.own = vec![ip(OWN6)];
    let mut bed = bed_of(parts, [0, 1], &epochs);
    assert_eq!(
        bed.send(24, &write(SET)).0,
        Verdict::Drop(DropReason::KvNoReturnPath),
        "the request has no return path"
    );
}

#[test]
fn oversized_write_is_refused_and_never_fragmented() {
    let epochs = Arc::new(Epochs::new());
    for (v6, too_big) in [
        (false, TooBig::Drop),
        (false, TooBig::FragmentInner),
        (false, TooBig::FragmentOuter),
        (true, TooBig::FragmentOuter),
    ] {
        let mut parts = strict(KeyPath::Direct, &epochs, |_| {});
        parts.slots.iter_mut().for_each(|slot| (slot.mtu, slot.too_big) = (600, too_big));
        let mut bed = bed_of(parts, [0, 1], &epochs);
        let command = [&b"set k1 0 0 700\r\n"[..], &[b'v'; 700], b"\r\n"].concat();
        let (client, vip) = if v6 { (CLIENT6, VIP6) } else { (CLIENT4, VIP4) };
        let mut frame = udp(client, 40_001, vip, PORT, &framed(&command));
        if v6 {
            // The MTU is below the IPv6 minimum. Senders cannot send smaller packets, so no error
            // is sent.
            assert_eq!(bed.send(64, &frame).0, Verdict::Drop(DropReason::TooBig));
        } else {
            let (verdict, error) = bed.send(64, &frame);
            assert_eq!((verdict, error[23]), (Verdict::Reply, 1));
            let quoted = &error[14 + 28..];
            assert_eq!(quoted[12..20], frame[26..34], "the quote is the client's packet");
            assert_eq!(quoted[20..28], frame[34..42], "the quote includes ports and checksum");
            // The packet is not fragmented even though DF is clear.
            frame[14 + 6] &= 0xbf;
            let frame = crate::icmp::refresh(frame);
            assert_eq!(bed.send(64, &frame).0, Verdict::Drop(DropReason::TooBig));
        }
        bed.poll();
        assert_eq!((bed.held.out.len(), bed.held.originated.len()), (0, 0));
        assert_eq!((bed.passed(), bed.pipeline.next_due()), ([0; 3], None));
    }
}

#[test]
fn write_reply_after_a_key_hash_change_is_dropped() {
    let epochs = Arc::new(Epochs::new());
    let parts = |change: fn(&mut KeyRules)| strict(KeyPath::Direct, &epochs, change);
    let publish = |bed: &Bed, mut parts: Parts| {
        parts.generation = Generation(2);
        bed.live.publish(Snapshot::new(parts).unwrap());
    };
    let unchanged: fn(&mut KeyRules) = |rules| rules.failover_ttl = Some(60);
    let rehashed: fn(&mut KeyRules) = |rules| {
        rules.cache.as_mut().unwrap().hash = KeyRules::maglev_hash(&HashKey::new([6; 16]));
    };
    let not_strict: fn(&mut KeyRules) = |rules| rules.cache.as_mut().unwrap().strict = false;
    let late = Verdict::Drop(DropReason::KvAnswerLate);
    for (change, verdict) in [(unchanged, Verdict::Tx), (rehashed, late), (not_strict, late)] {
        let mut bed = bed_of(parts(|_| {}), [0, 1], &epochs);
        let set = bed.begin_write(SET);
        publish(&bed, parts(change));
        assert_eq!(bed.answer(&set, &answer(&set, "STORED\r\n")), verdict);
    }
    let mut bed = bed_of(parts(|_| {}), [0, 1], &epochs);
    let set = bed.begin_write(SET);
    let mut without = parts(|_| {});
    without.bindings.retain(|binding| binding.service != 3);
    without.bindings.push(binding("203.0.113.77", 17, PORT..=PORT, 3));
    publish(&bed, without);
    assert_eq!(bed.answer(&set, &answer(&set, "STORED\r\n")), late);
}

#[test]
fn ring_and_failover_keys_have_current_copies() {
    let mut bed = bed_with(KeyPath::Direct, |rules| {
        rules.hash = KeyHash::md5();
        rules.cache.as_mut().unwrap().is_own_hash = false;
    });
    let set = bed.begin_write(SET);
    bed.wait(3);
    bed.fill(&get("k1"), "old");
    assert_eq!(bed.answer(&set, &answer(&set, "STORED\r\n")), Verdict::Tx);
    assert!(!bed.has_copy("k1"));

    let epochs = Arc::new(Epochs::new());
    let mut parts = strict(KeyPath::Direct, &epochs, |_| {});
    parts.states[usize::from(by_hand("k1")) - 1] = SlotState::Down;
    let mut bed = bed_of(parts, [0, 1], &epochs);
    let set = bed.begin_write(SET);
    assert_eq!((set.source.0, &set.payload[8..]), (ip(OWN4), &b"set k1 0 10 3\r\nnew\r\n"[..]));
    bed.wait(3);
    bed.fill(&get("k1"), "old");
    assert_eq!(bed.answer(&set, &answer(&set, "STORED\r\n")), Verdict::Tx);
    assert!(!bed.has_copy("k1"));
}
