use std::{
    convert::Infallible,
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use concentric_core::{ChatRequest, ChatResponse, context::Sleep, panic::catch};
use http::{Method, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::BoxError;
use tower_service::Service;

use super::{
    ResponseBody,
    input::RunAgentInput,
    layer::Config,
    map::{self, Start},
};
use crate::{
    json::parse_with_paths,
    refused::Refused,
    upload::{self, event_stream},
};

/// The minimum size of a body, in bytes, for which the future yields to other tasks between its
/// stages, each of which may take tens of milliseconds.
const LARGE: usize = 64 << 10;

pin_project! {
    /// Response future for [`AgUi`](super::AgUi).
    ///
    /// The future reads the request body, polls the agent once, and resolves without waiting for
    /// the agent's response. A timeout around the service therefore bounds the upload, like
    /// [`upload_timeout`](super::AgUiLayer::upload_timeout), and not the run. While a layer of the
    /// agent [holds back](concentric_core::Context::hold_head) the response head, the future polls
    /// the agent for up to 5 seconds. For a body of 64 KiB or more, the future yields to other
    /// tasks before and after parsing the body, and again before polling the agent.
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
        Begun { body: Option<ResponseBody<A, B>>, limit: Option<Sleep> },
        Refused { refused: Option<Refused> },
    }
}

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
    Input { input: RunAgentInput, parts: Parts },
    Start(Start),
}

/// The result of a stage.
enum Next<A, B>
where
    A: Service<ChatRequest>,
{
    Stage(Box<Prepared<A>>),
    Begin(ResponseBody<A, B>),
    Answer(ResponseBody<A, B>),
}

impl<A, B, RB> ResponseFuture<A, B, RB>
where
    A: Service<ChatRequest>,
    RB: Body,
{
    pub(super) fn new(agent: &A, config: Arc<Config>, request: http::Request<RB>) -> Self
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
    if config.shutdown.as_ref().is_some_and(|s| s.is_begun()) {
        return Err(Refused::shutting_down());
    }
    upload::check(request, config.body_limit)
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
                StateProj::Read {
                    run,
                    bytes,
                    body,
                    timeout,
                } => {
                    let Some(config) = run.as_ref().map(|run| &run.config) else {
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
                StateProj::Begun { body, limit } => {
                    // Taken while it is polled, so that it is not polled again after a panic.
                    let Some(mut begun) = body.take() else {
                        return Poll::Pending;
                    };
                    match catch(|| begun.poll_accepted(limit, cx)) {
                        Ok(Poll::Ready(accepted)) => accepted.map(|()| Next::Answer(begun)),
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
                Ok(Next::Begin(body)) => this.state.set(State::Begun {
                    body: Some(body),
                    limit: None,
                }),
                Ok(Next::Answer(body)) => break Ok(event_stream(body)),
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
    config.policy.check_body(&bytes)?;
    Ok(Box::new(Prepared {
        agent,
        config,
        is_large: bytes.len() >= LARGE,
        stage: Stage::Body { bytes, parts },
    }))
}

/// Runs the next stage of a large request, or all stages of another: from the body to the input,
/// from there to the agent's request, and from there to the response body.
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
    let start = loop {
        stage = match stage {
            Stage::Body { bytes, parts } => match serde_json::from_slice(&bytes).ok() {
                Some(input) => Stage::Input { input, parts },
                None => Stage::Invalid { bytes, parts },
            },
            Stage::Invalid { bytes, parts } => Stage::Input {
                input: parse_with_paths(&bytes)?,
                parts,
            },
            Stage::Input { input, parts } => Stage::Start(map::start(input, parts, &config)?),
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
    let guard = match &config.shutdown {
        Some(shutdown) => Some(shutdown.enter().ok_or_else(Refused::shutting_down)?),
        None => None,
    };
    let body = ResponseBody::run(agent, start, &config, guard);
    Ok(Next::Begin(body))
}

impl<A, B, RB> fmt::Debug for ResponseFuture<A, B, RB>
where
    A: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
