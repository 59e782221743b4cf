//! Requests that store something while their key's own backend is down: what they store lives for a short while; all else is as it was.

use forwarder::*;
use kv_switch::{Late, Memcached};
use proptest::prelude::*;

use crate::bed::*;
use crate::gather::scene::{apart, bed_of, rules, seen};
use crate::keyed::{CLIENT4, CLIENT6, PORT, by_hand, drops, framed, keyed_of};
use crate::pieces::Datagram;

/// Without headers, so that frames are seen as they come; the backends whose numbers these are do not serve.
fn parts(down: &[u8], failover: KeyFailover) -> Parts {
    let mut parts =
        keyed_of(Box::new(Memcached::new(32)), failover, KeyPath::Direct, Some(rules(Late::IsMissing)));
    parts.slots.iter_mut().for_each(|slot| slot.forwarding = Forwarding::L2);
    down.iter().for_each(|backend| parts.states[usize::from(*backend) - 1] = SlotState::Down);
    parts
}

fn request(v6: bool, command: &[u8]) -> Vec<u8> {
    let (client, vip) = if v6 { (CLIENT6, VIP6) } else { (CLIENT4, VIP4) };
    udp(client, 40_000, vip, PORT, &framed(command))
}

proptest! {
    #[test]
    fn away_from_its_own_backend_what_is_stored_lives_as_long_as_that_may_and_no_byte_else_changes(
        key in "[a-z]{1,60}", time in 0..4_000_000_u32, value in "[ -~]{0,900}", v6: bool, tags in 0..3_u16,
        head in 0..40_usize, is_down: bool, has_checksum: bool,
    ) {
        prop_assume!(key != "flag");
        let owner = by_hand(&key);
        let mut bed = bed_of(parts(if is_down { std::slice::from_ref(&owner) } else { &[] }, KeyFailover::Next));
        bed.live.clock().set(1_790_000_000);
        let set = |time: u32| format!("set {key} 7 {time} {}\r\n{value}\r\n", value.len()).into_bytes();
        // Above 30 days it is a time of 1970.
        let left = match time { 0 => u32::MAX, 1..=2_592_000 => time, _ => 0 };
        let is_cut = is_down && left > 10;
        let mut frame = request(v6, &set(time));
        if !has_checksum && !v6 {
            frame[40..42].fill(0);
        }
        let mut wanted = request(v6, &set(if is_cut { 10 } else { time }));
        for id in 0..tags {
            (frame, wanted) = (tagged(&frame, 0x8100, id), tagged(&wanted, 0x8100, id));
        }
        let (verdict, out) = bed.send(head, &frame);
        prop_assert_eq!(verdict, Verdict::Tx, "{:?}", drops(&bed));
        let (got, wanted) = (seen(&out), seen(&wanted));
        prop_assert_eq!((got.payload, got.source, got.destination), (wanted.payload, wanted.source, wanted.destination));
        prop_assert_eq!(bed.counters.short_lived.read(), u64::from(is_cut));
        let own = bed.counters.backend(u32::from(owner) - 1).unwrap().packets.read();
        prop_assert_eq!(own, u64::from(!is_down));
        // Reads, and what is taken away, are as they were.
        for command in [format!("get {key}\r\n"), format!("delete {key}\r\n"), format!("mg {key} v\r\n")] {
            let frame = request(v6, command.as_bytes());
            let (verdict, out) = bed.send(head, &frame);
            prop_assert_eq!((verdict, seen(&out).payload), (Verdict::Tx, framed(command.as_bytes())));
        }
        prop_assert_eq!(bed.counters.short_lived.read(), u64::from(is_cut));
    }
}

#[test]
fn a_pool_that_takes_keys_over_has_them_for_as_short_a_time() {
    let key = (0..100).map(|n| format!("key{n}")).find(|key| by_hand(key) == 3).unwrap();
    let set = |key: &str, time| format!("set {key} 7 {time} 2\r\nab\r\n").into_bytes();
    let mut bed = bed_of(parts(&[3], KeyFailover::Pool(0)));
    let (verdict, out) = bed.send(0, &request(false, &set(&key, 0)));
    assert_eq!((verdict, seen(&out).payload), (Verdict::Tx, framed(&set(&key, 10))));
    // Where keys go nowhere none is stored.
    let mut bed = bed_of(parts(&[3], KeyFailover::Nowhere));
    assert_eq!(bed.send(0, &request(false, &set(&key, 0))).0, Verdict::Drop(DropReason::NoBackend));
}

#[test]
fn what_came_broken_or_in_pieces_is_not_written_anew() {
    let key = (0..100).map(|n| format!("key{n}")).find(|key| by_hand(key) == 3).unwrap();
    let command = [format!("set {key} 7 0 2000\r\n").as_bytes(), &[b'v'; 2000], b"\r\n"].concat();
    let mut bed = bed_of(parts(&[3], KeyFailover::Next));
    let payload = request(false, &command)[34..].to_vec();
    let pieces = Datagram { source: CLIENT4, vip: VIP4, protocol: 17, id: 7, payload }.cut(1_000);
    assert_eq!(bed.send(0, &pieces[0]).0, Verdict::Drop(DropReason::KvShortLife));

    let mut broken = request(false, format!("set {key} 7 0 2\r\nab\r\n").as_bytes());
    let last = broken.len() - 3;
    broken[last] ^= 1;
    assert_eq!(bed.send(0, &broken).0, Verdict::Drop(DropReason::Malformed));
    // With its own backend it is that one's to judge.
    let mut bed = bed_of(parts(&[], KeyFailover::Next));
    assert_eq!(bed.send(0, &broken).0, Verdict::Tx);
}

#[test]
fn a_gat_for_several_backends_of_which_one_is_away_touches_no_key_for_longer() {
    let keys = apart(3);
    let command = format!("gat 600 {} {} {}\r\n", keys[0], keys[1], keys[2]);
    for (down, time) in [(&[][..], "T600"), (&[3], "T10")] {
        let mut bed = bed_of(parts(down, KeyFailover::Next));
        assert_eq!(bed.send(0, &request(false, command.as_bytes())).0, Verdict::Taken);
        bed.poll();
        let asked: Vec<String> = bed
            .held
            .originated
            .iter()
            .map(|(_, frame)| String::from_utf8(seen(frame).payload[8..].to_vec()).unwrap())
            .collect();
        let lines: Vec<&str> = asked.iter().flat_map(|text| text.lines()).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.split(' ').any(|word| word == time)), "{lines:?}");
    }
}
