//! Converts errors that providers report to [`Error`].

use crate::{
    Limits, rate_limits, retry_after,
    scrub::{Secrets, scrub},
};
use concentric_core::{BoxError, Error, ErrorKind, Str};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::Value;
use std::{
    error::Error as _,
    time::{Duration, SystemTime},
};

/// The fields of a provider's error.
#[derive(Debug, Default)]
struct Failure {
    message: Option<String>,
    code: Option<String>,
    type_: Option<String>,
    /// The HTTP status that an error within a response contains.
    status: Option<String>,
    /// The reason in Google's error details (`google.rpc.ErrorInfo`).
    reason: Option<String>,
    retry_after: Option<Duration>,
}

impl Failure {
    /// Reads an error from JSON, in any of the known formats.
    fn of_json(value: &Value) -> Self {
        match value {
            Value::Array(items) => items.first().map(Self::of_json).unwrap_or_default(),
            Value::String(text) => Self {
                message: Some(text.clone()),
                ..Self::default()
            },
            Value::Object(fields) => match fields.get("error") {
                Some(Value::String(name)) => {
                    let mut outer = Self::of_fields(value);
                    outer.message.get_or_insert_with(|| name.clone());
                    outer
                }
                Some(inner @ (Value::Object(_) | Value::Array(_))) => Self::of_json(inner),
                _ => Self::of_fields(value),
            },
            _ => Self::default(),
        }
    }

    fn of_fields(value: &Value) -> Self {
        const MESSAGES: [&str; 5] = ["message", "detail", "error_description", "msg", "title"];
        let scalar = |name: &str| match value.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        Self {
            message: MESSAGES.iter().find_map(|name| text(value.get(name)?)),
            code: scalar("code"),
            // Google's name of the type (`google.rpc.Code`).
            type_: scalar("type")
                .or_else(|| scalar("status").filter(|status| status.parse::<u16>().is_err())),
            status: scalar("status_code").or_else(|| scalar("status")),
            reason: details(value, "reason").map(str::to_owned),
            retry_after: details(value, "retryDelay").and_then(delay),
        }
    }

    /// Reads the body of a response with an error status.
    fn of_body(body: &[u8], status: StatusCode) -> Self {
        let body = String::from_utf8_lossy(body);
        let body = body.trim_start_matches('\u{feff}').trim();
        let mut failure = serde_json::from_str(body)
            .map(|value| Self::of_json(&value))
            .unwrap_or_default();
        if failure.message.is_none() {
            failure.message = Some(if body.is_empty() {
                let reason = status.canonical_reason().unwrap_or("unknown status");
                format!("{reason}, and no body")
            } else {
                excerpt(body)
            });
        }
        failure
    }

    fn kind(&self, status: Option<u16>) -> ErrorKind {
        let code = self.code.as_deref().unwrap_or_default();
        let type_ = self.type_.as_deref().unwrap_or_default();
        let message = self.message.as_deref().unwrap_or_default();
        let any = |text: &str, words: &[&str]| {
            let text = text.to_ascii_lowercase();
            words.iter().any(|word| text.contains(word))
        };
        let reason = self.reason.as_deref().unwrap_or_default();
        let contains = |words: &[&str]| any(code, words) || any(type_, words) || any(reason, words);

        let status = status.or_else(|| self.status());
        let kind = status.map(|status| match status {
            // A conflict with another request, or a request that was sent too early: the same
            // request may succeed later. The vendors' own clients retry a 409.
            409 | 425 => ErrorKind::Server,
            status => ErrorKind::of_status(status),
        });
        if contains(&["context_length", "context_window", "context_size"])
            || (matches!(
                kind,
                None | Some(ErrorKind::InvalidRequest | ErrorKind::TooLarge)
            ) && any(
                message,
                &[
                    "context length",
                    "context limit",
                    "context size",
                    "context window",
                    "prompt is too long",
                    "maximum prompt length",
                    "exceeded model token limit",
                    "exceeds the maximum number of tokens",
                ],
            ))
        {
            ErrorKind::ContextWindow
        } else if contains(&[
            "content_filter",
            "content_policy",
            "bio_policy",
            "cyber_policy",
            "moderation",
            "safety",
        ]) {
            ErrorKind::ContentFilter
        } else if contains(&["insufficient_quota", "billing", "insufficient_balance"])
            || any(message, &["credit balance is too low"])
        {
            ErrorKind::Quota
        } else if matches!(kind, None | Some(ErrorKind::InvalidRequest))
            && contains(&["invalid_api_key", "api_key_invalid", "authentication"])
        {
            ErrorKind::Authentication
        } else if let Some(kind) = kind {
            kind
        } else if contains(&["rate_limit", "too_many_requests"]) {
            ErrorKind::RateLimited
        } else if contains(&["overloaded", "unavailable", "capacity"]) {
            ErrorKind::Overloaded
        } else if contains(&["permission", "forbidden"]) {
            ErrorKind::Permission
        } else if contains(&["not_found"]) {
            ErrorKind::NotFound
        } else if contains(&["too_large"]) && !contains(&["image"]) {
            ErrorKind::TooLarge
        } else if contains(&["timeout"]) {
            ErrorKind::Timeout
        } else if contains(&[
            "invalid",
            "bad_request",
            "tool_use_failed",
            "image",
            "data_residency",
        ]) {
            ErrorKind::InvalidRequest
        } else {
            ErrorKind::Server
        }
    }

