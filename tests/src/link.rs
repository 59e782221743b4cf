//! Links between hosts: veth pairs, `ip` scripts, kernel settings and device counters.
//!
//! Both ends of a link have offloads disabled. With offloads, the XDP program would get packets
//! from the local network stack with partial checksums or lengths of up to 64 kB.
//!
//! References: veth(4); Documentation/networking/ip-sysctl.rst.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::net::Ipv6Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::{Namespace, eventually};

/// A network device in a network namespace.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    /// The namespace of the device.
    pub ns: &'a Namespace,
    /// The name of the device.
    pub name: &'a str,
}

/// The properties of a veth pair.
#[derive(Clone, Copy, Debug)]
pub struct Veth {
    /// The number of receive and transmit queues at each end.
    pub queues: u32,
    /// The MTU in bytes.
    pub mtu: u32,
}

impl Veth {
    /// Connects two namespaces with a veth pair. When the function returns, both ends are up, have
    /// carrier and have offloads disabled.
    ///
    /// # Errors
    /// Returns an error if `ip` or `ethtool` is missing or fails.
    pub fn join(self, left: Device<'_>, right: Device<'_>) -> Result<()> {
        let Self { queues, mtu } = self;
        let shape = format!("mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
        left.ns.ip(&format!(
            "link add {} {shape} type veth peer name {} {shape} netns {}",
            left.name,
            right.name,
            right.ns.tid()
        ))?;
        for Device { ns, name } in [left, right] {
            let mut ethtool = Command::new("ethtool");
            ethtool.args(["-K", name]).args(OFFLOADS.iter().flat_map(|&name| [name, "off"]));
            ns.output(ethtool)?;
            ns.ip(&format!("link set {name} up"))?;
        }
        [left, right].into_iter().try_for_each(carries)
    }
}

/// Moves two NICs that are connected by a cable from the network namespace of this process into two
/// other namespaces. If a previous testbed used a NIC, the kernel moves it back some time after
/// that testbed ends, and this function waits until then.
///
/// # Errors
/// Returns an error if a NIC does not exist or the link does not come up.
pub fn take_in(left: Device<'_>, right: Device<'_>) -> Result<()> {
    for Device { ns, name } in [left, right] {
        let to = ns.tid().to_string();
        let moved = eventually(BOUND, || {
            let status =
                Command::new("ip").args(["link", "set", name, "netns", &to]).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success()).then_some(())
        });
        moved.with_context(|| format!("cannot move NIC {name} into namespace {}", ns.name()))?;
        ns.ip(&format!("link set {name} up"))?;
    }
    [left, right].into_iter().try_for_each(carries)
}

/// Waits until a device that is up can carry frames. The kernel sets up the queues some time after
/// the other end of the link comes up, and silently drops earlier frames. The function also raises
/// the limit for packets that wait for neighbor resolution. With the kernel's default limit, the
/// oldest packets of a burst would be lost on a busy machine.
pub(crate) fn carries(Device { ns, name }: Device<'_>) -> Result<()> {
    let up = eventually(BOUND, || {
        let mut show = Command::new("ip");
        show.args(["-oneline", "link", "show", name]);
        let line = ns.output(show).ok()?.stdout;
        String::from_utf8_lossy(&line).contains(" state UP ").then_some(())
    });
    up.with_context(|| format!("device {name} in namespace {} has no carrier after {BOUND:?}", ns.name()))?;
    // The kernel reports the carrier shortly before it creates the queues. The kernel holds one
    // lock during both steps. This command takes the same lock, so the queues exist when the
    // command returns.
    ns.ip(&format!("link set {name} up"))?;
    let kept = ["ipv4", "ipv6"].map(|family| format!("{family}/neigh/{name}/unres_qlen_bytes"));
    ns.sysctl(&kept.each_ref().map(|key| (key.as_str(), UNRESOLVED_BYTES)))
}

impl Namespace {
    /// Returns a reference to the device `name` of the namespace. The device does not need to exist
    /// yet.
    #[must_use]
    pub fn device<'a>(&'a self, name: &'a str) -> Device<'a> {
        Device { ns: self, name }
    }

    /// Runs a script with `ip -batch`, one command per line. IPv6 addresses that the script adds
    /// with `nodad` are usable when the function returns. The device of these addresses must be up.
    ///
    /// # Errors
    /// Returns an error if `ip` is missing or rejects a line, or if an address has no local route
    /// within 20 s.
    pub fn ip(&self, script: &str) -> Result<()> {
        let text = script.to_owned();
        let output = self
            .run(move || {
                let mut child = Command::new("ip")
                    .args(["-batch", "-"])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .stderr(Stdio::piped())
                    .spawn()?;
                if let Some(mut stdin) = child.stdin.take() {
                    stdin.write_all(text.as_bytes())?;
                }
                child.wait_with_output()
            })
            .context("cannot run ip (package iproute2)")?;
        if output.status.success() {
            return self.until_local(added(script));
        }
        let why = String::from_utf8_lossy(&output.stderr);
        Err(anyhow!("ip failed in namespace {}: {}\nscript\n{script}", self.name(), why.trim()))
    }

