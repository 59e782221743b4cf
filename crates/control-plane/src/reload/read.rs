//! Reads a configuration on another thread, and looks up the next hops of backends that are not in
//! the current configuration.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use config::Config;

use super::{Loaded, Origin, Wanted};
use next_hop::NextHops;

use crate::refused::Refused;
use compile::destinations;

/// The values that are needed to read a configuration.
#[derive(Clone, Debug)]
pub struct Place {
    /// The path of the configuration file. A configuration text from the API may include other
    /// files relative to this path.
    pub file: PathBuf,
    /// The name of this machine.
    pub machine: String,
    /// The addresses whose next hops are already known.
    pub known: HashSet<IpAddr>,
    /// The maximum number of VIP addresses in the XDP filter, which is fixed when the filter is
    /// created at startup.
    pub max_vips: u32,
}

/// Reads a configuration on another thread. If the configuration is a stored generation, its
/// secrets and prefix lists are not read again.
///
/// # Errors
/// Returns [`Refused`] if the configuration has problems, or if it has more VIP addresses than the
/// filter can hold.
pub async fn read(place: Place, wanted: Wanted, origin: Origin) -> Result<Loaded, Refused> {
    let Place { file, machine, known, max_vips } = place;
    let owned = |(config, warnings)| (Arc::new(config), warnings);
    let read = move || match wanted {
        Wanted::File => config::load(&file).map(owned),
        Wanted::Kept(kept) => Ok((Arc::clone(&kept.config), kept.warnings.clone())),
        Wanted::Text(text) => {
            let secrets = |name: &_| config::read_secret(name, &|name| std::env::var_os(name));
            config::parse_confined(&text, &file, &secrets).map(owned)
        }
    };
    let read = tokio::task::spawn_blocking(read).await;
    let read = read.map_err(|error| Refused::Unavailable(error.to_string()))?;
    let (config, warnings) = read.map_err(Refused::Invalid)?;
    fits_the_filter(&config, max_vips)?;
    let mut new = destinations(&config, &machine, None);
    new.retain(|address| !known.contains(address));
    Ok(Loaded { config, warnings, next_hops: next_hops(&new).await, origin })
}

/// Looks up the next hops of `new` before the snapshot is published. Without this step, the first
/// packets to new backends would be dropped.
async fn next_hops(new: &[IpAddr]) -> NextHops {
    if new.is_empty() {
        return NextHops::new();
    }
    next_hop::look_up(new, PATIENCE).await.unwrap_or_else(|error| {
        // log: The next hops of new backends could not be looked up. Packets to these backends may
        // be dropped until the next attempt. If this message repeats, check `ip route get` for a
        // backend.
        tracing::warn!(%error, "next hops of new backends not found");
        NextHops::new()
    })
}

/// Checks that the XDP filter, whose size is fixed at startup, can hold all VIP addresses.
fn fits_the_filter(config: &Config, max_vips: u32) -> Result<(), Refused> {
    let addresses: HashSet<&IpAddr> = config.vips().iter().flat_map(|vip| &vip.addresses).collect();
    if addresses.len() <= max_vips as usize {
        return Ok(());
    }
    Err(Refused::Conflict(format!(
        "{} VIP addresses exceed the filter size of {max_vips}; raise io.max_vips and restart",
        addresses.len()
    )))
}

/// The maximum time for which a reload waits for unknown neighbors. Most neighbors respond within 1
/// ms.
const PATIENCE: Duration = Duration::from_secs(1);
