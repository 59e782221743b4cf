//! Links: veth pairs between namespaces, `ip` scripts, kernel settings, device counts.
//!
//! Offloads are off at both ends: a packet of the local stack would otherwise carry a partial checksum or 64 kB into XDP.
//! Source: veth(4); Documentation/networking/ip-sysctl.rst.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::net::Ipv6Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::{Namespace, eventually};

/// A network device of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    /// Where it is.
    pub ns: &'a Namespace,
    /// Its name there.
    pub name: &'a str,
}

/// What a veth pair is to be.
#[derive(Clone, Copy, Debug)]
pub struct Veth {
    /// Receive and transmit queues of each end.
    pub queues: u32,
    /// Bytes of the largest IP packet.
    pub mtu: u32,
}

impl Veth {
    /// Joins two namespaces by a veth pair; both ends are up and carry frames, without offloads.
    ///
    /// # Errors
    /// `ip` or `ethtool` is missing or refuses.
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

/// Moves the two NICs of a wire from this process's namespace into two others. Each comes back when its namespace ends,
/// which may take a moment: one that is still away is waited for.
///
/// # Errors
/// There is no such NIC, or the wire stays dead.
pub fn take_in(left: Device<'_>, right: Device<'_>) -> Result<()> {
    for Device { ns, name } in [left, right] {
        let to = ns.tid().to_string();
        let moved = eventually(BOUND, || {
            let status =
                Command::new("ip").args(["link", "set", name, "netns", &to]).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success()).then_some(())
        });
        moved.with_context(|| format!("no NIC {name} to move into namespace {}", ns.name()))?;
        ns.ip(&format!("link set {name} up"))?;
    }
    [left, right].into_iter().try_for_each(carries)
}

/// Waits until a device that is up carries frames: the kernel puts its queues in place some time after the other end is up,
/// and until then drops in silence what is sent. From then on it also keeps what is sent before a neighbour has answered: on
/// a busy machine that is more than the kernel would keep, and a burst would lose its oldest packets.
pub(crate) fn carries(Device { ns, name }: Device<'_>) -> Result<()> {
    let up = eventually(BOUND, || {
        let mut show = Command::new("ip");
        show.args(["-oneline", "link", "show", name]);
        let line = ns.output(show).ok()?.stdout;
        String::from_utf8_lossy(&line).contains(" state UP ").then_some(())
    });
    up.with_context(|| format!("{name} of namespace {} has no carrier after {BOUND:?}", ns.name()))?;
    // The kernel shows the state just before the queues are there, under one lock, which this takes.
    ns.ip(&format!("link set {name} up"))?;
    let kept = ["ipv4", "ipv6"].map(|family| format!("{family}/neigh/{name}/unres_qlen_bytes"));
    ns.sysctl(&kept.each_ref().map(|key| (key.as_str(), UNRESOLVED_BYTES)))
}

impl Namespace {
    /// One of its devices, which need not be there yet.
    #[must_use]
    pub fn device<'a>(&'a self, name: &'a str) -> Device<'a> {
        Device { ns: self, name }
    }

    /// Runs a script of `ip -batch`, one command a line. IPv6 addresses that it adds `nodad` are the namespace's own when it
    /// returns: their device has to be up by then.
    ///
    /// # Errors
    /// `ip` is missing, or refuses a line, which its message names; or an address has no local route within 20 s.
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
            .context("can't run ip (package iproute2)")?;
        if output.status.success() {
            return self.until_local(added(script));
        }
        let why = String::from_utf8_lossy(&output.stderr);
        Err(anyhow!("in namespace {}: ip refuses: {}\nof\n{script}", self.name(), why.trim()))
    }

    /// The kernel gives an IPv6 address its local route after `ip` has returned, from a work queue (`addrconf_dad_work`):
    /// until then what is sent to it is answered by "no route".
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
            ensure!(all, "in namespace {name}: {:?} has no local route", missing(routes()?));
            Ok(())
        })
    }

    /// Writes kernel settings, given by their path under `/proc/sys/net`.
    ///
    /// # Errors
    /// A setting does not exist or refuses the value.
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

/// What a script adds without duplicate address detection.
fn added(script: &str) -> Vec<Ipv6Addr> {
    let lines =
        script.lines().filter(|line| line.starts_with("addr ") && line.trim_end().ends_with(" nodad"));
    lines.filter_map(|line| line.split_whitespace().nth(2)?.split('/').next()?.parse().ok()).collect()
}

/// Whether `/proc/net/ipv6_route` has it as an address of the machine (`RTF_LOCAL`).
fn is_local(routes: &str, address: Ipv6Addr) -> bool {
    let host = format!("{:032x} 80 ", address.to_bits());
    routes.lines().filter(|line| line.starts_with(&host)).any(|line| {
        let flags = line.split_whitespace().nth(8).and_then(|flags| u32::from_str_radix(flags, 16).ok());
        flags.is_some_and(|flags| flags & RTF_LOCAL != 0)
    })
}

const LOCAL_AFTER: Duration = Duration::from_secs(20);
const RTF_LOCAL: u32 = 0x8000_0000;

/// A device's own counts, as the kernel keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets dropped on receipt.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets dropped on the way out: on a veth, those that the other end had no room for.
    pub tx_dropped: u64,
}

/// Reads a device's counts from `/proc/net/dev`.
///
/// # Errors
/// There is no such device.
pub fn device_counts(ns: &Namespace, device: &str) -> Result<DeviceCounts> {
    let text = ns.run(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
    parse_dev(&text).remove(device).with_context(|| format!("namespace {} has no device {device}", ns.name()))
}

/// The MAC address of a device.
///
/// # Errors
/// There is no such device, or it has none.
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
/// 80 times the kernel's own.
const UNRESOLVED_BYTES: &str = "16777216";
const OFFLOADS: [&str; 6] = ["tx", "tso", "gso", "gro", "rxvlan", "txvlan"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_proc_net_dev_are_told_apart() {
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
