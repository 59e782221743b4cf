//! Learns path MTUs to backends, peers and other clusters from ICMP errors about outer packets.
//!
//! Packet threads collect the ICMP errors, and the compiler writes the learned MTU of each path
//! into snapshots. The crate `forwarder` checks that an ICMP error belongs to a flow, and
//! `next_hop` determines link MTUs. Invariant: a learned MTU expires [`LIFETIME`] after its last
//! report, and the link MTU applies again. See RFC 1191 §6.3 and RFC 8201 §4.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use forwarder::{Prefix, Slot, SlotState, Snapshot};

/// The learned MTUs. Each path has at most one learned MTU, so memory use is bounded by the number
/// of paths, regardless of the number of reported errors.
#[derive(Clone, Debug, Default)]
pub struct PathMtus {
    learned: HashMap<Prefix, Learned>,
    /// The paths to the addresses of all slots that may receive packets, sorted by address.
    hosts: Vec<Prefix>,
    /// The paths to other clusters. Each path covers a whole prefix, so the number of paths does
    /// not grow with the number of VIPs.
    clusters: Vec<Prefix>,
    /// The configured minimum MTU of the core network, in bytes.
    core: Option<u32>,
}

/// The learned MTU of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedMtu {
    /// The destination address or prefix.
    pub way: Prefix,
    /// The MTU in bytes.
    pub mtu: u16,
    /// The monotonic time at which the learned MTU expires.
    pub until: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Learned {
    mtu: u16,
    until: Duration,
}

impl PathMtus {
    /// Replaces the known paths with the paths in `snapshot`. From then on, reports are accepted
    /// only for these paths. `core` is the configured minimum MTU of the core network.
    ///
    /// # Cost
    /// Linear in the number of slots, plus sorting their addresses.
    pub fn follow(&mut self, snapshot: &Snapshot, core: Option<u32>) {
        let in_use = snapshot.slots().iter().zip(snapshot.states());
        let in_use = in_use.filter(|(_, state)| **state != SlotState::Free);
        let mut ways: Vec<Prefix> = in_use.map(|(slot, _)| slot.reach()).collect();
        ways.sort_unstable();
        ways.dedup();
        (self.hosts, self.clusters) = ways.into_iter().partition(|way| *way == host(way.address()));
        self.core = core;
        let mut learned = std::mem::take(&mut self.learned);
        learned.retain(|way, _| self.hosts.binary_search(way).is_ok() || self.clusters.contains(way));
        self.learned = learned;
    }

    /// Records a reported path MTU. Returns `true` if this decreased the MTU of a path to
    /// `destination`.
    ///
    /// A report about an address that is not on a known path is ignored. A report below the
    /// configured minimum MTU of the core network is also ignored, because anyone can send forged
    /// ICMP errors. The path to another cluster gets the smallest MTU that was reported for an
    /// address of the cluster. If a report contains a larger MTU than the known MTU, the report is
    /// old or belongs to a different path. Such a report therefore does not extend the lifetime of
    /// the known MTU.
    pub fn learn(&mut self, destination: IpAddr, mtu: u16, now: Duration) -> bool {
        if self.core.is_some_and(|core| u32::from(mtu) < core) {
            return false;
        }
        let found = self.hosts.binary_search(&host(destination)).ok().map(|at| self.hosts[at]);
        let clusters = self.clusters.iter().filter(|way| way.contains(destination)).copied();
        let ways: Vec<Prefix> = found.into_iter().chain(clusters).collect();
        let mut is_lower = false;
        for way in ways {
            is_lower |= self.learn_of(way, mtu, now + LIFETIME);
        }
        is_lower
    }

    fn learn_of(&mut self, way: Prefix, mtu: u16, until: Duration) -> bool {
        let known = self.learned.get(&way).map(|known| known.mtu);
        if known.is_some_and(|known| mtu > known) {
            return false;
        }
        self.learned.insert(way, Learned { mtu, until });
        known != Some(mtu)
    }

    /// Removes expired MTUs. Returns `true` if at least one MTU was removed.
    pub fn expire(&mut self, now: Duration) -> bool {
        let before = self.learned.len();
        self.learned.retain(|_, known| known.until > now);
        self.learned.len() < before
    }

    /// Returns the MTU that was learned for the path to the backend in `slot`, or `None` if no MTU
    /// was learned.
    #[must_use]
    pub fn of(&self, slot: &Slot) -> Option<u16> {
        self.learned.get(&slot.reach()).map(|known| known.mtu)
    }

    /// Returns all learned MTUs.
    pub fn learned(&self) -> impl Iterator<Item = LearnedMtu> {
        self.learned.iter().map(|(way, known)| LearnedMtu { way: *way, mtu: known.mtu, until: known.until })
    }

