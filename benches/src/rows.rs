//! The rows of the benchmark `pipeline`. A row defines the snapshot, the traffic and the size of
//! the connection table.
//!
//! A row sets up a pipeline with established flows and generates the frames of its traffic.
//! Criterion measures the time per packet, and the program `rows` is used to count instructions.
//! The module `cases` defines the snapshots, and `traffic` the packets.

use std::sync::Arc;
use std::time::Duration;

use forwarder::{HashPolicy, Live, Now, Pipeline, ThreadCounters};
use packet::Encapsulation;

use crate::cases::{Headers, With, tunnelled};
use crate::traffic::{ACK, Flaw, Flood, Next, SYN, Traffic};
use crate::{Batch, DEFAULT_FLOWS, copies, pipeline_of, previous};

/// A benchmark row: its name, its traffic, and its differences from the default setup.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name of the row.
    pub name: &'static str,
    /// The packets of the row.
    pub traffic: Traffic,
    shape: Shape,
    table: usize,
    with: With,
    /// `true` if other flows occupy all entries that the established flows leave free.
    is_full: bool,
    /// The number of connection tables that were taken over from a previous process. Packets of
    /// unknown flows are also looked up in these tables.
    previous: usize,
}

/// The frame format: address family, VLAN tags and tunnel header.
#[derive(Clone, Copy, Debug)]
enum Shape {
    V4,
    V6,
    TwoTags,
    Tunnelled,
    Request,
}

impl Row {
    const fn of(name: &'static str, traffic: Traffic) -> Self {
        let (shape, table, with) = (Shape::V4, DEFAULT_FLOWS, With::Nothing);
        Self { name, traffic, shape, table, with, is_full: false, previous: 0 }
    }

    const fn v6(name: &'static str, traffic: Traffic) -> Self {
        Self { shape: Shape::V6, with: With::V6, ..Self::of(name, traffic) }
    }

    /// Creates a row with a thousand flows and a snapshot that differs from the default.
    const fn with(name: &'static str, with: With) -> Self {
        Self { with, ..Self::of(name, Traffic::Flows(1_000)) }
    }

    const fn carried(name: &'static str, headers: Headers) -> Self {
        Self::with(name, With::Encapsulation(headers))
    }

    /// Creates a row with a full connection table. Half of the entries belong to established flows.
    const fn full(name: &'static str, traffic: Traffic) -> Self {
        Self { with: With::Udp, is_full: true, ..Self::of(name, traffic) }
    }

    /// Creates a row with memcached reads that are answered from the cache. Values are `bytes`
    /// bytes long.
    const fn copied(name: &'static str, bytes: usize) -> Self {
        let of = Self::of(name, Traffic::Hits(10_000));
        Self { shape: Shape::Request, with: With::Copied(bytes), ..of }
    }

    const fn table(self, flows: usize) -> Self {
        Self { table: flows, ..self }
    }

