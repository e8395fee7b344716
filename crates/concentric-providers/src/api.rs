//! The interface between a provider's API and its [`Model`](crate::Model).

use crate::{
    ApiKey, Capabilities, Limits, Timeouts, Unsupported,
    failure::{Origin, has_error},
    scrub::Secrets,
};
use concentric_core::{
    ChatRequest, Context, Error, ErrorKind, Event, Part, PartEnd, PartKind, ProviderData,
    ResponseHead, Str, Usage,
};
use http::{HeaderValue, Uri, uri::Authority};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{borrow::Cow, collections::VecDeque, fmt, net::IpAddr, sync::Arc};

/// A provider's API: encodes requests and creates decoders. Not for implementation outside this
/// crate.
#[doc(hidden)]
pub trait Api: Clone + fmt::Debug + Send + Sync + Unpin + 'static {
    type Decoder: Decoder;

    /// The provider's name (`gen_ai.provider.name`).
    fn provider(&self) -> &Str;

    /// The header for the key: `authorization`, with the prefix `Bearer`, or another one without a
    /// prefix.
    fn key_header(&self) -> &str;

    /// Headers of every request.
    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// The accepted media types of a response, the most likely first.
    fn accepts(&self, streaming: bool) -> &'static str {
        match streaming {
            // Both, since some servers ignore the requested one.
            true => "text/event-stream, application/json",
            false => "application/json",
        }
    }

    /// The default timeouts for the service.
    fn timeouts(&self) -> Timeouts {
        Timeouts::default()
    }

    /// The capabilities of `model` that the API documents.
    fn capabilities(&self, model: &str) -> Capabilities;

    /// The tools that the service defines itself, which are sent with each call.
    fn tools(&self) -> &[Value] {
        &[]
    }

    /// The path of a call, which is appended to the base URL, with a query if it needs one.
    fn path(&self, call: &Call<'_>) -> Cow<'static, str>;

    /// The body of a call. Adds the API-specific features that `call` needs and the service does not support to
    /// `unsupported`; with any, the body must not be sent. It fails to serialize if the service cannot represent the
    /// request.
    fn body<'a>(
        &'a self,
        call: Call<'a>,
        unsupported: &mut Vec<Unsupported>,
    ) -> impl Serialize + use<'a, Self>;

    /// Creates the decoder for the response to a call.
    fn decoder(&self, call: &Call<'_>) -> Self::Decoder;
}

/// A model call to encode.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub(crate) request: &'a ChatRequest,
    /// The name of the requested model.
    pub(crate) model: &'a Str,
    /// Whether to request a stream.
    pub(crate) streaming: bool,
}

/// Decodes one response. Not for implementation outside this crate.
#[doc(hidden)]
pub trait Decoder: fmt::Debug + Send + Sync + Unpin {
    /// A message of the service: an event of a stream, or a complete response.
    type Chunk<'a>: Deserialize<'a>;

    /// The text of a chunk for which [`take`](Self::take) can do nothing but add this text, or begin what the text
    /// needs: after that, it only adds the text of a chunk that differs in nothing else.
    fn text<'c>(_: &'c Self::Chunk<'_>) -> Option<&'c str> {
        None
    }

    /// Processes a chunk. Fails if the service reports an error or violates the protocol.
    fn take(
        &mut self,
        chunk: Self::Chunk<'_>,
        framing: Framing,
        answer: &mut Answer,
    ) -> Result<(), Error>;

    /// Whether the service has reported how the response ends, so that no part of it is missing.
    fn is_whole(&self) -> bool;

    /// Whether no later chunk can belong to the response, so that waiting for the end is
    /// unnecessary.
    fn is_over(&self) -> bool {
        false
    }

    /// The usage that the service has reported so far, for a response that fails.
    fn usage(&self) -> Usage {
        Usage::default()
    }

    /// Ends a complete response: emits the events that were held back, and the finish.
    fn close(&mut self, answer: &mut Answer) -> Result<(), Error>;
}

/// The transport unit that a chunk was received in.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// An event of a stream.
    Event,
    /// An event of a stream that the server marks as an error.
    ErrorEvent,
    /// A JSON body.
    Json,
}

/// Describes a gateway that lost its upstream and appends the response of another one.
pub(crate) const ANOTHER_RESPONSE: &str =
    "another response started before the first one was complete";

/// The decoded part of a response.
#[doc(hidden)]
#[derive(Debug)]
pub struct Answer {
    pub(crate) context: Context,
    pub(crate) head: ResponseHead,
    /// Events that have not been polled yet.
    pub(crate) events: VecDeque<Event>,
    pub(crate) provider: Str,
    pub(crate) key: Option<ApiKey>,
    /// The values of other headers that are treated as secrets.
    pub(crate) secrets: Arc<[HeaderValue]>,
    pub(crate) limits: Limits,
    /// Whether a chunk changed the response; see [`changed`](Self::changed).
    pub(crate) changed: bool,
    /// For a model call whose usage the service does not report.
    pub(crate) estimate: Estimate,
}

/// What is known of the usage of a call whose response fails or is dropped.
#[derive(Debug, Default)]
pub(crate) struct Estimate {
    /// The name of the requested model.
    pub(crate) model: Str,
    /// The size of the request in bytes.
    pub(crate) sent: u64,
    /// The size of the received output in bytes.
    pub(crate) received: u64,
}

/// The assumed number of bytes of text per token.
const BYTES: u64 = 4;

