//! Single requests over HTTP, within the origin of their URL.

use bytes::Bytes;
use concentric_core::{Error, ErrorKind};
use concentric_providers::client::{Body, HttpClient};
use futures_util::future::poll_fn;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use rmcp::transport::streamable_http_client::StreamableHttpError;
use secrecy::{ExposeSecret, SecretString};
use tower_service::Service;

pub(crate) type Failed = StreamableHttpError<Error>;

/// The redirects that are followed, all to the same origin.
pub(crate) const MAX_REDIRECTS: usize = 3;

/// Sends a request. Redirects are followed only within the origin, since they would forward the
/// headers and the body.
pub(crate) async fn send_within_origin(
    client: &HttpClient,
    method: Method,
    uri: &str,
    headers: HeaderMap,
    body: Bytes,
    redirects: usize,
) -> Result<Response<Body>, Failed> {
    let mut uri: Uri = uri.parse().map_err(|_| failed("the URL is invalid"))?;
    for _ in 0..=redirects {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = headers.clone();
        let mut client = client.clone();
        let ready = poll_fn(|cx| client.poll_ready(cx)).await;
        ready.map_err(Failed::Client)?;
        let response = client.call(request).await.map_err(Failed::Client)?;
        if !matches!(
            response.status(),
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
        ) {
            return Ok(response);
        }
        uri = redirected(&uri, response.headers()).ok_or_else(|| {
            failed("the server redirects to another origin, which is not followed")
        })?;
    }
    Err(failed("the server redirects too often"))
}

/// The header of a bearer token.
pub(crate) fn bearer_header(secret: &SecretString) -> Result<HeaderValue, Error> {
    let value = HeaderValue::try_from(format!("Bearer {}", secret.expose_secret()));
    // The source is dropped, since it must not expose the value.
    let mut value = value.map_err(|_| {
        let what = "the bearer token contains a character that is not allowed in a header";
        Error::new(ErrorKind::Configuration, what)
    })?;
    value.set_sensitive(true);
    Ok(value)
}

pub(crate) fn failed(what: &'static str) -> Failed {
    Failed::Client(Error::new(ErrorKind::Protocol, what))
}

/// The target of a redirect, if it has the same origin.
fn redirected(from: &Uri, headers: &HeaderMap) -> Option<Uri> {
    let to = headers.get(header::LOCATION)?.to_str().ok()?;
    let mut parts = from.clone().into_parts();
    if to.starts_with('/') && !to.starts_with("//") {
        parts.path_and_query = Some(to.parse().ok()?);
        return Uri::from_parts(parts).ok();
    }
    let to: Uri = to.parse().ok()?;
    let authority = |uri: &Uri| uri.authority().map(|it| it.as_str().to_ascii_lowercase());
    let is_same = to.scheme() == from.scheme() && authority(&to) == authority(from);
    (is_same && to.authority().is_some()).then_some(to)
}

/// The media type of a response, without its parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

/// Reads a body of at most `max` bytes.
pub(crate) async fn read(response: Response<Body>, max: usize) -> Result<Bytes, Failed> {
    match Limited::new(response.into_body(), max).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(match error.downcast::<Error>() {
            Ok(error) => Failed::Client(*error),
            Err(_) => Failed::ResponseBodyTooLarge { max_size: max },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(location: &str) -> Option<String> {
        let from = Uri::from_static("https://example.com/mcp");
        let mut headers = HeaderMap::new();
        headers.insert(header::LOCATION, location.parse().expect("a value"));
        redirected(&from, &headers).map(|uri| uri.to_string())
    }

    #[test]
    fn redirects_stay_within_the_origin() {
        assert_eq!(to("/v2/mcp").as_deref(), Some("https://example.com/v2/mcp"));
        let same = "https://EXAMPLE.com/other";
        assert!(to(same).is_some());
        for other in [
            "http://example.com/mcp",
            "https://example.com:8443/mcp",
            "https://user@example.com/mcp",
            "https://evil.example/mcp",
            "//evil.example/mcp",
            "mcp",
        ] {
            assert_eq!(to(other), None, "{other}");
        }
    }
}
