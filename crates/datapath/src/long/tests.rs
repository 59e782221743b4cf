//! Tests of long packets in registered UMEM chunks. The tests need CAP_NET_RAW. Run them as root
//! with `cargo test -p sluicegate-datapath --lib long -- --ignored`.

#![allow(clippy::cast_possible_truncation, reason = "bytes of a pattern")]

use std::collections::BTreeSet;

use forwarder::ThreadId;
use proptest::prelude::*;

use super::*;

/// The action that the test takes for a received packet.
#[derive(Clone, Debug)]
enum Fate {
    /// The packet is dropped, and its chunks return to the pool.
    Ended,
    /// The packet is sent with a length of `len` bytes, using up to `spare` additional chunks.
    Sent { len: usize, spare: usize },
}

struct Bed {
    area: Area,
    free: Vec<Frame>,
}

/// A received packet. `lengths` contains the number of bytes in each chunk.
#[derive(Clone, Debug)]
struct Arrival {
    lengths: Vec<usize>,
    fill: u8,
    fate: Fate,
}

fn addresses<'a>(frames: impl IntoIterator<Item = &'a Frame>) -> Vec<usize> {
    frames.into_iter().map(|frame| frame.0.addr()).collect()
}

/// Returns test bytes that differ between positions and between packets.
fn pattern(fill: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| fill.wrapping_add((at % 251) as u8).wrapping_mul(1 + (at / 251) as u8)).collect()
}

impl Bed {
    fn new(chunk: u32, has_slots: bool) -> Self {
        let (area, mut pools) = Area::new(vec![ThreadId(0)], CHUNKS, chunk, has_slots).unwrap();
        Self { area, free: pools.remove(0) }
    }

    /// Simulates the arrival of a packet. Returns the frames of the packet, filled and marked as
    /// the kernel does, and the bytes of the packet.
    fn arrives(&mut self, arrival: &Arrival) -> (Vec<(Frame, usize)>, Vec<u8>) {
        let (mut frames, mut whole) = (Vec::new(), Vec::new());
        for (place, length) in arrival.lengths.iter().enumerate() {
            let mut frame = self.free.pop().unwrap();
            let length = (*length).min(self.area.room(&frame));
            let bytes = pattern(arrival.fill.wrapping_add(place as u8), length);
            self.area.chunk(&mut frame)[..length].copy_from_slice(&bytes);
            frame.0.set_followed(place + 1 < arrival.lengths.len());
            frames.push((frame, length));
            whole.extend(bytes);
        }
        (frames, whole)
    }

    /// Sends the packet, or returns its chunks to the pool.
    fn meets(&mut self, mut frame: Frame, chunks: usize, fate: &Fate, fill: u8) -> Result<(), TestCaseError> {
        let mut returned = Vec::new();
        match *fate {
            Fate::Ended => {
                let first = frame.0.addr();
                let frame = self.area.shorten(frame, &mut returned);
                prop_assert!(!frame.is_long() && frame.0.addr() == first);
                prop_assert_eq!(returned.len() + 1, chunks);
                self.free.push(frame);
            }
            Fate::Sent { len, spare } => {
                let room = self.area.room(&frame);
                let bytes = pattern(!fill, len);
                self.area.bytes(&mut frame)[..len].copy_from_slice(&bytes);
                let from = self.free.len() - spare;
                let mut spare: Vec<Frame> = self.free.drain(from..).collect();
                let (wanted, had) = (len.div_ceil(room), spare.len());
                let most = (chunks + had).min(17);
                match self.area.spread(frame, 0..len, &mut spare, &mut returned) {
                    Ok(segments) => {
                        prop_assert!(wanted <= most);
                        prop_assert_eq!(segments.len(), wanted);
                        prop_assert_eq!(
                            had - spare.len(),
                            wanted.saturating_sub(chunks),
                            "a packet took more spare chunks than it needs"
                        );
                        self.is_on_the_wire(&segments, &bytes)?;
                        self.free.extend(segments.into_iter().map(sent));
                    }
                    Err(frame) => {
                        prop_assert!(wanted > most);
                        let frame = self.area.shorten(frame, &mut returned);
                        self.free.push(frame);
                    }
                }
                self.free.extend(spare);
            }
        }
        self.free.extend(returned);
        Ok(())
    }

    /// Checks the sent segments: all chunks except the last must be full and marked as followed.
    fn is_on_the_wire(&self, segments: &Segments, bytes: &[u8]) -> Result<(), TestCaseError> {
        let mut seen = Vec::new();
        for (place, segment) in segments.iter().enumerate() {
            let (len, is_last) = (segment.len(), place + 1 == segments.len());
            let mut frame = Frame(*segment);
            prop_assert_eq!(segment.is_followed(), !is_last);
            prop_assert!(is_last || len == self.area.room(&frame));
            seen.extend_from_slice(&self.area.chunk(&mut frame)[..len]);
        }
        prop_assert!(seen == bytes, "the sent bytes differ from the written bytes");
        Ok(())
    }

