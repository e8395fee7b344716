use std::{
    convert::Infallible,
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use concentric_core::{ChatRequest, ChatResponse, context::Sleep, panic::catch};
use http::{HeaderValue, Method, StatusCode, header, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::BoxError;
use tower_service::Service;

use super::{Config, Events, Parsed, ResponseBody, RunInput, Start, map, map::Converted};
use crate::{
    refused::Refused,
    shutdown::enter,
    upload::{self, event_stream},
};

/// The minimum size of a body, in bytes, for which the future yields to other tasks between its
/// stages, each of which may take tens of milliseconds.
const LARGE: usize = 64 << 10;

pin_project! {
    /// Response future of an endpoint.
    ///
    /// The future reads the request body, polls the agent once, and resolves without waiting for
    /// the agent's response. A timeout around the service therefore bounds the upload, like
    /// `upload_timeout` of the layer, and not the run. While a layer of the
    /// agent [holds back](concentric_core::Context::hold_head) the response head, the future polls
    /// the agent for up to 5 seconds. For a body of 64 KiB or more, the future yields to other
    /// tasks before each stage: parsing the body, checking it, converting its messages, reading them as
    /// a history, and polling the agent.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<A, B, RB>
    where
        A: Service<ChatRequest>,
    {
        #[pin]
        state: State<A, B, RB>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<A, B, RB>
    where
        A: Service<ChatRequest>,
    {
        Read {
            // Taken when the body is complete.
            run: Option<Box<Pending<A>>>,
            bytes: BytesMut,
            #[pin]
            body: RB,
            // Created when the body is pending for the first time.
            timeout: Option<Sleep>,
        },
        // Taken when the agent is polled.
        Prepared { run: Option<Box<Prepared<A>>> },
        // Taken when the request is accepted or rejected.
        Begun { body: Option<ResponseBody<A, B>>, limit: Option<Sleep>, config: Arc<Config> },
        Refused { refused: Option<Refused> },
        // Polled until it resolves.
        Joining { joining: Joining, config: Arc<Config> },
        // Taken when the future resolves.
        Ready { response: Option<http::Response<ResponseBody<A, B>>> },
    }
}

/// The stream of a client that joins a run; `None` if there is no run.
pub(crate) type Joining = Pin<Box<dyn Future<Output = Result<Option<Events>, Refused>> + Send>>;

/// A request whose body is being read.
struct Pending<A> {
    agent: A,
    config: Arc<Config>,
    parts: Parts,
}

/// A request with a complete body.
struct Prepared<A> {
    agent: A,
    config: Arc<Config>,
    stage: Stage,
    is_large: bool,
}

enum Stage {
    Body { bytes: BytesMut, parts: Parts },
    // A second attempt, which returns the reason.
    Invalid { bytes: BytesMut, parts: Parts },
    Parsed { parsed: Parsed, parts: Parts },
    Input { input: Box<RunInput>, parts: Parts },
    Converted(Box<Converted>),
    Start(Box<Start>),
}

/// The result of a stage.
enum Next<A, B>
where
    A: Service<ChatRequest>,
{
    Stage(Box<Prepared<A>>),
    Begin(ResponseBody<A, B>, Arc<Config>),
    Answer(http::Response<ResponseBody<A, B>>),
}

impl<A, B, RB> ResponseFuture<A, B, RB>
where
    A: Service<ChatRequest>,
    RB: Body,
{
    /// A response that needs no agent.
    pub(crate) const fn ready(response: http::Response<ResponseBody<A, B>>) -> Self {
        Self {
            state: State::Ready {
                response: Some(response),
            },
        }
    }

    /// A response to a client that joins a run.
    pub(crate) const fn joining(joining: Joining, config: Arc<Config>) -> Self {
        Self {
            state: State::Joining { joining, config },
        }
    }

    pub(crate) fn new(agent: &A, config: Arc<Config>, request: http::Request<RB>) -> Self
    where
        A: Clone,
    {
        // The clone is polled ready before it is called.
        let cloned = || catch(|| agent.clone()).map_err(|panic| Refused::panicked(&panic));
        let state = match check(&config, &request).and_then(|()| cloned()) {
            Err(refused) => State::Refused {
                refused: Some(refused),
            },
            Ok(agent) => {
                let (parts, body) = request.into_parts();
                State::Read {
                    run: Some(Box::new(Pending {
                        agent,
                        config,
                        parts,
                    })),
                    bytes: BytesMut::new(),
                    body,
                    timeout: None,
                }
            }
        };
        Self { state }
    }
}

/// Checks a request before its body is read.
fn check<RB: Body>(config: &Config, request: &http::Request<RB>) -> Result<(), Refused> {
    if request.method() != Method::POST {
        return Err(Refused::method());
    }
    if config
        .settings
        .shutdown
        .as_ref()
        .is_some_and(|s| s.is_begun())
    {
        return Err(Refused::shutting_down());
    }
    upload::check(request, config.settings.body_limit)
}

impl<A, B, RB> Future for ResponseFuture<A, B, RB>
where
    A: Service<ChatRequest, Response = ChatResponse<B>>,
    A::Error: Into<BoxError>,
    RB: Body,
    RB::Error: Into<BoxError>,
{
    type Output = Result<http::Response<ResponseBody<A, B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let answer = loop {
            let next = match this.state.as_mut().project() {
                StateProj::Refused { refused } => match refused.take() {
                    Some(refused) => Err(refused),
                    // Polled after it resolved.
                    None => return Poll::Pending,
                },
                StateProj::Ready { response } => match response.take() {
                    Some(response) => Ok(Next::Answer(response)),
                    None => return Poll::Pending,
                },
                StateProj::Joining { joining, config } => {
                    match catch(|| joining.as_mut().poll(cx)) {
                        Ok(Poll::Ready(joined)) => {
                            joined.map(|joined| Next::Answer(joined_response(joined, config)))
                        }
                        Ok(Poll::Pending) => return Poll::Pending,
                        Err(panic) => Err(Refused::panicked(&panic)),
                    }
                }
                StateProj::Read {
                    run,
                    bytes,
                    body,
                    timeout,
                } => {
                    let Some(config) = run.as_ref().map(|run| &run.config.settings) else {
                        return Poll::Pending;
                    };
                    let read = match upload::poll_read(body, bytes, config.body_limit, cx) {
                        Poll::Ready(read) => read,
                        Poll::Pending => {
                            let clock = config.environment.clock();
                            ready!(upload::poll_timeout(
                                timeout,
                                clock,
                                config.upload_timeout,
                                cx
                            ));
                            Err(Refused::upload_timeout())
                        }
                    };
                    match (read, run.take()) {
                        (Ok(()), Some(run)) => {
                            let bytes = mem::take(bytes);
                            caught(|| received(*run, bytes).map(Next::Stage))
                        }
                        (Err(refused), _) => Err(refused),
                        (Ok(()), None) => return Poll::Pending,
                    }
                }
                StateProj::Prepared { run } => match run.take() {
                    Some(run) => caught(|| advance(*run)),
                    None => return Poll::Pending,
                },
                StateProj::Begun {
                    body,
                    limit,
                    config,
                } => {
                    // Taken while it is polled, so that it is not polled again after a panic.
                    let Some(mut begun) = body.take() else {
                        return Poll::Pending;
                    };
                    match catch(|| begun.poll_accepted(limit, cx)) {
                        Ok(Poll::Ready(accepted)) => accepted.map(|()| {
                            let mut response = event_stream(begun);
                            config.protocol.headers(response.headers_mut());
                            Next::Answer(response)
                        }),
                        Ok(Poll::Pending) => {
                            *body = Some(begun);
                            return Poll::Pending;
                        }
                        Err(panic) => Err(Refused::panicked(&panic)),
                    }
                }
            };
            match next {
                Ok(Next::Stage(run)) => {
                    let is_large = run.is_large;
                    this.state.set(State::Prepared { run: Some(run) });
                    if is_large {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Ok(Next::Begin(body, config)) => this.state.set(State::Begun {
                    body: Some(body),
                    limit: None,
                    config,
                }),
                Ok(Next::Answer(response)) => break Ok(response),
                Err(refused) => break Err(refused),
            }
        };
        // A completed future holds no resources.
        this.state.set(State::Refused { refused: None });
        Poll::Ready(Ok(answer.unwrap_or_else(|refused| {
            refused.into_response().map(ResponseBody::whole)
        })))
    }
}

/// Runs a stage, and answers a panic in it as an internal error.
fn caught<T>(stage: impl FnOnce() -> Result<T, Refused>) -> Result<T, Refused> {
    catch(stage).unwrap_or_else(|panic| Err(Refused::panicked(&panic)))
}

/// Checks the complete body.
fn received<A>(run: Pending<A>, bytes: BytesMut) -> Result<Box<Prepared<A>>, Refused> {
    let Pending {
        agent,
        config,
        parts,
    } = run;
    config.settings.policy.check_body(&bytes)?;
    Ok(Box::new(Prepared {
        agent,
        config,
        is_large: bytes.len() >= LARGE,
        stage: Stage::Body { bytes, parts },
    }))
}

/// Runs the next stage of a large request, or all stages of another: from the body to its parsed form, to the
/// checked input, to the messages of the agent's request, to that request, and to the response body.
fn advance<A, B>(run: Prepared<A>) -> Result<Next<A, B>, Refused>
where
    A: Service<ChatRequest>,
{
    let Prepared {
        agent,
        config,
        mut stage,
        is_large,
    } = run;
    let (protocol, policy) = (&config.protocol, &config.settings.policy);
    let start = loop {
        stage = match stage {
            Stage::Body { bytes, parts } => match protocol.parse(&bytes) {
                Some(parsed) => Stage::Parsed { parsed, parts },
                None => Stage::Invalid { bytes, parts },
            },
            Stage::Invalid { bytes, parts } => Stage::Parsed {
                parsed: protocol.explain(&bytes)?,
                parts,
            },
            Stage::Parsed { parsed, parts } => Stage::Input {
                input: Box::new(parsed(policy)?),
                parts,
            },
            Stage::Input { input, parts } => {
                Stage::Converted(Box::new(map::convert(*input, parts, &config)?))
            }
            Stage::Converted(run) => Stage::Start(Box::new(map::start(*run, &config)?)),
            Stage::Start(start) => break start,
        };
        if is_large {
            return Ok(Next::Stage(Box::new(Prepared {
                agent,
                config,
                stage,
                is_large,
            })));
        }
    };
    let guard = enter(config.settings.shutdown.as_ref())?;
    let body = ResponseBody::run(agent, *start, &config, guard);
    Ok(Next::Begin(body, config))
}

/// The response to a client that joins a run, or finds none.
pub(crate) fn joined_response<A, B>(
    joined: Option<Events>,
    config: &Config,
) -> http::Response<ResponseBody<A, B>>
where
    A: Service<ChatRequest>,
{
    let Some(events) = joined else {
        return empty(StatusCode::NO_CONTENT);
    };
    let mut response = event_stream(ResponseBody::joined(events));
    config.protocol.headers(response.headers_mut());
    response
}

/// A response without a body.
pub(crate) fn empty<A, B>(status: StatusCode) -> http::Response<ResponseBody<A, B>>
where
    A: Service<ChatRequest>,
{
    let mut response = http::Response::new(ResponseBody::whole(Bytes::new()));
    *response.status_mut() = status;
    let no_store = HeaderValue::from_static("no-store");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, no_store);
    response
}

impl<A, B, RB> fmt::Debug for ResponseFuture<A, B, RB>
where
    A: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
