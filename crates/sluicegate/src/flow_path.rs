//! Implements `sluicegate where`, which prints the backend that a flow is sent to, and the reason
//! for the choice. The subcommand uses the same lookup function as the packet threads.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use admin::view::{Explained, Rejection, Step, Verdict, WhereBackend, WhereRow, WhereView};
use clap::Args;
use compile::compile_file;
use control_plane::{explained, explained_by_key};
use forwarder::{Flow, ServiceId, SlotState, Snapshot};
use packet::protocol;
use serde::Serialize;

use crate::{Source, USUAL_FILE, config_check};
use admin_client::{Client, Endpoint, Reach, Remote, ago, escape, or_dash, show, table, verdict, word};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Address and port of the client, such as `192.0.2.7:40000` or `[2001:db8::7]:40000`
    #[arg(value_name = "SRC:PORT", value_parser = socket)]
    source: SocketAddr,
    /// Address and port of the VIP
    #[arg(value_name = "DST:PORT", value_parser = socket)]
    destination: SocketAddr,
    /// Protocol of the flow: tcp, udp, sctp, udp-lite, icmp (for both address families; ports are
    /// ignored) or a number from 0 to 255
    #[arg(value_name = "PROTO", value_parser = protocol)]
    protocol: Wanted,
    /// Look up a request for this memcached key, for a service with a keyed pool; the source
    /// address is only compared with the client list of the pool
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    from: Source,
    /// Query all packet threads of the running load balancer, which also search their connection
    /// tables; implied by --url
    #[arg(long, conflicts_with = "machine")]
    live: bool,
    /// Connect to this admin socket (default: the socket in the configuration)
    #[arg(long, value_name = "PATH", requires = "live", conflicts_with = "config")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    remote: Remote,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The protocol argument. The protocol number of ICMP depends on the address family of the flow.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Number(u8),
    Icmp,
}

impl Arguments {
    fn protocol(&self) -> u8 {
        match self.protocol {
            Wanted::Number(number) => number,
            Wanted::Icmp if self.destination.is_ipv4() => protocol::ICMP,
            Wanted::Icmp => protocol::ICMPV6,
        }
    }
}

pub(crate) fn socket(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "expected an address with a port, such as 192.0.2.7:40000 or [2001:db8::7]:40000".to_owned()
    })
}

fn protocol(text: &str) -> Result<Wanted, String> {
    match text {
        "tcp" => Ok(Wanted::Number(protocol::TCP)),
        "udp" => Ok(Wanted::Number(protocol::UDP)),
        "sctp" => Ok(Wanted::Number(protocol::SCTP)),
        "udp-lite" => Ok(Wanted::Number(protocol::UDP_LITE)),
        "icmp" => Ok(Wanted::Icmp),
        number => number
            .parse()
            .map(Wanted::Number)
            .map_err(|_| "expected tcp, udp, sctp, udp-lite, icmp or a number from 0 to 255".to_owned()),
    }
}

/// Prints the backend of the flow. The exit code is 1 if packets of the flow are dropped or
/// rejected.
pub(crate) fn answer(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.live || arguments.remote.url.is_some() {
        return ask(arguments);
    }
    let config = config_check::load(&arguments.from.config)?;
    let snapshot = compile_file(&config, &arguments.from.machine_or_first(&config))?.snapshot;
    let (source, destination) = (arguments.source, arguments.destination);
    let flow = Flow::new(source, destination, arguments.protocol())
        .ok_or_else(|| anyhow::anyhow!("{source} and {destination} have different address families"))?;
    // An offline lookup has no connection table, so the flow is treated as new.
    let explanation = match &arguments.key {
        Some(key) => snapshot.explain_key(&flow, key.as_bytes()),
        None => snapshot.explain(&flow, None),
    };
    let explained = match &arguments.key {
        Some(key) => explained_by_key(&flow, key, &snapshot),
        None => explained(&explanation, &snapshot),
    };
    let elsewhere = elsewhere(&snapshot, &flow, explanation.service)?;
    let protocol = arguments.protocol();
    let answer = Answer { source, destination, protocol, explained: &explained, elsewhere };
    show(&answer, arguments.json, words)?;
    Ok(verdict(explained.is_served()))
}

