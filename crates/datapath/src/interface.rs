//! The properties of a network interface, and the problems that they cause for the load balancer.
//! Each [`Finding`] contains the command that fixes the problem.
//!
//! This module changes no settings, because a killed process could not restore them. The result of
//! the method `findings` depends only on the properties that were read. The module does not read
//! `/sys`, because `/sys` can show a different network namespace.
//!
//! See Linux `include/uapi/linux/{rtnetlink,ethtool}.h`.

mod ethtool;
mod finding;
mod hardware;
mod host;
mod link;
mod netdev;
mod ping;
mod privilege;
mod running;
#[cfg(test)]
mod tests;

use std::io;

use forwarder::MAX_ENCAP_OVERHEAD;

use crate::umem::{LARGEST_CHUNK, XDP_HEADROOM};

pub use finding::{Finding, Severity};
use hardware::RX_SG;
pub use hardware::{Channels, Hardware, XdpSupport};
pub use host::{clock_is_synchronised, knows_af_xdp};
pub use ping::Pinger;
pub use privilege::{Privileges, privilege_findings};

/// The properties of an interface at the time of the call to [`Interface::read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The name of the interface.
    pub name: String,
    /// The index of the interface in this network namespace.
    pub index: u32,
    /// The Ethernet address of the interface.
    pub mac: [u8; 6],
    /// The maximum size of an IP packet on this interface (MTU), in bytes.
    pub mtu_bytes: u32,
    /// `true` if the interface is enabled (administratively up).
    pub is_up: bool,
    /// `true` if the interface has carrier.
    pub has_carrier: bool,
    /// The name of the driver, such as `veth` or `virtio_net`. The name is empty if the driver does
    /// not report its name.
    pub driver: String,
    /// The number of active receive queues.
    pub queues: u32,
    /// The number of receive queues that can be activated.
    pub max_queues: u32,
    /// The offloads that change packets before XDP receives them.
    pub features: Features,
    /// The bond, team, bridge or VRF that contains this interface as a member.
    pub master: Option<Master>,
    /// The ID of the attached XDP program, if there is one.
    pub xdp_program: Option<u32>,
    /// The name of the attached XDP program. `None` if [`Interface::with_program_name`] was not
    /// called or found no name.
    pub xdp_program_name: Option<String>,
    /// `true` if the driver supports XDP multi-buffer. `None` if [`Interface::with_multi_buffer`]
    /// was not called, or if the kernel does not report XDP features.
    pub multi_buffer: Option<bool>,
}

/// The offloads that modify packets before XDP receives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Large receive offload (LRO): the NIC merges segments into packets longer than the MTU.
    pub lro: bool,
    /// Generic receive offload in hardware (GRO-HW), which also merges segments.
    pub gro_hw: bool,
    /// Generic receive offload (GRO): the kernel merges segments after XDP has run in the driver.
    pub gro: bool,
    /// GRO with fraglists: the kernel chains segments together instead of merging them.
    pub gro_list: bool,
    /// VLAN offload: the NIC removes the VLAN tag from the frame, so XDP does not see the tag.
    pub rx_vlan: bool,
    /// Checksum offload: the device computes the checksums of sent packets. A veth device leaves
    /// the checksums incomplete.
    pub tx_checksum: bool,
}

/// An interface with other interfaces as members, such as a bond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// The name of the interface. If the interface is in a different network namespace, this field
    /// contains its index instead.
    pub name: String,
    /// The kind of the interface, which is `bond`, `team`, `bridge` or `vrf`. The string is empty
    /// if the kernel does not report the kind.
    pub kind: String,
}

