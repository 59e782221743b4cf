//! Reads a capture file and returns only the frames that the balancer received. Each frame is
//! returned once, with its full length.
//!
//! A file written by `sluicegate capture` contains a packet twice if the packet was held or was
//! passed to another thread. The two copies have identical bytes. A packet comment in the capture
//! file shows which copy is the duplicate.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use datapath::{CaptureError, CaptureReader, CapturedFrame};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) time: Duration,
    pub(super) bytes: Vec<u8>,
    pub(super) interface: Option<Arc<str>>,
    /// `true` if the frame is outgoing or a duplicate.
    pub(super) is_left_out: bool,
    /// `true` if the capture truncated the frame. The missing bytes of a truncated frame are zeros.
    pub(super) is_cut_short: bool,
}

pub(super) struct Arrivals<R: BufRead> {
    reader: CaptureReader<R>,
    sights: Sights,
}

impl<R: BufRead> Arrivals<R> {
    pub(super) fn new(reader: CaptureReader<R>) -> Self {
        Self { reader, sights: Sights::default() }
    }

    pub(super) fn next(&mut self) -> Result<Option<Arrival>, CaptureError> {
        let frame = self.reader.next_frame()?;
        Ok(frame.map(|frame| {
            let is_left_out = frame.is_outbound || self.sights.is_another(&frame);
            whole(frame, is_left_out)
        }))
    }
}

/// Counts the frames with verdict `hold`. The capture contains each of these frames again, with the
/// final verdict.
#[derive(Default)]
struct Sights(HashMap<Vec<u8>, u32>);

impl Sights {
    fn is_another(&mut self, frame: &CapturedFrame) -> bool {
        let verdict = frame.comment.strip_prefix("verdict=").and_then(|said| said.split(' ').next());
        match verdict {
            None => false,
            // The receiving thread captures such a packet again.
            Some("to_thread") => true,
            Some("hold") => {
                *self.0.entry(frame.bytes.clone()).or_default() += 1;
                false
            }
            Some(_) => match self.0.entry(frame.bytes.clone()) {
                Entry::Vacant(_) => false,
                Entry::Occupied(mut held) => {
                    *held.get_mut() -= 1;
                    if *held.get() == 0 {
                        held.remove();
                    }
                    true
                }
            },
        }
    }
}

fn whole(frame: CapturedFrame, is_left_out: bool) -> Arrival {
    let CapturedFrame { time, mut bytes, whole, interface, .. } = frame;
    let is_cut_short = bytes.len() < whole;
    if is_cut_short {
        bytes.resize(whole.min(LONGEST_FRAME).max(bytes.len()), 0);
    }
    Arrival { time, bytes, interface, is_left_out, is_cut_short }
}

/// The length of the longest IP packet with a link header and two VLAN tags. Truncated frames are
/// padded to at most this length, because longer frames are always rejected.
const LONGEST_FRAME: usize = 65_535 + 22;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_was_held_or_handed_over_counts_once() {
        let mut sights = Sights::default();
        let mut seen = |comment: &str, byte| {
            let comment = comment.to_owned();
            sights.is_another(&CapturedFrame { comment, bytes: vec![byte], ..CapturedFrame::default() })
        };
        for (comment, byte, another) in [
            ("verdict=tx", 1, false),
            ("verdict=hold", 1, false),
            ("verdict=hold", 1, false),
            ("verdict=tx", 2, false),
            ("verdict=tx backend=\"b\"", 1, true),
            ("verdict=drop reason=fragment_timeout", 1, true),
            ("verdict=tx", 1, false),
            ("verdict=to_thread to=1", 3, true),
            ("verdict=tx", 3, false),
            ("", 1, false),
            ("by another program", 1, false),
        ] {
            assert_eq!(seen(comment, byte), another, "{comment} {byte}");
        }
    }

    #[test]
    fn what_was_not_kept_is_zeros_up_to_the_longest_frame() {
        let frame = |whole| CapturedFrame { bytes: vec![7; 60], whole, ..CapturedFrame::default() };
        let arrival = super::whole(frame(100), false);
        assert!(arrival.is_cut_short && arrival.bytes == [vec![7; 60], vec![0; 40]].concat());
        assert_eq!(super::whole(frame(usize::MAX), false).bytes.len(), LONGEST_FRAME);
        for as_it_is in [60, 3] {
            let arrival = super::whole(frame(as_it_is), false);
            assert!(!arrival.is_cut_short && arrival.bytes.len() == 60);
        }
    }
}
