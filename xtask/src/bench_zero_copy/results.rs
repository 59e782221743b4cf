//! Formats and writes the results.
//!
//! The result of a row is the burst with the fewest instructions. The number of lost frames is the
//! sum over all bursts.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};

use super::devices::Device;
use super::symbols::{Part, Profile};
use super::traffic::Traffic;
use super::vm::Nic;
use crate::cargo::root;
use crate::figures::{self, origin};
use crate::tidy::RESULTS;

/// The measurement of a device with one kind of traffic.
pub(crate) struct Row {
    pub(super) nic: Nic,
    pub(super) device: Device,
    pub(super) traffic: Traffic,
    /// The frames that came out of the burst with the fewest instructions per frame.
    pub(super) forwarded: u64,
    /// The frames of all bursts.
    pub(super) sent: u64,
    /// The frames of all bursts that did not come out.
    pub(super) lost: u64,
    /// The instructions of the burst with the fewest instructions.
    pub(super) profile: Profile,
}

impl Row {
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    pub(super) fn per_packet(&self, count: u64) -> f64 {
        count as f64 / self.forwarded as f64
    }

    pub(super) fn of(&self, part: Part) -> f64 {
        self.per_packet(self.profile.parts.get(&part).copied().unwrap_or_default())
    }

    /// Returns the row as a line of the printed table.
    pub(crate) fn words(&self) -> String {
        let mut text = format!(
            "{:12}{:13}{:12}{:>9.1}{:>6}",
            self.nic.name(),
            self.device.name(),
            self.traffic.name(),
            self.per_packet(self.profile.total()),
            self.lost
        );
        for part in Part::ALL {
            let _ = write!(text, "{:>13.1}", self.of(part));
        }
        text
    }

    /// Returns the row with the frames and the lost frames of all bursts.
    fn csv(&self) -> String {
        let mut text = format!(
            "{},{},{},{},{},{:.1}",
            self.nic.name(),
            self.device.name(),
            self.traffic.name(),
            self.sent,
            self.lost,
            self.per_packet(self.profile.total())
        );
        for part in Part::ALL {
            let _ = write!(text, ",{:.1}", self.of(part));
        }
        let calls: Vec<String> =
            self.profile.calls.iter().map(|(name, count)| format!("{name} {count}")).collect();
        text + &format!(",{:.1},{}\n", self.per_packet(self.profile.strings), calls.join("; "))
    }

    /// Returns the functions with the most instructions, one per line.
    pub(crate) fn functions(&self) -> String {
        let mut all: Vec<_> = self.profile.functions.iter().collect();
        all.sort_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.cmp(b.0)));
        let line = |((part, name), count): &(&(Part, String), &u64)| {
            format!("{:>12.1}  {:12} {name}\n", self.per_packet(**count), part.name())
        };
        all.iter().take(FUNCTIONS).map(line).collect()
    }
}

/// Returns the head of the table that [`Row::words`] prints.
pub(crate) fn head() -> String {
    let mut text = format!("{:12}{:13}{:12}{:>9}{:>6}", "NIC", "device", "traffic", "total", "lost");
    for part in Part::ALL {
        let _ = write!(text, "{:>13}", part.name());
    }
    text
}

/// Writes the results to `benches/results`.
pub(crate) fn write(rows: &[Row]) -> Result<()> {
    let mut text = origin("cargo xtask bench zero-copy", figures::VETH, false)?;
    let parts = Part::ALL.map(Part::name).join(",");
    writeln!(text, "nic,device,traffic,frames,lost,total,{parts},string iterations,system calls of a burst")?;
    text.extend(rows.iter().map(Row::csv));
    let path = root().join(RESULTS).join("figure-zero-copy.csv");
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The number of functions that are printed for each row.
const FUNCTIONS: usize = 30;
