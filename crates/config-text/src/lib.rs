//! TOML text read strictly: by hand, field by field, so that every problem of all files is named at once, with its file, line,
//! field, what was found and what is allowed.
//!
//! In: the text of a first file, and the files that it includes. Out: typed values with their [`Place`]s, and [`Problems`].
//! Not here: any word of a product: its sections, their keys, what values mean, secrets. Nothing stops at an error: a reader
//! reports it and goes on, and [`Report::finish`] says whether what was read may be used.
//! Invariant: a key that no reader asked for is a problem, once its section ends ([`Section::finish`]).
//!
//! ```
//! use std::path::Path;
//! use std::time::Duration;
//!
//! use config_text::{Report, Root, gather};
//!
//! let text = "[job.home]\nevery = \"1h\"\nkepp = 7\n[job.mail]\nevery = \"90 s\"\nkeep = 3\n";
//! let report = Report::default();
//! let parts = gather(&report, Path::new("jobs.toml"), text.to_owned(), &["job"], None);
//! let mut root = Root::new(&report, &parts);
//! for (_name, node) in root.named("job") {
//!     let Some(mut job) = node.section() else { continue };
//!     let hours = Duration::from_secs(60)..=Duration::from_secs(86_400);
//!     let _every = job.required("every", "how often").and_then(|node| node.duration(hours));
//!     let _keep: u8 = job.or("keep", 1, |node| node.number(1..=99));
//!     job.finish();
//! }
//! root.finish();
//! let problems = report.finish().unwrap_err();
//! let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
//! assert_eq!(said[0], "jobs.toml:3:1: job.home.kepp: found an unknown key, allowed every, keep (did you mean \"keep\"?)");
//! assert!(said[1].starts_with("jobs.toml:5:9: job.mail.every: found \"90 s\", allowed a whole number with us, ms, s,"));
//! assert_eq!(said.len(), 2);
//! ```

#![forbid(unsafe_code)]

mod base_dir;
mod field;
mod include;
mod near_miss;
pub mod parallel;
mod pieces;
mod problem;
mod quantity;
mod questions;
mod reader;
mod report;
mod statements;
mod syntax;
pub mod words;

#[cfg(test)]
mod tests;

pub use self::base_dir::{BaseDir, real_path};
pub use self::field::Field;
pub use self::include::{MAX_BYTES, gather, read_text};
pub use self::near_miss::hint;
pub use self::problem::{Problem, Problems, Severity};
pub use self::quantity::{format_duration, parse_duration};
pub use self::questions::{Asked, Question, Questions};
pub use self::reader::{Node, Part, Root, Section, distinct};
pub use self::report::{At, Place, Report, Text, values};
