//! Implements `sluicegate decap`, which runs on a backend and removes the tunnel headers from
//! packets of the load balancer.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;
use datapath::interface::{Privileges, privilege_findings};
use datapath::{Decap, DecapCounts, Prefix, host_addresses};
use serde_json::{Map, Value, json};

use crate::{logging, privileges};
use admin_client::{EndSignals, json_line, outln};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Attach to this interface, which receives the tunneled packets
    #[arg(long, value_name = "NAME")]
    interface: String,
    /// Accept tunneled packets only from this source, as ADDRESS or ADDRESS/LENGTH; repeat the
    /// option for several sources
    #[arg(long, value_name = "PREFIX", required = true, value_parser = prefix)]
    from: Vec<Prefix>,
    /// Accept only inner packets to this destination, usually a VIP, as ADDRESS or ADDRESS/LENGTH;
    /// repeat the option for several destinations
    #[arg(long, value_name = "PREFIX", required = true, value_parser = prefix)]
    vip: Vec<Prefix>,
    /// Accept packets tunneled to this address (default: all addresses of this host)
    #[arg(long, value_name = "ADDRESS")]
    local: Vec<IpAddr>,
    /// Print the counters as JSON, one object per line
    #[arg(long)]
    json: bool,
    /// Print the counters at this interval, such as 1s, at least 100ms (default: print them once,
    /// at the end)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    interval: Option<Duration>,
}

fn prefix(text: &str) -> Result<Prefix, String> {
    let (address, len) = text.split_once('/').map_or((text, None), |(address, len)| (address, Some(len)));
    let address: IpAddr = address.parse().map_err(|_| format!("\"{address}\" is not an IP address"))?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let len = match len {
        None => most,
        Some(len) => {
            let parsed = len.parse().ok().filter(|len| *len <= most);
            parsed.ok_or_else(|| format!("\"{len}\" is not a prefix length from 0 to {most}"))?
        }
    };
    Ok((address, len))
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = config::parse_duration(text).filter(|duration| *duration >= SHORTEST);
    parsed.ok_or_else(|| "expected a duration of at least 100ms, such as 1s".to_owned())
}

/// Removes tunnel headers until SIGTERM or SIGINT arrives, and then detaches from the interface.
pub(crate) fn decap(arguments: &Arguments) -> anyhow::Result<()> {
    logging::start_plain()?;
    let local = if arguments.local.is_empty() { host_addresses()? } else { arguments.local.clone() };
    privileges::seal();
    let decap = Decap::attach(&arguments.interface, &local, &arguments.from, &arguments.vip);
    let decap = decap.or_else(|error| {
        // If attaching failed, the likely cause is missing privileges. The kernel's error mentions
        // only a BPF map, so the missing privileges are reported instead.
        let missing = privilege_findings(Privileges::read()?);
        let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
        Err(if missing.is_empty() {
            error.into()
        } else {
            anyhow::anyhow!("{error}\n{}", missing.join("\n"))
        })
    })?;
    privileges::give_up_all(|| decap.counts().is_ok())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(until_signalled(arguments, &decap, local.len()))?;
    say(arguments, &decap.counts()?)
}

async fn until_signalled(arguments: &Arguments, decap: &Decap, addresses: usize) -> anyhow::Result<()> {
    let mut end = EndSignals::catch()?;
    // The signal handlers are installed before the log line, because a script that waits for the
    // line may send a signal immediately.
    // log: `decap` is attached to the interface and accepts tunneled packets.
    tracing::info!(interface = %arguments.interface, xdp_mode = decap.mode().name(), addresses, "decap ready");
    let every = arguments.interval;
    loop {
        tokio::select! {
            () = end.recv() => return Ok(()),
            () = tokio::time::sleep(every.unwrap_or(Duration::MAX)), if every.is_some() => {
                say(arguments, &decap.counts()?)?;
            }
        }
    }
}

fn say(arguments: &Arguments, counts: &DecapCounts) -> anyhow::Result<()> {
    let taken_off = [
        ("gre over ipv4", counts.gre.ipv4),
        ("gre over ipv6", counts.gre.ipv6),
        ("ipip over ipv4", counts.ipip.ipv4),
        ("ipip over ipv6", counts.ipip.ipv6),
        ("gue over ipv4", counts.gue.ipv4),
        ("gue over ipv6", counts.gue.ipv6),
    ];
    let left = [
        ("refused_source", counts.refused_source),
        ("malformed", counts.malformed),
        ("refused_destination", counts.refused_destination),
        ("congestion", counts.congestion),
        ("passed", counts.passed),
    ];
    if arguments.json {
        let key = |(name, count): (&str, u64)| (name.replace(' ', "_"), json!(count));
        let mut line: Map<String, Value> = left.into_iter().map(key).collect();
        line.insert("taken_off".into(), taken_off.into_iter().map(key).collect::<Map<_, _>>().into());
        outln!("{}", json_line(&line)?);
    } else {
        for (name, count) in taken_off.into_iter().chain(left) {
            outln!("{name:<19} {count}");
        }
    }
    Ok(())
}

const SHORTEST: Duration = Duration::from_millis(100);
