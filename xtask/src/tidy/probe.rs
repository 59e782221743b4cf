//! Measures how many places in the code must be changed to add a counter.
//!
//! The check uses one existing counter with a unique name as an example, because all counters are
//! handled in the same way. The measure counts the code lines outside tests that name this counter,
//! and the other files in `crates/*/src` that name it.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::files;
use super::report::Measure;
use super::source::Crate;

pub(super) fn measure(checkout: &Path, product: &[Crate]) -> Result<Measure> {
    let mut places = Vec::new();
    for file in product.iter().flat_map(|one| &one.files) {
        let text = fs::read_to_string(checkout.join(&file.path))?;
        // Tests are always at the end of a file.
        for (number, line) in text.lines().take(file.lines).enumerate() {
            if line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == COUNTER) {
                places.push(format!("{}:{} {}", file.path, number + 1, line.trim()));
            }
        }
    }
    for path in files(&checkout.join("crates"), &["json", "js", "html"])? {
        if path.components().any(|part| part.as_os_str() == "src")
            && fs::read_to_string(&path)?.contains(COUNTER)
        {
            places.push(path.strip_prefix(checkout)?.to_string_lossy().into_owned());
        }
    }
    Ok(Measure { what: "places to change for a new counter", now: places.len(), bar: 2, offenders: places })
}

const COUNTER: &str = "head_room_mismatch";
