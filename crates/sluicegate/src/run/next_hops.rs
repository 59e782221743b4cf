//! Ways to the backends: looked up before the first packet, kept fresh by a task.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use config::{self, Config};
use control_plane::compile::destinations;
use control_plane::next_hop::{self, Resolver, Unresolved, Wanted, Watch};
use datapath::DataPlane;
use forwarder::Live;
use tokio::sync::{mpsc, watch};

pub(crate) type NextHops = HashMap<IpAddr, Result<next_hop::Resolved, Unresolved>>;

/// Next hops before the first packet: the kernel is told to ask the neighbours that it does not know, and given a moment.
pub(crate) async fn next_hops(addresses: &[IpAddr], patience: Duration) -> anyhow::Result<NextHops> {
    let mut resolver = Resolver::open()?;
    let deadline = Instant::now() + patience;
    let mut asked = HashSet::new();
    loop {
        let next_hops = resolver.resolve(addresses).await.context("looking up next hops")?;
        let pending: HashSet<(u32, IpAddr)> =
            next_hops.values().filter_map(|way| way.as_ref().err()).filter_map(pending).collect();
        if pending.is_empty() || Instant::now() > deadline {
            return Ok(next_hops);
        }
        for (interface, neighbour) in pending {
            if asked.insert((interface, neighbour)) {
                resolver.ask(interface, neighbour).await.context("asking for a neighbour")?;
            }
        }
        tokio::time::sleep(NEXT_HOP_STEP).await;
    }
}

/// The neighbour that an answer is awaited from.
fn pending(why: &Unresolved) -> Option<(u32, IpAddr)> {
    match *why {
        Unresolved::NeighbourPending { interface, neighbour } => Some((interface, neighbour)),
        _ => None,
    }
}

pub(super) fn wanted(config: &Config, machine: &str, plane: &DataPlane, live: &Live) -> Wanted {
    let reflecting = config.io().next_hop() == config::NextHop::Reflect;
    let interfaces: Vec<u32> = plane.interfaces().iter().map(|interface| interface.index).collect();
    let gateway_interfaces = if reflecting { interfaces.clone() } else { Vec::new() };
    Wanted {
        destinations: destinations(config, machine, Some(&live.current())),
        gateway_interfaces,
        interfaces,
    }
}

/// A task that keeps next hops fresh: what it wants, and what it finds.
pub(super) fn watch_next_hops(
    first: Wanted,
) -> anyhow::Result<(watch::Sender<Wanted>, mpsc::Receiver<next_hop::Table>)> {
    let (wanted, wanted_receiver) = watch::channel(first);
    let (tables, found) = mpsc::channel(NEXT_HOP_QUEUE);
    let watch = Watch::open()?;
    tokio::spawn(async move {
        // Tables come whole: one that does not fit into the queue is made good by the next.
        let ended = watch.run(wanted_receiver, std::future::pending(), |table| {
            let _ = tables.try_send(table.clone());
        });
        if let Err(error) = ended.await {
            tracing::error!(%error, "next hops are no longer kept fresh");
        }
    });
    Ok((wanted, found))
}

/// What a look found, with what an earlier one knew: a flushed neighbour is back in a moment, so until the kernel gives up, the
/// last way stands; and a look that began before a reload does not know the backends that came by it.
pub(super) fn merge(
    before: &next_hop::Table,
    mut found: next_hop::Table,
    wanted: &Wanted,
) -> next_hop::Table {
    for (address, way) in &mut found.next_hops {
        let before = before.next_hops.get(address);
        match way {
            Err(why) if pending(why).is_some() && matches!(before, Some(Ok(_))) => {
                *way = before.cloned().unwrap_or(Err(Unresolved::NoRoute));
            }
            Err(why) if before.is_none_or(|before| before.is_ok()) => {
                tracing::warn!(backend = %address, %why, "no way to this backend");
            }
            Ok(_) if !matches!(before, Some(Ok(_))) => {
                tracing::info!(backend = %address, "next hop resolved");
            }
            _ => {}
        }
    }
    for address in &wanted.destinations {
        if let Some(way) = before.next_hops.get(address) {
            found.next_hops.entry(*address).or_insert(*way);
        }
    }
    found
}

const NEXT_HOP_QUEUE: usize = 16;
const NEXT_HOP_STEP: Duration = Duration::from_millis(50);
