//! Reads frames from pcap and pcapng files, and writes pcap files. Skips pcapng blocks that do not
//! contain a frame with a timestamp.
//!
//! See the IETF drafts draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng §4.

use std::borrow::Cow;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter, RawPcapPacket};
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

/// A frame of a capture file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedFrame {
    /// The capture time, as the duration since the start of 1970 (UTC).
    pub time: Duration,
    /// The captured bytes of the frame.
    pub bytes: Vec<u8>,
    /// The original length of the frame in bytes. Captured frames can be truncated.
    pub whole: usize,
    /// The name of the interface on which the frame was captured, if the file contains it.
    pub interface: Option<Arc<str>>,
    /// `true` if the file marks the frame as outbound.
    pub is_outbound: bool,
    /// The comment for this frame in the file. The comment is empty if the file contains none for
    /// this frame.
    pub comment: String,
}

/// The reason why a capture file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The link type of the capture is not Ethernet.
    #[error("capture has link type {0:?}; only Ethernet captures can be replayed")]
    NotEthernet(DataLink),
    /// The file is not a capture file, or ends in the middle of a frame.
    #[error("cannot read frame {frame}: {cause}")]
    Read {
        /// The number of frames that were read successfully.
        frame: u64,
        /// The error that the parser returned.
        cause: PcapError,
    },
    /// The output could not be written.
    #[error("cannot write the capture: {0}")]
    Write(PcapError),
}

/// A reader of a capture file.
pub struct CaptureReader<R: BufRead> {
    format: Format<R>,
    /// The interfaces in the current section of a pcapng file.
    interfaces: Vec<Interface>,
    /// The number of frames that were read.
    frames: u64,
}

/// An interface of a pcapng file. Its options are read once, because many frames may refer to an
/// interface with many options.
struct Interface {
    name: Option<Arc<str>>,
    resolution: u8,
}

impl Interface {
    fn of(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let mut interface = Self { name: None, resolution: MICROSECONDS };
        for option in &block.options {
            match option {
                InterfaceDescriptionOption::IfName(name) => interface.name = Some(Arc::from(&**name)),
                InterfaceDescriptionOption::IfTsResol(unit) => interface.resolution = *unit,
                _ => {}
            }
        }
        interface
    }
}

enum Format<R: BufRead> {
    Pcap(PcapReader<R>),
    PcapNg(PcapNgReader<R>),
}

impl<R: BufRead> CaptureReader<R> {
    /// Reads the header of a capture file.
    ///
    /// # Errors
    /// Returns a [`CaptureError`] if the file is not an Ethernet capture.
    pub fn new(mut input: R) -> Result<Self, CaptureError> {
        let read = |cause| CaptureError::Read { frame: 0, cause };
        let is_pcapng =
            input.fill_buf().map_err(|error| read(PcapError::IoError(error)))?.starts_with(&SECTION);
        let format = if is_pcapng {
            Format::PcapNg(PcapNgReader::new(input).map_err(read)?)
        } else {
            let reader = PcapReader::new(input).map_err(read)?;
            ethernet(reader.header().datalink)?;
            Format::Pcap(reader)
        };
        Ok(Self { format, interfaces: Vec::new(), frames: 0 })
    }

    /// Returns the next frame, or `None` at the end of the file.
    ///
    /// # Errors
    /// [`CaptureError`] if the next frame cannot be read.
    pub fn next_frame(&mut self) -> Result<Option<CapturedFrame>, CaptureError> {
        let frame = self.frames;
        let read = |cause| CaptureError::Read { frame, cause };
        let found = match &mut self.format {
            Format::Pcap(reader) => {
                let resolution = reader.header().ts_resolution;
                let packet = reader.next_raw_packet().transpose().map_err(read)?;
                packet.map(|packet| of_packet(packet, resolution))
            }
            Format::PcapNg(reader) => next_of_blocks(reader, &mut self.interfaces, read)?,
        };
        self.frames += u64::from(found.is_some());
        Ok(found)
    }
}

/// Converts a raw packet. The library's validated packet type cannot be used, because it refuses
/// truncated frames.
fn of_packet(packet: RawPcapPacket<'_>, resolution: TsResolution) -> CapturedFrame {
    let fraction = match resolution {
        TsResolution::MicroSecond => Duration::from_micros(packet.ts_frac.into()),
        TsResolution::NanoSecond => Duration::from_nanos(packet.ts_frac.into()),
    };
    CapturedFrame {
        time: Duration::from_secs(packet.ts_sec.into()) + fraction,
        whole: packet.orig_len as usize,
        bytes: packet.data.into_owned(),
        ..CapturedFrame::default()
    }
}

