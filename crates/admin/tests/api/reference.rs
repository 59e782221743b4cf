//! Generates the API reference, `docs/reference/api.md`, from the OpenAPI document.

use std::fmt::Write;

use serde_json::Value;
use testbed::{code_cell, generated_page};

use crate::document::Api;

#[tokio::test]
async fn reference_api_is_current() {
    let document = Api::new(true).await.get("/openapi.json").await.1;
    let page = page(&document);
    assert!(!page.contains("| any"), "each field must have a type");
    let is_current = generated_page("docs/reference/api.md", &page).unwrap();
    assert!(
        is_current,
        "docs/reference/api.md differs from the OpenAPI document; `cargo xtask docs` writes it"
    );
}

/// Returns the routes and all object types as Markdown.
fn page(document: &Value) -> String {
    let mut text = "\n## Routes\n\n| method | path | role | description |\n|---|---|---|---|\n".to_owned();
    let routes: Vec<(&str, &str, &Value)> = entries(&document["paths"])
        .flat_map(|(path, methods)| entries(methods).map(move |(method, route)| (method, path, route)))
        .collect();
    for (method, path, route) in &routes {
        let method = method.to_uppercase();
        let (role, summary) = (words(&route["x-role"]), words(&route["summary"]));
        let _ = writeln!(text, "| {method} | [`{path}`](#{}) | {role} | {summary} |", backup(&method, path));
    }
    for (method, path, route) in &routes {
        let _ = write!(text, "\n### {} {path}\n\n{}\n\n", method.to_uppercase(), words(&route["summary"]));
        parameters(&mut text, route);
        if let Some((kind, schema)) = content(&route["requestBody"]) {
            let _ =
                writeln!(text, "Body ({kind}): {} {}\n", words(&route["requestBody"]["description"]), schema);
        }
        let answer = &route["responses"]["200"];
        let (kind, schema) = content(answer).unwrap_or_default();
        let _ = writeln!(text, "Response ({kind}): {} {schema}", words(&answer["description"]));
    }
    text += "\n## Objects\n";
    for (name, schema) in entries(&document["components"]["schemas"]) {
        object(&mut text, name, schema);
    }
    text
}

fn parameters(text: &mut String, route: &Value) {
    let all = route["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    if all.is_empty() {
        return;
    }
    *text += "| parameter | in | type | required | description |\n|---|---|---|---|---|\n";
    for one in all {
        let required = if one["required"] == true { "yes" } else { "no" };
        let (name, place) = (words(&one["name"]), words(&one["in"]));
        let kind = kind(&one["schema"]);
        let _ =
            writeln!(text, "| `{name}` | {place} | {kind} | {required} | {} |", words(&one["description"]));
    }
    *text += "\n";
}

fn object(text: &mut String, name: &str, schema: &Value) {
    let _ = write!(text, "\n### {name}\n\n");
    if let Some(description) = schema["description"].as_str() {
        let _ = writeln!(text, "{}\n", line(description));
    }
    let Some(properties) = schema["properties"].as_object() else {
        let _ = writeln!(text, "Type: {}.", kind(schema));
        return;
    };
    *text += "| field | type | description |\n|---|---|---|\n";
    for (field, schema) in properties {
        let _ = writeln!(text, "| `{field}` | {} | {} |", kind(schema), words(&schema["description"]));
    }
}

/// Returns the media type of a body or response, and a link to its object type.
fn content(of: &Value) -> Option<(String, String)> {
    let (media, content) = of["content"].as_object()?.iter().next()?;
    let link = content["schema"]["$ref"].as_str().map(link).unwrap_or_default();
    Some((media.clone(), link))
}

/// Describes the type of a schema.
fn kind(schema: &Value) -> String {
    if let Some(target) = schema["$ref"].as_str() {
        return link(target);
    }
    if let Some(formats) = formats(schema) {
        return format!("{} ({formats})", simple_kind(&schema["type"]));
    }
    for word in ["anyOf", "oneOf", "allOf"] {
        if let Some(all) = schema[word].as_array() {
            return all.iter().map(kind).collect::<Vec<_>>().join(" or ");
        }
    }
    if let Some(value) = schema.get("const") {
        return code_cell(&value.to_string());
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(|value| code_cell(&value.to_string())).collect::<Vec<_>>().join(", ");
    }
    match &schema["type"] {
        Value::String(word) if word == "array" => format!("array of {}", kind(&schema["items"])),
        simple => simple_kind(simple),
    }
}

/// Describes the value of the keyword `type`.
fn simple_kind(simple: &Value) -> String {
    match simple {
        Value::String(word) => word.clone(),
        Value::Array(all) => all.iter().map(words).collect::<Vec<_>>().join(" or "),
        _ => "any".to_owned(),
    }
}

/// Returns the alternative formats of a string, such as `ipv4 or ipv6`.
fn formats(schema: &Value) -> Option<String> {
    let formats = schema["anyOf"].as_array()?.iter().map(|one| one["format"].as_str());
    Some(formats.collect::<Option<Vec<_>>>()?.join(" or "))
}

fn link(target: &str) -> String {
    let name = target.rsplit('/').next().unwrap_or_default();
    format!("[{name}](#{})", name.to_lowercase())
}

/// Returns the anchor of a route's heading.
fn backup(method: &str, path: &str) -> String {
    let kept = path.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect::<String>();
    format!("{}-{kept}", method.to_lowercase()).to_lowercase()
}

fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

fn words(value: &Value) -> String {
    line(value.as_str().unwrap_or_default())
}

/// Joins the lines of a string, so that the string fits into a table cell.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
