//! Manages the tunnel for checks with `via = "vip"`, and for all checks of backends with several
//! next hops. The tunnel is opened as soon as a configuration or a route needs it, and closed when
//! the process exits. The module `tunnel` of the crate
//! `health` handles the traffic inside the tunnel.

use std::sync::{Arc, Mutex, PoisonError};

use config::{Config, Via};
use forwarder::Live;
use health::{
    CheckHop, CheckHops, Dialer, Tunnel, TunnelError, TunnelNumbers, TunnelSetup, Watched, remove_leftovers,
};

/// The health check tunnel. The control loop, reloads and the health thread share one tunnel
/// through clones of this handle.
#[derive(Clone, Debug)]
pub(super) struct HealthTunnel {
    open: Arc<Mutex<Option<Arc<Tunnel>>>>,
    machine: Arc<str>,
    interfaces: Arc<[String]>,
    live: Live,
    hops: CheckHops,
}

/// The result of a tunnel repair.
#[derive(Debug)]
pub(super) enum Found {
    /// The tunnel works, or the configuration does not need it.
    Well,
    /// The tunnel was created again.
    New,
    /// The tunnel could not be created.
    Broken {
        error: TunnelError,
        /// `true` if checks with `via = "vip"` need the tunnel, and `false` if only multipath
        /// routes need the tunnel.
        stops_checks: bool,
    },
}

/// The warning on the status page while the health check tunnel does not work.
#[derive(Debug, Default)]
pub(super) struct TunnelFault(Option<String>);

impl TunnelFault {
    /// Sets the warning to the result of a tunnel repair. Returns `true` if the repair failed and
    /// the warning changed.
    pub(super) fn take(&mut self, found: &Found) -> bool {
        let warning = match found {
            Found::Well | Found::New => None,
            Found::Broken { error, stops_checks: true } => Some(format!(
                "health checks through the tunnel cannot run, so their health states do not change: {error}"
            )),
            Found::Broken { error, stops_checks: false } => Some(format!(
                "backends with several next hops are checked only through the one that the kernel chooses: {error}"
            )),
        };
        let is_new = warning.is_some() && warning != self.0;
        self.0 = warning;
        is_new
    }

    pub(super) fn warning(&self) -> Option<&String> {
        self.0.as_ref()
    }
}

impl HealthTunnel {
    /// Creates a handle without opening the tunnel.
    pub(super) fn new(machine: &str, interfaces: Vec<String>, live: Live, hops: &CheckHops) -> Self {
        let (machine, interfaces, hops) = (machine.into(), interfaces.into(), hops.clone());
        Self { open: Arc::default(), machine, interfaces, live, hops }
    }

    /// Returns the next hops through which backends with several next hops are checked.
    pub(super) fn hops(&self) -> CheckHops {
        self.hops.clone()
    }

