//! The status page: one self-contained HTML file at `/`.
//!
//! The page queries the admin API of the same server every second. The page loads no external
//! files, and its Content-Security-Policy restricts requests to the same origin. The page inserts
//! text only through `textContent`, and the policy allows only the script with the given hash. Text
//! from the configuration or from a backend therefore never becomes markup.

#[cfg(test)]
mod tests;

use axum::Router;
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use axum::routing::get;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

/// Returns a router with the single route `GET /`.
pub fn status_page<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let policy = policy();
    Router::new().route("/", get(async move || page(policy.clone())))
}

fn page(policy: String) -> impl IntoResponse {
    let headers: [(HeaderName, String); 5] = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8".into()),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".into()),
        (header::REFERRER_POLICY, "no-referrer".into()),
        (header::CACHE_CONTROL, "no-cache".into()),
    ];
    (headers, PAGE)
}

/// Returns the Content-Security-Policy, which allows the inline style and script and requests to
/// the same origin.
fn policy() -> String {
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash_of("style"),
        hash_of("script")
    )
}

/// Returns the SHA-256 hash of the text between the tags of an element, in the form that browsers
/// compute.
fn hash_of(element: &str) -> String {
    BASE64_STANDARD.encode(Sha256::digest(text_of(element)))
}

fn text_of(element: &str) -> &'static str {
    let inside = PAGE
        .split_once(&format!("<{element}>"))
        .and_then(|(_, rest)| rest.split_once(&format!("</{element}>")));
    inside.map_or("", |(text, _)| text)
}

const PAGE: &str = include_str!("page/index.html");
