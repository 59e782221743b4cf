//! The rows of the bench `pipeline`: which snapshot, which traffic, how large a connection table.
//!
//! In: a row's name. Out: a pipeline whose flows are established, and the frames of its traffic.
//! Not here: what is done with it: Criterion times it, `rows` counts instructions.

use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::sync::Arc;

use forwarder::{
    Guard, HashKey, Live, Now, Pipeline, PrefixSet, Snapshot, SourceLimit, ThreadCounters, Trace, TraceKey,
};

use crate::{Batch, DEFAULT_FLOWS, VIP6, exact_v6, frame, frame_v6, pipeline_of, snapshot};

/// Which flow comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Established flows, in an order without pattern.
    Flows(u32),
    /// Every packet opens a flow.
    SynFlood,
}

/// A row: its traffic, and what is not as by default.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// As the row is called.
    pub name: &'static str,
    /// What comes.
    pub traffic: Traffic,
    v6: bool,
    /// 802.1Q tags on each frame.
    tags: usize,
    table: usize,
    with: With,
}

#[derive(Clone, Copy, Debug)]
enum With {
    Nothing,
    DenyList(u32),
    Limits,
    Tracing,
}

impl Row {
    const fn of(name: &'static str, traffic: Traffic) -> Self {
        Self { name, traffic, v6: false, tags: 0, table: DEFAULT_FLOWS, with: With::Nothing }
    }

    const fn v6(name: &'static str, traffic: Traffic) -> Self {
        Self { v6: true, ..Self::of(name, traffic) }
    }

    const fn table(self, flows: usize) -> Self {
        Self { table: flows, ..self }
    }

    const fn with(self, with: With) -> Self {
        Self { with, ..self }
    }

    /// All rows. Those of 16 M flows take 400 MB and half a minute to establish.
    pub const ALL: [Self; 15] = [
        Self::of("one flow", Traffic::Flows(1)),
        Self::of("1000 flows", Traffic::Flows(1_000)),
        Self::of("1 M flows", Traffic::Flows(1_000_000)).table(1_500_000),
        Self::of("1 M flows, full table", Traffic::Flows(1_000_000)),
        Self::of("16 M flows", Traffic::Flows(16_000_000)).table(24_000_000),
        Self::of("syn flood", Traffic::SynFlood),
        Self::v6("IPv6, one flow", Traffic::Flows(1)),
        Self::v6("IPv6, 1000 flows", Traffic::Flows(1_000)),
        Self::v6("IPv6, 1 M flows", Traffic::Flows(1_000_000)).table(1_500_000),
        Self::of("1000 flows, deny 10000", Traffic::Flows(1_000)).with(With::DenyList(10_000)),
        Self::of("1000 flows, deny 100000", Traffic::Flows(1_000)).with(With::DenyList(100_000)),
        Self::of("1000 flows, limits", Traffic::Flows(1_000)).with(With::Limits),
        Self::of("syn flood, limits", Traffic::SynFlood).with(With::Limits),
        Self::of("1000 flows, tracing", Traffic::Flows(1_000)).with(With::Tracing),
        Self { tags: 2, ..Self::of("1000 flows, two tags", Traffic::Flows(1_000)) },
    ];