/// The result of an offline lookup, which uses only the configuration and does not query a running
/// load balancer.
#[derive(Serialize)]
struct Answer<'a> {
    source: SocketAddr,
    destination: SocketAddr,
    protocol: u8,
    #[serde(flatten)]
    explained: &'a Explained,
    /// The other cluster that receives the flow if no local backend is serving, or `None` if the
    /// service has no such fallback.
    elsewhere: Option<WhereBackend>,
}

impl Answer<'_> {
    /// Returns `true` if an offline lookup already selects another cluster for the flow.
    fn is_elsewhere(&self) -> bool {
        self.explained.step == Some(Step::Remote)
    }
}

/// Finds the cluster that receives the flow if no local backend is serving. Repeats the lookup with
/// all backends of the service down, because the configuration does not contain health states.
fn elsewhere(
    snapshot: &Snapshot,
    flow: &Flow,
    service: Option<ServiceId>,
) -> anyhow::Result<Option<WhereBackend>> {
    let service = service.and_then(|id| snapshot.services().iter().find(|service| service.id == id));
    let Some(service) = service.filter(|service| service.remotes.is_some()) else { return Ok(None) };
    let mut states = snapshot.states().to_vec();
    for slot in &service.pool.slots {
        if let Some(state) = states.get_mut(slot.0 as usize) {
            *state = SlotState::Down;
        }
    }
    let without = snapshot.with_states(states)?;
    let explained = explained(&without.explain(flow, None), &without);
    Ok(explained.backend.filter(|_| explained.step == Some(Step::Remote)))
}

/// Queries the packet threads of the running load balancer about the flow.
fn ask(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    // The default configuration file is ignored here: only a file on the command line determines
    // the socket.
    let config = Some(arguments.from.config.clone()).filter(|config| *config != Path::new(USUAL_FILE));
    let endpoint = Endpoint { socket: arguments.socket.clone(), config, remote: arguments.remote.clone() };
    let client = Client::new(&Reach { endpoint, wait: None })?;
    let Arguments { source, destination, .. } = arguments;
    let protocol = arguments.protocol();
    let key = arguments.key.as_ref().map(|key| format!("&key={}", escape(key))).unwrap_or_default();
    let path = format!("/v1/where?source={source}&destination={destination}&protocol={protocol}{key}");
    let view: WhereView = client.get(&path)?;
    show(&view, arguments.json, |view| {
        let headings = [">thread", "verdict", "service", "by", "backend", "tracked", "state", ">idle"];
        let icmp = view.threads.iter().find_map(|row| of_icmp(&row.explained.verdict));
        let icmp = icmp.map(|words| format!("{words}\n")).unwrap_or_default();
        let all = view.threads.iter().find_map(|row| replicas(&row.explained));
        let all = all.map(|names| format!("replicas: {names}\n")).unwrap_or_default();
        let rejected = view.threads.iter().find_map(|row| row.explained.rejection.as_ref());
        let rejected = rejected.map(|found| format!("rejected as {} with {}\n", found.reason, reply(found)));
        table(headings, view.threads.iter().map(thread)) + &all + &icmp + &rejected.unwrap_or_default()
    })?;
    Ok(verdict(view.threads.iter().any(|row| row.explained.is_served())))
}

fn thread(row: &WhereRow) -> [String; 8] {
    let (tracked, explained) = (row.tracked.as_ref(), &row.explained);
    let backend = explained.backend.as_ref();
    [
        row.thread.to_string(),
        word(&explained.verdict),
        or_dash(explained.service.as_deref()),
        word(&explained.step),
        or_dash(backend.map(|found| format!("{} at {}", found.name, found.address))),
        or_dash(tracked.and_then(|flow| flow.backend.as_deref())),
        word(&tracked.map(|flow| flow.state)),
        or_dash(tracked.map(|flow| ago(flow.idle_seconds))),
    ]
}

