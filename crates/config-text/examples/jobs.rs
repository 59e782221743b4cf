//! Reads backup jobs from a file with strict checks and prints them: `cargo run --example jobs --
//! jobs.toml`.
//!
//! ```toml
//! include = ["jobs/*.toml"]
//! [job.mail]
//! every = "6h"
//! keep = 14
//! folders = ["/var/mail"]
//! ```

use std::ops::RangeInclusive;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use config_text::{
    Expected, MAX_BYTES, Node, Problems, Report, Root, distinct, format_duration, gather, read_text, values,
};

struct Job {
    name: Arc<str>,
    every: Duration,
    keep: u16,
    folders: Vec<String>,
}

/// Reads the jobs from a file and from the files that it includes. If there is an error, returns
/// all problems.
fn load(path: &Path) -> Result<Vec<Job>, Problems> {
    let report = Report::default();
    let parts = gather(&report, path, read_text(path, MAX_BYTES)?, &["job"], None);
    let mut root = Root::new(&report, &parts);
    root.each("include");
    let jobs: Vec<Job> = root.named("job").into_iter().filter_map(read).collect();
    root.finish();
    let warnings = report.finish()?;
    if !warnings.is_empty() {
        eprintln!("{warnings}");
    }
    Ok(jobs)
}

fn read((name, node): (Arc<str>, Node<'_>)) -> Option<Job> {
    let mut section = node.section()?;
    let every = section.required("every", "the interval of the job").and_then(|node| node.duration(EVERY));
    let keep = section.or("keep", 7, |node| node.number(1..=999));
    let folders = section.required("folders", FOLDERS).and_then(|node| node.items(FOLDERS));
    let absolute = |text: &str| text.starts_with('/').then(|| text.to_owned());
    let folders =
        distinct(&folders.unwrap_or_default(), |node| node.parse("an absolute path", absolute), Node::again);
    section.finish();
    Some(Job { name, every: every?, keep, folders: values(&folders) })
}

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: jobs FILE");
        return ExitCode::from(2);
    };
    match load(Path::new(&path)) {
        Ok(jobs) => {
            for Job { name, every, keep, folders } in jobs {
                let (every, folders) = (format_duration(every), folders.join(", "));
                println!("{name}: every {every}, {keep} copies of {folders}");
            }
            ExitCode::SUCCESS
        }
        Err(problems) => {
            eprintln!("{problems}");
            ExitCode::FAILURE
        }
    }
}

const EVERY: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(7 * 86_400);
const FOLDERS: Expected = Expected::new("a list of folders").example("[\"/var/mail\"]");
