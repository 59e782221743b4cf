//! `include = ["vips/*.toml"]`: one configuration in several files.
//!
//! In: the first file. Out: the tables of all files, and their texts in the report, in their order: a file, then what it
//! includes, each pattern's matches by name. That order is the same on every machine.
//! A file that several include is read once. Not here: how sections merge (`reader`), pieces of large files (`pieces`).
//! Limits: 1,024 files, 16 deep, 16 MiB together.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::DeTable;

use crate::base_dir::{BaseDir, real_path};
use crate::pieces::{self, Piece};
use crate::problem::Problem;
use crate::reader::{Node, Part, Section};
use crate::report::{At, MAX_FILES, Place, Report, Text};
use crate::syntax::{self, Flaw};
use crate::words::quote;

/// The first file, `text` under the name `path`, and all that it includes, beneath `within` where there is one. Large files are
/// parsed in pieces, between the sections `[kind.name]` of those kinds that [`Root::named`](crate::Root::named) is
/// asked for: `named`.
///
/// # Cost
/// Reads the files; of large texts, on all processors.
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
    /// By its real name whether a file was read; `false`: it is on the path.
    seen: BTreeMap<PathBuf, bool>,
    /// The files from the first to the one that is being read.
    path: Vec<PathBuf>,
    /// How many bytes all further files may have.
    left: u64,
    named: &'a [&'static str],
    /// Beyond it nothing is included.
    within: Option<&'a BaseDir>,
}

impl<'a> Gatherer<'a> {
    /// Keeps a file and follows its includes; `place` is where it was asked for.
    fn file(&mut self, path: &Path, text: String, place: Option<&Place>) {
        let Some(kept) = self.report.add(path, text) else {
            let place = place.cloned().unwrap_or_default();
            self.report.error(
                &place,
                format!("over {MAX_FILES} files"),
                format!("at most {MAX_FILES} files"),
            );
            return;
        };
        let pieces = match (pieces::parse(&kept.text, self.named), place.filter(|_| self.within.is_some())) {
            (Some(pieces), _) => pieces,
            // What the parser says quotes the file.
            (None, Some(place)) => return self.other_content(path, place),
            (None, None) => self.mended(kept),
        };
        let real = real_path(path);
        self.seen.insert(real.clone(), false);
        self.path.push(path.to_owned());
        // A piece that is not the first begins with a header, and has none.
        let wanted = pieces.first().map(|(_, table)| self.wanted(kept.base, table)).unwrap_or_default();
        self.parts.extend(pieces.into_iter().map(|(at, table)| Part { base: kept.base + at, table }));
        for file in wanted {
            self.include(&file);
        }
        self.path.pop();
        self.seen.insert(real, true);
    }

    /// What can be read of a file that is not TOML; what can't is reported.
    fn mended(&self, kept: &'a Text) -> Vec<Piece<'a>> {
        let (left, flaws) = syntax::mend(&kept.text);
        for Flaw { offset, found, allowed } in flaws {
            self.report.syntax(kept.base + offset, found, allowed);
        }
        vec![(0, DeTable::parse_recoverable(kept.mended.get_or_init(|| left)).0)]
    }

    /// The files that a file names, patterns resolved.
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
            let found = format!("{} inside {MAX_DEPTH} files", quote(&path.display().to_string()));
            self.report.error(place, found, format!("files at most {MAX_DEPTH} deep"));
            return;
        }
        // A pipe would wait for a writer.
        let text = if fs::metadata(path).is_ok_and(|data| !data.is_file() && !data.is_dir()) {
            Err(Problem::of_file(path, "not a regular file", READABLE))
        } else {
            read_text(path, self.left)
        };
        match text {
            Ok(text) => {
                self.left -= text.len() as u64;
                self.file(path, text, Some(place));
            }
            Err(problem) if self.within.is_some() && problem.allowed == UTF_8 => {
                self.other_content(path, place)
            }
            Err(problem) => self.report.unreadable(place, &problem),
        }
    }

    /// Of a file that a configuration from elsewhere names, no more than that it is no configuration.
    fn other_content(&self, path: &Path, place: &Place) {
        let found = format!("{}, which holds something else", quote(&path.display().to_string()));
        self.report.error(place, found, READABLE);
    }

    fn ring(&self, path: &Path, place: &Place) {
        let target = real_path(path);
        let ring = self.path.iter().skip_while(|step| real_path(step) != target).map(PathBuf::as_path);
        let names: Vec<String> = ring.chain([path]).map(|step| step.display().to_string()).collect();
        self.report.error(
            place,
            format!("the loop {}", quote_all(&names)),
            "files that do not include themselves",
        );
    }
}

/// The files that one element of `include` means.
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
        let found = format!("{}, which matches no file", quote(name));
        node.report.warning(&node.place, found, "a pattern that matches, or nothing here");
    }
    files
}

/// The files in a folder whose names match a pattern; `None`: it is none, which was reported.
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
            node.report.error(&node.place, format!("{} ({})", quote(name), error.msg), NAME);
            return None;
        }
    };
    let file = |path: glob::GlobResult| {
        let refuse = |error: glob::GlobError| {
            let found = format!("{}: {}", quote(&error.path().display().to_string()), error.error());
            node.report.error(&node.place, found, "a folder that can be read");
        };
        path.map(|path| node.at(path)).map_err(refuse).ok()
    };
    Some(paths.take(MAX_FILES + 1).filter_map(file).collect())
}

fn quote_all(names: &[String]) -> String {
    let escaped: Vec<String> = names.iter().map(|name| name.escape_debug().to_string()).collect();
    escaped.join(" -> ")
}

/// Reads a file of at most `most` bytes, which is at most 16 MiB.
pub fn read_text(path: &Path, most: u64) -> Result<String, Problem> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => Problem::of_file(path, "no such file", READABLE),
        _ => Problem::of_file(path, error.to_string(), READABLE),
    };
    let found = fs::metadata(path).map_err(failed)?.file_type();
    if found.is_dir() {
        return Err(Problem::of_file(path, "a folder", READABLE));
    }
    // Opening it would wait for a writer, for ever if none comes.
    if found.is_fifo() {
        return Err(Problem::of_file(path, "a pipe", READABLE));
    }
    let mut bytes = Vec::new();
    // A device or a pipe may have no end: one byte past the limit is enough to know.
    File::open(path).map_err(failed)?.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most {
        let all = if most < MAX_BYTES { " in all files together" } else { "" };
        return Err(Problem::of_file(path, format!("over 16 MiB{all}"), "at most 16 MiB"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(valid).filter(|&&byte| byte == b'\n').count() + 1;
        Problem::of_file(path, format!("a byte that is not UTF-8 in line {line}"), UTF_8)
    })
}

/// How much all files together may hold.
pub const MAX_BYTES: u64 = 16 << 20;
const MAX_DEPTH: usize = 16;
const UTF_8: &str = "UTF-8";
const READABLE: &str = "a readable TOML file";
const INCLUDE: &str = "a list of files or patterns such as [\"vips/*.toml\"]";
const NAME: &str = "a file or a pattern with *, ? or [a-z], relative to this file's folder, without **";
