//! Writes the same configuration in different orders and notations.

use std::fmt::Write as _;

use toml::{Table, Value};

use crate::rows::ORDERED;

/// Writes a configuration. The number determines the order and the notation. The number 0 does not
/// change the order.
pub(crate) struct Writer(pub(crate) u64);

impl Writer {
    fn next(&mut self, below: usize) -> usize {
        if self.0 == 0 {
            return 0;
        }
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) | 1;
        usize::try_from(self.0 >> 33).unwrap() % below.max(1)
    }

    fn shuffled<T>(&mut self, items: impl IntoIterator<Item = T>) -> Vec<T> {
        let mut items: Vec<T> = items.into_iter().collect();
        for last in (1..items.len()).rev() {
            let other = last - self.next(last + 1);
            items.swap(last, other);
        }
        items
    }

    pub(crate) fn file(&mut self, tree: &Value) -> String {
        let (sections, mut text) = (tree.as_table().unwrap(), String::new());
        for (name, value) in self.shuffled(sections) {
            let _ = match value {
                Value::Table(table) => {
                    let lines = self.lines(name, table);
                    writeln!(text, "[{name}]\n{lines}")
                }
                value => {
                    text.insert_str(0, &format!("{name} = {value}\n"));
                    Ok(())
                }
            };
        }
        text
    }

    fn lines(&mut self, path: &str, table: &Table) -> String {
        let keys = self.shuffled(table);
        keys.into_iter()
            .map(|(key, value)| format!("{key} = {}\n", self.value(&format!("{path}.{key}"), value)))
            .collect()
    }

    fn value(&mut self, path: &str, value: &Value) -> String {
        match value {
            Value::Table(table) => {
                let keys = self.shuffled(table);
                let keys = keys
                    .into_iter()
                    .map(|(key, value)| format!("{key} = {}", self.value(&format!("{path}.{key}"), value)));
                format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "))
            }
            Value::Array(values) => {
                let is_ordered = ORDERED.contains(&pattern(path).as_str());
                let values = if is_ordered { values.iter().collect() } else { self.shuffled(values) };
                let values: Vec<_> = values.into_iter().map(|value| self.value(path, value)).collect();
                format!("[{}]", values.join(", "))
            }
            Value::String(text) => format!("{:?}", self.spelled(text)),
            value => value.to_string(),
        }
    }

    /// Returns `text`, or sometimes an equivalent notation if it is a duration or an IPv6 address.
    fn spelled(&mut self, text: &str) -> String {
        if self.next(2) == 0 {
            return text.to_owned();
        }
        if let Some(minutes) = text.strip_suffix('m').and_then(|number| number.parse::<u32>().ok()) {
            return format!("{}s", minutes * 60);
        }
        if let Some(seconds) = text.strip_suffix('s').and_then(|number| number.parse::<u32>().ok()) {
            return format!("{}ms", seconds * 1_000);
        }
        let is_v6 = text.contains("::") && !text.contains("]:");
        if is_v6 { text.to_uppercase() } else { text.to_owned() }
    }
}

/// Replaces names in a path with `NAME`, as in the configuration reference.
pub(crate) fn pattern(path: &str) -> String {
    let mut parts: Vec<&str> = path.split('.').collect();
    let named = ["check", "encapsulation", "machine", "pool", "prefix_group", "remote", "vip"];
    if parts.len() > 1 && named.contains(&parts[0]) {
        parts[1] = "NAME";
    }
    parts.join(".").replace(".https", ".http")
}
