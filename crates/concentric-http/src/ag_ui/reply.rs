//! What is answered instead of a stream.

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use super::InputError;

/// A request that starts no run: a status, and `{"error": {"code", "message", "field"?}}`.
#[derive(Debug)]
pub(super) struct Refused {
    status: StatusCode,
    json: String,
}

impl Refused {
    pub(super) fn new(status: StatusCode, code: &str, message: &str, field: Option<&str>) -> Self {
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
        }

        let error = Inner {
            code,
            message,
            field,
        };
        Self {
            status,
            // Strings are always JSON.
            json: serde_json::to_string(&Body { error }).unwrap_or_default(),
        }
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

    pub(super) fn too_many_replies(limit: usize) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "too_many_replies",
            &format!("resume: at most {limit} questions are answered at once"),
            Some("resume"),
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
