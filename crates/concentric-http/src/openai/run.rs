//! A run of a model or an agent, and the answer that is made of its events.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use concentric_core::{
    BoxModel, CancelReason, ChatRequest, Error, ErrorKind, Event, EventStream, Finish, Outcome,
    Phase, Resume,
    context::{Context as Run, Sleep},
    interrupt::CLIENT_TOOL,
    panic::{CaughtPanic, catch},
    store::{Resumable, StoreFuture},
};
use futures_core::Stream;
use tower::util::Oneshot;

use super::{
    answer::{Answer, Ending, Sink},
    encode::Encode,
    failure::Failure,
    input::Job,
    stored::{Keep, STORE_WITHIN, Written},
};
use crate::{
    describe::ErrorMessage,
    merge::{ITEMS, PIECE},
    shutdown::Guard,
};

/// A run and its answer.
pub(super) struct Answering {
    work: Work,
    context: Run,
    shutdown: Option<Guard>,
    error_message: ErrorMessage,
    answer: Answer,
    // Taken when the response is stored.
    keep: Option<Keep>,
    // Whether the response is stored in any case, and has an end that others may have set before.
    is_background: bool,
    // Whether a layer stores the run while it waits.
    is_resumable: bool,
    // The approvals, which the loop or a layer around it takes before it responds.
    approvals: Option<Resume>,
    encoder: Box<dyn Encode>,
    is_streamed: bool,
    out: BytesMut,
    end: Option<Result<Ending, Failure>>,
    // The stored response, if another request or process has ended it first.
    replaced: Option<String>,
    is_deleted: bool,
}

/// The source of the next events.
enum Work {
    /// The model's response future.
    Call(Oneshot<BoxModel, ChatRequest>),
    /// The model's response body.
    Body(EventStream),
    /// The run has ended, and its response is being stored.
    Store(StoreFuture<Written>, Sleep, Result<Ending, Failure>),
    Done,
}

impl Answering {
    /// `job` has a request with the context of the run.
    pub(super) fn new(
        model: BoxModel,
        job: Job,
        keep: Option<Keep>,
        shutdown: Option<Guard>,
        error_message: ErrorMessage,
        shows_reasoning: bool,
    ) -> Self {
        let Job {
            request,
            calls,
            is_streamed,
            mut encoder,
            ..
        } = job;
        let mut out = BytesMut::new();
        if is_streamed {
            encoder.begin(&mut out);
        }
        Self {
            context: request.context.clone(),
            answer: Answer::new(request.tools.clone(), calls, shows_reasoning),
            approvals: request.resume.clone(),
            work: Work::Call(Oneshot::new(model, request)),
            is_background: keep.as_ref().is_some_and(Keep::is_live),
            keep,
            is_resumable: false,
            shutdown,
            error_message,
            encoder,
            is_streamed,
            out,
            end: None,
            replaced: None,
            is_deleted: false,
        }
    }

    pub(super) const fn context(&self) -> &Run {
        &self.context
    }

    /// Whether the answer has an item that the client sees.
    pub(super) fn is_visible(&self) -> bool {
        !self.answer.items().is_empty()
    }

    pub(super) const fn is_over(&self) -> bool {
        matches!(self.work, Work::Done)
    }

    /// Whether the response was deleted before its end.
    pub(super) const fn is_deleted(&self) -> bool {
        self.is_deleted
    }

    /// The bytes that are ready.
    pub(super) const fn out(&mut self) -> &mut BytesMut {
        &mut self.out
    }

    /// Takes the end of the run, once it has ended.
    pub(super) const fn take_end(&mut self) -> Option<Result<Ending, Failure>> {
        self.end.take()
    }

    /// Takes the failure of a run that has failed.
    pub(super) fn take_failure(&mut self) -> Option<Failure> {
        let failed = self.end.take_if(|end| end.is_err());
        failed.and_then(Result::err)
    }

    /// The whole answer of a run that has ended.
    pub(super) fn whole(&self, ending: &Ending) -> Bytes {
        self.encoder.whole(&self.answer, ending)
    }

    /// Drops the run and the bytes that are ready.
    pub(super) fn stop(&mut self) {
        self.set_work(Work::Done);
        self.out = BytesMut::new();
        self.shutdown = None;
    }

