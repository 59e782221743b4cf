//! `sluicegate trace`: by which machines a packet goes to which backend, as the machines report it.
//!
//! In: a packet's headers, the router to send it by, the configuration (its key, its receivers). Out: marked packets; a tree or
//! JSON of what was reported. Modules: `frame` (the packets), `link` (the way out), `view` (the tree).
//! Not here: marks (`trace-mark`), who sees them (`forwarder`), reports (`control_plane::trace_report`).
//! The packet is a real one: it reaches the backend and enters the connection tables on its way.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.4.

mod frame;
mod link;
mod view;

use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use clap::{Args, ValueEnum};
use compile::trace_key;
use config::{Config, parse_duration};
use control_plane::trace_report::{REPORT_BYTES, Report};
use forwarder::{Flow, MARK_BYTES, Mark, TraceKey};
use packet::protocol;

use self::frame::Probe;
use self::link::Link;
use self::view::{Seen, Trace};
use crate::config_check;
use crate::flow_path::socket;
use crate::run::unix_micros;
use admin_client::{show, usage, verdict};

/// The packet, and the way that it goes.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The packet's source, whether this machine has that address or not: `192.0.2.7:40000`, or `[2001:db8::7]:40000`.
    #[arg(value_name = "SRC:PORT", value_parser = socket)]
    source: SocketAddr,
    /// The VIP.
    #[arg(value_name = "VIP:PORT", value_parser = socket)]
    destination: SocketAddr,
    /// What the packet is.
    #[arg(value_name = "PROTO")]
    protocol: Protocol,
    /// The router that the packets are given to, by its address on a link of this machine.
    #[arg(long, value_name = "ROUTER")]
    via: IpAddr,
    /// The cluster's configuration file: the key of marks and reports, and the receivers.
    #[arg(long, value_name = "FILE", default_value = crate::USUAL_FILE)]
    config: PathBuf,
    /// Where reports are sent and awaited; one of the receivers of `[trace]`. Default: the address that this machine speaks to
    /// the router from, and any free port.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// How many packets, the same each time: the first of a new flow is for Maglev, the others for the flow table.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    count: u32,
    /// From one packet to the next.
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration)]
    interval: Duration,
    /// How long reports are awaited after the last packet.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    timeout: Duration,
    /// The flags of a TCP packet. A SYN leaves a half-open connection on the backend; to any other it answers RST, when it
    /// knows no such connection.
    #[arg(long, value_name = "FLAGS", default_value = "ack")]
    flags: Flags,
    /// Send each packet in two pieces, each marked, to follow the way of fragments.
    #[arg(long)]
    fragments: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Flags {
    None,
    Ack,
    Syn,
}

impl Protocol {
    fn number(self) -> u8 {
        match self {
            Self::Tcp => protocol::TCP,
            Self::Udp => protocol::UDP,
        }
    }
}

impl Flags {
    fn bits(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Ack => protocol::TCP_ACK,
            Self::Syn => protocol::TCP_SYN,
        }
    }
}

/// Sends, waits, prints. 1 when a packet was not reported by any machine, or was dropped by one.
pub(crate) fn trace(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = config_check::load(&arguments.config)?;
    let reports = Reports::open(arguments, &config)?;
    let link = Link::open(link::resolve(arguments.via)?)?;
    let mut trace = Trace::new(arguments, &link, reports.receiver, random());
    for number in 1..=arguments.count {
        trace.probes.push(Seen { probe: number, sent_unix_micros: now_micros(), reports: Vec::new() });
        for packet in probe(arguments, &reports, &trace, number).packets(arguments.fragments)? {
            link.send(&packet)?;
        }
        let last = number == arguments.count;
        let patience = if last { arguments.timeout } else { arguments.interval };
        reports.listen(Instant::now() + patience, last, &mut trace)?;
    }
    show(&trace, arguments.json, Trace::tree)?;
    Ok(verdict(trace.is_well()))
}

