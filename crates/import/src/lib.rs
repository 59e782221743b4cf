//! Converts IPVS rules into a TOML configuration. The input is the output of `ipvsadm -S -n`.
//!
//! [`ipvs`] returns an [`Import`], which contains the configuration and a note for each rule that
//! has no exact counterpart. If the text contains invalid rules, [`ipvs`] returns all [`Problems`]
//! instead. IPVS rules do not contain a cluster name, hash key, machines, checks or routers, so the
//! configuration contains placeholders for them. Pools of TCP services get a check of the TCP port.
//! The configuration is always valid, unless it exceeds the size limit of 16 MiB.
//!
//! ```
//! let rules = "-A -t 203.0.113.10:80 -s mh\n-a -t 203.0.113.10:80 -r 198.18.1.1:80 -i -w 2\n";
//! let import = import::ipvs(rules, std::path::Path::new("rules")).unwrap();
//! let backend = r#"{ name = "198.18.1.1", address = "198.18.1.1", weight = 2 }"#;
//! assert!(import.toml.contains(backend));
//! assert_eq!(import.notes.iter().map(|note| note.line).collect::<Vec<_>>(), [1]);
//! ```

#![forbid(unsafe_code)]

mod differences;
mod options;
mod rules;
#[cfg(test)]
mod tests;
mod toml;
mod translate;

use std::path::Path;

use config_text::Problems;

/// A configuration that was generated from rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The configuration as TOML text. Comments in the text repeat the notes.
    pub toml: String,
    /// The differences between the rules and the configuration, ordered by line.
    pub notes: Vec<Note>,
}

/// A note about a rule without an exact counterpart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// The line number of the rule, starting at 1.
    pub line: usize,
    /// `true` if the configuration does not contain the rule. If `false`, the configuration
    /// contains a counterpart with differences.
    pub is_left_out: bool,
    /// A one-line description of the difference, without control characters.
    pub words: String,
}

/// Converts the output of `ipvsadm -S -n` into a configuration. `file` is the file name in problem
/// messages.
///
/// # Errors
/// Returns a problem for each line that is not a valid rule, at most 100. Returns one problem if
/// the text has no rules.
///
/// # Cost
/// `O(n log n)` in the length of the text.
///
/// # References
/// The manual page ipvsadm(8), and the output of ipvsadm 1.31.
pub fn ipvs(text: &str, file: &Path) -> Result<Import, Problems> {
    let translation = translate::translate(rules::read(text, file)?);
    let toml = toml::write(&translation);
    Ok(Import { toml, notes: translation.notes })
}
