//! Machine readiness and VIP readiness.
//!
//! Readiness is computed only in this module. `/readyz`, `/readyz/vip/NAME`, the API, the command
//! line, the status page, the metrics and the service manager all use a [`Readiness`].
//!
//! A machine is ready if it can forward packets and if routers can find it. The machine can forward
//! packets if the forwarder is healthy and at least one interface has a link. Routers can find the
//! machine if at least one VIP is announced, or if the machine announces no VIPs. A VIP is ready if
//! the machine can forward packets, all services of the VIP have a backend, and each of its routes
//! is announced. A VIP that is not ready therefore does not make the machine unready.

use std::collections::BTreeMap;

use crate::view::{InterfaceRow, VipRow};

/// The state of the machine, apart from its VIPs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The problem of the packet threads, their sockets or the XDP programs, or `None` if there is
    /// none.
    pub fault: Option<String>,
    /// The names of the interfaces without a link.
    pub without_link: Vec<String>,
    /// `true` if at least one interface has a link.
    pub has_link: bool,
    /// `true` after a drain has started.
    pub draining: bool,
    /// `true` if all health checks have a first result, or if the wait for first results has timed
    /// out.
    pub set_up: bool,
}

impl Machine {
    /// Updates the links from the rows of all interfaces.
    pub fn take_links(&mut self, interfaces: &[InterfaceRow]) {
        self.has_link = interfaces.iter().any(|row| row.link);
        let without = interfaces.iter().filter(|row| !row.link);
        self.without_link = without.map(|row| row.name.clone()).collect();
    }

    fn faults(&self) -> Vec<String> {
        let links = || format!("{} down or without carrier", self.without_link.join(", "));
        let faults = [
            self.fault.clone(),
            (!self.has_link && !self.without_link.is_empty()).then(links),
            self.draining.then(|| "draining".to_owned()),
            (!self.set_up).then(|| "waiting for the first results of health checks".to_owned()),
        ];
        faults.into_iter().flatten().collect()
    }
}

/// The state of one VIP, apart from the state of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VipState {
    /// The reason why a service has no backend, or `None` if all services have one.
    pub unserved: Option<String>,
    /// The announcements of the VIP, or `None` if this machine does not announce it.
    pub announcement: Option<Announcement>,
}

/// The announcements of one VIP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The peers that have a route of the VIP.
    pub peers: Vec<String>,
    /// `true` if all routes of at least one address family are announced.
    pub is_announced: bool,
    /// The reason why an address family is not announced, or `None` if all are announced.
    pub missing: Option<String>,
}

impl VipState {
    /// Returns the reasons that concern only the VIP `name`, such as `not announced: www, flap
    /// damping, 8 s left`.
    fn faults(&self, name: &str) -> impl Iterator<Item = String> {
        let unserved = self.unserved.iter().map(move |why| format!("not serving: {name}, {why}"));
        let missing = self.announcement.iter().filter_map(|announcement| announcement.missing.as_ref());
        unserved.chain(missing.map(move |why| format!("not announced: {name}, {why}")))
    }
}

/// The readiness of the machine and of its VIPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    fault: Option<String>,
    machine: Vec<String>,
    unannounced: bool,
    vips: BTreeMap<String, VipState>,
}

impl Default for Readiness {
    /// Returns the readiness of a process that is starting.
    fn default() -> Self {
        Self { machine: vec!["starting".to_owned()], ..Self::of(&Machine::default(), BTreeMap::new()) }
    }
}

impl Readiness {
    /// Computes the readiness from the state of the machine and the states of its VIPs.
    #[must_use]
    pub fn of(machine: &Machine, vips: BTreeMap<String, VipState>) -> Self {
        let mut announcements = vips.values().filter_map(|vip| vip.announcement.as_ref()).peekable();
        let unannounced =
            announcements.peek().is_some() && announcements.all(|announcement| !announcement.is_announced);
        Self { fault: machine.fault.clone(), machine: machine.faults(), unannounced, vips }
    }

    /// Returns the problem of the forwarder, or `None` if it is healthy.
    #[must_use]
    pub fn forwarder_fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Returns `true` if the machine is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.machine.is_empty() && !self.unannounced
    }

    /// Returns the reasons why the machine is not ready. The list is empty if the machine is ready.
    /// The texts contain no times, so they stay the same while the reasons stay the same.
    #[must_use]
    pub fn not_ready(&self) -> Vec<String> {
        let unannounced = self.unannounced.then(|| "no VIP is announced to a router".to_owned());
        self.machine.iter().cloned().chain(unannounced).collect()
    }

    /// Returns the states of all VIPs, by name.
    #[must_use]
    pub fn vips(&self) -> &BTreeMap<String, VipState> {
        &self.vips
    }

    /// Returns the reasons why a VIP is not ready. The list is empty if the VIP is ready. Returns
    /// `None` if this machine has no such VIP.
    #[must_use]
    pub fn vip_not_ready(&self, name: &str) -> Option<Vec<String>> {
        let vip = self.vips.get(name)?;
        Some(self.machine.iter().cloned().chain(vip.faults(name)).collect())
    }

    /// Returns the names of the VIPs that are not ready.
    pub fn vips_not_ready(&self) -> impl Iterator<Item = &str> {
        let is_faulty = |(name, vip): &(&String, &VipState)| {
            !self.machine.is_empty() || vip.faults(name).next().is_some()
        };
        self.vips.iter().filter(is_faulty).map(|(name, _)| name.as_str())
    }

    /// Returns the reasons why VIPs are not ready, for at most `most` VIPs, and the number of
    /// further VIPs. Faults of the machine are not included.
    #[must_use]
    pub fn vip_faults(&self, most: usize) -> Vec<String> {
        let faults = self.vips.iter().map(|(name, vip)| vip.faults(name).collect::<Vec<_>>());
        let mut faults = faults.filter(|faults| !faults.is_empty());
        let mut named: Vec<String> = faults.by_ref().take(most).flatten().collect();
        let more = faults.count();
        if more > 0 {
            named.push(format!("and {more} more {}", if more == 1 { "VIP" } else { "VIPs" }));
        }
        named
    }

    /// Sets the readiness in the rows of `vip list`.
    pub fn fill(&self, rows: &mut [VipRow]) {
        for row in rows {
            row.not_ready = self.vip_not_ready(&row.name).unwrap_or_default();
            row.ready = row.not_ready.is_empty();
            let announcement = self.vips.get(&row.name).and_then(|vip| vip.announcement.as_ref());
            row.announced_to = announcement.map(|announcement| announcement.peers.clone());
        }
    }
}

#[cfg(test)]
mod tests;
