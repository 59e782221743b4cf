//! Path MTUs to backends and peers, as routers on the path report them.
//!
//! In: errors about outer packets, which packet threads took in. Out: the MTU of each way, for snapshots.
//! Not here: which errors are believed (`forwarder`), the link's own MTU (`next_hop`).
//! Invariant: a lower MTU holds from its last report for [`LIFETIME`], then the way is tried anew with what the link takes.
//! Source: RFC 1191 §6.3, RFC 8201 §4.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// What was learned. Bounded: of more ways than there is room for, the one that ends soonest is forgotten.
#[derive(Clone, Debug, Default)]
pub struct PathMtus {
    learned: HashMap<IpAddr, Learned>,
}

#[derive(Clone, Copy, Debug)]
struct Learned {
    mtu: u16,
    until: Duration,
}

impl PathMtus {
    /// Takes a report in; whether the way to `destination` takes less than before.
    ///
    /// A report of more than what is known is old or about another path: it renews nothing.
    pub fn learn(&mut self, destination: IpAddr, mtu: u16, now: Duration) -> bool {
        let until = now + LIFETIME;
        if let Some(known) = self.learned.get_mut(&destination) {
            if mtu > known.mtu {
                return false;
            }
            let lower = mtu < known.mtu;
            *known = Learned { mtu, until };
            return lower;
        }
        if self.learned.len() >= MOST {
            let soonest =
                self.learned.iter().min_by_key(|(_, known)| known.until).map(|(address, _)| *address);
            soonest.and_then(|address| self.learned.remove(&address));
        }
        self.learned.insert(destination, Learned { mtu, until });
        true
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

    #[test]
    fn a_lower_mtu_holds_for_its_time_and_each_report_renews_it() {
        let mut paths = PathMtus::default();
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
        let mut paths = PathMtus::default();
        for n in 0..70_000u32 {
            paths.learn(std::net::Ipv4Addr::from(n).into(), 1400, Duration::from_millis(u64::from(n)));
        }
        assert_eq!(paths.iter().count(), MOST);
        assert_eq!(paths.of(&std::net::Ipv4Addr::from(0).into()), None, "the oldest gave way");
        assert_eq!(paths.of(&std::net::Ipv4Addr::from(69_999).into()), Some(1400));
    }
}
