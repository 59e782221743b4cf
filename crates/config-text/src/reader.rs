//! Reads typed values from parsed TOML, and reports every wrong value.
//!
//! The functions return an `Option`. `None` means that a value is absent, or that it is wrong and
//! the problem has been reported. Serde's derive is not used, because it stops at the first error,
//! but `config check` must list all errors with their lines and keys.
//!
//! Invariant: call [`Section::finish`] at the end of every section, because it reports keys that
//! were not read.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::field::Field;
use crate::message::{Expected, Message, article, one_of};
use crate::near_miss::hint;
use crate::quantity::{format_duration, parse_duration, parse_percent};
use crate::questions::{ANY, Asked, Step};
use crate::report::{At, Place, Report};
use crate::words::quote;

/// The parsed table of a file, or of one piece of a large file, with its byte offset.
pub struct Part<'a> {
    pub(crate) base: usize,
    pub(crate) table: Spanned<DeTable<'a>>,
}

/// All files of a configuration. Sections `[KIND.NAME]` are merged from all files. Other sections
/// may occur only once.
pub struct Root<'a> {
    /// The report that collects problems.
    pub report: &'a Report,
    files: Vec<Section<'a>>,
}

impl<'a> Root<'a> {
    /// Creates a reader for the files that [`gather`](crate::gather) returned.
    pub fn new(report: &'a Report, parts: &'a [Part<'a>]) -> Self {
        let files = parts.iter().map(|part| Section::of_file(report, part.base, part.table.get_ref()));
        Self { report, files: files.collect() }
    }

    /// Returns the values of a key that may occur once in each file.
    pub fn each(&mut self, key: &'static str) -> Vec<Node<'a>> {
        self.files.iter_mut().filter_map(|file| file.optional(key)).collect()
    }

    /// Returns a section that may occur in only one of the files. Reports a section that occurs
    /// twice.
    pub fn once(&mut self, key: &'static str) -> Option<Node<'a>> {
        let mut nodes = self.each(key).into_iter();
        let first = nodes.next()?;
        for other in nodes {
            let first = self.report.name(&first.place, &other.place);
            let help = format!("the first definition is {first}; merge the two sections");
            self.report.error(&other.place, (format!("section [{key}] is defined twice"), help));
        }
        Some(first)
    }

    /// Returns a section that must occur in exactly one of the files. If the section is missing,
    /// reports this with the help line `help`.
    pub fn required(&mut self, key: &'static str, help: &str) -> Option<Node<'a>> {
        let node = self.once(key);
        if node.is_none() {
            self.report.absent(&Place::top(key), (format!("missing section [{key}]"), help));
        }
        node
    }

    /// Returns the sections `[KEY.NAME]` of all files, sorted by name. Reports invalid and
    /// duplicate names, but returns their sections too, so that the problems inside them are found.
    pub fn named(&mut self, key: &'static str) -> Vec<(Arc<str>, Node<'a>)> {
        let sections: Vec<_> = self.each(key).into_iter().filter_map(|node| node.section()).collect();
        let mut entries: Vec<(Arc<str>, Node<'a>)> = sections.into_iter().flat_map(Section::named).collect();
        // The first definition of a name must be sorted last, because a map keeps the last entry
        // for each name.
        entries.sort_by(|(a, one), (b, other)| a.cmp(b).then(other.place.offset.cmp(&one.place.offset)));
        let mut first: Option<&(Arc<str>, Node<'a>)> = None;
        for entry in entries.iter().rev() {
            let (name, node) = entry;
            let Some((_, before)) = first.filter(|(before, _)| before == name) else {
                first = Some(entry);
                continue;
            };
            let first = self.report.name(&before.place, &node.place);
            let help = format!("the first definition is {first}");
            self.report.error(&node.place, (format!("section [{key}.{name}] is defined twice"), help));
        }
        entries
    }

    /// Reports the unknown keys in all files.
    pub fn finish(self) {
        for file in self.files {
            file.finish();
        }
    }
}

/// One table in a file, and the keys that have been read from it.
pub struct Section<'a> {
    /// The report that collects problems.
    pub report: &'a Report,
    offset: usize,
    field: Arc<Field>,
    /// The offset of the table's file. Offsets count the bytes of all files, one after another.
    base: usize,
    table: &'a DeTable<'a>,
    known: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// Creates the section for the top level of a file that begins at offset `base`.
    pub(crate) fn of_file(report: &'a Report, base: usize, table: &'a DeTable<'a>) -> Self {
        Self { report, offset: base, field: Arc::default(), base, table, known: Vec::new() }
    }

    /// Returns the position of the table.
    pub fn place(&self) -> Place {
        Place { offset: self.offset, field: (*self.field).clone() }
    }

    /// Returns the value of a key that may be absent.
    pub fn optional(&mut self, key: &'static str) -> Option<Node<'a>> {
        self.report.ask(|| self.field.key(key), || Step::Allow);
        self.value(key)
    }

    fn value(&mut self, key: &'static str) -> Option<Node<'a>> {
        self.known.push(key);
        self.table.get(key).map(|value| self.node(self.field.key(key), value))
    }

    /// Reports a key that this table cannot have, although users may expect it.
    pub fn refuse(&mut self, key: &'static str, message: impl Into<Message>) {
        let _ = self.table.get(key).and_then(|_| self.value(key)).inspect(|node| node.refuse(message));
    }

    /// Returns the value of a key. Reports a missing key.
    pub fn required(&mut self, key: &'static str, expected: impl Into<Expected>) -> Option<Node<'a>> {
        self.report.ask(|| self.field.key(key), || Step::Require);
        let node = self.value(key);
        if node.is_none() {
            self.lacks(key, expected.into().described(key));
        }
        node
    }

    /// Reports that a key is missing.
    pub fn lacks(&self, key: &'static str, help: impl Into<String>) {
        let place = Place { offset: self.offset, field: self.field.key(key) };
        let message = format!("{} needs {} \"{key}\" key", self.field.table(), article(key));
        self.report.absent(&place, (message, help.into()));
    }

    /// Returns the value of a key, converted by `read`, or `default` if the value is absent or
    /// wrong.
    pub fn or<T>(&mut self, key: &'static str, default: T, read: impl FnOnce(Node<'a>) -> Option<T>) -> T {
        self.optional(key).and_then(read).unwrap_or(default)
    }

    /// Returns the entries of a table with user-defined keys. Reports invalid names, and returns
    /// them in quotes to keep them distinct from valid names.
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
                self.report.error(&place, (format!("invalid name {shown}"), NAME));
                entries.push((Arc::from(shown), node));
            }
        }
        entries
    }

    /// Returns all entries of a table without checking their keys.
    pub fn entries(self) -> Vec<(&'a str, Node<'a>)> {
        let entry = |(key, value)| {
            let key: &'a Spanned<_> = key;
            let key: &'a std::borrow::Cow<'a, str> = key.get_ref();
            (key.as_ref(), self.node(self.field.name(key.as_ref().into()), value))
        };
        self.table.iter().map(entry).collect()
    }

    /// Reports the keys that have not been read. The values of these keys are not printed, because
    /// the value of a misspelled key may be a secret.
    pub fn finish(mut self) {
        self.report.ask(|| (*self.field).clone(), || Step::Close);
        self.known.sort_unstable();
        self.known.dedup(); // a section may read the same key several times
        for (key, value) in self.table {
            let word = key.get_ref().as_ref();
            if !self.known.contains(&word) {
                let field = self.field.name(word.into());
                let place = Place { offset: self.base + key.span().start, field };
                let Range { start, end } = value.span();
                // If the unknown key is a section header, there is no value to hide.
                if start > key.span().start {
                    self.report.hide(self.base + start..self.base + end);
                }
                self.report.error(&place, self.unknown(word));
            }
        }
    }

    fn unknown(&self, word: &str) -> Message {
        if let Some(new) = self.report.new_name(&self.field, word) {
            return (format!("\"{word}\" was renamed to \"{new}\""), format!("write \"{new}\" here")).into();
        }
        let help = hint(word, self.known.iter().copied())
            .unwrap_or_else(|| format!("known keys: {}", self.known.join(", ")));
        let message = match self.table.get(word).map(Spanned::get_ref) {
            Some(DeValue::Table(_)) if self.field.path().is_empty() => {
                format!("unknown section {}", self.field.name(word.into()).table())
            }
            _ if self.field.path().is_empty() => format!("unknown key {} outside of a section", quote(word)),
            _ => format!("unknown key {} in {}", quote(word), self.field.table()),
        };
        (message, help).into()
    }

    fn node(&self, field: Field, value: &'a Spanned<DeValue<'a>>) -> Node<'a> {
        Node::new(self.report, self.base, field, value)
    }
}

/// One value in a file.
pub struct Node<'a> {
    /// The report that collects problems.
    pub report: &'a Report,
    /// The position of the value.
    pub place: Place,
    base: usize,
    /// The offset of the first byte after the value.
    end: usize,
    value: &'a DeValue<'a>,
}

impl<'a> Node<'a> {
    fn new(report: &'a Report, base: usize, field: Field, value: &'a Spanned<DeValue<'a>>) -> Self {
        let Range { start, end } = value.span();
        let place = Place { offset: base + start, field };
        Self { report, place, base, end: base + end, value: value.get_ref() }
    }

    /// Returns a converted value together with the position of this node.
    pub fn at<T>(&self, value: T) -> At<T> {
        At { value, place: self.place.clone() }
    }

    /// Returns the last part of the key path in quotes, for a message: `"weight"`, `"ports[0]"`.
    pub fn label(&self) -> String {
        self.place.field.label()
    }

    /// Returns the value for a message: a quoted string, a number, or a description such as `a
    /// list`. Long values are cut.
    pub fn shown(&self) -> String {
        describe(self.value)
    }

    /// Prevents the value from being printed below problems. Use this for secrets.
    pub fn hide(&self) {
        self.report.hide(self.place.offset..self.end);
    }

    /// Reports that the value is wrong.
    pub fn refuse(&self, message: impl Into<Message>) {
        self.report.error(&self.place, message);
    }

    /// Reports that the value is wrong, and returns `None`.
    pub fn wrong<T>(&self, message: impl Into<Message>) -> Option<T> {
        self.refuse(message);
        None
    }

    /// Reports that the value is not one of the expected values, and returns `None`.
    pub fn unexpected<T>(&self, expected: impl Into<Expected>) -> Option<T> {
        let expected = expected.into();
        let message = format!("{} must be {}, got {}", self.label(), expected.what, self.shown());
        self.wrong((message, expected.such_as()))
    }

    /// Reports that this key has no effect without another setting. `setting` is the other setting,
    /// such as `path = "proxied"`.
    pub fn needs(&self, setting: &str) {
        self.refuse((format!("{} needs {setting}", self.label()), format!("remove {}", self.label())));
    }

    /// Reports that this list element is a duplicate.
    pub fn again(&self) {
        self.refuse(self.twice());
    }

    /// Returns the message for a duplicate list element.
    pub fn twice(&self) -> String {
        let list = self.place.field.parent().map(Field::label).unwrap_or_default();
        format!("{list} lists {} twice", self.shown())
    }

    fn ask(&self, asked: impl FnOnce() -> Asked) {
        self.report.ask(|| self.place.field.clone(), || Step::Ask(asked()));
    }

    /// Returns the string, or `None` if the value is not a string. Does not report a problem.
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

    /// Returns the integer, or `None` if the value is not an integer or exceeds the range of `i64`.
    /// Does not report a problem.
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

    /// Returns `true` if the value is an integer of any size.
    pub fn is_integer(&self) -> bool {
        matches!(self.value, DeValue::Integer(_))
    }

    /// Converts a string with `read`. Reports the value if `read` returns `None`.
    pub fn parse<T>(
        &self,
        expected: impl Into<Expected>,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Option<T> {
        self.as_str().and_then(read).or_else(|| self.unexpected(expected))
    }

    /// Converts a string with `read`. If `read` returns an error message, the message is reported.
    pub fn read<T>(
        &self,
        expected: impl Into<Expected>,
        read: impl FnOnce(&'a str) -> Result<T, Message>,
    ) -> Option<T> {
        let text = self.as_str().or_else(|| self.unexpected(expected))?;
        read(text).map_err(|message| self.refuse(message)).ok()
    }

    /// Reads a name, such as the name of a pool.
    pub fn name(&self) -> Option<Arc<str>> {
        let Some(text) = self.as_str() else {
            return self.unexpected("a name in quotes");
        };
        if is_name(text) {
            return Some(Arc::from(text));
        }
        self.wrong((format!("invalid name {}", self.shown()), NAME))
    }

    /// Reads an integer within a range.
    pub fn number<T>(&self, allowed: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i128> + PartialOrd + Display,
    {
        let (least, most) = (allowed.start(), allowed.end());
        let bound = |bound: &T, any| bound.to_string().parse().unwrap_or(any);
        self.ask(|| Asked::Integer { least: bound(least, ANY.0), most: bound(most, ANY.1) });
        let number = self.integer().and_then(|integer| T::try_from(integer).ok());
        number.filter(|number| allowed.contains(number)).or_else(|| {
            let range =
                if least == most { format!("{least}") } else { format!("between {least} and {most}") };
            if self.is_integer() {
                return self.wrong(format!("{} must be {range}, got {}", self.label(), self.shown()));
            }
            let is_quoted = self.text().is_some_and(|text| text.parse::<i128>().is_ok());
            let help =
                if is_quoted { "remove the quotes".to_owned() } else { format!("use a number {range}") };
            self.wrong((format!("{} must be an integer, got {}", self.label(), self.shown()), help))
        })
    }

    /// Reads `true` or `false`.
    pub fn boolean(&self) -> Option<bool> {
        self.ask(|| Asked::Boolean);
        match self.value {
            DeValue::Boolean(truth) => Some(*truth),
            _ => {
                let is_quoted = self.text().is_some_and(|text| ["true", "false"].contains(&text));
                let help = if is_quoted { "remove the quotes" } else { "" };
                self.wrong((format!("{} must be true or false, got {}", self.label(), self.shown()), help))
            }
        }
    }

    /// Reads a duration within a range.
    pub fn duration(&self, allowed: RangeInclusive<Duration>) -> Option<Duration> {
        self.ask(|| Asked::Duration);
        let Some(duration) = self.text().and_then(parse_duration) else {
            let message = match self.text() {
                Some(_) => format!("invalid duration {} for {}", self.shown(), self.label()),
                None => format!("{} must be a duration in quotes, got {}", self.label(), self.shown()),
            };
            return self.wrong((message, "use a whole number with us, ms, s, m or h, such as \"30s\""));
        };
        if allowed.contains(&duration) {
            return Some(duration);
        }
        let (least, most) = (format_duration(*allowed.start()), format_duration(*allowed.end()));
        self.wrong(format!("{} must be between {least} and {most}, got {}", self.label(), self.shown()))
    }

    /// Reads a percentage within a range, such as `"50%"`.
    pub fn percent(&self, allowed: RangeInclusive<u8>) -> Option<u8> {
        self.ask(|| Asked::Percent);
        let percent = self.text().and_then(parse_percent);
        percent.filter(|percent| allowed.contains(percent)).or_else(|| {
            let (least, most) = (allowed.start(), allowed.end());
            let range = format!("between \"{least}%\" and \"{most}%\"");
            self.wrong(format!("{} must be a percentage {range}, got {}", self.label(), self.shown()))
        })
    }

    /// Reads a string that must be one of `words`. Returns the value that is paired with the
    /// string.
    pub fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        self.ask(|| Asked::Words(words.iter().map(|(word, _)| (*word).to_owned()).collect()));
        let text = self.text();
        if let Some((_, value)) = text.and_then(|text| words.iter().find(|(word, _)| *word == text)) {
            return Some(*value);
        }
        if let Some(new) = text.and_then(|text| self.report.new_name(&self.place.field, text)) {
            let help = format!("write \"{new}\" here");
            return self.wrong((format!("{} was renamed to \"{new}\"", self.shown()), help));
        }
        let quoted: Vec<String> = words.iter().map(|(word, _)| quote(word)).collect();
        let message = format!("{} must be {}, got {}", self.label(), one_of(&quoted), self.shown());
        let help = text.and_then(|text| case_or_hint(text, words.iter().map(|(word, _)| *word)));
        self.wrong((message, help.unwrap_or_default()))
    }

    /// Reads an IP address with a port, on which the program can listen.
    pub fn listen(&self, expected: Expected) -> Option<SocketAddr> {
        let Some(address) = self.as_str().and_then(|text| text.parse::<SocketAddr>().ok()) else {
            return self.unexpected(expected);
        };
        match (address.port(), address.ip().is_multicast()) {
            (0, _) => self.wrong((format!("{} has port 0", self.shown()), "use a port from 1 to 65535")),
            (_, true) => self.wrong(format!("{} is a multicast address", self.shown())),
            _ => Some(address),
        }
    }

    /// Reads the name of a section, and returns it with its position.
    pub fn reference(&self) -> Option<At<Arc<str>>> {
        Some(self.at(self.name()?))
    }

    /// Returns the elements of a list. Reports an empty list.
    pub fn items(&self, expected: impl Into<Expected>) -> Option<Vec<Node<'a>>> {
        let expected = expected.into();
        let items = self.list(expected)?;
        if items.is_empty() {
            let help = expected.such_as();
            return self.wrong((format!("{} must not be empty", self.label()), help));
        }
        Some(items)
    }

    /// Returns the elements of a list.
    pub fn list(&self, expected: impl Into<Expected>) -> Option<Vec<Node<'a>>> {
        self.ask(|| Asked::List);
        let DeValue::Array(array) = self.value else { return self.unexpected(expected) };
        let list = Arc::new(self.place.field.clone());
        let element = |(index, value): (usize, &'a Spanned<DeValue<'a>>)| {
            Node::new(self.report, self.base, list.element(index), value)
        };
        Some(array.iter().enumerate().map(element).collect())
    }

    /// Returns the folder of the file that contains the value.
    pub fn folder(&self) -> PathBuf {
        self.report.folder(&self.place)
    }

    /// Returns `true` if the value is an empty table.
    pub fn is_empty_table(&self) -> bool {
        matches!(self.value, DeValue::Table(table) if table.is_empty())
    }

    /// Reads a table. Returns `None` if the value is `false`.
    pub fn section_or_false(&self) -> Option<Section<'a>> {
        self.ask(|| Asked::False);
        match self.value {
            DeValue::Boolean(false) => None,
            DeValue::Table(_) => self.section(),
            _ => self.unexpected("a table or false"),
        }
    }

    /// Reads a table.
    pub fn section(&self) -> Option<Section<'a>> {
        self.ask(|| Asked::Table);
        let DeValue::Table(table) = self.value else {
            let field = &self.place.field;
            let help = match field.path().len() {
                ..=2 => format!("write a section {}", field.table()),
                _ => "write { KEY = VALUE, ... }".to_owned(),
            };
            return self.wrong((format!("{} must be a table, got {}", self.label(), self.shown()), help));
        };
        let Place { offset, field } = self.place.clone();
        let (report, base, field) = (self.report, self.base, Arc::new(field));
        Some(Section { report, offset, field, base, table, known: Vec::new() })
    }
}

