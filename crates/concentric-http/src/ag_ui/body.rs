use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use concentric_core::{
    CancelReason, ChatRequest, ChatResponse, Error, Event, context::Context as Run, context::Sleep,
};
use futures_core::Stream;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower::{BoxError, util::Oneshot};
use tower_service::Service;

use super::{layer::Config, map::Start, shutdown::Guard, stream::Translator};

/// How many bytes of events go out in one piece.
const PIECE: usize = 16 << 10;

/// How many items of the agent's body are taken in one poll, since some write nothing.
const ITEMS: usize = 1024;

pin_project! {
    /// Response body of [`AgUi`](super::AgUi): a run as server-sent events, or a JSON error.
    ///
    /// The run goes on while the body is polled, and stops when it is dropped.
    #[must_use = "bodies do nothing unless polled"]
    pub struct ResponseBody<A, B>
    where
        A: Service<ChatRequest>,
    {
        #[pin]
        kind: Kind<A, B>,
    }
}

pin_project! {
    #[project = KindProj]
    enum Kind<A, B>
    where
        A: Service<ChatRequest>,
    {
        Whole { bytes: Option<Bytes> },
        Run {
            head: Box<RunHead>,
            #[pin]
            work: Work<A, B>,
        },
    }
}

pin_project! {
    /// What a stream waits for.
    #[project = WorkProj]
    enum Work<A, B>
    where
        A: Service<ChatRequest>,
    {
        /// The agent's answer.
        Call { #[pin] call: Oneshot<A, ChatRequest> },
        /// Its next event.
        Body { #[pin] body: B },
        /// Nothing: the terminal event is written.
        Done,
    }
}

/// All of a stream but the agent.
struct RunHead {
    translator: Translator,
    context: Run,
    keep_alive: Option<KeepAlive>,
    shutdown: Option<Guard>,
}

impl<A, B> ResponseBody<A, B>
where
    A: Service<ChatRequest>,
{
    pub(super) const fn whole(bytes: Bytes) -> Self {
        Self {
            kind: Kind::Whole { bytes: Some(bytes) },
        }
    }

    pub(super) fn run(agent: A, start: Start, config: &Config, shutdown: Option<Guard>) -> Self {
        let Start { request, ids } = start;
        let context = request.context.clone();
        let translator = Translator::new(context.clone(), ids, config.error_message.clone());
        Self {
            kind: Kind::Run {
                head: Box::new(RunHead {
                    translator,
                    keep_alive: config.keep_alive.map(KeepAlive::new),
                    context,
                    shutdown,
                }),
                work: Work::Call {
                    call: Oneshot::new(agent, request),
                },
            },
        }
    }
}

impl<A, B> Body for ResponseBody<A, B>
where
    A: Service<ChatRequest, Response = ChatResponse<B>>,
    A::Error: Into<BoxError>,
    B: Stream<Item = Result<Event, Error>>,
{
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match self.project().kind.project() {
            KindProj::Whole { bytes } => bytes.take(),
            KindProj::Run { head, work } => ready!(head.poll_piece(work, cx)),
        };
        Poll::Ready(piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole { bytes } => bytes.is_none(),
            Kind::Run { head, work } => matches!(work, Work::Done) && head.translator.len() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Run { .. } => SizeHint::default(),
        }
    }
}

impl RunHead {
    fn poll_piece<A, B>(
        &mut self,
        mut work: Pin<&mut Work<A, B>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Bytes>>
    where
        A: Service<ChatRequest, Response = ChatResponse<B>>,
        A::Error: Into<BoxError>,
        B: Stream<Item = Result<Event, Error>>,
    {
        if !matches!(*work, Work::Done)
            && let Some(shutdown) = &mut self.shutdown
            && shutdown.poll_over(&self.context, cx).is_ready()
        {
            self.translator.cancelled(&CancelReason::Shutdown);
            work.set(Work::Done);
        }

        let mut items = 0;
        while self.translator.len() < PIECE {
            if items == ITEMS {
                cx.waker().wake_by_ref();
                break;
            }
            items += 1;
            let item = match work.as_mut().project() {
                WorkProj::Body { body } => body.poll_next(cx),
                WorkProj::Call { call } => match call.poll(cx) {
                    Poll::Ready(Ok(ChatResponse { head, body, .. })) => {
                        self.translator.head(&head);
                        work.set(Work::Body { body });
                        continue;
                    }
                    Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error.into().into()))),
                    Poll::Pending => Poll::Pending,
                },
                WorkProj::Done => break,
            };
            match item {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(event))) => {
                    let last = event.is_finish();
                    self.translator.event(event);
                    if last {
                        work.set(Work::Done);
                    }
                }
                // The run is dropped before its end is shown: what it holds is free by then.
                Poll::Ready(Some(Err(error))) => {
                    work.set(Work::Done);
                    self.translator.fail(&error);
                }
                Poll::Ready(None) => {
                    work.set(Work::Done);
                    self.translator.truncated();
                }
            }
        }

        if let Some(bytes) = self.translator.take() {
            if let Some(keep_alive) = &mut self.keep_alive {
                keep_alive.sent(&self.context);
            }
            return Poll::Ready(Some(bytes));
        }
        if matches!(*work, Work::Done) {
            return Poll::Ready(None);
        }
        let Some(keep_alive) = &mut self.keep_alive else {
            return Poll::Pending;
        };
        ready!(keep_alive.poll_due(&self.context, cx));
        keep_alive.sent(&self.context);
        self.translator.keep_alive();
        Poll::Ready(self.translator.take())
    }
}

/// Tells when nothing was sent for a while.
///
/// It sleeps once for a whole silence, and not anew for every piece: a timer costs more than the
/// piece does.
struct KeepAlive {
    silence: Duration,
    sent: Option<SystemTime>,
    // What it waits for, and whether nothing was sent since it began to.
    sleep: Option<Sleep>,
    silent: bool,
}

impl KeepAlive {
    const fn new(silence: Duration) -> Self {
        Self {
            silence,
            sent: None,
            sleep: None,
            silent: true,
        }
    }

    fn sent(&mut self, context: &Run) {
        self.sent = Some(context.now());
        self.silent = false;
    }

    fn poll_due(&mut self, context: &Run, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(sleep) = &mut self.sleep {
                ready!(sleep.as_mut().poll(cx));
                self.sleep = None;
                if self.silent {
                    return Poll::Ready(());
                }
            }
            let past = self
                .sent
                .and_then(|sent| context.now().duration_since(sent).ok())
                .unwrap_or_default();
            let left = self.silence.saturating_sub(past);
            self.sleep = Some(context.environment().clock().sleep(left));
            self.silent = true;
        }
    }
}

impl<A, B> fmt::Debug for ResponseBody<A, B>
where
    A: Service<ChatRequest>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}
