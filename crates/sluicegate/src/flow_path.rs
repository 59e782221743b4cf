//! `sluicegate where`: which backend a flow would go to, and why, by the very function that packets go through.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use clap::Args;
use control_plane::compile::compile_file;
use forwarder::{Decision, Flow, HashPolicy, Service, Snapshot};
use serde_json::{Value, json};

use crate::{Source, config_check};

/// The flow.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The client: `192.0.2.7:40000`, or `[2001:db8::7]:40000`.
    #[arg(value_name = "SRC:PORT")]
    source: SocketAddr,
    /// The VIP.
    #[arg(value_name = "DST:PORT")]
    destination: SocketAddr,
    /// tcp, udp, or a protocol number.
    #[arg(value_name = "PROTO", value_parser = protocol)]
    protocol: u8,
    #[command(flatten)]
    from: Source,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn protocol(text: &str) -> Result<u8, String> {
    match text {
        "tcp" => Ok(6),
        "udp" => Ok(17),
        number => {
            number.parse().map_err(|_| format!("`{number}` is neither tcp, udp nor a number from 0 to 255"))
        }
    }
}

/// Prints the answer. 1 when no backend would get the flow.
pub(crate) fn answer(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = config_check::load(&arguments.from.config)?;
    let machine = match &arguments.from.machine {
        Some(name) => name.clone(),
        // The choice is the same on every machine of the cluster.
        None => config.machines().first().map(|machine| machine.name().to_owned()).unwrap_or_default(),
    };
    let snapshot = compile_file(&config, &machine)?.snapshot;
    let ends = |socket: SocketAddr| -> (IpAddr, u16) { (socket.ip(), socket.port()) };
    let flow = Flow::new(ends(arguments.source), ends(arguments.destination), arguments.protocol)
        .ok_or_else(|| {
            anyhow::anyhow!("{} and {} are of different families", arguments.source, arguments.destination)
        })?;
    let decision = snapshot.decide(&flow);
    let explained = explain(&snapshot, &flow, &decision);
    if arguments.json {
        println!("{explained:#}");
    } else {
        print_words(arguments, &explained);
    }
    let found = matches!(decision, Decision::Chosen { .. });
    Ok(if found { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn explain(snapshot: &Snapshot, flow: &Flow, decision: &Decision) -> Value {
    let of_service = |service: usize, hash: u64| {
        snapshot.services().get(service).map(|found| {
            json!({
                "service": &*found.name,
                "pool": &*found.pool.name,
                "hashed": policy(found),
                "hash": format!("{hash:#018x}"),
                "table_size": found.pool.table.as_ref().map(|table| table.size()),
            })
        })
    };
    let mut answer = json!({ "protocol": flow.protocol });
    match *decision {
        Decision::NoVip => answer["verdict"] = "no_vip".into(),
        Decision::NoBackend { service, hash } => {
            answer["verdict"] = "no_backend".into();
            answer["why"] = of_service(service, hash).into();
        }
        Decision::Chosen { service, hash, selection } => {
            answer["verdict"] = "forward".into();
            answer["why"] = of_service(service, hash).into();
            answer["table_entry"] = selection.entry.into();
            answer["rehashed"] = selection.rehashed.into();
            if let Some(slot) = snapshot.slots().get(selection.slot.0 as usize) {
                answer["backend"] =
                    json!({ "name": &*slot.backend, "address": slot.address, "growth": slot.growth() });
            }
        }
    }
    answer
}

fn policy(service: &Service) -> &'static str {
    match service.policy {
        HashPolicy::FiveTuple => "5-tuple",
        HashPolicy::Addresses => "addresses",
        HashPolicy::Source => "source",
    }
}

fn print_words(arguments: &Arguments, explained: &Value) {
    let (source, destination) = (arguments.source, arguments.destination);
    println!("{source} -> {destination}, protocol {}", arguments.protocol);
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let why = &explained["why"];
    if why.is_object() {
        println!("  service  {}, hashed by {}", text(&why["service"]), text(&why["hashed"]));
        println!("  hash     {}", text(&why["hash"]));
        println!("  pool     {}", text(&why["pool"]));
    }
    match explained["verdict"].as_str() {
        Some("forward") => {
            println!("  entry    {} of {}", explained["table_entry"], text(&why["table_size"]));
            let backend = &explained["backend"];
            println!("  backend  {} at {}", text(&backend["name"]), text(&backend["address"]));
            println!("The connection table of a running machine goes before this, for flows that it knows.");
        }
        Some("no_vip") => println!("  dropped  no_vip: no service has this address, port and protocol"),
        _ => println!("  dropped  no_backend: no backend of the pool has a weight"),
    }
}
