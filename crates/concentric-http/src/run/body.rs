use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use concentric_core::{
    CancelReason, ChatRequest, ChatResponse, Error, Event, ToolSpecs, context::Context as Run,
    context::Sleep, panic::catch,
};
use futures_core::Stream;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower::{BoxError, util::Oneshot};
use tower_service::Service;

use super::{
    Config, Events, Start,
    ending::{conflict, name_taken},
    output::{End, Output},
};
use crate::{
    describe::ErrorMessage,
    keep_alive::KeepAlive,
    merge::{ITEMS, Merge, PIECE},
    refused::Refused,
    shutdown::Guard,
};

/// The maximum time that the response head is held back.
const HELD: Duration = Duration::from_secs(5);

/// Response body of an endpoint: a run as server-sent events, or a JSON error.
///
/// Polling the body drives the run, and dropping the body drops the run. A panic of the agent ends
/// the stream with the error of the protocol, such as `RUN_ERROR`; the agent is not polled again. The
/// body of a client that has joined a run does not affect it.
///
/// Events that are ready together are returned as one chunk, up to 16 KiB. While yielding to the
/// other tasks of the thread brings further events, the body does so for up to 10 ms before it
/// returns a chunk, but not for the first chunks after a pause.
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
    // The run of another request.
    Joined(Box<Events>),
    // Boxed, since it is polled, and therefore pinned, before the body is returned.
    Run(Pin<Box<RunParts<A, B>>>),
}

