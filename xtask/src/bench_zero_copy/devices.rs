//! The measured forwarders and their configuration.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::traffic::{Traffic, VIP4, VIP6};
use super::vm::{FAR_MAC, Nic};
use crate::peers::katran;

/// A forwarder. The load balancers choose between four backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// Sluicegate with AF_XDP, in zero-copy mode if the NIC supports it, with GRE.
    AfXdp,
    /// Sluicegate with packet sockets, with GRE.
    AfPacket,
    /// `swap.bpf.c`, which sends each frame back by XDP_TX.
    XdpSwap,
    /// `swap.c`, which sends each frame back by AF_XDP.
    AfXdpSwap,
    /// The kernel, which forwards by a route.
    Kernel,
    /// nftables, which rewrites the destination address.
    Nftables,
    /// IPVS with the scheduler `mh` and IP-in-IP.
    IpvsIpip,
    /// IPVS with the scheduler `mh` and GRE.
    IpvsGre,
    /// Katran with IP-in-IP, if there is a checkout of it.
    Katran,
    /// DPDK's testpmd with DPDK's own driver of the NIC, which exchanges the MAC addresses.
    Testpmd,
}

impl Device {
    pub(crate) const ALL: [Self; 10] = [
        Self::AfXdp,
        Self::AfPacket,
        Self::XdpSwap,
        Self::AfXdpSwap,
        Self::Kernel,
        Self::Nftables,
        Self::IpvsIpip,
        Self::IpvsGre,
        Self::Katran,
        Self::Testpmd,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AfXdp => "af-xdp",
            Self::AfPacket => "af-packet",
            Self::XdpSwap => "xdp-swap",
            Self::AfXdpSwap => "af-xdp-swap",
            Self::Kernel => "kernel",
            Self::Nftables => "nftables",
            Self::IpvsIpip => "ipvs-ipip",
            Self::IpvsGre => "ipvs-gre",
            Self::Katran => "katran",
            Self::Testpmd => "testpmd",
        }
    }

    /// Returns the NICs with which the device is measured.
    pub(crate) fn nics(self) -> &'static [Nic] {
        match self {
            Self::AfXdp => &Nic::ALL,
            Self::AfXdpSwap => &[Nic::Igb, Nic::Virtio],
            Self::AfPacket
            | Self::XdpSwap
            | Self::Kernel
            | Self::Nftables
            | Self::IpvsIpip
            | Self::IpvsGre
            | Self::Katran
            | Self::Testpmd => &[Nic::Igb],
        }
    }

    /// Returns the command of `device.sh` that starts the device.
    pub(crate) fn start(self) -> String {
        match self {
            Self::AfXdp => "sluicegate /measure/af-xdp.toml".into(),
            Self::AfPacket => "sluicegate /measure/af-packet.toml".into(),
            Self::XdpSwap => "xdp_swap".into(),
            Self::AfXdpSwap => "run /measure/swap zc0".into(),
            Self::Kernel => "forward".into(),
            Self::Nftables => "nftables".into(),
            Self::IpvsIpip => "ipvs ipip".into(),
            Self::IpvsGre => "ipvs gre".into(),
            Self::Katran => "katran".into(),
            Self::Testpmd => "testpmd".into(),
        }
    }

    /// Returns `true` if the device is measured with this kind of traffic. The rules of nftables,
    /// IPVS and Katran are for IPv4. The cost of a single packet would be lost between the turns of
    /// a polling loop.
    pub(crate) fn forwards(self, traffic: Traffic) -> bool {
        match traffic {
            Traffic::Ipv6 => !matches!(self, Self::Nftables | Self::IpvsIpip | Self::IpvsGre | Self::Katran),
            Traffic::Lone => !self.polls(),
            _ => true,
        }
    }

    /// Returns `true` if the device polls without sleeping, and therefore executes instructions
    /// without traffic.
    pub(crate) fn polls(self) -> bool {
        self == Self::Testpmd
    }

    /// Returns the packages that the device needs, in addition to those of Sluicegate.
    pub(crate) fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Nftables => &["nftables"],
            Self::IpvsIpip | Self::IpvsGre => &["ipvsadm"],
            Self::Katran => &["bpftool"],
            // The dependency libdpdk-dev installs the drivers.
            Self::Testpmd => &["dpdk-dev"],
            _ => &[],
        }
    }

    /// Returns the programs that the device needs in the VM, as pairs of a path on the host and a
    /// path in the VM.
    pub(crate) fn programs(self) -> Result<Vec<(PathBuf, PathBuf)>> {
        let as_here = |path: &str| (PathBuf::from(path), PathBuf::from(path));
        match self {
            Self::Nftables => Ok(vec![as_here("/usr/sbin/nft")]),
            Self::Katran => Ok(vec![as_here("/usr/sbin/bpftool")]),
            Self::Testpmd => {
                let libraries = format!("/usr/lib/{}-linux-gnu/dpdk", std::env::consts::ARCH);
                let folder = fs::read_dir(&libraries)
                    .with_context(|| format!("cannot read {libraries}"))?
                    .filter_map(Result::ok)
                    .map(|entry| entry.path())
                    .find(|path| path.to_string_lossy().contains("/pmds-"))
                    .with_context(|| format!("the folder {libraries} contains no DPDK drivers"))?;
                let driver = |name: &str| (folder.join(name), PathBuf::from("/measure").join(name));
                Ok(DPDK_DRIVERS.map(driver).into_iter().chain([as_here("/usr/bin/dpdk-testpmd")]).collect())
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// Returns the configuration files of the VM, as pairs of their path and content.
pub(crate) fn files() -> [(&'static str, String); 6] {
    let backends = BACKENDS.map(|n| Ipv4Addr::new(192, 0, 2, n));
    [
        ("/measure/katran.sh", katran::flow_table(0)),
        ("/measure/katran.maps", katran::maps(FAR_MAC, VIP4, 80, &[katran::UDP, TCP], &backends)),
        ("/measure/af-xdp.toml", configuration("")),
        ("/measure/af-packet.toml", configuration("[io]\nmode = \"af-packet\"\n")),
        ("/measure/hash.key", "00112233445566778899aabbccddeeff\n".into()),
        ("/measure/rules.nft", rules()),
    ]
}

/// Returns the configuration of Sluicegate: one VIP, four backends, and the default of every other
/// key.
fn configuration(more: &str) -> String {
    let mut backends = String::new();
    for n in BACKENDS {
        let _ = write!(backends, "{{ name = \"b{n}\", address = \"192.0.2.{n}\" }}, ");
    }
    format!(
        r#"[cluster]
name = "measured"
hash_key_file = "hash.key"
[machine.lb1]
addresses = ["192.0.2.1", "2001:db8:2::1"]
interfaces = ["zc0"]
{more}[pool.web]
backends = [{backends}]
[vip.www]
addresses = ["{VIP4}", "{VIP6}"]
services = [{{ ports = [80], protocol = "tcp", pool = "web" }}, {{ ports = [80], protocol = "udp", pool = "web" }}]
"#
    )
}

fn rules() -> String {
    let backends: Vec<String> =
        BACKENDS.iter().enumerate().map(|(n, host)| format!("{n} : 192.0.2.{host}")).collect();
    let rule = |protocol: &str| {
        format!(
            "    ip daddr {VIP4} {protocol} dport 80 dnat to jhash ip saddr . {protocol} sport mod {} map {{ {} }}\n",
            BACKENDS.len(),
            backends.join(", ")
        )
    };
    format!(
        "table ip balance {{\n  chain prerouting {{\n    type nat hook prerouting priority dstnat;\n{}{}  }}\n}}\n",
        rule("udp"),
        rule("tcp")
    )
}

/// The last byte of each backend's address.
const BACKENDS: [u8; 4] = [11, 12, 13, 14];
const TCP: u8 = 6;
/// The drivers that testpmd loads. All other required drivers are dependencies of these drivers.
const DPDK_DRIVERS: [&str; 2] = ["librte_net_e1000.so", "librte_mempool_ring.so"];
