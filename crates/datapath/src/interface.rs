//! A network interface: what it is, and what about it would spoil the balancer's work.
//!
//! In: an interface's name, in the calling thread's network namespace. Out: [`Interface`], plain facts, and
//! [`Finding`]s, each with the command that mends it.
//! Not here: changing anything. After a SIGKILL nobody could put it back.
//! Invariant: `findings` is a function of the facts alone. `/sys` is not read: it may show another namespace.
//! Source: Linux `include/uapi/linux/{rtnetlink,ethtool}.h`.

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

use crate::umem::{LARGEST_CHUNK, XDP_HEADROOM};

pub use finding::{Finding, Severity};
use hardware::RX_SG;
pub use hardware::{Channels, Hardware, XdpSupport};
pub use host::{clock_is_synchronised, knows_af_xdp};
pub use ping::Pinger;
pub use privilege::{Privileges, privilege_findings};

/// What is known of one interface at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index in this network namespace.
    pub index: u32,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// The longest IP packet that it carries, in bytes.
    pub mtu_bytes: u32,
    /// An administrator has switched it on.
    pub is_up: bool,
    /// The other end is there.
    pub has_carrier: bool,
    /// The driver's name, such as `veth` or `virtio_net`; empty when it does not say.
    pub driver: String,
    /// Receive queues that are on.
    pub queues: u32,
    /// Receive queues that could be on.
    pub max_queues: u32,
    /// What the device does to packets before XDP sees them.
    pub features: Features,
    /// The interface that this one is a part of.
    pub master: Option<Master>,
    /// The id of the XDP program that is attached.
    pub xdp_program: Option<u32>,
    /// Its name, where [`Interface::with_program_name`] could learn it.
    pub xdp_program_name: Option<String>,
    /// The driver takes packets in several buffers, where [`Interface::with_multi_buffer`] could learn it.
    pub multi_buffer: Option<bool>,
}

/// Offloads that change what XDP sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Large receive offload: segments are merged, and the merged packet exceeds the MTU.
    pub lro: bool,
    /// Receive offload in hardware: the same by other means.
    pub gro_hw: bool,
    /// Segments are merged in software, after the driver's XDP.
    pub gro: bool,
    /// The same, chained.
    pub gro_list: bool,
    /// The VLAN tag is taken off the frame and kept beside it, where XDP does not see it.
    pub rx_vlan: bool,
    /// Checksums of what is sent are left to the device, as a veth hands them on undone.
    pub tx_checksum: bool,
}

/// The interface that another one is a part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Its name; its index in digits when it has none here.
    pub name: String,
    /// What it makes of its part: `bond`, `team`, `bridge`, `vrf`; empty when it does not say.
    pub kind: String,
}

