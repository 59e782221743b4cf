//! The same pipeline over a capture: what `run` would have done with these frames.
//!
//! In: a pcap file. Out: a pcap file of the frames that would have been sent, under the times of those that caused them.
//! Not here: the XDP program; its choice (is it for a VIP, and how much room) is made from the snapshot's filter.

use std::borrow::Cow;
use std::io::{Read, Write};
use std::net::IpAddr;

use forwarder::{Now, Pipeline, Snapshot, ThreadId};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, PcapError};

use crate::engine::{Engine, Pool};
use crate::mailbox::mesh;
use crate::memory::{MemoryDevice, MemoryFrame};
use crate::steer::Filter;

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
    let filter =
        Filter::new(snapshot.filter().iter().copied(), snapshot.filter_prefixes().iter().copied(), []);
    let mut engine = engine(pipeline);
    let mut done = Replayed::default();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.map_err(|cause| ReplayError::Read { frame: done.read, cause })?;
        done.read += 1;
        let Some(encap_overhead) =
            destination(&packet.data).and_then(|address| filter.encap_overhead(address))
        else {
            done.passed += 1;
            continue;
        };
        if !engine.device_mut().inject(&packet.data, usize::from(encap_overhead)) {
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
    let Some(mailboxes) = mesh(1, 1).pop() else { unreachable!("a mesh of one has one end") };
    let pool = Pool { frames, in_all: FRAMES };
    Engine::new(MemoryDevice::new(FRAMES), pipeline, mailboxes, pool, counters)
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

/// The IP destination of a frame, read as `steer.bpf.c` reads it: malformed packets for a VIP are the pipeline's to drop,
/// frames to a group and neighbour discovery are the kernel's.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    if frame.first()? & 1 == 1 {
        return None;
    }
    let mut at = 12;
    let ethertype = loop {
        match u16::from_be_bytes(*frame.get(at..)?.first_chunk()?) {
            0x8100 | 0x88a8 if at < 20 => at += 4,
            other => break other,
        }
    };
    let ip = frame.get(at + 2..)?;
    match ethertype {
        0x0800 => {
            let header: &[u8; 20] = ip.first_chunk()?;
            let destination: [u8; 4] = *header.last_chunk()?;
            (header[0] >> 4 == 4).then(|| destination.into())
        }
        0x86dd => {
            let header: &[u8; 40] = ip.first_chunk()?;
            let destination: [u8; 16] = *header.last_chunk()?;
            let discovery = header[6] == 58 && ip.get(40).is_some_and(|kind| (133..=137).contains(kind));
            (header[0] >> 4 == 6 && !discovery).then(|| destination.into())
        }
        _ => None,
    }
}

const FRAMES: usize = 8;
/// A jumbo frame and its outer headers.
const FRAME_BYTES: usize = 16 * 1024;
