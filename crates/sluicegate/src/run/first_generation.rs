//! Builds the first snapshot of a process from the configuration and the next hops. The result is a
//! controller whose snapshot has already been published. The module `reload` builds all later
//! generations.

use std::sync::Arc;
use std::time::Duration;

use compile::{Compiler, destinations};
use config::Config;
use control_plane::Controller;
use datapath::interface::Interface;
use forwarder::Live;
use next_hop::Table;

/// Looks up the next hops before the first packet is forwarded.
pub(super) async fn first_next_hops(
    config: &Config,
    machine: &str,
    interfaces: &[Interface],
) -> anyhow::Result<Arc<Table>> {
    let next_hops = next_hop::look_up(&destinations(config, machine, None), FIRST_NEXT_HOPS).await?;
    if let Err(error) = diagnosis::warn_at_start(config, machine, &next_hops).await {
        // log: The startup check of the machine failed for the reason in `error`. Run `sluicegate
        // doctor`.
        tracing::warn!(error = %format!("{error:#}"), "machine not checked");
    }
    let table = Table { next_hops, ..Table::default() };
    Ok(Arc::new(table.by(interfaces.iter().map(|interface| interface.index).collect())))
}

/// Builds the first generation. The snapshot is published without any further steps, because no
/// packet thread is running yet.
pub(super) fn first_generation(
    compiler: Compiler,
    config: &Arc<Config>,
    machine: &str,
    next_hops: &Arc<Table>,
    now: Duration,
) -> anyhow::Result<(Controller, Live)> {
    let (config, next_hops) = (Arc::clone(config), Arc::clone(next_hops));
    let (controller, snapshot) = Controller::start_by(compiler, config, machine, next_hops, now)?;
    let live = Live::new(snapshot);
    live.clock().set(super::unix_seconds());
    Ok((controller, live))
}

/// The time limit for the first lookup of next hops. Resolving an IPv6 neighbor on a link that has
/// just come up takes about two seconds.
pub(super) const FIRST_NEXT_HOPS: Duration = Duration::from_secs(4);
