//! Kernel tunnel devices that decapsulate packets on a backend. Tests use them instead of
//! `sluicegate decap` to check the encapsulation with independent code.
//!
//! The devices are created with the commands in `docs/how-to/prepare-backends.md`. The kernel needs
//! ip_gre, ip6_gre, ipip, sit, ip6_tunnel and fou.
//!
//! References: ip-link(8), ip-fou(8).

use anyhow::{Context, Result, ensure};

use crate::{Encapsulation, Host, device_counts};

/// Tunnel devices for every encapsulation over IPv4 and IPv6. The devices are removed with the
/// backend's network namespace.
#[derive(Clone, Debug)]
pub struct Tunnels {
    host: Host,
}

impl Tunnels {
    /// Creates the devices on `host`, which accept packets from any source to the addresses of the
    /// host.
    ///
    /// # Errors
    /// Returns an error if the kernel lacks one of the device types.
    pub fn start(host: &Host) -> Result<Self> {
        host.ns.text("sh", &["-euxc", &commands(host)?])?;
        Ok(Self { host: host.clone() })
    }

    /// Returns the number of decapsulated packets whose outer headers have this kind and this
    /// address family. IPIP and GUE share the same devices, so their packets are counted together.
    ///
    /// # Errors
    /// Returns an error if a device does not exist.
    pub fn taken_off(&self, kind: Encapsulation, outer_ipv4: bool) -> Result<u64> {
        devices(kind, outer_ipv4)
            .iter()
            .map(|device| Ok(device_counts(&self.host.ns, device)?.rx_packets))
            .sum()
    }
}

fn devices(kind: Encapsulation, outer_ipv4: bool) -> &'static [&'static str] {
    match (kind, outer_ipv4) {
        (Encapsulation::Gre, true) => &["gre-v4"],
        (Encapsulation::Gre, false) => &["gre-v6"],
        (Encapsulation::Ipip | Encapsulation::Gue, true) => &["ipip-v4", "sit-v4"],
        (Encapsulation::Ipip | Encapsulation::Gue, false) => &["any-v6"],
        (Encapsulation::L2, _) => &[],
    }
}

/// Returns the commands from the documentation page, with the addresses of `host` filled in.
fn commands(host: &Host) -> Result<String> {
    let (_, rest) = PAGE.split_once(SECTION).context("the page has no section on tunnel devices")?;
    let section = rest.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let text: String = blocks.collect();
    ensure!(PAGE_ADDRESSES.iter().all(|address| text.contains(address)), "the page lacks an address");
    let [v4, v6] = PAGE_ADDRESSES;
    Ok(text.replace(v6, &host.v6.to_string()).replace(v4, &host.v4.to_string()))
}

/// The backend addresses that the documentation page uses.
const PAGE_ADDRESSES: [&str; 2] = ["192.0.2.13", "2001:db8::13"];
const PAGE: &str = include_str!("../../docs/how-to/prepare-backends.md");
const SECTION: &str = "\n## Tunnel devices of the kernel\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_devices_are_those_of_the_page() {
        let made: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("ip link add ")).collect();
        let made: Vec<&str> = made.iter().filter_map(|line| line.split(' ').next()).collect();
        for kind in [Encapsulation::Gre, Encapsulation::Ipip, Encapsulation::Gue] {
            for device in devices(kind, true).iter().chain(devices(kind, false)) {
                assert!(made.contains(device), "{device}: {made:?}");
            }
        }
    }
}