    /// The row of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|row| row.name == name)
    }

    /// A pipeline that knows its flows, and the time after that.
    ///
    /// # Panics
    /// Never, as long as there is the memory.
    #[must_use]
    pub fn establish(&self, batch: &mut Batch) -> (Pipeline, Arc<ThreadCounters>, Now) {
        let live = Live::new(self.snapshot());
        let (mut pipeline, counters) = pipeline_of(&live, None, self.table);
        let flows = match self.traffic {
            Traffic::Flows(flows) => flows,
            Traffic::SynFlood => 0,
        };
        let mut now = Now::from_nanos(1_000_000_000);
        // More than a tick apart: all flows are entered by a SYN, off probation, and in use.
        for flags in [SYN, ACK, ACK] {
            let mut flow = 0;
            while flow < flows {
                self.run(batch, &mut pipeline, now, || {
                    flow += 1;
                    ((flow - 1) % flows, flags)
                });
            }
            now = Now::from_nanos(now.nanos() + 500_000_000);
        }
        (pipeline, counters, now)
    }

    /// A batch of the row's traffic; how long `process` took. `state` is that of its generator.
    pub fn turn(
        &self,
        batch: &mut Batch,
        pipeline: &mut Pipeline,
        now: Now,
        state: &mut u32,
    ) -> std::time::Duration {
        let traffic = self.traffic;
        self.run(batch, pipeline, now, || traffic.next(state))
    }

    fn run(
        &self,
        batch: &mut Batch,
        pipeline: &mut Pipeline,
        now: Now,
        mut next: impl FnMut() -> (u32, u8),
    ) -> std::time::Duration {
        if self.v6 {
            return batch.run(pipeline, now, || {
                let (flow, flags) = next();
                frame_v6_of(flow, flags)
            });
        }
        match self.tags {
            0 => batch.run(pipeline, now, || {
                let (flow, flags) = next();
                frame(flow, flags)
            }),
            _ => batch.run(pipeline, now, || {
                let (flow, flags) = next();
                tagged(frame(flow, flags))
            }),
        }
    }

    fn snapshot(&self) -> Snapshot {
        let open = if self.v6 { exact_v6() } else { snapshot() };
        let guard = match self.with {
            With::Nothing => return open,
            With::Tracing => return open.with_trace(Some(trace())),
            With::DenyList(prefixes) => deny(prefixes),
            With::Limits => limits(),
        };
        let mut services = open.services().to_vec();
        services.iter_mut().for_each(|service| service.guard = Some(Arc::new(guard.clone())));
        open.with_services(services).expect("the same services")
    }
}

impl Traffic {
    /// A full-period generator over the flows: each flow comes once a period, scattered. The flow's number, and TCP's flags.
    pub fn next(self, state: &mut u32) -> (u32, u8) {
        *state = state.wrapping_add(0x9e37_79b1);
        match self {
            Self::Flows(flows) => {
                let scaled = (u64::from(*state) * u64::from(flows)) >> 32;
                (u32::try_from(scaled).unwrap_or(0), ACK)
            }
            Self::SynFlood => (*state & 0x00ff_ffff, SYN),
        }
    }
}

/// A frame of IPv6 to [`VIP6`] from flow number `flow`.
fn frame_v6_of(flow: u32, flags: u8) -> [u8; 74] {
    let mut frame = frame_v6(flow, &VIP6.octets());
    frame[56..58].copy_from_slice(&(if flow & 1 == 0 { 80u16 } else { 443 }).to_be_bytes());
    frame[67] = flags;
    frame
}

/// A service and a customer tag.
fn tagged(frame: [u8; 60]) -> [u8; 68] {
    let mut tagged = [0; 68];
    tagged[..12].copy_from_slice(&frame[..12]);
    tagged[12..20].copy_from_slice(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8]);
    tagged[20..].copy_from_slice(&frame[12..]);
    tagged
}

/// A deny list of as many prefixes, scattered over all of IPv4 but for the clients' block.
fn deny(prefixes: u32) -> Guard {
    let scattered = (0..prefixes).map(|n| Ipv4Addr::from_bits(n.wrapping_mul(0x9e37_79b1)));
    let others = scattered.filter(|address| address.octets()[0] != 198);
    Guard {
        deny: Some(Arc::new(PrefixSet::new(others.map(|address| (address.into(), 28))))),
        ..Guard::default()
    }
}

/// Limits that a flood at this speed does not reach: 64 packets in 10 us are 6,400,000 a second.
fn limits() -> Guard {
    let rate = NonZeroU32::new(10_000_000);
    let each = |new_flows_per_second| SourceLimit { new_flows_per_second, v4_prefix: 24, v6_prefix: 64 };
    Guard { new_flows_per_second: rate, per_source: rate.map(each), ..Guard::default() }
}

fn trace() -> Trace {
    Trace {
        key: TraceKey::derive(&HashKey::new([5; 16])),
        receivers: PrefixSet::new([(Ipv4Addr::new(198, 51, 100, 9).into(), 32)]),
        per_second: 100,
    }
}

const ACK: u8 = 0x10;
const SYN: u8 = 0x02;
