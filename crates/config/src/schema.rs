//! Generates a JSON schema of the configuration file, for editors and other programs.
//!
//! Names, types and ranges are recorded while the crate reads an example that contains every key.
//! Descriptions and defaults come from the module `descriptions`. The schema accepts every file
//! that this crate accepts. The schema does not describe dependencies between keys, or the content
//! of strings.

use std::path::Path;

use config_text::{Asked, Question, Questions, Report, Root, gather};
use serde_json::{Map, Value, json};

use super::NAMED;
use super::descriptions::{Descriptions, descriptions};
use super::drafts::Drafts;
use super::pem::Outside;

/// Returns the JSON schema (draft 7) of a configuration file.
///
/// In addition to the standard keywords, `x-restart: true` marks keys whose changes need a restart.
///
/// # Cost
/// A few milliseconds, because it reads an example with every key.
#[must_use]
pub fn schema() -> Value {
    let mut questions = asked(&whole(EVERY_KEY));
    for (path, question) in asked(OTHERWISE) {
        questions.entry(path).or_default().join(question);
    }
    let mut schema = Writer { questions: &questions, descriptions: &descriptions() }.value(&[]);
    if let Value::Object(top) = &mut schema {
        top.insert("$schema".to_owned(), json!("http://json-schema.org/draft-07/schema#"));
        top.insert("title".to_owned(), json!("sluicegate.toml"));
    }
    schema
}

/// Returns the example with all commented-out keys enabled.
fn whole(example: &str) -> String {
    let is_key = |rest: &&str| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[');
    let lines = example.lines().map(|line| line.strip_prefix('#').filter(is_key).unwrap_or(line));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the schema that is recorded while a configuration text is read. Files that the text
/// refers to are not read, and problems are ignored.
fn asked(text: &str) -> Questions {
    let report = Report::with_questions();
    // This path does not exist, so no file of this machine is read.
    let nowhere = Path::new("/dev/null/sluicegate.toml");
    let parts = gather(&report, nowhere, text.to_owned(), NAMED, None);
    drop(Drafts::read(&report, Root::new(&report, &parts), &Outside { secrets: None, within: None }));
    drop(parts);
    report.questions()
}

struct Writer<'a> {
    questions: &'a Questions,
    descriptions: &'a Descriptions,
}

impl Writer<'_> {
    /// Returns the JSON schema of the value at a path.
    fn value(&self, path: &[String]) -> Value {
        let mut all = match self.questions.get(path) {
            Some(question) => self.kinds(path, question),
            None => Vec::new(),
        };
        let mut schema = match all.len() {
            // The top level of a file is always a table.
            0 if path.is_empty() => self.table(path),
            0 => json!({}),
            1 => all.pop().unwrap_or_default(),
            _ => json!({ "anyOf": all }),
        };
        let Some(description) = self.descriptions.get(path) else { return schema };
        schema["description"] = json!(description.text);
        if let Some(default) = &description.default {
            schema["default"] = default.clone();
        }
        if description.needs_restart {
            schema["x-restart"] = json!(true);
        }
        schema
    }

    fn kinds(&self, path: &[String], question: &Question) -> Vec<Value> {
        let is_said = question.kinds.iter().any(|kind| matches!(kind, Asked::Words(_) | Asked::Duration));
        let kinds = question.kinds.iter().filter(|kind| !is_said || **kind != Asked::Text);
        kinds.map(|kind| self.kind(path, kind)).collect()
    }

    fn kind(&self, path: &[String], kind: &Asked) -> Value {
        match kind {
            Asked::Boolean => json!({ "type": "boolean" }),
            Asked::False => json!({ "const": false }),
            Asked::Integer { least, most } => {
                let mut schema = json!({ "type": "integer" });
                for (word, bound) in [("minimum", least), ("maximum", most)] {
                    // The range is omitted if any TOML integer is accepted.
                    let bound =
                        i64::try_from(*bound).ok().filter(|bound| ![i64::MIN, i64::MAX].contains(bound));
                    bound.into_iter().for_each(|bound| schema[word] = json!(bound));
                }
                schema
            }
            Asked::Duration => json!({ "type": "string", "pattern": "^[0-9]+(us|ms|s|m|h)$" }),
            Asked::Percent => json!({ "type": "string", "pattern": "^[0-9]+%$" }),
            Asked::Words(words) => json!({ "enum": words }),
            Asked::Text => json!({ "type": "string" }),
            Asked::List => json!({ "type": "array", "items": self.value(&step(path, "[]")) }),
            Asked::Table => self.table(path),
        }
    }

    fn table(&self, path: &[String]) -> Value {
        let question = self.questions.get(path);
        let (mut properties, mut required) = (Map::new(), Vec::new());
        let mut more = json!(!question.is_some_and(|question| question.is_closed));
        let all =
            self.questions.iter().filter(|(other, _)| other.split_last().is_some_and(|(_, up)| up == path));
        for (below, question) in all {
            let key = below.last().map(String::as_str).unwrap_or_default();
            match key {
                "*" => more = self.value(below),
                "[]" => {}
                _ => {
                    properties.insert(key.to_owned(), self.value(below));
                    required.extend(question.is_required.then_some(key));
                }
            }
        }
        // No section is required, because a configuration can be split into several files.
        if path.is_empty() {
            required.clear();
        }
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": more })
    }
}

fn step(path: &[String], step: &str) -> Vec<String> {
    [path, &[step.to_owned()]].concat()
}

/// A configuration that has every key once.
const EVERY_KEY: &str = include_str!("../every-key.toml");

/// A second configuration, in which some keys have values of other types or wider ranges.
const OTHERWISE: &str = r#"
include = [""]
[machine.m.vlan.e]
policy = "keep"
[check.c]
http = { status = [200] }
[check.d]
grpc = { port = 1 }
[io]
mode = "af-xdp"
steering = "software"
threads = 1
frames_per_queue = 65_536
fragments = { buffered = 8 }
[admin]
socket = false
[vip.v]
services = [{ protocol = "tcp", ports = "any" }, { protocol = 6, ports = [1, "1-2"] }, { protocol = "gre", ports = "any" }]
announce = { min_serving = 1, return_serving = 1 }
"#;
