//! Compares the JSON schema with the parser at every key of the example. Both must accept the same
//! values.

use std::collections::BTreeSet;

use serde_json::Value as Json;
use toml::Value;

use super::{EXAMPLE, known_keys, parsed};
use crate::schema;

/// Validates a value against a JSON schema. Supports only the keywords that the schema uses.
fn takes(schema: &Json, value: &Json) -> bool {
    let holds = |(word, said): (&String, &Json)| match word.as_str() {
        "$schema" | "title" | "description" | "default" | "x-restart" => true,
        "anyOf" => said.as_array().unwrap().iter().any(|one| takes(one, value)),
        "enum" => said.as_array().unwrap().contains(value),
        "const" => said == value,
        "type" => match said.as_str().unwrap() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "integer" => value.is_i64(),
            "boolean" => value.is_boolean(),
            other => panic!("{other}"),
        },
        "minimum" => value.as_i64().is_none_or(|number| number >= said.as_i64().unwrap()),
        "maximum" => value.as_i64().is_none_or(|number| number <= said.as_i64().unwrap()),
        "pattern" => value.as_str().is_none_or(|text| {
            let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
            let units =
                if said.as_str().unwrap().contains('%') { &["%"][..] } else { &["us", "ms", "s", "m", "h"] };
            digits.len() < text.len() && units.contains(&digits)
        }),
        "items" => value.as_array().is_none_or(|all| all.iter().all(|one| takes(said, one))),
        "required" => value.as_object().is_none_or(|table| {
            said.as_array().unwrap().iter().all(|key| table.contains_key(key.as_str().unwrap()))
        }),
        "properties" => true,
        "additionalProperties" => value.as_object().is_none_or(|table| {
            let known = schema["properties"].as_object().unwrap();
            table.iter().all(|(key, value)| match (known.get(key), said) {
                (Some(schema), _) => takes(schema, value),
                (None, Json::Bool(may)) => *may,
                (None, schema) => takes(schema, value),
            })
        }),
        other => panic!("unsupported keyword: {other}"),
    };
    schema.as_object().unwrap().iter().all(holds)
}

fn json(value: &Value) -> Json {
    serde_json::to_value(value).unwrap()
}

/// Returns the example with those commented-out keys enabled that can be combined.
fn example() -> Value {
    let is_key = |rest: &&str| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[');
    let mut text = String::new();
    for line in EXAMPLE.replace("steering = \"hardware\"", "steering = \"software\"").lines() {
        let shown = line.strip_prefix('#').filter(is_key).unwrap_or(line);
        // Keys that name files are skipped, because the files do not exist.
        let is_of_files = ["include", "allow_files", "deny_files", "https", "grpc", "tcp = { listen"];
        if !is_of_files.iter().any(|key| shown.starts_with(key))
            && !["[check.api]", "[check.rpc]"].contains(&shown)
        {
            text += &format!("{shown}\n");
        }
    }
    assert_eq!(parsed(&text).map(|_| ()), Ok(()));
    Value::Table(text.parse().unwrap())
}

/// A key or index in the path to a value in the example.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Key(String),
    Element(usize),
}

/// Collects the paths of all values.
fn ways(value: &Value, way: &[Step], all: &mut Vec<Vec<Step>>) {
    let mut down = |step: Step, value: &Value| {
        let way = [way, &[step]].concat();
        all.push(way.clone());
        ways(value, &way, all);
    };
    match value {
        Value::Table(table) => table.iter().for_each(|(key, value)| down(Step::Key(key.clone()), value)),
        Value::Array(list) => list.iter().enumerate().for_each(|(at, value)| down(Step::Element(at), value)),
        _ => {}
    }
}

/// Returns the example with the value at one path changed.
fn changed(example: &Value, way: &[Step], change: &dyn Fn(&mut Value)) -> Value {
    let mut whole = example.clone();
    let mut value = &mut whole;
    for step in way {
        value = match step {
            Step::Key(key) => value.as_table_mut().unwrap().get_mut(key).unwrap(),
            Step::Element(at) => &mut value.as_array_mut().unwrap()[*at],
        };
    }
    change(value);
    whole
}

fn text(value: &Value) -> String {
    value.as_table().unwrap().to_string()
}

#[test]
fn what_the_reader_takes_the_schema_takes() {
    let (schema, example) = (schema(), example());
    assert!(takes(&schema, &json(&example)));
    let mut all = Vec::new();
    ways(&example, &[], &mut all);
    assert!(all.len() > 300, "{}", all.len());
    let other = |value: Value| move |old: &mut Value| *old = value.clone();
    let (mut taken, mut refused) = (0, 0);
    for way in &all {
        let values = [Value::Integer(40_000), Value::Boolean(true), Value::Array(Vec::new())];
        let texts = ["any", "1s"].map(|text| Value::String(text.to_owned()));
        for value in values.into_iter().chain(texts) {
            let new = changed(&example, way, &other(value));
            let by_schema = takes(&schema, &json(&new));
            // The schema is checked first, because it is faster than the parser.
            let by_reader = !by_schema && parsed(&text(&new)).is_ok();
            assert!(!by_reader, "the schema rejects a valid value at {way:?}:\n{}", text(&new));
            taken += usize::from(by_schema);
            refused += usize::from(!by_schema);
        }
        // No key accepts a fractional number.
        let fraction = changed(&example, way, &other(Value::Float(1.5)));
        assert!(!takes(&schema, &json(&fraction)), "{way:?} accepts any type");
        assert!(parsed(&text(&fraction)).is_err(), "{way:?}");
    }
    assert!(taken > 100 && refused > 500, "{taken} taken, {refused} refused");
}

