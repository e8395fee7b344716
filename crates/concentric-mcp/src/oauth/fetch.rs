//! Requests for metadata and tokens.

use crate::request::{Failed, MAX_REDIRECTS, media_type, read, send_within_origin};
use bytes::Bytes;
use concentric_core::{Error, ErrorKind};
use concentric_providers::client::HttpClient;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;
use tokio::time::timeout;
use url::Url;

/// The time of a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest response (bytes).
const MAX_RESPONSE: usize = 256 << 10;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");

/// A client with the rules of the MCP server.
#[derive(Clone)]
pub(super) struct Fetch {
    pub(super) client: HttpClient,
    pub(super) allow_private: bool,
}

impl Fetch {
    /// Checks a URL of a server or its metadata.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Protocol`]: it is not absolute, has user information or a fragment, or has no TLS
    /// though private addresses are not allowed.
    pub(super) fn check(&self, text: &str) -> Result<Url, Error> {
        let url = Url::parse(text).ok().filter(|url| {
            let is_web = url.scheme() == "https" || (url.scheme() == "http" && self.allow_private);
            let has_user = !url.username().is_empty() || url.password().is_some();
            is_web && !has_user && url.host().is_some() && url.fragment().is_none()
        });
        url.ok_or_else(|| protocol("the metadata of the server has a URL that is not allowed"))
    }

    /// Gets a document; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or fails.
    pub(super) async fn get<T>(&self, url: &str) -> Result<Option<T>, Error>
    where
        T: DeserializeOwned,
    {
        self.check(url)?;
        let headers = HeaderMap::from_iter([(header::ACCEPT, JSON)]);
        let (status, body) = self
            .send(Method::GET, url, headers, Bytes::new(), MAX_REDIRECTS)
            .await?;
        if status.is_server_error() {
            let what = format!(
                "a request for metadata failed with status {}",
                status.as_u16()
            );
            return Err(Error::new(ErrorKind::Server, what).with_status(status.as_u16()));
        }
        let body = body.filter(|_| status.is_success());
        Ok(body.and_then(|body| serde_json::from_value(body).ok()))
    }

    /// Posts a JSON document, and returns the JSON response.
    pub(super) async fn post_json(
        &self,
        url: &str,
        document: &Value,
    ) -> Result<(StatusCode, Value), Error> {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, JSON)]);
        self.post(url, headers, document.to_string()).await
    }

    /// Posts a form, and returns the JSON response.
    pub(super) async fn post_form(
        &self,
        url: &str,
        authorization: Option<HeaderValue>,
        form: String,
    ) -> Result<(StatusCode, Value), Error> {
        let mut headers = HeaderMap::from_iter([(header::CONTENT_TYPE, FORM)]);
        if let Some(authorization) = authorization {
            headers.insert(header::AUTHORIZATION, authorization);
        }
        self.post(url, headers, form).await
    }

    async fn post(
        &self,
        url: &str,
        mut headers: HeaderMap,
        body: String,
    ) -> Result<(StatusCode, Value), Error> {
        self.check(url)?;
        headers.insert(header::ACCEPT, JSON);
        // A redirect would forward the secrets.
        let (status, body) = self
            .send(Method::POST, url, headers, body.into(), 0)
            .await?;
        Ok((status, body.unwrap_or_default()))
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
        redirects: usize,
    ) -> Result<(StatusCode, Option<Value>), Error> {
        let sending = async {
            let sent = send_within_origin(&self.client, method, url, headers, body, redirects);
            let response = sent.await.map_err(in_transport)?;
            let status = response.status();
            let is_json = media_type(response.headers()).ends_with("json");
            let body = read(response, MAX_RESPONSE).await.map_err(in_transport)?;
            let body = serde_json::from_slice(&body).ok().filter(|_| is_json);
            Ok((status, body))
        };
        timeout(TIMEOUT, sending).await.unwrap_or_else(|_| {
            let what = "a request to an authorization server took too long";
            Err(Error::new(ErrorKind::Timeout, what))
        })
    }
}

fn in_transport(failed: Failed) -> Error {
    match failed {
        Failed::Client(error) => error,
        other => protocol("a response of an authorization server is invalid").with_source(other),
    }
}

pub(super) fn protocol(what: &'static str) -> Error {
    Error::new(ErrorKind::Protocol, what)
}