impl Estimate {
    pub(crate) fn new(request: &ChatRequest, model: &Str) -> Self {
        let system = request.system.iter().map(|it| it.text.len());
        let tools = request.tools.iter();
        let tools = tools.map(|it| it.name.len() + it.description.len());
        let sent = system.chain(tools).sum::<usize>() as u64;
        Self {
            model: model.clone(),
            sent: sent.saturating_add(request.transcript.size()),
            received: 0,
        }
    }

    /// The number of tokens of the received output.
    pub(crate) const fn output(&self) -> u64 {
        self.received.div_ceil(BYTES)
    }

    /// Counts an event of the response.
    #[inline]
    pub(crate) fn see(&mut self, event: &Event) {
        self.received += match event {
            Event::TextDelta(text) | Event::ReasoningDelta(text) | Event::RefusalDelta(text) => {
                text.len()
            }
            Event::ToolCallDelta(delta) => delta.arguments.len(),
            _ => 0,
        } as u64;
    }
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

    /// Records the tokens of a response that ends before the service has reported all of them. It may have
    /// reported some.
    pub(crate) fn record_estimate(&self, reported: Usage) {
        let mut usage = reported;
        let estimate = &self.estimate;
        usage.set_input_tokens(reported.input_tokens().or(Some(estimate.sent / BYTES)));
        usage.set_output_tokens(reported.output_tokens().max(Some(estimate.output())));
        let mut head = self.head.clone();
        head.model.get_or_insert_with(|| estimate.model.clone());
        self.context.record_estimated_usage(&head, usage);
    }

    /// The error for a violation of the protocol.
    pub(crate) fn protocol(&self, what: &'static str) -> Error {
        self.origin().error(ErrorKind::Protocol, what)
    }

    /// Fails if a chunk contains an error, or if its event is marked as one.
    pub(crate) fn check_error(&self, error: Option<&Value>, from: Framing) -> Result<(), Error> {
        match error.filter(|error| has_error(error)) {
            Some(error) => Err(self.origin().reported(&json!({ "error": error }))),
            None if from == Framing::ErrorEvent => Err(self.origin().reported(&Value::Null)),
            None => Ok(()),
        }
    }

    /// Sets the id and the model of the response, each unless it is already set.
    #[inline]
    pub(crate) fn identify(&mut self, id: Option<&str>, model: Option<&str>) {
        for (field, value) in [(&mut self.head.id, id), (&mut self.head.model, model)] {
            let value = value.filter(|_| field.as_ref().is_none_or(|field| field.is_empty()));
            if let Some(value) = value {
                *field = Some(value.into());
                self.changed |= !value.is_empty();
            }
        }
    }

    /// Data that must be sent back to the provider.
    pub(crate) fn data(&self, data: Value) -> Option<Arc<ProviderData>> {
        Some(Arc::new(ProviderData::new(self.provider.clone(), data)))
    }

    /// Queues a complete part.
    pub(crate) fn part(&mut self, kind: PartKind, data: Option<Arc<ProviderData>>) {
        let part = Part::new(kind).with_provider_data(data);
        self.emit(Event::Part(Box::new(part)));
    }

    /// Queues a part that only the provider can interpret.
    pub(crate) fn opaque(&mut self, data: Value) {
        let data = ProviderData::new(self.provider.clone(), data);
        self.part(PartKind::Provider(data), None);
    }

    /// Queues the end of the last part.
    pub(crate) fn end_part(&mut self, data: Option<Arc<ProviderData>>) {
        self.emit(Event::PartEnd(Box::new(PartEnd::new(data))));
    }

    /// Queues an event.
    #[inline]
    pub(crate) fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Records that a chunk is part of the response although no event is emitted for it, so that it
    /// counts as progress ([`Timeouts::progress`]).
    #[inline]
    pub(crate) fn changed(&mut self) {
        self.changed = true;
    }
}

/// The base URL of a service: an absolute HTTP URL. The paths of endpoints are appended to its
/// path, and its query is preserved (Azure's `api-version`).
pub(crate) struct Base {
    path: String,
    query: Option<String>,
}

impl Base {
    /// Fails with a description of the problem that does not contain `url`.
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
        // Clients do not send user information, but log it with the URL.
        match authority.ok_or(no_url)?.as_str().contains('@') {
            true => Err("the base URL contains user information; send credentials in a header"),
            false => Ok(base),
        }
    }

    /// The query values that may be secrets: all except `api-version`.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        let pairs = self.query.iter().flat_map(|query| query.split('&'));
        let pairs = pairs.filter_map(|pair| pair.split_once('='));
        pairs.filter_map(|(name, value)| (name != "api-version").then_some(value))
    }

    /// The host that would receive the key without TLS, unless it is the local machine.
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

    /// The URL of `endpoint`, which starts with a slash and may have its own query.
    pub(crate) fn join(&self, endpoint: &str) -> Result<Uri, Error> {
        let mut uri = format!("{}{endpoint}", self.path);
        if let Some(query) = &self.query {
            uri.push(if endpoint.contains('?') { '&' } else { '?' });
            uri.push_str(query);
        }
        uri.parse()
            .map_err(|_| Error::new(ErrorKind::Configuration, "the endpoint is not a valid URL"))
    }
}

/// Whether an authority has a host and, if it has a port, one that can be connected to.
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

// The URL may contain secrets.
concentric_core::opaque_debug!(Base);

/// The host of a URL; empty if it has none.
pub(crate) fn host(url: &str) -> Str {
    let uri: Option<Uri> = url.parse().ok();
    uri.as_ref().and_then(Uri::host).unwrap_or_default().into()
}

/// Whether `host` is `name` or one of its subdomains.
pub(crate) fn is_at(host: &str, name: &str) -> bool {
    let rest = host.strip_suffix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
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
