//! The generation that a process begins with, at its own start or in the place of another.
//!
//! In: a configuration, its machine, the interfaces of the machine. Out: next hops that were looked up once, and by them a controller
//! whose first snapshot is in force.
//! Not here: threads that forward by it (`datapath`), the generations that follow (`reload`).

use std::sync::Arc;
use std::time::Duration;

use compile::{Compiler, destinations};
use config::Config;
use control_plane::Controller;
use datapath::interface::Interface;
use forwarder::Live;
use next_hop::Table;

/// Next hops before the first packet, for the interfaces that frames can leave by.
pub(super) async fn first_next_hops(
    config: &Config,
    machine: &str,
    interfaces: &[Interface],
) -> anyhow::Result<Arc<Table>> {
    let next_hops = next_hop::look_up(&destinations(config, machine, None), FIRST_NEXT_HOPS).await?;
    if let Err(error) = diagnosis::warn_at_start(config, machine, &next_hops).await {
        tracing::warn!(error = %format!("{error:#}"), "the machine was not looked at");
    }
    let table = Table { next_hops, ..Table::default() };
    Ok(Arc::new(table.by(interfaces.iter().map(|interface| interface.index).collect())))
}

/// The first generation, in force at once: nobody forwards yet.
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

/// IPv6 neighbours on a link that has just come up take some two seconds.
pub(super) const FIRST_NEXT_HOPS: Duration = Duration::from_secs(4);