    /// Waits until the IPv6 addresses have local routes. The kernel adds these routes in a work
    /// queue (`addrconf_dad_work`) after `ip` returns. Before that, the kernel rejects packets to
    /// these addresses with "no route".
    fn until_local(&self, addresses: Vec<Ipv6Addr>) -> Result<()> {
        let name = self.name().to_owned();
        self.run(move || {
            let missing =
                |text: String| addresses.iter().find(|address| !is_local(&text, **address)).copied();
            let routes = || fs::read_to_string("/proc/thread-self/net/ipv6_route");
            let all = addresses.is_empty()
                || eventually(LOCAL_AFTER, || {
                    routes().is_ok_and(|text| missing(text).is_none()).then_some(())
                })
                .is_some();
            ensure!(all, "in namespace {name}, {:?} has no local route", missing(routes()?));
            Ok(())
        })
    }

    /// Writes kernel settings. Each key is a path below `/proc/sys/net`.
    ///
    /// # Errors
    /// Returns an error if a setting does not exist or the kernel rejects the value.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        let settings: Vec<(String, String)> =
            settings.iter().map(|&(key, value)| (format!("/proc/sys/net/{key}"), value.into())).collect();
        self.run(move || {
            settings.iter().try_for_each(|(key, value)| {
                fs::write(key, value).with_context(|| format!("{key} = {value}"))
            })
        })
    }
}

/// Returns the IPv6 addresses that a script adds with `nodad`.
fn added(script: &str) -> Vec<Ipv6Addr> {
    let lines =
        script.lines().filter(|line| line.starts_with("addr ") && line.trim_end().ends_with(" nodad"));
    lines.filter_map(|line| line.split_whitespace().nth(2)?.split('/').next()?.parse().ok()).collect()
}

/// Returns `true` if `/proc/net/ipv6_route` lists the address as local (`RTF_LOCAL`).
fn is_local(routes: &str, address: Ipv6Addr) -> bool {
    let host = format!("{:032x} 80 ", address.to_bits());
    routes.lines().filter(|line| line.starts_with(&host)).any(|line| {
        let flags = line.split_whitespace().nth(8).and_then(|flags| u32::from_str_radix(flags, 16).ok());
        flags.is_some_and(|flags| flags & RTF_LOCAL != 0)
    })
}

const LOCAL_AFTER: Duration = Duration::from_secs(20);
const RTF_LOCAL: u32 = 0x8000_0000;

/// The packet counters that the kernel keeps for a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// The number of packets received.
    pub rx_packets: u64,
    /// The number of received packets that were dropped.
    pub rx_dropped: u64,
    /// The number of packets sent.
    pub tx_packets: u64,
    /// The number of packets dropped on transmit. On a veth device, the number includes packets for
    /// which the other end had no space.
    pub tx_dropped: u64,
}

/// Reads the counters of a device from `/proc/net/dev`.
///
/// # Errors
/// Returns an error if the device does not exist.
pub fn device_counts(ns: &Namespace, device: &str) -> Result<DeviceCounts> {
    let text = ns.run(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
    parse_dev(&text).remove(device).with_context(|| format!("namespace {} has no device {device}", ns.name()))
}

/// Returns the MAC address of a device.
///
/// # Errors
/// Returns an error if the device does not exist or has no MAC address.
pub fn mac_of(ns: &Namespace, device: &str) -> Result<[u8; 6]> {
    let found = crate::capture::link_address(ns, device)?;
    found.addr().with_context(|| format!("{device} has no MAC address"))
}

fn parse_dev(text: &str) -> HashMap<String, DeviceCounts> {
    let row = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let n: Vec<u64> = numbers.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [_, rx_packets, _, rx_dropped, .., _, tx_packets, _, tx_dropped, _, _, _, _] = n[..] else {
            return None;
        };
        let counts = DeviceCounts { rx_packets, rx_dropped, tx_packets, tx_dropped };
        Some((name.trim().to_owned(), counts))
    };
    text.lines().filter_map(row).collect()
}

const BOUND: Duration = Duration::from_secs(10);
/// The limit for packets that wait for neighbor resolution, in bytes: 80 times the kernel's
/// default.
const UNRESOLVED_BYTES: &str = "16777216";
const OFFLOADS: [&str; 6] = ["tx", "tso", "gso", "gro", "rxvlan", "txvlan"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_net_dev_columns_are_parsed() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n  \
            eth0: 101 102 103 104 105 106 107 108 201 202 203 204 205 206 207 208\n";
        let counts = parse_dev(text);
        assert_eq!(counts.len(), 1);
        assert_eq!(
            counts["eth0"],
            DeviceCounts { rx_packets: 102, rx_dropped: 104, tx_packets: 202, tx_dropped: 204 }
        );
    }
}
