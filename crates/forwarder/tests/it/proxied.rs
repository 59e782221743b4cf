//! Tests of proxied requests: the backend receives the request from this machine, and the client
//! receives the reply from the VIP.

use std::collections::BTreeMap;
use std::net::IpAddr;

use forwarder::*;
use kv_switch::{Late, Memcached};
use proptest::prelude::*;

use crate::bed::*;
use crate::gather::scene::{
    OWN4, OWN6, SOURCE_PORTS, Seen, answers, apart, back, bed_of, joined, own_config, rules, seen, values,
    wanted,
};
use crate::keyed::{CLIENT4, CLIENT6, PORT, by_hand, drops, framed, keyed_of};
use crate::pieces::Datagram;

/// The index of 200 ms in `GATHER_TIMEOUTS_MS`.
const TIMEOUT: usize = 7;

/// Returns a configuration whose backends have addresses of one family but not the VIP address.
fn parts(v6: bool) -> Parts {
    let path = KeyPath::Through { timeout: TIMEOUT };
    let mut parts = keyed_of(Box::new(Memcached::new(32)), KeyFailover::Next, path, Some(rules(Late::Fails)));
    for (n, slot) in (1..).zip(&mut parts.slots) {
        slot.forwarding = Forwarding::L2;
        slot.address = server(n, v6);
    }
    parts
}

fn server(backend: u8, v6: bool) -> IpAddr {
    ip(&if v6 { format!("2001:db8:1::{backend}") } else { format!("198.18.1.{backend}") })
}

fn bed(v6: bool) -> Bed {
    bed_of(parts(v6))
}

impl Bed {
    /// Sends a request. Returns the request that the backend receives.
    fn pass(&mut self, frame: &[u8]) -> Seen {
        let (verdict, out) = self.send(0, frame);
        assert_eq!(verdict, Verdict::Tx, "{:?}", drops(self));
        seen(&out)
    }

    fn through(&self) -> [u64; 3] {
        let counters = &self.counters;
        [&counters.proxied_begun, &counters.proxied_answers, &counters.proxied_unanswered].map(Counter::read)
    }
}

/// Returns one datagram of a backend's reply to a request.
fn datagram(of: &Seen, number: u8, total: u8, text: &[u8]) -> Vec<u8> {
    [&of.payload[..2], &[0, number, 0, total, 0, 0], text].concat()
}

fn get(client: &str, vip: &str, port: u16, key: &str) -> Vec<u8> {
    udp(client, port, vip, PORT, &framed(format!("get {key}\r\n").as_bytes()))
}

proptest! {
    // Promise: proxied-answers
    #[test]
    fn proxied_request_and_reply_datagrams_are_rewritten(
        key in "[a-z]{1,60}", port in 1024_u16..11_000, id: u16, v6: bool, tags in 0..3_usize, head in 0..40_usize,
        order in Just(vec![0_u8, 1, 2]).prop_shuffle(), text in prop::collection::vec(any::<u8>(), 0..1392),
    ) {
        prop_assume!(key != "flag");
        let mut bed = bed(v6);
        let (client, vip, own) = if v6 { (CLIENT6, VIP6, OWN6) } else { (CLIENT4, VIP4, OWN4) };
        let command = framed(format!("get {key}\r\n").as_bytes());
        let mut frame = udp(client, port, vip, PORT, &[&id.to_be_bytes(), &command[2..]].concat());
        let plain = frame.len();
        (0..tags).for_each(|id| frame = tagged(&frame, 0x8100, 7 + id as u16));
        let got = bed.pass(&frame);
        let wanted = seen(&frame);
        prop_assert_eq!((got.source.0, SOURCE_PORTS.contains(&got.source.1)), (ip(own), true));
        prop_assert_eq!(got.destination, (server(by_hand(&key), v6), PORT));
        prop_assert_eq!(&got.link, &[&HOP[..], &OURS, &frame[12..wanted.link.len()]].concat());
        prop_assert_eq!(&got.payload[2..], &wanted.payload[2..]);
        for (nth, number) in order.iter().enumerate() {
            let answer = datagram(&got, *number, 3, &text);
            let (verdict, out) = bed.send(head, &back(&got, &answer));
            prop_assert_eq!(verdict, Verdict::Tx, "{:?}", drops(&bed));
            let come = seen(&out);
            prop_assert_eq!(&come.link, &[&ROUTER[..], &OURS, &frame[12..wanted.link.len()]].concat());
            prop_assert_eq!((come.source, come.destination), ((ip(vip), PORT), (ip(client), port)));
            prop_assert_eq!(&come.payload[..2], &id.to_be_bytes());
            prop_assert_eq!(&come.payload[2..], &answer[2..]);
            // The TTL is decremented in each direction.
            let ttl = out[wanted.link.len() + if v6 { 7 } else { 8 }];
            prop_assert_eq!((ttl, bed.through()), (63, [1, nth as u64 + 1, 0]));
        }
        // The reply is complete, so another datagram is too late.
        let again = bed.answer(&got, &datagram(&got, 0, 3, &text));
        prop_assert_eq!(again, Verdict::Drop(DropReason::KvAnswerLate));
        prop_assert_eq!((bed.pipeline.flows().len(), bed.pipeline.next_due()), (0, None));
        let counted = bed.counters.backend(u32::from(by_hand(&key)) - 1).unwrap();
        prop_assert_eq!((counted.packets.read(), counted.bytes.read()), (1, frame.len() as u64));
        prop_assert_eq!(frame.len(), plain + 4 * tags);
    }
}

