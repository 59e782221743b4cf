//! The publisher: the one part that replaces the snapshot and changes the filter in front of the packet threads.
//!
//! In: snapshots, this machine's addresses. Out: what packet threads read, what the filter takes from the kernel, the
//! routes of a new configuration to routers.
//! The order: what goes leaves routers ([`Publisher::withdraw`], awaited), then the filter, then the threads; what comes
//! reaches the threads, then the filter, then routers ([`Publisher::change_over`]). So no packet reaches a kernel that would
//! refuse it, or a thread that does not know it.
//! Not here: what a snapshot says (`controller`), the XDP maps and the BGP speaker, which stand behind [`Filter`] and [`Routes`].

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use config::{Config, Machine};
use forwarder::{Live, Prefix, Snapshot};

use crate::announce::{Announcer, Flush};

/// The filter that leads packets of VIPs to the packet threads.
pub trait Filter {
    /// Why it can't be changed.
    type Error;
    /// Takes out what `next` does not have, and the addresses of `own`; adds nothing.
    ///
    /// # Errors
    /// Nothing of `next` may be published.
    fn narrow_to(&mut self, next: &Snapshot, own: &BTreeSet<IpAddr>) -> Result<(), Self::Error>;
    /// Makes it that of `now`, without the addresses of `own`; tunnels end, and outer packets come from, `ends`.
    ///
    /// # Errors
    /// A part may be done; the next call completes it.
    fn set(&mut self, now: &Snapshot, own: &BTreeSet<IpAddr>, ends: Vec<Prefix>) -> Result<(), Self::Error>;
}

/// The routes by which routers send packets of VIPs.
pub trait Routes {
    /// Withdraws what `next` does not announce; `None`: there is nothing to wait for.
    fn withdraw(&mut self, next: &Config, machine: &Machine) -> Option<Flush>;
    /// Announces what this configuration says.
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

/// Withdrawals on their way to routers.
#[derive(Debug)]
#[must_use = "a configuration is published after its withdrawals"]
pub struct Withdrawal(Option<Flush>);

impl Withdrawal {
    /// Waits for routers to follow: half a second at most, no time when nothing was withdrawn.
    pub async fn wait(self) -> Withdrawn {
        if let Some(flush) = self.0 {
            flush.wait().await;
        }
        Withdrawn(())
    }
}

/// Proof that routers had their time to follow a withdrawal.
#[derive(Debug)]
pub struct Withdrawn(());

/// A generation to publish.
#[derive(Debug)]
pub struct Generation<'a> {
    /// As compiled.
    pub snapshot: Snapshot,
    /// As configured.
    pub config: &'a Config,
    /// The name of this machine in it.
    pub machine: &'a str,
    /// Addresses of this machine's interfaces.
    pub interfaces: BTreeSet<IpAddr>,
}

/// See the module's header.
#[derive(Debug)]
pub struct Publisher {
    live: Live,
    /// This machine's addresses, which the kernel keeps whatever a prefix covers.
    own: BTreeSet<IpAddr>,
}

impl Publisher {
    /// Publishes by `live`, whose first snapshot no filter leads to yet.
    #[must_use]
    pub fn new(live: Live) -> Self {
        Self { live, own: BTreeSet::new() }
    }

    /// What packet threads read.
    #[must_use]
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// The snapshot in force.
    #[must_use]
    pub fn current(&self) -> Arc<Snapshot> {
        self.live.current()
    }

    /// Opens the filter for the first snapshot.
    ///
    /// # Errors
    /// As [`Filter::set`].
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

    /// Begins a change to `next`: routers lose the routes that it does not have.
    pub fn withdraw(next: &Config, machine: &str, routes: &mut impl Routes) -> Withdrawal {
        Withdrawal(next.machine(machine).and_then(|machine| routes.withdraw(next, machine)))
    }

    /// Changes over to another configuration, in the order of the module's header.
    ///
    /// # Errors
    /// Of the filter: nothing new is announced, since it would lead to nothing.
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

    /// Publishes other states, tables or paths of the same configuration: neither filter nor routes change with it.
    pub fn renew(&self, snapshot: Snapshot) {
        self.live.publish(snapshot);
    }

    /// This machine's addresses come and go; only prefixes could cover them. Whether the filter has changed.
    ///
    /// # Errors
    /// As [`Filter::set`].
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

/// The addresses that the file gives the machine, and those that its interfaces have.
fn own_addresses(config: &Config, machine: &str, mut interfaces: BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
    let configured = config.machine(machine).into_iter().flat_map(|machine| &machine.addresses);
    interfaces.extend(configured);
    interfaces
}

/// Where tunnels end and outer packets come from: addresses of the file, and prefixes of outer sources.
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

    /// Writes down each step, with the VIP that packet threads know by then.
    struct Recorded<'a> {
        live: Live,
        steps: &'a RefCell<Vec<String>>,
        broken: bool,
    }

    impl Recorded<'_> {
        fn step(&self, what: &str) {
            let known = self.live.current();
            let vips: Vec<String> = known.filter().iter().map(|(vip, _)| vip.to_string()).collect();
            self.steps.borrow_mut().push(format!("{what}, threads know {}", vips.join(" ")));
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
    async fn a_vip_leaves_routers_filter_and_threads_and_another_reaches_threads_filter_and_routers() {
        let (steps, well) = changed(false).await;
        assert!(well);
        assert_eq!(
            steps,
            [
                "withdraw, threads know 203.0.113.1",
                "narrow, 2 own, threads know 203.0.113.1",
                "set, 1 ends, threads know 203.0.113.2",
                "announce, threads know 203.0.113.2",
            ]
        );
    }

    #[tokio::test]
    async fn what_the_filter_does_not_take_is_not_announced() {
        let (steps, well) = changed(true).await;
        assert!(!well && steps.last().unwrap().starts_with("set"), "{steps:?}");
    }
}
