//! Checks the interfaces of the balancer once per second for links that are down and for changed
//! MTUs. Each change is logged. Current faults appear on the status page and in the metrics.
//! `datapath::interface` detects the faults. If an interface no longer exists, the module `run`
//! ends the process.

use std::collections::{BTreeMap, BTreeSet};

use admin::view::InterfaceRow;
use datapath::interface::{Finding, Interface};
use forwarder::InterfaceId;

/// The state of all interfaces when they were last checked.
#[derive(Debug)]
pub(super) struct Links {
    /// The maximum length of IP packets that packet threads accept, in bytes.
    largest: u32,
    /// The MTU of each interface when the process was started.
    mtus: BTreeMap<String, u32>,
    rows: Vec<InterfaceRow>,
    faults: Vec<String>,
    /// For each interface, the number of further checks until the report of partial checksums
    /// expires.
    partial: Vec<u8>,
}

impl Links {
    /// Creates the state from the interfaces as they are at startup.
    pub(super) fn new(interfaces: &[Interface], largest: u32) -> Self {
        let mtus = interfaces.iter().map(|interface| (interface.name.clone(), interface.mtu_bytes)).collect();
        let partial = vec![0; interfaces.len()];
        let mut links = Self { largest, mtus, rows: Vec::new(), faults: Vec::new(), partial };
        links.take(interfaces);
        links
    }

    /// Updates the state from new readings, and logs each change.
    pub(super) fn take(&mut self, interfaces: &[Interface]) {
        let row = |interface: &Interface| InterfaceRow {
            name: interface.name.clone(),
            link: interface.has_link(),
            mtu_bytes: interface.mtu_bytes,
            largest_packet_bytes: self.largest,
        };
        self.rows = interfaces.iter().map(row).collect();
        let found = |interface: &Interface| {
            let at_start = self.mtus.get(&interface.name).copied().unwrap_or(0);
            interface.faults(self.largest).into_iter().chain(interface.shrunk(at_start))
        };
        let partial = interfaces.iter().zip(&self.partial).filter(|(_, looks)| **looks > 0);
        let partial = partial.map(|(interface, _)| interface.partial_checksums());
        let faults: Vec<String> =
            interfaces.iter().flat_map(found).chain(partial).map(|finding| sentence(&finding)).collect();
        self.partial.iter_mut().for_each(|looks| *looks = looks.saturating_sub(1));
        let (before, now): (BTreeSet<&String>, BTreeSet<&String>) =
            (self.faults.iter().collect(), faults.iter().collect());
        for fault in now.difference(&before) {
            // log: A link is down, an MTU does not fit, or an offload setting is harmful. The field
            // `why` names the interface and, if possible, the command that fixes the fault.
            tracing::warn!(change = "link", why = %fault, "link fault detected");
        }
        for fault in before.difference(&now) {
            // log: A link fault that was logged before has ended.
            tracing::info!(change = "link", why = %fault, "link fault ended");
        }
        self.faults = faults;
    }

    /// Records that packets with partial checksums arrive on this interface.
    pub(super) fn saw_partial(&mut self, interface: InterfaceId) {
        if let Some(looks) = self.partial.get_mut(usize::from(interface.0)) {
            *looks = PARTIAL_LOOKS;
        }
    }

    pub(super) fn rows(&self) -> &[InterfaceRow] {
        &self.rows
    }

    pub(super) fn faults(&self) -> &[String] {
        &self.faults
    }
}

/// Formats a finding together with the command that fixes it.
fn sentence(finding: &Finding) -> String {
    let fix = finding.command.as_ref().or(finding.hint.as_ref());
    let fix = fix.map(|fix| format!(" (fix: {fix})")).unwrap_or_default();
    format!("{}: {}{fix}", finding.what, finding.why)
}

/// The number of checks after which a report of partial checksums expires. Packet threads repeat
/// the report every three seconds while such packets arrive.
const PARTIAL_LOOKS: u8 = 10;

#[cfg(test)]
mod tests {
    use datapath::interface::Features;

    use super::*;

    /// Returns an interface that has no fault.
    fn interface() -> Interface {
        Interface {
            name: "eth0".to_owned(),
            index: 7,
            mac: [2, 0, 0, 0, 0, 1],
            mtu_bytes: 1_600,
            is_up: true,
            has_carrier: true,
            driver: "ixgbe".to_owned(),
            queues: 4,
            max_queues: 8,
            features: Features::default(),
            master: None,
            xdp_program: None,
            xdp_program_name: None,
            multi_buffer: None,
        }
    }

    #[test]
    fn partial_checksums_are_told_for_ten_looks_after_the_last() {
        let well = interface();
        let mut links = Links::new(std::slice::from_ref(&well), 1_600);
        links.saw_partial(InterfaceId(1));
        links.saw_partial(InterfaceId(0));
        for looks in 1..=11 {
            links.take(std::slice::from_ref(&well));
            assert_eq!(links.faults().len(), usize::from(looks <= 10), "{looks}");
        }
    }

    #[test]
    fn a_fault_is_told_while_it_lasts() {
        let well = interface();
        let mut links = Links::new(std::slice::from_ref(&well), 1_600);
        assert_eq!((links.faults(), links.rows()[0].link), (&[][..], true));
        for (changed, words) in [
            (
                Interface { is_up: false, ..well.clone() },
                "eth0 is down: it carries no packets (fix: ip link set dev eth0 up)",
            ),
            (
                Interface { has_carrier: false, ..well.clone() },
                "eth0 has no carrier: it carries no packets (fix: check the cable and the other end of the link)",
            ),
            (
                Interface { mtu_bytes: 1_601, ..well.clone() },
                "eth0 has an MTU of 1601 bytes, but packet threads accept packets of up to 1600: longer packets are lost (fix: ip link set dev eth0 mtu 1600)",
            ),
            (
                Interface { mtu_bytes: 1_599, ..well.clone() },
                "eth0 has an MTU of 1599 bytes, and had 1600 when the load balancer started: packets that no longer fit are fragmented, or answered with a packet-too-big error (fix: ip link set dev eth0 mtu 1600)",
            ),
        ] {
            links.take(std::slice::from_ref(&changed));
            assert_eq!(links.faults(), [words]);
            let row = &links.rows()[0];
            assert_eq!((row.link, row.mtu_bytes), (changed.has_link(), changed.mtu_bytes));
            links.take(std::slice::from_ref(&well));
            assert!(links.faults().is_empty() && links.rows()[0].is_well());
        }
    }
}
