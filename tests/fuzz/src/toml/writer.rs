//! Writes a configuration as somebody else would, who knows TOML and units alone.
//!
//! In: the values of the `toml` crate. Out: a text that says the same in other words, or in which one value is another.
//! Not here: what the configuration's own reader makes of either.

use std::iter;

use ::toml::{Table, Value};

/// The same: every table in braces, integers to any base, spans in microseconds. `turn`: which integer has which base.
pub(super) fn respelled(table: &Table, turn: usize) -> String {
    let spell = |leaf: &Leaf<'_>, number: usize| leaf.respelled(number.wrapping_add(turn));
    Writer { spell, leaves: 0 }.document(table)
}

/// How many values hold no others.
pub(super) fn leaves(table: &Table) -> usize {
    let mut counting = Writer { spell: |leaf: &Leaf<'_>, _| leaf.value.to_string(), leaves: 0 };
    counting.document(table);
    counting.leaves
}

/// Texts in which one value, the one that `turn` falls on, is another. None where it is none that has neighbours.
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

/// A value that holds no others.
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

    /// What it is not: its neighbour, and those that a register of 8, 16, 32 or 64 bits takes for it.
    fn others(&self) -> Box<dyn Iterator<Item = String>> {
        // Multiplied by a unit, a number loses as many bits as the unit has factors of two.
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

    /// A whole number and a unit, by the keys that have one: a name may look like it.
    fn span(&self) -> Option<Span> {
        let text = self.value.as_str().filter(|_| WITH_UNIT.contains(&self.key))?;
        let (unit, micros) = *UNITS.iter().find(|(unit, _)| {
            text.strip_suffix(unit).is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        })?;
        let number = text.strip_suffix(unit)?.parse().ok()?;
        Some(Span { number, unit, micros })
    }
}

/// A quantity as it is written.
struct Span {
    number: i128,
    unit: &'static str,
    micros: i128,
}

struct Writer<S> {
    /// How a leaf is written, by its place among all.
    spell: S,
    leaves: usize,
}

impl<S: FnMut(&Leaf<'_>, usize) -> String> Writer<S> {
    fn document(&mut self, table: &Table) -> String {
        table.iter().map(|(key, value)| format!("{} = {}\n", quoted(key), self.value(key, value))).collect()
    }

    fn value(&mut self, key: &str, value: &Value) -> String {
        match value {
            // Their names are anybody's, so one may be called as a span is.
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
    // As JSON writes it, which TOML reads: strings of several lines can be no keys.
    serde_json::to_string(key).unwrap_or_default()
}

/// In microseconds; a percentage is in one spelling alone.
const UNITS: [(&str, i128); 6] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("%", 1)];
/// The keys whose values are quantities.
const WITH_UNIT: [&str; 18] = [
    "closing",
    "drain_time",
    "established",
    "fast_interval",
    "graceful_shutdown",
    "hold",
    "hold_down",
    "hold_time",
    "interval",
    "lifetime",
    "longest_hold_down",
    "longest_retry",
    "max_down",
    "new",
    "slow_start",
    "spin",
    "timeout",
    "udp",
];
