//! Which packets are meant.

use std::net::IpAddr;
use std::num::NonZeroU32;

use classifier::mapped;

use super::{EVERY_PACKET, Seen};
use crate::{DropReason, ServiceId, SlotId, Snapshot, Verdict};

/// Which packets are meant: those for which every condition holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureFilter {
    /// Of this VIP.
    pub vip: Option<VipFilter>,
    /// For which one of these slots was chosen, also when they were dropped after that.
    pub slots: Option<Vec<SlotId>>,
    /// Dropped for one of these reasons.
    pub drops: Option<DropReasons>,
    /// Whose flow the connection table did not know. Packets dropped before it was asked are none.
    pub new_flows: bool,
    /// One of so many, counted by each thread, the first one included.
    pub sample: NonZeroU32,
}

impl Default for CaptureFilter {
    /// Every packet.
    fn default() -> Self {
        Self { vip: None, slots: None, drops: None, new_flows: false, sample: EVERY_PACKET }
    }
}

/// A VIP, by its services. A packet is of the VIP when its service is; while no service is known of it, when its destination has
/// such a service on any port: by an address of its own, or by prefix and suffix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VipFilter {
    /// Its services.
    pub services: Vec<ServiceId>,
}

/// A set of [`DropReason`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropReasons(u128);

impl DropReasons {
    /// Whether `reason` is one of them.
    #[must_use]
    pub const fn contains(self, reason: DropReason) -> bool {
        self.0 & (1 << reason.index()) != 0
    }
}

impl FromIterator<DropReason> for DropReasons {
    fn from_iter<I: IntoIterator<Item = DropReason>>(reasons: I) -> Self {
        Self(reasons.into_iter().fold(0, |set, reason| set | 1 << reason.index()))
    }
}

impl CaptureFilter {
    /// The same, ready to be searched.
    pub(super) fn sorted(mut self) -> Self {
        if let Some(vip) = &mut self.vip {
            vip.services.sort_unstable();
        }
        if let Some(slots) = &mut self.slots {
            slots.sort_unstable();
        }
        self
    }

    /// `destination` is asked only where it matters; whose it is, `snapshot` knows.
    pub(super) fn matches(
        &self,
        seen: &Seen,
        snapshot: &Snapshot,
        destination: impl FnOnce() -> Option<IpAddr>,
    ) -> bool {
        let reason = match seen.verdict {
            Verdict::Drop(reason) => Some(reason),
            _ => None,
        };
        let dropped = self.drops.is_none_or(|drops| reason.is_some_and(|reason| drops.contains(reason)));
        let chosen = self
            .slots
            .as_ref()
            .is_none_or(|slots| seen.slot.is_some_and(|slot| slots.binary_search(&slot).is_ok()));
        dropped
            && chosen
            && (seen.new_flow || !self.new_flows)
            && self.vip.as_ref().is_none_or(|vip| match seen.service {
                Some(service) => vip.has(service),
                None => destination().is_some_and(|to| vip.is_at(to, snapshot)),
            })
    }
}

impl VipFilter {
    fn has(&self, service: ServiceId) -> bool {
        self.services.binary_search(&service).is_ok()
    }

    /// Whether one of its services has a port of `address`. As many steps as the address has ranges of ports, at most.
    fn is_at(&self, address: IpAddr, snapshot: &Snapshot) -> bool {
        let address = mapped(address);
        snapshot
            .vips
            .services(&address)
            .any(|index| snapshot.services.get(index as usize).is_some_and(|found| self.has(found.id)))
    }
}

/// A set has a bit for each.
const _: () = assert!(DropReason::ALL.len() <= 128);
