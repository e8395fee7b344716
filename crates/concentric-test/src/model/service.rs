use super::{
    ScriptedBody,
    script::{Counts, Op, Script, Shared},
};
use crate::{Gate, Pace};
use concentric_core::{
    Arguments, CallId, ChatRequest, ChatResponse, Error, Event, Finish, ResponseHead, Str,
    ToolCallPart, Usage,
};
use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};
use tower_service::Service;

/// A model that responds from a script, and records its requests.
///
/// Clones share the script and the record. See the [module docs](super).
#[derive(Clone, Debug, Default)]
pub struct ScriptedModel {
    shared: Arc<Mutex<Shared>>,
}

impl ScriptedModel {
    /// Creates a model with an empty script.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(self, set: impl FnOnce(&mut Script)) -> Self {
        set(self.lock().current());
        self
    }

    fn op(self, op: Op) -> Self {
        self.write(|script| script.push(op))
    }

    // ---- content ----

    /// Adds text, as one delta.
    #[must_use]
    pub fn text(self, text: impl Into<Str>) -> Self {
        self.event(Event::text(text))
    }

    /// Adds text, as one delta for each piece.
    #[must_use]
    pub fn deltas<T: Into<Str>>(self, pieces: impl IntoIterator<Item = T>) -> Self {
        pieces.into_iter().fold(self, Self::text)
    }

    /// Adds reasoning, as one delta.
    #[must_use]
    pub fn reasoning(self, text: impl Into<Str>) -> Self {
        self.event(Event::ReasoningDelta(text.into()))
    }

    /// Adds a tool call with the id `call_1`, `call_2` and so on, counted over the whole script.
    #[must_use]
    pub fn tool_call(self, name: impl Into<Str>, arguments: impl Into<Arguments>) -> Self {
        let id = {
            let mut shared = self.lock();
            shared.next_call += 1;
            CallId::new(format!("call_{}", shared.next_call))
        };
        self.event(Event::tool_call(ToolCallPart::new(id, name, arguments)))
    }

    /// Adds an event of any kind.
    #[must_use]
    pub fn event(self, event: Event) -> Self {
        self.op(Op::Event(event))
    }

    /// Adds events of any kind.
    #[must_use]
    pub fn events(self, events: impl IntoIterator<Item = Event>) -> Self {
        events.into_iter().fold(self, Self::event)
    }

    // ---- end of the response ----

    /// Ends the response with this finish.
    #[must_use]
    pub fn finish(self, finish: Finish) -> Self {
        self.event(Event::Finish(Box::new(finish)))
    }

    /// Ends the response with an error.
    #[must_use]
    pub fn error(self, error: Error) -> Self {
        self.op(Op::Fail(error))
    }

    /// Ends the response without a terminal item.
    #[must_use]
    pub fn end_early(self) -> Self {
        self.op(Op::EndEarly)
    }

    /// Keeps the response pending forever.
    #[must_use]
    pub fn never(self) -> Self {
        self.op(Op::Never)
    }

    // ---- timing ----

    /// Waits until `gate` is open.
    #[must_use]
    pub fn wait(self, gate: &Gate) -> Self {
        self.op(Op::Wait(gate.clone()))
    }

    /// Sleeps for `duration`, by the clock of the run.
    #[must_use]
    pub fn sleep(self, duration: Duration) -> Self {
        self.op(Op::Sleep(duration))
    }

    /// Returns `Pending` once, and wakes the task immediately.
    #[must_use]
    pub fn pause(self) -> Self {
        self.op(Op::Yield)
    }

    /// Waits at `pace` before each item of each response; the default is [`Pace::AtOnce`].
    #[must_use]
    pub fn paced(self, pace: Pace) -> Self {
        self.lock().pace = pace;
        self
    }

    // ---- whole responses ----

    /// Begins the next response.
    #[must_use]
    pub fn then(self) -> Self {
        self.lock().begin = true;
        self
    }

    /// Repeats the last response when the script is used up, instead of failing.
    #[must_use]
    pub fn repeat(self) -> Self {
        self.lock().repeat = true;
        self
    }

    /// Sets the usage of this response; the default is one input and one output token.
    #[must_use]
    pub fn usage(self, usage: Usage) -> Self {
        self.write(|script| script.usage = usage)
    }

    /// Sets the head of this response.
    #[must_use]
    pub fn head(self, head: ResponseHead) -> Self {
        self.write(|script| script.head = head)
    }

    /// Disables streaming for this response: its future resolves when the response is complete, and
    /// returns any error in it.
    #[must_use]
    pub fn unary(self) -> Self {
        self.write(|script| script.unary = true)
    }

    /// Makes `poll_ready` fail with `error` from now on.
    #[must_use]
    pub fn unready(self, error: Error) -> Self {
        self.lock().unready = Some(error);
        self
    }

    // ---- observation ----

    /// Returns the number of calls.
    pub fn calls(&self) -> usize {
        self.lock().requests.len()
    }

    /// Returns the requests, in order.
    pub fn requests(&self) -> Vec<ChatRequest> {
        self.lock().requests.clone()
    }

    /// Returns the request of the call at `index`, from 0.
    ///
    /// # Panics
    ///
    /// Panics if there was no such call.
    #[track_caller]
    #[expect(clippy::panic, reason = "an assertion")]
    pub fn request(&self, index: usize) -> ChatRequest {
        let shared = self.lock();
        match shared.requests.get(index) {
            Some(request) => request.clone(),
            None => panic!(
                "the model was called {} times, so there is no request {index}",
                shared.requests.len()
            ),
        }
    }

    /// Returns the number of scripted responses that are not used yet.
    pub fn unused(&self) -> usize {
        self.lock().scripts.len()
    }

    fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Returns the number of calls whose future or body has not been dropped.
    pub fn live(&self) -> usize {
        self.counts().live
    }

    /// Returns the largest number of calls that were live at once.
    pub fn most_live(&self) -> usize {
        self.counts().most_live
    }

    /// Returns the number of calls that were dropped before their end, as a future or as a body.
    pub fn dropped(&self) -> usize {
        self.counts().dropped
    }

    /// Returns the number of polls of all bodies.
    pub fn polls(&self) -> usize {
        self.counts().polls
    }

    /// Returns the number of items that all bodies yielded; each `None` counts as one.
    pub fn items(&self) -> usize {
        self.counts().items
    }
}

