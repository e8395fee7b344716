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
    method::catch,
};
use futures_core::Stream;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower::{BoxError, util::Oneshot};
use tower_service::Service;

use super::{layer::Config, map::Start, reply::Refused, shutdown::Guard, stream::Translator};

/// How many bytes of events go out in one piece.
const PIECE: usize = 16 << 10;

/// How many items of the agent's body are taken in one poll, since some write nothing.
const ITEMS: usize = 1024;

/// Response body of [`AgUi`](super::AgUi): a run as server-sent events, or a JSON error.
///
/// The run goes on while the body is polled, and stops when it is dropped. A panic of the agent ends
/// the stream with `RUN_ERROR`; what panicked is not polled again.
#[must_use = "bodies do nothing unless polled"]
pub struct ResponseBody<A, B>
where
    A: Service<ChatRequest>,
{
    kind: Kind<A, B>,
}

enum Kind<A, B>
where
    A: Service<ChatRequest>,
{
    Whole { bytes: Option<Bytes> },
    // Polled once before the body is returned, so it is pinned already.
    Run(Pin<Box<RunState<A, B>>>),
}

pin_project! {
    #[project = RunStateProj]
    struct RunState<A, B>
    where
        A: Service<ChatRequest>,
    {
        head: RunHead,
        #[pin]
        work: Work<A, B>,
    }

    impl<A, B> PinnedDrop for RunState<A, B>
    where
        A: Service<ChatRequest>,
    {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.head.drop_work(this.work);
        }
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
            kind: Kind::Run(Box::pin(RunState {
                head: RunHead {
                    translator,
                    keep_alive: config.keep_alive.map(KeepAlive::new),
                    context,
                    shutdown,
                },
                work: Work::Call {
                    call: Oneshot::new(agent, request),
                },
            })),
        }
    }

    /// Calls the agent, as far as it can be called at once: what is wrong with the request itself can
    /// still be answered with a status.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>) -> Result<(), Refused>
    where
        A: Service<ChatRequest, Response = ChatResponse<B>>,
        A::Error: Into<BoxError>,
    {
        let Kind::Run(run) = &mut self.kind else {
            return Ok(());
        };
        let RunStateProj { head, mut work } = run.as_mut().project();
        let WorkProj::Call { call } = work.as_mut().project() else {
            return Ok(());
        };
        match catch(|| call.poll(cx).map_err(|error| Error::from(error.into()))) {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(Ok(ChatResponse {
                head: answer,
                extensions,
                body,
                ..
            }))) => {
                head.translator.head(&answer, &extensions);
                head.set_work(work, Work::Body { body });
            }
            Ok(Poll::Ready(Err(error))) => {
                head.drop_work(work);
                if let Some(taken) = head.translator.name_taken(&error) {
                    return Err(Refused::tool_name_taken(taken));
                }
                head.translator.fail(&error);
            }
            Err(panic) => {
                head.drop_work(work);
                head.translator.panicked(&panic);
            }
        }
        Ok(())
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
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = match &mut self.kind {
            Kind::Whole { bytes } => bytes.take(),
            Kind::Run(run) => {
                let run = run.as_mut().project();
                ready!(run.head.poll_piece(run.work, cx))
            }
        };
        Poll::Ready(piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole { bytes } => bytes.is_none(),
            Kind::Run(run) => matches!(run.work, Work::Done) && run.head.translator.len() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Run(_) => SizeHint::default(),
        }
    }
}

impl RunHead {
    /// Drops what the stream waits for, which is a user's: a panic of it is caught.
    fn drop_work<A, B>(&self, work: Pin<&mut Work<A, B>>)
    where
        A: Service<ChatRequest>,
    {
        self.set_work(work, Work::Done);
    }

    fn set_work<A, B>(&self, mut work: Pin<&mut Work<A, B>>, next: Work<A, B>)
    where
        A: Service<ChatRequest>,
    {
        // The new value is written also if the drop of the old one panics.
        if let Err(panic) = catch(|| work.set(next)) {
            self.translator.drop_panicked(&panic);
        }
    }

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
            self.drop_work(work.as_mut());
        }

        // Once for all items, since it costs some.
        if let Err(panic) = catch(|| self.poll_items(work.as_mut(), cx))
            && !matches!(*work, Work::Done)
        {
            self.drop_work(work.as_mut());
            self.translator.panicked(&panic);
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

    /// Writes what is ready, up to a piece.
    fn poll_items<A, B>(&mut self, mut work: Pin<&mut Work<A, B>>, cx: &mut Context<'_>)
    where
        A: Service<ChatRequest, Response = ChatResponse<B>>,
        A::Error: Into<BoxError>,
        B: Stream<Item = Result<Event, Error>>,
    {
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
                    Poll::Ready(Ok(ChatResponse {
                        head,
                        extensions,
                        body,
                        ..
                    })) => {
                        self.translator.head(&head, &extensions);
                        self.set_work(work.as_mut(), Work::Body { body });
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
                        self.drop_work(work.as_mut());
                    }
                }
                // The run is dropped before its end is shown: what it holds is free by then.
                Poll::Ready(Some(Err(error))) => {
                    self.drop_work(work.as_mut());
                    self.translator.fail(&error);
                }
                Poll::Ready(None) => {
                    self.drop_work(work.as_mut());
                    self.translator.truncated();
                }
            }
        }
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
