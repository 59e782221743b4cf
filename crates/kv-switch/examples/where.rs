//! Prints the server that stores a key when clients use ketama. Run it with `cargo run --example
//! where -- user:17 192.0.2.1 192.0.2.2:11212 192.0.2.3=5`.
//!
//! List the servers with the same names and weights, and in the same order, as in the configuration
//! of the clients. Each output line also names a second server. Clients use the second server after
//! they have ejected the first one.

use std::process::ExitCode;

use kv_switch::{Ring, RingError, Server, fnv1a_64, md5_ketama, ring_name};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((key, servers)) = arguments.split_first().filter(|(_, servers)| !servers.is_empty()) else {
        eprintln!("usage: where KEY SERVER[:PORT][=WEIGHT]...");
        return ExitCode::from(2);
    };
    let Some(servers) = servers.iter().map(|text| server(text)).collect::<Option<Vec<_>>>() else {
        eprintln!("where: a port or weight is not a number");
        return ExitCode::from(2);
    };
    for (name, hash) in [("md5", md5_ketama(key.as_bytes())), ("fnv1a_64", fnv1a_64(key.as_bytes()))] {
        match owners(&servers, hash.into()) {
            Ok((owner, None)) => println!("{name:9} {owner}"),
            Ok((owner, Some(next))) => println!("{name:9} {owner}, then {next}"),
            Err(error) => {
                eprintln!("where: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Parses a server argument into a ring name and a weight.
fn server(text: &str) -> Option<(String, u32)> {
    let (address, weight) = text.split_once('=').unwrap_or((text, "1"));
    let (host, port) = address.split_once(':').unwrap_or((address, "11211"));
    Some((ring_name(host, port.parse().ok()?), weight.parse().ok()?))
}

/// Returns the server for a key hash, and the second server, which clients choose after they have
/// ejected the first one.
fn owners(servers: &[(String, u32)], hash: u64) -> Result<(&str, Option<&str>), RingError> {
    let ring = |ejected: Option<u16>| {
        let servers = (0..).zip(servers).map(|(index, (ring_name, weight))| Server {
            ring_name,
            weight: *weight,
            is_ejected: Some(index) == ejected,
        });
        Ring::build(&servers.collect::<Vec<_>>()).map(|ring| ring.lookup(hash))
    };
    let name = |index: u16| servers.get(usize::from(index)).map_or("", |(name, _)| name);
    let owner = ring(None)?;
    Ok((name(owner), ring(Some(owner)).ok().map(name)))
}
