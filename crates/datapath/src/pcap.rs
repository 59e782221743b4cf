//! Capture files: frames read from pcap and pcapng, and written as pcap.
//!
//! In: a file. Out: its frames with their times, in order; or a file of frames.
//! Not here: what becomes of a frame (`replay`). Blocks of pcapng that hold no frame with a time are skipped.
//! Source: IETF draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng §4.

use std::borrow::Cow;
use std::io::{BufRead, Write};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter, RawPcapPacket};
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

/// A frame of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedFrame {
    /// When, since 1970.
    pub time: Duration,
    /// The bytes that were kept.
    pub bytes: Vec<u8>,
    /// How many there were.
    pub whole: usize,
    /// The interface that it was seen on, as far as the file says.
    pub interface: Option<String>,
    /// Whether the file says that it was on its way out.
    pub is_outbound: bool,
    /// What the file says about it.
    pub comment: String,
}

/// Why a capture could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file's frames are not Ethernet.
    #[error("the capture holds {0:?}; only Ethernet captures can be replayed")]
    NotEthernet(DataLink),
    /// The file is no capture, or ends in the middle of a frame.
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

/// A capture that is read.
pub struct CaptureReader<R: BufRead> {
    format: Format<R>,
    /// Interfaces of the section.
    interfaces: Vec<InterfaceDescriptionBlock<'static>>,
    /// Frames read.
    frames: u64,
}

enum Format<R: BufRead> {
    Pcap(PcapReader<R>),
    PcapNg(PcapNgReader<R>),
}

impl<R: BufRead> CaptureReader<R> {
    /// Reads the head of a file.
    ///
    /// # Errors
    /// [`CaptureError`].
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

    /// The next frame; `None`: that was all.
    ///
    /// # Errors
    /// [`CaptureError`].
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

/// As it stands there: the library refuses frames of which a part was kept.
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
    interfaces: &mut Vec<InterfaceDescriptionBlock<'static>>,
    read: impl Fn(PcapError) -> CaptureError,
) -> Result<Option<CapturedFrame>, CaptureError> {
    while let Some(block) = reader.next_block() {
        match block.map_err(&read)? {
            Block::SectionHeader(_) => interfaces.clear(),
            Block::InterfaceDescription(found) => {
                ethernet(found.linktype)?;
                interfaces.push(found.into_owned());
            }
            Block::EnhancedPacket(found) => {
                let of_what =
                    usize::try_from(found.interface_id).ok().and_then(|place| interfaces.get(place));
                let none = PcapError::InvalidField("EnhancedPacketBlock: no such interface");
                return Ok(Some(of_block(found, of_what.ok_or_else(|| read(none))?)));
            }
            _ => {}
        }
    }
    Ok(None)
}

fn of_block(found: EnhancedPacketBlock<'_>, of_what: &InterfaceDescriptionBlock<'_>) -> CapturedFrame {
    let mut frame = CapturedFrame {
        whole: found.original_len as usize,
        bytes: found.data.into_owned(),
        ..CapturedFrame::default()
    };
    let mut resolution = MICROSECONDS;
    for option in &of_what.options {
        match option {
            InterfaceDescriptionOption::IfName(name) => frame.interface = Some(name.to_string()),
            InterfaceDescriptionOption::IfTsResol(unit) => resolution = *unit,
            _ => {}
        }
    }
    for option in &found.options {
        match option {
            EnhancedPacketOption::Comment(text) => frame.comment = text.to_string(),
            EnhancedPacketOption::Flags(flags) => frame.is_outbound = flags & 3 == OUTBOUND,
            _ => {}
        }
    }
    // The library takes any unit for nanoseconds.
    frame.time = of_units(found.timestamp.as_nanos(), resolution);
    frame
}

/// So many units of `if_tsresol`: powers of ten, or with the highest bit of two.
fn of_units(units: u128, resolution: u8) -> Duration {
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    let of_a_second = base.checked_pow(u32::from(resolution & 0x7f));
    let nanos = of_a_second.map_or(0, |of_a_second| units.saturating_mul(1_000_000_000) / of_a_second);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn ethernet(link: DataLink) -> Result<(), CaptureError> {
    if link == DataLink::ETHERNET { Ok(()) } else { Err(CaptureError::NotEthernet(link)) }
}

/// A pcap file that is written, its times in nanoseconds.
pub struct CaptureWriter<W: Write>(PcapWriter<W>);

impl<W: Write> CaptureWriter<W> {
    /// Writes the head of a file.
    ///
    /// # Errors
    /// [`CaptureError::Write`].
    pub fn new(output: W) -> Result<Self, CaptureError> {
        let (ts_resolution, endianness) = (TsResolution::NanoSecond, Endianness::Little);
        let head = PcapHeader { ts_resolution, endianness, ..PcapHeader::default() };
        PcapWriter::with_header(output, head).map(Self).map_err(CaptureError::Write)
    }

    /// Writes a frame, at the last second that the format knows when `time` is beyond it.
    ///
    /// # Errors
    /// [`CaptureError::Write`].
    pub fn write(&mut self, time: Duration, frame: &[u8]) -> Result<(), CaptureError> {
        let orig_len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let timestamp = time.min(Duration::from_secs(u32::MAX.into()));
        let packet = PcapPacket { timestamp, orig_len, data: Cow::Borrowed(frame) };
        self.0.write_packet(&packet).map(drop).map_err(CaptureError::Write)
    }
}

const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// The unit where a file names none.
const MICROSECONDS: u8 = 6;
const OUTBOUND: u32 = 2;

#[cfg(test)]
mod tests {
    use pcap_file::Endianness;
    use pcap_file::pcapng::PcapNgWriter;
    use proptest::prelude::*;

    use super::*;

    /// A pcapng file with a frame of each time, on an interface of this unit.
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
    fn times_are_those_of_the_unit_that_the_interface_names() {
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
    fn a_frame_of_which_a_part_was_kept_is_read_from_pcap_too() {
        let mut writer = CaptureWriter::new(Vec::new()).unwrap();
        writer.write(Duration::new(7, 9), &[1; 30]).unwrap();
        let mut file = writer.0.into_writer();
        file[24 + 12..24 + 14].copy_from_slice(&60_000_u16.to_le_bytes());
        file[16..20].copy_from_slice(&96_u32.to_le_bytes()); // snaplen
        let frame = CapturedFrame {
            time: Duration::new(7, 9),
            bytes: vec![1; 30],
            whole: 60_000,
            ..Default::default()
        };
        assert_eq!(read(&file).unwrap(), [frame]);
    }

    #[test]
    fn damaged_files_are_read_or_refused_and_nothing_else() {
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
