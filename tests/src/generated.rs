//! Checks and writes the generated parts of `docs/reference` pages. In each page, the generated
//! part is between two markers.
//!
//! Tests compare these parts with the text that the code generates. If the environment variable
//! [`WRITE_DOCS`] is set, the same function writes the text to the page. `cargo xtask docs` sets
//! the variable and runs all these tests.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The environment variable that makes [`generated_page`] write to the page.
pub const WRITE_DOCS: &str = "SLUICEGATE_WRITE_DOCS";

/// Returns `true` if the page contains `text` between its markers. If [`WRITE_DOCS`] is set, writes
/// `text` to the page first.
///
/// `page` is a path relative to the root of the repository.
///
/// # Errors
/// Returns an error if the page cannot be read or written, or lacks a marker.
pub fn generated_page(page: &str, text: &str) -> Result<bool> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(page);
    let document = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (before, rest) =
        document.split_once(BEGIN).with_context(|| format!("{page} has no line {BEGIN:?}"))?;
    let (found, after) = rest.split_once(END).with_context(|| format!("{page} has no line {END:?}"))?;
    if std::env::var_os(WRITE_DOCS).is_none() {
        return Ok(found == text);
    }
    fs::write(&path, format!("{before}{BEGIN}{text}{END}{after}"))?;
    Ok(true)
}

/// Formats `text` as inline code for a cell of a Markdown table.
pub fn code_cell(text: &str) -> String {
    let text = text.replace('|', "\\|");
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}

const BEGIN: &str = "<!-- begin: generated -->\n";
const END: &str = "<!-- end -->\n";
