//! Tests of writes to keys whose assigned backend is down. The failover backend stores the value
//! with a short time to live, and all other bytes of the request are unchanged.

use forwarder::*;
use kv_switch::{Late, Memcached};
use proptest::prelude::*;

use crate::bed::*;
use crate::gather::scene::{apart, bed_of, rules, seen};
use crate::keyed::{CLIENT4, CLIENT6, PORT, by_hand, drops, framed, keyed_of};
use crate::pieces::Datagram;

/// Returns a configuration without encapsulation. The backends in `down` do not serve.
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
    // Promise: failover-expiry
    #[test]
    fn failover_store_changes_only_the_time_to_live(
        key in "[a-z]{1,60}", time in 0..4_000_000_u32, value in "[ -~]{0,900}", v6: bool, tags in 0..3_u16,
        head in 0..40_usize, is_down: bool, has_checksum: bool,
    ) {
        prop_assume!(key != "flag");
        let owner = by_hand(&key);
        let mut bed = bed_of(parts(if is_down { std::slice::from_ref(&owner) } else { &[] }, KeyFailover::Next));
        bed.live.clock().set(1_790_000_000);
        let set = |time: u32| format!("set {key} 7 {time} {}\r\n{value}\r\n", value.len()).into_bytes();
        // Times above 30 days are absolute Unix times, all of which are in the past in this test.
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
        // Reads and deletes are unchanged.
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
    // Without failover, the write is dropped.
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
    // The backend that the key is assigned to receives the request unchanged.
    let mut bed = bed_of(parts(&[], KeyFailover::Next));
    assert_eq!(bed.send(0, &broken).0, Verdict::Tx);
}

// Promise: failover-expiry
#[test]
fn gat_on_a_failover_backend_has_a_short_time_to_live() {
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