pin_project! {
    #[project = RunStateProj]
    struct RunParts<A, B>
    where
        A: Service<ChatRequest>,
    {
        head: RunHead,
        #[pin]
        work: Work<A, B>,
    }

    impl<A, B> PinnedDrop for RunParts<A, B>
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
    /// The source of a stream's next events.
    #[project = WorkProj]
    enum Work<A, B>
    where
        A: Service<ChatRequest>,
    {
        /// The agent's response future.
        Call { #[pin] call: Oneshot<A, ChatRequest> },
        /// The agent's response body.
        Body { #[pin] body: B },
        /// None: the terminal event is written.
        Done,
    }
}

/// The parts of a stream other than the agent.
struct RunHead {
    output: Output,
    context: Run,
    // The client's tools.
    tools: ToolSpecs,
    error_message: ErrorMessage,
    // Whether the request has no replies.
    is_new: bool,
    merge: Merge,
    keep_alive: Option<KeepAlive>,
    shutdown: Option<Guard>,
}

impl<A, B> ResponseBody<A, B>
where
    A: Service<ChatRequest>,
{
    pub(crate) const fn whole(bytes: Bytes) -> Self {
        Self {
            kind: Kind::Whole { bytes: Some(bytes) },
        }
    }

    pub(crate) fn joined(events: Events) -> Self {
        Self {
            kind: Kind::Joined(Box::new(events)),
        }
    }

    pub(super) fn run(agent: A, start: Start, config: &Config, shutdown: Option<Guard>) -> Self {
        let Start {
            request,
            ids,
            offer,
        } = start;
        let context = request.context.clone();
        let is_new = request.resume.is_none();
        let tools = ids.tools.clone();
        let error_message = config.settings.error_message.clone();
        let translator = config
            .protocol
            .translator(context.clone(), ids, error_message.clone());
        Self {
            kind: Kind::Run(Box::pin(RunParts {
                head: RunHead {
                    output: Output::new(offer, translator),
                    tools,
                    error_message,
                    // That of the run's start, and that of its first content.
                    merge: Merge::new(2),
                    keep_alive: config.settings.keep_alive.map(KeepAlive::new),
                    context,
                    is_new,
                    shutdown,
                },
                work: Work::Call {
                    call: Oneshot::new(agent, request),
                },
            })),
        }
    }

    /// Polls the agent until the request is accepted: while a layer holds the response head back,
    /// but for at most [`HELD`], measured by `limit`.
    ///
    /// # Errors
    ///
    /// The request was rejected, so that it can still be answered with a status.
    pub(super) fn poll_accepted(
        &mut self,
        limit: &mut Option<Sleep>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Refused>>
    where
        A: Service<ChatRequest, Response = ChatResponse<B>>,
        A::Error: Into<BoxError>,
    {
        let Kind::Run(run) = &mut self.kind else {
            return Poll::Ready(Ok(()));
        };
        let RunStateProj { head, mut work } = run.as_mut().project();
        let WorkProj::Call { call } = work.as_mut().project() else {
            return Poll::Ready(Ok(()));
        };
        match catch(|| call.poll(cx).map_err(|error| Error::from(error.into()))) {
            Ok(Poll::Pending) => return head.poll_held(limit, cx).map(Ok),
            Ok(Poll::Ready(Ok(ChatResponse {
                head: answer,
                extensions,
                body,
                ..
            }))) => {
                head.output.head(&answer, &extensions);
                head.set_work(work, Work::Body { body });
            }
            Ok(Poll::Ready(Err(error))) => {
                if let Some(refused) = head.refused(&error) {
                    head.drop_work(work);
                    head.output.discard();
                    return Poll::Ready(Err(refused));
                }
                head.end(work, &End::Failed(&error));
            }
            Err(panic) => head.end(work, &End::Panicked(&panic)),
        }
        Poll::Ready(Ok(()))
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
            Kind::Joined(events) => ready!(events.poll(cx)),
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
            Kind::Joined(events) => events.is_over(),
            Kind::Run(run) => matches!(run.work, Work::Done) && run.head.output.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Joined(_) | Kind::Run(_) => SizeHint::default(),
        }
    }
}

impl RunHead {
    /// The response to a request that caused `error`; `None` if the error belongs in the stream.
    fn refused(&self, error: &Error) -> Option<Refused> {
        if let Some(taken) = name_taken(error, &self.tools, &self.context) {
            return Some(Refused::tool_name_taken(taken));
        }
        // The error of a resume is reported in the stream, with its code.
        let conflict = conflict(error, &self.error_message, &self.context);
        let (code, message) = conflict.filter(|_| self.is_new)?;
        Some(Refused::conflict(code, &message))
    }

    /// Resolves when the stream must begin.
    fn poll_held(&mut self, limit: &mut Option<Sleep>, cx: &mut Context<'_>) -> Poll<()> {
        if self.context.poll_head(cx).is_ready() {
            return Poll::Ready(());
        }
        if let Some(shutdown) = &mut self.shutdown
            && shutdown.poll_over(&self.context, cx).is_ready()
        {
            return Poll::Ready(());
        }
        let clock = self.context.environment().clock();
        let limit = limit.get_or_insert_with(|| clock.sleep(HELD));
        limit.as_mut().poll(cx)
    }

    /// Drops the agent's future or body, and ends the stream.
    fn end<A, B>(&mut self, work: Pin<&mut Work<A, B>>, end: &End<'_>)
    where
        A: Service<ChatRequest>,
    {
        let context = &self.context;
        self.output.end(end, || set_work(work, Work::Done, context));
    }

    /// Drops the agent's future or body, and catches a panic of its user code.
    fn drop_work<A, B>(&self, work: Pin<&mut Work<A, B>>)
    where
        A: Service<ChatRequest>,
    {
        self.set_work(work, Work::Done);
    }

    fn set_work<A, B>(&self, work: Pin<&mut Work<A, B>>, next: Work<A, B>)
    where
        A: Service<ChatRequest>,
    {
        set_work(work, next, &self.context);
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
            self.end(work.as_mut(), &End::Cancelled(&CancelReason::Shutdown));
        }
        self.output.notice();

        // One `catch` for all items, since each has a cost.
        if let Err(panic) = catch(|| self.poll_items(work.as_mut(), cx))
            && !matches!(*work, Work::Done)
        {
            self.end(work.as_mut(), &End::Panicked(&panic));
        }

        let is_done = matches!(*work, Work::Done);
        if self.output.log().is_some() {
            return self.poll_log(work, cx);
        }
        let len = self.output.len();
        if len == 0 {
            if is_done {
                return Poll::Ready(None);
            }
            let comment = ready!(KeepAlive::poll(&mut self.keep_alive, &self.context, cx));
            self.merge
                .sent(self.context.environment().clock().monotonic());
            return Poll::Ready(Some(comment));
        }
        let now = self.context.environment().clock().monotonic();
        if !is_done && (1..PIECE).contains(&len) && self.merge.waits(len, now) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.merge.sent(now);
        if let Some(keep_alive) = &mut self.keep_alive {
            keep_alive.sent(now);
        }
        Poll::Ready(self.output.take())
    }

    /// Returns the next chunk of the log of the run, whose events a task translates.
    #[cold]
    fn poll_log<A, B>(
        &mut self,
        work: Pin<&mut Work<A, B>>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Bytes>>
    where
        A: Service<ChatRequest>,
    {
        let is_done = matches!(*work, Work::Done);
        let Some(log) = self.output.log() else {
            return Poll::Ready(None);
        };
        match log.poll(is_done, cx) {
            Poll::Ready(chunk) => {
                // The stream of a client that is too slow ends before its run.
                if self.output.is_over() && !is_done {
                    self.drop_work(work);
                }
                if let Some(keep_alive) = &mut self.keep_alive {
                    keep_alive.sent(self.context.environment().clock().monotonic());
                }
                Poll::Ready(chunk)
            }
            Poll::Pending => KeepAlive::poll(&mut self.keep_alive, &self.context, cx).map(Some),
        }
    }

    /// Writes all ready items, up to one chunk.
    fn poll_items<A, B>(&mut self, mut work: Pin<&mut Work<A, B>>, cx: &mut Context<'_>)
    where
        A: Service<ChatRequest, Response = ChatResponse<B>>,
        A::Error: Into<BoxError>,
        B: Stream<Item = Result<Event, Error>>,
    {
        let mut items = 0;
        while self.output.len() < PIECE {
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
                        self.output.head(&head, &extensions);
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
                    self.output.event(event);
                    if last {
                        self.drop_work(work.as_mut());
                    }
                }
                // The run is dropped before its terminal event is written, so that its resources
                // are free when the client reads it.
                Poll::Ready(Some(Err(error))) => self.end(work.as_mut(), &End::Failed(&error)),
                Poll::Ready(None) => self.end(work.as_mut(), &End::Truncated),
            }
        }
    }
}

/// Replaces the agent's future or body, and catches a panic of its user code.
fn set_work<A, B>(mut work: Pin<&mut Work<A, B>>, next: Work<A, B>, context: &Run)
where
    A: Service<ChatRequest>,
{
    // `set` writes the new value even if the drop of the old one panics.
    if let Err(panic) = catch(|| work.set(next)) {
        let thread = context.thread_id().map(tracing::field::display);
        tracing::error!(thread_id = thread, run_id = %context.run_id(), panic = panic.text(), "run panicked while it was dropped");
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
