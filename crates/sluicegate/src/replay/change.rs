//! `--reload AT=FILE`: when another configuration takes over in a replay.
//!
//! In: the option's words. Out: configurations, loaded before the first frame, in order of time.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use config::{Config, parse_duration};

use crate::config_check;

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// So long after the first frame.
    Time(Duration),
    /// Before this frame; the first is 1.
    Frame(u64),
}

/// What the option says.
#[derive(Clone, Debug)]
pub(super) struct Change {
    at: At,
    file: PathBuf,
}

/// A configuration that waits for its time.
pub(super) struct Loaded {
    pub(super) at: At,
    pub(super) config: Config,
}

impl Loaded {
    /// Whether its turn is before the frame of this number, which comes so long after the first.
    pub(super) fn is_due(&self, time: Duration, frame: u64) -> bool {
        match self.at {
            At::Time(at) => at <= time,
            At::Frame(at) => at <= frame,
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(at) => write!(f, "{at:?} after its first frame"),
            Self::Frame(at) => write!(f, "frame {at}"),
        }
    }
}

pub(super) fn change(text: &str) -> Result<Change, String> {
    let parsed = text.split_once('=').and_then(|(at, file)| {
        let frame = at.parse().ok().filter(|frame| *frame > 0).map(At::Frame);
        let at = frame.or_else(|| parse_duration(at).map(At::Time))?;
        (!file.is_empty()).then(|| Change { at, file: file.into() })
    });
    parsed.ok_or_else(|| "wanted AT=FILE, AT such as 12s, 500ms, or 1000 for the frame".to_owned())
}

/// Loads the files. They take over in the order in which they are given.
pub(super) fn load(changes: &[Change]) -> anyhow::Result<VecDeque<Loaded>> {
    let load = |change: &Change| Ok(Loaded { at: change.at, config: config_check::load(&change.file)? });
    changes.iter().map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_with_its_unit_or_the_number_of_a_frame() {
        for (text, at) in [
            ("12s=a", At::Time(Duration::from_secs(12))),
            ("500ms=a=b", At::Time(Duration::from_millis(500))),
            ("0s=a", At::Time(Duration::ZERO)),
            ("1=a", At::Frame(1)),
        ] {
            assert_eq!(change(text).unwrap().at, at, "{text}");
        }
        for wrong in ["12s", "=a", "12s=", "0=a", "-1=a", "1.5s=a", "x=a", ""] {
            assert!(change(wrong).is_err(), "{wrong}");
        }
    }
}
