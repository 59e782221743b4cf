//! `[io]`: how packets get in and out. A change here needs a restart.
//!
//! In: the section. Out: [`Io`]; without a section its defaults.
//! Not here: sockets and threads (`datapath`), what a NIC can do (the binary asks it at start).

use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::time::Duration;

use config_text::{Node, Section};
use forwarder::NoSocket;
use serde::{Serialize, Serializer};

use super::canonical;
use super::ports::{read_range, show};

/// How packets get in and out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Io {
    /// Default [`IoMode::AfXdp`].
    pub mode: IoMode,
    /// Default [`Steering::Hardware`].
    pub steering: Steering,
    /// Packet threads that software steering gives packets to, 1 to 64; `None` with [`Steering::Hardware`].
    pub threads: Option<NonZeroU16>,
    /// Default [`NextHop::Resolve`].
    pub next_hop: NextHop,
    /// Flows that one packet thread can remember, 16 bytes each: 1,024 to 268,435,456. Default 1,000,000.
    pub flows_per_thread: usize,
    /// What a packet thread does when nothing arrives.
    pub idle: Idle,
    /// Packets, 1 to 1,024, that the NIC's driver receives at a time in the packet threads' own system calls; `None`, the default: in
    /// interrupts. Not with [`IoMode::AfPacket`].
    pub busy_poll: Option<NonZeroU16>,
    /// How many queues of each interface get a socket, counted from 0: 1 to 256. Default: all of them. With
    /// [`IoMode::AfPacket`]: how many packet threads there are; default as many as the interface with most queues has.
    pub queues: Option<u32>,
    /// UMEM frames of each queue: a power of two from 512 to 65,536. Default 4,096.
    pub frames_per_queue: u32,
    /// Bytes of a UMEM frame, and so the longest packet: 2,048 or 4,096. Default 2,048.
    pub frame_size: u32,
    /// The most packets that are taken at once: 1 to 256. Default 64.
    pub batch: usize,
    /// Default [`NoSocket::Pass`].
    #[serde(serialize_with = "canonical_no_socket")]
    pub no_socket: NoSocket,
    /// VIP addresses that the XDP program's filter has room for: 1 to 1,048,576. Default 4,096.
    pub max_vips: u32,
    /// Source prefixes whose rates a packet thread knows at once, 16 bytes each: 1,024 to 16,777,216. Default 65,536.
    pub limit_sources: usize,
    /// The tables of fragmented datagrams.
    pub fragments: Fragments,
    /// How much ICMP a packet thread handles.
    pub icmp: Icmp,
    /// UDP ports that packet threads ask backends of keyed pools from, in equal shares: 1 to 4,096 ports from 1,024 on. Default 61000
    /// to 61255.
    #[serde(serialize_with = "canonical_ports")]
    pub own_ports: RangeInclusive<u16>,
}

/// How much ICMP one packet thread handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Icmp {
    /// Echo replies and time exceeded a second, and as many packet-too-big errors: 0 to 1,000,000. Default 1,000.
    pub replies_per_second: u32,
    /// Those to one source: 0 to 1,000,000. Default 100.
    pub replies_to_source: u32,
    /// Errors that are sent on to backends or taken in, a second: 0 to 1,000,000. Default 10,000.
    pub errors_per_second: u32,
    /// Those from one source: 0 to 1,000,000. Default 1,000.
    pub errors_of_source: u32,
}

/// One packet thread's table of fragmented datagrams (paper §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fragments {
    /// Datagrams whose way is known: 64 to 16,777,216. Default 16,384.
    pub datagrams: usize,
    buffered: Option<usize>,
    per_datagram: usize,
    per_source: usize,
    /// From the first sight of a datagram to its end: 100 ms to 60 s. Default 2 s.
    #[serde(serialize_with = "canonical::span")]
    pub lifetime: Duration,
}

/// By which interface to the kernel frames are moved.
// `datapath` has a type of its own: neither depends on the other, and `forwarder`, below both, knows no sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoMode {
    /// XDP program and AF_XDP sockets.
    AfXdp,
    /// Packet sockets, and an ingress program that takes what they get from the kernel.
    AfPacket,
}

/// Who spreads packets over packet threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// The NIC's RSS: one packet thread a queue.
    Hardware,
    /// An I/O thread a queue, by each packet's flow, over [`Io::threads`].
    Software,
}

/// Where the outer destination MAC address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NextHop {
    /// From the kernel's routes and neighbours.
    Resolve,
    /// Back to the gateway that the packet came from.
    Reflect,
}

