//! Reads TOML files strictly. All problems in all files are reported in one run, each with its
//! position, a message and a help line.
//!
//! [`gather`] parses a first file and the files that it includes. The calling program then reads
//! one key after another through [`Root`], [`Section`] and [`Node`], which return typed values with
//! their [`Place`]s. An error does not stop the reading. Errors are collected, and
//! [`Report::finish`] returns all [`Problems`] at the end. The crate does not define sections or
//! keys; these are defined by the calling program.
//!
//! Keys that the program has not read are reported as unknown by [`Section::finish`].
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
//!     let _every = job.required("every", "the interval").and_then(|node| node.duration(hours));
//!     let _keep: u8 = job.or("keep", 1, |node| node.number(1..=99));
//!     job.finish();
//! }
//! root.finish();
//! let problems = report.finish().unwrap_err();
//! assert_eq!(
//!     problems.to_string(),
//!     r#"error: jobs.toml:3:1: unknown key "kepp" in [job.home]
//!  3 | kepp = ...
//!    | ^^^^
//! help: did you mean "keep"?
//!
//! error: jobs.toml:5:9: invalid duration "90 s" for "every"
//!  5 | every = "90 s"
//!    |         ^^^^^^
//! help: use a whole number with us, ms, s, m or h, such as "30s""#
//! );
//! ```

#![forbid(unsafe_code)]

mod base_dir;
mod excerpt;
mod field;
mod include;
mod message;
mod natural;
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
mod steps;
#[cfg(test)]
mod tests;

pub use self::base_dir::{BaseDir, real_path};
pub use self::field::Field;
pub use self::include::{MAX_BYTES, gather, read_text};
pub use self::message::{Expected, Message};
pub use self::natural::natural;
pub use self::near_miss::{MAX_KNOWN, hint};
pub use self::problem::{Problem, Problems, Severity};
pub use self::quantity::{format_duration, parse_duration};
pub use self::questions::{Asked, Question, Questions};
pub use self::reader::{Node, Part, Root, Section, distinct};
pub use self::report::{At, Place, Renamed, Report, Text, values};