    /// The HTTP status that an error within a response contains.
    fn status(&self) -> Option<u16> {
        [&self.status, &self.code]
            .into_iter()
            .filter_map(|value| value.as_deref()?.parse::<u16>().ok())
            .find(|status| (400..600).contains(status))
    }
}

/// Whether an error field contains an error: some servers always send the field.
pub(crate) fn has_error(error: &Value) -> bool {
    match error {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}

/// The first string named `name` in Google's error details (`google.rpc.Status.details`).
fn details<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    let details = value.get("details")?.as_array()?;
    details.iter().find_map(|detail| detail.get(name)?.as_str())
}

/// Parses a duration in the JSON format of Protocol Buffers: `34.5s`.
fn delay(text: &str) -> Option<Duration> {
    let seconds = text.strip_suffix('s')?.parse::<f64>().ok()?;
    Some(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

/// The text of a message, which may be a list of errors (FastAPI's `detail`).
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Array(items) => {
            let items: Vec<String> = items
                .iter()
                .filter_map(|item| text(item).or_else(|| text(item.get("msg")?)))
                .collect();
            (!items.is_empty()).then(|| items.join("; "))
        }
        Value::Object(fields) => fields.get("message").and_then(text),
        _ => None,
    }
}

/// The readable part of an unexpected body.
fn excerpt(body: &str) -> String {
    if !body.starts_with('<') {
        return body.to_owned();
    }
    // The text of an HTML page, its title first.
    let mut out = String::from("an HTML page:");
    let mut rest = body;
    while let Some((text, tag)) = rest.split_once('<') {
        if !text.trim().is_empty() {
            out.push(' ');
            out.push_str(text.trim());
        }
        let skip = ["style", "script", "!--"].iter().find(|name| {
            tag.get(..name.len())
                .is_some_and(|t| t.eq_ignore_ascii_case(name))
        });
        let end = match skip {
            Some(&"!--") => "-->",
            Some(&"style") => "</style>",
            Some(_) => "</script>",
            None => ">",
        };
        rest = tag.split_once(end).map_or("", |(_, rest)| rest);
    }
    // The page may be truncated.
    if !rest.trim().is_empty() {
        out.push(' ');
        out.push_str(rest.trim());
    }
    out
}

/// The origin of an error, for its fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub(crate) provider: &'a Str,
    pub(crate) secrets: Secrets<'a>,
    pub(crate) request_id: Option<&'a Str>,
    /// The maximum of `retry_after`.
    pub(crate) retry_after: Duration,
}

