//! Reads a connection log and prints which connections exceed limits on new flows. Each line of the
//! log on standard input has the form `MILLISECONDS SOURCE`. Run it with `cargo run --example
//! new_flows -- PER_SECOND PER_SOURCE`. The limit PER_SOURCE applies to each /24 prefix of IPv4 and
//! each /64 prefix of IPv6.

use std::error::Error;
use std::io::stdin;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;

use classifier::{Flow, FlowHasher, Guard, HashKey, Limits, Now, SourceLimit};

const TCP: u8 = 6;

fn main() -> Result<(), Box<dyn Error>> {
    let rates = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<Vec<NonZeroU32>, _>>()?;
    let [all, each] = rates[..] else { return Err("usage: new_flows PER_SECOND PER_SOURCE".into()) };
    let guard = Guard {
        new_flows_per_second: Some(all),
        per_source: Some(SourceLimit { new_flows_per_second: each, v4_prefix: 24, v6_prefix: 64 }),
        ..Guard::default()
    };
    let hasher = FlowHasher::new(&HashKey::new([7; 16]));
    let (mut limits, mut admitted, mut refused) = (Limits::new(1, 4_096), 0, Vec::new());
    for (number, line) in (1..).zip(stdin().lines()) {
        let line = line?;
        let read =
            line.split_once(' ').and_then(|(at, source)| Some((at.parse().ok()?, source.parse().ok()?)));
        let Some((milliseconds, source)): Option<(u64, IpAddr)> = read else {
            return Err(format!("line {number}: {line:?} is not MILLISECONDS SOURCE").into());
        };
        let vip = if source.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { Ipv6Addr::LOCALHOST.into() };
        let ends = [SocketAddr::new(source, 40_000), SocketAddr::new(vip, 80)];
        let flow = Flow::new(ends[0], ends[1], TCP).ok_or("mixed address families")?;
        match limits.admit(&guard, &hasher, &flow, Now::from_nanos(milliseconds * 1_000_000)) {
            Ok(()) => admitted += 1,
            Err(reason) => refused.push((number, source, reason)),
        }
    }
    for (number, source, reason) in &refused {
        println!("line {number}: {source} refused ({})", reason.name());
    }
    println!("{admitted} admitted, {} refused", refused.len());
    Ok(())
}
