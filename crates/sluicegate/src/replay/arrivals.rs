//! The frames of a capture that came in, each once and in its whole length.
//!
//! In: frames as the file has them. Out: [`Arrival`]s. A capture of a balancer's own (`capture`) has a packet twice where it was
//! held or handed to another thread, and says so in its comment; both times it has the same bytes.
//! Not here: files (`datapath::CaptureReader`), which frames are for a VIP.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::BufRead;
use std::time::Duration;

use datapath::{CaptureError, CaptureReader, CapturedFrame};

/// A frame of a capture.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) time: Duration,
    pub(super) bytes: Vec<u8>,
    pub(super) interface: Option<String>,
    /// It was on its way out, or is another sight of a frame.
    pub(super) is_left_out: bool,
    /// The capture kept a part of it; the rest is zeros.
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

/// Frames that a balancer held when it captured them: it captured each again as it went.
#[derive(Default)]
struct Sights(HashMap<Vec<u8>, u32>);

impl Sights {
    fn is_another(&mut self, frame: &CapturedFrame) -> bool {
        let verdict = frame.comment.strip_prefix("verdict=").and_then(|said| said.split(' ').next());
        match verdict {
            None => false,
            // The other thread's sight of it follows.
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

/// The longest IP packet, and a link header with two tags. A longer one is too long as well.
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
