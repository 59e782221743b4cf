//! Each page has a check that fails if the page differs from the code. `tidy` checks the log and
//! event references. Each of the other pages is checked by a test whose name begins with
//! `reference_`. If the variable [`WRITE_DOCS`] is set, the checks write the pages instead, so each
//! page has only one generator.

use anyhow::Result;

use testbed::WRITE_DOCS;

use crate::build::cargo_lane;
use crate::cargo::{self, cargo};

/// Runs all checks in the mode in which they write the pages.
pub(crate) fn run() -> Result<()> {
    let mut tests = cargo_lane("test");
    cargo::run(
        tests.args(["--lib", "--test", "admin", "--test", "reference", "reference_"]).env(WRITE_DOCS, "1"),
    )?;
    cargo::run(cargo(&["xtask", "tidy"]).env(WRITE_DOCS, "1"))
}
