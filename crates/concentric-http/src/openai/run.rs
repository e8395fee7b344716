//! A run of a model or an agent, and the answer that is made of its events.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use concentric_core::{
    BoxModel, CancelReason, ChatRequest, Error, Event, EventStream, Finish, Outcome,
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
    stored::{Keep, STORE_WITHIN},
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
    // Whether a layer stores the run while it waits.
    is_resumable: bool,
    encoder: Box<dyn Encode>,
    is_streamed: bool,
    out: BytesMut,
    end: Option<Result<Ending, Failure>>,
}

/// The source of the next events.
enum Work {
    /// The model's response future.
    Call(Oneshot<BoxModel, ChatRequest>),
    /// The model's response body.
    Body(EventStream),
    /// The run has ended, and its response is being stored.
    Store(StoreFuture<u64>, Sleep, Ending),
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
            work: Work::Call(Oneshot::new(model, request)),
            keep,
            is_resumable: false,
            shutdown,
            error_message,
            encoder,
            is_streamed,
            out,
            end: None,
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

    /// Writes the end of the stream.
    pub(super) fn write_end(&mut self, end: &Result<Ending, Failure>) {
        match end {
            Ok(ending) => self.encoder.finish(&self.answer, ending, &mut self.out),
            Err(failure) => self.encoder.fail(&self.answer, failure, &mut self.out),
        }
    }

    /// Polls the run until it is pending, has ended, or has a chunk of the stream. A panic of the
    /// model ends the run.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        if !self.is_over()
            && let Some(shutdown) = &mut self.shutdown
            && shutdown.poll_over(&self.context, cx).is_ready()
        {
            match std::mem::replace(&mut self.work, Work::Done) {
                Work::Store(.., ending) => self.unstored(&"the server shuts down", ending),
                work => {
                    self.work = work;
                    let failure = Failure::aborted(&CancelReason::Shutdown, &self.context);
                    self.end(Err(failure));
                }
            }
        }
        // One `catch` for all items, since each has a cost.
        if let Err(panic) = catch(|| self.poll_items(cx))
            && !self.is_over()
        {
            let failure = Failure::panicked(&panic, Some(&self.context));
            self.end(Err(failure));
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
                    match self.finish(&finish) {
                        Ok(ending) => self.store(&finish, ending),
                        Err(failure) => self.end(Err(failure)),
                    }
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

    /// Stores the response, and ends the answer after that.
    fn store(&mut self, finish: &Finish, ending: Ending) {
        let Some(keep) = self.keep.take() else {
            return self.end(Ok(ending));
        };
        let response = self.encoder.whole(&self.answer, &ending);
        let clock = self.context.environment().clock();
        let limit = clock.sleep(STORE_WITHIN);
        // The store is the host's code.
        match catch(|| keep.write(finish, &self.answer, &response)) {
            Ok(written) => self.set_work(Work::Store(written, limit, ending)),
            Err(panic) => self.unstored(&Panicked(panic), ending),
        }
    }

    fn poll_store(&mut self, cx: &mut Context<'_>) {
        let Work::Store(written, limit, _) = &mut self.work else {
            return;
        };
        let written = match catch(|| written.as_mut().poll(cx)) {
            Ok(Poll::Ready(Ok(_))) => Ok(()),
            Ok(Poll::Ready(Err(error))) => Err(error.to_string()),
            Ok(Poll::Pending) if limit.as_mut().poll(cx).is_ready() => {
                Err("the store did not answer in time".to_owned())
            }
            Ok(Poll::Pending) => return,
            Err(panic) => Err(Panicked(panic).to_string()),
        };
        if let Work::Store(.., ending) = std::mem::replace(&mut self.work, Work::Done) {
            match written {
                Ok(()) => self.end(Ok(ending)),
                Err(error) => self.unstored(&error, ending),
            }
        }
    }

    /// Ends the answer of a run whose response could not be stored.
    fn unstored(&mut self, error: &dyn fmt::Display, ending: Ending) {
        tracing::error!(
            run_id = %self.context.run_id(), %error,
            "a response of the OpenAI server was not stored"
        );
        self.encoder.unstored();
        self.end(Ok(ending));
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
        self.end(Err(failure));
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