/// Explains the verdict for an ICMP packet to a VIP.
fn of_icmp(verdict: &Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Reply => Some(
            "echo requests to a VIP are answered in place, at a limited rate; fragmented echo requests go to a \
             backend; ICMP errors go to the backend of the flow that they quote; other ICMP is dropped (icmp)",
        ),
        Verdict::Drop(name) if name == "icmp" => Some(reason("icmp")),
        _ => None,
    }
}

fn words(answer: &Answer<'_>) -> String {
    let Answer { source, destination, protocol, explained, .. } = answer;
    let service = explained.service.as_ref();
    let entry = |entry| format!("{entry} of {}", explained.table_size.unwrap_or_default());
    let said = [
        ("service", service.map(|name| format!("{name}, hashed by {}", word(&explained.hashed)))),
        ("hash", explained.hash.clone()),
        ("pool", explained.pool.clone()),
        ("entry", explained.table_entry.map(entry)),
        (if answer.is_elsewhere() { "cluster" } else { "backend" }, explained.backend.as_ref().map(place)),
        ("replicas", replicas(explained)),
    ];
    let said = said.into_iter().filter_map(|(what, words)| Some(format!("  {what:<8} {}\n", words?)));
    let head = format!("{source} -> {destination}, protocol {protocol}\n");
    head + &said.collect::<String>() + &outcome(answer)
}

/// Returns the names of all backends that store a key, or `None` if only one backend stores it.
fn replicas(explained: &Explained) -> Option<String> {
    let names: Vec<&str> = explained.replicas.iter().map(|found| &*found.name).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn outcome(answer: &Answer<'_>) -> String {
    match &answer.explained.verdict {
        Verdict::Forward => {
            let known =
                "On a running machine, an existing flow may have another backend in the connection table.\n";
            let other = answer.elsewhere.as_ref().filter(|_| !answer.is_elsewhere());
            let pool = or_dash(answer.explained.pool.as_deref());
            other.map_or_else(String::new, |found| {
                format!(
                    "  else     cluster {}, if no backend of pool {pool} is serving\n\
                     Every backend is assumed to be serving; use --live for the current states.\n",
                    place(found),
                )
            }) + known
        }
        verdict @ Verdict::Reply => format!("  answered {}\n", of_icmp(verdict).unwrap_or_default()),
        Verdict::Reject => {
            let lines = |found: &Rejection| {
                format!("  rejected {}\n  reply    {}\n", reason(&found.reason), reply(found))
            };
            answer.explained.rejection.as_ref().map(lines).unwrap_or_default()
        }
        Verdict::Drop(found) => format!("  dropped  {}\n", reason(found)),
    }
}

/// Describes a drop reason.
fn reason(name: &str) -> &str {
    match name {
        "no_vip" => "no_vip: no service has this address, port and protocol",
        "no_backend" => "no_backend: all backends of the pool have weight 0",
        "not_allowed" => "not_allowed: the source is not on the VIP's allow list",
        "denied" => "denied: the source is on the VIP's deny list",
        "kv_client" => "kv_client: the source is not in the client list of the pool",
        "kv_source_port" => {
            "kv_source_port: the source port is below 1024 or is 11211, so it is not the port of a client"
        }
        "from_vip" => "from_vip: the source is a VIP, and two VIPs could reply to each other forever",
        "martian" => "martian: the source is not the address of a host, or is link-local",
        "icmp" => "icmp: ICMP of the other address family",
        other => other,
    }
}

/// Describes the reply to a rejected packet.
fn reply(rejection: &Rejection) -> String {
    format!("{} from the VIP, within the rate limits of io.icmp", rejection.reply)
}

fn place(found: &WhereBackend) -> String {
    format!("{} at {} by {}", found.name, found.address, found.encapsulation)
}