// Promise: proxied-answers
#[test]
fn clients_that_use_the_same_id_have_their_own_answers() {
    let mut bed = bed(false);
    let asked: Vec<(u16, Seen)> =
        (2_000..2_020).map(|port| (port, bed.pass(&get(CLIENT4, VIP4, port, "key")))).collect();
    let ids: std::collections::BTreeSet<_> =
        asked.iter().map(|(_, got)| (got.source.1, got.payload[..2].to_vec())).collect();
    assert_eq!(ids.len(), asked.len());
    for (port, got) in asked.iter().rev() {
        let (verdict, out) = bed.send(0, &back(got, &datagram(got, 0, 1, b"END\r\n")));
        assert_eq!((verdict, seen(&out).destination), (Verdict::Tx, (ip(CLIENT4), *port)));
        assert_eq!(seen(&out).payload, [&[0x12, 0x34, 0, 0, 0, 1, 0, 0][..], b"END\r\n"].concat());
    }
    assert_eq!((bed.through(), drops(&bed)), ([20, 20, 0], BTreeMap::new()));
}

// Promise: proxied-answers
#[test]
fn proxied_reply_with_wrong_source_id_or_time_is_dropped() {
    let mut bed = bed(false);
    let got = bed.pass(&get(CLIENT4, VIP4, 2_000, "key"));
    let answer = datagram(&got, 0, 1, b"END\r\n");
    let from = |address: &str, port| Seen { destination: (ip(address), port), ..got.clone() };
    let mut other_id = answer.clone();
    other_id[1] ^= 1;
    for (frame, reason) in [
        (back(&from("198.18.1.99", PORT), &answer), DropReason::KvAnswerSource),
        (back(&from(VIP4, PORT), &answer), DropReason::KvAnswerSource),
        (back(&from(&got.destination.0.to_string(), 443), &answer), DropReason::KvAnswerSource),
        (back(&got, &other_id), DropReason::KvAnswerLate),
        (back(&got, &answer[..1]), DropReason::KvAnswerMalformed),
        (back(&got, &answer[..7]), DropReason::KvAnswerMalformed),
        (with_ttl(back(&got, &answer), 1), DropReason::Ttl),
    ] {
        assert_eq!(bed.send(0, &frame).0, Verdict::Drop(reason));
    }
    // The request is still pending.
    let other_own = Seen { source: (ip("192.0.2.77"), got.source.1), ..got.clone() };
    assert_eq!(bed.send(0, &back(&other_own, &answer)).0, Verdict::Drop(DropReason::NoVip));
    bed.wait(199);
    assert_eq!(bed.through(), [1, 0, 0]);
    bed.wait(1);
    assert_eq!(bed.through(), [1, 0, 1]);
    assert_eq!(bed.answer(&got, &answer), Verdict::Drop(DropReason::KvAnswerLate));
}

