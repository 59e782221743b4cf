//! The way of `via = "vip"` checks: opened when a configuration first asks for it, closed at the end.
//!
//! In: configurations. Out: how each target is reached.
//! Not here: what travels there (`control_plane::health::tunnel`).

use std::sync::{Arc, OnceLock};

use control_plane::config::{Config, Via};
use control_plane::health::Dialer;
use control_plane::health::engine::Watched;
use control_plane::health::tunnel::{Numbers, Setup, Tunnel, TunnelError};
use forwarder::Live;

/// Shared by the control loop, reloads and the health thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Way(Arc<OnceLock<Tunnel>>);

impl Way {
    /// How a target is reached. One that needs the tunnel while there is none is not watched, see [`Way::reachable`].
    pub(super) fn dialers(&self) -> impl Fn(&Watched) -> Dialer + Send + 'static {
        let way = self.clone();
        move |watched| match (&watched.key.through, watched.slot, way.0.get()) {
            (Some(through), Some(slot), Some(tunnel)) => Dialer::Tunnel(tunnel.dialer(slot, through.vip)),
            _ => Dialer::Direct,
        }
    }

    /// Those that can be reached: without a tunnel none that goes through it.
    pub(super) fn reachable(&self, mut watched: Vec<Watched>) -> Vec<Watched> {
        watched.retain(|one| one.key.through.is_none() || self.0.get().is_some());
        watched
    }

    /// Opens the tunnel if the configuration asks for it and it is not open.
    pub(super) async fn open(
        &self,
        config: &Config,
        machine: &str,
        interface: &str,
        live: &Live,
    ) -> Result<(), TunnelError> {
        let through =
            config.pools().iter().flat_map(|pool| pool.members()).flat_map(|member| member.checks());
        if self.0.get().is_some() || !through.into_iter().any(|check| check.via() == Via::Vip) {
            return Ok(());
        }
        let setup = Setup {
            tun: datapath::tun::open(DEVICE).map_err(TunnelError::Device)?,
            tun_name: DEVICE.to_owned(),
            interface: interface.to_owned(),
            own: config.machine(machine).map(|machine| machine.addresses().to_vec()).unwrap_or_default(),
            numbers: Numbers::default(),
        };
        let tunnel = Tunnel::open(setup, live.clone()).await?;
        tracing::info!(device = DEVICE, "checks through the pools' encapsulations have their way");
        // Reloads come one after the other, so nobody else has opened one meanwhile.
        let _ = self.0.set(tunnel);
        Ok(())
    }

    /// Takes rules, routes and device away. The health thread has ended, so nobody else holds the way.
    pub(super) async fn close(self) {
        let Some(tunnel) = Arc::into_inner(self.0).and_then(OnceLock::into_inner) else { return };
        if let Err(error) = tunnel.close().await {
            tracing::warn!(%error, "something of the checks' tunnel stays");
        }
    }
}

/// The TUN device's name.
const DEVICE: &str = "sluicegate0";
