//! Compares the OpenAPI document with the routes and with the responses.

use std::collections::BTreeSet;

use admin::{Rules, router, routes};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::mock::{self, Log};

/// The API with a mock of the run loop and without a network connection.
pub(crate) struct Api {
    router: Router,
    document: Value,
    pub(crate) log: Log,
}

impl Api {
    pub(crate) async fn new(put: bool) -> Self {
        let (commands, log) = mock::start();
        let router = router(commands, Rules::new(put), Router::new());
        let mut api = Self { router, document: Value::Null, log };
        let request = Request::get("/openapi.json").body(Body::empty()).unwrap();
        api.document = api.send(request).await.1;
        api
    }

    pub(crate) async fn ask_plainly(&self, request: Request<Body>) -> axum::response::Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, Value) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json", "{status}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// Sends a request and validates the response against the document.
    pub(crate) async fn call(&self, request: Request<Body>) -> (StatusCode, Value) {
        let (method, path) = (request.method().as_str().to_lowercase(), request.uri().path().to_owned());
        let (status, body) = self.send(request).await;
        let schema = self.schema(&method, &path, status);
        let whole = json!({ "allOf": [schema], "components": self.document["components"] });
        let validator =
            jsonschema::draft202012::options().should_validate_formats(true).build(&whole).unwrap();
        let errors: Vec<_> =
            validator.iter_errors(&body).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{method} {path} {status}: {errors:#?}");
        (status, body)
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.call(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &'static str) -> (StatusCode, Value) {
        self.call(Request::post(path).body(Body::from(body)).unwrap()).await
    }

    fn schema(&self, method: &str, path: &str, status: StatusCode) -> Value {
        let paths = self.document["paths"].as_object().unwrap();
        let (_, operations) = paths.iter().find(|(template, _)| fits(template, path)).unwrap();
        let response = &operations[method]["responses"][status.as_str()];
        let response = match response["$ref"].as_str() {
            Some(place) => self.document.pointer(place.trim_start_matches('#')).unwrap(),
            None => response,
        };
        let schema = &response["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{method} {path} returns {status}, which is not in the document");
        schema.clone()
    }

    pub(crate) fn last(&self) -> String {
        self.log.lock().unwrap().last().cloned().unwrap_or_default()
    }
}

fn fits(template: &str, path: &str) -> bool {
    let (template, path): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
    template.len() == path.len()
        && template.iter().zip(&path).all(|(want, have)| want.starts_with('{') || want == have)
}

#[tokio::test]
async fn document_contains_exactly_the_routes() {
    let api = Api::new(false).await;
    let served: BTreeSet<(String, String)> =
        routes().iter().map(|route| (route.method.to_owned(), route.path.to_owned())).collect();
    let paths = api.document["paths"].as_object().unwrap();
    let documented: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(move |method| (method.clone(), path.clone()))
        })
        .collect();
    assert_eq!(served, documented);
    assert_eq!(served.len(), routes().len());
}

#[tokio::test]
async fn document_is_complete() {
    let api = Api::new(false).await;
    jsonschema::draft202012::meta::validate(&json!({
        "allOf": api.document["components"]["schemas"].as_object().unwrap().values().collect::<Vec<_>>()
    }))
    .unwrap();
    let text = api.document.to_string();
    let mut references = 0;
    for rest in text.split("\"$ref\":\"#").skip(1) {
        let place = rest.split('"').next().unwrap();
        assert!(api.document.pointer(place).is_some(), "{place}");
        references += 1;
    }
    assert!(references > 50, "{references}");
    for (name, schema) in api.document["components"]["schemas"].as_object().unwrap() {
        assert!(text.matches(&format!("schemas/{name}\"")).count() > 0, "{name} is not used");
        let Some(properties) = schema["properties"].as_object() else { continue };
        // Fields without a default value are always present, so the document requires them.
        assert_eq!(schema["required"].as_array().unwrap().len(), properties.len(), "{name}");
        assert_eq!(schema["additionalProperties"], json!(false), "{name}");
    }
    for methods in api.document["paths"].as_object().unwrap().values() {
        for operation in methods.as_object().unwrap().values() {
            assert!(operation["summary"].is_string() && operation["responses"]["200"].is_object());
        }
    }
}

#[tokio::test]
async fn document_contains_details_that_types_lack() {
    let document = Api::new(false).await.document;
    let at = |pointer: &str| document.pointer(pointer).unwrap_or_else(|| panic!("{pointer}")).clone();
    let tag = at("/paths/~1v1~1config/get/responses/200/headers/ETag/schema/type");
    let share = at("/components/schemas/BackendRow/properties/shares/additionalProperties/maximum");
    let family = at("/components/schemas/BackendRow/properties/address/anyOf/1/format");
    assert_eq!((tag, share, family), ("string".into(), 1.into(), "ipv6".into()));
    let weight = at("/components/schemas/Weight/properties/weight/maximum");
    let file = at("/paths/~1v1~1capture/post/responses/200/content/application~1x-pcapng/schema/format");
    assert_eq!((weight, file), (u32::MAX.into(), "binary".into()));
    assert!(!document.to_string().contains(r#""format":"ip""#));
}
