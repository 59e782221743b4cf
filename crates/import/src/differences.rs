//! What is different of a service and of a server, in words.
//!
//! In: a rule that is kept. Out: a line for each thing that IPVS does and a configuration of ours does not, or otherwise.
//! Not here: rules that are left out (`translate`).

use config_text::words::quote;

use crate::rules::{Checksum, Destination, Method, Protocol, Server, Service};

/// What is different of a service with these servers.
pub(crate) fn of_service(service: &Service, servers: &[&Server]) -> Vec<String> {
    let Service { scheduler, persistence, netmask, engine, .. } = service;
    let mut words = vec![format!("-s {scheduler}: {}", of_scheduler(scheduler))];
    let heaviest = servers.iter().map(|server| server.weight).max().unwrap_or(0);
    if UNWEIGHTED.contains(scheduler) && heaviest > 1 {
        words.push(format!("-s {scheduler} takes no weights: each backend has 1"));
    } else if heaviest > MAX_WEIGHT && *scheduler != "fo" {
        words.push(format!(
            "weights are divided by {}, to {MAX_WEIGHT} at most",
            heaviest.div_ceil(MAX_WEIGHT)
        ));
    }
    words.extend(persistence.map(|seconds| {
        format!("-p {seconds}: a client keeps its backend by its address, while the pool is the same, and not for a time")
    }));
    words.extend(netmask.as_ref().map(|netmask| {
        format!("-M {netmask}: each address is hashed for itself, so that those of one network may get several backends")
    }));
    words.extend(engine.as_ref().map(|engine| {
        format!("--pe {}: the client's address counts, and not what packets say", quote(engine))
    }));
    if service.is_one_packet {
        words.push("-o: packets of one flow go to one backend".to_owned());
    }
    if let Destination::Address(Protocol::Sctp, address) = service.destination
        && address.port() > 0
    {
        words.push(format!("port {}: all SCTP of the address goes there, whatever its port", address.port()));
    }
    words
}

fn of_scheduler(scheduler: &str) -> &'static str {
    match scheduler {
        "mh" | "sh" => "the table is another, so that a client may get another backend than before",
        "rr" | "wrr" => "nothing takes turns: the hash of a flow chooses, by weight",
        "dh" => "one server had all of the address: here the hash of a flow chooses, by weight",
        "fo" => "the heaviest serves, and the others are its fallbacks, which takes checks of its pool",
        _ => "connections are not counted: the hash of a flow chooses, by weight",
    }
}

/// What is different of a server of a service.
pub(crate) fn of_server(service: &Service, server: &Server) -> Vec<String> {
    let address = server.address.ip();
    let mut words: Vec<String> = of_method(server).into_iter().collect();
    match server.method {
        Method::Gue(_, Checksum::Remote) | Method::Gre(Checksum::Remote) => {
            words.push(format!("--tun-remcsum: the tunnel to backend {address} has no checksum"));
        }
        Method::Gre(Checksum::Full) => {
            words.push(format!("--tun-csum: GRE to backend {address} has no checksum"));
        }
        _ => {}
    }
    if let (Destination::Address(_, to), port @ 1..) = (service.destination, server.address.port())
        && to.port() != port
    {
        let kept = if to.port() == 0 { "its own".to_owned() } else { to.port().to_string() };
        words.push(format!(
            "port {port} of backend {address}: a packet keeps port {kept}, where it has to listen"
        ));
    }
    if server.has_thresholds {
        words.push(format!("-x, -y: connections of backend {address} are not limited"));
    }
    words
}

fn of_method(server: &Server) -> Option<String> {
    let address = server.address.ip();
    match server.method {
        Method::Masquerade => Some(format!(
            "-m: backend {address} needs the VIP, takes off a tunnel, and answers the client itself (docs/backends.md)"
        )),
        Method::Gue(port, _) if port != GUE_PORT => {
            Some(format!("--tun-port {port}: GUE goes to port {GUE_PORT} of backend {address}"))
        }
        _ => None,
    }
}

/// IANA's; ours is no other.
const GUE_PORT: u16 = 6_080;
/// Of a backend here.
pub(crate) const MAX_WEIGHT: u32 = 65_535;
/// Schedulers that ask for no weight above 0.
pub(crate) const UNWEIGHTED: [&str; 3] = ["rr", "lc", "dh"];
