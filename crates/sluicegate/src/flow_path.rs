//! `sluicegate where`: which backend a flow would go to, and why, by the very function that packets go through.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use admin::view::{Explained, Step, Verdict, WhereBackend, WhereRow, WhereView};
use clap::Args;
use compile::compile_file;
use control_plane::{explained, explained_by_key};
use forwarder::{Flow, ServiceId, SlotState, Snapshot};
use packet::protocol;
use serde::Serialize;

use crate::{Source, USUAL_FILE, config_check};
use admin_client::{Client, Reach, ago, escape, or_dash, show, table, verdict, word};

/// The flow.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The client: `192.0.2.7:40000`, or `[2001:db8::7]:40000`.
    #[arg(value_name = "SRC:PORT", value_parser = socket)]
    source: SocketAddr,
    /// The VIP.
    #[arg(value_name = "DST:PORT", value_parser = socket)]
    destination: SocketAddr,
    /// tcp, udp, icmp (of either family; ports say nothing then), or a protocol number.
    #[arg(value_name = "PROTO", value_parser = protocol)]
    protocol: Wanted,
    /// Of a request for this key, to a service that chooses by key; its source says only whether it is a client.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    from: Source,
    /// Ask every packet thread of the running balancer, whose connection tables go before the choice.
    #[arg(long, conflicts_with = "machine")]
    live: bool,
    /// The admin socket of the running balancer. Default: that of the configuration.
    #[arg(long, value_name = "PATH", requires = "live", conflicts_with = "config")]
    socket: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// An IP protocol; the number of ICMP depends on the family.
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
    text.parse()
        .map_err(|_| "wanted an address with a port: 192.0.2.7:40000 or [2001:db8::7]:40000".to_owned())
}

fn protocol(text: &str) -> Result<Wanted, String> {
    match text {
        "tcp" => Ok(Wanted::Number(protocol::TCP)),
        "udp" => Ok(Wanted::Number(protocol::UDP)),
        "icmp" => Ok(Wanted::Icmp),
        number => number
            .parse()
            .map(Wanted::Number)
            .map_err(|_| format!("`{number}` is neither tcp, udp, icmp nor a number from 0 to 255")),
    }
}

/// Prints the answer. 1 when a packet of the flow would be dropped.
pub(crate) fn answer(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.live {
        return ask(arguments);
    }
    let config = config_check::load(&arguments.from.config)?;
    let snapshot = compile_file(&config, &arguments.from.machine_or_first(&config))?.snapshot;
    let (source, destination) = (arguments.source, arguments.destination);
    let flow = Flow::new(source, destination, arguments.protocol())
        .ok_or_else(|| anyhow::anyhow!("{source} and {destination} are of different families"))?;
    // No table knows it.
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

/// By the file alone.
#[derive(Serialize)]
struct Answer<'a> {
    source: SocketAddr,
    destination: SocketAddr,
    protocol: u8,
    #[serde(flatten)]
    explained: &'a Explained,
    /// The cluster that it goes to while no backend here serves; null: none.
    elsewhere: Option<WhereBackend>,
}

impl Answer<'_> {
    /// Another cluster is the choice already.
    fn is_elsewhere(&self) -> bool {
        self.explained.step == Some(Step::Remote)
    }
}

/// A file says nothing of health: where the flow goes when no backend of its service serves, as on a machine that runs.
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

/// As the packet threads say.
fn ask(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    // A file that was not named says nothing of the socket.
    let config = Some(arguments.from.config.clone()).filter(|config| *config != Path::new(USUAL_FILE));
    let client = Client::new(&Reach { socket: arguments.socket.clone(), config, wait: None })?;
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
        table(headings, view.threads.iter().map(thread)) + &all + &icmp
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

/// What happens to ICMP, in words.
fn of_icmp(verdict: &Verdict) -> Option<&'static str> {
    match verdict {
        Verdict::Reply => Some(
            "an echo request to a VIP is answered in place, at a limited rate; one in fragments goes to a backend, and an \
             error to the backend of the flow that it quotes; all else of ICMP is dropped as icmp",
        ),
        Verdict::Drop(reason) if reason == "icmp" => Some("icmp: this is the other family's ICMP"),
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
        ("all", replicas(explained)),
    ];
    let said = said.into_iter().filter_map(|(what, words)| Some(format!("  {what:<7}  {}\n", words?)));
    let head = format!("{source} -> {destination}, protocol {protocol}\n");
    head + &said.collect::<String>() + &outcome(answer)
}

/// All that have the key, where there are several.
fn replicas(explained: &Explained) -> Option<String> {
    let names: Vec<&str> = explained.replicas.iter().map(|found| &*found.name).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn outcome(answer: &Answer<'_>) -> String {
    match &answer.explained.verdict {
        Verdict::Forward => {
            let known =
                "The connection table of a running machine goes before this, for flows that it knows.\n";
            let other = answer.elsewhere.as_ref().filter(|_| !answer.is_elsewhere());
            let pool = or_dash(answer.explained.pool.as_deref());
            other.map_or_else(String::new, |found| {
                format!(
                    "  else     cluster {}, while no backend of pool {pool} serves\n\
                     By the file alone every backend serves; --live says which do.\n",
                    place(found),
                )
            }) + known
        }
        verdict @ Verdict::Reply => format!("  answered {}\n", of_icmp(verdict).unwrap_or_default()),
        verdict @ Verdict::Drop(reason) => {
            let words = match reason.as_str() {
                "no_vip" => "no_vip: no service has this address, port and protocol",
                "not_allowed" => "not_allowed: the source is not on the VIP's allow list",
                "denied" => "denied: the source is on the VIP's deny list",
                "kv_client" => "kv_client: the source is none of the pool's clients",
                "kv_source_port" => {
                    "kv_source_port: requests come from ports of clients, not below 1024 or 11211"
                }
                "from_vip" => "from_vip: the source is a VIP, whose services would answer this one for ever",
                _ => of_icmp(verdict).unwrap_or("no_backend: no backend of the pool has a weight"),
            };
            format!("  dropped  {words}\n")
        }
    }
}

fn place(found: &WhereBackend) -> String {
    format!("{} at {} by {}", found.name, found.address, found.encapsulation)
}
