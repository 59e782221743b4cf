//! Converts a [`Refusal`] to an HTTP response. The kind of refusal determines the status code, and
//! the response body is JSON.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::view::{Refusal, RefusalKind};

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.kind {
            RefusalKind::NotFound => StatusCode::NOT_FOUND,
            RefusalKind::Conflict => StatusCode::CONFLICT,
            RefusalKind::Stale => StatusCode::PRECONDITION_FAILED,
            RefusalKind::Unconditional => StatusCode::PRECONDITION_REQUIRED,
            RefusalKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            RefusalKind::Forbidden => StatusCode::FORBIDDEN,
            RefusalKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            RefusalKind::BadRequest => StatusCode::BAD_REQUEST,
        };
        (status, Json(self)).into_response()
    }
}

/// Returns the response for an invalid request, with a specific status.
pub(super) fn bad(status: StatusCode, message: impl Into<String>) -> Response {
    (status, Json(Refusal::new(RefusalKind::BadRequest, message))).into_response()
}

pub(super) fn bad_request(message: impl Into<String>) -> Refusal {
    Refusal::new(RefusalKind::BadRequest, message)
}

/// Formats a number with its noun, such as `1 packet` or `2 packets`.
pub(crate) fn plural(number: u64, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}
