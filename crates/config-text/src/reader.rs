//! Walks the parsed TOML and yields typed values, reporting every wrong one.
//!
//! In: the spanned tables of the `toml` crate. Out: `Option`s; `None` means absent, or wrong and reported.
//! Serde's derive stops at the first error, and `config check` names all of them at once, with line and
//! field: that is why the values are read by hand.
//! Invariant: a key that no reader asked for is reported by [`Section::finish`]; every section ends with it.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::field::Field;
use crate::near_miss::hint;
use crate::quantity::{format_duration, parse_duration, parse_percent};
use crate::questions::{ANY, Asked, Step};
use crate::report::{At, Place, Report};
use crate::words::quote;

/// One file, or a piece of a large one: where it begins, and what it says.
pub struct Part<'a> {
    pub(crate) base: usize,
    pub(crate) table: Spanned<DeTable<'a>>,
}

/// All files together: sections of one kind merge, and a section for all may stand once.
pub struct Root<'a> {
    /// Where problems go.
    pub report: &'a Report,
    files: Vec<Section<'a>>,
}

impl<'a> Root<'a> {
    /// Over the parts of all files, as [`gather`](crate::gather) has them.
    pub fn new(report: &'a Report, parts: &'a [Part<'a>]) -> Self {
        let files = parts.iter().map(|part| Section::of_file(report, part.base, part.table.get_ref()));
        Self { report, files: files.collect() }
    }

    /// A key that each file may have.
    pub fn each(&mut self, key: &'static str) -> Vec<Node<'a>> {
        self.files.iter_mut().filter_map(|file| file.optional(key)).collect()
    }

    /// A section that stands once in all files.
    pub fn once(&mut self, key: &'static str) -> Option<Node<'a>> {
        let mut nodes = self.each(key).into_iter();
        let first = nodes.next()?;
        for other in nodes {
            let found =
                format!("{key} a second time, after {}", self.report.name(&first.place, &other.place));
            self.report.error(&other.place, found, "it once in all files");
        }
        Some(first)
    }

    /// As [`once`](Self::once); its absence is reported.
    pub fn required(&mut self, key: &'static str, allowed: &str) -> Option<Node<'a>> {
        let node = self.once(key);
        if node.is_none() {
            self.report.absent(&Place::top(key), "nothing", allowed);
        }
        node
    }

    /// The entries of the sections `[KEY.NAME]` of all files, in the order of the names. One under a name that is no
    /// name, or a second time, is reported, and read all the same for what is wrong inside.
    pub fn named(&mut self, key: &'static str) -> Vec<(Arc<str>, Node<'a>)> {
        let sections: Vec<_> = self.each(key).into_iter().filter_map(|node| node.section()).collect();
        let mut entries: Vec<(Arc<str>, Node<'a>)> = sections.into_iter().flat_map(Section::named).collect();
        // Of equals the first comes last, so that it is the one that a map keeps.
        entries.sort_by(|(a, one), (b, other)| a.cmp(b).then(other.place.offset.cmp(&one.place.offset)));
        let mut first: Option<&(Arc<str>, Node<'a>)> = None;
        for entry in entries.iter().rev() {
            let (name, node) = entry;
            let Some((_, before)) = first.filter(|(before, _)| before == name) else {
                first = Some(entry);
                continue;
            };
            let elsewhere = self.report.name(&before.place, &node.place);
            let found = format!("a second {key} \"{name}\", after {elsewhere}");
            self.report.error(&node.place, found, "each name once in all files");
        }
        entries
    }

    /// Ends every file.
    pub fn finish(self) {
        for file in self.files {
            file.finish();
        }
    }
}

/// One table of a file, and the keys that were asked for so far.
pub struct Section<'a> {
    /// Where problems go.
    pub report: &'a Report,
    offset: usize,
    field: Arc<Field>,
    /// The offset of the file that it stands in.
    base: usize,
    table: &'a DeTable<'a>,
    known: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// The whole of a file that begins at `base`.
    pub(crate) fn of_file(report: &'a Report, base: usize, table: &'a DeTable<'a>) -> Self {
        Self { report, offset: base, field: Arc::default(), base, table, known: Vec::new() }
    }

    /// Where it stands.
    pub fn place(&self) -> Place {
        Place { offset: self.offset, field: (*self.field).clone() }
    }

    /// The value of `key`, when there is one.
    pub fn optional(&mut self, key: &'static str) -> Option<Node<'a>> {
        self.report.ask(|| self.field.key(key), || Step::Allow);
        self.value(key)
    }

    fn value(&mut self, key: &'static str) -> Option<Node<'a>> {
        self.known.push(key);
        self.table.get(key).map(|value| self.node(self.field.key(key), value))
    }

    /// The value of `key`; its absence is reported.
    pub fn required(&mut self, key: &'static str, allowed: &str) -> Option<Node<'a>> {
        self.report.ask(|| self.field.key(key), || Step::Require);
        let node = self.value(key);
        if node.is_none() {
            let place = Place { offset: self.offset, field: self.field.key(key) };
            self.report.absent(&place, "nothing", allowed);
        }
        node
    }

    /// The value of `key` as `read` sees it, else `default`.
    pub fn or<T>(&mut self, key: &'static str, default: T, read: impl FnOnce(Node<'a>) -> Option<T>) -> T {
        self.optional(key).and_then(read).unwrap_or(default)
    }

    /// Every entry of a table whose keys are names. One that is none is reported and comes in quotes, which no name has.
    fn named(self) -> Vec<(Arc<str>, Node<'a>)> {
        let mut entries = Vec::with_capacity(self.table.len());
        for (key, value) in self.table {
            let name: Arc<str> = Arc::from(key.get_ref().as_ref());
            let node = self.node(self.field.name(Arc::clone(&name)), value);
            if is_name(&name) {
                entries.push((name, node));
            } else {
                let place = Place { offset: self.base + key.span().start, field: node.place.field.clone() };
                let shown = quote(key.get_ref());
                self.report.error(&place, shown.as_str(), NAME);
                entries.push((Arc::from(shown), node));
            }
        }
        entries
    }

    /// Every entry of a table with any keys.
    pub fn entries(self) -> Vec<(&'a str, Node<'a>)> {
        let entry = |(key, value)| {
            let key: &'a Spanned<_> = key;
            let key: &'a std::borrow::Cow<'a, str> = key.get_ref();
            (key.as_ref(), self.node(self.field.name(key.as_ref().into()), value))
        };
        self.table.iter().map(entry).collect()
    }

    /// Reports the keys that no reader asked for.
    pub fn finish(mut self) {
        self.report.ask(|| (*self.field).clone(), || Step::Close);
        self.known.sort_unstable();
        // A kind of section is asked for more than once.
        self.known.dedup();
        for (key, _) in self.table {
            let word = key.get_ref().as_ref();
            if !self.known.contains(&word) {
                let field = self.field.name(word.into());
                let place = Place { offset: self.base + key.span().start, field };
                let keys = self.known.join(", ");
                let hint = hint(word, self.known.iter().copied());
                self.report.error(&place, "an unknown key", format!("{keys}{hint}"));
            }
        }
    }

    fn node(&self, field: Field, value: &'a Spanned<DeValue<'a>>) -> Node<'a> {
        let place = Place { offset: self.base + value.span().start, field };
        Node { report: self.report, place, base: self.base, value: value.get_ref() }
    }
}

/// One value of the file.
pub struct Node<'a> {
    /// Where problems go.
    pub report: &'a Report,
    /// Where it stands.
    pub place: Place,
    base: usize,
    value: &'a DeValue<'a>,
}

impl<'a> Node<'a> {
    /// Keeps the place of this node beside a value that was read from it.
    pub fn at<T>(&self, value: T) -> At<T> {
        At { value, place: self.place.clone() }
    }

    /// Reports that this value is not what is allowed here.
    pub fn refuse(&self, allowed: impl Into<String>) {
        self.report.error(&self.place, describe(self.value), allowed);
    }

    /// As [`refuse`](Self::refuse), where a value is wanted.
    pub fn wrong<T>(&self, allowed: impl Into<String>) -> Option<T> {
        self.refuse(allowed);
        None
    }

    fn ask(&self, asked: impl FnOnce() -> Asked) {
        self.report.ask(|| self.place.field.clone(), || Step::Ask(asked()));
    }

    /// The string, when it is one; nothing is reported.
    pub fn as_str(&self) -> Option<&'a str> {
        self.ask(|| Asked::Text);
        self.text()
    }

    fn text(&self) -> Option<&'a str> {
        match self.value {
            DeValue::String(text) => Some(text.as_ref()),
            _ => None,
        }
    }

    /// The integer, when it is one that fits; nothing is reported.
    pub fn as_integer(&self) -> Option<i128> {
        self.ask(|| Asked::Integer { least: ANY.0, most: ANY.1 });
        self.integer()
    }

    fn integer(&self) -> Option<i128> {
        match self.value {
            DeValue::Integer(integer) => i128::from_str_radix(integer.as_str(), integer.radix()).ok(),
            _ => None,
        }
    }

    /// A string that `read` understands.
    pub fn parse<T>(&self, allowed: &str, read: impl FnOnce(&'a str) -> Option<T>) -> Option<T> {
        self.as_str().and_then(read).or_else(|| self.wrong(allowed))
    }

    /// A name: of a pool, a VIP, a backend, a machine.
    pub fn name(&self) -> Option<Arc<str>> {
        self.parse(NAME, |text| is_name(text).then(|| Arc::from(text)))
    }

    /// An integer within a range.
    pub fn number<T>(&self, allowed: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i128> + PartialOrd + Display,
    {
        let bound = |bound: &T, any| bound.to_string().parse().unwrap_or(any);
        self.ask(|| Asked::Integer {
            least: bound(allowed.start(), ANY.0),
            most: bound(allowed.end(), ANY.1),
        });
        let number = self.integer().and_then(|integer| T::try_from(integer).ok());
        number
            .filter(|number| allowed.contains(number))
            .or_else(|| self.wrong(format!("an integer from {} to {}", allowed.start(), allowed.end())))
    }

    /// `true` or `false`.
    pub fn boolean(&self) -> Option<bool> {
        self.ask(|| Asked::Boolean);
        match self.value {
            DeValue::Boolean(truth) => Some(*truth),
            _ => self.wrong("true or false"),
        }
    }

    /// A duration within a range.
    pub fn duration(&self, allowed: RangeInclusive<Duration>) -> Option<Duration> {
        self.ask(|| Asked::Duration);
        let duration = self.text().and_then(parse_duration);
        duration.filter(|duration| allowed.contains(duration)).or_else(|| {
            let (least, most) = (format_duration(*allowed.start()), format_duration(*allowed.end()));
            self.wrong(format!("a whole number with us, ms, s, m or h, from \"{least}\" to \"{most}\""))
        })
    }

    /// A percentage within a range: `"50%"`.
    pub fn percent(&self, allowed: RangeInclusive<u8>) -> Option<u8> {
        self.ask(|| Asked::Percent);
        let percent = self.text().and_then(parse_percent);
        percent.filter(|percent| allowed.contains(percent)).or_else(|| {
            self.wrong(format!("a whole percentage from \"{}%\" to \"{}%\"", allowed.start(), allowed.end()))
        })
    }

    /// One of a few words.
    pub fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        self.ask(|| Asked::Words(words.iter().map(|(word, _)| (*word).to_owned()).collect()));
        let chosen = self.text().and_then(|text| words.iter().find(|(word, _)| *word == text));
        if let Some((_, value)) = chosen {
            return Some(*value);
        }
        let allowed = words.iter().map(|(word, _)| quote(word)).collect::<Vec<_>>().join(", ");
        self.wrong(allowed)
    }

    /// A string that `read` understands, else says what is wrong with.
    pub fn read<T>(&self, allowed: &str, read: fn(&str) -> Result<T, String>) -> Option<T> {
        let text = self.as_str().or_else(|| self.wrong(allowed))?;
        read(text).map_err(|found| self.report.error(&self.place, found, allowed)).ok()
    }

    /// An address and a port to listen on; `allowed` has examples.
    pub fn listen(&self, allowed: &str) -> Option<SocketAddr> {
        let good = |address: &SocketAddr| address.port() > 0 && !address.ip().is_multicast();
        self.parse(allowed, |text| text.parse().ok().filter(good))
    }

    /// The name of something, and where it stands.
    pub fn reference(&self) -> Option<At<Arc<str>>> {
        Some(self.at(self.name()?))
    }

    /// The elements of a list that has at least one.
    pub fn items(&self, allowed: &str) -> Option<Vec<Node<'a>>> {
        let items = self.list(allowed)?;
        if items.is_empty() {
            self.report.error(&self.place, "an empty list", allowed);
            return None;
        }
        Some(items)
    }

    /// The elements of a list.
    pub fn list(&self, allowed: &str) -> Option<Vec<Node<'a>>> {
        self.ask(|| Asked::List);
        let DeValue::Array(array) = self.value else { return self.wrong(allowed) };
        let list = Arc::new(self.place.field.clone());
        let element = |(index, value): (usize, &'a Spanned<DeValue<'a>>)| {
            let offset = self.base + value.span().start;
            let place = Place { offset, field: list.element(index) };
            Node { report: self.report, place, base: self.base, value: value.get_ref() }
        };
        Some(array.iter().enumerate().map(element).collect())
    }

    /// The folder of the file that it stands in.
    pub fn folder(&self) -> PathBuf {
        self.report.folder(&self.place)
    }

    /// Whether this is a table without keys.
    pub fn is_empty_table(&self) -> bool {
        matches!(self.value, DeValue::Table(table) if table.is_empty())
    }

    /// A table, or `false`.
    pub fn section_or_false(&self) -> Option<Section<'a>> {
        self.ask(|| Asked::False);
        match self.value {
            DeValue::Boolean(false) => None,
            DeValue::Table(_) => self.section(),
            _ => self.wrong("a table, or false for none"),
        }
    }

    /// A table.
    pub fn section(&self) -> Option<Section<'a>> {
        self.ask(|| Asked::Table);
        let DeValue::Table(table) = self.value else { return self.wrong("a table") };
        let Place { offset, field } = self.place.clone();
        let (report, base, field) = (self.report, self.base, Arc::new(field));
        Some(Section { report, offset, field, base, table, known: Vec::new() })
    }
}

