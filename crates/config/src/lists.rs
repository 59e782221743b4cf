//! Reads prefix lists: files with one prefix or address per line, and comments that start with `#`.
//!
//! The keys `allow_files` and `deny_files` contain the names of these files. A file is read once,
//! even if several VIPs use it. Each file is a [`Source`] of the configuration: changes to the file
//! are detected, and the file is part of the digest. A list must be in the same folder as the file
//! that refers to it, or in a folder below.
//!
//! A message quotes a line only if the line contains an address, because the file may be a secret.
//! All lists together may contain at most 1,000,000 lines and 64 MiB.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use config_text::words::quote;
use config_text::{BaseDir, Expected, Node, Problem, real_path};
use forwarder::Prefix;
use sha2::{Digest, Sha256};

use super::address::{PrefixFlaw, source};
use super::source::Source;

/// A sorted set of prefixes. Two blocks are equal if they contain the same prefixes.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) prefixes: Box<[Prefix]>,
    pub(super) digest: [u8; 32],
}

impl Block {
    pub(super) fn new(mut prefixes: Vec<Prefix>) -> Self {
        prefixes.sort_unstable();
        prefixes.dedup();
        let mut digest = Sha256::new();
        for prefix in &prefixes {
            // Addresses of both families are hashed as 16 bytes, so that different lists never have
            // the same hash input.
            let bits = match prefix.address() {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            digest.update(bits.octets());
            digest.update([prefix.length()]);
        }
        Self { prefixes: prefixes.into(), digest: digest.finalize().into() }
    }
}

/// The lists that were read so far, and the number of lines and bytes that further lists may
/// contain.
pub(super) struct Lists<'a> {
    /// The prefixes of each file, by path after symbolic links are resolved. The value is `None` if
    /// the file has an error, which has been reported.
    files: RefCell<BTreeMap<PathBuf, Option<Arc<Block>>>>,
    sources: RefCell<Vec<Source>>,
    /// The folder that must contain all lists. `None` allows any folder.
    within: Option<&'a BaseDir>,
    lines_left: Cell<usize>,
    bytes_left: Cell<u64>,
}

impl<'a> Lists<'a> {
    pub(super) fn new(within: Option<&'a BaseDir>) -> Self {
        Self {
            within,
            files: RefCell::default(),
            sources: RefCell::default(),
            lines_left: Cell::new(MAX_LINES),
            bytes_left: Cell::new(MAX_BYTES),
        }
    }

    /// Returns the files that were read, in the order in which they were read.
    pub(super) fn into_sources(self) -> Vec<Source> {
        self.sources.into_inner()
    }

    /// Returns the prefixes in the file that `node` names.
    pub(super) fn file(&self, node: &Node<'_>) -> Option<Arc<Block>> {
        let name = node.parse(NAME, |text| is_below(text).then_some(text))?;
        let path = node.folder().join(name);
        if self.within.is_some_and(|base| !base.holds(&path)) {
            node.report.beyond(&node.place, &path.display().to_string());
            return None;
        }
        let real = real_path(&path);
        if let Some(known) = self.files.borrow().get(&real) {
            return known.clone();
        }
        let block = self.read(node, &path);
        self.files.borrow_mut().insert(real, block.clone());
        block
    }

    fn read(&self, node: &Node<'_>, path: &Path) -> Option<Arc<Block>> {
        let refuse = |why: &str| {
            let message = format!("cannot read {} ({why})", quote(&path.display().to_string()));
            node.refuse(message);
        };
        let (bytes, stamp) = read_bytes(path, self.bytes_left.get()).map_err(|found| refuse(&found)).ok()?;
        self.bytes_left.set(self.bytes_left.get() - bytes.len() as u64);
        self.sources.borrow_mut().push(Source::list(path, &bytes, stamp));
        let mut reading = Reading { node, path, flaws: 0 };
        let mut prefixes = Vec::new();
        for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            // The empty string after the last line feed is not a line.
            if number > self.lines_left.get() && !line.is_empty() {
                refuse("all lists together have more than 1,000,000 lines");
                return None;
            }
            prefixes.extend(reading.line(number, line));
        }
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
        self.lines_left.set(self.lines_left.get().saturating_sub(lines));
        (reading.flaws == 0).then(|| Arc::new(Block::new(prefixes)))
    }
}

/// Reads one file line by line.
struct Reading<'a> {
    node: &'a Node<'a>,
    path: &'a Path,
    flaws: usize,
}

impl Reading<'_> {
    /// Returns the prefix on line `number`. Returns `None` if the line has no prefix or is invalid.
    /// Reports an invalid line.
    fn line(&mut self, number: usize, line: &[u8]) -> Option<Prefix> {
        let end = line.iter().position(|byte| *byte == b'#').unwrap_or(line.len());
        let before = line.get(..end).unwrap_or(line);
        let indent = before.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let Ok(text) = str::from_utf8(before) else {
            return self.refuse(number, 1, "the line is not UTF-8".to_owned(), LINE.to_owned());
        };
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        let (message, help) = match source(text) {
            Ok(prefix) => return Some(prefix),
            Err(PrefixFlaw::Words { message, help }) => (message, help),
            Err(PrefixFlaw::NoAddress) => {
                let length = text.chars().count();
                (format!("{length} characters that are not an address or prefix"), LINE.to_owned())
            }
        };
        self.refuse(number, indent + 1, message, help)
    }

    /// Reports an invalid line, and returns `None`.
    fn refuse(&mut self, line: usize, column: usize, message: String, help: String) -> Option<Prefix> {
        self.flaws += 1;
        if self.flaws > MAX_FLAWS {
            return None;
        }
        let help = if self.flaws == MAX_FLAWS {
            format!("{help}; further lines of this file are not checked")
        } else {
            help
        };
        let field = self.node.place.field.to_string();
        let problem = Problem::of_file(self.path, (message, help)).at(line, column, field);
        self.node.report.elsewhere(problem);
        None
    }
}

/// Returns `true` if a relative path stays within its starting folder.
fn is_below(name: &str) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    !name.is_empty() && name.len() <= 1_024 && !name.contains('\0') && Path::new(name).components().all(plain)
}

/// Returns the content of a file, and a stamp for detecting later changes.
fn read_bytes(path: &Path, most: u64) -> Result<(Vec<u8>, super::source::Stamp), String> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".to_owned(),
        _ => error.to_string(),
    };
    // Opening a named pipe would block until another process opens it for writing, so the file type
    // is checked first.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err("not a regular file".to_owned());
    }
    let file = File::open(path).map_err(failed)?;
    let stamp = super::source::Stamp::of(&file.metadata().map_err(failed)?);
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err("all lists together are larger than 64 MiB".to_owned());
    }
    Ok((bytes, stamp))
}

const MAX_LINES: usize = 1_000_000;
const MAX_BYTES: u64 = 64 << 20;
/// The maximum number of problems reported for one file.
const MAX_FLAWS: usize = 20;
const NAME: Expected = Expected::new("a relative path to a file in this file's folder or below, without ..")
    .example("\"lists/office.txt\"");
const LINE: &str = "write one IP prefix or address per line, and begin comments with #";
