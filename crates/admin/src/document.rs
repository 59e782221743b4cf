//! The OpenAPI document: the routes' table, and the schemas of the row types.
//!
//! In: [`Operation`]s. Out: JSON. Names, units and sentences of fields are those of the row types (`view`, `stats`).
//! Not here: which routes there are (`routes`).
//! Source: OpenAPI 3.1, whose schemas are JSON Schema 2020-12.

use axum::routing::MethodRouter;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::app_state::AppState;
use crate::view::Refusal;

/// A route with all that is said of it.
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) summary: &'static str,
    parameters: Vec<Value>,
    body: Option<Content>,
    answer: Content,
    /// A header of the answer, with what it is for.
    header: Option<[&'static str; 2]>,
    /// Statuses of refusals, those apart that every route has.
    refusals: &'static [u16],
    pub(crate) handler: MethodRouter<AppState>,
}

/// What a body holds.
pub(crate) struct Content {
    description: &'static str,
    media_type: &'static str,
    schema: fn(&mut SchemaGenerator) -> Schema,
}

impl Content {
    /// A `T` as JSON.
    pub(crate) fn json<T: JsonSchema>(description: &'static str) -> Self {
        Self { description, media_type: "application/json", schema: SchemaGenerator::subschema_for::<T> }
    }

    /// Text of this type.
    pub(crate) fn of(media_type: &'static str, description: &'static str) -> Self {
        Self { description, media_type, schema: SchemaGenerator::subschema_for::<String> }
    }

    /// Bytes that are no text.
    pub(crate) fn binary(media_type: &'static str, description: &'static str) -> Self {
        let schema = |_: &mut SchemaGenerator| json_schema!({ "type": "string", "format": "binary" });
        Self { description, media_type, schema }
    }

    fn value(&self, generator: &mut SchemaGenerator) -> Value {
        json!({ self.media_type: { "schema": (self.schema)(generator) } })
    }
}

impl Operation {
    pub(crate) fn new(
        method: &'static str,
        path: &'static str,
        summary: &'static str,
        answer: Content,
        handler: MethodRouter<AppState>,
    ) -> Self {
        let named = path.contains("{name}").then(|| {
            json!({ "name": "name", "in": "path", "required": true, "description": "The backend.",
                "schema": { "type": "string" } })
        });
        let parameters = named.into_iter().collect();
        Self { method, path, summary, parameters, body: None, answer, header: None, refusals: &[], handler }
    }

    /// One that answers a `T` as JSON; `answer` describes it.
    pub(crate) fn json<T: JsonSchema>(
        method: &'static str,
        path: &'static str,
        summary: &'static str,
        answer: &'static str,
        handler: MethodRouter<AppState>,
    ) -> Self {
        Self::new(method, path, summary, Content::json::<T>(answer), handler)
    }

    /// A question, which is answered by a `T` as JSON.
    pub(crate) fn read<T: JsonSchema>(
        path: &'static str,
        summary: &'static str,
        answer: &'static str,
        handler: MethodRouter<AppState>,
    ) -> Self {
        Self::json::<T>("get", path, summary, answer, handler)
    }

    /// It also refuses with these statuses.
    pub(crate) fn refuses(self, refusals: &'static [u16]) -> Self {
        Self { refusals, ..self }
    }

    /// Its answer has this header.
    pub(crate) fn with_header(self, name: &'static str, description: &'static str) -> Self {
        Self { header: Some([name, description]), ..self }
    }

    pub(crate) fn takes(self, body: Content) -> Self {
        Self { body: Some(body), ..self }
    }

    /// A parameter of the query with the schema of its values.
    pub(crate) fn query(mut self, name: &str, description: &str, schema: Value) -> Self {
        let parameter = json!({ "name": name, "in": "query", "required": false, "description": description,
            "schema": schema });
        self.parameters.push(parameter);
        self
    }

    /// One that must be there.
    pub(crate) fn needed(mut self, name: &str, description: &str, schema: Value) -> Self {
        let parameter = json!({ "name": name, "in": "query", "required": true, "description": description,
            "schema": schema });
        self.parameters.push(parameter);
        self
    }

