//! Problems with an interface that occur while packet threads use it. The findings depend only on
//! the properties of the interface and on the packet size that the threads accept.

use super::{Finding, Interface};

impl Interface {
    /// Returns `true` if the interface is enabled and has carrier.
    #[must_use]
    pub fn has_link(&self) -> bool {
        self.is_up && self.has_carrier
    }

    /// Returns the problems that stop traffic. `largest` is the maximum size of an IP packet that
    /// the packet threads accept, in bytes.
    #[must_use]
    pub fn faults(&self, largest: u32) -> Vec<Finding> {
        self.down().into_iter().chain(self.outgrown(largest)).collect()
    }

    /// Returns a finding if the current MTU is smaller than `at_start`, the MTU at startup.
    #[must_use]
    pub fn shrunk(&self, at_start: u32) -> Option<Finding> {
        let (name, mtu) = (&self.name, self.mtu_bytes);
        (mtu < at_start).then(|| {
            let what = format!(
                "{name} has an MTU of {mtu} bytes, and had {at_start} when the load balancer started"
            );
            Finding::warning(
                "mtu-shrunk",
                what,
                "packets that no longer fit are fragmented, or answered with a packet-too-big error",
            )
            .command(format!("ip link set dev {name} mtu {at_start}"))
        })
    }

    /// Returns the finding for packets with partial checksums. Senders leave the checksum to the
    /// hardware, but a veth pair or a bridge forwards packets without completing the checksum.
    #[must_use]
    pub fn partial_checksums(&self) -> Finding {
        let name = &self.name;
        let what = format!("packets arrive on {name} with partial checksums");
        Finding::error("partial-checksum", what, "backends drop them").hint(format!(
            "run `ethtool -K INTERFACE tx off` on each sender behind {name}, for example on the other end of a veth pair"
        ))
    }

    fn outgrown(&self, largest: u32) -> Option<Finding> {
        let (name, mtu) = (&self.name, self.mtu_bytes);
        (mtu > largest).then(|| {
            let what =
                format!("{name} has an MTU of {mtu} bytes, but packet threads accept packets of up to {largest}");
            Finding::error("mtu-frame", what, "longer packets are lost")
                .command(format!("ip link set dev {name} mtu {largest}"))
                .hint("restart the load balancer, which adapts its frames to the MTU if the driver supports that")
        })
    }
}
