//! Reads a configuration that uses `include = ["vips/*.toml"]` to combine several files.
//!
//! Files are read in the same order on every machine: each file before the files that it includes.
//! Files that match one pattern are sorted by name. A file that is included more than once is read
//! only once. A configuration has at most 1,024 files, 16 levels of includes, and 16 MiB in total.
//! The module `pieces` parses large files, and `reader` merges the sections.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::DeTable;

use crate::base_dir::{BaseDir, real_path};
use crate::message::{Expected, Message};
use crate::pieces::{self, Piece};
use crate::problem::Problem;
use crate::reader::{Node, Part, Section};
use crate::report::{At, MAX_FILES, Place, Report, Text, is_open_file};
use crate::syntax::{self, Flaw};
use crate::words::quote;

/// Parses the first file and all files that it includes. `text` is the content of the first file
/// and `path` its name. If `within` is given, all included files must be in that folder or below.
///
/// Large files are parsed in pieces. A file may be cut before a header `[kind.name]` if `named`
/// contains the kind. Read the sections of these kinds with [`Root::named`](crate::Root::named),
/// which merges the pieces.
///
/// # Cost
/// Reads the files. Large files are parsed on all processors.
pub fn gather<'a>(
    report: &'a Report,
    path: &Path,
    text: String,
    named: &'a [&'static str],
    within: Option<&'a BaseDir>,
) -> Vec<Part<'a>> {
    let left = MAX_BYTES.saturating_sub(text.len() as u64);
    let (parts, seen) = (Vec::new(), BTreeMap::new());
    let mut gatherer = Gatherer { report, parts, seen, path: Vec::new(), left, named, within };
    gatherer.file(path, text, None);
    gatherer.parts
}

struct Gatherer<'a> {
    report: &'a Report,
    parts: Vec<Part<'a>>,
    /// The files found so far, by path after symbolic links are resolved. The value is `false`
    /// while the includes of the file are being read.
    seen: BTreeMap<PathBuf, bool>,
    /// The chain of includes from the first file to the file that is being read.
    path: Vec<PathBuf>,
    /// The maximum total size of the remaining files, in bytes.
    left: u64,
    named: &'a [&'static str],
    /// The folder that contains all files that may be included. `None` allows any folder.
    within: Option<&'a BaseDir>,
}

impl<'a> Gatherer<'a> {
    /// Parses a file and the files that it includes. `place` is the position of the `include`
    /// element that refers to the file.
    fn file(&mut self, path: &Path, text: String, place: Option<&Place>) {
        let Some(kept) = self.report.add(path, text) else {
            let place = place.cloned().unwrap_or_default();
            let message = format!("the configuration has more than {MAX_FILES} files");
            self.report.error(&place, (message, "merge some of the included files"));
            return;
        };
        let pieces = match (pieces::parse(&kept.text, self.named), place.filter(|_| self.within.is_some())) {
            (Some(pieces), _) => pieces,
            // The error message of the TOML parser may quote the file, so it is replaced by a
            // general message.
            (None, Some(place)) => return self.other_content(path, place),
            (None, None) => self.repaired(kept),
        };
        let real = real_path(path);
        self.seen.insert(real.clone(), false);
        self.path.push(path.to_owned());
        // Only the first piece can contain `include`, because all other pieces begin with a section
        // header.
        let wanted = pieces.first().map(|(_, table)| self.wanted(kept.base, table)).unwrap_or_default();
        self.parts.extend(pieces.into_iter().map(|(at, table)| Part { base: kept.base + at, table }));
        for file in wanted {
            self.include(&file);
        }
        self.path.pop();
        self.seen.insert(real, true);
    }

    /// Reports the syntax errors in a file, and returns the parts that can be parsed.
    fn repaired(&self, kept: &'a Text) -> Vec<Piece<'a>> {
        let (left, flaws) = syntax::repair(&kept.text);
        for Flaw { offset, message } in flaws {
            self.report.syntax(kept.base + offset, message);
        }
        vec![(0, DeTable::parse_recoverable(kept.repaired.get_or_init(|| left)).0)]
    }

    /// Returns the files that a file includes. Patterns are replaced by the files that match.
    fn wanted(&self, base: usize, table: &Spanned<DeTable<'a>>) -> Vec<At<PathBuf>> {
        let mut section = Section::of_file(self.report, base, table.get_ref());
        let nodes = section.optional("include").and_then(|node| node.list(INCLUDE)).unwrap_or_default();
        let inside = |node: &&Node<'_>| {
            let outside = self.within.is_some_and(|base| base.keeps_out(node));
            if outside {
                self.report.beyond(&node.place, node.as_str().unwrap_or_default());
            }
            !outside
        };
        nodes.iter().filter(inside).flat_map(files).collect()
    }

