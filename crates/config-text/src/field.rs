//! The path of keys that leads to a value, such as `pool.p.backends[3].name`.
//!
//! Every value in a file has a path, but paths are printed only in messages. To keep paths cheap,
//! each path shares memory with the path of its parent, and is formatted only when it is printed.

use std::fmt;
use std::sync::Arc;

use crate::words::quote;

/// The path of keys that leads to one value. An empty path refers to the whole file. Cloning does
/// not allocate.
#[derive(Clone, Debug, Default)]
pub struct Field {
    within: Option<Arc<Field>>,
    last: Option<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    Key(&'static str),
    Name(Arc<str>),
    Element(usize),
}

impl Field {
    /// Returns the path of a key at the top level of a file.
    pub fn of(key: &'static str) -> Self {
        Self { within: None, last: Some(Step::Key(key)) }
    }

    /// Returns the path of a key in this table.
    pub fn key(self: &Arc<Self>, key: &'static str) -> Self {
        self.child(Step::Key(key))
    }

    /// Returns the path of a user-defined key in this table, such as the name of a pool.
    pub fn name(self: &Arc<Self>, name: Arc<str>) -> Self {
        self.child(Step::Name(name))
    }

    /// Returns the path of the element at `index` in this list.
    pub fn element(self: &Arc<Self>, index: usize) -> Self {
        self.child(Step::Element(index))
    }

    /// Returns the path as a list of keys. User-defined keys are represented by `*`, and list
    /// elements by `[]`.
    pub(crate) fn path(&self) -> Vec<String> {
        let mut path = self.within.as_deref().map(Self::path).unwrap_or_default();
        path.extend(self.last.as_ref().map(|step| match step {
            Step::Key(key) => (*key).to_owned(),
            Step::Name(_) => "*".to_owned(),
            Step::Element(_) => "[]".to_owned(),
        }));
        path
    }

    /// Returns the last part of the path in quotes, for messages: `"weight"`, `"ports[0]"`,
    /// `"pool.web"`.
    pub fn label(&self) -> String {
        format!("\"{}\"", self.tail())
    }

    fn tail(&self) -> String {
        let within = self.within.as_deref().filter(|within| within.last.is_some());
        match (&self.last, within) {
            (None, _) => String::new(),
            (Some(Step::Key(key)), _) => (*key).to_owned(),
            (Some(Step::Name(name)), None) => shown(name),
            (Some(Step::Name(name)), Some(within)) => format!("{}.{}", within.tail(), shown(name)),
            (Some(Step::Element(index)), within) => {
                format!("{}[{index}]", within.map(Self::tail).unwrap_or_default())
            }
        }
    }

    /// Returns the name of this table for a message: for example `[pool.web]`, or
    /// `vip.www.services[0]` for a table inside a list.
    pub fn table(&self) -> String {
        if self.last.is_none() {
            return "the file".to_owned();
        }
        if self.path().iter().any(|step| step == "[]") { self.to_string() } else { format!("[{self}]") }
    }

    /// Returns the table or list that holds the value.
    pub(crate) fn parent(&self) -> Option<&Self> {
        self.within.as_deref()
    }

    fn child(self: &Arc<Self>, last: Step) -> Self {
        Self { within: Some(Arc::clone(self)), last: Some(last) }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let within = self.within.as_deref().filter(|within| within.last.is_some());
        if let Some(within) = within {
            within.fmt(f)?;
        }
        let dot = if within.is_some() { "." } else { "" };
        match &self.last {
            None => Ok(()),
            Some(Step::Key(key)) => write!(f, "{dot}{key}"),
            Some(Step::Name(name)) => write!(f, "{dot}{}", shown(name)),
            Some(Step::Element(index)) => write!(f, "[{index}]"),
        }
    }
}

/// Formats a key as in TOML. Keys that are long or contain special characters are quoted.
fn shown(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let is_bare = (1..=64).contains(&key.len()) && key.bytes().all(plain);
    if is_bare { key.to_owned() } else { quote(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_written_as_in_toml() {
        let top = Arc::new(Field::default());
        assert_eq!(top.to_string(), "");
        assert_eq!(top.key("pool").to_string(), "pool");
        let pool = Arc::new(Field::of("pool"));
        let names = [("a", "pool.a"), ("a.b", "pool.\"a.b\""), ("", "pool.\"\""), ("a\n", "pool.\"a\\n\"")];
        for (name, shown) in names {
            assert_eq!(pool.name(name.into()).to_string(), shown);
        }
        let web = Arc::new(pool.name("a".into()));
        assert_eq!((web.table(), web.label()), ("[pool.a]".to_owned(), "\"pool.a\"".to_owned()));
        let list = Arc::new(web.key("backends"));
        let element = Arc::new(list.element(3));
        let name = element.key("name");
        assert_eq!(name.to_string(), "pool.a.backends[3].name");
        assert_eq!(
            (element.table(), element.label()),
            ("pool.a.backends[3]".into(), "\"backends[3]\"".into())
        );
        assert_eq!((name.label(), top.table()), ("\"name\"".into(), "the file".into()));
    }
}
