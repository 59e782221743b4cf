//! Writes a configuration with its values spelled differently, or with one changed value.
//!
//! The module works on values of the `toml` crate. It shares no code with the crate `config`, which
//! reads configurations.

use std::iter;

use ::toml::{Table, Value};

/// Returns the same configuration with inline tables, integers in other bases and durations in
/// microseconds. `turn` determines the base of each integer.
pub(super) fn respelled(table: &Table, turn: usize) -> String {
    let spell = |leaf: &Leaf<'_>, number: usize| leaf.respelled(number.wrapping_add(turn));
    Writer { spell, leaves: 0 }.document(table)
}

/// Returns the number of values in the table that are neither tables nor lists, including values in
/// nested tables and lists.
pub(super) fn leaves(table: &Table) -> usize {
    let mut counting = Writer { spell: |leaf: &Leaf<'_>, _| leaf.value.to_string(), leaves: 0 };
    counting.document(table);
    counting.leaves
}

/// Returns versions of the text in which one value is different. `turn` selects the value. Returns
/// an empty iterator if there is no other valid value.
pub(super) fn altered(table: &Table, turn: usize) -> impl Iterator<Item = String> {
    let chosen = turn.checked_rem(leaves(table));
    (0..).map_while(move |other| {
        let mut found = false;
        let spell = |leaf: &Leaf<'_>, number: usize| {
            let instead = if Some(number) == chosen { leaf.others().nth(other) } else { None };
            found |= instead.is_some();
            instead.unwrap_or_else(|| leaf.value.to_string())
        };
        let text = Writer { spell, leaves: 0 }.document(table);
        found.then_some(text)
    })
}

/// A value that is neither a table nor a list, with its key.
struct Leaf<'v> {
    key: &'v str,
    value: &'v Value,
}

impl Leaf<'_> {
    fn respelled(&self, turn: usize) -> String {
        match (self.value, self.span()) {
            (Value::Integer(number @ 0..), _) => match turn % 5 {
                0 => format!("{number:#x}"),
                1 => format!("{number:#o}"),
                2 => format!("{number:#b}"),
                3 => format!("+{number}"),
                _ => number
                    .to_string()
                    .split("")
                    .filter(|digit| !digit.is_empty())
                    .collect::<Vec<_>>()
                    .join("_"),
            },
            (_, Some(Span { number, micros, unit })) if unit != "%" => format!("\"{}us\"", number * micros),
            _ => self.value.to_string(),
        }
    }

    /// Returns different values as text: the next larger value, and values that would be identical
    /// after truncation to 8, 16, 32 or 64 bits.
    fn others(&self) -> Box<dyn Iterator<Item = String>> {
        // The reader multiplies the number by its unit. Each factor of two in the unit shifts the
        // number left by one bit, so a truncation would also hide differences that are smaller by
        // this factor.
        let turns = |twos: u32| {
            iter::once(1).chain([8, 16, 32, 64].map(|bits: u32| 1_i128 << bits.saturating_sub(twos)))
        };
        match (self.value, self.span()) {
            (Value::Boolean(truth), _) => Box::new(iter::once((!truth).to_string())),
            (Value::Integer(number), _) => {
                let number = i128::from(*number);
                Box::new(turns(0).map(move |more| (number + more).to_string()))
            }
            (_, Some(Span { number, micros, unit })) => Box::new(
                turns(micros.trailing_zeros()).map(move |more| format!("\"{}{unit}\"", number + more)),
            ),
            _ => Box::new(iter::empty()),
        }
    }

    /// Parses a number with a unit. Checks the key first, because a string under a different key
    /// may look like such a number.
    fn span(&self) -> Option<Span> {
        let text = self.value.as_str().filter(|_| WITH_UNIT.contains(&self.key))?;
        let (unit, micros) = *UNITS.iter().find(|(unit, _)| {
            text.strip_suffix(unit).is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        })?;
        let number = text.strip_suffix(unit)?.parse().ok()?;
        Some(Span { number, unit, micros })
    }
}

/// A number with its unit, such as `30s`.
struct Span {
    number: i128,
    unit: &'static str,
    micros: i128,
}

struct Writer<S> {
    /// Writes a value. The second argument is the index of the value among all values.
    spell: S,
    leaves: usize,
}

impl<S: FnMut(&Leaf<'_>, usize) -> String> Writer<S> {
    fn document(&mut self, table: &Table) -> String {
        table.iter().map(|(key, value)| format!("{} = {}\n", quoted(key), self.value(key, value))).collect()
    }

    fn value(&mut self, key: &str, value: &Value) -> String {
        match value {
            // Header names are arbitrary, so a header name may be identical to a key whose values
            // have a unit.
            Value::Table(_) if key == "headers" => value.to_string(),
            Value::Table(table) => {
                let entry =
                    |(key, value): (&String, &Value)| format!("{} = {}", quoted(key), self.value(key, value));
                format!("{{ {} }}", table.iter().map(entry).collect::<Vec<_>>().join(", "))
            }
            Value::Array(array) => {
                let elements: Vec<_> = array.iter().map(|value| self.value(key, value)).collect();
                format!("[{}]", elements.join(", "))
            }
            value => {
                self.leaves += 1;
                (self.spell)(&Leaf { key, value }, self.leaves - 1)
            }
        }
    }
}

fn quoted(key: &str) -> String {
    // A string in JSON syntax is a valid TOML key. The multi-line string that the `toml` crate may
    // write is not a valid key.
    serde_json::to_string(key).unwrap_or_default()
}

/// The units of values and their lengths in microseconds. A percentage has only one spelling.
const UNITS: [(&str, i128); 6] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("%", 1)];
/// The keys that have values with a unit.
const WITH_UNIT: [&str; 20] = [
    "closing",
    "drain_time",
    "established",
    "fast_interval",
    "graceful_shutdown",
    "hold",
    "hold_down",
    "hold_down_half_life",
    "hold_time",
    "interval",
    "lifetime",
    "max_hold_down",
    "max_retry",
    "max_stall",
    "max_down",
    "new",
    "slow_start",
    "spin",
    "timeout",
    "udp",
];
