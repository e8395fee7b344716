//! A client of the handlers, through Restate's ingress.

use crate::wire::{ReplyInput, RunInput, RunOutput, ThreadState};
use bytes::Bytes;
use concentric_core::{Error, ErrorKind, Str};
use http::{Method, Request, Uri, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt::Write, time::Duration};

/// The limit of a response.
const MAX_RESPONSE: usize = 64 << 20;

/// A client of the agents of a Restate server.
///
/// The address is that of the server's ingress. It is not authenticated, and must be reachable by trusted processes
/// only.
#[derive(Clone)]
pub struct RestateClient {
    ingress: Str,
    service: Str,
    http: Client<HttpConnector, Full<Bytes>>,
    timeout: Duration,
}

impl RestateClient {
    /// Creates a client of the object `service` behind `ingress`, such as `http://127.0.0.1:8080`.
    pub fn new(ingress: impl Into<Str>, service: impl Into<Str>) -> Self {
        let ingress: Str = ingress.into();
        Self {
            ingress: ingress.trim_end_matches('/').into(),
            service: service.into(),
            http: Client::builder(TokioExecutor::new()).build_http(),
            timeout: Duration::from_secs(60 * 60),
        }
    }

    /// Sets the time limit of a request; the default is one hour. The invocation continues without its client.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs a turn of a conversation, and waits for its end, or for its interrupts with
    /// [`Waits::Return`](crate::Waits::Return). Calls with the same `key` are one run, and have its
    /// result; after a lost connection, call it again.
    ///
    /// # Errors
    ///
    /// The server is not reachable, or the invocation has failed without a result.
    pub async fn run(&self, thread: &str, key: &str, input: &RunInput) -> Result<RunOutput, Error> {
        self.call(thread, "run", Some(key), Some(input)).await
    }

    /// Starts a turn of a conversation, without waiting for it. [`run`](Self::run) with the same `key` waits for its
    /// result.
    ///
    /// # Errors
    ///
    /// The server is not reachable.
    pub async fn start(&self, thread: &str, key: &str, input: &RunInput) -> Result<(), Error> {
        let sent: serde_json::Value = self
            .call(thread, "run/send", Some(key), Some(input))
            .await?;
        drop(sent);
        Ok(())
    }

    /// Replies to the run of a conversation that waits, and waits for its end or its next interrupts. Calls with the
    /// same `key` are one reply.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub async fn reply(
        &self,
        thread: &str,
        key: &str,
        input: &ReplyInput,
    ) -> Result<RunOutput, Error> {
        self.call(thread, "reply", Some(key), Some(input)).await
    }

    /// Like [`reply`](Self::reply), without waiting for the end.
    ///
    /// # Errors
    ///
    /// The server is not reachable.
    pub async fn start_reply(
        &self,
        thread: &str,
        key: &str,
        input: &ReplyInput,
    ) -> Result<(), Error> {
        let sent: serde_json::Value = self
            .call(thread, "reply/send", Some(key), Some(input))
            .await?;
        drop(sent);
        Ok(())
    }

    /// Cancels the run of a conversation; whether an invocation drove one, or awaited its replies.
    ///
    /// A step of the process that handles the request stops at once, a step of another process at its end.
    ///
    /// # Errors
    ///
    /// The server is not reachable.
    pub async fn cancel(&self, thread: &str) -> Result<bool, Error> {
        self.call(thread, "cancel", None, None::<&()>).await
    }

    /// The state of a conversation.
    ///
    /// # Errors
    ///
    /// The server is not reachable.
    pub async fn state(&self, thread: &str) -> Result<ThreadState, Error> {
        self.call(thread, "state", None, None::<&()>).await
    }

    async fn call<T>(
        &self,
        thread: &str,
        handler: &str,
        key: Option<&str>,
        input: Option<&impl Serialize>,
    ) -> Result<T, Error>
    where
        T: DeserializeOwned,
    {
        let Self {
            ingress, service, ..
        } = self;
        let uri = format!("{ingress}/{service}/{}/{handler}", escaped(thread));
        post(&self.http, &uri, key, input, self.timeout).await
    }
}

/// Registers the endpoint at `service`, such as `http://127.0.0.1:9080`, with the server whose admin address is
/// `admin`, such as `http://127.0.0.1:9070`.
///
/// # Errors
///
/// The server is not reachable, or rejects the endpoint.
pub async fn register(admin: &str, service: &str) -> Result<(), Error> {
    let http = Client::builder(TokioExecutor::new()).build_http();
    let uri = format!("{}/deployments", admin.trim_end_matches('/'));
    let body = serde_json::json!({ "uri": service });
    let limit = Duration::from_secs(30);
    let registered: serde_json::Value = post(&http, &uri, None, Some(&body), limit).await?;
    drop(registered);
    Ok(())
}

async fn post<T>(
    http: &Client<HttpConnector, Full<Bytes>>,
    uri: &str,
    key: Option<&str>,
    input: Option<&impl Serialize>,
    timeout: Duration,
) -> Result<T, Error>
where
    T: DeserializeOwned,
{
    let uri: Uri = uri.parse().map_err(|error| invalid("the address", error))?;
    let mut request = Request::builder().method(Method::POST).uri(uri);
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let body = match input {
        Some(input) => {
            request = request.header(CONTENT_TYPE, "application/json");
            serde_json::to_vec(input).map_err(|error| invalid("the input", error))?
        }
        None => Vec::new(),
    };
    let request = request
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| invalid("the request", error))?;
    let response = async {
        let response = http.request(request).await.map_err(|error| {
            Error::new(ErrorKind::Connection, "the Restate server is not reachable")
                .with_source(error)
        })?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE);
        let body = body.collect().await.map_err(|error| {
            Error::new(
                ErrorKind::Connection,
                "the answer of the Restate server was lost",
            )
            .with_source(error)
        })?;
        Ok::<_, Error>((status, body.to_bytes()))
    };
    let (status, body) = tokio::time::timeout(timeout, response)
        .await
        .map_err(|_| {
            Error::new(
                ErrorKind::Timeout,
                "the Restate server did not answer in time",
            )
        })??;
    if !status.is_success() {
        let kind = ErrorKind::of_status(status.as_u16());
        let why = format!("the Restate server answered with the status {status}");
        return Err(Error::new(kind, why).with_status(status.as_u16()));
    }
    serde_json::from_slice(&body).map_err(|error| {
        Error::new(
            ErrorKind::Protocol,
            "the answer of the Restate server cannot be read",
        )
        .with_source(error)
    })
}

fn invalid(what: &str, error: impl Into<concentric_core::BoxError>) -> Error {
    Error::new(ErrorKind::InvalidRequest, format!("{what} is invalid")).with_source(error)
}

/// The id of a conversation as a segment of a path.
fn escaped(id: &str) -> String {
    let mut path = String::with_capacity(id.len());
    for byte in id.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => path.push(byte.into()),
            _ => {
                let _ = write!(path, "%{byte:02X}");
            }
        }
    }
    path
}

concentric_core::opaque_debug!(RestateClient);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_one_segment_of_the_path() {
        assert_eq!(escaped("a-1/../b ?ö."), "a-1%2F%2E%2E%2Fb%20%3F%C3%B6%2E");
    }
}
