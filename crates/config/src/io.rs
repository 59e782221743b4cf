//! `[io]`: how the process receives and sends packets. Changes need a restart.
//!
//! The crate `datapath` implements sockets and threads. At startup the process checks whether the
//! NIC supports the settings.

use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::time::Duration;

use config_text::{Expected, Node, Section};
use forwarder::NoSocket;
use serde::{Serialize, Serializer};

use super::canonical;
use super::ports::{read_range, show};

/// The packet I/O settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Io {
    /// The kernel interface for packets. Default: [`IoMode::AfXdp`].
    pub mode: IoMode,
    /// The method by which packets are distributed to packet threads. Default:
    /// [`Steering::Hardware`].
    pub steering: Steering,
    /// The number of packet threads for software steering: 1 to 64. `None` for
    /// [`Steering::Hardware`].
    pub threads: Option<NonZeroU16>,
    /// The method by which the destination MAC address of frames is determined. Default:
    /// [`NextHop::Resolve`].
    pub next_hop: NextHop,
    /// The number of flows in the connection table of one packet thread: 1,024 to 268,435,456. Each
    /// flow takes 16 bytes. Default: 1,000,000.
    pub flows_per_thread: usize,
    /// The behavior of a packet thread while no packets arrive.
    pub idle: Idle,
    /// The number of packets that the NIC driver receives in one busy-polling system call of a
    /// packet thread: 1 to 1,024. If `None` (the default), the driver receives packets in
    /// interrupts. Not available with [`IoMode::AfPacket`].
    pub busy_poll: Option<NonZeroU16>,
    /// The number of queues per interface that get a socket, starting at queue 0: 1 to 256.
    /// Default: all queues. With [`IoMode::AfPacket`] this is the number of packet threads, and the
    /// default is the queue count of the interface with the most queues.
    pub queues: Option<u32>,
    /// The number of UMEM frames for each queue: a power of two from 512 to 65,536. Default: 4,096.
    pub frames_per_queue: u32,
    /// The size of a UMEM frame in bytes, which limits the packet length: 2,048 or 4,096. Default:
    /// 2,048.
    pub frame_size: u32,
    /// The maximum number of packets in a batch: 1 to 256. Default: 64.
    pub batch: usize,
    /// The action for packets that arrive on a queue without a socket. Default: [`NoSocket::Pass`].
    #[serde(serialize_with = "canonical_no_socket")]
    pub no_socket: NoSocket,
    /// The maximum number of VIP addresses in the XDP filter: 1 to 1,048,576. Default: 4,096.
    pub max_vips: u32,
    /// The number of source prefixes for which one packet thread tracks rates: 1,024 to 16,777,216.
    /// Each prefix takes 16 bytes. Default: 65,536.
    pub limit_sources: usize,
    /// The size and limits of each fragment table.
    pub fragments: Fragments,
    /// The ICMP rate limits of a packet thread.
    pub icmp: Icmp,
    /// The source port pool. Packet threads send upstream requests to the backends of keyed pools
    /// from these UDP ports. Each thread gets an equal share. The pool has 1 to 4,096 ports, none
    /// below 1,024. Default: 61000 to 61255.
    #[serde(serialize_with = "canonical_ports")]
    pub source_ports: RangeInclusive<u16>,
}

/// The ICMP rate limits of one packet thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Icmp {
    /// The maximum number of echo replies and time-exceeded errors per second: 0 to 1,000,000.
    /// Packet-too-big errors have a separate limit of the same size. Default: 1,000.
    pub replies_per_second: u32,
    /// The maximum number of echo replies and time-exceeded errors per second to one source: 0 to
    /// 1,000,000. Default: 100.
    pub replies_per_source: u32,
    /// The maximum number of received ICMP errors per second that are forwarded to backends or
    /// processed: 0 to 1,000,000. Default: 10,000.
    pub errors_per_second: u32,
    /// The maximum number of ICMP errors per second that are accepted from one source: 0 to
    /// 1,000,000. Default: 1,000.
    pub errors_per_source: u32,
}

/// The limits of a packet thread's fragment table (Eisenbud et al., *Maglev*, NSDI 2016, §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fragments {
    /// The maximum number of fragmented datagrams in the table: 64 to 16,777,216. Default: 16,384.
    pub datagrams: usize,
    buffered: Option<usize>,
    per_datagram: usize,
    per_source: usize,
    /// The lifetime of an entry after the first fragment of its datagram has arrived: 100 ms to 60
    /// s. Default: 2 s.
    #[serde(serialize_with = "canonical::span")]
    pub lifetime: Duration,
}