/// Why an interface could not be read; with its name as given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// No interface can have this name.
    #[error("`{0}` is no interface name: 1 to 15 bytes, without `/` and white space")]
    Name(String),
    /// This network namespace has no such interface.
    #[error("there is no interface `{0}` in this network namespace")]
    Absent(String),
    /// It has no Ethernet address.
    #[error("`{0}` is not an Ethernet interface")]
    NotEthernet(String),
    /// The kernel refused a question, or its answer was not understood.
    #[error("cannot read interface `{name}`: {call}")]
    Kernel {
        /// The name as given.
        name: String,
        /// What was asked.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Interface {
    /// Reads the facts of interface `name` in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`InterfaceError`]. A device that does not know a question about its driver, channels or offloads is
    /// no error: the name is empty, the queues are those that it was made with, the offloads are off.
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

    /// The same with the name of the XDP program on it, as far as this process may ask: that takes CAP_SYS_ADMIN.
    ///
    /// # Cost
    /// Two system calls for each BPF program that is loaded.
    #[must_use]
    pub fn with_program_name(self) -> Self {
        let name = self.xdp_program.and_then(|id| {
            let found = aya::programs::loaded_programs().flatten().find(|program| program.id() == id)?;
            found.name_as_str().map(str::to_owned)
        });
        Self { xdp_program_name: name, ..self }
    }

    /// Whether this interface is a part of a bond or a team, to which XDP cannot be attached by itself.
    #[must_use]
    pub fn is_slave(&self) -> bool {
        self.master.as_ref().is_some_and(|master| matches!(master.kind.as_str(), "bond" | "team"))
    }

    /// What is wrong with this interface, the worst first.
    ///
    /// `chunk` is the size of a UMEM frame, in bytes.
    #[must_use]
    pub fn findings(&self, chunk: u32) -> Vec<Finding> {
        // virtio_net turns its own off while an XDP program is attached.
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
        findings.sort_by_key(|finding| finding.severity == Severity::Warn); // stable: the order above is kept
        findings
    }

    /// The same where packet sockets stand in for XDP: the kernel's packet buffers hold what it made of packets.
    #[must_use]
    pub fn packet_findings(&self) -> Vec<Finding> {
        let too_long = (self.mtu_bytes > LONGEST_PACKET).then(|| {
            let what = format!("{} has an MTU of {} bytes", self.name, self.mtu_bytes);
            let why = format!("frames hold packets of up to {LONGEST_PACKET}");
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
        let what = format!("{name} is a slave of the {kind} {above}");
        let finding = Finding::error("slave", what, "the kernel refuses XDP on it");
        Some(
            finding
                .command(format!("ip link set dev {name} nomaster"))
                .hint(format!("name {above} as the interface")),
        )
    }

    fn occupied(&self) -> Option<Finding> {
        let (name, program) = (&self.name, self.xdp_program?);
        let what = format!("{name} already has an XDP program, id {program}");
        let own = |verb: &str| {
            let what = format!("{what}: that of a `sluicegate {verb}` which runs");
            // A command cannot take it off: its process holds it by a link.
            Finding::error("xdp-occupied", what, "an interface takes one")
                .hint("end that process first (systemctl stop sluicegate, if it is the service): its program goes with it")
        };
        Some(match self.xdp_program_name.as_deref() {
            Some(STEER | STEER_FRAGS) => own("run"),
            Some(DECAP | DECAP_FRAGS) => own("decap"),
            known => {
                let what = known.map_or_else(|| what.clone(), |known| format!("{what}, called {known:?}"));
                Finding::error("xdp-occupied", what, "an interface takes one")
                    .command(format!("ip link set dev {name} xdp off"))
                    .hint("where that is refused a process holds it, perhaps another sluicegate: end that process (bpftool link)")
            }
        })
    }

    /// The same with what the kernel says of packets in several buffers; before Linux 6.3 it says nothing.
    ///
    /// # Cost
    /// Two generic netlink requests.
    #[must_use]
    pub fn with_multi_buffer(mut self) -> Self {
        self.multi_buffer = netdev::xdp_features(self.index).map(|bits| bits & RX_SG != 0);
        self
    }

    fn too_long(&self, chunk: u32) -> Option<Finding> {
        let (name, mtu, held) = (&self.name, self.mtu_bytes, largest_packet(chunk));
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
                Finding::advice("mtu-frame", what, "longer ones come in several frames, and are copied")
                    .hint(hint)
            });
        }
        let (allowed, hint) = match (larger, self.multi_buffer) {
            (Some(hint), _) => (held, hint),
            (None, Some(true)) => (
                LONGEST_PACKET,
                "packets in several frames (XDP multi-buffer) are taken up to that".to_owned(),
            ),
            (None, _) => (
                held,
                format!(
                    "set io.frame_size = {LARGEST_CHUNK}, and the MTU to {at_most} at most: the driver does not say that it \
                 takes packets in several frames (XDP multi-buffer)"
                ),
            ),
        };
        let why = "longer packets would not fit, and most drivers then refuse XDP";
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
                "it merges packets into longer ones than the MTU, which are lost",
            )
            .command(format!("ethtool -K {name} {switch} off"))
        })
    }

    fn merged_in_generic_mode(&self) -> Option<Finding> {
        let name = &self.name;
        self.features.gro_list.then(|| {
            let why =
                "it chains packets before XDP's generic mode sees them, and holds them up in the driver's";
            Finding::warning("coalescing", format!("{name} has rx-gro-list on"), why)
                .command(format!("ethtool -K {name} rx-gro-list off"))
        })
    }

    fn too_few_channels(&self) -> Option<Finding> {
        let Self { name, queues, max_queues, driver, .. } = self;
        (driver == VIRTIO && queues < max_queues).then(|| {
            let what = format!("{name} has {queues} of {max_queues} channels on");
            let why = format!("{VIRTIO} loses what is steered to the others under XDP");
            Finding::error("channels-off", what, why)
                .command(format!("ethtool -L {name} combined {max_queues}"))
        })
    }

    fn tags_lost(&self) -> Option<Finding> {
        let name = &self.name;
        (self.features.rx_vlan && !VIRTUAL_DRIVERS.contains(&self.driver.as_str())).then(|| {
            let why = "VLAN tags are taken off before XDP sees them, and are lost";
            Finding::warning("rxvlan", format!("{name} has rxvlan on"), why)
                .command(format!("ethtool -K {name} rxvlan off"))
        })
    }

    fn checksums_left(&self) -> Option<Finding> {
        let name = &self.name;
        (self.features.tx_checksum && self.driver == VETH).then(|| {
            let what = format!("{name} is a veth with tx checksum offload on, the default of both its ends");
            let why = "what is sent into the other end comes here with a partial checksum if that has it on too (this can't be \
                       read from here), and backends drop it";
            Finding::warning("partial-checksum", what, why)
                .command(format!("ethtool -K {name} tx off"))
                .hint("`ethtool -K INTERFACE tx off` at the other end, and wherever packets are sent without a real NIC between")
        })
    }

    fn down(&self) -> Option<Finding> {
        let name = &self.name;
        if !self.is_up {
            return Some(
                Finding::warning("link-down", format!("{name} is down"), "no packet comes in or goes out")
                    .command(format!("ip link set dev {name} up")),
            );
        }
        (!self.has_carrier).then(|| {
            Finding::warning("link-down", format!("{name} has no carrier"), "no packet comes in or goes out")
                .hint("look at the cable and at the other end")
        })
    }
}