impl Steering {
    /// With the number of packet threads that it needs. The kernel spreads what packet sockets get.
    fn read(section: &mut Section<'_>, mode: IoMode) -> (Self, Option<NonZeroU16>) {
        let node = section.optional("steering");
        let words = [("hardware", Self::Hardware), ("software", Self::Software)];
        let steering = node.as_ref().and_then(|node| node.choice(&words)).unwrap_or(Io::default().steering);
        if steering == Self::Hardware {
            let nothing = "nothing, as each queue has its packet thread; or steering = \"software\" as well";
            section.optional("threads").and_then(|node| node.wrong::<()>(nothing));
            return (steering, None);
        }
        if let (IoMode::AfPacket, Some(node)) = (mode, &node) {
            node.refuse(
                "\"hardware\": with mode = \"af-packet\" the kernel spreads flows over as many packet threads as \
                 io.queues says",
            );
        }
        let threads = section.required("threads", THREADS);
        let threads = threads.and_then(|node| node.number(1..=MOST_THREADS)).and_then(NonZeroU16::new);
        (steering, threads)
    }
}

fn canonical_no_socket<S: Serializer>(value: &NoSocket, to: S) -> Result<S::Ok, S::Error> {
    canonical::word(&NO_SOCKET, value, to)
}

/// What a packet thread does when nothing arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Idle {
    /// How long a thread spins before what `then` says: up to 1 s. Default 50 us.
    #[serde(serialize_with = "canonical::span")]
    pub spin: Duration,
    /// What follows the spinning. Default [`IdleThen::Sleep`].
    pub then: IdleThen,
}

/// What follows the spinning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleThen {
    /// Wait in `poll` until a packet comes.
    Sleep,
    /// Go on spinning: a core is used up, and no packet waits for a wake-up.
    Spin,
}

impl Idle {
    fn read(node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let default = Io::default().idle;
        let spin = section.or("spin", default.spin, |node| node.duration(Duration::ZERO..=MAX_SPIN));
        let then = section.or("then", default.then, |node| {
            node.choice(&[("sleep", IdleThen::Sleep), ("spin", IdleThen::Spin)])
        });
        section.finish();
        Some(Self { spin, then })
    }
}

impl Fragments {
    /// Pieces that may wait for their first one: 8 to 65,536, at most a quarter of `frames` in a queue's pool. Default that
    /// quarter, at most 1,024.
    pub fn buffered(&self, frames: u32) -> usize {
        self.buffered.unwrap_or_else(|| spare(frames).min(1_024))
    }

    /// Pieces of one datagram that may wait: 1 to 256, at most `buffered`. Default 64.
    pub fn per_datagram(&self, frames: u32) -> usize {
        self.per_datagram.min(self.buffered(frames))
    }

    /// Pieces of one source that may wait: 1 to 65,536, at most `buffered`. Default 512.
    pub fn per_source(&self, frames: u32) -> usize {
        self.per_source.min(self.buffered(frames))
    }

    fn read(node: &Node<'_>, frames: u32) -> Option<Self> {
        let mut section = node.section()?;
        let default = Io::default().fragments;
        let datagrams = section.or("datagrams", default.datagrams, |node| node.number(64..=16_777_216));
        let buffered = section.optional("buffered").and_then(|node| node.number(8..=spare(frames)));
        let per_datagram = section.or("per_datagram", default.per_datagram, |node| node.number(1..=256));
        let per_source = section.or("per_source", default.per_source, |node| node.number(1..=65_536));
        let lifetime = section.or("lifetime", default.lifetime, |node| node.duration(LIFETIME));
        section.finish();
        Some(Self { datagrams, buffered, per_datagram, per_source, lifetime })
    }
}

impl Icmp {
    fn read(node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let default = Io::default().icmp;
        let mut rate = |key, default| section.or(key, default, |node| node.number(0..=1_000_000));
        let icmp = Self {
            replies_per_second: rate("replies_per_second", default.replies_per_second),
            replies_to_source: rate("replies_to_source", default.replies_to_source),
            errors_per_second: rate("errors_per_second", default.errors_per_second),
            errors_of_source: rate("errors_of_source", default.errors_of_source),
        };
        section.finish();
        Some(icmp)
    }
}

/// What a pool of `frames` can spare: held frames receive nothing.
fn spare(frames: u32) -> usize {
    frames as usize / 4
}