/// The kernel interface through which frames are received and sent.
// `datapath` has its own type, because `datapath` does not depend on this crate. The type is not in
// `forwarder`, on which both crates depend, because `forwarder` does not use sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoMode {
    /// AF_XDP sockets, with an XDP program.
    AfXdp,
    /// Packet sockets, with an ingress program that prevents the kernel from processing the same
    /// packets.
    AfPacket,
}

/// The method by which packets are distributed to packet threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// Receive-side scaling (RSS) in the NIC. Each queue has one packet thread.
    Hardware,
    /// One I/O thread per queue, which hashes the flow of each packet and distributes packets to
    /// [`Io::threads`] packet threads.
    Software,
}

/// The method by which the destination MAC address of frames is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NextHop {
    /// The address is taken from the kernel's routes and neighbors.
    Resolve,
    /// The frame is sent back to the gateway from which it came.
    Reflect,
}

impl Steering {
    /// Reads the steering method and the number of packet threads. Software steering is not
    /// available with packet sockets, because the kernel already distributes their packets.
    fn read(section: &mut Section<'_>, mode: IoMode) -> (Self, Option<NonZeroU16>) {
        let node = section.optional("steering");
        let words = [("hardware", Self::Hardware), ("software", Self::Software)];
        let steering = node.as_ref().and_then(|node| node.choice(&words)).unwrap_or(Io::default().steering);
        if steering == Self::Hardware {
            section.optional("threads").inspect(|node| node.needs("steering = \"software\""));
            return (steering, None);
        }
        if let (IoMode::AfPacket, Some(node)) = (mode, &node) {
            let help =
                "the kernel distributes flows over io.queues packet threads; use steering = \"hardware\"";
            node.refuse(("steering = \"software\" cannot be combined with mode = \"af-packet\"", help));
        }
        let threads = section.required("threads", THREADS);
        let threads = threads.and_then(|node| node.number(1..=MOST_THREADS)).and_then(NonZeroU16::new);
        (steering, threads)
    }
}

fn canonical_no_socket<S: Serializer>(value: &NoSocket, to: S) -> Result<S::Ok, S::Error> {
    canonical::word(&NO_SOCKET, value, to)
}

/// The behavior of a packet thread while no packets arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Idle {
    /// The longest time for which a thread without packets polls before it performs the action
    /// `then`: up to 1 s. Default: 1 ms.
    #[serde(serialize_with = "canonical::span")]
    pub spin: Duration,
    /// The choice between low CPU use and low latency. Default: [`IdlePrefer::Balanced`].
    pub prefer: IdlePrefer,
    /// The action of the thread after that time. Default: [`IdleThen::Sleep`].
    pub then: IdleThen,
}

/// The choice between low CPU use and low latency, for threads that sleep.
///
/// A thread polls for as long as the polling time is expected to be worth the avoided wake-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdlePrefer {
    /// The thread polls for at most 20 us for each avoided wake-up, which is about the time that a
    /// wake-up takes.
    LowCpu,
    /// The thread polls for at most 250 us for each avoided wake-up.
    Balanced,
    /// The thread polls for at most 1 ms for each avoided wake-up.
    LowLatency,
}

impl IdlePrefer {
    /// Returns the polling time that is acceptable for each avoided wake-up.
    #[must_use]
    pub fn wake_up_price(self) -> Duration {
        Duration::from_micros(match self {
            Self::LowCpu => 20,
            Self::Balanced => 250,
            Self::LowLatency => 1_000,
        })
    }
}

/// The action of an idle thread after the polling time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleThen {
    /// The thread sleeps in `poll` until a packet arrives.
    Sleep,
    /// The thread continues to poll, which uses a whole core but avoids the wake-up delay.
    Spin,
}

impl Idle {
    fn read(node: &Node<'_>) -> Option<Self> {
        let mut section = node.section()?;
        let default = Io::default().idle;
        let spin = section.or("spin", default.spin, |node| node.duration(Duration::ZERO..=MAX_SPIN));
        let prefer = section.or("prefer", default.prefer, |node| {
            node.choice(&[
                ("low-cpu", IdlePrefer::LowCpu),
                ("balanced", IdlePrefer::Balanced),
                ("low-latency", IdlePrefer::LowLatency),
            ])
        });
        let then = section.or("then", default.then, |node| {
            node.choice(&[("sleep", IdleThen::Sleep), ("spin", IdleThen::Spin)])
        });
        section.finish();
        Some(Self { spin, prefer, then })
    }
}

