//! Sends random bytes through the whole pipeline. The pipeline must not panic, each frame must get
//! one verdict, and the counters must add up.

use forwarder::*;
use proptest::prelude::*;

use crate::bed::*;

fn seeds() -> Vec<Vec<u8>> {
    vec![
        tcp("198.51.100.7", 9, VIP4, 80, "S"),
        tcp("2001:db8:1::7", 9, VIP6, 80, "FA"),
        udp("198.51.100.7", 9, VIP4, 53, b"query"),
        tagged(&tagged(&udp("2001:db8:1::7", 9, VIP6, 443, b"x"), 0x8100, 5), 0x88a8, 6),
    ]
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let flips = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (0..seeds().len(), flips, any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(seed, flips, cut, whole)| {
            let mut frame = seeds().swap_remove(seed);
            for (place, value) in flips {
                let place = place.index(frame.len());
                frame[place] = value;
            }
            if !whole {
                frame.truncate(cut.index(frame.len() + 1));
            }
            frame
        },
    )
}

proptest! {
    #[test]
    fn every_frame_gets_one_verdict_and_the_counters_add_up(
        frames in prop::collection::vec((prop_oneof![mutated(), prop::collection::vec(any::<u8>(), 0..90)], 0usize..64), 1..64)
    ) {
        let mut bed = Bed::new(parts(gre_slots(3), &[1, 2, 3]));
        let mut buffers: Vec<Vec<u8>> = frames.iter().map(|(frame, head)| {
            let mut buffer = vec![0; ROOM];
            buffer[*head..head + frame.len()].copy_from_slice(frame);
            buffer
        }).collect();
        let mut packets: Vec<Packet<'_>> = buffers.iter_mut().zip(&frames)
            .map(|(buffer, (frame, head))| Packet::new(buffer, *head, head + frame.len(), Origin::Wire)).collect();
        let mut verdicts = vec![Verdict::Reply; packets.len()];
        bed.pipeline.process(bed.now, &mut packets, &mut verdicts);
        let drops: u64 = DropReason::ALL.iter().map(|reason| bed.counters.drops(*reason)).sum();
        let expected = verdicts.iter().filter(|v| matches!(v, Verdict::Drop(_))).count() as u64;
        prop_assert_eq!(drops, expected);
        let sent = verdicts.iter().filter(|v| **v == Verdict::Tx).count() as u64;
        let counted: u64 = (0..3).map(|slot| bed.counters.backend(slot).unwrap().packets.read()).sum();
        prop_assert_eq!(counted, sent);
        for (packet, verdict) in packets.iter().zip(&verdicts) {
            if matches!(verdict, Verdict::Tx | Verdict::Reply) {
                prop_assert!(packet.bounds().len() > 14);
                prop_assert!(packet.bounds().end <= ROOM);
            }
        }
    }
}
