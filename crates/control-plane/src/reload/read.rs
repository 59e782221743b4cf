//! A configuration, read off the control loop, and the next hops to its new backends.
//!
//! In: the file, a text in its place, or what was in force before. Out: [`Loaded`], or every reason why not.

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

/// Where a configuration is read, and what is there already.
#[derive(Clone, Debug)]
pub struct Place {
    /// The file; a text in its place includes what the file could.
    pub file: PathBuf,
    /// The name of this machine.
    pub machine: String,
    /// Addresses whose next hops are known.
    pub known: HashSet<IpAddr>,
    /// VIP addresses that the filter has had room for since the start.
    pub max_vips: u32,
}

/// Reads what is wanted, on another thread. What was in force before is not read again: it is as it was, with its secrets and lists.
///
/// # Errors
/// It has problems, or more VIP addresses than the filter has room for.
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

/// Looked up before the snapshot that names them is published: else their first packets would be dropped.
async fn next_hops(new: &[IpAddr]) -> NextHops {
    if new.is_empty() {
        return NextHops::new();
    }
    next_hop::look_up(new, PATIENCE).await.unwrap_or_else(|error| {
        // The watch goes on asking.
        tracing::warn!(%error, "next hops of new backends not looked up");
        NextHops::new()
    })
}

/// The filter's room is what it was at start, whatever the new file says.
fn fits_the_filter(config: &Config, max_vips: u32) -> Result<(), Refused> {
    let addresses: HashSet<&IpAddr> = config.vips().iter().flat_map(|vip| &vip.addresses).collect();
    if addresses.len() <= max_vips as usize {
        return Ok(());
    }
    Err(Refused::Conflict(format!(
        "{} VIP addresses, and the filter has had room for {max_vips} since the start (io.max_vips): a restart makes more",
        addresses.len()
    )))
}

/// A reload waits no longer than this for neighbours that the kernel does not know; most answer in a millisecond.
const PATIENCE: Duration = Duration::from_secs(1);