    /// Imports the MTUs that the previous process learned. Paths that are not in use are skipped.
    /// Both processes must use the same clock.
    pub fn take_over(&mut self, learned: impl IntoIterator<Item = LearnedMtu>) {
        for LearnedMtu { way, mtu, until } in learned {
            if self.hosts.binary_search(&way).is_ok() || self.clusters.contains(&way) {
                self.learned.insert(way, Learned { mtu, until });
            }
        }
    }

    /// Returns `true` if no learned MTU is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.learned.is_empty()
    }
}

fn host(address: IpAddr) -> Prefix {
    Prefix::of(address, u8::MAX)
}

/// The lifetime of a learned MTU. RFC 1191 §6.3 requires at least five minutes and recommends ten
/// minutes.
const LIFETIME: Duration = Duration::from_mins(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_over_keeps_expiry_and_skips_unused_paths() {
        let mut old = PathMtus { hosts: vec![host(A), host(B)], ..PathMtus::default() };
        let at = Duration::from_secs;
        assert!(old.learn(A, 1_300, at(5)) && old.learn(B, 1_200, at(9)));
        let mut new = PathMtus { hosts: vec![host(A)], ..PathMtus::default() };
        new.take_over(old.learned());
        let learned: Vec<_> = new.learned().collect();
        assert_eq!(learned, [LearnedMtu { way: host(A), mtu: 1_300, until: at(605) }], "no slot uses B");
    }

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 1, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 1, 2));

    fn to(hosts: &[IpAddr], clusters: &[Prefix]) -> PathMtus {
        let hosts = hosts.iter().copied().map(host).collect();
        PathMtus { hosts, clusters: clusters.to_vec(), ..PathMtus::default() }
    }

    fn known(paths: &PathMtus, way: Prefix) -> Option<u16> {
        paths.learned.get(&way).map(|known| known.mtu)
    }

    #[test]
    fn lower_mtu_expires_unless_reports_renew_it() {
        let mut paths = to(&[A, B], &[]);
        let minute = |n| Duration::from_mins(n);
        assert!(paths.learn(A, 1400, minute(0)));
        assert!(!paths.learn(A, 1400, minute(5)), "the MTU did not change");
        assert!(!paths.expire(minute(12)));
        assert_eq!(known(&paths, host(A)), Some(1400));
        assert!(paths.learn(A, 1300, minute(13)));
        assert!(!paths.learn(A, 1350, minute(14)));
        assert_eq!([A, B].map(|address| known(&paths, host(address))), [Some(1300), None]);
        assert!(!paths.expire(minute(22)));
        assert!(paths.expire(minute(23)));
        assert!(paths.is_empty());
    }

    // Promise: path-mtu-forgery
    #[test]
    fn learn_ignores_unused_paths_and_mtu_below_core() {
        let mut paths = PathMtus { core: Some(1_400), ..to(&[A], &[]) };
        for n in 0..70_000_u32 {
            assert!(!paths.learn(std::net::Ipv4Addr::from(n).into(), 1_450, Duration::ZERO));
        }
        assert!(!paths.learn(B, 1_450, Duration::ZERO) && !paths.learn(A, 1_399, Duration::ZERO));
        assert!(paths.is_empty());
        assert!(paths.learn(A, 1_400, Duration::ZERO));
    }

    // Promise: path-mtu-memory
    /// Regression test for an earlier version, in which each address of a cluster had its own
    /// entry. Each new entry caused the publication of a new snapshot, and took up space that
    /// backends needed.
    #[test]
    fn cluster_is_one_path_for_all_its_addresses() {
        let cluster = Prefix::new("2001:db8:e:100::".parse().unwrap(), 56).unwrap();
        let address = |n: u128| IpAddr::V6((0x2001_0db8_000e_0100_u128 << 64 | n).into());
        // The backend's address is inside the prefix of the cluster.
        let mut paths = to(&[A, address(7)], &[cluster]);
        let news = (0..70_000).filter(|n| paths.learn(address(*n), 1_400, Duration::ZERO)).count();
        assert_eq!((news, paths.learned.len()), (2, 2), "one MTU for the cluster and one for the backend");
        assert!(!paths.learn(address(70_000), 1_450, Duration::ZERO));
        assert!(paths.learn(address(70_001), 1_399, Duration::ZERO));
        assert_eq!([cluster, host(address(7))].map(|way| known(&paths, way)), [Some(1_399), Some(1_400)]);
        assert!(paths.learn(address(7), 1_390, Duration::ZERO));
        assert_eq!([cluster, host(address(7))].map(|way| known(&paths, way)), [Some(1_390); 2]);
    }
}