/// Reads the elements of a list and returns them without duplicates. Calls `again` for each
/// duplicate, to report it.
pub fn distinct<'a, T: Ord + Clone>(
    nodes: &[Node<'a>],
    read: impl Fn(&Node<'a>) -> Option<T>,
    again: impl Fn(&Node<'a>),
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
        DeValue::Array(array) if array.is_empty() => "an empty list".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(table) if table.is_empty() => "an empty table".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn cut(number: &str) -> String {
    if number.len() <= 60 { number.to_owned() } else { format!("a number of {} digits", number.len()) }
}

/// Returns a help line for a word that differs from a valid word only in case or by a few typing
/// errors.
fn case_or_hint<'k>(text: &str, words: impl Iterator<Item = &'k str> + Clone) -> Option<String> {
    let other = words.clone().find(|word| word.eq_ignore_ascii_case(text));
    match other {
        Some(word) if word.bytes().all(|byte| !byte.is_ascii_uppercase()) => {
            Some(format!("write {} in lower case", quote(word)))
        }
        Some(word) if word.bytes().all(|byte| !byte.is_ascii_lowercase()) => {
            Some(format!("write {} in upper case", quote(word)))
        }
        _ => hint(text, words),
    }
}

/// Returns `true` for 1 to 64 letters, digits, `.`, `_` and `-`. The characters are restricted
/// because names are used in metrics, paths and command lines.
fn is_name(text: &str) -> bool {
    let sign = |byte: u8| matches!(byte, b'.' | b'_' | b'-');
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || sign(byte))
        && !text.starts_with(['.', '-'])
}

const NAME: &str = "use 1 to 64 letters, digits, '.', '_' or '-', and do not start with '.' or '-'";