#[test]
fn a_key_that_is_absent_or_unknown_is_judged_alike() {
    let (schema, example) = (schema(), example());
    let mut all = vec![Vec::new()];
    ways(&example, &[], &mut all);
    for way in &all {
        let mut is_closed = false;
        let unknown = changed(&example, way, &|value| {
            value
                .as_table_mut()
                .into_iter()
                .for_each(|table| drop(table.insert("zzzzzzzzzzzz".into(), 1.into())));
        });
        if unknown != example {
            let problems = parsed(&text(&unknown)).unwrap_err();
            let problem = problems.iter().find_map(known_keys);
            is_closed = problem.is_some();
            assert!(!takes(&schema, &json(&unknown)) || !is_closed, "{way:?} accepts an unknown key");
        }
        if let (true, Some(Step::Key(key))) = (way.len() > 1, way.last()) {
            let absent = changed(&example, &way[..way.len() - 1], &|value| {
                drop(value.as_table_mut().unwrap().remove(key))
            });
            assert!(takes(&schema, &json(&absent)) || parsed(&text(&absent)).is_err(), "{way:?}: absent");
        }
        assert!(is_closed || !way.is_empty());
    }
}

/// The schema and the parser accept the same keys in each table of the example.
#[test]
fn the_reader_and_the_schema_know_the_same_keys() {
    let (schema, example) = (schema(), example());
    let mut all = vec![Vec::new()];
    ways(&example, &[], &mut all);
    let mut tables = 0;
    for way in &all {
        let unknown = changed(&example, way, &|value| {
            value
                .as_table_mut()
                .into_iter()
                .for_each(|table| drop(table.insert("zzzzzzzzzzzz".into(), 1.into())));
        });
        let problems = if unknown == example { continue } else { parsed(&text(&unknown)).unwrap_err() };
        let Some(known) = problems.iter().find_map(known_keys) else { continue };
        let by_reader: BTreeSet<&str> = known.into_iter().collect();
        let node = way.iter().fold(&schema, |schema, step| {
            let tables = schema["anyOf"].as_array().map_or_else(|| vec![schema], |all| all.iter().collect());
            let found = tables.into_iter().find_map(|schema| match step {
                Step::Key(key) => {
                    schema["properties"].get(key).or_else(|| schema.get("additionalProperties"))
                }
                Step::Element(_) => schema.get("items"),
            });
            found.unwrap_or_else(|| panic!("{way:?}"))
        });
        let nodes = node["anyOf"].as_array().map_or_else(|| vec![node], |all| all.iter().collect());
        let known = nodes.iter().find_map(|node| node["properties"].as_object()).unwrap();
        assert_eq!(known.keys().map(String::as_str).collect::<BTreeSet<_>>(), by_reader, "{way:?}");
        tables += 1;
    }
    assert!(tables > 50, "{tables}");
}

#[test]
fn a_default_of_the_schema_is_what_an_absent_key_means() {
    let (schema, example) = (schema(), example());
    let mut all = Vec::new();
    ways(&example, &[], &mut all);
    let mut defaults = 0;
    for way in &all {
        let Some(Step::Key(key)) = way.last() else { continue };
        let node = way.iter().try_fold(&schema, |schema, step| match step {
            Step::Key(key) => schema["properties"].get(key).or_else(|| schema.get("additionalProperties")),
            Step::Element(_) => None,
        });
        let Some(default) = node.and_then(|node| node.get("default")) else { continue };
        let up = &way[..way.len() - 1];
        let absent = changed(&example, up, &|value| drop(value.as_table_mut().unwrap().remove(key)));
        let said: Value = serde_json::from_value(default.clone()).unwrap();
        let said = changed(&example, way, &|value| *value = said.clone());
        // A key cannot be removed if other keys of the example need it.
        if let (Ok((absent, _)), Ok((said, _))) = (parsed(&text(&absent)), parsed(&text(&said))) {
            assert!(absent == said, "{way:?}: {default}");
            defaults += 1;
        }
    }
    assert!(defaults > 30, "{defaults}");
}

/// Every key of the schema has a description, and every description belongs to a key of the schema.
#[test]
fn schema_describes_every_key() {
    let mut known = BTreeSet::new();
    described(&schema(), &mut Vec::new(), &mut known);
    let described: BTreeSet<Vec<String>> = crate::descriptions::descriptions().into_keys().collect();
    let names = |path: &&Vec<String>| path.last().is_none_or(|last| last != "[]");
    let missing: Vec<_> = known.difference(&described).filter(names).map(|path| path.join(".")).collect();
    let stale: Vec<_> = described.difference(&known).map(|path| path.join(".")).collect();
    assert_eq!((missing, stale), (Vec::new(), Vec::new()));
}

/// Adds the paths of all keys. Tables with user-defined names (`pool.*`) are skipped, because only
/// the table that contains these tables (`pool`) is described.
fn described(schema: &Json, path: &mut Vec<String>, known: &mut BTreeSet<Vec<String>>) {
    let variants = schema["anyOf"].as_array().map_or_else(|| vec![schema], |all| all.iter().collect());
    for variant in variants {
        for (key, below) in variant["properties"].as_object().into_iter().flatten() {
            path.push(key.clone());
            known.insert(path.clone());
            described(below, path, known);
            path.pop();
        }
        for (step, below) in [("*", &variant["additionalProperties"]), ("[]", &variant["items"])] {
            if below.is_object() {
                path.push(step.to_owned());
                // A single value with a user-defined name, such as a header, has a description. A
                // table or list does not.
                if step == "*" && below["properties"].is_null() {
                    known.insert(path.clone());
                }
                described(below, path, known);
                path.pop();
            }
        }
    }
}
