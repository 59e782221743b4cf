//! Checks one HTTP backend every second, and prints each change of its health state.
//!
//! `cargo run -p sluicegate-health --example watch_http -- 192.0.2.10 8080 /healthz`
//!
//! The example ends when its standard output is closed, or with Ctrl-C.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use config::{Check, CheckKind, HttpCheck, Via};
use health::{CheckHops, Dialer, Event, Health, TargetKey, Watched};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, port, path] = arguments.as_slice() else {
        return Err("usage: watch_http ADDRESS PORT PATH".into());
    };
    let address: IpAddr = address.parse()?;
    let key = TargetKey { address, check: Arc::new(check(port.parse()?, path)), through: None };
    let watched =
        Watched { key, slot: None, backend: "backend".into(), pools: vec!["pool".into()], serving: false };

    // The checks run on their own thread, which ends when `health` is dropped.
    let (health, mut events) = Health::start(|_, _| Dialer::Direct, CheckHops::default())?;
    health.watch(vec![watched]);
    while let Some(event) = events.recv().await {
        match event {
            Event::Changed(changes) => {
                for change in changes {
                    let why = change.why.map(|why| format!(": {why}")).unwrap_or_default();
                    println!("{address} is {:?}{why}", change.state);
                }
            }
            Event::Unable(targets) => {
                for (_, why) in targets {
                    match why {
                        Some(why) => println!("{address} cannot be checked from here: {why}"),
                        None => println!("{address} can be checked again"),
                    }
                }
            }
            // The other events cannot occur in this example. A local failure needs three backends
            // in two pools, and this example flushes no server, asks no agent and sets no next
            // hops.
            Event::LocalFailure(_) | Event::Flushed(_) | Event::Advised(_) | Event::Hops(_) => {}
        }
    }
    Ok(())
}

/// Returns a check that sends `GET path` and expects a status from 200 to 299. Two passes bring the
/// backend up, and three failures take it down.
fn check(port: u16, path: &str) -> Check {
    let kind = CheckKind::Http(HttpCheck {
        port,
        tls: None,
        method: "GET".into(),
        path: path.into(),
        host: None,
        headers: Vec::new(),
        status: vec![200..=299],
        body_contains: None,
        probe_mtu: false,
    });
    Check {
        name: "http".into(),
        kind,
        via: Via::Backend,
        interval: Duration::from_secs(1),
        fast_interval: Duration::from_millis(400),
        timeout: Duration::from_millis(300),
        rise: 2,
        fall: 3,
        jitter_percent: 10,
    }
}
