//! Writes capture files in pcapng format, and splits a received stream into complete blocks.
//!
//! The response body of `POST /v1/capture` has this format. The server writes the file, and the
//! command `sluicegate capture` reads it. All blocks are little-endian. The crate `pcap-file` 2.0
//! is not used, because it cannot read some options, such as the packet ID. That crate also swaps
//! the words of the statistics timestamp, and accepts blocks of unlimited length.
//!
//! References: IETF draft-ietf-opsawg-pcapng (version 1.0), §3 and §4.

#[cfg(test)]
mod tests;

/// An interface of a capture file. Packets are captured at two points, before and after processing,
/// each of which is represented by a separate interface.
#[derive(Clone, Copy, Debug)]
pub struct Interface {
    /// The value of the pcapng option `if_name`.
    pub name: &'static str,
    /// The value of the pcapng option `if_description`.
    pub description: &'static str,
}

/// A captured packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The index of the interface, in the order in which [`begin`] writes the interfaces.
    pub interface: u32,
    /// The time in nanoseconds since 1970.
    pub nanos: u64,
    /// The captured bytes of the packet.
    pub bytes: &'a [u8],
    /// The length of the packet before truncation, in bytes.
    pub whole: usize,
    /// The packet ID. A packet that is captured on several interfaces has the same ID on all of
    /// them.
    pub id: u64,
    /// `true` for a packet that was captured when it was sent, and `false` for a received packet.
    pub outbound: bool,
    /// The value of the pcapng option `opt_comment`.
    pub comment: &'a str,
}

/// The statistics of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The time of the statistics in nanoseconds since 1970.
    pub nanos: u64,
    /// The number of packets that matched the filter.
    pub accepted: u64,
    /// The number of packets that were lost because no memory was free.
    pub dropped: u64,
    /// The number of packets in the file.
    pub delivered: u64,
}

/// Writes the section header and all interface blocks. The link type is Ethernet. `snap` is the
/// maximum number of bytes that are captured from each packet.
pub fn begin(out: &mut Vec<u8>, comment: &str, interfaces: &[Interface], snap: u32) {
    block(out, SECTION, |out| {
        out.extend(MAGIC.to_le_bytes());
        out.extend([1, 0, 0, 0]); // version 1.0
        out.extend(u64::MAX.to_le_bytes()); // unknown length of the section
        option(out, COMMENT, comment.as_bytes());
        option(out, USER_APPLICATION, concat!("sluicegate ", env!("CARGO_PKG_VERSION")).as_bytes());
        option(out, END, &[]);
    });
    for interface in interfaces {
        block(out, INTERFACE, |out| {
            out.extend([1, 0, 0, 0]); // LINKTYPE_ETHERNET
            out.extend(snap.to_le_bytes());
            option(out, IF_NAME, interface.name.as_bytes());
            option(out, IF_DESCRIPTION, interface.description.as_bytes());
            option(out, IF_TSRESOL, &[9]); // nanoseconds
            option(out, END, &[]);
        });
    }
}

/// Writes an enhanced packet block.
pub fn packet(out: &mut Vec<u8>, packet: &Packet<'_>) {
    block(out, PACKET, |out| {
        out.extend(packet.interface.to_le_bytes());
        time(out, packet.nanos);
        out.extend(length(packet.bytes.len()).to_le_bytes());
        out.extend(length(packet.whole).to_le_bytes());
        padded(out, packet.bytes);
        option(out, COMMENT, packet.comment.as_bytes());
        let direction = if packet.outbound { 2u32 } else { 1 };
        option(out, PACKET_FLAGS, &direction.to_le_bytes());
        option(out, PACKET_ID, &packet.id.to_le_bytes());
        option(out, END, &[]);
    });
}

/// Writes an interface statistics block, which must be the last block of its interface.
pub fn statistics(out: &mut Vec<u8>, interface: u32, found: &Statistics) {
    block(out, STATISTICS, |out| {
        out.extend(interface.to_le_bytes());
        time(out, found.nanos);
        let words = format!(
            "{} packets matched, {} recorded, {} lost",
            found.accepted, found.delivered, found.dropped
        );
        option(out, COMMENT, words.as_bytes());
        option(out, IF_DROP, &found.dropped.to_le_bytes());
        option(out, FILTER_ACCEPT, &found.accepted.to_le_bytes());
        option(out, USER_DELIVERED, &found.delivered.to_le_bytes());
        option(out, END, &[]);
    });
}

fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    let whole = length(out.len() - start + 4).to_le_bytes();
    out.extend(whole);
    if let Some(field) = out.get_mut(start + 4..start + 8) {
        field.copy_from_slice(&whole);
    }
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let kept = value.get(..value.len().min(OPTION_AT_MOST)).unwrap_or_default();
    out.extend(code.to_le_bytes());
    out.extend(u16::try_from(kept.len()).unwrap_or(0).to_le_bytes());
    padded(out, kept);
}

fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Writes the time as two words of 32 bits, the upper word first.
fn time(out: &mut Vec<u8>, nanos: u64) {
    let [a, b, c, d, e, f, g, h] = nanos.to_le_bytes();
    out.extend([e, f, g, h, a, b, c, d]);
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Splits a received stream into complete pcapng blocks.
#[derive(Debug, Default)]
pub struct Blocks {
    waiting: Vec<u8>,
    /// The statistics of the first interface.
    pub statistics: Option<Statistics>,
    /// The number of packets on the first interface.
    pub packets: u64,
}

/// The error for a stream that is not in pcapng format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotBlocks;

impl Blocks {
    /// Adds received bytes, and passes all complete blocks to `write`.
    ///
    /// # Errors
    /// Returns [`NotBlocks`] for an invalid stream. The splitter cannot be used after an error.
    pub fn take(&mut self, bytes: &[u8], write: impl FnOnce(&[u8])) -> Result<(), NotBlocks> {
        self.waiting.extend(bytes);
        let mut whole = 0;
        while let Some(block) = next(self.waiting.get(whole..).unwrap_or_default())? {
            whole += block.len();
            look(block, &mut self.packets, &mut self.statistics);
        }
        write(self.waiting.get(..whole).unwrap_or_default());
        self.waiting.drain(..whole);
        Ok(())
    }
}

/// Returns the first block of `bytes`, or `None` if the block is incomplete.
fn next(bytes: &[u8]) -> Result<Option<&[u8]>, NotBlocks> {
    let Some(whole) = word(bytes, 4) else { return Ok(None) };
    let whole = usize::try_from(whole).map_err(|_| NotBlocks)?;
    if !(12..=BLOCK_AT_MOST).contains(&whole) || whole % 4 != 0 {
        return Err(NotBlocks);
    }
    Ok(bytes.get(..whole))
}

fn look(block: &[u8], packets: &mut u64, statistics: &mut Option<Statistics>) {
    match (word(block, 0), word(block, 8)) {
        (Some(PACKET), Some(0)) => *packets += 1,
        (Some(STATISTICS), Some(0)) => *statistics = Some(read_statistics(block)),
        _ => {}
    }
}

fn read_statistics(block: &[u8]) -> Statistics {
    let half = |at| u64::from(word(block, at).unwrap_or(0));
    let mut found = Statistics { nanos: half(12) << 32 | half(16), ..Statistics::default() };
    let mut rest = block.get(20..).unwrap_or_default();
    while let Some((head, tail)) = rest.split_first_chunk::<4>() {
        let code = u16::from_le_bytes([head[0], head[1]]);
        let long = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let number = tail.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
        match code {
            END => break,
            IF_DROP => found.dropped = number,
            FILTER_ACCEPT => found.accepted = number,
            USER_DELIVERED => found.delivered = number,
            _ => {}
        }
        rest = tail.get(long.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const MAGIC: u32 = 0x1a2b_3c4d;
const END: u16 = 0;
const COMMENT: u16 = 1;
const USER_APPLICATION: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_TSRESOL: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const PACKET_ID: u16 = 5;
const IF_DROP: u16 = 5;
const FILTER_ACCEPT: u16 = 6;
const USER_DELIVERED: u16 = 8;
/// The maximum length of an option value in bytes. The length field is 16 bits wide, and values are
/// padded to a multiple of 4 bytes.
const OPTION_AT_MOST: usize = 65_532;
/// The maximum length of a block in bytes, which is enough for a packet with a comment and all
/// block fields.
const BLOCK_AT_MOST: usize = 256 << 10;