fn probe(arguments: &Arguments, reports: &Reports, trace: &Trace, number: u32) -> Probe {
    let (source, destination) = (arguments.source, arguments.destination);
    let unix_seconds = now_micros() / 1_000_000;
    let mark = Mark { receiver: reports.receiver, unix_seconds, trace: trace.id, probe: number };
    let sign = |ports: bool| {
        let end = |socket: SocketAddr| SocketAddr::new(socket.ip(), if ports { socket.port() } else { 0 });
        let flow = Flow::new(end(source), end(destination), arguments.protocol.number());
        flow.map_or([0; MARK_BYTES], |flow| mark.sign(&reports.key, &flow))
    };
    Probe {
        source,
        destination,
        tcp_flags: matches!(arguments.protocol, Protocol::Tcp).then(|| arguments.flags.bits()),
        id: u32::try_from(random() & 0xffff_ffff).unwrap_or(number),
        mark: sign(true),
        later_mark: sign(false),
    }
}

/// Where reports come in.
struct Reports {
    socket: UdpSocket,
    receiver: SocketAddr,
    key: TraceKey,
}

impl Reports {
    fn open(arguments: &Arguments, config: &Config) -> anyhow::Result<Self> {
        let Arguments { source, destination, via, listen, .. } = arguments;
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(usage(format!("{source} and {destination} are of different families")));
        }
        let Some(trace) = config.trace() else {
            return Err(usage(format!(
                "{}: no section [trace], so no machine reports marked packets: give it one with receivers",
                arguments.config.display()
            )));
        };
        let listen = match listen {
            Some(address) => *address,
            None => SocketAddr::new(own_address(*via)?, 0),
        };
        if listen.ip().is_unspecified() {
            return Err(usage(format!("--listen {listen}: an address that the machines can send to")));
        }
        let allowed = trace.receivers.iter().map(|prefix| (prefix.address(), prefix.length()));
        if !forwarder::PrefixSet::new(allowed).contains(listen.ip()) {
            let shown: Vec<String> = trace.receivers.iter().map(ToString::to_string).collect();
            let shown = shown.join(", ");
            return Err(usage(format!(
                "{} is no receiver of [trace] (those are {shown}): see --listen",
                listen.ip()
            )));
        }
        let socket = UdpSocket::bind(listen).with_context(|| format!("listening on {listen}"))?;
        let receiver = socket.local_addr()?;
        Ok(Self { socket, receiver, key: trace_key(config) })
    }

    /// Takes reports until `by`; of the `last` packet only until each was reported, and a little longer for what other machines
    /// have to say.
    fn listen(&self, by: Instant, last: bool, trace: &mut Trace) -> anyhow::Result<()> {
        let mut buffer = [0; REPORT_BYTES + 1];
        let mut until = by;
        loop {
            if last && trace.is_complete() {
                until = until.min(Instant::now() + SETTLE);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv_from(&mut buffer) {
                Ok((length, _)) => {
                    trace.take(Report::open(buffer.get(..length).unwrap_or_default(), &self.key))
                }
                Err(error) if is_silence(&error) => {}
                Err(error) => return Err(error).context("waiting for reports"),
            }
        }
    }
}

fn is_silence(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// The address that this machine speaks to `peer` from.
fn own_address(peer: IpAddr) -> anyhow::Result<IpAddr> {
    let socket = any_port(peer)?;
    socket.connect((peer, DISCARD)).with_context(|| format!("no way to {peer}"))?;
    Ok(socket.local_addr()?.ip())
}

/// A UDP socket of the family of `peer`.
fn any_port(peer: IpAddr) -> std::io::Result<UdpSocket> {
    let any: IpAddr = if peer.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    UdpSocket::bind((any, 0))
}

fn now_micros() -> u64 {
    unix_micros(SystemTime::now())
}

/// A number that cannot be guessed: the seed that the standard library takes from the kernel for its maps.
fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn duration(text: &str) -> Result<Duration, String> {
    let read = parse_duration(text).filter(|time| (Duration::from_millis(1)..=MOST).contains(time));
    read.ok_or_else(|| "wanted a duration from 1ms to 1m, such as 100ms or 2s".to_owned())
}

/// The discard port: what is sent there only makes the kernel look up the way.
const DISCARD: u16 = 9;
/// Two looks of a machine's control loop, in which it sends its reports.
const SETTLE: Duration = Duration::from_millis(600);
const MOST: Duration = Duration::from_secs(60);
const AFTER_HELP: &str = "Needs CAP_NET_RAW, and [trace] in the configuration of the machines. The packets are real ones: they reach \
                          the backend, which may answer the source, and their flow enters the connection tables. Times in the \
                          tree are by the machines' clocks, marks are refused when these differ by more than a minute. Exit \
                          codes: 0 every packet was reported and none dropped, 1 not so, 2 wrong usage.";
