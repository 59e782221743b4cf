//! Generates the OpenAPI document from the route table and the schemas of the response types.
//!
//! The types in `view` and `stats` provide the names, units and descriptions of fields. The module
//! `routes` defines the routes.
//!
//! References: OpenAPI 3.1, whose schemas are JSON Schema 2020-12.

use axum::http::Method;
use axum::routing::MethodRouter;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::app_state::AppState;
use crate::roles::Role;
use crate::view::Refusal;

/// A route with its documentation and its handler.
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) summary: &'static str,
    parameters: Vec<Value>,
    body: Option<Content>,
    answer: Content,
    /// A response header: its name and its description.
    header: Option<[&'static str; 2]>,
    /// The status codes of errors that this route can return, in addition to the status codes that
    /// all routes can return.
    refusals: &'static [u16],
    pub(crate) handler: MethodRouter<AppState>,
}

/// The content of a request or response body.
pub(crate) struct Content {
    description: &'static str,
    media_type: &'static str,
    schema: fn(&mut SchemaGenerator) -> Schema,
}

impl Content {
    /// Describes a JSON body of type `T`.
    pub(crate) fn json<T: JsonSchema>(description: &'static str) -> Self {
        Self { description, media_type: "application/json", schema: SchemaGenerator::subschema_for::<T> }
    }

    /// Describes a text body with the given media type.
    pub(crate) fn of(media_type: &'static str, description: &'static str) -> Self {
        Self { description, media_type, schema: SchemaGenerator::subschema_for::<String> }
    }

    /// Describes a binary body with the given media type.
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
            json!({ "name": "name", "in": "path", "required": true, "description": "The name of the backend.",
                "schema": { "type": "string" } })
        });
        let parameters = named.into_iter().collect();
        Self { method, path, summary, parameters, body: None, answer, header: None, refusals: &[], handler }
    }

    /// Creates a route that returns a `T` as JSON. `answer` describes the response.
    pub(crate) fn json<T: JsonSchema>(
        method: &'static str,
        path: &'static str,
        summary: &'static str,
        answer: &'static str,
        handler: MethodRouter<AppState>,
    ) -> Self {
        Self::new(method, path, summary, Content::json::<T>(answer), handler)
    }

    /// Creates a `GET` route that returns a `T` as JSON.
    pub(crate) fn read<T: JsonSchema>(
        path: &'static str,
        summary: &'static str,
        answer: &'static str,
        handler: MethodRouter<AppState>,
    ) -> Self {
        Self::json::<T>("get", path, summary, answer, handler)
    }

    /// Adds the status codes of possible errors.
    pub(crate) fn refuses(self, refusals: &'static [u16]) -> Self {
        Self { refusals, ..self }
    }

    /// Adds a response header.
    pub(crate) fn with_header(self, name: &'static str, description: &'static str) -> Self {
        Self { header: Some([name, description]), ..self }
    }

    pub(crate) fn takes(self, body: Content) -> Self {
        Self { body: Some(body), ..self }
    }

    /// Adds an optional query parameter.
    pub(crate) fn query(mut self, name: &str, description: &str, schema: Value) -> Self {
        let parameter = json!({ "name": name, "in": "query", "required": false, "description": description,
            "schema": schema });
        self.parameters.push(parameter);
        self
    }

    /// Adds a required query parameter.
    pub(crate) fn needed(mut self, name: &str, description: &str, schema: Value) -> Self {
        let parameter = json!({ "name": name, "in": "query", "required": true, "description": description,
            "schema": schema });
        self.parameters.push(parameter);
        self
    }

    /// Adds a required string parameter.
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
        let method = Method::from_bytes(self.method.to_uppercase().as_bytes()).unwrap_or_default();
        let role = Role::needed(&method, self.path).to_string();
        let mut value = json!({ "summary": self.summary, "x-role": role, "responses": responses });
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

/// Returns the document for these routes.
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
            "description": "Units are part of the field names. A share is a number from 0 to 1. Fields that can be null are always present.",
        },
        "paths": paths,
        "components": { "responses": responses, "schemas": schemas },
    })
}

/// Makes the schema of an object strict. All fields are required, other fields are not allowed, and
/// durations are not negative. The document describes exactly one version of the API, although an
/// older client would accept additional fields.
fn close(schema: &mut Value) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (_, duration) in
        properties.iter_mut().filter(|(name, _)| name.ends_with("_seconds") || name.ends_with("_ms"))
    {
        duration["minimum"] = json!(0);
    }
    // Only schemars uses the format "ip". JSON Schema validators support the formats "ipv4" and
    // "ipv6" instead.
    for address in properties.values_mut().filter(|property| property["format"] == "ip") {
        address["anyOf"] = json!([{ "format": "ipv4" }, { "format": "ipv6" }]);
        address.as_object_mut().map(|address| address.remove("format"));
    }
    let names: Vec<&String> = properties.keys().collect();
    let required = json!(names);
    schema["required"] = required;
    schema["additionalProperties"] = json!(false);
}

/// An error response.
struct Known {
    status: u16,
    name: &'static str,
    description: &'static str,
    /// `true` if all routes can return this error.
    always: bool,
}

const REFUSALS: &[Known] = &[
    Known { status: 400, name: "BadRequest", description: "The request is invalid.", always: true },
    Known {
        status: 403,
        name: "Forbidden",
        description: "The configuration or the role of the client does not allow the request.",
        always: false,
    },
    Known { status: 404, name: "NotFound", description: "The named object does not exist.", always: false },
    Known {
        status: 408,
        name: "Slow",
        description: "The request body was not received in time.",
        always: true,
    },
    Known {
        status: 409,
        name: "Conflict",
        description: "The request conflicts with the current state.",
        always: false,
    },
    Known {
        status: 412,
        name: "Stale",
        description: "The entity tag of the current configuration differs from the tag in If-Match.",
        always: false,
    },
    Known { status: 413, name: "TooLarge", description: "The request body is too large.", always: true },
    Known { status: 422, name: "Invalid", description: "The configuration has problems.", always: false },
    Known {
        status: 428,
        name: "Unconditional",
        description: "The If-Match header is missing.",
        always: false,
    },
    Known {
        status: 503,
        name: "Unavailable",
        description: "The load balancer is starting, stopping or busy.",
        always: true,
    },
];
