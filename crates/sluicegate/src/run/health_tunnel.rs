//! The tunnel of `via = "vip"` checks: opened when a configuration first asks for it, closed at the end.
//!
//! In: configurations. Out: how each target is reached.
//! Not here: what travels there (health's `tunnel`).

use std::sync::{Arc, Mutex, PoisonError};

use config::{Config, Via};
use forwarder::Live;
use health::{Dialer, Tunnel, TunnelError, TunnelNumbers, TunnelSetup, Watched, remove_leftovers};

/// Shared by the control loop, reloads and the health thread. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct HealthTunnel {
    open: Arc<Mutex<Option<Arc<Tunnel>>>>,
    machine: Arc<str>,
    interfaces: Arc<[String]>,
    live: Live,
}

/// How the tunnel was found at a look.
#[derive(Debug)]
pub(super) enum Found {
    /// As it should be, or not wanted.
    Well,
    /// Its device had gone: there is a new one.
    New,
    /// It cannot be had.
    Broken(TunnelError),
}

impl HealthTunnel {
    /// That of `machine`, not yet open.
    pub(super) fn new(machine: &str, interfaces: Vec<String>, live: Live) -> Self {
        Self { open: Arc::default(), machine: machine.into(), interfaces: interfaces.into(), live }
    }

    fn tunnel(&self) -> Option<Arc<Tunnel>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, tunnel: Option<Arc<Tunnel>>) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = tunnel;
    }

    /// How a target is reached. One that needs the tunnel while there is none is not watched, see [`Self::reachable`].
    pub(super) fn dialers(&self) -> impl Fn(&Watched) -> Dialer + Send + 'static {
        let this = self.clone();
        move |watched| match (&watched.key.through, watched.slot, this.tunnel()) {
            (Some(through), Some(slot), Some(tunnel)) => Dialer::Tunnel(tunnel.dialer(slot, through.vip)),
            _ => Dialer::Direct,
        }
    }

    /// The targets that can be reached: without a tunnel none that goes through it.
    pub(super) fn reachable(&self, mut watched: Vec<Watched>) -> Vec<Watched> {
        let is_open = self.tunnel().is_some();
        watched.retain(|one| one.key.through.is_none() || is_open);
        watched
    }

    /// Takes away what a killed process left: a start without such checks would leave it for ever.
    pub(super) async fn clear() {
        match remove_leftovers(DEVICE, TunnelNumbers::default()).await {
            Ok(0) => {}
            Ok(rules) => {
                tracing::info!(rules, "what a killed process left of the checks' tunnel is taken away")
            }
            Err(error) => {
                tracing::warn!(%error, "what a killed process may have left of the checks' tunnel stays")
            }
        }
    }

    /// Opens the tunnel if the configuration asks for it and it is not open.
    pub(super) async fn open(&self, config: &Config) -> Result<(), TunnelError> {
        let mut checks =
            config.pools().iter().flat_map(|pool| &pool.members).flat_map(|member| member.checks.iter());
        if self.tunnel().is_some() || !checks.any(|check| check.via == Via::Vip) {
            return Ok(());
        }
        let own = config.machine(&self.machine).map(|machine| machine.addresses.to_vec());
        let setup = TunnelSetup {
            tun: datapath::open_tun(DEVICE).map_err(|error| TunnelError::of_device(DEVICE, error))?,
            tun_name: DEVICE.to_owned(),
            interfaces: self.interfaces.to_vec(),
            own: own.unwrap_or_default(),
            numbers: TunnelNumbers::default(),
        };
        let tunnel = Tunnel::open(setup, self.live.clone()).await?;
        tracing::info!(device = DEVICE, "checks through the pools' encapsulations have their way");
        self.set(Some(Arc::new(tunnel)));
        Ok(())
    }

    /// Puts back what another program removed. `was_well` says whether it was there at the last look.
    pub(super) async fn mend(&self, was_well: bool, config: &Config) -> Found {
        if let Some(tunnel) = self.tunnel() {
            if tunnel.is_running() && tunnel.mend().await.is_ok() {
                return if was_well { Found::Well } else { Found::New };
            }
            self.set(None);
        }
        match self.open(config).await {
            Ok(()) if self.tunnel().is_some() => Found::New,
            Ok(()) => Found::Well,
            Err(error) => Found::Broken(error),
        }
    }

    /// Takes rules, routes and device away. The health thread has ended; a look may still be under way.
    pub(super) async fn close(self) {
        let Some(mut tunnel) = self.tunnel() else { return };
        self.set(None);
        for _ in 0..LOOKS {
            match Arc::try_unwrap(tunnel) {
                Ok(tunnel) => {
                    if let Err(error) = tunnel.close().await {
                        tracing::warn!(%error, "something of the checks' tunnel stays");
                    }
                    return;
                }
                Err(shared) => tunnel = shared,
            }
            tokio::time::sleep(A_LOOK).await;
        }
        tracing::warn!("the rules of the checks' tunnel stay");
    }
}

/// How long a look after the tunnel is awaited at the end.
const A_LOOK: std::time::Duration = std::time::Duration::from_millis(10);
const LOOKS: u32 = 100;
/// The TUN device's name.
const DEVICE: &str = "sluicegate0";
