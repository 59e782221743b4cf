//! What goes wrong with an interface after packet threads have started on it.
//!
//! In: an [`Interface`] as it is now, and what the threads take. Out: findings. Not here: what the start itself refuses.
//! Invariant: a function of the facts alone.

use super::{Finding, Interface};

impl Interface {
    /// Whether packets come in and go out: it is switched on, and the other end is there.
    #[must_use]
    pub fn has_link(&self) -> bool {
        self.is_up && self.has_carrier
    }

    /// What keeps packets from being carried, where packet threads take IP packets of up to `largest` bytes.
    #[must_use]
    pub fn faults(&self, largest: u32) -> Vec<Finding> {
        self.down().into_iter().chain(self.outgrown(largest)).collect()
    }

    /// What the MTU has lost since the balancer started, when the interface had `at_start`.
    #[must_use]
    pub fn shrunk(&self, at_start: u32) -> Option<Finding> {
        let (name, mtu) = (&self.name, self.mtu_bytes);
        (mtu < at_start).then(|| {
            let what =
                format!("{name} has an MTU of {mtu} bytes, and had {at_start} when the balancer started");
            Finding::warning(
                "mtu-shrunk",
                what,
                "packets that do not fit any more are answered as too big, or cut",
            )
            .command(format!("ip link set dev {name} mtu {at_start}"))
        })
    }

    /// What packet threads see of packets whose sender left their checksum to hardware: a veth pair or a bridge of a host hands
    /// them on as they are.
    #[must_use]
    pub fn partial_checksums(&self) -> Finding {
        let name = &self.name;
        let what = format!("packets come by {name} with partial checksums");
        Finding::error("partial-checksum", what, "backends drop them").hint(format!(
            "where they are sent, turn checksum offload off: `ethtool -K INTERFACE tx off` on each sender behind {name}, as on \
             the other end of a veth pair"
        ))
    }

    fn outgrown(&self, largest: u32) -> Option<Finding> {
        let (name, mtu) = (&self.name, self.mtu_bytes);
        (mtu > largest).then(|| {
            let what =
                format!("{name} has an MTU of {mtu} bytes, and packet threads take packets of up to {largest}");
            Finding::error("mtu-frame", what, "longer ones are lost")
                .command(format!("ip link set dev {name} mtu {largest}"))
                .hint("restart the balancer, which makes room for what the MTU asks for, where the driver has that")
        })
    }
}
