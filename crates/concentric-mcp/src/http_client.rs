//! Servers behind HTTP: the requests of the transport, with limits on what the server sends.

#[cfg(feature = "oauth")]
use crate::oauth::Authorizer;
use crate::{
    request::{Failed, MAX_REDIRECTS, bearer_header, failed, media_type, read, send_within_origin},
    spacing::Spacing,
};
use bytes::Bytes;
use concentric_core::{Error, ErrorKind};
use concentric_providers::client::{Body, HttpClient};
use futures_util::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyDataStream;
use rmcp::{
    model::{ClientJsonRpcMessage, ClientRequest, ErrorData, JsonRpcMessage, ServerJsonRpcMessage},
    transport::streamable_http_client::{
        HttpStatusError, SseError, StreamableHttpClient, StreamableHttpPostResponse,
        StreamableHttpResponseLimits,
    },
};
use secrecy::SecretString;
use sse_stream::{Sse, SseStream};
use std::{
    collections::HashMap,
    error::Error as StdError,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const EVENT_STREAM: &str = "text/event-stream";
const JSON: &str = "application/json";

/// An address of a server, and the secret that it requires.
#[derive(Clone)]
pub(crate) struct HttpServer {
    client: HttpClient,
    bearer: Option<HeaderValue>,
    #[cfg(feature = "oauth")]
    authorizer: Option<Arc<Authorizer>>,
    max_event: usize,
    spacing: Arc<Mutex<Spacing>>,
    /// Whether the server has answered the first request for the event stream of the session.
    has_stream: watch::Sender<bool>,
    stream_due: Arc<OnceLock<Instant>>,
}

/// The time that the first call in a session waits for this answer, which some servers send with the
/// first event only.
const STREAM_TIMEOUT: Duration = Duration::from_secs(3);

impl HttpServer {
    pub(crate) fn new(
        client: HttpClient,
        bearer: Option<&SecretString>,
        max_event: usize,
    ) -> Result<Self, Error> {
        let bearer = bearer.map(bearer_header).transpose()?;
        Ok(Self {
            client,
            bearer,
            #[cfg(feature = "oauth")]
            authorizer: None,
            max_event,
            spacing: Arc::default(),
            has_stream: watch::Sender::new(false),
            stream_due: Arc::default(),
        })
    }

    /// Sends the tokens of an authorizer instead of the bearer token.
    #[cfg(feature = "oauth")]
    pub(crate) fn authorized_by(mut self, authorizer: Authorizer) -> Self {
        self.authorizer = Some(Arc::new(authorizer));
        self
    }

    /// Waits until the server can send what belongs to no response. Otherwise it may discard a question
    /// about a call, which then never ends.
    async fn wait_for_stream(&self) {
        let mut has_stream = self.has_stream.subscribe();
        let answered = has_stream.wait_for(|has_stream| *has_stream);
        // One for all calls, each of which may have less time.
        let due = self
            .stream_due
            .get_or_init(|| Instant::now() + STREAM_TIMEOUT);
        if timeout_at(*due, answered).await.is_err() {
            self.has_stream.send_replace(true);
        }
    }

    /// Sends a request with the secret.
    async fn send(
        &self,
        method: Method,
        uri: &str,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Body>, Failed> {
        #[cfg(feature = "oauth")]
        if let Some(authorizer) = &self.authorizer {
            return authorizer
                .send(&self.client, method, uri, headers, body)
                .await;
        }
        if let Some(bearer) = &self.bearer {
            headers.insert(header::AUTHORIZATION, bearer.clone());
        }
        send_within_origin(&self.client, method, uri, headers, body, MAX_REDIRECTS).await
    }
}

/// The error of this client in an error of the transport.
pub(crate) fn transport_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Failed> {
    let mut sources = std::iter::successors(Some(error), |&error| error.source());
    sources.find_map(|it| it.downcast_ref())
}

fn headers_with(
    accept: &'static str,
    session: Option<&str>,
    custom: HashMap<HeaderName, HeaderValue>,
) -> Result<HeaderMap, Failed> {
    let mut headers: HeaderMap = custom.into_iter().collect();
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    if let Some(session) = session {
        let session = session
            .parse()
            .map_err(|_| failed("the session id is invalid"))?;
        headers.insert(SESSION_ID, session);
    }
    Ok(headers)
}

fn status_error(response: &Response<Body>) -> Failed {
    let retry_after = response.headers().get(header::RETRY_AFTER);
    let retry_after = retry_after
        .and_then(|it| it.to_str().ok())
        .map(str::to_owned);
    match response.status() {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let status = response.status().as_u16();
            let what = format!("the server refused the request with status {status}");
            Failed::Client(Error::new(ErrorKind::Authentication, what).with_status(status))
        }
        status => HttpStatusError::new(status.as_u16(), retry_after).into(),
    }
}

impl StreamableHttpClient for HttpServer {
    type Error = Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let mut limits = StreamableHttpResponseLimits::default();
        limits.max_sse_event_size = self.max_event;
        limits.max_json_response_size = self.max_event;
        self.post_message_with_response_limits(uri, message, session, auth, headers, limits)
            .await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let is_call = matches!(
            &message,
            JsonRpcMessage::Request(request)
                if matches!(request.request, ClientRequest::CallToolRequest(_))
        );
        if is_call && session.is_some() {
            self.wait_for_stream().await;
        }
        let accept = "text/event-stream, application/json";
        let mut headers = headers_with(accept, session.as_deref(), headers)?;
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        let body = serde_json::to_vec(&message)?;
        let response = self.send(Method::POST, &uri, headers, body.into()).await?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session.is_some() {
            return Err(Failed::SessionExpired);
        }
        let kind = media_type(response.headers());
        let new_session = response.headers().get(SESSION_ID);
        let new_session = new_session
            .and_then(|it| it.to_str().ok())
            .map(str::to_owned);
        let awaits_response = matches!(message, JsonRpcMessage::Request(_));
        if !status.is_success() {
            let is_client_error = status.is_client_error()
                && !matches!(
                    status,
                    StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::REQUEST_TIMEOUT
                );
            if !is_client_error {
                return Err(status_error(&response));
            }
            let error = status_error(&response);
            let is_json = kind == JSON;
            let body = read(response, limits.max_json_response_size).await;
            let parsed = body.ok().filter(|_| is_json);
            let parsed = parsed.and_then(|body| serde_json::from_slice(&body).ok());
            return rejection(&message, session.is_some(), status, parsed)
                .map(|message| StreamableHttpPostResponse::Json(message, new_session))
                .ok_or(error);
        }
        match kind.as_str() {
            EVENT_STREAM => {
                let body = BodyDataStream::new(response.into_body());
                let events = events(body, limits.max_sse_event_size);
                Ok(StreamableHttpPostResponse::Sse(events, new_session))
            }
            JSON => {
                let body = read(response, limits.max_json_response_size).await?;
                match serde_json::from_slice(&body) {
                    Ok(message) => Ok(StreamableHttpPostResponse::Json(message, new_session)),
                    Err(_) if !awaits_response => Ok(StreamableHttpPostResponse::Accepted),
                    Err(error) => Err(error.into()),
                }
            }
            _ if !awaits_response => Ok(StreamableHttpPostResponse::Accepted),
            _ => Err(Failed::UnexpectedContentType(Some(kind))),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failed> {
        let headers = headers_with(JSON, Some(&session), headers)?;
        let response = self
            .send(Method::DELETE, &uri, headers, Bytes::new())
            .await?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            _ => Err(status_error(&response)),
        }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        let mut headers = headers_with(EVENT_STREAM, session.as_deref(), headers)?;
        if let Some(id) = last_event {
            let id = id.parse().map_err(|_| failed("the event id is invalid"))?;
            headers.insert(LAST_EVENT_ID, id);
        }
        let at = {
            let mut spacing = self.spacing.lock().unwrap_or_else(PoisonError::into_inner);
            spacing.next(Instant::now())
        };
        sleep_until(at).await;
        let response = self.send(Method::GET, &uri, headers, Bytes::new()).await;
        self.has_stream.send_replace(true);
        let response = response?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Err(Failed::ServerDoesNotSupportSse),
            status if !status.is_success() => Err(status_error(&response)),
            _ => match media_type(response.headers()).as_str() {
                EVENT_STREAM => {
                    let body = BodyDataStream::new(response.into_body());
                    Ok(events(body, self.max_event))
                }
                other => Err(Failed::UnexpectedContentType(Some(other.to_owned()))),
            },
        }
    }
}

