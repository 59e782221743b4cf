//! The same pipeline over a capture: what `run` would have done with these frames.
//!
//! In: a pcap file. Out: a pcap file of the frames that would have been sent, under the times of those that caused them.
//! Not here: the XDP program; its choice (is it for a VIP, and how much room) is made from the snapshot's filter.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr};

use forwarder::{Now, Pipeline, Snapshot, ThreadId};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, PcapError};

use crate::engine::Engine;
use crate::mailbox::mesh;
use crate::memory::{MemoryDevice, MemoryFrame};

/// What became of the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Frames in the file.
    pub read: u64,
    /// Not for a VIP: the kernel would have had them.
    pub passed: u64,
    /// Longer than this program holds.
    pub too_long: u64,
    /// Frames written.
    pub written: u64,
}

/// Why a capture could not be replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file's frames are not Ethernet.
    #[error("the capture holds {0:?}; only Ethernet captures can be replayed")]
    NotEthernet(DataLink),
    /// The file is no pcap, or ends in the middle of a frame.
    #[error("frame {frame}: {cause}")]
    Read {
        /// Frames read before.
        frame: u64,
        /// Why.
        cause: PcapError,
    },
    /// The output could not be written.
    #[error("writing: {0}")]
    Write(PcapError),
}

/// Runs each frame of `input` through `pipeline`, at the frame's own time.
///
/// # Errors
/// [`ReplayError`]; frames before the one that failed are written.
pub fn replay(
    input: impl Read,
    output: impl Write,
    snapshot: &Snapshot,
    pipeline: Pipeline,
) -> Result<Replayed, ReplayError> {
    let mut reader = PcapReader::new(input).map_err(|cause| ReplayError::Read { frame: 0, cause })?;
    let header = reader.header();
    if header.datalink != DataLink::ETHERNET {
        return Err(ReplayError::NotEthernet(header.datalink));
    }
    let mut writer = PcapWriter::with_header(output, header).map_err(ReplayError::Write)?;
    let filter: HashMap<IpAddr, u8> = snapshot.filter().iter().copied().collect();
    let mut engine = engine(pipeline);
    let mut done = Replayed::default();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.map_err(|cause| ReplayError::Read { frame: done.read, cause })?;
        done.read += 1;
        let Some(growth) = destination(&packet.data).and_then(|address| filter.get(&address)) else {
            done.passed += 1;
            continue;
        };
        if !engine.device_mut().inject(&packet.data, usize::from(*growth)) {
            done.too_long += 1;
            continue;
        }
        let nanos = u64::try_from(packet.timestamp.as_nanos()).unwrap_or(u64::MAX);
        engine.step(Now::from_nanos(nanos));
        done.written += write_sent(&mut engine, &mut writer, &packet)?;
    }
    Ok(done)
}

fn engine(pipeline: Pipeline) -> Engine<MemoryDevice, Pipeline> {
    let me = ThreadId(0);
    let frames = (0..FRAMES).map(|_| MemoryFrame::new(me, FRAME_BYTES)).collect();
    let counters = std::sync::Arc::clone(pipeline.counters());
    match mesh(1, 1).pop() {
        Some(mailboxes) => {
            Engine::new(MemoryDevice::new(FRAMES), pipeline, mailboxes, frames, FRAMES, counters)
        }
        None => unreachable!("a mesh of one has one end"),
    }
}

fn write_sent<W: Write>(
    engine: &mut Engine<MemoryDevice, Pipeline>,
    writer: &mut PcapWriter<W>,
    cause: &PcapPacket<'_>,
) -> Result<u64, ReplayError> {
    let (mut written, mut failed) = (0, None);
    engine.device_mut().transmitted(usize::MAX, |frame| {
        let orig_len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let packet = PcapPacket { timestamp: cause.timestamp, orig_len, data: Cow::Borrowed(frame) };
        match writer.write_packet(&packet) {
            Ok(_) => written += 1,
            Err(error) => failed = Some(error),
        }
    });
    failed.map_or(Ok(written), |error| Err(ReplayError::Write(error)))
}

/// The IP destination of a frame, as the XDP program reads it.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    let parsed = packet::parse(frame).ok()?;
    Some(Ipv6Addr::from(parsed.addresses(frame).dst).to_canonical())
}

const FRAMES: usize = 8;
/// A jumbo frame and its outer headers.
const FRAME_BYTES: usize = 16 * 1024;
