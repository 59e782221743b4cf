//! The XDP support of a device, and how the device distributes packets to its queues. `sluicegate
//! doctor` uses these properties to find problems.
//!
//! Since Linux 6.3, the kernel reports the XDP support of a driver as `xdp-features`. For older
//! kernels, this module contains a list of drivers with XDP support.

use super::ethtool::Ethtool;
use super::{Interface, checked_name, netdev};
use crate::placement::{Processors, near_device};

/// Properties of a network device that are not part of [`Interface`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// The XDP support of the driver.
    pub xdp: XdpSupport,
    /// The queues that the RSS table uses, sorted and without duplicates. `None` if the device has
    /// no RSS table.
    pub rss_queues: Option<Vec<u32>>,
    /// The kind of channels that `ethtool -L` configures on this device.
    pub channels: Channels,
    /// `true` if the kernel merges received packets (GRO). GRO runs after XDP in the driver, but
    /// before generic XDP.
    pub gro: bool,
    /// The PCI address, such as `0000:01:00.0`. The address is empty if the device is not a PCI
    /// device.
    pub bus: String,
    /// The processors on the memory node of the device. The set is empty if the machine does not
    /// report these processors.
    pub near: Processors,
}

/// The XDP support of a driver. A field is `None` if neither the kernel nor the list of drivers
/// provides it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpSupport {
    /// `true` if XDP programs run in the driver.
    pub native: Option<bool>,
    /// `true` if an XDP program in the driver can redirect packets to sockets.
    pub redirect: Option<bool>,
    /// `true` if the driver supports zero-copy AF_XDP sockets.
    pub zero_copy: Option<bool>,
}

/// The kind of channels that a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// The device has combined channels, which `ethtool -L` configures with one number, `combined`.
    Combined,
    /// The device has separate channels, which `ethtool -L` configures with two numbers, `rx` and
    /// `tx`.
    Separate,
}

impl Hardware {
    /// Reads the hardware properties of `interface` in the network namespace of the calling thread.
    /// Properties that the device does not report are `None`, empty or off.
    ///
    /// # Cost
    /// Two generic netlink requests, seven ioctls and one file read.
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

    /// Returns the XDP support by driver name. This list is used on kernels before Linux 6.3, which
    /// do not report XDP support.
    fn of_driver(driver: &str) -> Self {
        let known = |list: &[&str]| list.contains(&driver).then_some(true);
        let native = known(&NATIVE);
        Self { native, redirect: native, zero_copy: known(&ZERO_COPY_DRIVERS) }
    }
}

impl Channels {
    /// Returns the arguments for `ethtool -L` that configure `count` channels.
    #[must_use]
    pub fn arguments(self, count: u32) -> String {
        match self {
            Self::Combined => format!("combined {count}"),
            Self::Separate => format!("rx {count} tx {count}"),
        }
    }
}

/// The kernel's flag `NETDEV_XDP_ACT_BASIC`. The flag means that the driver supports XDP programs.
const BASIC: u64 = 1;
/// The kernel's flag `NETDEV_XDP_ACT_REDIRECT`.
const REDIRECT: u64 = 2;
/// The kernel's flag `NETDEV_XDP_ACT_XSK_ZEROCOPY`.
const ZERO_COPY: u64 = 8;
/// The kernel's flag `NETDEV_XDP_ACT_RX_SG`. The flag means that the driver supports packets in
/// several buffers.
pub(super) const RX_SG: u64 = 32;
/// Drivers that support native XDP and redirects in Linux 6.2.
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
/// Drivers that support zero-copy sockets in Linux 6.2.
const ZERO_COPY_DRIVERS: [&str; 5] = ["i40e", "ice", "igc", "ixgbe", "mlx5_core"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xdp_support_from_bits_separates_the_features() {
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
    fn xdp_support_of_driver_is_none_for_unknown_drivers() {
        assert_eq!(XdpSupport::of_driver("ixgbe").zero_copy, Some(true));
        assert_eq!(XdpSupport::of_driver("ena").zero_copy, None);
        assert_eq!(XdpSupport::of_driver("ena").native, Some(true));
        assert_eq!(XdpSupport::of_driver("e1000"), XdpSupport::default());
    }

    #[test]
    fn channels_arguments_match_ethtool() {
        assert_eq!(Channels::Combined.arguments(4), "combined 4");
        assert_eq!(Channels::Separate.arguments(4), "rx 4 tx 4");
    }
}
