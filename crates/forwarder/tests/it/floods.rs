//! Tests of floods from random sources while the connection table is full. Established flows must
//! stay on their backends, even when an additional backend changes the Maglev table.

use forwarder::*;

use crate::bed::*;

const PLACES: usize = 32_768;
/// The number of established flows. The number is half of the table's capacity, so that each flow
/// gets an entry, and floods fill the remaining entries.
const FLOWS: u32 = 16_384;
const BATCH: usize = 256;
/// The time between two batches in milliseconds, which is longer than a tick.
const MILLIS: u64 = 300;
/// The time in milliseconds after which a full batch does not continue a series of full batches.
const PAUSE_MILLIS: u64 = 5;

/// The xorshift64* generator. A fixed seed makes the test repeatable.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flood {
    Syn,
    Ack,
    Udp,
}

/// Template packets for each protocol and address family. The source address is filled in later.
struct Frames {
    tcp: [Vec<u8>; 2],
    udp: [Vec<u8>; 2],
}

impl Frames {
    fn new() -> Self {
        Self {
            tcp: [tcp("198.51.100.1", 1, VIP4, 80, "A"), tcp("2001:db8:1::1", 1, VIP6, 80, "A")],
            udp: [udp("198.51.100.1", 1, VIP4, 443, b"query"), udp("2001:db8:1::1", 1, VIP6, 443, b"query")],
        }
    }

    /// Returns the packet with source number `source`. The lowest bit of the number selects the
    /// address family.
    fn of(&self, flood: Flood, source: u64) -> Vec<u8> {
        let (family, [.., a, b, c, d, e, f]) = (source as usize & 1, (source >> 1).to_be_bytes());
        let mut frame = if flood == Flood::Udp { self.udp[family].clone() } else { self.tcp[family].clone() };
        if family == 0 {
            frame[29] = c;
            frame[34..36].copy_from_slice(&[d, e ^ f]);
        } else {
            frame[32..38].copy_from_slice(&[a, b, c, d, e, f]);
        }
        if flood == Flood::Syn {
            frame[if family == 0 { 47 } else { 67 }] = 0x02;
        }
        frame
    }
}

/// A pipeline under a flood, with the expected backend of each established flow.
struct Attacked {
    bed: Bed,
    frames: Frames,
    random: Random,
    backends: Vec<u8>,
}

impl Attacked {
    /// Establishes all flows. At the end, each flow is tracked and past its probation period.
    fn new() -> Self {
        let bed = Bed::with_flows(parts(gre_slots(20), &[1; 20]), PLACES);
        let mut attacked = Self { bed, frames: Frames::new(), random: Random(7), backends: Vec::new() };
        attacked.backends = attacked.every_flow_says(Flood::Syn);
        for _ in 0..9 {
            attacked.passes(MILLIS);
            assert_eq!(attacked.every_flow_says(Flood::Ack), attacked.backends);
        }
        let table = attacked.bed.pipeline.flows().counters();
        assert_eq!((table.untracked, table.evicted_from_probation), (0, 0), "all flows are in the table");
        attacked
    }

    fn passes(&mut self, millis: u64) {
        self.bed.now = Now::from_nanos(self.bed.now.nanos() + millis * 1_000_000);
    }

    fn established(&self, flow: u32, says: Flood) -> Vec<u8> {
        // Established flows use hosts that floods do not use. For IPv4, the flow number is in the
        // port.
        let family = u64::from(flow & 1);
        let host = if family == 0 { 0x0100_0000 } else { 0xffff_0000_0000 };
        self.frames.of(says, (host | u64::from(flow / 2) << 8) << 1 | family)
    }

    fn every_flow_says(&mut self, says: Flood) -> Vec<u8> {
        let all: Vec<_> = (0..FLOWS).map(|flow| self.established(flow, says)).collect();
        all.chunks(BATCH).flat_map(|frames| self.forward(frames)).collect()
    }

    fn forged(&mut self, flood: Flood) -> Vec<u8> {
        // Floods use only IPv4 hosts that established flows do not use.
        loop {
            let source = self.random.next() >> 16;
            if source & 1 == 1 || source >> 25 & 0xff != 1 {
                return self.frames.of(flood, source);
            }
        }
    }