    /// Writes the end of a stream.
    pub(super) fn write_end(&mut self, end: &Result<Ending, Failure>) {
        if !self.is_streamed {
            return;
        }
        match (&self.replaced, end) {
            (Some(response), _) => self.encoder.replaced(response, &mut self.out),
            (None, Ok(ending)) => self.encoder.finish(&self.answer, ending, &mut self.out),
            (None, Err(failure)) => self.encoder.fail(&self.answer, failure, &mut self.out),
        }
    }

    /// Drops the run, whose response has failed. A background response that is being stored has its time.
    pub(super) fn abort(&mut self) {
        if self.is_over() || (self.is_background && matches!(self.work, Work::Store(..))) {
            return;
        }
        match std::mem::replace(&mut self.work, Work::Done) {
            Work::Store(.., end) => self.unstored(&"the server shuts down", end),
            work => {
                self.work = work;
                self.set_work(Work::Done);
                let reason = self.context.cancel_reason();
                let reason = reason.unwrap_or(CancelReason::Shutdown);
                self.close(Err(Failure::aborted(&reason, &self.context)), None);
            }
        }
    }

    /// Polls the run until it is pending, has ended, or has a chunk of the stream. A panic of the
    /// model ends the run.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        if !self.is_over()
            && let Some(shutdown) = &mut self.shutdown
            && shutdown.poll_over(&self.context, cx).is_ready()
        {
            self.abort();
        }
        // One `catch` for all items, since each has a cost.
        if let Err(panic) = catch(|| self.poll_items(cx))
            && !self.is_over()
        {
            let failure = Failure::panicked(&panic, Some(&self.context));
            self.close(Err(failure), None);
            cx.waker().wake_by_ref();
        }
    }

    fn poll_items(&mut self, cx: &mut Context<'_>) {
        let mut items = 0;
        while self.out.len() < PIECE {
            if items == ITEMS {
                cx.waker().wake_by_ref();
                break;
            }
            items += 1;
            if !self.out.is_empty() {
                // Several events are one chunk: its buffer grows once, and not with each of them.
                self.out.reserve(PIECE.saturating_sub(self.out.len()));
            }
            let item = match &mut self.work {
                Work::Call(call) => match Pin::new(call).poll(cx) {
                    Poll::Ready(Ok(response)) => {
                        self.is_resumable = response.extensions.get::<Resumable>().is_some();
                        if let Some(keep) = &mut self.keep {
                            keep.begin(&response.head);
                        }
                        self.set_work(Work::Body(response.body));
                        let approvals = self.approvals.take();
                        if approvals.is_some_and(|approvals| approvals.take().is_some()) {
                            // A plain model answers without the messages that came with them.
                            self.fail(&not_resumed());
                        }
                        continue;
                    }
                    Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
                    Poll::Pending => Poll::Pending,
                },
                Work::Body(body) => Pin::new(body).poll_next(cx),
                Work::Store(..) => {
                    self.poll_store(cx);
                    break;
                }
                Work::Done => break,
            };
            match item {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(Event::Finish(finish)))) => {
                    // The run is dropped before its end is written, so that its resources are free
                    // when the client reads it.
                    self.set_work(Work::Done);
                    let end = self.finish(&finish);
                    self.close(end, Some(&finish));
                }
                Poll::Ready(Some(Ok(event))) => {
                    if let Some(keep) = &mut self.keep {
                        keep.push(&event);
                    }
                    let mut sink = sink(self.is_streamed, &mut *self.encoder, &mut self.out);
                    if let Err(error) = self.answer.push(event, &mut sink) {
                        self.fail(&error);
                    }
                }
                Poll::Ready(Some(Err(error))) => self.fail(&error),
                Poll::Ready(None) => self.fail(&Error::truncated()),
            }
        }
    }

    /// Stores the response, unless it has failed in the foreground, and ends the answer after that.
    fn close(&mut self, end: Result<Ending, Failure>, finish: Option<&Finish>) {
        self.set_work(Work::Done);
        let keep = self.keep.take();
        let Some(keep) = keep.filter(|_| end.is_ok() || self.is_background) else {
            return self.end(end);
        };
        let response = match &end {
            Ok(ending) => self.encoder.whole(&self.answer, ending),
            Err(failure) => self.encoder.failed(&self.answer, failure),
        };
        let clock = self.context.environment().clock();
        let limit = clock.sleep(STORE_WITHIN);
        let finish = finish.filter(|_| end.is_ok());
        // The store is the host's code.
        match catch(|| keep.write(finish, &self.answer, &response)) {
            Ok(written) => self.set_work(Work::Store(written, limit, end)),
            Err(panic) => self.unstored(&Panicked(panic), end),
        }
    }

    fn poll_store(&mut self, cx: &mut Context<'_>) {
        let Work::Store(written, limit, _) = &mut self.work else {
            return;
        };
        let written = match catch(|| written.as_mut().poll(cx)) {
            Ok(Poll::Ready(Ok(written))) => Ok(written),
            Ok(Poll::Ready(Err(error))) => Err(error.to_string()),
            Ok(Poll::Pending) if limit.as_mut().poll(cx).is_ready() => {
                Err("the store did not answer in time".to_owned())
            }
            Ok(Poll::Pending) => return,
            Err(panic) => Err(Panicked(panic).to_string()),
        };
        if let Work::Store(.., end) = std::mem::replace(&mut self.work, Work::Done) {
            match written {
                Ok(Written::Stored) => self.end(end),
                Ok(Written::Replaced(response)) => {
                    self.replaced = Some(response);
                    self.end(end);
                }
                Ok(Written::Deleted) => {
                    self.is_deleted = true;
                    self.end(Err(Failure::aborted(&CancelReason::User, &self.context)));
                }
                Err(error) => self.unstored(&error, end),
            }
        }
    }

    /// Ends the answer of a run whose response could not be stored.
    fn unstored(&mut self, error: &dyn fmt::Display, end: Result<Ending, Failure>) {
        tracing::error!(
            run_id = %self.context.run_id(), %error,
            "a response of the OpenAI server was not stored"
        );
        if self.is_background {
            // The stored response has no end, which is reported as a failure later.
            return self.end(Err(Failure::unstored()));
        }
        self.encoder.unstored();
        self.end(end);
    }

    fn finish(&mut self, finish: &Finish) -> Result<Ending, Failure> {
        let mut approvals = Vec::new();
        match &finish.outcome {
            Outcome::Interrupted => {
                let interrupts = finish.interrupts();
                let questions = interrupts.iter().filter(|it| it.reason != CLIENT_TOOL);
                let asked: Option<Vec<_>> = questions
                    .map(|it| self.encoder.approval_of(it).filter(|_| self.is_resumable))
                    .collect();
                match asked {
                    Some(asked) if !interrupts.is_empty() => approvals = asked,
                    _ => return Err(Failure::approval(&interrupts, &self.context)),
                }
            }
            Outcome::Aborted { reason } => return Err(Failure::aborted(reason, &self.context)),
            _ => {}
        }
        let mut sink = sink(self.is_streamed, &mut *self.encoder, &mut self.out);
        let ending = self.answer.end(finish, approvals, &mut sink);
        ending.map_err(|error| self.failure(&error))
    }

    fn fail(&mut self, error: &Error) {
        // Dropped first: an effect that begins while the run is dropped counts.
        self.set_work(Work::Done);
        let failure = self.failure(error);
        self.close(Err(failure), None);
    }

    fn failure(&self, error: &Error) -> Failure {
        Failure::of(error, &self.context, &self.error_message)
    }

    fn end(&mut self, end: Result<Ending, Failure>) {
        self.set_work(Work::Done);
        self.end = Some(end);
    }

    /// Replaces the model's future or body, and catches a panic of its user code.
    fn set_work(&mut self, next: Work) {
        let before = std::mem::replace(&mut self.work, next);
        if let Err(panic) = catch(|| drop(before)) {
            tracing::error!(
                run_id = %self.context.run_id(), panic = panic.text(),
                "a run of the OpenAI server panicked while it was dropped"
            );
        }
    }
}

fn not_resumed() -> Error {
    let why = "there is no run to resume: the model is no agent, or a layer has answered instead";
    Error::new(ErrorKind::Conflict, why).with_phase(Phase::Run)
}

/// A panic of the store.
struct Panicked(CaughtPanic);

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the store panicked: {}",
            self.0.text().unwrap_or_default()
        )
    }
}

fn sink<'a>(is_streamed: bool, encoder: &'a mut dyn Encode, out: &'a mut BytesMut) -> Sink<'a> {
    is_streamed.then_some((encoder, out))
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.set_work(Work::Done);
    }
}