    /// All rows. A row with 16 M flows needs 400 MB of memory and half a minute of preparation.
    pub const ALL: [Self; 46] = [
        Self::of("one flow", Traffic::Flows(1)),
        Self::of("1000 flows", Traffic::Flows(1_000)),
        Self::of("1 M flows", Traffic::Flows(1_000_000)).table(1_500_000),
        Self::of("1 M flows, full table", Traffic::Flows(1_000_000)),
        Self::of("16 M flows", Traffic::Flows(16_000_000)).table(24_000_000),
        Self { with: With::Udp, ..Self::of("1000 flows, UDP", Traffic::Datagrams(1_000)) },
        Self::of("syn flood", Traffic::SynFlood),
        Self { previous: 1, ..Self::of("unknown flows, 1 previous table", Traffic::SynFlood) },
        Self { previous: 128, ..Self::of("unknown flows, 128 previous tables", Traffic::SynFlood) },
        Self::v6("IPv6, one flow", Traffic::Flows(1)),
        Self::v6("IPv6, 1000 flows", Traffic::Flows(1_000)),
        Self::v6("IPv6, 1 M flows", Traffic::Flows(1_000_000)).table(1_500_000),
        Self::with("1000 flows, deny 10000", With::DenyList(10_000)),
        Self::with("1000 flows, deny 100000", With::DenyList(100_000)),
        Self::with("1000 flows, limits", With::Limits),
        Self { with: With::Limits, ..Self::of("syn flood, limits", Traffic::SynFlood) },
        Self::with("1000 flows, tracing", With::Tracing),
        Self { shape: Shape::TwoTags, ..Self::of("1000 flows, two tags", Traffic::Flows(1_000)) },
        Self::carried("1000 flows, IPIP", Headers::of(Encapsulation::Ipip)),
        Self::carried("1000 flows, L2", Headers::of(Encapsulation::L2)),
        Self::carried("1000 flows, GUE", Headers::of(GUE)),
        Self::carried("1000 flows, GUE with a checksum", Headers::of(GUE_WITH_CHECKSUM)),
        Self::carried("1000 flows, outer IPv6", Headers { outer_v6: true, ..GRE }),
        Self::carried("1000 flows, DF off", Headers { dont_fragment: false, ..GRE }),
        Self::carried("1000 flows, source prefix", Headers { source_prefix: true, ..GRE }),
        Self::with("1000 flows, reflect", With::Reflect),
        Self::with("1000 flows, prefix VIP", With::Prefixes),
        Self::with("1000 flows, hashed by addresses", With::Policy(HashPolicy::Addresses)),
        Self::with("1000 flows, hashed by source", With::Policy(HashPolicy::Source)),
        Self { shape: Shape::Tunnelled, ..Self::with("1000 flows, tunnelled arrivals", With::Tunnelled) },
        Self {
            shape: Shape::Request,
            with: With::Keyed,
            ..Self::of("keyed get, 1 M keys", Traffic::Gets(1_000_000))
        },
        Self::copied("hit, 64 bytes, 10000 keys", 64),
        Self::copied("hit, 1300 bytes, 10000 keys", 1_300),
        Self::full("established", Traffic::Flows(ESTABLISHED)),
        Self::full("syn flood alone", Traffic::After(ESTABLISHED, Flood::Syn)),
        Self::full("ack flood alone", Traffic::After(ESTABLISHED, Flood::Ack)),
        Self::full("udp flood alone", Traffic::After(ESTABLISHED, Flood::Udp)),
        Self::full("established beside a syn flood", Traffic::Beside(ESTABLISHED, Flood::Syn, 1)),
        Self::full("established beside four times the syns", Traffic::Beside(ESTABLISHED, Flood::Syn, 4)),
        Self::full("established beside an ack flood", Traffic::Beside(ESTABLISHED, Flood::Ack, 1)),
        Self::full("established beside a udp flood", Traffic::Beside(ESTABLISHED, Flood::Udp, 1)),
        Self::of("truncated", Traffic::Dropped(Flaw::Truncated)),
        Self::of("wrong header length", Traffic::Dropped(Flaw::HeaderLength)),
        Self::of("wrong data offset", Traffic::Dropped(Flaw::DataOffset)),
        Self::of("wrong version", Traffic::Dropped(Flaw::Version)),
        Self::of("unserved port", Traffic::Dropped(Flaw::Port)),
    ];

