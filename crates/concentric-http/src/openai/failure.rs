//! Errors in OpenAI's format.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use concentric_core::{
    CancelReason, Context, Error, ErrorKind, Interrupt, Phase, RateLimits, SideEffects, Str,
    ToolNameTaken,
    panic::{CaughtPanic, catch},
    store::OVER_BUDGET,
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use crate::{
    describe::{ErrorMessage, describe, refusal, source},
    refused::Refused,
};

/// The status of a run that failed and may have had effects. Unlike most of the other statuses of a
/// failure, clients do not repeat the request.
const FAILED_AFTER_EFFECTS: StatusCode = StatusCode::FAILED_DEPENDENCY;

/// A failed request: an error response, or the last event of a stream.
#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    type_: &'static str,
    code: Option<Str>,
    message: Box<str>,
    param: Option<Box<str>>,
    retry_after: Option<Duration>,
    /// Further headers: the rate limits, or the methods of a route.
    headers: Option<Box<HeaderMap>>,
    /// Whether the same request may be sent again; `None` if its status shows that.
    is_retryable: Option<bool>,
    // Data that other servers do not send.
    interrupts: Option<Box<Value>>,
}

/// The reason for which a background run is cancelled that takes too long.
pub(super) const TIME_LIMIT: &str = "time_limit";

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl Failure {
    pub(super) fn new(
        status: StatusCode,
        type_: &'static str,
        code: &str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            status,
            type_,
            code: Some(code.into()),
            message: message.into().into_boxed_str(),
            param: None,
            retry_after: None,
            headers: None,
            is_retryable: None,
            interrupts: None,
        }
    }

    fn at(mut self, param: &str) -> Self {
        self.param = Some(param.into());
        self
    }

    fn finally(mut self) -> Self {
        self.is_retryable = Some(false);
        self
    }

    /// A parameter that this server does not support.
    pub(super) fn unsupported(param: &str, problem: &str) -> Self {
        let status = StatusCode::BAD_REQUEST;
        Self::new(status, INVALID, "unsupported_parameter", problem).at(param)
    }

    /// A field with an invalid value.
    pub(super) fn invalid(field: &str, problem: &str) -> Self {
        Refused::field(field, problem).into()
    }

    /// A request without a valid key.
    pub(super) fn invalid_key() -> Self {
        let message = "the API key is missing or invalid";
        let mut failure = Self::new(
            StatusCode::UNAUTHORIZED,
            INVALID,
            "invalid_api_key",
            message,
        );
        let challenge = (header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        failure.headers = Some(Box::new(HeaderMap::from_iter([challenge])));
        failure
    }

    /// A request whose key could not be checked.
    pub(super) fn keys_unavailable() -> Self {
        let (status, code) = (StatusCode::SERVICE_UNAVAILABLE, "keys_unavailable");
        let mut failure = Self::new(status, SERVER, code, "the API key could not be checked");
        failure.retry_after = Some(Duration::from_secs(1));
        failure
    }

    /// A failure of the server, whose details are logged.
    pub(super) fn internal() -> Self {
        Refused::internal().into()
    }

    /// A stored response that does not exist, or belongs to another owner.
    pub(super) fn unknown_response(id: &str) -> Self {
        let id: String = id.chars().take(256).collect();
        let message = format!("the response `{id}` does not exist");
        Self::new(
            StatusCode::NOT_FOUND,
            INVALID,
            "response_not_found",
            message,
        )
    }

    /// The same, of a response that a request continues.
    pub(super) fn unknown_previous_response(id: &str) -> Self {
        let failure = Self::unknown_response(id).at("previous_response_id");
        Self {
            code: Some("previous_response_not_found".into()),
            ..failure
        }
    }

    /// An item of a stored response that does not exist, or belongs to another owner.
    pub(super) fn unknown_item(field: &str, id: &str) -> Self {
        let id: String = id.chars().take(256).collect();
        let message = format!(
            "no stored response has the item `{id}`, or the request refers to it more than once"
        );
        Self::new(StatusCode::NOT_FOUND, INVALID, "item_not_found", message).at(field)
    }

    /// A request for events that are not kept.
    pub(super) fn no_events() -> Self {
        let problem = "the events of the response are not kept: it was not created with `background` and `stream`, \
                       it has ended more than 5 minutes ago, or `starting_after` is not the number of a kept event";
        Self::invalid("stream", problem)
    }

    /// A route that does not exist.
    pub(super) fn unknown_route(method: &http::Method, path: &str) -> Self {
        let path: String = path.chars().take(256).collect();
        let message = format!("unknown URL: {method} {path}");
        Self::new(StatusCode::NOT_FOUND, INVALID, "unknown_url", message)
    }

    pub(super) fn unknown_model(name: &str) -> Self {
        let name: String = name.chars().take(256).collect();
        let message = format!("the model `{name}` does not exist");
        Self::new(StatusCode::NOT_FOUND, INVALID, "model_not_found", message).at("model")
    }

    /// A method that the route does not have.
    pub(super) fn method(allow: &'static str) -> Self {
        let (status, message) = (StatusCode::METHOD_NOT_ALLOWED, format!("use {allow}"));
        let mut failure = Self::new(status, INVALID, "method_not_allowed", message);
        let allow = (header::ALLOW, HeaderValue::from_static(allow));
        failure.headers = Some(Box::new(HeaderMap::from_iter([allow])));
        failure
    }

    /// The error of a run.
    pub(super) fn of(error: &Error, context: &Context, describe_by: &ErrorMessage) -> Self {
        let run = context.run_id();
        tracing::warn!(run_id = %run, error = ?error, "a run of the OpenAI server failed");
        if error.kind() == ErrorKind::Cancelled
            && let Some(reason) = context.cancel_reason()
        {
            return Self::cancelled(&reason).after(context, error.effects());
        }
        // The host's function may panic.
        let message = catch(|| describe_by(error)).unwrap_or_else(|_| describe(error));
        let mut failure = Self::of_kind(error, &message);
        failure.retry_after = error.retry_after();
        if let Some(limits) = error.rate_limits()
            && failure.status == StatusCode::TOO_MANY_REQUESTS
        {
            failure.headers = Some(Box::new(limit_headers(limits, context.now())));
        }
        if !error.is_retryable() || error.advice() == Some(false) {
            failure.is_retryable = Some(false);
        }
        failure.after(context, error.effects())
    }

    fn of_kind(error: &Error, message: &str) -> Self {
        let new = |status, type_, code: &str| Self::new(status, type_, code, message);
        if source::<ToolNameTaken>(error).is_some() {
            return new(StatusCode::BAD_REQUEST, INVALID, "tool_name_taken").at("tools");
        }
        if error.code() == Some(OVER_BUDGET) {
            let (status, code) = (StatusCode::TOO_MANY_REQUESTS, "insufficient_quota");
            return Self::new(status, code, code, "The budget is used up.");
        }
        // The store of the runs has rejected an approval.
        if error.phase() == Some(Phase::Run)
            && let Some(code) = refusal(error)
        {
            match error.kind() {
                ErrorKind::InvalidRequest => return new(StatusCode::BAD_REQUEST, INVALID, code),
                ErrorKind::NotFound => return new(StatusCode::NOT_FOUND, INVALID, code),
                ErrorKind::Conflict => return new(StatusCode::CONFLICT, INVALID, code),
                _ => {}
            }
        }
        match error.kind() {
            ErrorKind::InvalidRequest => new(StatusCode::BAD_REQUEST, INVALID, "invalid_request"),
            ErrorKind::ContextWindow => {
                new(StatusCode::BAD_REQUEST, INVALID, "context_length_exceeded")
            }
            ErrorKind::ContentFilter => new(StatusCode::BAD_REQUEST, INVALID, "content_filter"),
            ErrorKind::TooLarge => new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, "too_large"),
            ErrorKind::Conflict => new(StatusCode::CONFLICT, INVALID, "conflict"),
            ErrorKind::Waiting => new(StatusCode::CONFLICT, INVALID, "approval_required"),
            ErrorKind::RateLimited => new(
                StatusCode::TOO_MANY_REQUESTS,
                "requests",
                "rate_limit_exceeded",
            ),
            ErrorKind::Overloaded => new(StatusCode::SERVICE_UNAVAILABLE, SERVER, "overloaded"),
            ErrorKind::Timeout => new(StatusCode::GATEWAY_TIMEOUT, SERVER, "timeout"),
            ErrorKind::Cancelled => new(closed_request(), SERVER, "cancelled"),
            // The caller does not have the key or the configuration that the provider rejected.
            ErrorKind::Authentication
            | ErrorKind::Permission
            | ErrorKind::NotFound
            | ErrorKind::Quota
            | ErrorKind::Server
            | ErrorKind::Connection
            | ErrorKind::Truncated
            | ErrorKind::Protocol => {
                let code = format!("upstream_{}", error.kind());
                new(StatusCode::BAD_GATEWAY, SERVER, &code)
            }
            kind => new(StatusCode::INTERNAL_SERVER_ERROR, SERVER, kind.as_str()),
        }
    }

    /// A panic of the model, the agent or one of its layers, whose text is only logged.
    pub(super) fn panicked(panic: &CaughtPanic, context: Option<&Context>) -> Self {
        let run = context.map(|context| tracing::field::display(context.run_id()));
        tracing::error!(
            run_id = run,
            panic = panic.text(),
            "a run of the OpenAI server panicked"
        );
        let (status, message) = (StatusCode::INTERNAL_SERVER_ERROR, "Something went wrong.");
        let failure = Self::new(status, SERVER, "internal", message).finally();
        match context {
            Some(context) => failure.after(context, SideEffects::None),
            None => failure,
        }
    }

    /// A run that waits for replies, which these APIs cannot send.
    pub(super) fn approval(interrupts: &[&Interrupt], context: &Context) -> Self {
        let message = "The run waits for an approval, which this API cannot give.";
        let status = StatusCode::CONFLICT;
        let mut failure = Self::new(status, INVALID, "approval_required", message).finally();
        let interrupts = interrupts
            .iter()
            .map(|it| json!({"id": it.id, "reason": it.reason, "message": it.message}));
        failure.interrupts = Some(Box::new(interrupts.collect()));
        failure.after(context, SideEffects::None)
    }

    /// A run that was cancelled.
    pub(super) fn aborted(reason: &CancelReason, context: &Context) -> Self {
        Self::cancelled(reason).after(context, SideEffects::None)
    }

    fn cancelled(reason: &CancelReason) -> Self {
        match reason {
            CancelReason::Shutdown => Refused::shutting_down().into(),
            CancelReason::Other(reason) if reason == TIME_LIMIT => {
                let message = "The run took too long.";
                Self::new(StatusCode::GATEWAY_TIMEOUT, SERVER, "timeout", message)
            }
            _ => Self::new(
                closed_request(),
                SERVER,
                "cancelled",
                "The run was cancelled.",
            ),
        }
    }

    /// Whether the run was cancelled, other than by a shutdown or a time limit.
    pub(super) fn is_cancelled(&self) -> bool {
        self.code.as_deref() == Some("cancelled")
    }

    /// A background response whose end could not be stored.
    pub(super) fn unstored() -> Self {
        let message = "The response could not be stored.";
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            SERVER,
            "server_error",
            message,
        )
    }

    /// A request that would exceed a limit of the process.
    pub(super) fn busy(message: &str) -> Self {
        let (status, code) = (StatusCode::SERVICE_UNAVAILABLE, "overloaded");
        let mut failure = Self::new(status, SERVER, code, message);
        failure.retry_after = Some(Duration::from_secs(1));
        failure
    }

    /// A request that would exceed a limit of its tenant.
    pub(super) fn rate_limited(message: &str) -> Self {
        let (status, code) = (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded");
        let mut failure = Self::new(status, "requests", code, message);
        failure.retry_after = Some(Duration::from_secs(1));
        failure
    }

    /// Marks a failure after which tools may have taken effect: a client that repeated the request
    /// would repeat the effects.
    fn after(mut self, context: &Context, effects: SideEffects) -> Self {
        if effects == SideEffects::None && context.effect_count() == 0 {
            return self;
        }
        self.is_retryable = Some(false);
        self.retry_after = None;
        self.headers = None;
        if is_repeated(self.status) {
            self.status = FAILED_AFTER_EFFECTS;
        }
        let more = " Tools of the run may have taken effect.";
        self.message = [&self.message, more].concat().into();
        self
    }

    /// The object `error`.
    pub(super) fn json(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.type_,
            "param": self.param,
            "code": self.code,
        });
        if let (Some(interrupts), Some(error)) = (&self.interrupts, error.as_object_mut()) {
            let extension = json!({ "interrupts": interrupts });
            error.insert("concentric".to_owned(), extension);
        }
        error
    }

    /// The code and the message, for the object of a failed response.
    pub(super) fn response_error(&self) -> Value {
        json!({"code": self.code, "message": self.message})
    }

    /// The error that ends the body of a stream.
    pub(super) fn into_error(self) -> Error {
        Error::new(ErrorKind::Truncated, &*self.message)
    }

    pub(super) fn into_response(self) -> http::Response<Bytes> {
        let json = json!({"error": self.json()}).to_string();
        let mut response = http::Response::new(Bytes::from(json));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        if let Some(after) = self.retry_after {
            put_retry_after(headers, after);
        }
        if let Some(more) = self.headers {
            headers.extend(*more);
        }
        if let Some(is_retryable) = self.is_retryable {
            let advice = if is_retryable { "true" } else { "false" };
            headers.insert("x-should-retry", HeaderValue::from_static(advice));
        }
        response
    }
}

