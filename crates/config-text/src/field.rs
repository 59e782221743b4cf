//! The path of keys that leads to a value: what a message calls it.
//!
//! In: keys, names and numbers on the way down from a file's top. Out: `pool.p.backends[3].name`.
//! A file has a path for each of its values and a message needs few of them: so a path is put into words only when it is
//! shown, and shares what is above it.

use std::fmt;
use std::sync::Arc;

use crate::words::quote;

/// The path of keys to one value; empty: a file's top. A clone allocates nothing.
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
    /// A key at a file's top.
    pub fn of(key: &'static str) -> Self {
        Self { within: None, last: Some(Step::Key(key)) }
    }

    /// A key in this table.
    pub fn key(self: &Arc<Self>, key: &'static str) -> Self {
        self.child(Step::Key(key))
    }

    /// A key in this table that the file chose.
    pub fn name(self: &Arc<Self>, name: Arc<str>) -> Self {
        self.child(Step::Name(name))
    }

    /// An element of this list, counted from 0.
    pub fn element(self: &Arc<Self>, index: usize) -> Self {
        self.child(Step::Element(index))
    }

    /// Its steps from the file's top: `*` for a key that the file chose, `[]` for an element.
    pub(crate) fn path(&self) -> Vec<String> {
        let mut path = self.within.as_deref().map(Self::path).unwrap_or_default();
        path.extend(self.last.as_ref().map(|step| match step {
            Step::Key(key) => (*key).to_owned(),
            Step::Name(_) => "*".to_owned(),
            Step::Element(_) => "[]".to_owned(),
        }));
        path
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
            Some(Step::Name(name)) if is_plain(name) => write!(f, "{dot}{name}"),
            Some(Step::Name(name)) => write!(f, "{dot}{}", quote(name)),
            Some(Step::Element(index)) => write!(f, "[{index}]"),
        }
    }
}

/// Whether a key needs no quotes, and is short.
fn is_plain(key: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=64).contains(&key.len()) && key.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_as_toml_writes_it() {
        let top = Arc::new(Field::default());
        assert_eq!(top.to_string(), "");
        assert_eq!(top.key("pool").to_string(), "pool");
        let pool = Arc::new(Field::of("pool"));
        let names = [("a", "pool.a"), ("a.b", "pool.\"a.b\""), ("", "pool.\"\""), ("a\n", "pool.\"a\\n\"")];
        for (name, shown) in names {
            assert_eq!(pool.name(name.into()).to_string(), shown);
        }
        let list = Arc::new(Arc::new(pool.name("a".into())).key("backends"));
        let element = Arc::new(list.element(3));
        assert_eq!(element.key("name").to_string(), "pool.a.backends[3].name");
    }
}