#[test]
fn messages_for_several_keys_of_one_backend_all_pass() {
    let mut bed = bed(false);
    let keys: Vec<String> = (0..100).map(|n| format!("key{n}")).filter(|key| by_hand(key) == 2).collect();
    let command = framed(format!("get {} {}\r\n", keys[0], keys[1]).as_bytes());
    let got = bed.pass(&udp(CLIENT4, 2_000, VIP4, PORT, &command));
    for _ in 0..3 {
        assert_eq!(bed.answer(&got, &datagram(&got, 0, 1, b"VALUE")), Verdict::Tx);
    }
    bed.wait(200);
    assert_eq!(bed.through(), [1, 3, 0]);
    assert_eq!(bed.answer(&got, &datagram(&got, 0, 1, b"END")), Verdict::Drop(DropReason::KvAnswerLate));
    // Requests without a key are also forwarded.
    let got = bed.pass(&udp(CLIENT4, 2_000, VIP4, PORT, &framed(b"version\r\n")));
    assert_eq!(bed.answer(&got, &datagram(&got, 0, 1, b"VERSION")), Verdict::Tx);
    assert_eq!(bed.pipeline.next_due(), None);
}

#[test]
fn proxied_split_request_uses_the_backend_addresses() {
    let keys = apart(3);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let there = values(&[(names[0], "first"), (names[2], "third")]);
    for v6 in [false, true] {
        let mut bed = bed(v6);
        let (client, vip) = if v6 { (CLIENT6, VIP6) } else { (CLIENT4, VIP4) };
        let command = framed(format!("get {}\r\n", names.join(" ")).as_bytes());
        assert_eq!(bed.send(0, &udp(client, 2_000, vip, PORT, &command)).0, Verdict::Taken);
        bed.poll();
        let asked: Vec<Seen> =
            std::mem::take(&mut bed.held.originated).iter().map(|(_, frame)| seen(frame)).collect();
        let servers: Vec<_> = asked.iter().map(|part| part.destination).collect();
        assert_eq!(servers, [1, 2, 3].map(|n| (server(n, v6), PORT)));
        let from_vip = Seen { destination: (ip(vip), PORT), ..asked[0].clone() };
        let first = answers(&asked[0].payload, &there).remove(0);
        assert_eq!(bed.answer(&from_vip, &first), Verdict::Drop(DropReason::KvAnswerSource));
        for part in &asked {
            for answer in answers(&part.payload, &there) {
                assert_eq!(bed.answer(part, &answer), Verdict::Taken);
            }
        }
        bed.poll();
        assert_eq!(joined(&bed.held.originated), wanted(&names, "get", &there));
        assert_eq!((bed.ended(), bed.through()), ([1, 0, 0, 0, 0], [0; 3]));
    }
}

#[test]
fn what_has_no_way_back_or_no_room_is_dropped_by_its_name() {
    let mut bed = bed(false);
    let long = [&b"set key 0 0 2000\r\n"[..], &[b'v'; 2000], b"\r\n"].concat();
    let payload = udp(CLIENT4, 2_000, VIP4, PORT, &framed(&long))[34..].to_vec();
    let pieces = Datagram { source: CLIENT4, vip: VIP4, protocol: 17, id: 7, payload }.cut(1_000);
    pieces.iter().for_each(|piece| drop(bed.send(0, piece)));
    assert_eq!(drops(&bed).get("kv_no_return_path"), Some(&3), "{:?}", drops(&bed));
    let mut room = 0;
    while let Verdict::Tx = bed.send(0, &get(CLIENT4, VIP4, 2_000, "key")).0 {
        room += 1;
    }
    assert_eq!((room, drops(&bed).get("kv_proxied_full")), (36, Some(&1)));
    // Requests of other kinds still find room in the table.
    let keys = apart(2);
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    let both = udp(CLIENT4, 2_000, VIP4, PORT, &framed(format!("get {}\r\n", names.join(" ")).as_bytes()));
    assert_eq!(bed.send(0, &both).0, Verdict::Taken, "{:?}", drops(&bed));
    bed.wait(200);
    assert_eq!(bed.through(), [36, 0, 36]);
    bed.pass(&get(CLIENT4, VIP4, 2_000, "key"));

    let mut other = parts(false);
    other.own = vec![ip(OWN6)];
    let mut bed = bed_of(other);
    assert_eq!(
        bed.send(0, &get(CLIENT4, VIP4, 2_000, "key")).0,
        Verdict::Drop(DropReason::KvNoReturnPath),
        "the request has no return path"
    );
    let mut bed = bed_of(parts(true));
    assert_eq!(
        bed.send(0, &get(CLIENT4, VIP4, 2_000, "key")).0,
        Verdict::Drop(DropReason::NoBackend),
        "the address family differs"
    );
}

