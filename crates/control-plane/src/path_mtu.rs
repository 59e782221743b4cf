//! Path MTUs to backends and peers, as routers on the path report them.
//!
//! In: errors about outer packets, which packet threads took in. Out: the MTU of each way, for snapshots.
//! Not here: which errors name a flow (`forwarder`), the link's own MTU (`next_hop`).
//! Invariant: a lower MTU holds from its last report for [`LIFETIME`], then the way is tried anew with what the link takes.
//! Source: RFC 1191 §6.3, RFC 8201 §4.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use forwarder::{Slot, SlotState, Snapshot};

/// What was learned, of ways that packets take; at most 65,536, and then no more until one is past its time.
#[derive(Clone, Debug, Default)]
pub struct PathMtus {
    learned: HashMap<IpAddr, Learned>,
    /// Addresses of slots that may be given packets, sorted.
    live: Vec<IpAddr>,
    /// Other machines and clusters, whose slots may stand for more than one address.
    redirects: Vec<Slot>,
    /// What the file says that the core carries.
    core: Option<u32>,
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
        let in_use = in_use.filter(|(_, state)| **state != SlotState::Free).map(|(slot, _)| slot);
        let (redirects, live): (Vec<&Slot>, Vec<&Slot>) = in_use.partition(|slot| slot.is_redirect());
        self.live = live.into_iter().map(|slot| slot.address).collect();
        self.live.sort_unstable();
        self.live.dedup();
        (self.redirects, self.core) = (redirects.into_iter().cloned().collect(), core);
        let mut learned = std::mem::take(&mut self.learned);
        learned.retain(|address, _| self.is_way(*address));
        self.learned = learned;
    }

    fn is_way(&self, destination: IpAddr) -> bool {
        self.live.binary_search(&destination).is_ok()
            || self.redirects.iter().any(|slot| slot.reaches(destination))
    }

    /// Takes a report in; whether the way to `destination` takes less than before. No packet of ours goes to any other address, and
    /// what the core carries is not up to who sends errors.
    ///
    /// A report of more than what is known is old or about another path: it renews nothing.
    pub fn learn(&mut self, destination: IpAddr, mtu: u16, now: Duration) -> bool {
        if self.core.is_some_and(|core| u32::from(mtu) < core) || !self.is_way(destination) {
            return false;
        }
        let until = now + LIFETIME;
        if let Some(known) = self.learned.get_mut(&destination) {
            if mtu > known.mtu {
                return false;
            }
            let lower = mtu < known.mtu;
            *known = Learned { mtu, until };
            return lower;
        }
        let has_room = self.learned.len() < MOST;
        if has_room {
            self.learned.insert(destination, Learned { mtu, until });
        }
        has_room
    }

    /// Forgets what is past its time; whether there was any.
    pub fn expire(&mut self, now: Duration) -> bool {
        let before = self.learned.len();
        self.learned.retain(|_, known| known.until > now);
        self.learned.len() < before
    }

    /// The MTU of the way to `destination`, if one was learned.
    #[must_use]
    pub fn of(&self, destination: &IpAddr) -> Option<u16> {
        self.learned.get(destination).map(|known| known.mtu)
    }

    /// Whether nothing is learned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.learned.is_empty()
    }

    /// All ways with a learned MTU.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, u16)> {
        self.learned.iter().map(|(address, known)| (*address, known.mtu))
    }
}

/// RFC 1191 §6.3: not before five minutes, better ten.
const LIFETIME: Duration = Duration::from_mins(10);
/// A 24-bit slot number's worth of backends would not be distinguished in time anyway.
const MOST: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 1, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 1, 2));

    fn to(live: Vec<IpAddr>) -> PathMtus {
        PathMtus { live, ..PathMtus::default() }
    }

    #[test]
    fn a_lower_mtu_holds_for_its_time_and_each_report_renews_it() {
        let mut paths = to(vec![A, B]);
        let minute = |n| Duration::from_mins(n);
        assert!(paths.learn(A, 1400, minute(0)));
        assert!(!paths.learn(A, 1400, minute(5)), "no news");
        assert!(!paths.expire(minute(12)));
        assert_eq!(paths.of(&A), Some(1400));
        assert!(paths.learn(A, 1300, minute(13)));
        assert!(!paths.learn(A, 1350, minute(14)));
        assert_eq!((paths.of(&A), paths.of(&B)), (Some(1300), None));
        assert!(!paths.expire(minute(22)));
        assert!(paths.expire(minute(23)));
        assert_eq!(paths.of(&A), None);
    }

    #[test]
    fn whoever_reports_much_gets_no_more_room() {
        let address = |n: u32| IpAddr::from(std::net::Ipv4Addr::from(n));
        let mut paths = to((0..70_000).map(address).collect());
        let learned = (0..70_000).filter(|n| paths.learn(address(*n), 1400, Duration::ZERO)).count();
        assert_eq!((learned, paths.iter().count()), (MOST, MOST));
        assert_eq!((paths.of(&address(0)), paths.of(&address(69_999))), (Some(1400), None));
        assert!(
            !paths.learn(address(7), 1400, Duration::ZERO) && paths.learn(address(7), 1300, Duration::ZERO)
        );
    }

    #[test]
    fn of_ways_that_no_packet_takes_and_of_less_than_the_core_carries_nothing_is_learned() {
        let mut paths = PathMtus { core: Some(1_400), ..to(vec![A]) };
        for n in 0..70_000_u32 {
            assert!(!paths.learn(std::net::Ipv4Addr::from(n).into(), 1_450, Duration::ZERO));
        }
        assert!(!paths.learn(B, 1_450, Duration::ZERO) && !paths.learn(A, 1_399, Duration::ZERO));
        assert!(paths.is_empty());
        assert!(paths.learn(A, 1_400, Duration::ZERO));
    }
}
