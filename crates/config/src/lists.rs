//! Files of prefixes beside the configuration: one prefix or address a line, `#` begins a comment.
//!
//! In: names from `allow_files` and `deny_files`. Out: [`Block`]s, each file read once however many VIPs name it, and the
//! [`Source`]s by which such files are watched and counted in the digest.
//! A file lies in the folder of the file that names it, or below; that of a configuration that was put does with links
//! followed (`base_dir`). What a line says is shown only once it was understood as
//! an address: a name that leads to a secret must not bring it to light, as a configuration may come by the API.
//! Limits: 1,000,000 lines and 64 MiB in all such files together.
//! Not here: what the prefixes are for (`guard`), look-up (`forwarder`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use config_text::words::quote;
use config_text::{BaseDir, Node, Problem, real_path};
use forwarder::Prefix;
use sha2::{Digest, Sha256};

use super::address::source;
use super::source::Source;

/// Prefixes that came together, sorted, each once. Equal when they say the same.
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
            // As many bytes for both families, so that no two lists run into the same stream.
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

/// What was read so far, and how much more may be.
pub(super) struct Lists<'a> {
    /// By real name; `None`: the file has problems, which were reported.
    files: RefCell<BTreeMap<PathBuf, Option<Arc<Block>>>>,
    sources: RefCell<Vec<Source>>,
    /// Beyond it nothing is read.
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

    /// The files that were read, in the order in which they were asked for.
    pub(super) fn into_sources(self) -> Vec<Source> {
        self.sources.into_inner()
    }

    /// The prefixes of the file that the node names.
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
        let refuse = |found: &str| {
            let found = format!("{}: {found}", quote(&path.display().to_string()));
            node.report.error(&node.place, found, READABLE);
        };
        let (bytes, stamp) = read_bytes(path, self.bytes_left.get()).map_err(|found| refuse(&found)).ok()?;
        self.bytes_left.set(self.bytes_left.get() - bytes.len() as u64);
        self.sources.borrow_mut().push(Source::list(path, &bytes, stamp));
        let mut reading = Reading { node, path, flaws: 0 };
        let mut prefixes = Vec::new();
        for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            // What follows the last line's end is no line.
            if number > self.lines_left.get() && !line.is_empty() {
                refuse("over 1,000,000 lines in all lists together");
                return None;
            }
            prefixes.extend(reading.line(number, line));
        }
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
        self.lines_left.set(self.lines_left.get().saturating_sub(lines));
        (reading.flaws == 0).then(|| Arc::new(Block::new(prefixes)))
    }
}

/// One file, line by line.
struct Reading<'a> {
    node: &'a Node<'a>,
    path: &'a Path,
    flaws: usize,
}

impl Reading<'_> {
    /// The prefix of line `number`; `None`: there is none, or what there is was refused.
    fn line(&mut self, number: usize, line: &[u8]) -> Option<Prefix> {
        let end = line.iter().position(|byte| *byte == b'#').unwrap_or(line.len());
        let before = line.get(..end).unwrap_or(line);
        let indent = before.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let Ok(text) = str::from_utf8(before) else {
            return self.refuse(number, 1, "bytes that are not UTF-8".to_owned(), LINE.to_owned());
        };
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        let shown = || format!("{} characters that are no address or prefix", text.chars().count());
        match source(text) {
            Ok(prefix) => Some(prefix),
            Err(flaw) => {
                let (found, allowed) = flaw.words(shown, LINE);
                self.refuse(number, indent + 1, found, allowed)
            }
        }
    }

    /// Reports a flaw of a line; the result is that of a line without a prefix.
    fn refuse(&mut self, line: usize, column: usize, found: String, allowed: String) -> Option<Prefix> {
        self.flaws += 1;
        if self.flaws > MAX_FLAWS {
            return None;
        }
        // The last place says that there are more.
        let found = if self.flaws == MAX_FLAWS { format!("{found}, and maybe more below") } else { found };
        let field = self.node.place.field.to_string();
        self.node.report.elsewhere(Problem::of_file(self.path, found, allowed).at(line, column, field));
        None
    }
}

/// Whether a name leads nowhere but below where it starts.
fn is_below(name: &str) -> bool {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    !name.is_empty() && name.len() <= 1_024 && !name.contains('\0') && Path::new(name).components().all(plain)
}

/// The content, and by what its next change is seen.
fn read_bytes(path: &Path, most: u64) -> Result<(Vec<u8>, super::source::Stamp), String> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".to_owned(),
        _ => error.to_string(),
    };
    // Asked before it is opened: opening a FIFO would wait for a writer.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err("not a regular file".to_owned());
    }
    let file = File::open(path).map_err(failed)?;
    let stamp = super::source::Stamp::of(&file.metadata().map_err(failed)?);
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err("over 64 MiB in all lists together".to_owned());
    }
    Ok((bytes, stamp))
}

const MAX_LINES: usize = 1_000_000;
const MAX_BYTES: u64 = 64 << 20;
/// As many problems of one file are reported.
const MAX_FLAWS: usize = 20;
const NAME: &str = "a file in this file's folder or below, named without .. and not from /";
const READABLE: &str = "a readable file of one prefix or address a line";
const LINE: &str = "an IPv4 or IPv6 prefix or address, then maybe # and a comment";
