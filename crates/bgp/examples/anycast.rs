//! Announces one anycast address to a router while a TCP port on this machine accepts connections.
//!
//! ```text
//! cargo run -p sluicegate-bgp --example anycast -- \
//!     198.51.100.53/32 192.0.2.1 65000 64512 192.0.2.10 127.0.0.1:53
//! ```
//!
//! The arguments are the route, the address of the router, the AS number of the router, the local
//! AS number, the local address, and the address and port to probe. The local address is also the
//! next hop and the router ID. Ctrl-C withdraws the route and ends the session.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bgp::{Attributes, Connect, Desired, PeerConfig, Prefix, Routes, Speaker, SpeakerConfig};
use tokio::net::TcpStream;
use tokio::time::{interval, timeout};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [route, router, router_asn, asn, own, probed] = arguments.as_slice() else {
        return Err("usage: anycast PREFIX ROUTER ROUTER_AS OUR_AS OUR_ADDRESS ADDRESS:PORT".into());
    };
    let (route, own): (Prefix, Ipv4Addr) = (route.parse()?, own.parse()?);
    let probed: SocketAddr = probed.parse()?;

    let mut peer = PeerConfig::new("router", router.parse()?, router_asn.parse()?);
    peer.local_address = Some(own.into());
    peer.connect = Connect::Dial; // Listening on port 179 would need privileges.
    let mut config = SpeakerConfig::new(asn.parse()?, own);
    config.peers.push(peer);
    let speaker = Speaker::start(config)?;

    let mut routes = Routes::new();
    routes.insert(route, Attributes::default())?;
    let (present, absent) = (Desired::everyone(routes), Desired::default());

    let mut probe = interval(Duration::from_secs(1));
    let mut answered = false;
    loop {
        tokio::select! {
            _ = probe.tick() => {}
            _ = tokio::signal::ctrl_c() => break,
        }
        let connected = timeout(Duration::from_millis(500), TcpStream::connect(probed)).await;
        let answers = matches!(connected, Ok(Ok(_)));
        if answers != answered {
            println!(
                "{probed} {}",
                if answers { "is up: route announced" } else { "is down: route withdrawn" }
            );
            speaker.announce(if answers { present.clone() } else { absent.clone() });
            answered = answers;
        }
    }
    speaker.announce(absent);
    speaker.shutdown("the operator stopped it").await;
    Ok(())
}
