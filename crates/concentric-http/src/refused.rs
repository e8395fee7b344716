//! Rejections of requests.

use bytes::Bytes;
use concentric_core::{Str, ToolNameTaken, panic::CaughtPanic};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

/// The rejection of a request: a status, a code and a message.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) code: Str,
    pub(crate) message: String,
    /// The field of the request that is the reason.
    pub(crate) field: Option<String>,
    limit: Option<Box<Limit>>,
    // The accepted methods, for the status 405.
    allow: &'static str,
}

/// An exceeded limit.
#[derive(Debug, Serialize)]
struct Limit {
    limit: Str,
    max: usize,
    value: usize,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, code: &str, message: &str, field: Option<&str>) -> Self {
        Self {
            status,
            code: code.into(),
            message: message.to_owned(),
            field: field.map(str::to_owned),
            limit: None,
            allow: "POST",
        }
    }

    /// A `422`: the request exceeds a limit of the policy.
    pub(crate) fn limit(limit: &str, field: Option<&str>, value: usize, max: usize) -> Self {
        let message = format!("{}: {value}, the limit is {max}", field.unwrap_or(limit));
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let limit = limit.into();
        Self {
            limit: Some(Box::new(Limit { limit, max, value })),
            ..Self::new(status, "limit_exceeded", &message, field)
        }
    }

    /// A `422`: the policy does not accept the content of a field.
    pub(crate) fn policy(field: &str, problem: &str) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "not_accepted",
            &format!("{field}: {problem}"),
            Some(field),
        )
    }

    /// A `422`: a client tool has the name of an agent's tool.
    pub(crate) fn tool_name_taken(error: &ToolNameTaken) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "tool_name_taken",
            &format!("tools: {error}"),
            Some("tools"),
        )
    }

    /// A `409`: a new run conflicts with another run.
    pub(crate) fn conflict(code: &str, message: &str) -> Self {
        Self::new(StatusCode::CONFLICT, code, message, None)
    }

    /// A `500`: the server panicked before the run began.
    pub(crate) fn panicked(panic: &CaughtPanic) -> Self {
        tracing::error!(panic = panic.text(), "an HTTP endpoint panicked");
        Self::internal()
    }

    /// A `500` without details, which are logged.
    pub(crate) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "something went wrong",
            None,
        )
    }

    /// A `429`: the events of a run have the maximum number of readers.
    pub(crate) fn too_many_readers() -> Self {
        let why = "the run has too many readers; close one, or try again later";
        let status = StatusCode::TOO_MANY_REQUESTS;
        Self::new(status, "too_many_readers", why, None)
    }

    /// A `404`.
    pub(crate) fn not_found(code: &str, message: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message, None)
    }

    /// A `400`: a field of the input is invalid.
    pub(crate) fn field(field: &str, problem: &str) -> Self {
        let message = format!("{field}: {problem}");
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid_request",
            &message,
            Some(field),
        )
    }

    pub(crate) fn method() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "method not allowed; use POST to start a run",
            None,
        )
    }

    /// A `405` of a resource that accepts the methods `allow`.
    pub(crate) fn method_other_than(allow: &'static str) -> Self {
        let message = format!("method not allowed; use {allow}");
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let refused = Self::new(status, "method_not_allowed", &message, None);
        Self { allow, ..refused }
    }

    pub(crate) fn media_type() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "expected a body with content-type application/json",
            None,
        )
    }

    pub(crate) fn too_large(limit: Option<usize>) -> Self {
        let message = match limit {
            Some(limit) => format!("the body is larger than {limit} bytes"),
            None => "the body is too large".to_owned(),
        };
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &message, None)
    }

    pub(crate) fn unreadable() -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "invalid_request",
            "failed to read the body",
            None,
        )
    }

    /// A `408`: the upload timed out.
    pub(crate) fn upload_timeout() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "upload_timeout",
            "the body did not arrive in time",
            None,
        )
    }

    pub(crate) fn shutting_down() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "shutting_down",
            "the server is shutting down",
            None,
        )
    }

    /// The response of AG-UI: `{"error": {"code", "message", "field"?}}`, with `limit`, `max` and
    /// `value` for an exceeded limit.
    pub(crate) fn into_response(self) -> http::Response<Bytes> {
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
            limit: Option<&'a Limit>,
        }

        let error = Inner {
            code: &self.code,
            message: &self.message,
            field: self.field.as_deref(),
            limit: self.limit.as_deref(),
        };
        // Strings and numbers always serialize.
        let json = serde_json::to_string(&Body { error }).unwrap_or_default();
        let mut response = http::Response::new(Bytes::from(json));
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