fn next_of_blocks<R: BufRead>(
    reader: &mut PcapNgReader<R>,
    interfaces: &mut Vec<Interface>,
    read: impl Fn(PcapError) -> CaptureError,
) -> Result<Option<CapturedFrame>, CaptureError> {
    while let Some(block) = reader.next_block() {
        match block.map_err(&read)? {
            Block::SectionHeader(_) => interfaces.clear(),
            Block::InterfaceDescription(found) => {
                ethernet(found.linktype)?;
                interfaces.push(Interface::of(&found));
            }
            Block::EnhancedPacket(found) => {
                let of_what =
                    usize::try_from(found.interface_id).ok().and_then(|place| interfaces.get(place));
                let none = PcapError::InvalidField("EnhancedPacketBlock has an unknown interface");
                return Ok(Some(of_block(found, of_what.ok_or_else(|| read(none))?)));
            }
            _ => {}
        }
    }
    Ok(None)
}

fn of_block(found: EnhancedPacketBlock<'_>, of_what: &Interface) -> CapturedFrame {
    let mut frame = CapturedFrame {
        whole: found.original_len as usize,
        bytes: found.data.into_owned(),
        interface: of_what.name.clone(),
        ..CapturedFrame::default()
    };
    for option in &found.options {
        match option {
            EnhancedPacketOption::Comment(text) => frame.comment = text.to_string(),
            EnhancedPacketOption::Flags(flags) => frame.is_outbound = flags & 3 == OUTBOUND,
            _ => {}
        }
    }
    // The library always interprets the timestamp as nanoseconds, so the raw value is converted
    // here.
    frame.time = of_units(found.timestamp.as_nanos(), of_what.resolution);
    frame
}