impl Service<ChatRequest> for ScriptedModel {
    type Response = ChatResponse<ScriptedBody>;
    type Error = Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(match &self.lock().unready {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        })
    }

    fn call(&mut self, request: ChatRequest) -> ResponseFuture {
        if let Err(error) = request.check_stack() {
            return ResponseFuture(Some(Err(error)));
        }
        let context = request.context.clone();
        let mut shared = self.lock();
        shared.requests.push(request);
        let script = shared.next();
        drop(shared);
        ResponseFuture(Some(script.map(|script| {
            let whole = script.unary;
            let head = script.head.clone();
            let body = ScriptedBody::new(script, context, Arc::clone(&self.shared));
            (ChatResponse::new(body).with_head(head), whole)
        })))
    }
}

/// Response future for [`ScriptedModel`].
#[derive(Debug)]
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct ResponseFuture(Option<Result<(ChatResponse<ScriptedBody>, bool), Error>>);

impl Future for ResponseFuture {
    type Output = Result<ChatResponse<ScriptedBody>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(Ok((response, whole))) = &mut self.0
            && let Err(error) = ready!(response.body.poll_commit(cx, *whole))
        {
            self.0 = None;
            return Poll::Ready(Err(error));
        }
        let result = self.0.take().expect("polled after completion");
        Poll::Ready(result.map(|(response, _)| response))
    }
}
