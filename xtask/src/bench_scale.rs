//! Implements `bench scale`, which measures how costs grow with the number of VIPs, pools, backends
//! and flows.
//!
//! The benchmark `scale` measures the rows. The results are `benches/results/figure-scale.csv` and
//! `benches/results/figure-scale-flows.csv`, with their plots.

use std::fs;

use anyhow::{Context, Result};

use crate::cargo::{cargo, root};
use crate::figures;
use crate::tidy::RESULTS;

/// Measures both figures and draws them.
pub(crate) fn run() -> Result<()> {
    for (name, table, measures) in
        [("scale", "configurations", CONFIGURATIONS), ("scale-flows", "flows", FLOWS)]
    {
        let rows = figures::output(&mut cargo(&[
            "bench",
            "--package",
            "sluicegate-control-benches",
            "--bench",
            "scale",
            "--",
            table,
        ]))?;
        print!("{rows}");
        let text = figures::origin("cargo xtask bench scale", measures, false)? + &rows;
        let file = root().join(RESULTS).join(format!("figure-{name}.csv"));
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    figures::draw()
}

/// The source folders of the code that loads a configuration and forwards packets.
const CONFIGURATIONS: &[&str] = &[
    "crates/classifier/src",
    "crates/compile/src",
    "crates/config/src",
    "crates/conntrack/src",
    "crates/counters/src",
    "crates/forwarder/src",
    "crates/maglev-hash/src",
    "crates/packet/src",
    "crates/sip-lanes/src",
    "crates/trace-mark/src",
];
const FLOWS: &[&str] = &["crates/conntrack/src"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_folders_are_in_the_checkout() {
        for path in CONFIGURATIONS.iter().chain(FLOWS) {
            assert!(root().join(path).is_dir(), "{path}");
        }
    }
}
