//! Error responses.

use bytes::Bytes;
use concentric_core::{ToolNameTaken, panic::CaughtPanic};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

/// The response to a rejected request: a status, and `{"error": {"code", "message", "field"?}}`,
/// with `limit`, `max` and `value` for an exceeded limit.
#[derive(Debug)]
pub(super) struct Refused {
    status: StatusCode,
    json: String,
    // The accepted methods, for the status 405.
    allow: &'static str,
}

/// An exceeded limit.
#[derive(Serialize)]
struct Limit<'a> {
    limit: &'a str,
    max: usize,
    value: usize,
}

impl Refused {
    pub(super) fn new(status: StatusCode, code: &str, message: &str, field: Option<&str>) -> Self {
        Self::with(status, code, message, field, None)
    }

    fn with(
        status: StatusCode,
        code: &str,
        message: &str,
        field: Option<&str>,
        limit: Option<Limit<'_>>,
    ) -> Self {
        #[derive(Serialize)]
        struct Body<'a> {
            error: Inner<'a>,
        }

        #[derive(Serialize)]
        struct Inner<'a> {
            code: &'a str,
            message: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            field: Option<&'a str>,
            #[serde(flatten)]
            limit: Option<Limit<'a>>,
        }

        let error = Inner {
            code,
            message,
            field,
            limit,
        };
        Self {
            status,
            // Strings always serialize.
            json: serde_json::to_string(&Body { error }).unwrap_or_default(),
            allow: "POST",
        }
    }

    /// A `422`: the request exceeds a limit of the policy.
    pub(super) fn limit(limit: &str, field: Option<&str>, value: usize, max: usize) -> Self {
        let message = format!("{}: {value}, the limit is {max}", field.unwrap_or(limit));
        Self::with(
            StatusCode::UNPROCESSABLE_ENTITY,
            "limit_exceeded",
            &message,
            field,
            Some(Limit { limit, max, value }),
        )
    }

    /// A `422`: the policy does not accept the content of a field.
    pub(super) fn policy(field: &str, problem: &str) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "not_accepted",
            &format!("{field}: {problem}"),
            Some(field),
        )
    }

    /// A `422`: a client tool has the name of an agent's tool.
    pub(super) fn tool_name_taken(error: &ToolNameTaken) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "tool_name_taken",
            &format!("tools: {error}"),
            Some("tools"),
        )
    }

    /// A `409`: a new run conflicts with another run.
    pub(super) fn conflict(code: &str, message: &str) -> Self {
        Self::new(StatusCode::CONFLICT, code, message, None)
    }

    /// A `500`: the server panicked before the run began.
    pub(super) fn panicked(panic: &CaughtPanic) -> Self {
        tracing::error!(panic = panic.text(), "AG-UI endpoint panicked");
        Self::internal()
    }

    /// A `500` without details, which are logged.
    pub(super) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "something went wrong",
            None,
        )
    }

    /// A `404`.
    pub(super) fn not_found(code: &str, message: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message, None)
    }

    /// A `400`: a field of the input is invalid.
    pub(super) fn field(field: &str, problem: &str) -> Self {
        let message = format!("{field}: {problem}");
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid_request",
            &message,
            Some(field),
        )
    }

    pub(super) fn method() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "method not allowed; use POST to start a run",
            None,
        )
    }

    /// A `405` of a resource that accepts the methods `allow`.
    pub(super) fn method_other_than(allow: &'static str) -> Self {
        let message = format!("method not allowed; use {allow}");
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let refused = Self::new(status, "method_not_allowed", &message, None);
        Self { allow, ..refused }
    }

    pub(super) fn media_type() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "expected a body with content-type application/json",
            None,
        )
    }

    pub(super) fn too_large(limit: Option<usize>) -> Self {
        let message = match limit {
            Some(limit) => format!("the body is larger than {limit} bytes"),
            None => "the body is too large".to_owned(),
        };
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &message, None)
    }

    pub(super) fn unreadable() -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid_request",
            "failed to read the body",
            None,
        )
    }

    /// A `408`: the upload timed out.
    pub(super) fn upload_timeout() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "upload_timeout",
            "the body did not arrive in time",
            None,
        )
    }

    pub(super) fn shutting_down() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "shutting_down",
            "the server is shutting down",
            None,
        )
    }

    pub(super) fn into_response(self) -> http::Response<Bytes> {
        let mut response = http::Response::new(Bytes::from(self.json));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        match self.status {
            StatusCode::METHOD_NOT_ALLOWED => {
                headers.insert(header::ALLOW, HeaderValue::from_static(self.allow));
            }
            // Another instance can take the request at once; this one will not recover.
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
