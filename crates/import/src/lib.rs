//! The configuration of another load balancer as TOML of ours: of IPVS, its rules as `ipvsadm -S -n` prints them.
//!
//! In: text. Out: an [`Import`]: a configuration, and of each rule that has no counterpart its line and what is different; or all
//! [`Problems`] of the text, each with line, option, what was found and what is allowed.
//! Not here: what IPVS does not say: the cluster's name and key, machines, checks, routers. Stand-ins take their places.
//! Invariant: the reader of configurations takes what is printed, whatever the rules, up to the 16 MiB that it reads.
//!
//! ```
//! let rules = "-A -t 203.0.113.10:80 -s mh\n-a -t 203.0.113.10:80 -r 198.18.1.1:80 -i -w 2\n";
//! let import = import::ipvs(rules, std::path::Path::new("rules")).unwrap();
//! assert!(import.toml.contains(r#"backends = [{ name = "198.18.1.1", address = "198.18.1.1", weight = 2 }]"#));
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

/// A configuration that was made of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The text. Its comments say what the notes say.
    pub toml: String,
    /// Where it is not the same as the rules, in the order of their lines.
    pub notes: Vec<Note>,
}

/// What became of a rule that has no counterpart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// The line of the rule, from 1.
    pub line: usize,
    /// Whether nothing of the rule is in the configuration; else it is there, and different.
    pub is_left_out: bool,
    /// What is different, in one line without control characters.
    pub words: String,
}

/// Makes a configuration of what `ipvsadm -S -n` prints; `file` names the text in problems.
///
/// # Errors
/// A line that is no rule, a rule that IPVS would refuse, or no rule at all: up to 100 lines of them.
/// # Cost
/// `O(n log n)` in the length of the text.
/// # Source
/// ipvsadm(8), and what version 1.31 prints.
pub fn ipvs(text: &str, file: &Path) -> Result<Import, Problems> {
    let translation = translate::translate(rules::read(text, file)?);
    let toml = toml::write(&translation);
    Ok(Import { toml, notes: translation.notes })
}
