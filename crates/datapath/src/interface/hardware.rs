//! What a device can do for XDP, and how it spreads packets over its queues.
//!
//! In: an [`Interface`]. Out: [`Hardware`], plain facts. Not here: what follows from them (`sluicegate doctor`).
//! Source: `xdp-features` of Linux 6.3 and newer; before that, the drivers that were known to have it.

use super::ethtool::Ethtool;
use super::{Interface, checked_name, netdev};
use crate::placement::{Processors, near_device};

/// Facts of a device besides those of [`Interface`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// What of XDP the driver has.
    pub xdp: XdpSupport,
    /// The queues that RSS spreads packets to, sorted, each once; `None`: the device has no table of them.
    pub rss_queues: Option<Vec<u32>>,
    /// How its channels are counted.
    pub channels: Channels,
    /// The kernel merges received packets, after the driver's XDP and before the generic one.
    pub gro: bool,
    /// Its PCI address, such as `0000:01:00.0`; empty for devices without one.
    pub bus: String,
    /// The processors on its memory node; none where the machine does not say.
    pub near: Processors,
}

/// What of XDP a driver has; `None`: neither the kernel nor a list knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpSupport {
    /// The program runs in the driver.
    pub native: Option<bool>,
    /// A program in the driver can hand packets to sockets.
    pub redirect: Option<bool>,
    /// Sockets without a copy.
    pub zero_copy: Option<bool>,
}

/// How `ethtool -L` counts channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// One number: `combined`.
    Combined,
    /// Two: `rx` and `tx`.
    Separate,
}

impl Hardware {
    /// Asks the kernel about `interface`, in the calling thread's network namespace. What a device does not answer is
    /// `None` or off.
    ///
    /// # Cost
    /// Two generic netlink requests, seven ioctls, one file read.
    #[must_use]
    pub fn read(interface: &Interface) -> Self {
        let xdp = match netdev::xdp_features(interface.index) {
            Some(bits) => XdpSupport::from_bits(bits),
            None => XdpSupport::of_driver(&interface.driver),
        };
        let ethtool = checked_name(&interface.name).ok().and_then(|name| Ethtool::new(name).ok());
        let ask = ethtool.as_ref();
        let queues = |mut table: Vec<u32>| {
            table.sort_unstable();
            table.dedup();
            table
        };
        let combined = ask.and_then(Ethtool::combined).unwrap_or(0);
        let bus = ask.and_then(Ethtool::bus).filter(|bus| bus.contains(':')).unwrap_or_default();
        Self {
            xdp,
            near: near_device(&bus),
            rss_queues: ask.and_then(Ethtool::rss_table).map(queues),
            channels: if combined > 0 { Channels::Combined } else { Channels::Separate },
            gro: ask.and_then(|ask| ask.are_on(["rx-gro"])).is_some_and(|[on]| on),
            bus,
        }
    }
}

impl XdpSupport {
    fn from_bits(bits: u64) -> Self {
        let has = |bit: u64| Some(bits & bit != 0);
        Self { native: has(BASIC), redirect: has(REDIRECT), zero_copy: has(ZERO_COPY) }
    }

    /// Before Linux 6.3 the kernel does not say.
    fn of_driver(driver: &str) -> Self {
        let known = |list: &[&str]| list.contains(&driver).then_some(true);
        let native = known(&NATIVE);
        Self { native, redirect: native, zero_copy: known(&ZERO_COPY_DRIVERS) }
    }
}

impl Channels {
    /// The words by which `ethtool -L` sets `count` of them.
    #[must_use]
    pub fn arguments(self, count: u32) -> String {
        match self {
            Self::Combined => format!("combined {count}"),
            Self::Separate => format!("rx {count} tx {count}"),
        }
    }
}

/// `NETDEV_XDP_ACT_BASIC`.
const BASIC: u64 = 1;
/// `NETDEV_XDP_ACT_REDIRECT`.
const REDIRECT: u64 = 2;
/// `NETDEV_XDP_ACT_XSK_ZEROCOPY`.
const ZERO_COPY: u64 = 8;
/// `NETDEV_XDP_ACT_RX_SG`: packets in several buffers.
pub(super) const RX_SG: u64 = 32;
/// Drivers with native XDP and redirects in Linux 6.2.
const NATIVE: [&str; 14] = [
    "bnxt_en",
    "ena",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "mlx4_en",
    "mlx5_core",
    "mvneta",
    "sfc",
    "tun",
    "veth",
    "virtio_net",
];
/// Of those, the ones with zero-copy sockets in Linux 6.2.
const ZERO_COPY_DRIVERS: [&str; 5] = ["i40e", "ice", "igc", "ixgbe", "mlx5_core"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_bits_are_told_apart() {
        let of = |native, redirect, zero_copy| XdpSupport {
            native: Some(native),
            redirect: Some(redirect),
            zero_copy: Some(zero_copy),
        };
        for (bits, expected) in [
            (0, of(false, false, false)),
            (1, of(true, false, false)),
            (3, of(true, true, false)),
            (7, of(true, true, false)),
            (0xb, of(true, true, true)),
            (0x77, of(true, true, false)),
        ] {
            assert_eq!(XdpSupport::from_bits(bits), expected, "{bits:x}");
        }
    }

    #[test]
    fn an_old_kernels_driver_is_known_or_nothing_is_said() {
        assert_eq!(XdpSupport::of_driver("ixgbe").zero_copy, Some(true));
        assert_eq!(XdpSupport::of_driver("ena").zero_copy, None);
        assert_eq!(XdpSupport::of_driver("ena").native, Some(true));
        assert_eq!(XdpSupport::of_driver("e1000"), XdpSupport::default());
    }

    #[test]
    fn channels_are_named_as_the_device_counts_them() {
        assert_eq!(Channels::Combined.arguments(4), "combined 4");
        assert_eq!(Channels::Separate.arguments(4), "rx 4 tx 4");
    }
}
