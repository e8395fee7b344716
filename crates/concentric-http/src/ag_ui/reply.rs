//! What is answered instead of a stream.

use bytes::Bytes;
use concentric_core::{method::Panic, tool::ToolNameTaken};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use super::InputError;

/// A request that starts no run: a status, and `{"error": {"code", "message", "field"?}}`;
/// of a limit also `limit`, `max` and `value`.
#[derive(Debug)]
pub(super) struct Refused {
    status: StatusCode,
    json: String,
}

/// The limit that a request exceeds.
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
            // Strings are always JSON.
            json: serde_json::to_string(&Body { error }).unwrap_or_default(),
        }
    }

    /// A `422`: the request has more of something than a limit of the policy.
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

    /// A `422`: the policy does not accept what stands in a field.
    pub(super) fn policy(field: &str, problem: &str) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "not_accepted",
            &format!("{field}: {problem}"),
            Some(field),
        )
    }

    /// A `422`: a tool of the client has the name of one of the agent's.
    pub(super) fn tool_name_taken(error: &ToolNameTaken) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "tool_name_taken",
            &format!("tools: {error}"),
            Some("tools"),
        )
    }

    /// A `500`: a part of the server panicked before the run began.
    pub(super) fn panicked(panic: &Panic) -> Self {
        tracing::error!(panic = panic.text(), "an AG-UI endpoint panicked");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "something went wrong",
            None,
        )
    }

    /// A `400` about one field of the input.
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
            "a run is started by a POST",
            None,
        )
    }

    pub(super) fn media_type() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            "expected a body of content-type application/json",
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
            "the body could not be read",
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
                headers.insert(header::ALLOW, HeaderValue::from_static("POST"));
            }
            // Another instance takes it at once; this one will not come back.
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

impl From<InputError> for Refused {
    fn from(error: InputError) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            json: error.to_json(),
        }
    }
}