impl Fragments {
    /// Returns the maximum number of fragments that wait for the first fragment of their datagram:
    /// 8 to 65,536, but at most a quarter of `frames`, which is the number of frames per queue. The
    /// default is a quarter of `frames`, but at most 1,024.
    pub fn buffered(&self, frames: u32) -> usize {
        self.buffered.unwrap_or_else(|| spare(frames).min(1_024))
    }

    /// Returns the maximum number of waiting fragments per datagram: 1 to 256, but at most
    /// [`buffered`](Self::buffered). Default: 64.
    pub fn per_datagram(&self, frames: u32) -> usize {
        self.per_datagram.min(self.buffered(frames))
    }

    /// Returns the maximum number of waiting fragments per source address: 1 to 65,536, but at most
    /// [`buffered`](Self::buffered). Default: 512.
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
            replies_per_source: rate("replies_per_source", default.replies_per_source),
            errors_per_second: rate("errors_per_second", default.errors_per_second),
            errors_per_source: rate("errors_per_source", default.errors_per_source),
        };
        section.finish();
        Some(icmp)
    }
}

/// Returns the number of frames that waiting fragments may occupy. An occupied frame cannot receive
/// packets.
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
            source_ports: section.or("source_ports", default.source_ports, |node| read_source_ports(&node)),
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
            idle: Idle {
                spin: Duration::from_millis(1),
                prefer: IdlePrefer::Balanced,
                then: IdleThen::Sleep,
            },
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
                replies_per_source: 100,
                errors_per_second: 10_000,
                errors_per_source: 1_000,
            },
            source_ports: 61_000..=61_255,
        }
    }
}

/// Ports below 1,024 are rejected, because they may belong to services of the machine. The GUE port
/// is rejected, because it is used by tunnels.
fn read_source_ports(node: &Node<'_>) -> Option<RangeInclusive<u16>> {
    if node.as_str().is_none() {
        return node.unexpected(SOURCE_PORTS);
    }
    let ports = read_range(node, &(1_024..=u16::MAX), SOURCE_PORTS)?;
    if ports.contains(&GUE_PORT) {
        let message = format!("\"source_ports\" contains port {GUE_PORT}, which GUE uses");
        return node.wrong((message, "choose another range"));
    }
    if ports.len() > MOST_SOURCE_PORTS {
        let message =
            format!("\"source_ports\" has {} ports, and the limit is {MOST_SOURCE_PORTS}", ports.len());
        return node.wrong(message);
    }
    Some(ports)
}

fn canonical_ports<S: Serializer>(value: &RangeInclusive<u16>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&show(value))
}

/// Busy polling is rejected for packet sockets, because the kernel can deliver a queue's packets to
/// the sockets of different threads.
fn read_busy_poll(node: &Node<'_>, mode: IoMode) -> Option<NonZeroU16> {
    match mode {
        IoMode::AfXdp => node.number(1..=1_024).and_then(NonZeroU16::new),
        IoMode::AfPacket => {
            node.needs("mode = \"af-xdp\"");
            None
        }
    }
}

fn read_frames(node: &Node<'_>) -> Option<u32> {
    let frames: u32 = node.number(512..=65_536)?;
    if frames.is_power_of_two() {
        return Some(frames);
    }
    let next = frames.next_power_of_two();
    node.wrong((
        format!("\"frames_per_queue\" must be a power of two, got {frames}"),
        format!("the next power of two is {next}"),
    ))
}

/// The kernel accepts only powers of two from 2,048 bytes to the page size.
fn read_frame_size(node: &Node<'_>) -> Option<u32> {
    let bytes = node.as_integer().and_then(|bytes| u32::try_from(bytes).ok());
    let good = bytes.filter(|bytes| [2_048, 4_096].contains(bytes));
    good.or_else(|| node.unexpected("2048 or 4096"))
}

const NO_SOCKET: [(&str, NoSocket); 2] = [("pass", NoSocket::Pass), ("drop", NoSocket::Drop)];
/// The maximum number of packet threads. Each pair of threads has separate rings, so memory use
/// grows with the square of this number.
const MOST_THREADS: u16 = 64;
const THREADS: Expected = Expected::new("the number of packet threads, from 1 to 64").example("4");
const SOURCE_PORTS: Expected =
    Expected::new("a range of ports from 1024 to 65535").example("\"61000-61255\"");
const MOST_SOURCE_PORTS: usize = 4_096;
const GUE_PORT: u16 = 6_080;
const MAX_SPIN: Duration = Duration::from_secs(1);
const LIFETIME: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
