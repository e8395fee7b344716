use std::{
    convert::Infallible,
    error::Error as StdError,
    fmt,
    future::Future,
    marker::PhantomData,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, BytesMut};
use concentric_core::{ChatRequest, ChatResponse, method::catch};
use http::{HeaderMap, HeaderValue, Method, header, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower::BoxError;
use tower_service::Service;

use super::{
    ResponseBody, RunAgentInput,
    layer::Config,
    map::{self, Start},
    reply::Refused,
};

/// The bytes of a body from which a request yields to other tasks between its stages, each of which
/// may take milliseconds.
const LARGE: usize = 64 << 10;

pin_project! {
    /// Response future for [`AgUi`](super::AgUi).
    ///
    /// It reads the request's body, polls the agent once, and resolves before the agent has answered: a
    /// timeout around the service bounds the upload, and not the run. With a body of 64 KiB or more it
    /// yields to other tasks after it has parsed the body, and again before it polls the agent.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<A, B, RB> {
        #[pin]
        state: State<A, RB>,
        body: PhantomData<fn() -> B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<A, RB> {
        Read {
            // Taken when the body is whole.
            run: Option<Box<Pending<A>>>,
            bytes: BytesMut,
            #[pin]
            body: RB,
        },
        // Taken when the agent is polled.
        Prepared { run: Option<Box<Prepared<A>>> },
        Refused { refused: Option<Refused> },
    }
}

/// What a run is started with once the body is there.
struct Pending<A> {
    agent: A,
    config: Arc<Config>,
    parts: Parts,
}

/// A run whose body was parsed.
struct Prepared<A> {
    agent: A,
    config: Arc<Config>,
    stage: Stage,
    is_large: bool,
}

enum Stage {
    Input { input: RunAgentInput, parts: Parts },
    Start(Start),
}

/// What a stage leads to.
enum Next<A, B>
where
    A: Service<ChatRequest>,
{
    Stage(Box<Prepared<A>>),
    Answer(http::Response<ResponseBody<A, B>>),
}

impl<A, B, RB: Body> ResponseFuture<A, B, RB> {
    pub(super) fn new(agent: &A, config: Arc<Config>, request: http::Request<RB>) -> Self
    where
        A: Clone,
    {
        // A clone, which is made ready before it is called.
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
                }
            }
        };
        Self {
            state,
            body: PhantomData,
        }
    }
}

/// What can be said of a request before its body is read.
fn check<RB: Body>(config: &Config, request: &http::Request<RB>) -> Result<(), Refused> {
    if request.method() != Method::POST {
        return Err(Refused::method());
    }
    if config.shutdown.as_ref().is_some_and(|s| s.is_begun()) {
        return Err(Refused::shutting_down());
    }
    if !is_json(request.headers()) {
        return Err(Refused::media_type());
    }
    let len = request.body().size_hint().lower();
    if usize::try_from(len).map_or(true, |len| len > config.body_limit) {
        return Err(Refused::too_large(Some(config.body_limit)));
    }
    Ok(())
}

/// Whether the content type is `application/json`, or any other that is JSON.
///
/// A request without one is refused: a page of another origin may send such, with the user's
/// cookies, and without asking first.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(value)) = headers.get(header::CONTENT_TYPE).map(HeaderValue::to_str) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim();
    let Some((_, subtype)) = essence.split_once('/') else {
        return false;
    };
    let suffix = subtype.rsplit('+').next().unwrap_or_default();
    suffix.eq_ignore_ascii_case("json")
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
                StateProj::Read { run, bytes, body } => {
                    let Some(limit) = run.as_ref().map(|run| run.config.body_limit) else {
                        return Poll::Pending;
                    };
                    let read = ready!(poll_read(body, bytes, limit, cx));
                    match (read, run.take()) {
                        (Ok(()), Some(run)) => {
                            // Not kept during the run: the input is what was read of it.
                            let bytes = mem::take(bytes);
                            caught(|| parse(*run, &bytes).map(Next::Stage))
                        }
                        (Err(refused), _) => Err(refused),
                        (Ok(()), None) => return Poll::Pending,
                    }
                }
                StateProj::Prepared { run } => match run.take() {
                    Some(run) => caught(|| advance(*run, cx)),
                    None => return Poll::Pending,
                },
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
                Ok(Next::Answer(answer)) => break Ok(answer),
                Err(refused) => break Err(refused),
            }
        };
        // A future that is done holds nothing.
        this.state.set(State::Refused { refused: None });
        Poll::Ready(Ok(answer.unwrap_or_else(|refused| {
            refused.into_response().map(ResponseBody::whole)
        })))
    }
}

/// Reads `body` to its end.
fn poll_read<RB>(
    mut body: Pin<&mut RB>,
    bytes: &mut BytesMut,
    limit: usize,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Refused>>
where
    RB: Body,
    RB::Error: Into<BoxError>,
{
    loop {
        match ready!(body.as_mut().poll_frame(cx)) {
            Some(Ok(frame)) => {
                // Trailers say nothing here.
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                if data.remaining() > limit.saturating_sub(bytes.len()) {
                    return Poll::Ready(Err(Refused::too_large(Some(limit))));
                }
                bytes.put(data);
            }
            Some(Err(error)) => {
                let error = error.into();
                return Poll::Ready(Err(if is_limit(&*error) {
                    Refused::too_large(None)
                } else {
                    Refused::unreadable()
                }));
            }
            None => return Poll::Ready(Ok(())),
        }
    }
}

/// Whether a limit outside of ours was met, as tower-http's.
fn is_limit(error: &(dyn StdError + 'static)) -> bool {
    let mut link = Some(error);
    while let Some(error) = link {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        link = error.source();
    }
    false
}

/// Runs a stage; what panics in it is a part of the server.
fn caught<T>(stage: impl FnOnce() -> Result<T, Refused>) -> Result<T, Refused> {
    catch(stage).unwrap_or_else(|panic| Err(Refused::panicked(&panic)))
}

/// Parses the body.
fn parse<A>(run: Pending<A>, bytes: &[u8]) -> Result<Box<Prepared<A>>, Refused> {
    let Pending {
        agent,
        config,
        parts,
    } = run;
    config.policy.check_body(bytes)?;
    let input = RunAgentInput::from_slice(bytes)?;
    Ok(Box::new(Prepared {
        agent,
        config,
        stage: Stage::Input { input, parts },
        is_large: bytes.len() >= LARGE,
    }))
}

/// Makes a request of the input, and then polls the agent with it.
fn advance<A, B>(run: Prepared<A>, cx: &mut Context<'_>) -> Result<Next<A, B>, Refused>
where
    A: Service<ChatRequest, Response = ChatResponse<B>>,
    A::Error: Into<BoxError>,
{
    let Prepared {
        agent,
        config,
        stage,
        is_large,
    } = run;
    let start = match stage {
        Stage::Input { input, parts } => {
            let stage = Stage::Start(map::start(input, parts, &config)?);
            return Ok(Next::Stage(Box::new(Prepared {
                agent,
                config,
                stage,
                is_large,
            })));
        }
        Stage::Start(start) => start,
    };
    let guard = match &config.shutdown {
        Some(shutdown) => Some(shutdown.enter().ok_or_else(Refused::shutting_down)?),
        None => None,
    };
    let mut body = ResponseBody::run(agent, start, &config, guard);
    body.begin(cx)?;
    let mut response = http::Response::new(body);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would collect the events until its buffer is full.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(Next::Answer(response))
}

impl<A, B, RB> fmt::Debug for ResponseFuture<A, B, RB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
