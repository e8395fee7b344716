//! What one provider's API is to the [`Model`](crate::Model) that speaks it.

use crate::{ApiKey, Capabilities, Limits, Timeouts, Unsupported, failure::Origin, scrub::Secrets};
use concentric_core::{ChatRequest, Context, Error, ErrorKind, Event, Head, Str};
use http::{HeaderValue, Uri, uri::Authority};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::VecDeque, fmt, net::IpAddr, sync::Arc};

/// An API: how a request is written, and how an answer is read. Not for others to implement.
#[doc(hidden)]
pub trait Api: Clone + fmt::Debug + Send + Sync + Unpin + 'static {
    type Decoder: Decoder;

    /// The provider's name (`gen_ai.provider.name`).
    fn provider(&self) -> &Str;

    /// The header that the key goes into, and what stands before it there.
    fn key_header(&self) -> (&str, &str);

    /// Headers that each request has.
    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// The media types that an answer may have, the likeliest first.
    fn accepts(&self, streaming: bool) -> &'static str {
        match streaming {
            // Both, since servers answer as they like.
            true => "text/event-stream, application/json",
            false => "application/json",
        }
    }

    /// How long the service may take.
    fn timeouts(&self) -> Timeouts {
        Timeouts::default()
    }

    /// What `model` can do, as far as the API says.
    fn capabilities(&self, model: &str) -> Capabilities;

    /// The tools that the service defines itself, of which it is told with each call.
    fn tools(&self) -> &[Value] {
        &[]
    }

    /// Adds what the service will not do of a call for reasons of its own.
    fn check(&self, call: &Call<'_>, unsupported: &mut Vec<Unsupported>) {
        let _ = (call, unsupported);
    }

    /// Where a call goes: `base` is the address that the layer was told.
    ///
    /// # Errors
    ///
    /// It can't be made of what was asked.
    fn endpoint(&self, base: &Base, call: &Call<'_>) -> Result<Uri, Error>;

    /// The body of a call.
    ///
    /// # Errors
    ///
    /// The service takes no such request.
    fn encode(&self, call: &Call<'_>) -> Result<Vec<u8>, Error>;

    /// What reads the answer to a call.
    fn decoder(&self, call: &Call<'_>) -> Self::Decoder;
}

/// A call of a model, to be written.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub(crate) request: &'a ChatRequest,
    /// The model that is asked.
    pub(crate) model: &'a Str,
    /// Whether the answer is to be a stream.
    pub(crate) streaming: bool,
}

impl Call<'_> {
    /// Writes `body` as JSON.
    ///
    /// # Errors
    ///
    /// It can't be.
    pub(crate) fn write(&self, body: &impl Serialize) -> Result<Vec<u8>, Error> {
        // About what a short request takes.
        let mut json = Vec::with_capacity(1024);
        serde_json::to_writer(&mut json, body).map_err(|error| {
            Error::new(
                ErrorKind::InvalidRequest,
                "the request can't be written as JSON",
            )
            .with_source(error)
        })?;
        Ok(json)
    }
}

/// Reads one answer. Not for others to implement.
#[doc(hidden)]
pub trait Decoder: fmt::Debug + Send + Sync + Unpin {
    /// One message of the service's: an event of a stream, or a whole answer.
    type Chunk<'a>: Deserialize<'a>;

    /// Takes in a chunk.
    ///
    /// # Errors
    ///
    /// The service says that it failed, or contradicts itself.
    fn take(
        &mut self,
        chunk: Self::Chunk<'_>,
        framing: Framing,
        answer: &mut Answer,
    ) -> Result<(), Error>;

    /// Whether the service has said how the answer ends, so that nothing of it can be missing.
    fn is_whole(&self) -> bool;

    /// Whether nothing that comes can still be part of the answer, so that nobody need wait for it.
    fn is_over(&self) -> bool {
        false
    }

    /// Nothing more will come of an answer that is whole: emits what was held back, and the end.
    ///
    /// # Errors
    ///
    /// What came makes no answer.
    fn close(&mut self, answer: &mut Answer) -> Result<(), Error>;
}

/// Where a chunk comes from.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// An event of a stream.
    Event,
    /// An event that the server calls an error.
    ErrorEvent,
    /// A body of JSON.
    Json,
}

/// An answer as far as it was read.
#[doc(hidden)]
#[derive(Debug)]
pub struct Answer {
    pub(crate) context: Context,
    pub(crate) head: Head,
    /// What nobody has taken yet.
    pub(crate) events: VecDeque<Event>,
    pub(crate) provider: Str,
    pub(crate) key: Option<ApiKey>,
    /// The values of other headers that count as secrets.
    pub(crate) secrets: Arc<[HeaderValue]>,
    pub(crate) limits: Limits,
    /// A chunk changed the answer; see [`changed`](Self::changed).
    pub(crate) changed: bool,
}