/// The index of interface `name`, and the id of the XDP program on it: one netlink request.
pub(crate) fn xdp_program(name: &str) -> Result<(u32, Option<u32>), InterfaceError> {
    checked_name(name)?;
    let link = link::read(name)?;
    Ok((link.index, link.xdp_program))
}

/// The name as an `ifreq` has it, zero-terminated; what the kernel's `dev_valid_name` allows.
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

/// Our programs, as the kernel names them.
const STEER: &str = "steer";
const DECAP: &str = "decap";
/// The same for packets in several buffers.
const STEER_FRAGS: &str = "steer_frags";
const DECAP_FRAGS: &str = "decap_frags";
const VIRTIO: &str = "virtio_net";
const VETH: &str = "veth";
/// Drivers whose frames never had a tag taken off by hardware.
const VIRTUAL_DRIVERS: [&str; 3] = ["veth", "tun", "bridge"];
/// The longest IP packet, in bytes, that a UMEM frame of `chunk` bytes holds with its link header, two VLAN tags and the
/// head room for any encapsulation.
#[must_use]
pub const fn largest_packet(chunk: u32) -> u32 {
    chunk.saturating_sub(XDP_HEADROOM + LINK_HEADER_BYTES + MAX_ENCAP_OVERHEAD_BYTES as u32)
}

/// The longest IP packet, in bytes, that is taken in several frames, where the driver has that.
#[allow(clippy::cast_possible_truncation, reason = "16 KiB")]
pub const LONGEST_PACKET: u32 = largest_packet(crate::slots::ROOM as u32 + XDP_HEADROOM);
/// Ethernet and two VLAN tags.
const LINK_HEADER_BYTES: u32 = 14 + 2 * 4;
/// The most head room that the steering program opens in front of a packet: the mark holds no more.
pub const MAX_ENCAP_OVERHEAD_BYTES: u8 = 63;
/// The most interfaces of a machine.
pub const MAX_INTERFACES: usize = 16;
