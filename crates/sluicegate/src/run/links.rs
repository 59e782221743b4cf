//! The balancer's interfaces while it runs: links that go down, MTUs that outgrow what packet threads take, and that shrink.
//!
//! In: the interfaces, looked at once a second. Out: rows and warnings for the status page and the metrics, and a line in the
//! log for each change.
//! Not here: judging them (`datapath::interface`); an interface that is gone ends the process (`run`).

use std::collections::{BTreeMap, BTreeSet};

use admin::view::InterfaceRow;
use datapath::interface::{Finding, Interface};
use forwarder::InterfaceId;

/// What is known of them since the last look.
#[derive(Debug)]
pub(super) struct Links {
    /// The longest IP packet that packet threads take, in bytes.
    largest: u32,
    /// The MTU of each at the start.
    mtus: BTreeMap<String, u32>,
    rows: Vec<InterfaceRow>,
    faults: Vec<String>,
    /// By interface: looks until partial checksums that came by it are forgotten.
    partial: Vec<u8>,
}

impl Links {
    /// As the start found them.
    pub(super) fn new(interfaces: &[Interface], largest: u32) -> Self {
        let mtus = interfaces.iter().map(|interface| (interface.name.clone(), interface.mtu_bytes)).collect();
        let partial = vec![0; interfaces.len()];
        let mut links = Self { largest, mtus, rows: Vec::new(), faults: Vec::new(), partial };
        links.take(interfaces);
        links
    }

    /// As they are now; each change is logged.
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
            tracing::warn!(change = "link", "{fault}");
        }
        for fault in before.difference(&now) {
            tracing::info!(change = "link", "no longer so: {fault}");
        }
        self.faults = faults;
    }

    /// Packets with partial checksums come by this interface.
    pub(super) fn saw_partial(&mut self, interface: InterfaceId) {
        if let Some(looks) = self.partial.get_mut(usize::from(interface.0)) {
            *looks = PARTIAL_LOOKS;
        }
    }

    pub(super) fn rows(&self) -> &[InterfaceRow] {
        &self.rows
    }

    /// What is wrong with them, one sentence each.
    pub(super) fn faults(&self) -> &[String] {
        &self.faults
    }
}

/// With the command that mends it.
fn sentence(finding: &Finding) -> String {
    let mend = finding.command.as_ref().or(finding.hint.as_ref());
    let mend = mend.map(|mend| format!(" (mend: {mend})")).unwrap_or_default();
    format!("{}: {}{mend}", finding.what, finding.why)
}

/// Of those that come all the while one is noticed every three seconds.
const PARTIAL_LOOKS: u8 = 10;

#[cfg(test)]
mod tests {
    use datapath::interface::Features;

    use super::*;

    /// An interface without a fault.
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
                "eth0 is down: no packet comes in or goes out (mend: ip link set dev eth0 up)",
            ),
            (
                Interface { has_carrier: false, ..well.clone() },
                "eth0 has no carrier: no packet comes in or goes out (mend: look at the cable and at the other end)",
            ),
            (
                Interface { mtu_bytes: 1_601, ..well.clone() },
                "eth0 has an MTU of 1601 bytes, and packet threads take packets of up to 1600: longer ones are lost (mend: ip link set dev eth0 mtu 1600)",
            ),
            (
                Interface { mtu_bytes: 1_599, ..well.clone() },
                "eth0 has an MTU of 1599 bytes, and had 1600 when the balancer started: packets that do not fit any more are answered as too big, or cut (mend: ip link set dev eth0 mtu 1600)",
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
