//! Generates two pages of `docs/reference`: `command-line.md` from the help texts, and
//! `configuration.md` from the JSON schema of the configuration.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fmt::Write;
use std::process::Command;

use serde_json::Value;
use testbed::{code_cell, generated_page};

#[test]
fn reference_command_line_is_current() {
    let mut page = String::new();
    section(&mut page, &[]);
    let is_current = generated_page("docs/reference/command-line.md", &page).unwrap();
    assert!(is_current, "docs/reference/command-line.md differs from the help; `cargo xtask docs` writes it");
}

/// Appends the help of a command and all its subcommands.
fn section(page: &mut String, words: &[&str]) {
    let help = help(words);
    if !words.is_empty() {
        let _ = write!(page, "\n## sluicegate {}\n\n```text\n{}\n```\n", words.join(" "), help.trim_end());
    }
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in commands.take_while(|line| line.starts_with("  ")) {
        let name = line.strip_prefix("  ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        if !name.is_empty() && name != "help" {
            section(page, &[words, &[name]].concat());
        }
    }
}

fn help(words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    let output = command.args(words).arg("--help").env("COLUMNS", "100").output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    // clap pads lines in the list of commands with spaces.
    String::from_utf8(output.stdout).unwrap().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

#[test]
fn reference_configuration_is_current() {
    let mut page = String::new();
    table(&mut page, &config::schema(), &mut Vec::new());
    let is_current = generated_page("docs/reference/configuration.md", &page).unwrap();
    assert!(
        is_current,
        "docs/reference/configuration.md differs from the schema; `cargo xtask docs` writes it"
    );
}

/// Appends one section for a table, and one for each table inside it.
fn table(page: &mut String, schema: &Value, path: &mut Vec<String>) {
    let variants = schema["anyOf"].as_array().map_or_else(|| vec![schema], |all| all.iter().collect());
    for variant in variants {
        let (keys, named) = (&variant["properties"], &variant["additionalProperties"]);
        if keys.as_object().is_some_and(|keys| !keys.is_empty()) {
            if !path.is_empty() {
                let _ = write!(page, "\n## {}\n\n", heading(path));
            }
            if let Some(text) = schema["description"].as_str().or(variant["description"].as_str()) {
                let _ = writeln!(page, "{text}\n");
            }
            *page += "| key | type | default | takes effect | description |\n|---|---|---|---|---|\n";
            for (key, value) in keys.as_object().into_iter().flatten() {
                row(page, key, value, &variant["required"]);
            }
        }
        for (key, value) in keys.as_object().into_iter().flatten() {
            inside(page, value, path, key);
        }
        if named.is_object() {
            let name = if path.is_empty() { "" } else { "NAME" };
            let mut described = named.clone();
            described["description"] =
                described.get("description").or(schema.get("description")).cloned().unwrap_or_default();
            inside(page, &described, path, name);
        }
        if variant["items"].is_object() {
            let mut described = variant["items"].clone();
            described["description"] = schema["description"].clone();
            inside(page, &described, path, "[]");
        }
    }
}

fn inside(page: &mut String, schema: &Value, path: &mut Vec<String>, step: &str) {
    path.push(step.to_owned());
    table(page, schema, path);
    path.pop();
}

/// Returns the path of a table as a TOML header.
fn heading(path: &[String]) -> String {
    let words: Vec<&str> = path.iter().map(String::as_str).filter(|step| *step != "[]").collect();
    let name = words.join(".");
    if path.last().is_some_and(|step| step == "[]") { format!("[[{name}]]") } else { format!("[{name}]") }
}

fn row(page: &mut String, key: &str, schema: &Value, required: &Value) {
    let is_required = required.as_array().is_some_and(|all| all.iter().any(|one| one == key));
    let default = match schema.get("default") {
        _ if is_required => "required".to_owned(),
        Some(Value::String(text)) => code_cell(text),
        Some(value) => code_cell(&value.to_string()),
        None => "–".to_owned(),
    };
    let when = if schema["x-restart"] == true { "restart" } else { "reload" };
    let text = schema["description"].as_str().unwrap_or_default().replace('|', "\\|");
    let _ = writeln!(page, "| `{key}` | {} | {default} | {when} | {text} |", kind(schema));
}

/// Describes the type of a value and its range.
fn kind(schema: &Value) -> String {
    if let Some(all) = schema["anyOf"].as_array() {
        return all.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    if let Some(values) = schema["enum"].as_array() {
        let words: Vec<_> = values.iter().filter_map(Value::as_str).map(code_cell).collect();
        return words.join(", ");
    }
    if let Some(value) = schema.get("const") {
        return code_cell(&value.to_string());
    }
    match (schema["type"].as_str(), schema["pattern"].as_str()) {
        (Some("string"), Some(pattern)) if pattern.contains('%') => "percentage".to_owned(),
        (Some("string"), Some(_)) => "duration".to_owned(),
        (Some("integer"), _) => match (schema.get("minimum"), schema.get("maximum")) {
            (Some(least), Some(most)) => format!("integer, {least} to {most}"),
            _ => "integer".to_owned(),
        },
        (Some("array"), _) => format!("list of {}", kind(&schema["items"])),
        (Some("object"), _) => "table".to_owned(),
        (Some(word), _) => word.to_owned(),
        (None, _) => "string".to_owned(),
    }
}