/// The message that stands for a rejected request: the error of its body, if it has one. A server
/// that does not know `server/discover` may reject it in other ways, which is also an answer.
fn rejection(
    message: &ClientJsonRpcMessage,
    in_session: bool,
    status: StatusCode,
    body: Option<ServerJsonRpcMessage>,
) -> Option<ServerJsonRpcMessage> {
    let JsonRpcMessage::Request(request) = message else {
        return None;
    };
    let error = match body {
        Some(JsonRpcMessage::Error(error)) => Some(error.error),
        _ => None,
    };
    let is_discovery = matches!(request.request, ClientRequest::DiscoverRequest(_));
    let error = match error {
        None if is_discovery && !in_session => {
            let what = format!("`server/discover` was rejected with status {status}");
            ErrorData::invalid_request(what, None)
        }
        error => error?,
    };
    Some(ServerJsonRpcMessage::error(error, Some(request.id.clone())))
}

/// The events of a body, each of which may have `max` bytes.
fn events<S>(bytes: S, max: usize) -> BoxStream<'static, Result<Sse, SseError>>
where
    S: Stream<Item = Result<Bytes, Error>> + Send + 'static,
{
    let events = SseStream::from_bytes_stream(limited(bytes, max));
    let clamped = events.map_ok(|mut event| {
        event.retry = event.retry.map(|ms| ms.clamp(MIN_RETRY_MS, MAX_RETRY_MS));
        event
    });
    clamped.boxed()
}

