//! Maps the source port of a check's packets to the path of the check.
//!
//! A socket claims its port between `bind` and `connect`, before its first packet. The claim
//! remains when the socket is closed, because TCP sends its last segments later. The kernel does
//! not assign the port to another socket until these segments are sent. A claim expires when no
//! packet was sent for [`LAPSE`]. A new socket with the same port replaces the claim.
//!
//! There is at most one claim per family, protocol and port.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock;

/// The address family, the protocol and the number of a source port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PortKey {
    pub(super) is_ipv4: bool,
    pub(super) protocol: u8,
    pub(super) port: u16,
}

/// The claimed ports. `T` describes the path of the packets from a port.
#[derive(Debug)]
pub(super) struct Ports<T>(Mutex<Table<T>>);

#[derive(Debug)]
struct Table<T> {
    claims: HashMap<PortKey, Claim<T>>,
    /// The number of claims at which the next claim removes expired claims.
    sweep_at: usize,
}

#[derive(Debug)]
struct Claim<T> {
    path: T,
    vip: IpAddr,
    used: Instant,
}

impl<T> Default for Ports<T> {
    fn default() -> Self {
        Self(Mutex::new(Table { claims: HashMap::new(), sweep_at: 0 }))
    }
}

impl<T: Clone> Ports<T> {
    /// Claims the port `key`, so that its packets to `vip` take `path`.
    ///
    /// # Cost
    /// Amortized constant.
    pub(super) fn claim(&self, key: PortKey, path: T, vip: IpAddr, now: Instant) {
        let mut table = lock(&self.0);
        if table.claims.len() >= table.sweep_at {
            table.claims.retain(|_, claim| !claim.has_lapsed(now));
            table.sweep_at = (2 * table.claims.len()).max(LEAST_SWEEP);
        }
        table.claims.insert(key, Claim { path, vip, used: now });
    }

    /// Returns the path of the check that sends packets from the port `key` to `destination`.
    pub(super) fn find(&self, key: PortKey, destination: IpAddr, now: Instant) -> Option<T> {
        let mut table = lock(&self.0);
        let claim = table.claims.get_mut(&key)?;
        if claim.vip != destination || claim.has_lapsed(now) {
            return None;
        }
        claim.used = now;
        Some(claim.path.clone())
    }
}

impl<T> Claim<T> {
    fn has_lapsed(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) > LAPSE
    }
}

/// The lifetime of an unused claim. This lifetime is longer than the longest pause between two TCP
/// retransmissions.
const LAPSE: Duration = Duration::from_secs(150);
const LEAST_SWEEP: usize = 1024;

#[cfg(test)]
mod tests {
    use forwarder::SlotId;
    use proptest::prelude::*;

    use super::*;

    fn key(port: u16) -> PortKey {
        PortKey { is_ipv4: true, protocol: 6, port }
    }

    const VIP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 10));

    #[test]
    fn a_claim_is_for_its_family_protocol_port_and_vip_alone() {
        let (ports, now) = (Ports::default(), Instant::now());
        ports.claim(key(7), SlotId(3), VIP, now);
        assert_eq!(ports.find(key(7), VIP, now), Some(SlotId(3)));
        let others = [
            PortKey { is_ipv4: false, ..key(7) },
            PortKey { protocol: 17, ..key(7) },
            PortKey { port: 8, ..key(7) },
        ];
        assert!(others.iter().all(|other| ports.find(*other, VIP, now).is_none()));
        assert_eq!(ports.find(key(7), "203.0.113.11".parse().unwrap(), now), None);
    }

    #[test]
    fn a_claim_lasts_while_it_is_used_and_lapses_after() {
        let (ports, start) = (Ports::default(), Instant::now());
        ports.claim(key(7), SlotId(3), VIP, start);
        for n in 1..5 {
            assert!(ports.find(key(7), VIP, start + n * LAPSE).is_some());
        }
        assert_eq!(ports.find(key(7), VIP, start + 5 * LAPSE + Duration::from_secs(1)), None);
    }

    #[test]
    fn lapsed_claims_make_room() {
        let (ports, start) = (Ports::default(), Instant::now());
        for round in 0..50 {
            let now = start + round * 2 * LAPSE;
            for port in 0..1000 {
                ports.claim(key(u16::try_from(round).unwrap() * 1000 + port), SlotId(1), VIP, now);
            }
            assert!(lock(&ports.0).claims.len() <= 2 * LEAST_SWEEP);
        }
    }

    proptest! {
        #[test]
        fn the_newest_claim_of_a_port_stands(
            steps in prop::collection::vec((0u16..4, any::<bool>(), 0u32..3, 0u64..100, any::<bool>()), 1..80)
        ) {
            let (ports, mut now) = (Ports::default(), Instant::now());
            let mut oracle: Vec<(u16, bool, u32, Instant)> = Vec::new();
            for (port, is_ipv4, slot, seconds, claims) in steps {
                now += Duration::from_secs(seconds);
                let key = PortKey { is_ipv4, ..key(port) };
                if claims {
                    ports.claim(key, SlotId(slot), VIP, now);
                    oracle.push((port, is_ipv4, slot, now));
                } else {
                    let newest = oracle.iter_mut().rev().find(|entry| (entry.0, entry.1) == (port, is_ipv4));
                    let expected = newest.filter(|entry| now - entry.3 <= LAPSE).map(|entry| {
                        entry.3 = now;
                        SlotId(entry.2)
                    });
                    prop_assert_eq!(ports.find(key, VIP, now), expected);
                }
            }
        }
    }
}