/// A request that the server rejects without calling the model.
impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        let status = match refused.status {
            // OpenAI has one status for both.
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        let type_ = if status.is_server_error() {
            SERVER
        } else {
            INVALID
        };
        let mut failure = Self::new(status, type_, &refused.code, refused.message);
        failure.param = refused.field.map(String::into_boxed_str);
        // Another instance can take the request at once; this one will not recover.
        if status == StatusCode::SERVICE_UNAVAILABLE {
            failure.retry_after = Some(Duration::from_secs(1));
        }
        failure
    }
}

/// The status of a request that its client or the host has cancelled.
fn closed_request() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}

/// Whether clients repeat a request with this status: those of OpenAI, and others that ignore
/// `x-should-retry`.
fn is_repeated(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 409 | 425 | 429) || status.is_server_error()
}

/// The headers in which OpenAI reports rate limits.
fn limit_headers(limits: &RateLimits, now: SystemTime) -> HeaderMap {
    let requests = [
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
    ];
    let tokens = [
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    ];
    let mut headers = HeaderMap::new();
    for (names, allowance) in [(requests, limits.requests), (tokens, limits.tokens)] {
        let reset_after = allowance.reset.and_then(|at| {
            let after = at.duration_since(now).unwrap_or_default();
            HeaderValue::from_str(&format!("{}ms", after.as_millis())).ok()
        });
        let values = [
            allowance.limit.map(HeaderValue::from),
            allowance.remaining.map(HeaderValue::from),
            reset_after,
        ];
        for (name, value) in names.into_iter().zip(values) {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        }
    }
    headers
}

fn put_retry_after(headers: &mut HeaderMap, after: Duration) {
    let part = u64::from(after.subsec_nanos() > 0);
    let seconds = after.as_secs().saturating_add(part);
    headers.insert(header::RETRY_AFTER, seconds.into());
    let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    headers.insert("retry-after-ms", millis.into());
}