/// What `read` makes of each element, each value once; `again` reports an element that repeats one.
pub fn distinct<T: Ord + Clone>(
    nodes: &[Node<'_>],
    read: impl Fn(&Node<'_>) -> Option<T>,
    again: impl Fn(&Node<'_>),
) -> Vec<At<T>> {
    let (mut seen, mut found) = (BTreeSet::new(), Vec::with_capacity(nodes.len()));
    for node in nodes {
        let Some(value) = read(node) else { continue };
        if seen.insert(value.clone()) {
            found.push(node.at(value));
        } else {
            again(node);
        }
    }
    found
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => quote(text),
        DeValue::Integer(integer) => cut(&integer.to_string()),
        DeValue::Float(float) => cut(&float.to_string()),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(datetime) => datetime.to_string(),
        DeValue::Array(array) => format!("a list of {}", array.len()),
        DeValue::Table(table) if table.is_empty() => "an empty table".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn cut(number: &str) -> String {
    if number.len() <= 60 { number.to_owned() } else { format!("a number of {} digits", number.len()) }
}

/// Names end up in metrics, paths and command lines: letters, digits and three signs.
fn is_name(text: &str) -> bool {
    let sign = |byte: u8| matches!(byte, b'.' | b'_' | b'-');
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || sign(byte))
        && !text.starts_with(['.', '-'])
}

const NAME: &str = "a name of 1 to 64 letters, digits, '.', '_' or '-', not starting with '.' or '-'";
