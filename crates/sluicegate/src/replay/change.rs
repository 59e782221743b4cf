//! Parses `--reload AT=FILE`, and loads all configuration files before the first frame is replayed.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use config::{Config, parse_duration};

use crate::config_check;

/// The moment of a configuration change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// The time since the first frame.
    Time(Duration),
    /// The number of a frame, counted from 1. The change happens before this frame.
    Frame(u64),
}

/// The parsed value of `--reload`.
#[derive(Clone, Debug)]
pub(super) struct Change {
    at: At,
    file: PathBuf,
}

/// A loaded configuration, which takes effect at `at`.
pub(super) struct Loaded {
    pub(super) at: At,
    pub(super) config: Config,
}

impl Loaded {
    /// Returns `true` if the change happens before the frame with the number `frame`. The frame
    /// arrived `time` after the first frame.
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
            Self::Time(at) => write!(f, "{at:?} after the first frame"),
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
    parsed.ok_or_else(|| {
        "expected AT=FILE, where AT is a time such as 12s or 500ms, or the number of a frame".to_owned()
    })
}

/// Loads the configuration files. The configurations take effect in command-line order.
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