/// The reason why an interface could not be read. Each error contains the interface name that the
/// caller passed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// The name is not valid for an interface.
    #[error("`{0}` is not a valid interface name; use 1 to 15 bytes without `/`, `:` and white space")]
    Name(String),
    /// The interface does not exist in this network namespace.
    #[error("there is no interface `{0}` in this network namespace")]
    Absent(String),
    /// The interface has no Ethernet address.
    #[error("`{0}` is not an Ethernet interface")]
    NotEthernet(String),
    /// The kernel returned an error, or its reply could not be parsed.
    #[error("cannot read interface `{name}`: {call}")]
    Kernel {
        /// The interface name that the caller passed.
        name: String,
        /// The system call that failed.
        call: &'static str,
        /// The error that the kernel returned.
        source: io::Error,
    },
}

impl Interface {
    /// Reads the properties of interface `name` in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Returns an [`InterfaceError`] if the interface cannot be read. Information that the device
    /// does not provide is not an error. A missing driver name becomes an empty string, a missing
    /// queue count becomes the number of queues at creation, and missing offloads become `false`.
    ///
    /// # Cost
    /// One netlink request and five ioctls.
    pub fn read(name: &str) -> Result<Self, InterfaceError> {
        let name_bytes = checked_name(name)?;
        let link = link::read(name)?;
        let ethtool = ethtool::Ethtool::new(name_bytes).map_err(|source| InterfaceError::Kernel {
            name: name.to_owned(),
            call: "socket",
            source,
        })?;
        let (queues, max_queues) = ethtool.channels().unwrap_or((link.queues, link.queues));
        Ok(Self {
            name: name.to_owned(),
            index: link.index,
            mac: link.mac,
            mtu_bytes: link.mtu_bytes,
            is_up: link.is_up,
            has_carrier: link.has_carrier,
            driver: ethtool.driver().unwrap_or_default(),
            queues,
            max_queues,
            features: ethtool.features().unwrap_or_default(),
            master: link.master,
            xdp_program: link.xdp_program,
            xdp_program_name: None,
            multi_buffer: None,
        })
    }

    /// Adds the name of the attached XDP program to these properties. Without CAP_SYS_ADMIN the
    /// name stays `None`.
    ///
    /// # Cost
    /// Two system calls for each loaded BPF program.
    #[must_use]
    pub fn with_program_name(self) -> Self {
        let name = self.xdp_program.and_then(|id| {
            let found = aya::programs::loaded_programs().flatten().find(|program| program.id() == id)?;
            found.name_as_str().map(str::to_owned)
        });
        Self { xdp_program_name: name, ..self }
    }

    /// Returns `true` if this interface is a member of a bond or a team. The kernel does not allow
    /// XDP on such an interface.
    #[must_use]
    pub fn is_slave(&self) -> bool {
        self.master.as_ref().is_some_and(|master| matches!(master.kind.as_str(), "bond" | "team"))
    }

    /// Returns the problems with using AF_XDP on this interface, errors first. `configured` is the
    /// configured size of a UMEM frame, in bytes.
    #[must_use]
    pub fn findings(&self, configured: u32) -> Vec<Finding> {
        let chunk = frame_size(std::slice::from_ref(self), configured);
        // While an XDP program is attached, the virtio_net driver turns these offloads off.
        let turns_off = self.driver == VIRTIO;
        let mut findings: Vec<Finding> = [
            self.slave(),
            self.occupied(),
            self.too_long(chunk),
            self.merged("LRO", "lro", self.features.lro && !turns_off),
            self.merged("GRO-HW", "rx-gro-hw", self.features.gro_hw && !turns_off),
            self.merged_in_generic_mode(),
            self.too_few_channels(),
            self.tags_lost(),
            self.checksums_left(),
            self.down(),
        ]
        .into_iter()
        .flatten()
        .collect();
        // a stable sort keeps the order above within each severity
        findings.sort_by_key(|finding| finding.severity == Severity::Warn);
        findings
    }