    /// Returns the row with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|row| row.name == name)
    }

    /// Establishes the flows of the row. Returns the pipeline, its counters, and the time after the
    /// last packet.
    ///
    /// # Panics
    /// Panics if there is not enough memory.
    #[must_use]
    pub fn establish(&self, batch: &mut Batch) -> (Pipeline, Arc<ThreadCounters>, Now) {
        let live = Live::new(self.with.snapshot());
        let (mut pipeline, counters) = pipeline_of(&live, None, self.table);
        if let (With::Copied(bytes), Traffic::Hits(keys)) = (self.with, self.traffic) {
            pipeline = pipeline.with_cache(copies::cache(&live.current(), keys, bytes, START));
        }
        if self.previous > 0 {
            pipeline.use_previous_tables(previous::tables(self.previous), Now::from_nanos(u64::MAX));
        }
        let (flows, is_udp) = (self.traffic.flows(), matches!(self.traffic, Traffic::Datagrams(_)));
        let mut now = START;
        // Three packets per flow: the SYN inserts the flow, the first ACK ends its probation, and
        // the second one marks it as in use. The three packets are sent more than one tick apart.
        for flags in [SYN, ACK, ACK] {
            let mut flow = 0;
            while flow < flows {
                self.run(batch, &mut pipeline, now, || {
                    flow += 1;
                    let flow = (flow - 1) % flows;
                    if is_udp { Next::Udp(flow) } else { Next::Tcp(flow, flags) }
                });
            }
            now = later(now);
        }
        if self.is_full {
            now = self.fill(batch, &mut pipeline, now);
        }
        (batch.verdict, batch.other) = (self.traffic.verdict(), self.traffic.other_verdict());
        (pipeline, counters, now)
    }

    /// Fills the remaining table entries with flows that send no further packets.
    ///
    /// # Panics
    /// Panics if entries remain free.
    fn fill(&self, batch: &mut Batch, pipeline: &mut Pipeline, mut now: Now) -> Now {
        for wave in 0..WAVES {
            for flags in [SYN, ACK] {
                let mut flow = 0x4000_0000 + wave * WAVE;
                let end = flow + WAVE;
                while flow < end {
                    self.run(batch, pipeline, now, || {
                        flow += 1;
                        Next::Tcp(flow, flags)
                    });
                }
                now = later(now);
            }
        }
        let table = pipeline.flows();
        assert!(table.len() * 100 > table.capacity() * 99, "only {} entries are in use", table.len());
        now
    }

    /// Processes one batch of the row's traffic and returns the duration of `process`. `state` is
    /// the state of the traffic generator.
    pub fn turn(&self, batch: &mut Batch, pipeline: &mut Pipeline, now: Now, state: &mut u32) -> Duration {
        let traffic = self.traffic;
        // Cached values expire after one second, so rows that read them use a fixed time.
        let now = if matches!(traffic, Traffic::Hits(_)) { START } else { now };
        self.run(batch, pipeline, now, || traffic.next(state))
    }

    fn run(
        &self,
        batch: &mut Batch,
        pipeline: &mut Pipeline,
        now: Now,
        mut next: impl FnMut() -> Next,
    ) -> Duration {
        match self.shape {
            Shape::V4 => batch.run(pipeline, now, || next().v4()),
            Shape::V6 => batch.run(pipeline, now, || next().v6()),
            Shape::TwoTags => batch.run(pipeline, now, || tagged(next().v4())),
            Shape::Tunnelled => batch.run(pipeline, now, || tunnelled(next().v4())),
            Shape::Request => batch.run(pipeline, now, || next().request()),
        }
    }
}

/// Returns the time two connection table ticks later.
fn later(now: Now) -> Now {
    Now::from_nanos(now.nanos() + 500_000_000)
}

/// Inserts two VLAN tags, an outer service tag and an inner customer tag.
fn tagged(frame: [u8; 60]) -> [u8; 68] {
    let mut tagged = [0; 68];
    tagged[..12].copy_from_slice(&frame[..12]);
    tagged[12..20].copy_from_slice(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8]);
    tagged[20..].copy_from_slice(&frame[12..]);
    tagged
}

const START: Now = Now::from_nanos(1_000_000_000);
/// The number of established flows. These flows occupy half of the default connection table, so
/// that every flow gets an entry.
const ESTABLISHED: u32 = 500_000;
/// The number of flows that [`Row::fill`] inserts per iteration. This number is a multiple of the
/// batch size.
const WAVE: u32 = 262_144;
/// The number of [`Row::fill`] iterations. Together, the iterations fill the default connection
/// table before its first entries expire after ten seconds.
const WAVES: u32 = 4;
const GRE: Headers = Headers::of(Encapsulation::Gre);
const GUE: Encapsulation = Encapsulation::Gue { udp_checksum: false };
const GUE_WITH_CHECKSUM: Encapsulation = Encapsulation::Gue { udp_checksum: true };