/// The servers of one service do not reply. Requests to another service still find room in the
/// table.
#[test]
fn full_service_leaves_room_for_others() {
    let mut parts = parts(false);
    let other = Service { id: ServiceId(4), ..parts.services[3].clone() };
    parts.services.push(other);
    parts.bindings.push(binding(VIP4, 17, PORT + 1..=PORT + 1, 4));
    let mut bed = bed_of(parts);
    let mut room = 0;
    while bed.send(0, &get(CLIENT4, VIP4, 2_000, "key")).0 == Verdict::Tx {
        room += 1;
    }
    assert_eq!(room, 36);
    let at_other = udp(CLIENT4, 2_000, VIP4, PORT + 1, &framed(b"get key\r\n"));
    for _ in 0..100 {
        let got = bed.pass(&at_other);
        assert_eq!(bed.answer(&got, &datagram(&got, 0, 1, b"END\r\n")), Verdict::Tx);
    }
    assert_eq!(bed.send(0, &get(CLIENT4, VIP4, 2_000, "key")).0, Verdict::Drop(DropReason::KvProxiedFull));
    // Requests that have timed out release their room in the table.
    bed.wait(200);
    bed.pass(&get(CLIENT4, VIP4, 2_000, "key"));
}

/// A request that expects no reply takes no table entry, so any number of such requests leaves the
/// table empty.
#[test]
fn proxied_request_without_reply_holds_no_exchange() {
    let mut bed = bed(false);
    let request = |command: &[u8]| udp(CLIENT4, 2_000, VIP4, PORT, &framed(command));
    let mut last = None;
    for command in [
        &b"set key 0 0 1 noreply\r\nv\r\n"[..],
        b"delete key noreply\r\n",
        b"md key q\r\n",
        b"ms key 1 q\r\nv\r\n",
    ] {
        for _ in 0..100 {
            let got = bed.pass(&request(command));
            assert_eq!((got.source.0, got.destination), (ip(OWN4), (server(by_hand("key"), false), PORT)));
            last = Some(got);
        }
        assert_eq!(bed.pipeline.next_due(), None, "{}", command.escape_ascii());
    }
    // An error from the server cannot be assigned to a request.
    let got = last.unwrap();
    let error = bed.answer(&got, &datagram(&got, 0, 1, b"SERVER_ERROR out of memory\r\n"));
    assert_eq!(error, Verdict::Drop(DropReason::KvAnswerLate));
    assert_eq!(bed.through(), [400, 0, 0]);
    // Servers may reply to these requests despite the flag `q`.
    for command in
        [&b"ms key 1 q C5\r\nv\r\n"[..], b"ms key 1 q ME\r\nv\r\n", b"mg key v q\r\n", b"ma key q\r\n"]
    {
        let got = bed.pass(&request(command));
        assert_ne!(bed.pipeline.next_due(), None, "{}", command.escape_ascii());
        assert_eq!(bed.answer(&got, &datagram(&got, 0, 1, b"NS\r\n")), Verdict::Tx);
    }
}

