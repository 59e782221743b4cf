//! Describes the differences between an IPVS rule and the configuration that replaces it.
//!
//! [`of_service`] and [`of_server`] return one line per difference, for rules that have a
//! counterpart in the configuration. The module `translate` handles rules that are left out.

use config_text::words::quote;

use crate::rules::{Checksum, Destination, Method, Server, Service};

/// Returns the differences between a service with these servers and its configuration.
pub(crate) fn of_service(service: &Service, servers: &[&Server]) -> Vec<String> {
    let Service { scheduler, persistence, netmask, engine, .. } = service;
    let mut words = vec![of_scheduler(scheduler)];
    let heaviest = servers.iter().map(|server| server.weight).max().unwrap_or(0);
    if UNWEIGHTED.contains(scheduler) && heaviest > 1 {
        words.push(format!("-s {scheduler} ignores weights, so each backend has weight 1"));
    } else if heaviest > MAX_WEIGHT && *scheduler != "fo" {
        words.push(format!(
            "weights are divided by {}, because the maximum weight is {MAX_WEIGHT}",
            heaviest.div_ceil(MAX_WEIGHT)
        ));
    }
    words.extend(persistence.map(|seconds| {
        format!("-p {seconds} becomes hash = \"source\": a client keeps its backend until the pool changes, without a timeout")
    }));
    words.extend(netmask.as_ref().map(|netmask| {
        format!("-M {netmask} has no counterpart, so clients of the same network may get different backends")
    }));
    words.extend(engine.as_ref().map(|engine| {
        format!("--pe {} has no counterpart, so only the client address is hashed", quote(engine))
    }));
    if service.is_one_packet {
        words.push("-o has no counterpart, so all packets of a flow go to one backend".to_owned());
    }
    words
}

fn of_scheduler(scheduler: &str) -> String {
    match scheduler {
        "mh" | "sh" => format!(
            "-s {scheduler} uses a different hash table here, so a client may get a different backend than before"
        ),
        "rr" | "wrr" => format!(
            "-s {scheduler} is replaced by weighted flow hashing, which does not rotate through the backends"
        ),
        "dh" => {
            "-s dh is replaced by weighted flow hashing, so one address may use several backends".to_owned()
        }
        "fo" => {
            "-s fo becomes a pool with fallback pools, which needs health checks to switch over".to_owned()
        }
        _ => format!("-s {scheduler} is replaced by weighted flow hashing, which does not count connections"),
    }
}

/// Returns the differences between a server of a service and its configuration.
pub(crate) fn of_server(service: &Service, server: &Server) -> Vec<String> {
    let address = server.address.ip();
    let mut words: Vec<String> = of_method(server).into_iter().collect();
    match server.method {
        Method::Gue(_, Checksum::Remote) | Method::Gre(Checksum::Remote) => {
            words.push(format!(
                "--tun-remcsum is ignored, so the tunnel to backend {address} has no checksum"
            ));
        }
        Method::Gre(Checksum::Full) => {
            words.push(format!("--tun-csum is ignored, so GRE to backend {address} has no checksum"));
        }
        _ => {}
    }
    if let (Destination::Address(_, to), port @ 1..) = (service.destination, server.address.port())
        && to.port() != port
    {
        let kept = if to.port() == 0 { "its own port".to_owned() } else { format!("port {}", to.port()) };
        words.push(format!(
            "port {port} of backend {address} is ignored: each packet keeps {kept}, so the backend must listen there"
        ));
    }
    if server.has_thresholds {
        words.push(format!("-x and -y are ignored, so connections of backend {address} are not limited"));
    }
    words
}

fn of_method(server: &Server) -> Option<String> {
    let address = server.address.ip();
    match server.method {
        Method::Masquerade => Some(format!(
            "-m becomes a tunnel: backend {address} needs the VIP, decapsulates, and replies to clients directly (docs/how-to/prepare-backends.md)"
        )),
        Method::Gue(port, _) if port != GUE_PORT => {
            Some(format!("--tun-port {port} is ignored, so GUE to backend {address} uses port {GUE_PORT}"))
        }
        _ => None,
    }
}

/// The GUE port that IANA assigned. The load balancer supports no other port.
const GUE_PORT: u16 = 6_080;
/// The maximum weight that the configuration accepts for a backend.
pub(crate) const MAX_WEIGHT: u32 = 65_535;
/// The schedulers that ignore weights, except that a server of weight 0 gets no new flows.
pub(crate) const UNWEIGHTED: [&str; 3] = ["rr", "lc", "dh"];
