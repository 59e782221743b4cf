//! The publisher replaces the snapshot, and changes the XDP filter and the BGP routes in a safe
//! order.
//!
//! Removed VIPs are withdrawn from the routers first ([`Publisher::withdraw`], which the caller
//! awaits). Next, the removed VIPs are deleted from the filter, and finally from the snapshot.
//! Added VIPs are added to the snapshot first, then to the filter, and are then announced to the
//! routers ([`Publisher::change_over`]). Packets for a VIP are therefore never passed to the
//! kernel, which would reject them, or to a packet thread that does not know the VIP. The XDP maps
//! implement [`Filter`], and the BGP announcer implements [`Routes`].

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use config::{Config, Machine};
use forwarder::{Live, Prefix, Snapshot};

use crate::announce::{Announcer, Flush};

/// The filter that redirects packets for VIPs to the packet threads. All other packets go to the
/// kernel.
pub trait Filter {
    /// The error type of the filter.
    type Error;
    /// Removes from the filter all VIPs that are not in `next`, and the addresses of this machine
    /// (`own`). Nothing is added to the filter.
    ///
    /// # Errors
    /// If the filter returns an error, the caller must not publish `next`.
    fn narrow_to(&mut self, next: &Snapshot, own: &BTreeSet<IpAddr>) -> Result<(), Self::Error>;
    /// Sets the filter to the VIPs in `now`, without the addresses of this machine (`own`). `ends`
    /// are the tunnel endpoints and the prefixes of outer source addresses.
    ///
    /// # Errors
    /// After an error, the filter may be partly updated. The next call completes the update.
    fn set(&mut self, now: &Snapshot, own: &BTreeSet<IpAddr>, ends: Vec<Prefix>) -> Result<(), Self::Error>;
}

/// The routes that make routers send packets for VIPs to this machine.
pub trait Routes {
    /// Withdraws the routes that are not in the configuration `next`. Returns `None` if no route is
    /// withdrawn.
    fn withdraw(&mut self, next: &Config, machine: &Machine) -> Option<Flush>;
    /// Announces the routes that this configuration defines.
    fn follow(&mut self, config: &Config, machine: &Machine);
}

impl Routes for Announcer {
    fn withdraw(&mut self, next: &Config, machine: &Machine) -> Option<Flush> {
        self.retire(next, machine)
    }

    fn follow(&mut self, config: &Config, machine: &Machine) {
        self.configure(config, machine);
    }
}

/// Withdrawals that the routers may not have applied yet.
#[derive(Debug)]
#[must_use = "a configuration is published after its withdrawals"]
pub struct Withdrawal(Option<Flush>);

impl Withdrawal {
    /// Waits until the routers have applied the withdrawals. The wait is at most 0.5 s, and there
    /// is no wait if no route was withdrawn.
    pub async fn wait(self) -> Withdrawn {
        if let Some(flush) = self.0 {
            flush.wait().await;
        }
        Withdrawn(())
    }
}

/// Proof that the caller has waited for the withdrawals.
#[derive(Debug)]
pub struct Withdrawn(());

/// A generation to publish.
#[derive(Debug)]
pub struct Generation<'a> {
    /// The snapshot that was compiled from the configuration.
    pub snapshot: Snapshot,
    /// The configuration from which the snapshot was compiled.
    pub config: &'a Config,
    /// The name of this machine in the configuration.
    pub machine: &'a str,
    /// The interface addresses of this machine.
    pub interfaces: BTreeSet<IpAddr>,
}

/// Publishes the snapshots of one process.
#[derive(Debug)]
pub struct Publisher {
    live: Live,
    /// The addresses of this machine. Packets to these addresses go to the kernel, even if a VIP
    /// prefix covers them.
    own: BTreeSet<IpAddr>,
}

impl Publisher {
    /// Creates a publisher for the shared snapshot pointer `live`. The filter redirects no packets
    /// until [`Publisher::open`] is called.
    #[must_use]
    pub fn new(live: Live) -> Self {
        Self { live, own: BTreeSet::new() }
    }

    /// Returns the shared snapshot pointer from which packet threads read.
    #[must_use]
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// Returns the current snapshot.
    #[must_use]
    pub fn current(&self) -> Arc<Snapshot> {
        self.live.current()
    }

    /// Sets the filter to the VIPs of the first snapshot.
    ///
    /// # Errors
    /// Returns the error of [`Filter::set`].
    pub fn open<F: Filter>(
        &mut self,
        config: &Config,
        machine: &str,
        interfaces: BTreeSet<IpAddr>,
        filter: &mut F,
    ) -> Result<(), F::Error> {
        self.own = own_addresses(config, machine, interfaces);
        filter.set(&self.live.current(), &self.own, ends(config, machine))
    }

    /// Withdraws the routes that are not in the configuration `next`. The withdrawal is the first
    /// step of a configuration change.
    pub fn withdraw(next: &Config, machine: &str, routes: &mut impl Routes) -> Withdrawal {
        Withdrawal(next.machine(machine).and_then(|machine| routes.withdraw(next, machine)))
    }

    /// Applies a new configuration in four steps: removes VIPs from the filter, publishes the
    /// snapshot, adds VIPs to the filter, and announces routes.
    ///
    /// # Errors
    /// Returns the error of the filter. In this case, new VIPs are not announced, because the
    /// filter would not redirect their packets to the packet threads.
    pub fn change_over<F: Filter>(
        &mut self,
        _: Withdrawn,
        next: Generation<'_>,
        filter: &mut F,
        routes: &mut impl Routes,
    ) -> Result<(), F::Error> {
        let Generation { snapshot, config, machine, interfaces } = next;
        self.own = own_addresses(config, machine, interfaces);
        filter.narrow_to(&snapshot, &self.own)?;
        self.live.publish(snapshot);
        filter.set(&self.live.current(), &self.own, ends(config, machine))?;
        if let Some(machine) = config.machine(machine) {
            routes.follow(config, machine);
        }
        Ok(())
    }

