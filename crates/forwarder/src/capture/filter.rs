//! The filter that selects the packets to capture.

use std::net::IpAddr;
use std::num::NonZeroU32;

use classifier::mapped;

use super::{EVERY_PACKET, Seen};
use crate::{DropReason, ServiceId, SlotId, Snapshot, Verdict};

/// The conditions for capturing a packet. A packet must meet all conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureFilter {
    /// Captures only packets to this VIP. `None` captures packets to all VIPs.
    pub vip: Option<VipFilter>,
    /// Captures only packets for which the pipeline selected a slot in this list. Packets that were
    /// dropped after the selection are included. `None` disables this condition.
    pub slots: Option<Vec<SlotId>>,
    /// Captures only packets that were dropped for a reason in this set. `None` disables this
    /// condition.
    pub drops: Option<DropReasons>,
    /// `true` to capture only packets whose flow was not in the connection table. Packets that were
    /// dropped before the table lookup are not captured.
    pub new_flows: bool,
    /// The sampling interval `n`. Each packet thread captures its first matching packet and then
    /// every `n`-th matching packet.
    pub sample: NonZeroU32,
}

impl Default for CaptureFilter {
    /// Returns a filter that matches every packet.
    fn default() -> Self {
        Self { vip: None, slots: None, drops: None, new_flows: false, sample: EVERY_PACKET }
    }
}

/// A VIP, represented by its services. A packet with a service matches if the list contains that
/// service. A packet without a service matches if its destination address belongs to a listed
/// service, on any port. Addresses of prefix groups are included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VipFilter {
    /// The services of the VIP.
    pub services: Vec<ServiceId>,
}

/// A set of [`DropReason`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropReasons(u128);

impl DropReasons {
    /// Returns `true` if the set contains `reason`.
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
    /// Returns the filter with its lists sorted for binary search.
    pub(super) fn sorted(mut self) -> Self {
        if let Some(vip) = &mut self.vip {
            vip.services.sort_unstable();
        }
        if let Some(slots) = &mut self.slots {
            slots.sort_unstable();
        }
        self
    }

    /// Returns `true` if the packet matches. The closure `destination` is called only if the VIP
    /// condition needs the address.
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

    /// Returns `true` if a listed service uses a port of `address`. The cost is linear in the
    /// number of port ranges at this address.
    fn is_at(&self, address: IpAddr, snapshot: &Snapshot) -> bool {
        let address = mapped(address);
        snapshot
            .vips
            .services(&address)
            .any(|index| snapshot.services.get(index as usize).is_some_and(|found| self.has(found.id)))
    }
}

/// `DropReasons` has one bit for each reason.
const _: () = assert!(DropReason::ALL.len() <= 128);
