//! The descriptions of all configuration keys, from `keys.txt`.
//!
//! The JSON schema and the configuration reference contain these descriptions. Types and ranges are
//! not in `keys.txt`: they are recorded while a configuration is read (module
//! [`schema`](mod@super::schema)).

use std::collections::BTreeMap;

use serde_json::Value;

/// The description of one key.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Description {
    pub(crate) text: String,
    /// The default value. `None` if the default value depends on other keys or is stated in the
    /// description.
    pub(crate) default: Option<Value>,
    /// `true` if a change needs a restart.
    pub(crate) needs_restart: bool,
}

/// The descriptions, by key path.
pub(crate) type Descriptions = BTreeMap<Vec<String>, Description>;

/// Parses `keys.txt`.
pub(crate) fn descriptions() -> Descriptions {
    let mut all = Descriptions::new();
    let mut last = Vec::new();
    for line in KEYS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(text) = line.strip_prefix("    ") {
            all.entry(last.clone()).or_default().text.push_str(text);
            continue;
        }
        let (key, default) =
            line.split_once(" = ").map_or((line, None), |(key, text)| (key, Some(value(text))));
        let (key, needs_restart) = key.strip_suffix(" !restart").map_or((key, false), |key| (key, true));
        last = key.split('.').map(str::to_owned).collect();
        all.insert(last.clone(), Description { default, needs_restart, ..Description::default() });
    }
    let marked: Vec<_> =
        all.iter().filter(|(_, one)| one.needs_restart).map(|(path, _)| path.clone()).collect();
    for (path, description) in &mut all {
        description.needs_restart |= marked.iter().any(|above| path.starts_with(above));
    }
    all
}

/// Parses a default value. Numbers, booleans, lists and quoted strings are parsed as JSON. Any
/// other text is a string.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

const KEYS: &str = include_str!("../keys.txt");