    /// Publishes a snapshot of the current configuration with changed states, tables or paths.
    /// The filter and the routes do not change.
    pub fn renew(&self, snapshot: Snapshot) {
        self.live.publish(snapshot);
    }

    /// Updates the filter after the interface addresses of this machine have changed. An interface
    /// address matters only if a VIP prefix covers it. Returns `true` if the filter changed.
    pub fn follow_own_addresses<F: Filter>(
        &mut self,
        config: &Config,
        machine: &str,
        interfaces: impl FnOnce() -> BTreeSet<IpAddr>,
        filter: &mut F,
    ) -> Result<bool, F::Error> {
        let current = self.live.current();
        if current.filter_prefixes().is_empty() {
            return Ok(false);
        }
        let own = own_addresses(config, machine, interfaces());
        if own == self.own {
            return Ok(false);
        }
        self.own = own;
        filter.set(&current, &self.own, ends(config, machine)).map(|()| true)
    }
}

/// Returns the configured addresses of the machine, and the addresses of its interfaces.
fn own_addresses(config: &Config, machine: &str, mut interfaces: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
    let configured = config.machine(machine).into_iter().flat_map(|machine| &machine.addresses);
    interfaces.extend(configured);
    interfaces
}

/// Returns the addresses of this machine, and the configured prefixes of outer source addresses.
fn ends(config: &Config, machine: &str) -> Vec<Prefix> {
    let whole = |address: &IpAddr| Prefix::new(*address, if address.is_ipv4() { 32 } else { 128 });
    let own = config.machine(machine).into_iter().flat_map(|machine| &machine.addresses);
    let prefixes = config.members().flat_map(|member| &member.encapsulation.source_prefixes).copied();
    let mut ends: Vec<Prefix> = own.filter_map(whole).chain(prefixes).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::controller::Controller;

    fn started(vip: &str) -> (Controller, Snapshot) {
        let text = format!(
            "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\ntable_size = 1009\n[machine.lb1]\n\
             addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n[pool.p]\nbackends = [\
             {{ name = \"a\", address = \"198.18.0.1\" }}]\n[vip.www]\naddresses = [\"{vip}\"]\n\
             services = [{{ ports = [80], protocol = \"tcp\", pool = \"p\" }}]\n"
        );
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        let (config, _) = config::parse(&text, Path::new("a.toml"), &secret).unwrap();
        Controller::start(Arc::new(config), "lb1", Arc::default(), Duration::ZERO).unwrap()
    }

    /// Records each step, together with the VIPs in the snapshot at that time.
    struct Recorded<'a> {
        live: Live,
        steps: &'a RefCell<Vec<String>>,
        broken: bool,
    }

    impl Recorded<'_> {
        fn step(&self, what: &str) {
            let known = self.live.current();
            let vips: Vec<String> = known.filter().iter().map(ToString::to_string).collect();
            self.steps.borrow_mut().push(format!("{what}; published VIP: {}", vips.join(" ")));
        }
    }

    impl Filter for Recorded<'_> {
        type Error = &'static str;

        fn narrow_to(&mut self, _: &Snapshot, own: &BTreeSet<IpAddr>) -> Result<(), Self::Error> {
            self.step(&format!("narrow, {} own", own.len()));
            Ok(())
        }

        fn set(&mut self, _: &Snapshot, _: &BTreeSet<IpAddr>, ends: Vec<Prefix>) -> Result<(), Self::Error> {
            self.step(&format!("set, {} ends", ends.len()));
            if self.broken { Err("the kernel refuses") } else { Ok(()) }
        }
    }

    impl Routes for Recorded<'_> {
        fn withdraw(&mut self, _: &Config, _: &Machine) -> Option<Flush> {
            self.step("withdraw");
            None
        }

        fn follow(&mut self, _: &Config, _: &Machine) {
            self.step("announce");
        }
    }

    async fn changed(broken: bool) -> (Vec<String>, bool) {
        let ((_, old), (new, snapshot)) = (started("203.0.113.1"), started("203.0.113.2"));
        let (live, steps) = (Live::new(old), RefCell::default());
        let recorded = |broken| Recorded { live: live.clone(), steps: &steps, broken };
        let (mut filter, mut routes) = (recorded(broken), recorded(false));
        let mut publisher = Publisher::new(live.clone());
        let config = Arc::clone(new.config());
        let withdrawn = Publisher::withdraw(&config, "lb1", &mut routes).wait().await;
        let interfaces = BTreeSet::from(["192.0.2.7".parse().unwrap()]);
        let next = Generation { snapshot, config: &config, machine: "lb1", interfaces };
        let changed = publisher.change_over(withdrawn, next, &mut filter, &mut routes);
        (steps.take(), changed.is_ok())
    }

    #[tokio::test]
    async fn change_over_keeps_the_order_of_steps() {
        let (steps, well) = changed(false).await;
        assert!(well);
        assert_eq!(
            steps,
            [
                "withdraw; published VIP: 203.0.113.1",
                "narrow, 2 own; published VIP: 203.0.113.1",
                "set, 1 ends; published VIP: 203.0.113.2",
                "announce; published VIP: 203.0.113.2",
            ]
        );
    }

    #[tokio::test]
    async fn filter_error_prevents_announcement() {
        let (steps, well) = changed(true).await;
        assert!(!well && steps.last().unwrap().starts_with("set"), "{steps:?}");
    }
}