impl Answer {
    pub(crate) fn origin(&self) -> Origin<'_> {
        Origin {
            provider: &self.provider,
            secrets: Secrets {
                key: self.key.as_ref(),
                headers: &self.secrets,
            },
            request_id: self.head.request_id.as_ref(),
            retry_after: self.limits.retry_after,
        }
    }

    /// Says something.
    #[inline]
    pub(crate) fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Says that a chunk is part of the answer though nothing is emitted for it, so that it is not
    /// taken for a sign of life ([`Timeouts::progress`]).
    #[inline]
    pub(crate) fn changed(&mut self) {
        self.changed = true;
    }
}

/// The address of a service: an absolute HTTP URL, whose path those of its endpoints follow, and
/// whose query they keep (Azure's `api-version`).
#[doc(hidden)]
pub struct Base {
    path: String,
    query: Option<String>,
}

impl Base {
    /// # Errors
    ///
    /// What is wrong with `url`, without its text.
    pub(crate) fn new(url: &str) -> Result<Self, &'static str> {
        let url = url.split_once('#').map_or(url, |(url, _)| url);
        let (path, query) = match url.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (url, None),
        };
        let base = Self {
            path: path.trim_end_matches('/').to_owned(),
            query,
        };
        let no_url = "the base URL is not an absolute HTTP URL";
        let uri: Uri = base.path.parse().map_err(|_| no_url)?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let authority = uri.authority().filter(|it| is_http && has_address(it));
        // A client does not send it, and logs it with the address.
        match authority.ok_or(no_url)?.as_str().contains('@') {
            true => Err("the base URL contains user information; send credentials in a header"),
            false => Ok(base),
        }
    }

    /// The values of its query that may be secrets: all but that of `api-version`.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        let pairs = self.query.iter().flat_map(|query| query.split('&'));
        let pairs = pairs.filter_map(|pair| pair.split_once('='));
        pairs.filter_map(|(name, value)| (name != "api-version").then_some(value))
    }

    /// The host that the key goes to without TLS, if it is not this machine.
    pub(crate) fn remote_without_tls(&self) -> Option<String> {
        let uri: Uri = self.path.parse().ok()?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("http"))?;
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let is_local = match name.parse::<IpAddr>() {
            Ok(ip) => ip.to_canonical().is_loopback(),
            Err(_) => name == "localhost" || name.ends_with(".localhost"),
        };
        (!is_local).then(|| host.to_owned())
    }

    /// The address of `endpoint`, which begins with a slash and may have a query of its own.
    ///
    /// # Errors
    ///
    /// It makes no address.
    pub(crate) fn join(&self, endpoint: &str) -> Result<Uri, Error> {
        let mut uri = format!("{}{endpoint}", self.path);
        if let Some(query) = &self.query {
            uri.push(if endpoint.contains('?') { '&' } else { '?' });
            uri.push_str(query);
        }
        uri.parse()
            .map_err(|_| Error::new(ErrorKind::Configuration, "the endpoint is not a URL"))
    }
}

/// Whether an authority names a host, and no port but one that can be connected to.
fn has_address(authority: &Authority) -> bool {
    let host = authority.host();
    let address = authority.as_str();
    let address = address.rsplit_once('@').map_or(address, |(_, it)| it);
    let port = address.strip_prefix(host).unwrap_or_default();
    let port_fits = match port.strip_prefix(':') {
        None | Some("") => true,
        Some(port) => port.parse::<u16>().is_ok_and(|port| port > 0),
    };
    !host.is_empty() && port_fits
}

// It may hold secrets.
impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Base").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::Base;

    #[test]
    fn the_endpoint_follows_the_base_url() {
        let cases = [
            ("https://a.test/v1", Some("https://a.test/v1/chat")),
            ("https://a.test/v1/", Some("https://a.test/v1/chat")),
            ("http://a.test:8080", Some("http://a.test:8080/chat")),
            ("https://a.test/d?v=1#x", Some("https://a.test/d/chat?v=1")),
            ("a.test/v1", None),
            ("file:///v1", None),
            ("http://:80", None),
            ("http://", None),
            ("http://a.test:99999/v1", None),
            ("http://a.test:0/v1", None),
            ("http://a.test:65536", None),
            ("http://u:p@a.test", None),
            ("http://u@a.test:80", None),
            ("http://a.test:65535", Some("http://a.test:65535/chat")),
            ("http://[::1]:80/v1", Some("http://[::1]:80/v1/chat")),
            ("http://[::1]:99999", None),
            ("http://a.test:/v1", Some("http://a.test:/v1/chat")),
            ("", None),
        ];
        for (base, expected) in cases {
            let uri = Base::new(base)
                .ok()
                .and_then(|base| base.join("/chat").ok());
            assert_eq!(
                uri.map(|uri| uri.to_string()).as_deref(),
                expected,
                "{base}"
            );
        }
        let base = Base::new("https://a.test?v=1").expect("a base");
        let uri = base.join("/m:stream?alt=sse").expect("an endpoint");
        assert_eq!(uri, "https://a.test/m:stream?alt=sse&v=1");
    }
}
