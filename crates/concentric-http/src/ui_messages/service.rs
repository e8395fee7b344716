use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use concentric_core::{CancelReason, ChatRequest, ChatResponse, Error, Event, store::Tenant};
use futures_core::Stream;
use http::{HeaderValue, Method, StatusCode, header};
use http_body::Body;
use tower::BoxError;
use tower_service::Service;

use super::{layer::add_version, translate::FORMAT};
use crate::{
    percent::decode,
    refused::Refused,
    run::{After, Config, Events, Hub, ResponseBody, ResponseFuture, RunLog, Unreadable},
    upload::event_stream,
};

/// An agent as an endpoint for `useChat`.
#[derive(Clone)]
pub struct UiMessages<A> {
    agent: A,
    config: Arc<Config>,
    hub: Option<Arc<Hub>>,
}

type Response<A, B> = http::Response<ResponseBody<A, B>>;

impl<A> UiMessages<A> {
    pub(super) const fn new(agent: A, config: Arc<Config>, hub: Option<Arc<Hub>>) -> Self {
        Self { agent, config, hub }
    }

    /// Gets a reference to the agent.
    pub const fn get_ref(&self) -> &A {
        &self.agent
    }

    /// Gets a mutable reference to the agent.
    pub const fn get_mut(&mut self) -> &mut A {
        &mut self.agent
    }

    /// Returns the agent.
    pub fn into_inner(self) -> A {
        self.agent
    }
}

impl<A: Service<ChatRequest>> UiMessages<A> {
    /// The response to a request about the stream of a chat.
    fn stream<B, RB>(
        &self,
        chat: &str,
        request: &http::Request<RB>,
    ) -> Result<Response<A, B>, Refused> {
        let chat = decode(chat).ok_or_else(|| Refused::not_found("not_found", "not found"))?;
        // The caller is authenticated by the host.
        let tenant: Tenant = request.extensions().get().cloned().unwrap_or_default();
        let hub = self.hub.as_deref();
        // A run may be stopped in any format: one that an operator has resumed has that of AG-UI.
        let format = (request.method() != Method::DELETE).then_some(&FORMAT);
        let log = hub.and_then(|hub| hub.newest(&tenant, &chat, format));
        match (request.method(), log) {
            (&Method::GET, Some(log)) => self.join(&log),
            (&Method::DELETE, Some(log)) if log.cancel(CancelReason::User) => {
                Ok(empty(StatusCode::ACCEPTED))
            }
            (&Method::GET | &Method::DELETE, _) => Ok(empty(StatusCode::NO_CONTENT)),
            _ => Err(Refused::method_other_than("GET, DELETE")),
        }
    }

    /// Replays the stream of a run.
    fn join<B>(&self, log: &Arc<RunLog>) -> Result<Response<A, B>, Refused> {
        let settings = &self.config.settings;
        let gone = || {
            let why = "the first chunks are not kept; read the chat when the run has ended";
            Refused::new(StatusCode::GONE, "events_gone", why, None)
        };
        let reader = match log.read(&After::default()) {
            Ok(reader) => reader,
            // It has ended meanwhile.
            Err(Unreadable::Over) => return Ok(empty(StatusCode::NO_CONTENT)),
            Err(Unreadable::Busy) => return Err(Refused::too_many_readers()),
            Err(Unreadable::Gone) => return Err(gone()),
        };
        let earlier = log.earlier().ok_or_else(gone)?;
        let guard = match &settings.shutdown {
            Some(shutdown) => Some(shutdown.enter().ok_or_else(Refused::shutting_down)?),
            None => None,
        };
        let environment = settings.environment.clone();
        let events = Events::new(reader, earlier, environment, settings.keep_alive, guard);
        let mut response = event_stream(ResponseBody::joined(events));
        add_version(response.headers_mut());
        Ok(response)
    }
}

fn empty<A: Service<ChatRequest>, B>(status: StatusCode) -> Response<A, B> {
    let mut response = http::Response::new(ResponseBody::whole(Bytes::new()));
    *response.status_mut() = status;
    let no_store = HeaderValue::from_static("no-store");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, no_store);
    response
}

/// The chat whose stream a path names: `/{chat}/stream`, below any mount point.
fn chat_of(path: &str) -> Option<&str> {
    let (path, last) = path.rsplit_once('/')?;
    let (_, chat) = path.rsplit_once('/')?;
    (last == "stream" && !chat.is_empty()).then_some(chat)
}

impl<A, B, RB> Service<http::Request<RB>> for UiMessages<A>
where
    A: Service<ChatRequest, Response = ChatResponse<B>> + Clone,
    A::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
    RB: Body,
    RB::Error: Into<BoxError>,
{
    type Response = Response<A, B>;
    type Error = Infallible;
    type Future = ResponseFuture<A, B, RB>;

    // Always ready: some requests are answered without the agent, and others wait for it in their
    // stream.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<RB>) -> Self::Future {
        let Some(chat) = chat_of(request.uri().path()) else {
            return ResponseFuture::new(&self.agent, self.config.clone(), request);
        };
        let response = self.stream(chat, &request);
        let refused = |refused: Refused| refused.into_response().map(ResponseBody::whole);
        ResponseFuture::ready(response.unwrap_or_else(refused))
    }
}

impl<A: fmt::Debug> fmt::Debug for UiMessages<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UiMessages")
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}