impl Io {
    pub(super) fn read(mut section: Section<'_>) -> Self {
        let default = Self::default();
        let frames_per_queue =
            section.or("frames_per_queue", default.frames_per_queue, |node| read_frames(&node));
        let mode = section.or("mode", default.mode, |node| {
            node.choice(&[("af-xdp", IoMode::AfXdp), ("af-packet", IoMode::AfPacket)])
        });
        let (steering, threads) = Steering::read(&mut section, mode);
        let io = Self {
            mode,
            steering,
            threads,
            next_hop: section.or("next_hop", default.next_hop, |node| {
                node.choice(&[("resolve", NextHop::Resolve), ("reflect", NextHop::Reflect)])
            }),
            flows_per_thread: section
                .or("flows_per_thread", default.flows_per_thread, |node| node.number(1_024..=268_435_456)),
            idle: section.or("idle", default.idle, |node| Idle::read(&node)),
            busy_poll: section.optional("busy_poll").and_then(|node| read_busy_poll(&node, mode)),
            queues: section.optional("queues").and_then(|node| node.number(1..=256)),
            frames_per_queue,
            frame_size: section.or("frame_size", default.frame_size, |node| read_frame_size(&node)),
            batch: section.or("batch", default.batch, |node| node.number(1..=256)),
            no_socket: section.or("no_socket", default.no_socket, |node| node.choice(&NO_SOCKET)),
            max_vips: section.or("max_vips", default.max_vips, |node| node.number(1..=1_048_576)),
            limit_sources: section
                .or("limit_sources", default.limit_sources, |node| node.number(1_024..=16_777_216)),
            fragments: section
                .or("fragments", default.fragments, |node| Fragments::read(&node, frames_per_queue)),
            icmp: section.or("icmp", default.icmp, |node| Icmp::read(&node)),
            own_ports: section.or("own_ports", default.own_ports, |node| read_own_ports(&node)),
        };
        section.finish();
        io
    }
}

impl Default for Io {
    fn default() -> Self {
        Self {
            mode: IoMode::AfXdp,
            steering: Steering::Hardware,
            threads: None,
            next_hop: NextHop::Resolve,
            flows_per_thread: 1_000_000,
            idle: Idle { spin: Duration::from_micros(50), then: IdleThen::Sleep },
            busy_poll: None,
            queues: None,
            frames_per_queue: 4_096,
            frame_size: 2_048,
            batch: 64,
            no_socket: NoSocket::Pass,
            max_vips: 4_096,
            limit_sources: 65_536,
            fragments: Fragments {
                datagrams: 16_384,
                buffered: None,
                per_datagram: 64,
                per_source: 512,
                lifetime: Duration::from_secs(2),
            },
            icmp: Icmp {
                replies_per_second: 1_000,
                replies_to_source: 100,
                errors_per_second: 10_000,
                errors_of_source: 1_000,
            },
            own_ports: 61_000..=61_255,
        }
    }
}

/// Above 1,023, as others need no right to take them from us; GUE's is for tunnels.
fn read_own_ports(node: &Node<'_>) -> Option<RangeInclusive<u16>> {
    if node.as_str().is_none() {
        return node.wrong(OWN_PORTS);
    }
    let ports = read_range(node, &(1_024..=u16::MAX), OWN_PORTS)?;
    let has_gue = ports.contains(&GUE_PORT);
    if has_gue || ports.len() > MOST_OWN_PORTS {
        return node.wrong(OWN_PORTS);
    }
    Some(ports)
}

fn canonical_ports<S: Serializer>(value: &RangeInclusive<u16>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&show(value))
}

/// Packet sockets are filled by the kernel's receive path, on whichever thread it runs.
fn read_busy_poll(node: &Node<'_>, mode: IoMode) -> Option<NonZeroU16> {
    match mode {
        IoMode::AfXdp => node.number(1..=1_024).and_then(NonZeroU16::new),
        IoMode::AfPacket => node.wrong("nothing with mode = \"af-packet\""),
    }
}

fn read_frames(node: &Node<'_>) -> Option<u32> {
    let frames: u32 = node.number(512..=65_536)?;
    if frames.is_power_of_two() { Some(frames) } else { node.wrong("a power of two from 512 to 65536") }
}

/// The kernel takes powers of two from 2,048 to a page.
fn read_frame_size(node: &Node<'_>) -> Option<u32> {
    let bytes = node.as_integer().and_then(|bytes| u32::try_from(bytes).ok());
    bytes.filter(|bytes| [2_048, 4_096].contains(bytes)).or_else(|| node.wrong("2048 or 4096"))
}

const NO_SOCKET: [(&str, NoSocket); 2] = [("pass", NoSocket::Pass), ("drop", NoSocket::Drop)];
/// Each pair of threads has its rings.
const MOST_THREADS: u16 = 64;
const THREADS: &str = "how many packet threads software steering gives packets to: an integer from 1 to 64";
const OWN_PORTS: &str = "\"FIRST-LAST\": 1 to 4,096 ports from 1024 to 65535, without 6080";
const MOST_OWN_PORTS: usize = 4_096;
const GUE_PORT: u16 = 6_080;
const MAX_SPIN: Duration = Duration::from_secs(1);
const LIFETIME: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