    /// A text that must be there.
    pub(crate) fn required(mut self, place: &str, name: &str, description: &str) -> Self {
        let parameter = json!({ "name": name, "in": place, "required": true, "description": description,
            "schema": { "type": "string" } });
        self.parameters.push(parameter);
        self
    }

    fn value(&self, generator: &mut SchemaGenerator) -> Value {
        let mut responses = Map::new();
        let mut answer =
            json!({ "description": self.answer.description, "content": self.answer.value(generator) });
        if let Some([name, description]) = self.header {
            answer["headers"] =
                json!({ name: { "description": description, "schema": { "type": "string" } } });
        }
        responses.insert("200".into(), answer);
        for refusal in REFUSALS {
            if refusal.always || self.refusals.contains(&refusal.status) {
                let place = format!("#/components/responses/{}", refusal.name);
                responses.insert(refusal.status.to_string(), json!({ "$ref": place }));
            }
        }
        let mut value = json!({ "summary": self.summary, "responses": responses });
        if !self.parameters.is_empty() {
            value["parameters"] = json!(self.parameters);
        }
        if let Some(body) = &self.body {
            value["requestBody"] = json!({ "required": true, "description": body.description,
                "content": body.value(generator) });
        }
        value
    }
}

/// The document of these routes.
pub(crate) fn document(operations: &[Operation]) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = operation.value(&mut generator);
    }
    let refusal = generator.subschema_for::<Refusal>();
    let responses: Map<String, Value> = REFUSALS
        .iter()
        .map(|known| {
            let content = json!({ "application/json": { "schema": refusal } });
            (known.name.to_owned(), json!({ "description": known.description, "content": content }))
        })
        .collect();
    let mut schemas = generator.take_definitions(true);
    schemas.values_mut().for_each(close);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sluicegate admin API",
            "version": "1",
            "description": "Units stand in the names. A share is from 0 to 1. A field that may be null is always there.",
        },
        "paths": paths,
        "components": { "responses": responses, "schemas": schemas },
    })
}

/// Says of an object that it has all its fields and no other, and that no duration is negative: older programs read rows of newer ones, but a document is of one
/// version.
fn close(schema: &mut Value) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (_, duration) in
        properties.iter_mut().filter(|(name, _)| name.ends_with("_seconds") || name.ends_with("_ms"))
    {
        duration["minimum"] = json!(0);
    }
    // "ip" is the library's own word: validators know the two families.
    for address in properties.values_mut().filter(|property| property["format"] == "ip") {
        address["anyOf"] = json!([{ "format": "ipv4" }, { "format": "ipv6" }]);
        address.as_object_mut().map(|address| address.remove("format"));
    }
    let names: Vec<&String> = properties.keys().collect();
    let required = json!(names);
    schema["required"] = required;
    schema["additionalProperties"] = json!(false);
}

/// A response that refuses.
struct Known {
    status: u16,
    name: &'static str,
    description: &'static str,
    /// Whether every route may answer so.
    always: bool,
}

const REFUSALS: &[Known] = &[
    Known { status: 400, name: "BadRequest", description: "The request is wrong.", always: true },
    Known { status: 403, name: "Forbidden", description: "Not allowed.", always: false },
    Known { status: 404, name: "NotFound", description: "No such thing.", always: false },
    Known { status: 408, name: "Slow", description: "The body did not come in time.", always: true },
    Known { status: 409, name: "Conflict", description: "It does not go with what is there.", always: false },
    Known { status: 412, name: "Stale", description: "Another generation is in force.", always: false },
    Known { status: 413, name: "TooLarge", description: "The body is too large.", always: true },
    Known { status: 422, name: "Invalid", description: "The configuration has problems.", always: false },
    Known { status: 428, name: "Unconditional", description: "If-Match is missing.", always: false },
    Known {
        status: 503,
        name: "Unavailable",
        description: "Not now: the balancer is stopping or busy.",
        always: true,
    },
];