impl Origin<'_> {
    /// Creates an error that is detected locally. `message` must not contain text from the
    /// provider.
    pub(crate) fn error(self, kind: ErrorKind, message: impl Into<Str>) -> Error {
        let error = Error::new(kind, message).with_provider(self.provider.clone());
        match self.request_id {
            Some(id) => error.with_request_id(id.clone()),
            None => error,
        }
    }

    /// Creates an error for an unexpected body, with a readable excerpt of it.
    pub(crate) fn protocol(self, what: &str, body: &str) -> Error {
        let body = scrub(&excerpt(body.trim()), self.secrets);
        self.error(ErrorKind::Protocol, format!("{what}: {body}"))
    }

    /// Creates an error that the provider reported within a response.
    pub(crate) fn reported(self, error: &Value) -> Error {
        let failure = Failure::of_json(error);
        let error = self.failed(&failure, failure.kind(None));
        match failure.status() {
            Some(status) => error.with_status(status),
            None => error,
        }
    }

    /// Creates an error that the provider reported with an HTTP status.
    pub(crate) fn refused(
        self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        now: SystemTime,
        limits: &Limits,
    ) -> Error {
        let is_redirect = status.is_redirection() && status != StatusCode::NOT_MODIFIED;
        let error = if is_redirect {
            // Without the location, which may contain a secret.
            self.error(
                ErrorKind::Protocol,
                "the provider redirected the request; redirects are not followed, since they would forward the key",
            )
        } else {
            let failure = Failure::of_body(body, status);
            self.failed(&failure, failure.kind(Some(status.as_u16())))
        };
        let mut error = error.with_status(status.as_u16());
        // Sent by OpenAI and Anthropic, whose clients obey it.
        match headers.get("x-should-retry").map(HeaderValue::as_bytes) {
            Some(b"true") => error = error.with_advice(true),
            Some(b"false") => error = error.with_advice(false),
            _ => {}
        }
        if let Some(limits) = rate_limits::read(headers, now) {
            error = error.with_rate_limits(limits);
        }
        // The longest wins.
        match retry_after::read(headers, now, limits.retry_after).max(error.retry_after()) {
            Some(after) => error.with_retry_after(after),
            None => error,
        }
    }

    fn failed(self, failure: &Failure, kind: ErrorKind) -> Error {
        let message = failure
            .message
            .as_deref()
            .unwrap_or("the provider reported an error without a message");
        let mut error = self.error(kind, scrub(message, self.secrets));
        if let Some(code) = &failure.code {
            error = error.with_code(scrub(code, self.secrets));
        }
        if let Some(type_) = &failure.type_ {
            error = error.with_type(scrub(type_, self.secrets));
        }
        if let Some(after) = failure.retry_after {
            error = error.with_retry_after(after.min(self.retry_after));
        }
        error
    }

    /// Converts an error of the HTTP service.
    pub(crate) fn transport(self, error: BoxError) -> Error {
        let error = Error::from(error);
        let kind = match error.kind() {
            // An unclassified error of a client most likely concerns the connection.
            ErrorKind::Other => ErrorKind::Connection,
            kind => kind,
        };
        let error = if self.leaks(&error) {
            // Without its sources, which may be printed.
            Error::new(kind, scrub(error.message(), self.secrets))
        } else if kind != error.kind() {
            Error::new(kind, scrub(error.message(), self.secrets)).with_source(error)
        } else {
            error
        };
        if error.provider().is_some() {
            error
        } else {
            error.with_provider(self.provider.clone())
        }
    }

    /// Whether `error` or one of its sources contains a secret.
    fn leaks(self, error: &Error) -> bool {
        let sources = format!("{error:#} {:?}", error.source());
        self.secrets.occur_in(&sources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_json_format_yields_its_message() {
        let shapes = [
            json!({"error": {"message": "no", "type": "t", "code": "c"}}),
            json!({"error": {"message": "no", "code": 400}}),
            json!([{"error": {"message": "no"}}]),
            json!({"error": "no"}),
            json!({"error": "Unauthorized", "message": "no"}),
            json!({"error": true, "message": "no"}),
            json!({"object": "error", "message": "no", "type": "t", "code": null}),
            json!({"detail": "no"}),
            json!({"detail": [{"loc": ["body"], "msg": "no", "type": "missing"}]}),
            json!({"message": {"detail": [], "message": "no"}}),
            json!("no"),
        ];
        for shape in shapes {
            assert_eq!(
                Failure::of_json(&shape).message.as_deref(),
                Some("no"),
                "{shape}"
            );
        }
    }

    #[test]
    fn an_html_page_is_reduced_to_its_text() {
        let page = "<!DOCTYPE html><html><head><title>502 Bad Gateway</title><style>a > b {}</style>\
                    <!-- a > b --></head><body><h1>Bad</h1> <p>nginx</p></body></html>";
        assert_eq!(excerpt(page), "an HTML page: 502 Bad Gateway Bad nginx");
        assert_eq!(excerpt("<"), "an HTML page:");
    }
}