/// The bounds of the time that a server sets from the end of a stream to the next request.
const MIN_RETRY_MS: u64 = 1_000;
const MAX_RETRY_MS: u64 = 60_000;

/// Fails once more than `max` bytes have passed without the empty line that ends an event.
fn limited<S>(bytes: S, max: usize) -> impl Stream<Item = Result<Bytes, Error>>
where
    S: Stream<Item = Result<Bytes, Error>>,
{
    let (mut length, mut at_line_start) = (0_usize, true);
    bytes.and_then(move |chunk| {
        let mut is_too_long = false;
        for byte in &chunk {
            length += 1;
            is_too_long |= length > max;
            match byte {
                b'\n' if at_line_start => length = 0,
                b'\n' => at_line_start = true,
                b'\r' => {}
                _ => at_line_start = false,
            }
        }
        std::future::ready(match is_too_long {
            true => {
                let what = format!("an event of the server has more than {max} bytes");
                Err(Error::new(ErrorKind::TooLarge, what))
            }
            false => Ok(chunk),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    #[tokio::test]
    async fn the_time_to_the_next_request_has_bounds() {
        for (sent, expected) in [("0", 1_000), ("5000", 5_000), ("99999999999", 60_000)] {
            let text = Bytes::from(format!("retry: {sent}\ndata: x\n\n"));
            let mut events = events(stream::iter([Ok(text)]), 1024);
            let event = events.next().await.expect("an event").expect("valid");
            assert_eq!(event.retry, Some(expected));
        }
    }

    #[tokio::test]
    async fn an_event_over_the_limit_ends_the_stream() {
        let chunks = |parts: &[&'static str]| {
            let parts: Vec<_> = parts.iter().map(|part| Ok(Bytes::from(*part))).collect();
            limited(stream::iter(parts), 12).try_collect::<Vec<_>>()
        };
        assert!(
            chunks(&["data: 1\n\nda", "ta: 2\r\n\r\n", "data: 3\n\n"])
                .await
                .is_ok()
        );
        assert!(chunks(&["data: 12345", "67890\n\n"]).await.is_err());
        assert!(chunks(&["data: 12345", "67", "890123"]).await.is_err());
    }
}