    fn include(&mut self, file: &At<PathBuf>) {
        let At { value: path, place } = file;
        if self.within.is_some_and(|base| !base.holds(path)) {
            return self.report.beyond(place, &path.display().to_string());
        }
        match self.seen.get(&real_path(path)) {
            Some(true) => return,
            Some(false) => return self.ring(path, place),
            None => {}
        }
        if self.path.len() >= MAX_DEPTH {
            let shown = quote(&path.display().to_string());
            let message = format!("{shown} is nested more than {MAX_DEPTH} files deep");
            self.report.error(place, (message, "include this file from a less deeply nested file"));
            return;
        }
        // Opening a named pipe would block until another process opens it for writing.
        let text = if fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir()) {
            Err(Unreadable::File("not a regular file".into()))
        } else {
            read(path, self.left)
        };
        match text {
            Ok(text) => {
                self.left -= text.len() as u64;
                self.file(path, text, Some(place));
            }
            Err(Unreadable::Content(_)) if self.within.is_some() => self.other_content(path, place),
            Err(Unreadable::Content(why) | Unreadable::File(why)) => {
                let message = format!("cannot read {} ({why})", quote(&path.display().to_string()));
                self.report.error(place, message);
            }
        }
    }

    /// Reports that a file is not a TOML configuration. The message does not quote the file,
    /// because the `include` may be in a configuration sent by a client.
    fn other_content(&self, path: &Path, place: &Place) {
        let shown = quote(&path.display().to_string());
        self.report.error(place, format!("{shown} is not a TOML configuration"));
    }

    fn ring(&self, path: &Path, place: &Place) {
        let target = real_path(path);
        let ring = self.path.iter().skip_while(|step| real_path(step) != target).map(PathBuf::as_path);
        let names: Vec<String> = ring.chain([path]).map(|step| step.display().to_string()).collect();
        let message = format!("files include each other in a cycle, {}", escaped(&names));
        self.report.error(place, (message, "remove one of these includes"));
    }
}

/// Returns the files to which one element of `include` refers.
fn files(node: &Node<'_>) -> Vec<At<PathBuf>> {
    let good = |text: &&str| !text.is_empty() && text.len() <= 1_024 && !text.contains('\0');
    let relative = |text: &str| !Path::new(text).is_absolute() && !text.contains("**");
    let name = node.parse(NAME, |text| Some(text).filter(good).filter(|text| relative(text)));
    let Some(name) = name else { return Vec::new() };
    let folder = node.folder();
    if !name.contains(['*', '?', '[']) {
        return vec![node.at(folder.join(name))];
    }
    let Some(files) = matching(node, &folder, name) else { return Vec::new() };
    if files.is_empty() {
        let message = format!("no file matches {}", quote(name));
        node.report.warning(&node.place, (message, "fix the pattern or remove it"));
    }
    files
}

/// Returns the files in a folder whose names match a pattern. Reports an invalid pattern and
/// returns `None`.
fn matching(node: &Node<'_>, folder: &Path, name: &str) -> Option<Vec<At<PathBuf>>> {
    let pattern = if folder.as_os_str().is_empty() {
        name.to_owned()
    } else {
        format!("{}/{name}", glob::Pattern::escape(&folder.display().to_string()))
    };
    let options = glob::MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let paths = match glob::glob_with(&pattern, options) {
        Ok(paths) => paths,
        Err(error) => {
            return node.wrong(format!("invalid pattern {} ({})", quote(name), error.msg));
        }
    };
    let file = |path: glob::GlobResult| {
        let refuse = |error: glob::GlobError| {
            let path = quote(&error.path().display().to_string());
            node.refuse(format!("cannot read folder {path} ({})", error.error()));
        };
        path.map(|path| node.at(path)).map_err(refuse).ok()
    };
    Some(paths.take(MAX_FILES + 1).filter_map(file).collect())
}

fn escaped(names: &[String]) -> String {
    let escaped: Vec<String> = names.iter().map(|name| name.escape_debug().to_string()).collect();
    escaped.join(" -> ")
}

/// The reason why a file cannot be read.
enum Unreadable {
    /// The file does not exist, is not a regular file, or cannot be opened.
    File(String),
    /// The file is not valid UTF-8.
    Content(String),
}

/// Reads a file of at most `most` bytes, which must not exceed 16 MiB.
///
/// # Errors
/// Returns a [`Problem`] with the file name but without a line.
pub fn read_text(path: &Path, most: u64) -> Result<String, Problem> {
    let problem = |(Unreadable::File(why) | Unreadable::Content(why)): Unreadable| {
        Problem::of_file(path, Message::from(why))
    };
    read(path, most).map_err(problem)
}

fn read(path: &Path, most: u64) -> Result<String, Unreadable> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Unreadable::File("no such file".to_owned()),
        _ => Unreadable::File(error.to_string()),
    };
    let found = fs::metadata(path).map_err(failed)?.file_type();
    if found.is_dir() {
        return Err(Unreadable::File("it is a folder, not a file".to_owned()));
    }
    // Opening a named pipe would block until another process opens it for writing. A pipe that the
    // shell has passed to this process is already open.
    if found.is_fifo() && !is_open_file(path) {
        return Err(Unreadable::File("it is a pipe, not a file".to_owned()));
    }
    let mut bytes = Vec::new();
    // Reading a device may never end, so at most one byte more than the limit is read.
    File::open(path).map_err(failed)?.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        let all = if most < MAX_BYTES { "all files together are" } else { "the file is" };
        return Err(Unreadable::File(format!("{all} larger than 16 MiB")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(valid).filter(|&&byte| byte == b'\n').count() + 1;
        Unreadable::Content(format!("line {line} is not UTF-8"))
    })
}

/// The maximum size of all files together, in bytes.
pub const MAX_BYTES: u64 = 16 << 20;
const MAX_DEPTH: usize = 16;
const INCLUDE: Expected = Expected::new("a list of files or patterns").example("[\"vips/*.toml\"]");
const NAME: Expected =
    Expected::new("a file or a pattern with *, ? or [a-z] (without **), relative to this file's folder")
        .example("\"vips/*.toml\"");