/// This thread drops a forged reply to a port of another thread, instead of handing it over.
#[test]
fn reply_from_no_server_is_not_handed_over() {
    let mut bed = Bed::with(parts(false), own_config(0, 2));
    let to = |source: &str, port| udp(source, port, OWN4, 61_006, &framed(b"END\r\n"));
    for (source, port) in
        [("198.51.100.9", PORT), ("198.18.1.99", PORT), (VIP4, PORT + 1), ("203.0.113.99", PORT)]
    {
        let verdict = bed.send(0, &to(source, port)).0;
        assert_eq!(verdict, Verdict::Drop(DropReason::KvAnswerSource), "{source} {port}");
    }
    let handed = Verdict::ToThread(ThreadId(1), HandoffReason::Answer);
    for source in ["198.18.1.1", "198.18.1.5", VIP4] {
        assert_eq!(bed.send(0, &to(source, PORT)).0, handed, "{source}");
    }
}

#[test]
fn request_that_cannot_be_sent_is_refused_with_an_error() {
    let mut unknown = parts(false);
    unknown.slots.iter_mut().for_each(|slot| slot.next_hop = None);
    let mut bed = bed_of(unknown);
    assert_eq!(bed.send(0, &get(CLIENT4, VIP4, 2_000, "key")).0, Verdict::Drop(DropReason::NoNextHop));
    assert_eq!((bed.through(), bed.pipeline.next_due()), ([0; 3], None));

    let mut narrow = parts(false);
    narrow.slots.iter_mut().for_each(|slot| slot.mtu = 600);
    let mut bed = bed_of(narrow);
    let command = [&b"set key 0 0 700\r\n"[..], &[b'v'; 700], b"\r\n"].concat();
    let frame = udp(CLIENT4, 2_000, VIP4, PORT, &framed(&command));
    let (verdict, error) = bed.send(24, &frame);
    assert_eq!((verdict, error[23]), (Verdict::Reply, 1));
    let quoted = &error[14 + 28..];
    assert_eq!(quoted[12..20], frame[26..34], "the quote is the client's packet");
    assert_eq!((bed.through(), bed.pipeline.next_due()), ([0; 3], None));
    // The packet is not fragmented even though DF is clear.
    let mut frame = frame;
    frame[14 + 6] &= 0xbf;
    assert_eq!(bed.send(24, &frame).0, Verdict::Drop(DropReason::TooBig));
}

#[test]
fn an_answer_goes_on_though_a_reload_has_taken_its_service() {
    let mut bed = bed(false);
    let got = bed.pass(&get(CLIENT4, VIP4, 2_000, "key"));
    let mut without = parts(false);
    without.bindings.retain(|binding| binding.service != 3);
    // Another pool still sends upstream requests.
    without.bindings.push(binding("203.0.113.77", 17, PORT..=PORT, 3));
    bed.live.publish(Snapshot::new(without).unwrap());
    assert_eq!(bed.answer(&got, &datagram(&got, 0, 1, b"END\r\n")), Verdict::Tx);
}

#[test]
fn the_thread_that_asked_has_the_answer() {
    let mut beds: Vec<Bed> = (0..2).map(|thread| Bed::with(parts(false), own_config(thread, 2))).collect();
    let got = beds[1].pass(&get(CLIENT4, VIP4, 2_000, "key"));
    let answer = back(&got, &datagram(&got, 0, 1, b"END\r\n"));
    let handed = Verdict::ToThread(ThreadId(1), HandoffReason::Answer);
    assert_eq!(beds[0].send(0, &answer).0, handed);
    let (verdict, out) = beds[1].send_as(Origin::Thread(ThreadId(0), HandoffReason::Answer), 0, &answer);
    assert_eq!((verdict, seen(&out).destination), (Verdict::Tx, (ip(CLIENT4), 2_000)));
}

#[test]
fn other_services_of_the_pool_send_packets_as_they_are() {
    let mut bed = bed(false);
    let (verdict, out) = bed.send(0, &tcp(CLIENT4, 2_000, VIP4, 80, "S"));
    assert_eq!((verdict, &out[30..34]), (Verdict::Tx, &[203, 0, 113, 10][..]));
}
