//! The kernel's own tunnel devices on a backend, in place of `decap`: what takes packets off here shares no code with us.
//!
//! In: a backend. Out: how many packets each kind of outer header brought. Needs a kernel with ip_gre, ip6_gre, ipip, sit,
//! ip6_tunnel and fou.
//! Source: ip-link(8), ip-fou(8).

use std::process::Command;

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
        load("fou")?;
        load("fou6")?;
        let Host { ns, v4, v6, .. } = host;
        let mut script = format!(
            "link add gre-v4 type gre local {v4}\n\
             link add gre-v6 type ip6gre local {v6}\n\
             link add ipip-v4 type ipip local {v4}\n\
             link add sit-v4 type sit local {v4}\n\
             link add any-v6 type ip6tnl mode any local {v6}\n"
        );
        for device in DEVICES {
            script += &format!("link set {device} up\n");
        }
        ns.ip(&script)?;
        for family in ["-4", "-6"] {
            let mut fou = Command::new("ip");
            fou.args([family, "fou", "add", "port", "6080", "gue"]);
            ns.output(fou)?;
        }
        Ok(Self { host: host.clone() })
    }

    /// Packets taken off up to now, outer headers of a kind and family. IPIP and GUE end in the same devices.
    ///
    /// # Errors
    /// A device is gone.
    pub fn taken_off(&self, kind: Encapsulation, outer_ipv4: bool) -> Result<u64> {
        let devices: &[&str] = match (kind, outer_ipv4) {
            (Encapsulation::Gre, true) => &["gre-v4"],
            (Encapsulation::Gre, false) => &["gre-v6"],
            (Encapsulation::Ipip | Encapsulation::Gue, true) => &["ipip-v4", "sit-v4"],
            (Encapsulation::Ipip | Encapsulation::Gue, false) => &["any-v6"],
            (Encapsulation::L2, _) => &[],
        };
        devices.iter().map(|device| Ok(device_counts(&self.host.ns, device)?.rx_packets)).sum()
    }
}

/// These two do not come with a device.
fn load(module: &str) -> Result<()> {
    let status = Command::new("modprobe").arg(module).status().context("can't run modprobe")?;
    anyhow::ensure!(status.success(), "no kernel module {module}");
    Ok(())
}

const DEVICES: [&str; 5] = ["gre-v4", "gre-v6", "ipip-v4", "sit-v4", "any-v6"];
