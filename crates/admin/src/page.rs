//! The status page: one self-contained file, served at `/`.
//!
//! In: nothing; the page asks the admin API itself, every second. Out: [`status_page`], for the admin server.
//! Not here: figures. The page has no outside asset, and its policy lets the browser fetch from this origin alone.
//! Invariant: text of a configuration or of a backend never becomes markup: the page writes `textContent` alone, and scripts
//! other than its own are refused by hash.

#[cfg(test)]
mod tests;

use axum::Router;
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use axum::routing::get;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

/// The one route, `GET /`.
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

/// Nothing but what stands in the file, and this origin's figures.
fn policy() -> String {
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash_of("style"),
        hash_of("script")
    )
}

/// Of the text between the element's tags, as browsers take it.
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
