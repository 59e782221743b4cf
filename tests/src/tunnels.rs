//! The kernel's own tunnel devices on a backend, in place of `decap`: what takes packets off here shares no code with us.
//!
//! In: a backend. Out: how many packets each kind of outer header brought. The devices are made by the commands of
//! `docs/backends.md`. Needs a kernel with ip_gre, ip6_gre, ipip, sit, ip6_tunnel and fou.
//! Source: ip-link(8), ip-fou(8).

use anyhow::{Context, Result};

use crate::{Encapsulation, Host, device_counts};

/// Tunnel devices for every encapsulation over both families; they go with the backend's namespace.
#[derive(Clone, Debug)]
pub struct Tunnels {
    host: Host,
}

impl Tunnels {
    /// Makes them on `host`, for packets to its own addresses, from anywhere.
    ///
    /// # Errors
    /// The kernel does not have one of them.
    pub fn start(host: &Host) -> Result<Self> {
        host.ns.text("sh", &["-euxc", &commands(host)?])?;
        Ok(Self { host: host.clone() })
    }

    /// Packets taken off up to now, outer headers of a kind and family. IPIP and GUE end in the same devices.
    ///
    /// # Errors
    /// A device is gone.
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

/// The page's commands, with the addresses of `host` in place of the page's backend.
fn commands(host: &Host) -> Result<String> {
    let (_, rest) = PAGE.split_once(SECTION).context("the page has no section on tunnel devices")?;
    let section = rest.split("\n## ").next().unwrap_or_default();
    let blocks = section.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let text: String = blocks.collect();
    Ok(text.replace("2001:db8:18::1", &host.v6.to_string()).replace("198.18.1.1", &host.v4.to_string()))
}

const PAGE: &str = include_str!("../../docs/backends.md");
const SECTION: &str = "\n## Tunnel devices of the kernel\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_devices_are_those_that_are_counted() {
        let made: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("ip link add ")).collect();
        let made: Vec<&str> = made.iter().filter_map(|line| line.split(' ').next()).collect();
        for kind in [Encapsulation::Gre, Encapsulation::Ipip, Encapsulation::Gue] {
            for device in devices(kind, true).iter().chain(devices(kind, false)) {
                assert!(made.contains(device), "{device}: {made:?}");
            }
        }
    }
}