    /// Processes a batch. Returns the backend of each packet.
    fn forward(&mut self, frames: &[Vec<u8>]) -> Vec<u8> {
        let mut buffers = vec![[0; 256]; frames.len()];
        let fill = |(buffer, frame): (&mut [u8; 256], &Vec<u8>)| {
            buffer[24..24 + frame.len()].copy_from_slice(frame);
        };
        buffers.iter_mut().zip(frames).for_each(fill);
        let mut packets: Vec<_> = buffers
            .iter_mut()
            .zip(frames)
            .map(|(buffer, frame)| Packet::new(buffer, 24, 24 + frame.len(), Origin::Wire))
            .collect();
        let mut verdicts = vec![Verdict::Reply; packets.len()];
        self.bed.pipeline.process(self.bed.now, &mut packets, &mut verdicts);
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Tx), "{verdicts:?}");
        packets.iter().map(|packet| packet.frame()[14 + 19]).collect()
    }

    /// Fills the table with flows that send a SYN and an ACK, until most new flows find no room.
    /// The flows of the previous flood have expired before that.
    fn fill(&mut self) {
        self.passes(11_000);
        let untracked = |bed: &Bed| bed.pipeline.flows().counters().untracked;
        for _ in 0..64 {
            // After a pause, the thread is not overloaded.
            self.passes(PAUSE_MILLIS);
            let wave: Vec<Vec<u8>> = (0..4096).map(|_| self.forged(Flood::Syn)).collect();
            let before = untracked(&self.bed);
            wave.chunks(BATCH).for_each(|frames| drop(self.forward(frames)));
            self.passes(MILLIS);
            let acks = wave.into_iter().map(|mut frame| {
                let flags = if frame[12] == 0x08 { 47 } else { 67 };
                frame[flags] = 0x10;
                frame
            });
            acks.collect::<Vec<_>>().chunks(BATCH).for_each(|frames| drop(self.forward(frames)));
            if untracked(&self.bed) - before > 4096 {
                return;
            }
        }
        panic!("the table did not fill up");
    }

    /// In each of two two-second periods, sends two packets of every established flow, mixed with
    /// flood packets. Returns the number of packets that went to another backend.
    fn suffer(&mut self, flood: Flood) -> usize {
        let mut moved = 0;
        self.passes(PAUSE_MILLIS);
        for _ in 0..2 {
            for first in (0..FLOWS).step_by(BATCH / 4) {
                let flows = first..first + BATCH as u32 / 4;
                let batch: Vec<Vec<u8>> = [flows.clone(), flows.clone()]
                    .into_iter()
                    .flatten()
                    .flat_map(|flow| [self.established(flow, Flood::Ack), self.forged(flood)])
                    .collect();
                let went = self.forward(&batch);
                let of_flows = went.into_iter().step_by(2).zip(flows.clone().chain(flows));
                moved += of_flows.filter(|(backend, flow)| *backend != self.backends[*flow as usize]).count();
                self.passes(2_000 / (u64::from(FLOWS) / (BATCH as u64 / 4)));
            }
        }
        moved
    }
}

// Promise: flood-protection
#[test]
fn flood_into_a_full_table_moves_no_established_flow() {
    let mut attacked = Attacked::new();
    let mut backends = 20;
    for flood in [Flood::Syn, Flood::Ack, Flood::Udp] {
        // The additional backend changes the Maglev table. Without tracking, some flows would move.
        backends += 1;
        let with_one_more = parts(gre_slots(backends), &vec![1; backends]);
        let mut by_maglev = Bed::with_flows(with_one_more.clone(), PLACES);
        by_maglev.pipeline = by_maglev.pipeline.without_fast_path();
        let elsewhere = (0..FLOWS).filter(|flow| {
            let frame = attacked.established(*flow, Flood::Ack);
            by_maglev.backend_of(&frame) != Some(attacked.backends[*flow as usize])
        });
        let elsewhere = elsewhere.count();
        assert!(elsewhere > FLOWS as usize / 40, "{flood:?}: Maglev would move {elsewhere} flows");
        attacked.fill();
        attacked.bed.live.publish(Snapshot::new(with_one_more).unwrap());
        let table = attacked.bed.pipeline.flows();
        assert!(table.len() * 100 > table.capacity() * 99, "{flood:?}: {} entries are in use", table.len());
        let untracked = table.counters().untracked;
        assert_eq!(attacked.suffer(flood), 0, "{flood:?}");
        let untracked = attacked.bed.pipeline.flows().counters().untracked - untracked;
        assert!(untracked > u64::from(FLOWS) / 2, "{flood:?}: {untracked} packets are untracked");
        println!("{flood:?}: 0 of {FLOWS} flows moved, {elsewhere} without tracking, {untracked} untracked");
    }
    assert_eq!(attacked.bed.counters.reselected.read(), 0);
    assert!(attacked.bed.counters.fast_path.read() > 0, "packets use the fast path");
}