    fn has_all_chunks(&self) -> Result<(), TestCaseError> {
        prop_assert!(self.free.iter().all(|frame| !frame.is_long()));
        let all = addresses(&self.free);
        let different: BTreeSet<usize> = all.iter().copied().collect();
        prop_assert_eq!((all.len(), different.len()), (CHUNKS as usize, CHUNKS as usize));
        Ok(())
    }
}

/// Returns the frame for a chunk that the kernel has finished sending.
fn sent(mut segment: Descriptor) -> Frame {
    segment.set_followed(false);
    Frame(segment)
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let length = prop_oneof![1..60usize, 1_000..=3_840usize];
    let lengths = prop_oneof![
        prop::collection::vec(1..60usize, 1..=20),
        prop::collection::vec(1_600..=3_840usize, 1..=10),
        prop::collection::vec(length, 1..=20),
    ];
    // Some of the packet lengths fill their chunks exactly. Without reserved headroom, a chunk
    // holds 1,792 or 3,840 bytes, depending on the chunk size.
    let full = prop_oneof![(1..=8usize).prop_map(|n| n * 1_792), (1..=4usize).prop_map(|n| n * 3_840)];
    let len = prop_oneof![1..=LONGEST, Just(LONGEST), full];
    let sent = (len, 0..=20usize).prop_map(|(len, spare)| Fate::Sent { len, spare });
    (lengths, any::<u8>(), prop_oneof![1 => Just(Fate::Ended), 3 => sent])
        .prop_map(|(lengths, fill, fate)| Arrival { lengths, fill, fate })
}

fn is_carried(mut bed: Bed, pairs: &[([Arrival; 2], Vec<bool>)]) -> Result<(), TestCaseError> {
    for (arrivals, order) in pairs {
        // The frames of two packets arrive interleaved, on two queues.
        let came = arrivals.each_ref().map(|arrival| bed.arrives(arrival));
        let wholes = [came[0].1.clone(), came[1].1.clone()];
        let all = came.each_ref().map(|(frames, _)| addresses(frames.iter().map(|(frame, _)| frame)));
        let mut queues = came.map(|(frames, _)| frames.into_iter());
        let (mut gathered, mut order) = ([Gathering::default(), Gathering::default()], order.iter().copied());
        while queues.iter().any(|queue| queue.len() > 0) {
            let wanted = usize::from(order.next().unwrap_or_default());
            let queue = if queues[wanted].len() > 0 { wanted } else { 1 - wanted };
            let Some((frame, len)) = queues[queue].next() else { break };
            let (mut returned, before) = (Vec::new(), gathered[queue].too_long);
            let whole = bed.area.gather(&mut gathered[queue], frame, 0..len, &mut returned);
            if queues[queue].len() > 0 {
                prop_assert!(
                    whole.is_none() && gathered[queue].too_long == before && gathered[queue].has_begun()
                );
                bed.free.extend(returned); // the frames of a packet that became too long
                continue;
            }
            prop_assert!(!gathered[queue].has_begun());
            let (chunks, expected) = (all[queue].len(), &wholes[queue]);
            let fits = chunks <= 17 && expected.len() <= LONGEST;
            prop_assert_eq!((whole.is_some(), gathered[queue].too_long - before), (fits, u64::from(!fits)));
            bed.free.extend(returned);
            if let Some((mut frame, bounds)) = whole {
                prop_assert!(frame.is_long() && frame.0.addr() == all[queue][0]);
                prop_assert_eq!(&bounds, &(0..expected.len()));
                prop_assert!(bed.area.bytes(&mut frame)[bounds] == expected[..]);
                bed.meets(frame, chunks, &arrivals[queue].fate, arrivals[queue].fill)?;
            }
        }
        bed.has_all_chunks()?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs CAP_NET_RAW; the lane net runs it"]
    fn long_packets_are_joined_and_sent_without_losing_chunks(
        large: bool,
        pairs in prop::collection::vec(([arrival(), arrival()], prop::collection::vec(prop::bool::ANY, 40)), 1..8),
    ) {
        is_carried(Bed::new(if large { 4_096 } else { 2_048 }, true), &pairs)?;
    }
}

#[test]
#[ignore = "needs CAP_NET_RAW; the lane net runs it"]
fn lengthen_needs_slots_and_gives_the_room_of_a_slot() {
    for has_slots in [true, false] {
        let mut bed = Bed::new(2_048, has_slots);
        let frame = bed.free.pop().unwrap();
        let room = bed.area.room(&frame);
        let mut frame = bed.area.lengthen(frame);
        assert_eq!(frame.is_long(), has_slots);
        assert_eq!(bed.area.bytes(&mut frame).len(), if has_slots { LONGEST } else { room });
        let mut returned: Vec<Frame> = Vec::new();
        let frame = bed.area.shorten(frame, &mut returned);
        assert!(returned.is_empty() && !frame.is_long());
    }
}

const CHUNKS: u32 = 64;
/// The maximum length of a received packet in bytes, including headroom and VLAN tags. The IP
/// packet in it is 15,779 bytes long.
const LONGEST: usize = 15_864;
