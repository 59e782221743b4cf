//! Path MTUs to backends, peers and other clusters, as routers on the path report them.
//!
//! In: errors about outer packets, which packet threads took in. Out: the MTU of each way, for snapshots.
//! Not here: which errors name a flow (`forwarder`), the link's own MTU (`next_hop`).
//! Invariant: a lower MTU holds from its last report for [`LIFETIME`], then the way is tried anew with what the link takes.
//! Source: RFC 1191 §6.3, RFC 8201 §4.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use forwarder::{Prefix, Slot, SlotState, Snapshot};

/// What was learned of the ways that packets take, one entry a way at most: a sender of many reports gets no more room.
#[derive(Clone, Debug, Default)]
pub struct PathMtus {
    learned: HashMap<Prefix, Learned>,
    /// Ways to one address each, of slots that may be given packets; sorted.
    hosts: Vec<Prefix>,
    /// Ways to other clusters, each for many addresses: a few, whatever the number of VIPs.
    clusters: Vec<Prefix>,
    /// What the file says that the core carries.
    core: Option<u32>,
}

/// The MTU of one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedMtu {
    /// The way.
    pub way: Prefix,
    /// What it takes, in bytes.
    pub mtu: u16,
    /// How long that holds.
    pub until: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Learned {
    mtu: u16,
    until: Duration,
}

impl PathMtus {
    /// From now on reports are about the ways of this snapshot; `core` is what the file says that they carry at least.
    ///
    /// # Cost
    /// Linear in slots, and a sort of their addresses.
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

    /// Takes a report in; whether a way to `destination` takes less than before. No packet of ours goes to any other address, and
    /// what the core carries is not up to who sends errors. Of a cluster's addresses the narrowest path decides for all.
    ///
    /// A report of more than what is known is old or about another path: it renews nothing.
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

    /// Forgets what is past its time; whether there was any.
    pub fn expire(&mut self, now: Duration) -> bool {
        let before = self.learned.len();
        self.learned.retain(|_, known| known.until > now);
        self.learned.len() < before
    }

    /// The MTU of a slot's way, if one was learned.
    #[must_use]
    pub fn of(&self, slot: &Slot) -> Option<u16> {
        self.learned.get(&slot.reach()).map(|known| known.mtu)
    }

    /// All that is learned.
    pub fn learned(&self) -> impl Iterator<Item = LearnedMtu> {
        self.learned.iter().map(|(way, known)| LearnedMtu { way: *way, mtu: known.mtu, until: known.until })
    }

    /// Takes over what another process on the same clock has learned, of ways that are in use here.
    pub fn take_over(&mut self, learned: impl IntoIterator<Item = LearnedMtu>) {
        for LearnedMtu { way, mtu, until } in learned {
            if self.hosts.binary_search(&way).is_ok() || self.clusters.contains(&way) {
                self.learned.insert(way, Learned { mtu, until });
            }
        }
    }

    /// Whether nothing is learned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.learned.is_empty()
    }
}

fn host(address: IpAddr) -> Prefix {
    Prefix::of(address, u8::MAX)
}

/// RFC 1191 §6.3: not before five minutes, better ten.
const LIFETIME: Duration = Duration::from_mins(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_process_has_learned_holds_as_long_as_it_would_have_there() {
        let mut old = PathMtus { hosts: vec![host(A), host(B)], ..PathMtus::default() };
        let at = Duration::from_secs;
        assert!(old.learn(A, 1_300, at(5)) && old.learn(B, 1_200, at(9)));
        let mut new = PathMtus { hosts: vec![host(A)], ..PathMtus::default() };
        new.take_over(old.learned());
        let learned: Vec<_> = new.learned().collect();
        assert_eq!(learned, [LearnedMtu { way: host(A), mtu: 1_300, until: at(605) }], "B is nobody's here");
    }

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 1, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 1, 2));

    fn to(hosts: &[IpAddr], clusters: &[Prefix]) -> PathMtus {
        let hosts = hosts.iter().copied().map(host).collect();
        PathMtus { hosts, clusters: clusters.to_vec(), ..PathMtus::default() }
    }

    /// What is known of a way.
    fn known(paths: &PathMtus, way: Prefix) -> Option<u16> {
        paths.learned.get(&way).map(|known| known.mtu)
    }

    #[test]
    fn a_lower_mtu_holds_for_its_time_and_each_report_renews_it() {
        let mut paths = to(&[A, B], &[]);
        let minute = |n| Duration::from_mins(n);
        assert!(paths.learn(A, 1400, minute(0)));
        assert!(!paths.learn(A, 1400, minute(5)), "no news");
        assert!(!paths.expire(minute(12)));
        assert_eq!(known(&paths, host(A)), Some(1400));
        assert!(paths.learn(A, 1300, minute(13)));
        assert!(!paths.learn(A, 1350, minute(14)));
        assert_eq!([A, B].map(|address| known(&paths, host(address))), [Some(1300), None]);
        assert!(!paths.expire(minute(22)));
        assert!(paths.expire(minute(23)));
        assert!(paths.is_empty());
    }

    #[test]
    fn of_ways_that_no_packet_takes_and_of_less_than_the_core_carries_nothing_is_learned() {
        let mut paths = PathMtus { core: Some(1_400), ..to(&[A], &[]) };
        for n in 0..70_000_u32 {
            assert!(!paths.learn(std::net::Ipv4Addr::from(n).into(), 1_450, Duration::ZERO));
        }
        assert!(!paths.learn(B, 1_450, Duration::ZERO) && !paths.learn(A, 1_399, Duration::ZERO));
        assert!(paths.is_empty());
        assert!(paths.learn(A, 1_400, Duration::ZERO));
    }

    /// Before, each of its addresses had an entry, was news that was published, and took room from backends.
    #[test]
    fn a_cluster_is_one_way_however_many_of_its_addresses_reports_name() {
        let cluster = Prefix::new("2001:db8:e:100::".parse().unwrap(), 56).unwrap();
        let address = |n: u128| IpAddr::V6((0x2001_0db8_000e_0100_u128 << 64 | n).into());
        // One of the cluster's addresses is a backend's too.
        let mut paths = to(&[A, address(7)], &[cluster]);
        let news = (0..70_000).filter(|n| paths.learn(address(*n), 1_400, Duration::ZERO)).count();
        assert_eq!((news, paths.learned.len()), (2, 2), "the cluster at the first, the backend at its own");
        assert!(!paths.learn(address(70_000), 1_450, Duration::ZERO));
        assert!(paths.learn(address(70_001), 1_399, Duration::ZERO));
        assert_eq!([cluster, host(address(7))].map(|way| known(&paths, way)), [Some(1_399), Some(1_400)]);
        assert!(paths.learn(address(7), 1_390, Duration::ZERO));
        assert_eq!([cluster, host(address(7))].map(|way| known(&paths, way)), [Some(1_390); 2]);
    }
}
