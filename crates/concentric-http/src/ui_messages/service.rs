use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use concentric_core::{CancelReason, ChatRequest, ChatResponse, Error, Event, store::Tenant};
use futures_core::Stream;
use http::{Method, StatusCode};
use http_body::Body;
use tower::BoxError;
use tower_service::Service;

use super::translate::FORMAT;
use crate::{
    percent::decode,
    refused::Refused,
    run::{
        After, Config, Events, Hub, LogStream, ResponseBody, ResponseFuture, RunLog, Unreadable,
        empty, joined_response,
    },
    shutdown::enter,
};

/// An agent as an endpoint for `useChat`.
#[derive(Clone)]
pub struct UiMessages<A> {
    agent: A,
    config: Arc<Config>,
    hub: Option<Arc<Hub>>,
}

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
    ) -> Result<ResponseFuture<A, B, RB>, Refused>
    where
        RB: Body,
    {
        let chat = decode(chat).ok_or_else(|| Refused::not_found("not_found", "not found"))?;
        // The caller is authenticated by the host.
        let tenant: Tenant = request.extensions().get().cloned().unwrap_or_default();
        let hub = self.hub.as_deref();
        // A run may be stopped in any format: one that an operator has resumed has that of AG-UI.
        let format = (request.method() != Method::DELETE).then_some(&FORMAT);
        let log = hub.and_then(|hub| hub.newest(&tenant, &chat, format));
        let config = Arc::clone(&self.config);
        let joined = match (request.method(), log) {
            (&Method::GET, Some(log)) => join(&config, &log)?,
            (&Method::DELETE, Some(log)) if log.cancel(CancelReason::User) => {
                return Ok(ResponseFuture::ready(empty(StatusCode::ACCEPTED)));
            }
            (&Method::GET, None) => match self.hub.clone().filter(|hub| hub.is_shared()) {
                Some(hub) => {
                    let joining = join_shared(config.clone(), hub, tenant, chat.into_owned());
                    return Ok(ResponseFuture::joining(Box::pin(joining), config));
                }
                None => None,
            },
            (&Method::DELETE, _) => None,
            _ => return Err(Refused::method_other_than("GET, DELETE")),
        };
        Ok(ResponseFuture::ready(joined_response(joined, &config)))
    }
}

/// Replays the stream of a run that this process drives; `None` if it has ended meanwhile.
fn join(config: &Config, log: &Arc<RunLog>) -> Result<Option<Events>, Refused> {
    let reader = match log.read(&After::default()) {
        Ok(reader) => reader,
        Err(unreadable) => return refuse(unreadable),
    };
    let earlier = log.earlier().ok_or_else(gone)?;
    events(config, reader, earlier).map(Some)
}

/// Replays the stream of a run that another process drives; `None` if there is none.
async fn join_shared(
    config: Arc<Config>,
    hub: Arc<Hub>,
    tenant: Tenant,
    chat: String,
) -> Result<Option<Events>, Refused> {
    // A store that does not work is like one without the log: chats without a live run do not need it.
    let run = hub.newest_shared(&tenant, &chat, &FORMAT).await;
    let Ok(Some(run)) = run else {
        return Ok(None);
    };
    let after = After::default();
    let found = hub.find_shared(&tenant, &chat, &run, &FORMAT, &after).await;
    match found.ok().flatten().map(|found| found.reader) {
        // What the client had before follows the first event in the store.
        Some(Ok(reader)) => events(&config, reader, Bytes::new()).map(Some),
        Some(Err(unreadable)) => refuse(unreadable),
        None => Ok(None),
    }
}

fn events(config: &Config, log: impl Into<LogStream>, earlier: Bytes) -> Result<Events, Refused> {
    let settings = &config.settings;
    let guard = enter(settings.shutdown.as_ref())?;
    let environment = settings.environment.clone();
    Ok(Events::new(
        log,
        earlier,
        environment,
        settings.keep_alive,
        guard,
    ))
}

fn refuse(unreadable: Unreadable) -> Result<Option<Events>, Refused> {
    match unreadable {
        Unreadable::Over => Ok(None),
        Unreadable::Busy => Err(Refused::too_many_readers()),
        Unreadable::Gone => Err(gone()),
    }
}

fn gone() -> Refused {
    let why = "the first chunks are not kept; read the chat when the run has ended";
    Refused::new(StatusCode::GONE, "events_gone", why, None)
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
    type Response = http::Response<ResponseBody<A, B>>;
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
        let refused = |refused: Refused| refused.into_response().map(ResponseBody::whole);
        let response = self.stream(chat, &request);
        response.unwrap_or_else(|it| ResponseFuture::ready(refused(it)))
    }
}

impl<A: fmt::Debug> fmt::Debug for UiMessages<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UiMessages")
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}
