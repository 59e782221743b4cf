//! A JSON schema of the file, for editors and programs.
//!
//! In: what readers ask of every key of the annotated example, and the comments there. Out: the schema: names, types, bounds,
//! words, defaults and descriptions.
//! Readers and example are its only sources: it lists no key. Not here: what values mean together, and what strings may say.
//! Invariant: what the readers take, the schema takes.

use std::collections::BTreeMap;
use std::path::Path;

use config_text::{Asked, Question, Questions, Report, Root, gather, parse_duration};
use serde_json::{Map, Value, json};

use super::NAMED;
use super::drafts::Drafts;
use super::pem::Outside;

/// The schema of a file, in JSON Schema's draft 7. Every description is the comment of `config/sluicegate.toml`.
///
/// # Cost
/// Reads the example: some milliseconds.
#[must_use]
pub fn schema() -> Value {
    let example = whole(EXAMPLE);
    let mut questions = asked(&example);
    for (path, question) in asked(OTHERWISE) {
        questions.entry(path).or_default().join(question);
    }
    let comments = comments(&example, &questions);
    let mut schema = Writer { questions: &questions, comments: &comments }.value(&[]);
    if let Value::Object(top) = &mut schema {
        top.insert("$schema".to_owned(), json!("http://json-schema.org/draft-07/schema#"));
        top.insert("title".to_owned(), json!("sluicegate.toml"));
    }
    schema
}

/// The example with the keys that stand behind a `#`.
fn whole(example: &str) -> String {
    let is_key = |rest: &&str| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[');
    let lines = example.lines().map(|line| line.strip_prefix('#').filter(is_key).unwrap_or(line));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// What readers ask. Files that the text names are not read, and what it has wrong is of no interest.
fn asked(text: &str) -> Questions {
    let report = Report::with_questions();
    // Nothing lies behind it, so that no file of this machine is read.
    let nowhere = Path::new("/dev/null/sluicegate.toml");
    let parts = gather(&report, nowhere, text.to_owned(), NAMED, None);
    drop(Drafts::read(&report, Root::new(&report, &parts), &Outside { secrets: None, within: None }));
    drop(parts);
    report.questions()
}

/// Of each path, the comment behind its key.
fn comments(example: &str, questions: &Questions) -> BTreeMap<Vec<String>, String> {
    let (mut all, mut section) = (BTreeMap::<Vec<String>, String>::new(), Vec::new());
    let mut last: Option<Vec<String>> = None;
    for line in example.lines() {
        let key = line.split(['=', ' ']).next().unwrap_or_default();
        if let Some(header) = line.strip_prefix('[') {
            let name = header.trim_start_matches('[').split(']').next().unwrap_or_default();
            let steps = name.split('.').chain(header.starts_with('[').then_some("[]"));
            section = steps.fold(Vec::new(), |path, step| below(path, step, questions));
            last = None;
        } else if line.starts_with(char::is_alphabetic) && line.contains('=') {
            let path = below(section.clone(), key, questions);
            last = comment(line).map(|words| {
                all.entry(path.clone()).or_insert_with(|| words.to_owned());
                path
            });
        } else if let (Some(path), Some(words)) = (&last, line.trim_start().strip_prefix("# "))
            && line.starts_with(' ')
        {
            all.entry(path.clone()).and_modify(|all| *all = format!("{all} {}", words.trim()));
        } else {
            last = None;
        }
    }
    all
}

/// A step down, by its name or as one that the file chose.
fn below(path: Vec<String>, step: &str, questions: &Questions) -> Vec<String> {
    let with = |step: &str| [&path[..], &[step.to_owned()]].concat();
    if questions.contains_key(&with(step)) { with(step) } else { with("*") }
}

/// What stands behind the `#` of a line with a value.
fn comment(line: &str) -> Option<&str> {
    let mut in_string = false;
    let at = line.bytes().position(|byte| {
        in_string ^= byte == b'"';
        byte == b'#' && !in_string
    })?;
    line.get(at + 1..).map(str::trim)
}

struct Writer<'a> {
    questions: &'a Questions,
    comments: &'a BTreeMap<Vec<String>, String>,
}

impl Writer<'_> {
    /// The schema of what stands at a path.
    fn value(&self, path: &[String]) -> Value {
        let mut all = match self.questions.get(path) {
            Some(question) => self.kinds(path, question),
            None => Vec::new(),
        };
        let mut schema = match all.len() {
            // Nobody asks the file itself what it is.
            0 if path.is_empty() => self.table(path),
            0 => json!({}),
            1 => all.pop().unwrap_or_default(),
            _ => json!({ "anyOf": all }),
        };
        let Some(words) = self.comments.get(path) else { return schema };
        schema["description"] = json!(words);
        if let Some(default) = self.questions.get(path).and_then(|question| default(words, question)) {
            schema["default"] = default;
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
                    // Beyond these nothing is an integer of TOML, so that they say nothing.
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
        // A file may have a part of what all files have together.
        if path.is_empty() {
            required.clear();
        }
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": more })
    }
}

fn step(path: &[String], step: &str) -> Vec<String> {
    [path, &[step.to_owned()]].concat()
}

/// `default 65,537`, where it is a value that the key takes; one that depends on other keys is none.
fn default(words: &str, question: &Question) -> Option<Value> {
    let (_, rest) = words.rsplit_once("default ")?;
    let word = rest.split([' ', ';', ')']).next()?;
    let depends = rest.strip_prefix(word)?.starts_with(" or ") || rest.strip_prefix(word)?.starts_with(" /");
    let text = word.trim_end_matches([',', '.']);
    let value = |kind: &Asked| match kind {
        Asked::Boolean => text.parse::<bool>().ok().map(Value::from),
        Asked::Integer { .. } => text.replace(',', "").parse::<i64>().ok().map(Value::from),
        Asked::Duration => parse_duration(text).map(|_| json!(text)),
        Asked::Words(all) => all.iter().any(|one| one == text).then(|| json!(text)),
        _ => None,
    };
    question.kinds.iter().filter(|_| !depends).find_map(value)
}

const EXAMPLE: &str = include_str!("../../../config/sluicegate.toml");

/// What readers ask of values that the example has not: other kinds in the same place, and the widest bounds.
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
