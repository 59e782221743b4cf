//! Implements `sluicegate trace`, which shows which machines and which backend a packet reaches.
//!
//! The subcommand sends marked packets to a router, collects the reports of the machines, and
//! prints them as a tree or as JSON. The submodule `frame` builds the packets, `link` sends them,
//! and `view` formats the result. The packets are real: they reach the backend, and machines on the
//! path create flows for them. The crate `forwarder` handles the marks, and
//! `control_plane::trace_report` defines the reports.
//!
//! References: Eisenbud et al., *Maglev*, NSDI 2016, §4.4.

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

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Source address and port of the packet, such as `192.0.2.7:40000` or `[2001:db8::7]:40000`;
    /// the address does not have to belong to this machine
    #[arg(value_name = "SRC:PORT", value_parser = socket)]
    source: SocketAddr,
    /// Address and port of the VIP
    #[arg(value_name = "VIP:PORT", value_parser = socket)]
    destination: SocketAddr,
    /// Protocol of the packet. An SCTP packet is an INIT, which leaves no state on the backend
    #[arg(value_name = "PROTO")]
    protocol: Protocol,
    /// Send the packets to this router, an IP address on a directly connected network
    #[arg(long, value_name = "ROUTER")]
    via: IpAddr,
    /// Read the trace key and the allowed receivers from this configuration file
    #[arg(long, value_name = "FILE", default_value = crate::USUAL_FILE)]
    config: PathBuf,
    /// Receive reports at this address, which must be a receiver in `[trace]` (default: the local
    /// address that the kernel uses to reach the router, with any free port)
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Send N identical packets, 1 to 100. The first packet of a new flow selects the backend with
    /// Maglev, and later packets find it in the connection table
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    count: u32,
    /// Wait this time between two packets, 1ms to 1m
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration)]
    interval: Duration,
    /// Wait this time for reports after the last packet is sent, 1ms to 1m
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    timeout: Duration,
    /// Set these TCP flags. A SYN leaves a half-open connection on the backend; other packets make
    /// the backend reply with RST if it does not know the connection
    #[arg(long, value_name = "FLAGS", default_value = "ack")]
    flags: Flags,
    /// Send each packet as two marked fragments
    #[arg(long)]
    fragments: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
    Sctp,
    UdpLite,
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
            Self::Sctp => protocol::SCTP,
            Self::UdpLite => protocol::UDP_LITE,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
            Self::UdpLite => "udp-lite",
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

/// Sends the packets, waits for reports and prints the result. The exit code is 1 if a packet was
/// not reported or was dropped.
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
        protocol: arguments.protocol,
        tcp_flags: arguments.flags.bits(),
        id: u32::try_from(random() & 0xffff_ffff).unwrap_or(number),
        mark: sign(true),
        later_mark: sign(false),
    }
}

/// The socket that receives reports.
struct Reports {
    socket: UdpSocket,
    receiver: SocketAddr,
    key: TraceKey,
}

impl Reports {
    fn open(arguments: &Arguments, config: &Config) -> anyhow::Result<Self> {
        let Arguments { source, destination, via, listen, .. } = arguments;
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(usage(format!("{source} and {destination} have different address families")));
        }
        let Some(trace) = config.trace() else {
            return Err(usage(format!(
                "{} has no [trace] section, so no machine reports marked packets; add the section with receivers",
                arguments.config.display()
            )));
        };
        let listen = match listen {
            Some(address) => *address,
            None => SocketAddr::new(own_address(*via)?, 0),
        };
        if listen.ip().is_unspecified() {
            return Err(usage(format!(
                "--listen {listen} is not an address to which machines can send reports"
            )));
        }
        let allowed = trace.receivers.iter().map(|prefix| (prefix.address(), prefix.length()));
        if !forwarder::PrefixSet::new(allowed).contains(listen.ip()) {
            let shown: Vec<String> = trace.receivers.iter().map(ToString::to_string).collect();
            let shown = shown.join(", ");
            return Err(usage(format!(
                "{} is not a receiver in [trace] (receivers: {shown}), use --listen to choose another address",
                listen.ip()
            )));
        }
        let socket = UdpSocket::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
        let receiver = socket.local_addr()?;
        Ok(Self { socket, receiver, key: trace_key(config) })
    }

    /// Receives reports until `by`. If `last` is `true`, all packets have been sent, and the
    /// function returns shortly after all expected reports have arrived.
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
                Err(error) => return Err(error).context("cannot receive reports"),
            }
        }
    }
}

fn is_silence(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// Returns the local address that the kernel uses to reach `peer`.
fn own_address(peer: IpAddr) -> anyhow::Result<IpAddr> {
    let socket = any_port(peer)?;
    socket.connect((peer, DISCARD)).with_context(|| format!("no route to {peer}"))?;
    Ok(socket.local_addr()?.ip())
}

/// Opens a UDP socket on any port, for the address family of `peer`.
fn any_port(peer: IpAddr) -> std::io::Result<UdpSocket> {
    let any: IpAddr = if peer.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    UdpSocket::bind((any, 0))
}

fn now_micros() -> u64 {
    unix_micros(SystemTime::now())
}

/// Returns an unpredictable number. The number is derived from the random seed that the standard
/// library uses for hash maps.
fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn duration(text: &str) -> Result<Duration, String> {
    let read = parse_duration(text).filter(|time| (Duration::from_millis(1)..=MOST).contains(time));
    read.ok_or_else(|| "expected a duration from 1ms to 1m, such as 100ms or 2s".to_owned())
}

/// The discard port. Connecting a UDP socket to this port sends no packet, and only makes the
/// kernel look up the route.
const DISCARD: u16 = 9;
/// The extra wait for reports. A machine sends reports once per iteration of its control loop, and
/// this time is long enough for two iterations.
const SETTLE: Duration = Duration::from_millis(600);
const MOST: Duration = Duration::from_secs(60);
const AFTER_HELP: &str = "This command needs CAP_NET_RAW, and a [trace] section in the configuration of the machines. The packets are \
                          real: they reach the backend, which may reply to the source, and create a flow in the connection \
                          tables. The times in the output come from the clocks of the machines. Machines ignore marks if the \
                          clocks differ by more than a minute. Exit codes: 0 if every packet was reported and none was \
                          dropped, 1 otherwise, 2 for wrong usage.";