    /// Returns the problems with using packet sockets on this interface. The problems include
    /// offloads that merge packets, because packet sockets receive the merged packets.
    #[must_use]
    pub fn packet_findings(&self) -> Vec<Finding> {
        let too_long = (self.mtu_bytes > LONGEST_PACKET).then(|| {
            let what = format!("{} has an MTU of {} bytes", self.name, self.mtu_bytes);
            let why = format!("frames hold packets of up to {LONGEST_PACKET} bytes");
            Finding::error("mtu-frame", what, why)
                .command(format!("ip link set dev {} mtu {LONGEST_PACKET}", self.name))
        });
        let Features { lro, gro_hw, gro, .. } = self.features;
        [
            too_long,
            self.merged("LRO", "lro", lro),
            self.merged("GRO-HW", "rx-gro-hw", gro_hw),
            self.merged("GRO", "gro", gro),
            self.checksums_left(),
            self.down(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn slave(&self) -> Option<Finding> {
        let master = self.master.as_ref().filter(|_| self.is_slave())?;
        let (name, Master { name: above, kind }) = (&self.name, master);
        let what = format!("{name} is a member of the {kind} {above}");
        let finding = Finding::error("slave", what, "the kernel does not allow XDP on a member interface");
        Some(
            finding
                .command(format!("ip link set dev {name} nomaster"))
                .hint(format!("use {above} as the interface")),
        )
    }

    fn occupied(&self) -> Option<Finding> {
        let (name, program) = (&self.name, self.xdp_program?);
        let what = format!("{name} already has an XDP program, id {program}");
        let own = |verb: &str| {
            let what = format!("{what}, attached by a running `sluicegate {verb}`");
            // No command can detach this program, because a process keeps it attached with a BPF
            // link.
            Finding::error("xdp-occupied", what, "an interface can have only one XDP program")
                .hint("stop that process first, which detaches the program (systemctl stop sluicegate for the service)")
        };
        Some(match self.xdp_program_name.as_deref() {
            Some(STEER | STEER_FRAGS) => own("run"),
            Some(DECAP | DECAP_FRAGS) => own("decap"),
            known => {
                let what = known.map_or_else(|| what.clone(), |known| format!("{what}, called {known:?}"));
                Finding::error("xdp-occupied", what, "an interface can have only one XDP program")
                    .command(format!("ip link set dev {name} xdp off"))
                    .hint("if that fails, a process holds the program: stop that process (`bpftool link` shows it)")
            }
        })
    }

    /// Reads from the kernel whether the driver supports XDP multi-buffer, and adds the result to
    /// these properties. Only Linux 6.3 and later report this.
    ///
    /// # Cost
    /// Two generic netlink requests.
    #[must_use]
    pub fn with_multi_buffer(mut self) -> Self {
        self.multi_buffer = netdev::xdp_features(self.index).map(|bits| bits & RX_SG != 0);
        self
    }

    /// Returns the maximum size of an IP packet that the driver stores in a UMEM frame of `chunk`
    /// bytes, if this size depends on the driver.
    fn stored_in_kib(&self, chunk: u32) -> Option<u32> {
        let stored = chunk.saturating_sub(XDP_HEADROOM) / KIB * KIB;
        KIB_DRIVERS.contains(&self.driver.as_str()).then(|| stored.saturating_sub(LINK_HEADER_BYTES))
    }

    fn too_long(&self, chunk: u32) -> Option<Finding> {
        let (name, mtu, held) = (&self.name, self.mtu_bytes, largest_packet(chunk));
        if let Some(stored) = self.stored_in_kib(chunk)
            && mtu > stored
        {
            // `chunk` is the largest size of a frame, because a smaller one would not be used.
            let what = format!("{name} has an MTU of {mtu} bytes, and its driver {}", self.driver);
            let what = format!("{what} stores packets of up to {stored} bytes in a frame of {chunk} bytes");
            return Some(
                Finding::error("mtu-frame", what, "longer packets are lost")
                    .command(format!("ip link set dev {name} mtu {stored}")),
            );
        }
        if mtu <= held {
            return None;
        }
        let what = format!(
            "{name} has an MTU of {mtu} bytes, and io.frame_size = {chunk} holds packets of up to {held}"
        );
        let at_most = largest_packet(LARGEST_CHUNK);
        let larger = (mtu <= at_most)
            .then(|| format!("set io.frame_size = {LARGEST_CHUNK}, which holds packets of up to {at_most}"));
        if self.multi_buffer == Some(true) && mtu <= LONGEST_PACKET {
            return larger.map(|hint| {
                Finding::advice("mtu-frame", what, "longer packets use several frames and are copied")
                    .hint(hint)
            });
        }
        let (allowed, hint) = match (larger, self.multi_buffer) {
            (Some(hint), _) => (held, hint),
            (None, Some(true)) => {
                (LONGEST_PACKET, "packets in several frames (XDP multi-buffer) can be that long".to_owned())
            }
            (None, _) => (
                held,
                format!(
                    "set io.frame_size = {LARGEST_CHUNK} and the MTU to at most {at_most}, because the driver does not report \
                 XDP multi-buffer"
                ),
            ),
        };
        let why = "longer packets do not fit, and most drivers refuse XDP with such an MTU";
        let finding = Finding::error("mtu-frame", what, why);
        Some(finding.command(format!("ip link set dev {name} mtu {allowed}")).hint(hint))
    }

    fn merged(&self, what: &str, switch: &str, is_on: bool) -> Option<Finding> {
        let name = &self.name;
        is_on.then(|| {
            let what = format!("{name} has {what} on");
            Finding::error(
                "coalescing",
                what,
                "this offload merges received packets into packets longer than the MTU, and those are lost",
            )
            .command(format!("ethtool -K {name} {switch} off"))
        })
    }

    fn merged_in_generic_mode(&self) -> Option<Finding> {
        let name = &self.name;
        self.features.gro_list.then(|| {
            let why = "this offload chains packets before generic XDP sees them, and delays packets with XDP in driver mode";
            Finding::warning("coalescing", format!("{name} has rx-gro-list on"), why)
                .command(format!("ethtool -K {name} rx-gro-list off"))
        })
    }

    fn too_few_channels(&self) -> Option<Finding> {
        let Self { name, queues, max_queues, driver, .. } = self;
        (driver == VIRTIO && queues < max_queues).then(|| {
            let what = format!("{name} has only {queues} of {max_queues} channels enabled");
            let why = format!("with XDP, {VIRTIO} loses packets that are steered to the other channels");
            Finding::error("channels-off", what, why)
                .command(format!("ethtool -L {name} combined {max_queues}"))
        })
    }

    fn tags_lost(&self) -> Option<Finding> {
        let name = &self.name;
        (self.features.rx_vlan && !VIRTUAL_DRIVERS.contains(&self.driver.as_str())).then(|| {
            let why = "the NIC removes VLAN tags before XDP sees them, and the tags are lost";
            Finding::warning("rxvlan", format!("{name} has rxvlan on"), why)
                .command(format!("ethtool -K {name} rxvlan off"))
        })
    }

    fn checksums_left(&self) -> Option<Finding> {
        let name = &self.name;
        (self.features.tx_checksum && self.driver == VETH).then(|| {
            let what = format!("{name} is a veth with tx checksum offload on, which is the default on both ends");
            let why = "if the other end also has it on, packets arrive here with a partial checksum, and backends drop them";
            Finding::warning("partial-checksum", what, why)
                .command(format!("ethtool -K {name} tx off"))
                .hint("also run `ethtool -K INTERFACE tx off` on the other end, and on all senders without a real NIC in between")
        })
    }

    fn down(&self) -> Option<Finding> {
        let name = &self.name;
        if !self.is_up {
            return Some(
                Finding::warning("link-down", format!("{name} is down"), "it carries no packets")
                    .command(format!("ip link set dev {name} up")),
            );
        }
        (!self.has_carrier).then(|| {
            Finding::warning("link-down", format!("{name} has no carrier"), "it carries no packets")
                .hint("check the cable and the other end of the link")
        })
    }
}

/// Returns the index of interface `name` and the ID of the attached XDP program. The call sends one
/// netlink request.
pub(crate) fn xdp_program(name: &str) -> Result<(u32, Option<u32>), InterfaceError> {
    checked_name(name)?;
    let link = link::read(name)?;
    Ok((link.index, link.xdp_program))
}

/// Checks an interface name by the same rules as `dev_valid_name` in the kernel. Returns the
/// zero-terminated name for an `ifreq` structure.
pub(crate) fn checked_name(name: &str) -> Result<[u8; libc::IFNAMSIZ], InterfaceError> {
    let bytes = name.as_bytes();
    let is_bad = |byte: &u8| *byte == 0 || *byte == b'/' || *byte == b':' || byte.is_ascii_whitespace();
    if bytes.is_empty()
        || bytes.len() >= libc::IFNAMSIZ
        || name == "."
        || name == ".."
        || bytes.iter().any(is_bad)
    {
        return Err(InterfaceError::Name(name.to_owned()));
    }
    let mut padded = [0; libc::IFNAMSIZ];
    padded[..bytes.len()].copy_from_slice(bytes);
    Ok(padded)
}

/// The names of BPF programs, as the kernel reports them.
const STEER: &str = "steer";
const DECAP: &str = "decap";
/// The names of the program variants for packets in several buffers.
const STEER_FRAGS: &str = "steer_frags";
const DECAP_FRAGS: &str = "decap_frags";
const VIRTIO: &str = "virtio_net";
/// Drivers that set the size of receive buffers in steps of 1 KiB.
const KIB_DRIVERS: [&str; 2] = ["igb", "igc"];
const KIB: u32 = 1_024;
const VETH: &str = "veth";
/// Drivers of virtual interfaces. These interfaces have no hardware that removes VLAN tags.
const VIRTUAL_DRIVERS: [&str; 3] = ["veth", "tun", "bridge"];
/// The largest encapsulation overhead, in bytes.
#[expect(clippy::cast_possible_truncation, reason = "the value is below 256")]
const ENCAP_OVERHEAD_BYTES: u32 = MAX_ENCAP_OVERHEAD as u32;

/// Returns the maximum size of an IP packet that fits into a UMEM frame of `chunk` bytes, in bytes.
/// A frame also holds the link header, two VLAN tags and headroom for the largest encapsulation.
#[must_use]
pub const fn largest_packet(chunk: u32) -> u32 {
    chunk.saturating_sub(XDP_HEADROOM + LINK_HEADER_BYTES + ENCAP_OVERHEAD_BYTES)
}

/// Returns the size of the UMEM frames for these interfaces, in bytes. This is `configured`, unless
/// a driver would lose packets that fit into such frames.
///
/// igb and igc set the size of receive buffers in steps of 1 KiB. They use 1,024 bytes of a frame
/// of 2,048 bytes, and 3,072 bytes of a frame of 4,096 bytes. A packet that is longer is lost.
#[must_use]
pub fn frame_size(interfaces: &[Interface], configured: u32) -> u32 {
    let is_too_small = |interface: &Interface| {
        interface.stored_in_kib(configured).is_some_and(|stored| interface.mtu_bytes > stored)
    };
    if interfaces.iter().any(is_too_small) { LARGEST_CHUNK } else { configured }
}

/// The largest IP packet that can be received in several frames, in bytes. Such packets require a
/// driver that supports XDP multi-buffer.
#[allow(clippy::cast_possible_truncation, reason = "16 KiB")]
pub const LONGEST_PACKET: u32 = largest_packet(crate::slots::ROOM as u32 + XDP_HEADROOM);
/// The length of an Ethernet header with two VLAN tags, in bytes.
const LINK_HEADER_BYTES: u32 = 14 + 2 * 4;
/// The maximum number of interfaces that a data plane can use.
pub const MAX_INTERFACES: usize = 16;
