//! What the ethtool ioctls say of an interface: driver, channels, offloads.
//!
//! In: a checked name. Out: answers, or `None` where the device does not know the question.
//! Not here: settings. Invariant: every command starts with its number, and its buffer is as long as the
//! kernel's structure for that number.
//! Source: Linux `include/uapi/linux/ethtool.h`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::Features;

/// A socket to ask through, and the interface to ask about.
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
        Some(until_zero(&bytes_of(&info[1..9]))) // driver[32] follows the command
    }

    /// Receive queues: on, and at most. A combined channel has one, as a receive channel has.
    pub(super) fn channels(&self) -> Option<(u32, u32)> {
        let channels = self.answer(GCHANNELS, CHANNELS_WORDS)?;
        let [_, max_rx, _, _, max_combined, rx, _, _, combined] = channels.try_into().ok()?;
        Some((rx + combined, max_rx + max_combined)).filter(|(on, _)| *on > 0)
    }

    /// Combined channels that are on; 0 where receive and transmit channels are counted apart.
    pub(super) fn combined(&self) -> Option<u32> {
        self.answer(GCHANNELS, CHANNELS_WORDS)?.last().copied()
    }

    /// Where the device sits: a PCI address such as `0000:01:00.0`; empty for devices without one.
    pub(super) fn bus(&self) -> Option<String> {
        let info = self.answer(GDRVINFO, DRVINFO_WORDS)?;
        Some(until_zero(&bytes_of(&info[25..33]))) // after driver, version and firmware version
    }

    /// The receive queue of each entry of the RSS table; `None`: the device has no such table.
    pub(super) fn rss_table(&self) -> Option<Vec<u32>> {
        let head = self.answer(GRXFHINDIR, 2)?; // the number, the size
        let size = head[1] as usize;
        let mut table = command(GRXFHINDIR, 2 + size);
        table[1] = head[1];
        self.ask(&mut table)?;
        Some(table.split_off(2)).filter(|table| !table.is_empty())
    }

    /// The offloads that [`Features`] names, by the names that ethtool prints.
    pub(super) fn features(&self) -> Option<Features> {
        let [lro, gro_hw, gro, gro_list, rx_vlan, tx_checksum] = self.are_on([
            "rx-lro",
            "rx-gro-hw",
            "rx-gro",
            "rx-gro-list",
            "rx-vlan-hw-parse",
            "tx-checksum-ip-generic",
        ])?;
        Some(Features { lro, gro_hw, gro, gro_list, rx_vlan, tx_checksum })
    }

    /// Which of the features of these names are on; one that the kernel does not know is off.
    pub(super) fn are_on<const N: usize>(&self, wanted: [&str; N]) -> Option<[bool; N]> {
        let names = self.feature_names()?;
        let blocks = names.len().div_ceil(32);
        let mut features = command(GFEATURES, 2 + blocks * FEATURE_BLOCK_WORDS);
        features[1] = u32::try_from(blocks).ok()?;
        self.ask(&mut features)?;
        Some(wanted.map(|name| {
            let bit = names.iter().position(|known| known == name);
            // available, requested, active, never changed
            let active = bit.and_then(|bit| features.get(2 + bit / 32 * FEATURE_BLOCK_WORDS + 2));
            bit.zip(active).is_some_and(|(bit, active)| active & 1 << (bit % 32) != 0)
        }))
    }

    fn feature_names(&self) -> Option<Vec<String>> {
        let mut set = command(GSSET_INFO, 5); // command, reserved, the set's bit in two words, count
        set[2..4].copy_from_slice(&words_of(1 << STRING_SET_FEATURES));
        self.ask(&mut set)?;
        let count = set[4];
        let mut strings = command(GSTRINGS, 3 + count as usize * STRING_WORDS);
        strings[1] = STRING_SET_FEATURES;
        strings[2] = count;
        self.ask(&mut strings)?;
        Some(strings[3..].chunks_exact(STRING_WORDS).map(|name| until_zero(&bytes_of(name))).collect())
    }

    /// The buffer of a command that says nothing but its number, as the kernel has filled it.
    fn answer(&self, number: u32, words: usize) -> Option<Vec<u32>> {
        let mut buffer = command(number, words);
        self.ask(&mut buffer)?;
        Some(buffer)
    }

    /// `None`: the device does not know the question.
    fn ask(&self, words: &mut [u32]) -> Option<()> {
        let mut request = libc::ifreq {
            ifr_name: self.name.map(|byte| libc::c_char::from_ne_bytes([byte])),
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: words.as_mut_ptr().cast() },
        };
        // SAFETY: `request` is a whole `ifreq` that points at `words`, which outlives the call, and which
        // `command` made as long as the structure that the kernel writes for the number in its first word.
        let answer = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
        (answer >= 0).then_some(())
    }
}

/// A command's buffer: its number, then zeroes. Words, because the kernel's structures are made of them.
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
/// `struct ethtool_drvinfo`: 196 bytes.
const DRVINFO_WORDS: usize = 49;
/// `struct ethtool_channels`: 36 bytes.
const CHANNELS_WORDS: usize = 9;
/// `struct ethtool_get_features_block`: available, requested, active, never changed.
const FEATURE_BLOCK_WORDS: usize = 4;
/// `ETH_GSTRING_LEN`: 32 bytes.
const STRING_WORDS: usize = 8;
/// `ETH_SS_FEATURES`.
const STRING_SET_FEATURES: u32 = 4;