/// Converts a number of time units to a duration. `resolution` is the value of the option
/// `if_tsresol`. The unit is 10^-n seconds, or 2^-n seconds if the highest bit is set.
fn of_units(units: u128, resolution: u8) -> Duration {
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    let of_a_second = base.checked_pow(u32::from(resolution & 0x7f));
    let nanos = of_a_second.map_or(0, |of_a_second| units.saturating_mul(1_000_000_000) / of_a_second);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn ethernet(link: DataLink) -> Result<(), CaptureError> {
    if link == DataLink::ETHERNET { Ok(()) } else { Err(CaptureError::NotEthernet(link)) }
}

/// Writes a pcap file with timestamps in nanoseconds.
pub struct CaptureWriter<W: Write>(PcapWriter<W>);

impl<W: Write> CaptureWriter<W> {
    /// Writes the header of a pcap file.
    ///
    /// # Errors
    /// [`CaptureError::Write`] if the output returns an error.
    pub fn new(output: W) -> Result<Self, CaptureError> {
        let (ts_resolution, endianness) = (TsResolution::NanoSecond, Endianness::Little);
        let head = PcapHeader { ts_resolution, endianness, ..PcapHeader::default() };
        PcapWriter::with_header(output, head).map(Self).map_err(CaptureError::Write)
    }

    /// Writes a frame. If `time` is beyond the range of the file format, the last second of the
    /// range is written.
    ///
    /// # Errors
    /// [`CaptureError::Write`] if the output returns an error.
    pub fn write(&mut self, time: Duration, frame: &[u8]) -> Result<(), CaptureError> {
        let orig_len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let timestamp = time.min(Duration::from_secs(u32::MAX.into()));
        let packet = PcapPacket { timestamp, orig_len, data: Cow::Borrowed(frame) };
        self.0.write_packet(&packet).map(drop).map_err(CaptureError::Write)
    }
}

const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// The default time unit of pcapng files: 10^-6 seconds.
const MICROSECONDS: u8 = 6;
const OUTBOUND: u32 = 2;

#[cfg(test)]
mod tests {
    use pcap_file::Endianness;
    use pcap_file::pcapng::PcapNgWriter;
    use proptest::prelude::*;

    use super::*;

    /// Returns a pcapng file with one frame for each of `times`, in units of `resolution`.
    fn pcapng(endianness: Endianness, resolution: Option<u8>, times: &[u64]) -> Vec<u8> {
        let mut writer = PcapNgWriter::with_endianness(Vec::new(), endianness).unwrap();
        let mut options = vec![InterfaceDescriptionOption::IfName("eth1".into())];
        options.extend(resolution.map(InterfaceDescriptionOption::IfTsResol));
        let interface = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 96, options };
        writer.write_pcapng_block(interface).unwrap();
        for time in times {
            writer
                .write_pcapng_block(EnhancedPacketBlock {
                    interface_id: 0,
                    timestamp: Duration::from_nanos(*time),
                    original_len: 60,
                    data: Cow::Borrowed(&[7; 42]),
                    options: vec![
                        EnhancedPacketOption::Comment("said".into()),
                        EnhancedPacketOption::Flags(2),
                    ],
                })
                .unwrap();
        }
        writer.into_inner()
    }

    fn read(file: &[u8]) -> Result<Vec<CapturedFrame>, CaptureError> {
        let mut reader = CaptureReader::new(file)?;
        std::iter::from_fn(|| reader.next_frame().transpose()).collect()
    }

    #[test]
    fn pcapng_times_use_the_unit_of_the_interface() {
        for (resolution, time, expected) in [
            (None, 1_700_000_000_000_001, Duration::new(1_700_000_000, 1_000)),
            (Some(9), 1_700_000_000_000_000_001, Duration::new(1_700_000_000, 1)),
            (Some(3), 1_500, Duration::from_millis(1_500)),
            (Some(0), 3, Duration::from_secs(3)),
            (Some(0x80 | 10), 512, Duration::from_millis(500)),
            (Some(127), u64::MAX, Duration::ZERO),
        ] {
            for endianness in [Endianness::Little, Endianness::Big] {
                let frame = CapturedFrame {
                    time: expected,
                    bytes: vec![7; 42],
                    whole: 60,
                    interface: Some("eth1".into()),
                    is_outbound: true,
                    comment: "said".into(),
                };
                assert_eq!(
                    read(&pcapng(endianness, resolution, &[time])).unwrap(),
                    [frame],
                    "{resolution:?}"
                );
            }
        }
    }

    #[test]
    fn pcap_truncated_frames_are_read() {
        let mut writer = CaptureWriter::new(Vec::new()).unwrap();
        writer.write(Duration::new(7, 9), &[1; 30]).unwrap();
        let mut file = writer.0.into_writer();
        file[24 + 12..24 + 14].copy_from_slice(&60_000_u16.to_le_bytes());
        file[16..20].copy_from_slice(&96_u32.to_le_bytes()); // the field `snaplen`
        let frame = CapturedFrame {
            time: Duration::new(7, 9),
            bytes: vec![1; 30],
            whole: 60_000,
            ..Default::default()
        };
        assert_eq!(read(&file).unwrap(), [frame]);
    }

    // Promise: linear-time
    #[test]
    fn captures_are_read_in_linear_time() {
        let options = |n| {
            let options = vec![InterfaceDescriptionOption::IfName("eth1".into()); n];
            let mut writer = PcapNgWriter::with_endianness(Vec::new(), Endianness::Little).unwrap();
            let interface = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 96, options };
            writer.write_pcapng_block(interface).unwrap();
            // The section header of another capture would end the list of interfaces.
            let blocks = pcapng(Endianness::Little, None, &vec![7; n]).split_off(28);
            [writer.into_inner(), blocks].concat()
        };
        let plain = |n| {
            let mut writer = CaptureWriter::new(Vec::new()).unwrap();
            (0..n).for_each(|_| writer.write(Duration::ZERO, &[7; 42]).unwrap());
            writer.0.into_writer()
        };
        let read: fn(&[u8]) = |file| drop(std::hint::black_box(read(file)));
        let cases: [steps::Case<'_>; 3] = [
            ("frames", |n| pcapng(Endianness::Little, None, &vec![7; n]), read),
            ("options of an interface", options, read),
            ("frames of pcap", plain, read),
        ];
        steps::check("pcap::tests::captures_are_read_in_linear_time", &cases);
    }

    #[test]
    fn capture_reader_does_not_panic_on_damaged_files() {
        let config = ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() };
        let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
        proptest!(config, |(changes in changes, cut in any::<prop::sample::Index>(), big in any::<bool>())| {
            let endianness = if big { Endianness::Big } else { Endianness::Little };
            let mut file = pcapng(endianness, Some(9), &[1, 2, 3]);
            for (at, value) in changes {
                let at = at.index(file.len());
                file[at] = value;
            }
            for file in [&file[..], &file[..cut.index(file.len())]] {
                let _ = read(file);
            }
        });
    }
}
