//! Reads the driver, the channels and the offloads of an interface with ethtool ioctls. The methods
//! return `None` if the device does not support the command.
//!
//! Invariant: every command buffer starts with the command number. The buffer has the length of the
//! kernel's structure for that command.
//!
//! See Linux `include/uapi/linux/ethtool.h`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::Features;

/// A socket for ioctls on one interface.
pub(super) struct Ethtool {
    socket: OwnedFd,
    name: [u8; libc::IFNAMSIZ],
}

impl Ethtool {
    pub(super) fn new(name: [u8; libc::IFNAMSIZ]) -> io::Result<Self> {
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        Ok(Self { socket, name })
    }

    pub(super) fn driver(&self) -> Option<String> {
        let info = self.answer(GDRVINFO, DRVINFO_WORDS)?;
        Some(until_zero(&bytes_of(&info[1..9]))) // the field `driver[32]` follows the command
    }

    /// Returns the active and the maximum number of receive queues. Each combined channel and each
    /// receive channel has one receive queue.
    pub(super) fn channels(&self) -> Option<(u32, u32)> {
        let channels = self.answer(GCHANNELS, CHANNELS_WORDS)?;
        let [_, max_rx, _, _, max_combined, rx, _, _, combined] = channels.try_into().ok()?;
        Some((rx + combined, max_rx + max_combined)).filter(|(on, _)| *on > 0)
    }

    /// Returns the number of active combined channels. The result is 0 if the device has separate
    /// receive and transmit channels.
    pub(super) fn combined(&self) -> Option<u32> {
        self.answer(GCHANNELS, CHANNELS_WORDS)?.last().copied()
    }

    /// Returns the bus address of the device. This is a PCI address such as `0000:01:00.0`, or an
    /// empty string.
    pub(super) fn bus(&self) -> Option<String> {
        let info = self.answer(GDRVINFO, DRVINFO_WORDS)?;
        // the bus address follows driver, version and firmware version
        Some(until_zero(&bytes_of(&info[25..33])))
    }

    /// Returns the RSS table, each entry of which is the number of a receive queue. Returns `None`
    /// if the device has no RSS table.
    pub(super) fn rss_table(&self) -> Option<Vec<u32>> {
        // the reply has the command number and the table size
        let head = self.answer(GRXFHINDIR, 2)?;
        let size = head[1] as usize;
        let mut table = command(GRXFHINDIR, 2 + size);
        table[1] = head[1];
        self.ask(&mut table)?;
        Some(table.split_off(2)).filter(|table| !table.is_empty())
    }

    /// Returns the state of the offloads in [`Features`]. Ethtool identifies offloads by name.
    pub(super) fn features(&self) -> Option<Features> {
        let [lro, gro_hw, gro, gro_list, rx_vlan, tx_checksum, tx_sctp] = self.are_on([
            "rx-lro",
            "rx-gro-hw",
            "rx-gro",
            "rx-gro-list",
            "rx-vlan-hw-parse",
            "tx-checksum-ip-generic",
            "tx-checksum-sctp",
        ])?;
        Some(Features { lro, gro_hw, gro, gro_list, rx_vlan, tx_checksum: tx_checksum || tx_sctp })
    }

    /// Returns, for each name in `wanted`, `true` if that feature is on. A feature that the kernel
    /// does not know is treated as off.
    pub(super) fn are_on<const N: usize>(&self, wanted: [&str; N]) -> Option<[bool; N]> {
        let names = self.feature_names()?;
        let blocks = names.len().div_ceil(32);
        let mut features = command(GFEATURES, 2 + blocks * FEATURE_BLOCK_WORDS);
        features[1] = u32::try_from(blocks).ok()?;
        self.ask(&mut features)?;
        Some(wanted.map(|name| {
            let bit = names.iter().position(|known| known == name);
            // words of a block: available, requested, active, never changed
            let active = bit.and_then(|bit| features.get(2 + bit / 32 * FEATURE_BLOCK_WORDS + 2));
            bit.zip(active).is_some_and(|(bit, active)| active & 1 << (bit % 32) != 0)
        }))
    }

    fn feature_names(&self) -> Option<Vec<String>> {
        // words: command, reserved, mask of string sets (2 words), count
        let mut set = command(GSSET_INFO, 5);
        set[2..4].copy_from_slice(&words_of(1 << STRING_SET_FEATURES));
        self.ask(&mut set)?;
        let count = set[4];
        let mut strings = command(GSTRINGS, 3 + count as usize * STRING_WORDS);
        strings[1] = STRING_SET_FEATURES;
        strings[2] = count;
        self.ask(&mut strings)?;
        Some(strings[3..].chunks_exact(STRING_WORDS).map(|name| until_zero(&bytes_of(name))).collect())
    }

    /// Runs a command without arguments. Returns the reply buffer.
    fn answer(&self, number: u32, words: usize) -> Option<Vec<u32>> {
        let mut buffer = command(number, words);
        self.ask(&mut buffer)?;
        Some(buffer)
    }

    /// Runs the command in `words`. The kernel writes the reply into the same buffer. Returns
    /// `None` if the device does not support the command.
    fn ask(&self, words: &mut [u32]) -> Option<()> {
        let mut request = libc::ifreq {
            ifr_name: self.name.map(|byte| libc::c_char::from_ne_bytes([byte])),
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: words.as_mut_ptr().cast() },
        };
        // SAFETY: `request` is a complete `ifreq` that points to `words`, and both outlive the
        // call. `command` gave `words` the length that the kernel writes for this command.
        let answer = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
        (answer >= 0).then_some(())
    }
}

/// Creates the buffer of a command: the command number, followed by zeros. The buffer consists of
/// 32-bit words, like the structures of the kernel.
fn command(number: u32, words: usize) -> Vec<u32> {
    let mut buffer = vec![0; words];
    buffer[0] = number;
    buffer
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn words_of(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

fn until_zero(bytes: &[u8]) -> String {
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

const GDRVINFO: u32 = 0x03;
const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GRXFHINDIR: u32 = 0x38;
const GFEATURES: u32 = 0x3a;
const GCHANNELS: u32 = 0x3c;
/// The size of `struct ethtool_drvinfo`: 196 bytes.
const DRVINFO_WORDS: usize = 49;
/// The size of `struct ethtool_channels`: 36 bytes.
const CHANNELS_WORDS: usize = 9;
/// The words of `struct ethtool_get_features_block`: available, requested, active, never changed.
const FEATURE_BLOCK_WORDS: usize = 4;
/// The length of a feature name (`ETH_GSTRING_LEN`): 32 bytes.
const STRING_WORDS: usize = 8;
/// The number of the string set with the feature names (`ETH_SS_FEATURES`).
const STRING_SET_FEATURES: u32 = 4;
