//! Prints how the flows of a service are distributed over its backends, computed from the
//! configuration. Run it with `cargo run --example shares -- sluicegate.toml 203.0.113.10:443`.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use compile::compile_file;
use config::load_without_secrets;
use control_plane::explained;
use forwarder::Flow;
use packet::protocol;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, file, vip] = &arguments[..] else { return Err("usage: shares FILE ADDRESS:PORT".into()) };
    let vip: SocketAddr = vip.parse()?;
    let (config, _) = load_without_secrets(Path::new(file)).map_err(|problems| problems.to_string())?;
    let machine = config.machines().first().ok_or("the configuration has no machine")?.name().to_owned();
    let snapshot = compile_file(&config, &machine)?.snapshot;
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for client in 0..FLOWS {
        let source = IpAddr::V4(Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + client));
        let flow =
            Flow::new((source, 40_000), vip, protocol::TCP).ok_or("the VIP must be an IPv4 address")?;
        let explained = explained(&snapshot.explain(&flow, None), &snapshot);
        let dropped = explained.sentence();
        *counts.entry(explained.backend.map_or(dropped, |backend| backend.name)).or_default() += 1;
    }
    for (name, count) in counts {
        println!("{name:20} {:5.1} %", f64::from(count) * 100.0 / f64::from(FLOWS));
    }
    Ok(())
}

/// The number of simulated flows. Each flow has a different client.
const FLOWS: u32 = 10_000;
