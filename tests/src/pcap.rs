//! Reads and writes capture files (pcap).
//!
//! Files are little-endian and have the link type Ethernet. The writer uses timestamps in
//! microseconds. The reader also accepts timestamps in nanoseconds. This module is independent of
//! the balancer's code, so that tests can use it to verify the balancer's capture files.
//!
//! References: draft-ietf-opsawg-pcap-05 §4 and §5.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Writes a capture file with `frames`. The timestamps of the frames are one millisecond apart.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn write_pcap(path: &Path, frames: &[Vec<u8>]) -> Result<()> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    // The fields of the file header: magic number, version 2.4, two reserved fields, maximum frame
    // length, and link type.
    let mut bytes = words(&[MAGIC, 4 << 16 | 2, 0, 0, 1 << 16, ETHERNET]);
    for (n, frame) in (0u32..).zip(frames) {
        let length = u32::try_from(frame.len())?;
        bytes.extend(words(&[1_000_000 + n / 1000, n % 1000 * 1000, length, length]));
        bytes.extend_from_slice(frame);
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Reads the frames of a capture file.
///
/// # Errors
/// Returns an error if the file cannot be read or has a different format.
pub fn read_pcap(path: &Path) -> Result<Vec<Vec<u8>>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let word = |at: usize| -> Result<u32> {
        let word =
            bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).context("the file is truncated")?;
        Ok(u32::from_le_bytes(*word))
    };
    let is_capture = [MAGIC, NANOSECONDS].contains(&word(0)?);
    ensure!(is_capture && word(20)? == ETHERNET, "not a little-endian Ethernet capture");
    let (mut at, mut frames) = (24, Vec::new());
    while at < bytes.len() {
        let (kept, length) = (word(at + 8)?, word(at + 12)?);
        ensure!(kept == length, "the file has only {kept} of {length} bytes of a frame");
        at += 16;
        let end = at + usize::try_from(kept)?;
        frames.push(bytes.get(at..end).context("the last frame is truncated")?.to_vec());
        at = end;
    }
    Ok(frames)
}

const MAGIC: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const ETHERNET: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TempDir;

    #[test]
    fn pcap_round_trip_works_and_truncation_fails() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("a.pcap");
        let frames = vec![vec![1, 2, 3], vec![], vec![9; 1500]];
        write_pcap(&path, &frames).unwrap();
        assert_eq!(read_pcap(&path).unwrap(), frames);
        let bytes = fs::read(&path).unwrap();
        // The file header is 24 bytes long, and each frame header is 16 bytes long
        // (draft-ietf-opsawg-pcap-05, figures 1 and 2).
        assert_eq!(bytes.len(), 24 + 3 * 16 + 1503);
        assert_eq!(bytes[..8], [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0]);
        for cut in [3, 23, 30, bytes.len() - 1] {
            fs::write(&path, &bytes[..cut]).unwrap();
            read_pcap(&path).unwrap_err();
        }
    }
}