    fn tunnel(&self) -> Option<Arc<Tunnel>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, tunnel: Option<Arc<Tunnel>>) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = tunnel;
    }

    /// Returns a function that selects how a target is reached. While the tunnel is closed, the
    /// function is never called for targets that need the tunnel (see [`Self::reachable`]). Until
    /// the tunnel is open, the kernel chooses the next hop of other targets.
    pub(super) fn dialers(&self) -> impl Fn(&Watched, Option<&CheckHop>) -> Dialer + Send + 'static {
        let this = self.clone();
        move |watched, hop| {
            let key = &watched.key;
            let dialer = match (&key.through, watched.slot, this.tunnel()) {
                (Some(through), Some(slot), Some(tunnel)) => Some(tunnel.dialer(slot, through.vip, hop)),
                (None, _, Some(tunnel)) => hop.and_then(|hop| tunnel.direct(key.address, hop)),
                _ => None,
            };
            dialer.map_or(Dialer::Direct, Dialer::Tunnel)
        }
    }

    /// Removes the targets that need the tunnel from `watched` while the tunnel is closed.
    pub(super) fn reachable(&self, mut watched: Vec<Watched>) -> Vec<Watched> {
        let is_open = self.tunnel().is_some();
        watched.retain(|one| one.key.through.is_none() || is_open);
        watched
    }

    /// Removes the rules, routes and device that a killed process left behind. Call this function
    /// even if no tunneled checks are configured, because no later step would remove these
    /// leftovers.
    pub(super) async fn clear() {
        match remove_leftovers(DEVICE, TunnelNumbers::default()).await {
            Ok(0) => {}
            Ok(rules) => {
                // log: A previous process was killed. The leftover routing rules of that process
                // for health checks were removed at startup.
                tracing::info!(rules, "leftover health check rules removed")
            }
            Err(error) => {
                // log: The routing rules of a killed process could not be removed. Check `ip rule`
                // for priority 83 and `ip route show table 8300`.
                tracing::warn!(%error, "leftover health check rules not removed")
            }
        }
    }

    /// Opens the tunnel if it is closed and the configuration needs it. If only a route needs the
    /// tunnel, [`Self::repair`] opens it, so that a missing TUN device does not prevent the start.
    pub(super) async fn open(&self, config: &Config) -> Result<(), TunnelError> {
        if is_configured(config) { self.create(config).await } else { Ok(()) }
    }

    /// Opens the tunnel if it is closed.
    pub(super) async fn create(&self, config: &Config) -> Result<(), TunnelError> {
        if self.tunnel().is_some() {
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
        // log: The TUN device, rules and routes for checks with `via = "vip"` were created.
        tracing::info!(interface = DEVICE, "health check tunnel opened");
        self.set(Some(Arc::new(tunnel)));
        Ok(())
    }

    /// Recreates missing parts of the tunnel. The argument `was_well` is `true` if the previous
    /// call of `repair` found no fault.
    pub(super) async fn repair(&self, was_well: bool, config: &Config) -> Found {
        if let Some(tunnel) = self.tunnel() {
            if tunnel.is_running() && tunnel.repair().await.is_ok() {
                return if was_well { Found::Well } else { Found::New };
            }
            self.set(None);
        }
        let opened = if self.hops.is_empty() { self.open(config).await } else { self.create(config).await };
        match opened {
            Ok(()) if self.tunnel().is_some() && is_configured(config) => Found::New,
            Ok(()) => Found::Well,
            Err(error) => Found::Broken { error, stops_checks: is_configured(config) },
        }
    }

    /// Removes the rules, the routes and the device. The health thread has already ended, but a
    /// repair of the tunnel may still be running.
    pub(super) async fn close(self) {
        let Some(mut tunnel) = self.tunnel() else { return };
        self.set(None);
        for _ in 0..LOOKS {
            match Arc::try_unwrap(tunnel) {
                Ok(tunnel) => {
                    if let Err(error) = tunnel.close().await {
                        // log: The routing rule with priority 83 or the routing table 8300 could
                        // not be removed when the process exited. Remove both with `ip rule` and
                        // `ip route`.
                        tracing::warn!(%error, "health check tunnel not removed");
                    }
                    return;
                }
                Err(shared) => tunnel = shared,
            }
            tokio::time::sleep(A_LOOK).await;
        }
        // log: A repair of the health check tunnel was still running when the process exited, so
        // the rules were not removed. Remove the routing rule with priority 83 and the routing
        // table 8300.
        tracing::warn!("health check tunnel still in use");
    }
}

/// Returns `true` if the configuration has checks through the tunnel.
fn is_configured(config: &Config) -> bool {
    let members = config.pools().iter().flat_map(|pool| &pool.members);
    members.flat_map(|member| member.checks.iter()).any(|check| check.via == Via::Vip)
}

/// The pause between two attempts to close the tunnel.
const A_LOOK: std::time::Duration = std::time::Duration::from_millis(10);
const LOOKS: u32 = 100;
/// The name of the TUN device.
const DEVICE: &str = "sluicegate0";

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(stops_checks: bool) -> Found {
        let error = std::io::Error::from(std::io::ErrorKind::NotFound);
        Found::Broken { error: TunnelError::of_device(DEVICE, error), stops_checks }
    }

    #[test]
    fn fault_of_a_tunnel_for_routes_names_no_stopped_check() {
        let mut fault = TunnelFault::default();
        assert!(fault.take(&broken(false)));
        assert!(fault.warning().unwrap().starts_with("backends with several next hops"));
        assert!(!fault.take(&broken(false)), "the warning is not new");
        assert!(fault.take(&broken(true)));
        assert!(fault.warning().unwrap().contains("health states do not change"));
    }

    #[test]
    fn fault_ends_when_no_route_needs_the_tunnel_any_more() {
        for found in [Found::Well, Found::New] {
            let mut fault = TunnelFault::default();
            fault.take(&broken(false));
            assert!(!fault.take(&found));
            assert_eq!(fault.warning(), None);
        }
    }
}
